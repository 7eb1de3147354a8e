package service_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/etcd-member/service"
	"github.com/windlass-dev/windlass/services/etcd-member/users"
)

func twoServices() []users.User {
	entry := func(name string) users.User {
		return users.User{Name: name, Prefixes: []users.Grant{
			{Prefix: "/windlass/" + name + "/", Permission: users.ReadWrite},
			{Key: "/windlass/elections/" + name, Permission: users.ReadWrite},
		}}
	}
	return []users.User{entry("machine-api"), entry("hook-broker"), {Name: "gateway", Prefixes: []users.Grant{
		{Prefix: "/windlass/elections/", Permission: users.Read},
	}}}
}

func (c *cluster) bootstrap(t *testing.T, extra ...string) *member {
	t.Helper()
	flags := append([]string{"--bootstrap", "--users", c.usersFile, "--strict-reconfig-check=false"}, extra...)
	m := c.member(t, 2, flags...)
	m.start(t)
	return m
}

func put(ctx context.Context, c *clientv3.Client, key string) error {
	_, err := c.Put(ctx, key, "value")
	return err
}

func putEventually(t *testing.T, c *clientv3.Client, key string) time.Duration {
	t.Helper()
	return eventually(t, "put "+key, func(ctx context.Context) error { return put(ctx, c, key) })
}

func TestEachUserTouchesItsOwnKeysOnly(t *testing.T) {
	c := newCluster(t, twoServices())
	m := c.bootstrap(t)
	api := c.as(t, "machine-api", m)
	t.Logf("first write %v after the start", putEventually(t, api, "/windlass/machine-api/machines/a"))

	const granted, denied = codes.OK, codes.PermissionDenied
	for name, check := range map[string]struct {
		user string
		try  func(ctx context.Context, c *clientv3.Client) error
		want codes.Code
	}{
		"a service writes its prefix":          {"machine-api", putter("/windlass/machine-api/x"), granted},
		"a service writes its election":        {"machine-api", putter("/windlass/elections/machine-api"), granted},
		"a service writes another's election":  {"machine-api", putter("/windlass/elections/hook-broker"), denied},
		"a service writes another's prefix":    {"machine-api", putter("/windlass/hook-broker/x"), denied},
		"a service reads another's prefix":     {"hook-broker", getter("/windlass/machine-api/x"), denied},
		"a service reads everything":           {"hook-broker", getter("/"), denied},
		"a service writes beside its prefix":   {"machine-api", putter("/windlass/machine-api"), denied},
		"the gateway reads elections":          {"gateway", getter("/windlass/elections/"), granted},
		"the gateway writes an election":       {"gateway", putter("/windlass/elections/machine-api"), denied},
		"an unknown user writes":               {"stranger", putter("/windlass/machine-api/x"), denied},
		"an unknown user reads":                {"stranger", getter("/windlass/machine-api/"), denied},
		"root reads everything":                {users.Root, getter("/"), granted},
		"a service changes the membership":     {"machine-api", adder, denied},
		"a service adds a user":                {"machine-api", userAdder, denied},
		"an unknown user turns off protection": {"stranger", disabler, codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			err := check.try(t.Context(), c.as(t, check.user, m))
			if codeOf(err) != check.want {
				t.Errorf("error = %v, want code %v", err, check.want)
			}
		})
	}
	var lines []string
	for line := range strings.Lines(m.log()) {
		if !slow(line) {
			lines = append(lines, line)
		}
	}
	if len(lines) > 10 {
		t.Errorf("a quiet start logs %d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
}

// slow reports whether a line of etcd's log says that the host is slow.
func slow(line string) bool {
	return slices.ContainsFunc([]string{
		"took too long", "waiting for ReadIndex", "failed to send out heartbeat on time", "slow fdatasync", "request stats",
		"trace[",
	}, func(text string) bool { return strings.Contains(line, text) })
}

// codeOf looks into etcd's own errors, which status.Code does not know.
func codeOf(err error) codes.Code {
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		return etcd.Code()
	}
	return status.Code(err)
}

func putter(key string) func(context.Context, *clientv3.Client) error {
	return func(ctx context.Context, c *clientv3.Client) error { return put(ctx, c, key) }
}

func getter(prefix string) func(context.Context, *clientv3.Client) error {
	return func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Get(ctx, prefix, clientv3.WithPrefix())
		return err
	}
}

func adder(ctx context.Context, c *clientv3.Client) error {
	_, err := c.MemberAddAsLearner(ctx, []string{"https://127.0.0.1:1"})
	return err
}

func userAdder(ctx context.Context, c *clientv3.Client) error {
	_, err := c.UserAddWithOptions(ctx, "intruder", "", &clientv3.UserAddOptions{NoPassword: true})
	return err
}

func disabler(ctx context.Context, c *clientv3.Client) error {
	_, err := c.AuthDisable(ctx)
	return err
}

// manyUsers take long enough to set up that clients come in between.
func manyUsers() []users.User {
	list := twoServices()
	for i := range 150 {
		name := fmt.Sprintf("service-%d", i)
		list = append(list,
			users.User{Name: name, Prefixes: []users.Grant{{Prefix: "/windlass/" + name + "/", Permission: users.ReadWrite}}})
	}
	return list
}

func TestNobodyGetsInBeforeTheUsersAreSetUp(t *testing.T) {
	c := newCluster(t, manyUsers())
	m := c.bootstrap(t)
	stranger := c.as(t, "stranger", m)
	refused := func(ctx context.Context) error {
		_, err := stranger.Put(clientv3.WithRequireLeader(ctx), "/windlass/machine-api/x", "forged")
		if err == nil {
			t.Fatal("a stranger wrote")
		}
		if !strings.Contains(err.Error(), "setting up its users") {
			return err
		}
		return nil
	}
	for range 3 { // killed in the middle, three times
		eventually(t, "the stranger is refused by the gate", refused)
		m.kill(t)
		m.start(t)
	}
	eventually(t, "the stranger is refused by etcd", func(ctx context.Context) error {
		err := put(ctx, stranger, "/windlass/machine-api/x")
		if err == nil {
			t.Fatal("a stranger wrote")
		}
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			return err
		}
		return nil
	})
	last := c.as(t, "service-149", m)
	putEventually(t, last, "/windlass/service-149/x")
}

func TestALaterStartAddsUsers(t *testing.T) {
	c := newCluster(t, twoServices()[:1])
	m := c.bootstrap(t)
	putEventually(t, c.as(t, "machine-api", m), "/windlass/machine-api/x")
	m.signal(t, syscall.SIGTERM)
	if code := m.wait(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	c.writeUsers(t, twoServices())
	m.start(t)
	putEventually(t, c.as(t, "hook-broker", m), "/windlass/hook-broker/x")
	if _, err := c.as(t, "machine-api", m).Get(t.Context(), "/windlass/machine-api/x"); err != nil {
		t.Errorf("the old user: %v", err)
	}
}

// join adds a member as a learner, starts it, and promotes it, as root at the leader, and logs the time of each step.
func (c *cluster) join(t *testing.T, n byte, leader *member, voters ...*member) *member {
	t.Helper()
	root := c.as(t, users.Root, leader)
	list := ""
	for _, v := range voters {
		list += v.name + "=" + v.peer + ","
	}
	m := c.member(t, n, "--initial-cluster-state", "existing")
	m.args = append(m.args, "--initial-cluster", list+m.name+"="+m.peer)
	begin := time.Now()
	var id uint64
	added := eventually(t, "add a learner", func(ctx context.Context) error {
		resp, err := root.MemberAddAsLearner(ctx, []string{m.peer})
		if err == nil {
			id = resp.Member.ID
			c.certify(t, m, resp.Header.ClusterId, id)
			return nil
		}
		// A call that had no answer in time, or that the client made twice, may have added it.
		have, listed := root.MemberList(ctx)
		if listed != nil {
			return errors.Join(err, listed)
		}
		for _, x := range have.Members {
			if slices.Contains(x.PeerURLs, m.peer) {
				id = x.ID
				c.certify(t, m, have.Header.ClusterId, id)
				return nil
			}
		}
		return err
	})
	m.start(t)
	own := c.as(t, users.Root, m)
	served := eventually(t, "the learner serves", func(ctx context.Context) error {
		_, err := own.Status(ctx, m.client)
		return err
	})
	promoted := eventually(t, "promote", func(ctx context.Context) error {
		_, err := root.MemberPromote(ctx, id)
		return err
	})
	t.Logf("%s: added %v, started and serving %v, promoted %v, in all %v", m.name, added.Round(time.Millisecond),
		served.Round(time.Millisecond), promoted.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	return m
}

// id returns the member's id and the leader's.
func (c *cluster) id(t *testing.T, m *member) (own, leader uint64) {
	t.Helper()
	root := c.as(t, users.Root, m)
	eventually(t, "a leader", func(ctx context.Context) error {
		st, err := root.Status(ctx, m.client)
		if err != nil {
			return err
		}
		own, leader = st.Header.MemberId, st.Leader
		if leader == 0 {
			return errors.New("no leader")
		}
		return nil
	})
	return own, leader
}

// writer puts numbered keys one after the other until stopped, and remembers what was acknowledged.
type writer struct {
	mu    sync.Mutex
	acked []string
	worst time.Duration
	stop  context.CancelFunc
	done  chan struct{}
}

func startWriter(t *testing.T, c *clientv3.Client) *writer {
	ctx, cancel := context.WithCancel(context.Background())
	w := &writer{stop: cancel, done: make(chan struct{})}
	t.Cleanup(func() { cancel(); <-w.done })
	go func() {
		defer close(w.done)
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			w.write(ctx, c, fmt.Sprintf("/windlass/machine-api/w/%06d", i))
			<-pace.C
		}
	}()
	return w
}

func (w *writer) write(ctx context.Context, c *clientv3.Client, key string) {
	begin := time.Now()
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := c.Put(try, key, "value")
		cancel()
		if err == nil {
			w.mu.Lock()
			w.acked, w.worst = append(w.acked, key), max(w.worst, time.Since(begin))
			w.mu.Unlock()
			return
		}
	}
}

func (w *writer) finish(t *testing.T, c *clientv3.Client) {
	t.Helper()
	w.stop()
	<-w.done
	resp, err := c.Get(t.Context(), "/windlass/machine-api/w/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, kv := range resp.Kvs {
		have[string(kv.Key)] = true
	}
	lost := slices.DeleteFunc(slices.Clone(w.acked), func(k string) bool { return have[k] })
	if len(lost) > 0 {
		t.Errorf("%d of %d acknowledged writes are lost, the first is %s", len(lost), len(w.acked), lost[0])
	}
	t.Logf("%d writes acknowledged, none lost, the worst took %v", len(w.acked), w.worst.Round(time.Millisecond))
}

func TestGrowthPivotAndRemoval(t *testing.T) {
	c := newCluster(t, twoServices())
	boot := c.bootstrap(t)
	ready := putEventually(t, c.as(t, "machine-api", boot), "/windlass/machine-api/first")
	t.Logf("bootstrap to the first write: %v", ready.Round(time.Millisecond))

	begin := time.Now()
	api := c.as(t, "machine-api", boot)
	w := startWriter(t, api)
	one := c.join(t, 10, boot, boot)
	two := c.join(t, 11, boot, boot, one)
	three := c.join(t, 12, boot, boot, one, two)
	grown := time.Since(begin)
	api.SetEndpoints(one.client, two.client, three.client)

	root := c.as(t, users.Root, boot)
	bootID, _ := c.id(t, boot)
	next, _ := c.id(t, one)
	moved := eventually(t, "move the leader", func(ctx context.Context) error {
		_, err := root.MoveLeader(ctx, next)
		return err
	})
	rootAtNext := c.as(t, users.Root, one)
	// Asked at the bootstrap member itself, a follower now: any other one would check strictly, and wait for 5 s.
	// It may not live to answer, so the outcome is read from the others.
	go func() { _, _ = root.MemberRemove(t.Context(), bootID) }()
	left := eventually(t, "remove the bootstrap member", func(ctx context.Context) error {
		list, err := rootAtNext.MemberList(ctx)
		if err == nil && len(list.Members) > 3 {
			err = errors.New("still a member")
		}
		return err
	})
	t.Logf("grown to four in %v, leader moved in %v, bootstrap member removed in %v; pivot in all %v",
		grown.Round(time.Millisecond), moved.Round(time.Millisecond), left.Round(time.Millisecond),
		time.Since(begin).Round(time.Millisecond))
	if code := boot.wait(t); code != service.ExitRemoved {
		t.Errorf("the removed member exits with %d, want %d", code, service.ExitRemoved)
	}
	w.finish(t, api)

	t.Run("a removed member that is started again ends at once", func(t *testing.T) {
		boot.start(t)
		if code := boot.wait(t); code != service.ExitRemoved {
			t.Errorf("exit code %d, want %d", code, service.ExitRemoved)
		}
	})
	t.Run("a removed member that did not write it down learns it from the others", func(t *testing.T) {
		if err := os.Remove(filepath.Join(boot.dir, "data", "removed")); err != nil {
			t.Fatal(err)
		}
		boot.start(t)
		if code := boot.wait(t); code != service.ExitRemoved {
			t.Errorf("exit code %d, want %d", code, service.ExitRemoved)
		}
	})
	t.Run("a member removed while it was down learns it from the others", func(t *testing.T) {
		gone, _ := c.id(t, three)
		three.kill(t)
		eventually(t, "remove the dead member", func(ctx context.Context) error {
			_, err := rootAtNext.MemberRemove(ctx, gone)
			return err
		})
		three.start(t)
		if code := three.wait(t); code != service.ExitRemoved {
			t.Errorf("exit code %d, want %d", code, service.ExitRemoved)
		}
	})
	t.Run("all members killed come back with their data", func(t *testing.T) {
		one.kill(t)
		two.kill(t)
		one.start(t)
		two.start(t)
		t.Logf("first write %v after the start", putEventually(t, api, "/windlass/machine-api/last").Round(time.Millisecond))
		if _, err := api.Get(t.Context(), "/windlass/machine-api/first"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a leader with open watches hands over and ends at once", func(t *testing.T) {
		c.stopLeader(t, api, one, two)
	})
}

func (c *cluster) stopLeader(t *testing.T, api *clientv3.Client, members ...*member) {
	t.Helper()
	for _, m := range members {
		own, leader := c.id(t, m)
		if own != leader {
			continue
		}
		watcher := c.as(t, "machine-api", m)
		events := watcher.Watch(t.Context(), "/windlass/machine-api/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-events
		begin := time.Now()
		m.signal(t, syscall.SIGTERM)
		code := m.wait(t)
		t.Logf("ended in %v", time.Since(begin).Round(time.Millisecond))
		if took := time.Since(begin); code != 0 || took > 5*time.Second { // what the guardian waits
			t.Errorf("exit code %d after %v", code, took)
		}
		m.start(t)
		putEventually(t, api, "/windlass/machine-api/after")
		return
	}
	t.Error("no member leads")
}

// Without starting etcd again, about every second such joiner serves only after 7 s.
func TestAJoinerThatGetsASnapshotServesSoon(t *testing.T) {
	c := newCluster(t, twoServices())
	boot := c.bootstrap(t)
	api := c.as(t, "machine-api", boot)
	putEventually(t, api, "/windlass/machine-api/first")
	for i := range 1500 { // more than a leader keeps for slow followers
		if err := put(t.Context(), api, fmt.Sprintf("/windlass/machine-api/%d", i%10)); err != nil {
			t.Fatal(err)
		}
	}
	root := c.as(t, users.Root, boot)
	for n := range byte(4) {
		begin := time.Now()
		m := c.join(t, 10+n, boot, boot)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("joined after %v", took)
		}
		t.Logf("etcd was started %d times more", strings.Count(m.log(), "starting it again"))
		id, _ := c.id(t, m)
		eventually(t, "remove it again", func(ctx context.Context) error {
			_, err := root.MemberRemove(ctx, id)
			return err
		})
		m.wait(t)
	}
}

func TestHealthIsServedOnAUnixSocket(t *testing.T) {
	c := newCluster(t, twoServices())
	long := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	m := c.bootstrap(t, "--http-socket", filepath.Join(long, "http.sock"))
	dir, err := os.Open(long)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	h := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn,
			error,
		) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/http.sock", dir.Fd()))
		}},
	}
	eventually(t, "healthy", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://member/health", nil)
		if err != nil {
			return err
		}
		resp, err := h.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	if st, err := os.Stat(filepath.Join(m.dir, "data")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v, %v", st, err)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	c := newCluster(t, twoServices())
	for name, wrong := range map[string]struct {
		flags []string
		want  string
	}{
		"an unknown flag":                   {[]string{"--color"}, "--color"},
		"an argument":                       {[]string{"more"}, `"more"`},
		"no name":                           {[]string{"--name="}, "--name"},
		"plain HTTP for clients":            {[]string{"--listen-client=http://127.0.0.1:1"}, "--listen-client"},
		"a host name for peers":             {[]string{"--listen-peer=https://localhost:1"}, "--listen-peer"},
		"a wildcard for clients":            {[]string{"--listen-client=https://0.0.0.0:1"}, "--advertise-client"},
		"a wildcard that peers are sent to": {[]string{"--advertise-peer=https://[::]:1"}, "--advertise-peer"},
		"a strange cluster state":           {[]string{"--initial-cluster-state=old"}, "--initial-cluster-state"},
		"an election shorter than 5 ticks":  {[]string{"--election-ms=400"}, "--election-ms"},
		"no certificates":                   {[]string{"--tls-dir=" + t.TempDir()}, "--tls-dir"},
		"a bootstrap member without users":  {[]string{"--bootstrap"}, "--users"},
		"a users file that is not there":    {[]string{"--users=/nonexistent"}, "users file"},
		"a strange log level":               {[]string{"--log-level=loud"}, "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.member(t, 2, wrong.flags...)
			m.start(t)
			code := m.wait(t)
			if code != service.ExitUsage || !strings.Contains(m.log(), wrong.want) {
				t.Errorf("exit code %d, output %q, want %d and %q", code, m.log(), service.ExitUsage, wrong.want)
			}
		})
	}
}

func TestAMemberSaysWhatItTrustsSinceItsStart(t *testing.T) {
	c := newCluster(t, twoServices())
	m := c.bootstrap(t)
	former, next := c.clients, newAuthority(t, "etcd-client")
	hash := func(clients []byte) string {
		h, err := identity.TrustHash(clients, c.peers.pem())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	said := func() (out string) {
		api := c.as(t, "machine-api", m)
		eventually(t, "the status", func(ctx context.Context) error {
			var header metadata.MD
			_, err := etcdserverpb.NewMaintenanceClient(api.ActiveConnection()).Status(ctx, &etcdserverpb.StatusRequest{},
				grpc.Header(&header))
			out = strings.Join(header.Get("windlass-trust"), " and ")
			return err
		})
		return out
	}
	if got, want := said(), hash(former.pem()); got != want {
		t.Errorf("it trusts %s, want %s", got, want)
	}
	// The file alone changes nothing of what etcd trusts, and the member does not say so.
	both := append(former.pem(), next.pem()...)
	write(t, filepath.Join(m.dir, "etcd-ca.crt"), both)
	if got, want := said(), hash(former.pem()); got != want {
		t.Errorf("before it is started again it trusts %s, want %s", got, want)
	}
	m.kill(t)
	m.start(t)
	if got, want := said(), hash(both); got != want {
		t.Errorf("started again it trusts %s, want %s", got, want)
	}
}
