package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/windlass-dev/windlass/kit/dial"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const (
	keepaliveTime    = 10 * time.Second // the least that grpc-go allows a client; members permit it
	keepaliveTimeout = 3 * time.Second
	streamWindow     = 1 << 20 // bytes that a member may send before the client acknowledges them: of one stream,
	connWindow       = 4 << 20 // and of all
	maxRequestBytes  = 8 << 20 // as the members accept
)

// ClientConfig says how to reach etcd. Endpoints or EndpointsFile must name at least one address.
type ClientConfig struct {
	Endpoints     []string                         // URLs
	EndpointsFile string                           // one URL per line, kept by Endpoints; may be missing
	Credentials   credentials.TransportCredentials // nil: no TLS
	Log           *slog.Logger                     // nil: silent
}

// Dial returns a client over all addresses of the configuration and its file. It does not wait for a connection.
func Dial(cfg ClientConfig) (*clientv3.Client, error) {
	saved, err := readEndpoints(cfg.EndpointsFile)
	if err != nil {
		return nil, err
	}
	// The file is newer than the configuration: after the pivot the configured address is gone.
	endpoints := unique(append(saved, cfg.Endpoints...))
	if len(endpoints) == 0 {
		return nil, errors.New("no address of etcd is known")
	}
	options := []grpc.DialOption{
		dial.Reconnect(50*time.Millisecond, 500*time.Millisecond, 2*time.Second),
		// Of a fixed size: else each message that comes in, such as how far a watch is, costs a ping and its answer to
		// measure the line.
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
	}
	if cfg.Credentials != nil {
		// etcd's own field takes settings that cannot change
		options = append(options, grpc.WithTransportCredentials(cfg.Credentials))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		PermitWithoutStream:  true,
		MaxCallSendMsgSize:   maxRequestBytes,
		Logger:               clientLog(cfg.Log),
		DialOptions:          options,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return client, nil
}

// Endpoints keeps the addresses of a client, and those in its file, up to date with the voters of the cluster. Make one
// with NewEndpoints.
type Endpoints struct {
	client *clientv3.Client
	file   string
	log    *slog.Logger
	newest chan []string // for the file

	voters []string // addresses, as they were listed last; of Ready alone

	mu     sync.Mutex
	asking bool           // the voters are being asked
	failed map[string]int // how often in a row a voter did not answer, or had no leader, when it was asked
	next   time.Time      // when the voters may be asked again
	pause  time.Duration  // between two times
}

// NewEndpoints returns the Endpoints of a client. With an empty file name nothing is written.
func NewEndpoints(c *clientv3.Client, file string, log *slog.Logger) *Endpoints {
	return &Endpoints{client: c, file: file, log: log, newest: make(chan []string, 1)}
}

// ErrNotReady means that no linearizable read came through.
var ErrNotReady = errors.New("etcd is not ready")

const (
	// secondRead is when another member is asked, too: a member that hangs takes its time to be noticed.
	secondRead = 400 * time.Millisecond
	// After a slow read, and while one failed before, each voter is asked whether it has a leader, for askLimit at most.
	// One that failed is left out if all others answered atOnce, or if it failed so often in a row: on a busy host one
	// answer may be late.
	askLimit = time.Second
	atOnce   = askLimit / 4
	failures = 2
	// askPause is between two times, up to longAskPause while a voter is left out: each time is a connection to each
	// voter.
	askPause     = 500 * time.Millisecond
	longAskPause = 30 * time.Second
)

// Ready returns nil once a linearizable read came through, so a quorum answers. It needs no right. Until ctx ends it
// asks again and again, the next member while one does not answer; the error is that of the first that answered. What
// is read are the members, so the client's addresses are those of the voters then; an empty list is not used. A voter
// that does not answer, or has no leader, is left out while another one has one: etcd's client takes its addresses in
// turn, so each second or third call would go to a member that is cut off from the others. One call at a time.
func (e *Endpoints) Ready(ctx context.Context) error {
	began := time.Now()
	list, err := e.members(ctx)
	if err != nil {
		if e.reset() { // those that were left out may be the ones that answer
			e.client.SetEndpoints(e.voters...)
		}
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	voters := clientURLs(list)
	if len(voters) == 0 {
		return nil
	}
	e.voters = voters
	e.ask(voters, time.Since(began) > secondRead)
	used := e.used(voters)
	if !slices.Equal(used, sorted(e.client.Endpoints())) {
		e.client.SetEndpoints(used...)
	}
	select {
	case <-e.newest: // older
	default:
	}
	e.newest <- voters
	return nil
}

// reset forgets what the voters answered, and reports whether one was left out.
func (e *Endpoints) reset() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.leftOut()
	e.failed, e.pause = nil, 0
	return out
}

// leftOut reports whether a voter is left out; the lock is held.
func (e *Endpoints) leftOut() bool {
	for _, n := range e.failed {
		if n >= failures {
			return true
		}
	}
	return false
}

// used returns the voters that are not left out; all, if none would remain.
func (e *Endpoints) used(voters []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := slices.DeleteFunc(slices.Clone(voters), func(u string) bool { return e.failed[u] >= failures })
	if len(out) == 0 {
		return voters
	}
	return out
}

// ask has each voter asked for its leader, in the background, if a read was slow or one failed before.
func (e *Endpoints) ask(voters []string, slow bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asking || !slow && len(e.failed) == 0 || time.Now().Before(e.next) {
		return
	}
	e.asking = true
	go func() {
		failed, clear := e.leaderless(voters)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.asking = false
		before := e.leftOut()
		counts := map[string]int{}
		for _, url := range failed {
			if counts[url] = min(e.failed[url]+1, failures); clear {
				counts[url] = failures
			}
		}
		e.failed = counts
		if e.pause = min(2*e.pause, longAskPause); !before || !e.leftOut() {
			e.pause = askPause
		}
		e.next = time.Now().Add(e.pause)
	}()
}

// leaderless asks each voter, and returns those that do not answer or have no leader, if another one has one. It is
// clear that they are not only late if all others answered at once.
func (e *Endpoints) leaderless(voters []string) (failed []string, clear bool) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	var group sync.WaitGroup
	took := make([]time.Duration, len(voters)) // 0: it failed
	for i, url := range voters {
		group.Go(func() {
			began := time.Now()
			if st, err := e.client.Status(ctx, url); err == nil && st.Leader != 0 {
				took[i] = max(1, time.Since(began))
			}
		})
	}
	group.Wait()
	clear = true
	for i, url := range voters {
		if took[i] == 0 {
			failed = append(failed, url)
		}
		clear = clear && took[i] < atOnce
	}
	if len(failed) == len(voters) {
		return nil, false
	}
	return failed, clear
}

// members returns the first answer that comes.
func (e *Endpoints) members(ctx context.Context) ([]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		resp *clientv3.MemberListResponse
		err  error
	}
	answers := make(chan answer)
	ask := func() {
		resp, err := e.client.MemberList(ctx)
		select {
		case answers <- answer{resp, err}:
		case <-ctx.Done():
		}
	}
	go ask()
	again := time.NewTicker(secondRead)
	defer again.Stop()
	for {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, a.err
			}
			return a.resp.Members, nil
		case <-again.C:
			go ask()
		case <-ctx.Done():
			return nil, errors.New("no answer")
		}
	}
}

// Save writes what Ready reads to the file, until ctx ends; then it returns nil. A file that cannot be written, as on a
// full disk, is logged and tried again after the next read: the client has the addresses all the same. It is apart from
// Ready because a disk may hang.
func (e *Endpoints) Save(ctx context.Context) error {
	saved, err := readEndpoints(e.file)
	if err != nil {
		e.log.WarnContext(ctx, "addresses of etcd", "file", e.file, "error", err)
	}
	said := ""
	for {
		var voters []string
		select {
		case voters = <-e.newest:
		case <-ctx.Done():
			return nil
		}
		if e.file == "" || slices.Equal(voters, saved) {
			continue
		}
		if err := writeEndpoints(e.file, voters); err == nil {
			saved, said = voters, ""
		} else if text := err.Error(); text != said {
			said = text
			e.log.WarnContext(ctx, "addresses of etcd are not saved", "file", e.file, "error", err)
		}
	}
}

func clientURLs(members []*etcdserverpb.Member) []string {
	var urls []string
	for _, m := range members {
		if !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	return sorted(unique(urls))
}

func readEndpoints(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("addresses of etcd: %w", err)
	}
	return strings.Fields(string(b)), nil
}

func writeEndpoints(file string, urls []string) error {
	if err := renameio.WriteFile(file, []byte(strings.Join(urls, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("addresses of etcd: %w", err)
	}
	return nil
}

// unique drops repetitions and keeps the order.
func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}
