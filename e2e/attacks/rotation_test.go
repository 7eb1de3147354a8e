package attacks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/windlass-dev/windlass/e2e/harness"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

// authorityOf loads one of a cluster's authorities as it signs now.
func authorityOf(t *testing.T, c *harness.Cluster, name string) *identity.Authority {
	t.Helper()
	a, err := identity.LoadAuthority(c.Dir("pki"), name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// caller returns settings that show a certificate of an authority and accept servers whatever theirs.
func caller(t *testing.T, a *identity.Authority, r identity.Request) *tls.Config {
	t.Helper()
	r.Client, r.Lifetime = true, time.Hour
	cert, key, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
}

// reader is a client of one member of etcd.
func reader(t *testing.T, member *etcdv1.Member, settings *tls.Config) func() error {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: member.GetClientUrls(), TLS: settings, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return func() error {
		// A client that is refused tries again until then.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := client.Get(ctx, "/windlass/machine-api/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err
	}
}

// served waits until a read succeeds.
func served(c *harness.Cluster, what string, read func() error) {
	c.Wait(time.Minute, what+" to be served", func(context.Context) (bool, string, error) {
		err := read()
		return err == nil, "", err
	})
}

// asPeer asks one member for the list of members as another one would, and returns the status.
func asPeer(t *testing.T, member *etcdv1.Member, settings *tls.Config) (int, error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(member.GetPeerUrls()[0] + "/members")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// shownBy returns an error unless a member's port shows a certificate of an authority, whether or not it would accept a
// caller.
func shownBy(t *testing.T, address string, a *identity.Authority) error {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	var shown *x509.Certificate
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", u.Host, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error { shown = s.PeerCertificates[0]; return nil },
	})
	if err == nil {
		conn.Close()
	}
	if shown == nil {
		return err
	}
	if !a.Issued(shown) {
		return fmt.Errorf("%s shows a certificate of another authority", address)
	}
	return nil
}

// watchVoters watches the quorum until stop is called, which returns the fewest healthy voters beyond a majority that
// were seen.
func watchVoters(t *testing.T, c *harness.Cluster) (stop func() (spare int32)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	spare := int32(99)
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			q, err := c.Quorum(ctx)
			if err != nil {
				continue // the gateway's own etcd client may be between two members
			}
			spare = min(spare, q.GetHealthyVoters()-q.GetMajority())
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	t.Cleanup(cancel)
	return func() int32 { cancel(); done.Wait(); return spare }
}

// rotate runs a rotation until it is done. On a busy host it takes longer than the command line may here: then the
// command is killed, and completes it the next time.
func rotate(t *testing.T, c *harness.Cluster, args ...string) {
	t.Helper()
	c.Wait(5*time.Minute, "the rotation of "+args[0], func(context.Context) (bool, string, error) {
		r := c.CLI(append([]string{"auth", "rotate"}, args...)...)
		return r.Code == 0, r.Stdout + r.Stderr, nil
	})
}

func quorumOf(t *testing.T, c *harness.Cluster) *etcdv1.Quorum {
	t.Helper()
	q, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// peerOf is the request for the certificate of a live member: the worst that could have been stolen.
func peerOf(t *testing.T, q *etcdv1.Quorum, m *etcdv1.Member) identity.Request {
	t.Helper()
	cluster, err := strconv.ParseUint(q.GetClusterId(), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.ParseUint(m.GetId(), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return identity.Request{
		CommonName: m.GetName(), URI: identity.MemberURI(cluster, id),
		IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true,
	}
}

func TestTheEtcdAuthoritiesAreRotated(t *testing.T) {
	c := harness.Second(t)
	writers, stop := c.Write(), watchVoters(t, c)

	user := identity.Request{CommonName: "machine-api"}
	former := authorityOf(t, c, "etcd-client")
	stolen := caller(t, former, user)
	opened := reader(t, quorumOf(t, c).GetMembers()[0], stolen)
	served(c, "the former authority's certificate before the rotation", opened)

	// Killed while members start again, it has two authorities trusted; nothing else of etcd's is rotated until then.
	for _, after := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond} {
		c.Interrupt(after, "auth", "rotate", "etcd-client", "--prepare")
	}
	rotate(t, c, "etcd-client", "--prepare")
	if r := c.CLI("auth", "rotate", "etcd-peer"); r.Code == 0 ||
		!strings.Contains(r.Stderr, "rotation of etcd-client is not finished (prepared)") {
		t.Errorf("a second rotation: %d %s", r.Code, r.Stderr)
	}
	// A machine that is made now has a member by what is trusted now.
	replaced := c.MustMachines("master")[0].GetMetadata().GetName()
	c.DeleteMachine(replaced)
	c.Wait(2*time.Minute, "another member in the place of "+replaced, func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		gone := true
		for _, m := range q.GetMembers() {
			gone = gone && m.GetName() != replaced && m.GetTrust() == q.GetTrust()
		}
		return gone && q.GetPhase() == "Stable" && q.GetHealthyVoters() == 3, q.String(), err
	})
	for _, after := range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond} {
		c.Interrupt(after, "auth", "rotate", "etcd-client")
	}
	rotate(t, c, "etcd-client")
	next := authorityOf(t, c, "etcd-client")
	if next.Hash() == former.Hash() {
		t.Fatal("the authority of clients is the same")
	}
	if err := opened(); err == nil {
		t.Error("a client of the former authority is served on the connection that it had")
	}
	for _, m := range quorumOf(t, c).GetMembers() {
		if err := shownBy(t, m.GetClientUrls()[0], next); err != nil {
			t.Error(err)
		}
		if err := reader(t, m, stolen)(); err == nil {
			t.Errorf("member %s serves a client of the former authority", m.GetName())
		}
		served(c, "a client of the next authority, by member "+m.GetName(), reader(t, m, caller(t, next, user)))
	}

	q := quorumOf(t, c)
	former = authorityOf(t, c, "etcd-peer")
	stolenPeer := caller(t, former, peerOf(t, q, q.GetMembers()[0]))
	if code, err := asPeer(t, q.GetMembers()[1], stolenPeer); err != nil || code != http.StatusOK {
		t.Fatalf("the former authority's peer certificate before the rotation: %d, %v", code, err)
	}
	for _, after := range []time.Duration{time.Second, 2 * time.Second} {
		c.Interrupt(after, "auth", "rotate", "etcd-peer", "--prepare")
	}
	rotate(t, c, "etcd-peer")
	next = authorityOf(t, c, "etcd-peer")
	if next.Hash() == former.Hash() {
		t.Fatal("the authority of peers is the same")
	}
	for i, m := range q.GetMembers() {
		if err := shownBy(t, m.GetPeerUrls()[0], next); err != nil {
			t.Error(err)
		}
		if code, err := asPeer(t, m, stolenPeer); err == nil {
			t.Errorf("member %s answers a peer of the former authority: %d", m.GetName(), code)
		}
		if code, err := asPeer(t, m, caller(t, next, peerOf(t, q, q.GetMembers()[(i+1)%3]))); err != nil ||
			code != http.StatusOK {
			t.Errorf("member %s refuses a peer of the next authority: %d, %v", m.GetName(), code, err)
		}
	}
	if spare := stop(); spare < 0 {
		t.Errorf("%d voters less than a majority were healthy", -spare)
	}
	writers.Check()

	c.Down()
	c.Up()
	if quorum := c.MustCLI("quorum"); !strings.Contains(quorum, "3 of 3 healthy") {
		t.Errorf("after another start the quorum is\n%s", quorum)
	}
	for _, m := range quorumOf(t, c).GetMembers() {
		if code, err := asPeer(t, m, stolenPeer); err == nil {
			t.Errorf("after another start member %s answers a peer of the former authority: %d", m.GetName(), code)
		}
		if err := reader(t, m, stolen)(); err == nil {
			t.Errorf("after another start member %s serves a client of the former authority", m.GetName())
		}
	}
}

// A member hangs while it is the one that starts again: the rotation says so, no other member goes down, and it is
// completed afterwards.
func TestARotationWaitsForAMemberThatHangs(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(2 * time.Minute)
	former := authorityOf(t, c, "etcd-peer")
	writers, prober := c.Write(), c.Probe()

	begun := make(chan struct{})
	go func() { // it is completed below
		defer close(begun)
		c.Interrupt(20*time.Second, "auth", "rotate", "etcd-peer", "--prepare")
	}()
	hangs := ""
	c.Wait(time.Minute, "a member that starts again", func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		if p := q.GetPermit(); err == nil && p.GetHeld() && strings.Contains(p.GetReason(), "rotation") {
			hangs = p.GetMachine().GetName()
			err = c.Pause(harness.Member(hangs))
		}
		return err == nil && hangs != "", q.String(), err
	})
	defer c.Continue(harness.Member(hangs)) //nolint:errcheck // it runs again below, unless the test failed
	// The agent may start it once more while it is being stopped.
	stop := func() { _ = c.Pause(harness.Member(hangs)) }
	c.Wait(time.Minute, "the guardian to say what it waits for", func(ctx context.Context) (bool, string, error) {
		stop()
		q, err := c.Quorum(ctx)
		return err == nil && strings.Contains(q.GetWaitsFor(), hangs), q.String(), err
	})
	started := map[string]bool{}
	for _, m := range quorumOf(t, c).GetMembers() {
		started[m.GetName()] = m.GetTrust() == quorumOf(t, c).GetTrust()
	}
	c.Hold(8*time.Second, "the wait for "+hangs, func(ctx context.Context) (string, error) {
		stop()
		q, err := c.Quorum(ctx)
		if err != nil {
			return "", err
		}
		for _, m := range q.GetMembers() {
			if m.GetName() != hangs && (!m.GetHealthy() || (m.GetTrust() == q.GetTrust()) != started[m.GetName()]) {
				return m.String(), nil
			}
		}
		return "", nil
	})
	ended, stopping := make(chan struct{}), sync.WaitGroup{}
	stopping.Go(func() {
		for again := time.NewTicker(20 * time.Millisecond); ; {
			stop()
			select {
			case <-again.C:
			case <-ended:
				return
			}
		}
	})
	r := c.CLI("auth", "rotate", "etcd-peer", "--timeout", "5s")
	close(ended)
	stopping.Wait()
	if r.Code == 0 || !strings.Contains(r.Stderr, hangs) {
		t.Errorf("the command does not say that it waits for %s: %d %s", hangs, r.Code, r.Stderr)
	}
	t.Logf("while %s hangs: %s", hangs, r.Stderr)
	if err := c.Continue(harness.Member(hangs)); err != nil {
		t.Fatal(err)
	}
	<-begun
	rotate(t, c, "etcd-peer")
	if authorityOf(t, c, "etcd-peer").Hash() == former.Hash() {
		t.Error("the authority of peers is the same")
	}
	prober.Check()
	writers.Check()
}
