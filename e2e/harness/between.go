package harness

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// Fault is what happens to etcd's answers on their way to its clients.
type Fault string

const (
	// SlowAnswers delays every answer of etcd by SlowBy.
	SlowAnswers Fault = "slow answers"
	// LostAnswers takes every connection to etcd through the same life: after some seconds requests still arrive, but
	// their answers are lost, and then the connection is cut.
	LostAnswers Fault = "lost answers"

	// SlowBy is how much later SlowAnswers lets an answer come.
	SlowBy = 500 * time.Millisecond
)

// Ports at each address of a cluster. Clients that ask for etcd's port are led to the proxy's; a connection to the port
// beyond reaches etcd past the proxy.
const (
	etcdPort   = 2379
	beyondPort = 12379
	proxyPort  = 22379
)

const (
	answersFor = 3 * time.Second // the least that a connection lives under LostAnswers
	andUpTo    = 6 * time.Second // longer
	deafFor    = time.Second
)

// Between is the proxies between a cluster's programs and the client ports of its etcd.
type Between struct {
	site    *site
	rules   []rule
	proxies []*toxiproxy.Proxy
	once    sync.Once
	err     error
	lost    int64 // answers lost before it began
}

// Between puts a proxy before every address that a member of etcd has or may get, until End or the end of the test.
// Connections that are there are cut, so that nothing goes past it but what the harness itself asks of etcd. It needs
// root and iptables: without them the test is skipped.
func (c *Cluster) Between(f Fault) *Between {
	c.t.Helper()
	if os.Geteuid() != 0 {
		c.t.Skip("skipped: only root may lead connections to a proxy")
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		c.t.Skipf("skipped: connections cannot be led to a proxy: %v", err)
	}
	if err := sweepRules(); err != nil {
		c.t.Skipf("skipped: connections cannot be led to a proxy: %v", err)
	}
	b := &Between{site: c.site, lost: lost.Load()}
	c.t.Cleanup(func() {
		if err := b.End(); err != nil {
			c.t.Errorf("remove the proxy before etcd: %v", err)
		}
	})
	if err := b.listen(f); err != nil {
		c.t.Fatal(err)
	}
	for _, r := range rulesOf(c.subnet) {
		if err := r.do("-A"); err != nil {
			c.t.Skipf("skipped: connections cannot be led to a proxy: %v", err)
		}
		b.rules = append(b.rules, r)
	}
	c.past.Store(true)
	return b
}

// Lost returns how many pieces of answers were lost so far.
func (b *Between) Lost() int64 { return lost.Load() - b.lost }

// End removes the rules and the proxies, and cuts the connections that went through them.
func (b *Between) End() error {
	b.once.Do(func() {
		b.site.past.Store(false)
		for _, r := range b.rules {
			b.err = errors.Join(b.err, r.do("-D"))
		}
		for _, p := range b.proxies {
			p.Stop()
		}
	})
	return b.err
}

func (b *Between) listen(f Fault) error {
	toxic := map[string]any{"type": typeOfLost}
	if f == SlowAnswers {
		toxic = map[string]any{"type": "latency", "attributes": map[string]any{"latency": SlowBy.Milliseconds()}}
	}
	raw, _ := json.Marshal(toxic) // plain values always encode
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	for i := 1; i < 255; i++ {
		host := fmt.Sprintf("%s.%d", b.site.subnet, i)
		p := toxiproxy.NewProxy(server, host, fmt.Sprintf("%s:%d", host, proxyPort), fmt.Sprintf("%s:%d", host, beyondPort))
		// Before it starts: a toxic that is changed under a connection whose client was killed may hang the proxy.
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(string(raw))); err != nil {
			return err
		}
		if err := p.Start(); err != nil {
			return err
		}
		b.proxies = append(b.proxies, p)
	}
	return nil
}

// rule is one of iptables': its table, and the rest after -A or -D.
type rule struct {
	table string
	spec  []string
}

func (r rule) do(action string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	args := append([]string{"--wait", "--table", r.table, action}, r.spec...)
	if out, err := exec.CommandContext(ctx, "iptables", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("iptables %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// ruleMark begins the comment of our rules; the id of the process that made them follows.
const ruleMark = "windlass-e2e-"

func rulesOf(subnet string) []rule {
	of := func(table string, port int, rest ...string) rule {
		spec := []string{
			"OUTPUT", "-p", "tcp", "-d", subnet + ".0/24", "--dport", strconv.Itoa(port), "-m", "comment",
			"--comment", ruleMark + strconv.Itoa(os.Getpid()),
		}
		return rule{table, append(spec, rest...)}
	}
	return []rule{
		of("nat", beyondPort, "-j", "DNAT", "--to-destination", fmt.Sprintf(":%d", etcdPort)),
		of("nat", etcdPort, "-j", "DNAT", "--to-destination", fmt.Sprintf(":%d", proxyPort)),
		// A connection from before goes on without the rules above, and is cut.
		of("filter", etcdPort, "-m", "conntrack", "!", "--ctstate", "DNAT", "-j", "REJECT", "--reject-with", "tcp-reset"),
	}
}

// sweepRules removes the rules of test processes that died before they could.
func sweepRules() error {
	for _, table := range []string{"nat", "filter"} {
		out, err := exec.Command("iptables", "--wait", "--table", table, "--list-rules", "OUTPUT").Output()
		if err != nil {
			return fmt.Errorf("iptables --table %s --list-rules: %w", table, err)
		}
		for line := range strings.Lines(string(out)) {
			_, rest, ours := strings.Cut(line, ruleMark)
			if !ours {
				continue
			}
			pid, err := strconv.Atoi(strings.Trim(strings.Fields(rest)[0], `"`))
			if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				continue
			}
			if err := (rule{table, strings.Fields(line)[1:]}).do("-D"); err != nil {
				return err
			}
		}
	}
	return nil
}

// beyond returns the URL at which a member is reached past a proxy, if there is one before it.
func (s *site) beyond(url string) string {
	if host, ok := strings.CutSuffix(url, fmt.Sprintf(":%d", etcdPort)); ok && s.past.Load() {
		return fmt.Sprintf("%s:%d", host, beyondPort)
	}
	return url
}

const typeOfLost = "lost_answers"

func init() { toxics.Register(typeOfLost, new(lostAnswers)) }

// lost counts the pieces of answers that were lost. toxiproxy makes the toxics itself, so they share it.
var lost atomic.Int64

// lostAnswers is the toxic of LostAnswers.
type lostAnswers struct{}

// Pipe is one connection's life.
func (*lostAnswers) Pipe(stub *toxics.ToxicStub) {
	deaf := false
	next := time.NewTimer(answersFor + rand.N(andUpTo))
	defer next.Stop()
	for {
		select {
		case <-stub.Interrupt:
			return
		case <-next.C:
			if deaf {
				stub.Close()
				return
			}
			deaf = true
			next.Reset(deafFor)
		case c := <-stub.Input:
			switch {
			case c == nil:
				stub.Close()
				return
			case deaf:
				lost.Add(1)
			default:
				stub.Output <- c
			}
		}
	}
}

// Handshake opens a connection to a member of etcd as any program does, by way of the proxy, and closes it when the
// member has greeted.
func (c *Cluster) Handshake(ctx context.Context) error {
	root, err := c.Root()
	if err != nil {
		return err
	}
	q, err := c.Quorum(ctx)
	if err != nil {
		return err
	}
	if len(q.GetEndpoints()) == 0 {
		return errors.New("no member is known")
	}
	dialer := tls.Dialer{Config: root.tls.Clone()}
	conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(q.GetEndpoints()[0], "https://"))
	if err != nil {
		return err
	}
	return conn.Close()
}
