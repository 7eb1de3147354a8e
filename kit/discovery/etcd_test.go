package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs a part until it is stopped, or the test ends.
func start(t *testing.T, part func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func follow(t *testing.T, etcd *clientv3.Client, file string) (*discovery.Directory, func()) {
	t.Helper()
	d := discovery.Open(file, quiet())
	return d,
		start(t, func(ctx context.Context) error {
			return d.Run(ctx, etcd, topology.EndpointsPrefix, topology.ElectionsPrefix)
		})
}

// await waits until the directory shows these endpoints of the service, as "host ready" each.
func await(t *testing.T, d *discovery.Directory, service string, want ...string) {
	t.Helper()
	servetest.Await(t, func() string {
		var got []string
		for _, e := range d.View().Endpoints[service] {
			got = append(got, fmt.Sprintf("%s %t", e.Host, e.Ready))
		}
		if strings.Join(got, ",") == strings.Join(want, ",") {
			return ""
		}
		return fmt.Sprintf("endpoints of %s are %v, want %v", service, got, want)
	})
}

func TestAProcessIsAnnouncedWhileItRuns(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	file := filepath.Join(t.TempDir(), "services.json")
	d, stopFollowing := follow(t, etcd, file)
	e := discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a", Version: "1.2.3"}
	a := discovery.NewAnnouncer(etcd, e, quiet())
	stop := start(t, a.Run)
	await(t, d, "scheduler", "a false")
	if reason := d.View().Endpoints["scheduler"][0].Reason; reason == "" {
		t.Error("it is not said why the process is not ready")
	}
	a.Set(true, "")
	await(t, d, "scheduler", "a true")
	got, err := etcd.Get(t.Context(), e.Key())
	if err != nil || len(got.Kvs) != 1 || got.Kvs[0].Lease == 0 {
		t.Fatalf("key %s: %v, %v: want one with a lease, which ends with a process that is killed", e.Key(), got.Kvs, err)
	}
	stopFollowing()
	if known := discovery.Open(file, quiet()).View().Endpoints["scheduler"]; len(known) != 1 || !known[0].Ready ||
		known[0].Address != e.Address || known[0].Version != e.Version {
		t.Errorf("on the disk: %+v", known)
	}
	d, _ = follow(t, etcd, file)
	stop()
	await(t, d, "scheduler")
}

// The end of a process does not withdraw the one that has followed it at the same address.
func TestALaterProcessAtTheSameAddressStaysAnnounced(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, filepath.Join(t.TempDir(), "services.json"))
	e := discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a"}
	stop := start(t, discovery.NewAnnouncer(etcd, e, quiet()).Run)
	await(t, d, "scheduler", "a false")
	later := discovery.NewAnnouncer(etcd, e, quiet())
	start(t, later.Run)
	later.Set(true, "")
	await(t, d, "scheduler", "a true")
	stop()
	if got, err := etcd.Get(t.Context(), e.Key()); err != nil || len(got.Kvs) != 1 {
		t.Errorf("the later process is no longer announced: %v, %v", got.Kvs, err)
	}
}

func TestALostLeaseIsTakenAgain(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, filepath.Join(t.TempDir(), "services.json"))
	e := discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a"}
	start(t, discovery.NewAnnouncer(etcd, e, quiet()).Run)
	await(t, d, "scheduler", "a false")
	got, err := etcd.Get(t.Context(), e.Key())
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := etcd.Revoke(t.Context(), clientv3.LeaseID(got.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		again, err := etcd.Get(t.Context(), e.Key())
		if err != nil || len(again.Kvs) != 1 || again.Kvs[0].Lease == got.Kvs[0].Lease {
			return fmt.Sprintf("key %v, %v: want one with another lease", again.Kvs, err)
		}
		return ""
	})
}

// replica is a server that answers every call, and counts them by method.
type replica struct {
	address string
	server  *grpc.Server

	mu    sync.Mutex
	calls map[string]int
}

func serveReplica(t *testing.T, address string) *replica {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return serveAt(t, l)
}

func serveAt(t *testing.T, l net.Listener) *replica {
	t.Helper()
	r := &replica{address: l.Addr().String(), calls: map[string]int{}}
	r.server = grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.Method(s.Context())
		r.mu.Lock()
		r.calls[method]++
		r.mu.Unlock()
		if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		return s.SendMsg(&emptypb.Empty{})
	}))
	go func() { _ = r.server.Serve(l) }()
	t.Cleanup(r.server.Stop)
	return r
}

func (r *replica) count(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[method]
}

const (
	readMethod   = "/windlass.scheduling.v1.PodService/ListPods"
	leaderMethod = "/windlass.scheduling.v1.PodService/BindPod"
)

func TestCallsGoToTheNearestProcessAndWhatTheLeaderDecidesToTheLeader(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, filepath.Join(t.TempDir(), "services.json"))
	conn, err := d.Dial("hook-broker", "a", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Invoke(t.Context(), readMethod, &emptypb.Empty{}, &emptypb.Empty{}); status.Code(
		err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "no process of hook-broker is known") {
		t.Errorf("a call while none is known: %v", err)
	}
	own, other := serveReplica(t, "127.0.0.1:0"), serveReplica(t, "127.0.0.2:0")
	ofOwn := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: own.address, Host: "a"}, quiet())
	ofOther := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: other.address, Host: "b"}, quiet())
	ofOwn.Set(true, "")
	ofOther.Set(true, "")
	start(t, ofOwn.Run)
	start(t, ofOther.Run)
	await(t, d, "scheduler", "a true", "b true")
	conn, err = d.Dial("scheduler", "a", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(method string) error {
		return conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	expect := func(what, method string, at *replica) {
		t.Helper()
		servetest.Await(t, func() string {
			before := at.count(method)
			if err := call(method); err != nil {
				return fmt.Sprintf("%s: %v", what, err)
			}
			if at.count(method) == before {
				return fmt.Sprintf("%s: the call went elsewhere", what)
			}
			return ""
		})
	}
	expect("a read", readMethod, own)
	expect("a call for the leader while none leads", leaderMethod, own)
	if _, err := etcd.Put(t.Context(), topology.ElectionKey("scheduler"),
		fmt.Sprintf(`{"address":%q,"holder":"scheduler@1"}`, other.address)); err != nil {
		t.Fatal(err)
	}
	expect("a call for the leader", leaderMethod, other)
	expect("a read while another leads", readMethod, own)
	own.server.Stop()
	expect("a read while the own process is gone", readMethod, other)
}

// A process that is there but not ready is left at once for one that is ready.
func TestAProcessThatIsNotReadyIsLeft(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, filepath.Join(t.TempDir(), "services.json"))
	own, other := serveReplica(t, "127.0.0.1:0"), serveReplica(t, "127.0.0.2:0")
	ofOwn := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: own.address, Host: "a"}, quiet())
	ofOther := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: other.address, Host: "b"}, quiet())
	ofOwn.Set(true, "")
	ofOther.Set(true, "")
	start(t, ofOwn.Run)
	start(t, ofOther.Run)
	await(t, d, "scheduler", "a true", "b true")
	conn, err := d.Dial("scheduler", "a", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	servetest.Await(t, func() string {
		if err := conn.Invoke(t.Context(), readMethod, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			return err.Error()
		}
		if own.count(readMethod) == 0 {
			return "calls do not go to the own process"
		}
		return ""
	})
	ofOwn.Set(false, "etcd: no answer")
	servetest.Await(t, func() string {
		before := other.count(readMethod)
		if err := conn.Invoke(t.Context(), readMethod, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			return err.Error()
		}
		if other.count(readMethod) == before {
			return "calls still go to the process that is not ready"
		}
		return ""
	})
}

// slow is a listener whose connections are taken after a second.
type slow struct{ net.Listener }

func (s slow) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	time.Sleep(time.Second)
	return c, err
}

// A gateway that stayed at another host's process would lose calls when that host is lost, though its own has all that
// it needs, and though it was slow to answer at first. A call that is under way there is answered.
func TestCallsReturnToTheProcessOfTheOwnHost(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, filepath.Join(t.TempDir(), "services.json"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own, other := serveAt(t, slow{l}), serveReplica(t, "127.0.0.2:0")
	ofOwn := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: own.address, Host: "a"}, quiet())
	ofOther := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: other.address, Host: "b"}, quiet())
	ofOwn.Set(false, "it starts")
	ofOther.Set(true, "")
	start(t, ofOwn.Run)
	start(t, ofOther.Run)
	await(t, d, "scheduler", "a false", "b true")
	conn, err := d.Dial("scheduler", "a", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	underWay, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, readMethod)
	if err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if other.count(readMethod) == 0 {
			return "the call has not arrived at the other process"
		}
		return ""
	})
	ofOwn.Set(true, "")
	servetest.Await(t, func() string {
		before := own.count(readMethod)
		if err := conn.Invoke(t.Context(), readMethod, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			return err.Error()
		}
		if own.count(readMethod) == before {
			return "calls still go to the other host"
		}
		return ""
	})
	if err := errors.Join(underWay.SendMsg(&emptypb.Empty{}), underWay.CloseSend()); err != nil {
		t.Fatal(err)
	}
	if err := underWay.RecvMsg(&emptypb.Empty{}); err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
}

// A call is not answered with the failure of a process that another one has replaced.
func TestACallWaitsForTheConnectionToANewProcess(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, filepath.Join(t.TempDir(), "services.json"))
	former := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: "127.0.0.3:1", Host: "c"}, quiet())
	former.Set(true, "")
	stop := start(t, former.Run)
	await(t, d, "scheduler", "c true")
	conn, err := d.Dial("scheduler", "a", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func() error {
		return conn.Invoke(t.Context(), readMethod, &emptypb.Empty{}, &emptypb.Empty{})
	}
	if err := call(); status.Code(err) != codes.Unavailable {
		t.Fatalf("a call to an address without a process: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	next := discovery.NewAnnouncer(etcd,
		discovery.Endpoint{Service: "scheduler", Address: serveAt(t, slow{l}).address, Host: "a"}, quiet())
	next.Set(true, "")
	start(t, next.Run)
	await(t, d, "scheduler", "a true", "c true")
	stop()
	await(t, d, "scheduler", "a true")
	if err := call(); err != nil {
		t.Errorf("a call while the connection to the new process is made: %v", err)
	}
}

func TestLeadersAreFollowed(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan map[string]string, 1)
	d := discovery.Open("", quiet())
	stop := d.Subscribe(func(v discovery.View) {
		select {
		case told <- v.Leaders:
		case <-ctx.Done():
		}
	})
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, etcd, topology.ElectionsPrefix) }()
	expect := func(want map[string]string) {
		t.Helper()
		select {
		case got := <-told:
			if !maps.Equal(got, want) {
				t.Errorf("leaders %v, want %v", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no change was reported")
		}
	}
	put := func(service, value string) {
		if _, err := etcd.Put(ctx, topology.ElectionsPrefix+service, value); err != nil {
			t.Fatal(err)
		}
	}
	expect(map[string]string{}) // before anything was read
	expect(map[string]string{})
	put("hook-broker", `{"address":"127.1.2.1:7102","holder":"hook-broker@1"}`)
	expect(map[string]string{"hook-broker": "127.1.2.1:7102"})
	put("hook-broker", `{"address":"127.1.2.2:7102"}`)
	expect(map[string]string{"hook-broker": "127.1.2.2:7102"})
	put("hook-broker", `what is this`)
	expect(map[string]string{})
	put("hook-broker", `{"address":"127.1.2.1:7102"}`)
	expect(map[string]string{"hook-broker": "127.1.2.1:7102"})
	if _, err := etcd.Delete(ctx, topology.ElectionsPrefix+"hook-broker"); err != nil {
		t.Fatal(err)
	}
	expect(map[string]string{})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// silent is a watcher whose streams bring nothing, without an error.
type silent struct{ clientv3.Watcher }

func (silent) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	c := make(chan clientv3.WatchResponse)
	go func() {
		<-ctx.Done()
		close(c)
	}()
	return c
}

func TestAChangeIsSeenAlthoughAWatchHangs(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	lead := func(address string) {
		if _, err := etcd.Put(t.Context(), topology.ElectionKey("scheduler"),
			fmt.Sprintf(`{"address":%q}`, address)); err != nil {
			t.Fatal(err)
		}
	}
	lead("10.0.0.1:7107")
	c := etcdtest.Client(t)
	c.Watcher = silent{c.Watcher}
	d, _ := follow(t, c, "")
	leads := func(address string) {
		t.Helper()
		servetest.Await(t, func() string {
			if is := d.View().Leaders["scheduler"]; is != address {
				return fmt.Sprintf("the leader is %q, want %q", is, address)
			}
			return ""
		})
	}
	leads("10.0.0.1:7107")
	lead("10.0.0.2:7107")
	leads("10.0.0.2:7107")
}

// denied is an etcd whose user has no right to announce.
type denied struct{ clientv3.KV }

func (denied) Put(context.Context, string, string, ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return nil, rpctypes.ErrPermissionDenied
}

func TestARefusedAnnouncementLeavesNoLeases(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	before, err := etcd.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := etcdtest.Client(t)
	tries := &counting{KV: denied{c.KV}}
	c.KV = tries
	start(t, discovery.NewAnnouncer(c, discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a"},
		quiet()).Run)
	servetest.Await(t, func() string {
		if n := tries.n.Load(); n < 4 {
			return fmt.Sprintf("%d of 4 tries", n)
		}
		return ""
	})
	after, err := etcd.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(after.Leases) - len(before.Leases); n > 1 {
		t.Errorf("%d leases after %d tries", n, tries.n.Load())
	}
}

type counting struct {
	clientv3.KV
	n atomic.Int64
}

func (c *counting) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse,
	error,
) {
	c.n.Add(1)
	return c.KV.Put(ctx, key, value, opts...)
}

// Another process had the address by mistake for a while, or a person deleted the key.
func TestAnEndpointThatIsRemovedIsAnnouncedAgain(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, "")
	e := discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a"}
	a := discovery.NewAnnouncer(etcd, e, quiet())
	a.Set(true, "")
	start(t, a.Run)
	await(t, d, "scheduler", "a true")
	if _, err := etcd.Delete(t.Context(), e.Key()); err != nil {
		t.Fatal(err)
	}
	await(t, d, "scheduler")
	await(t, d, "scheduler", "a true")
}

func TestAProcessThatRefusesCallersIsAnnouncedAsNotReady(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, "")
	a := discovery.NewAnnouncer(etcd, discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a"},
		quiet())
	a.Set(true, "")
	start(t, a.Run)
	await(t, d, "scheduler", "a true")
	a.Fault("the audit log is full")
	await(t, d, "scheduler", "a false")
	if reason := d.View().Endpoints["scheduler"][0].Reason; reason != "the audit log is full" {
		t.Errorf("reason %q", reason)
	}
	a.Fault("")
	await(t, d, "scheduler", "a true")
}

// A host that is lost is still known, with the version that ran there.
func TestAProcessThatHasGoneIsRemembered(t *testing.T) {
	etcd := etcdtest.Client(t)
	servetest.Clear(t, etcd)
	d, _ := follow(t, etcd, "")
	e := discovery.Endpoint{Service: "scheduler", Address: "10.0.0.1:7107", Host: "a", Version: "1.2.3"}
	stop := start(t, discovery.NewAnnouncer(etcd, e, quiet()).Run)
	servetest.Await(t, func() string {
		got, err := etcd.Get(t.Context(), e.Key()+"/last")
		if err != nil || len(got.Kvs) != 1 {
			return fmt.Sprintf("what is remembered: %v, %v", got, err)
		}
		return ""
	})
	stop()
	servetest.Await(t, func() string {
		v := d.View()
		if len(v.Endpoints["scheduler"]) != 0 || len(v.Away["scheduler"]) != 1 || v.Away["scheduler"][0].Version != "1.2.3" {
			return fmt.Sprintf("%+v", v)
		}
		return ""
	})
	hosts := func(want string) {
		t.Helper()
		servetest.Await(t, func() string {
			if got := strings.Join(d.View().Hosts(), " "); got != want {
				return fmt.Sprintf("hosts %q, want %q", got, want)
			}
			return ""
		})
	}
	hosts("a")
	if err := discovery.Forget(t.Context(), etcd, "a"); err != nil {
		t.Fatal(err)
	}
	hosts("")
	if err := discovery.Expect(t.Context(), etcd, "a"); err != nil {
		t.Fatal(err)
	}
	hosts("a")
}
