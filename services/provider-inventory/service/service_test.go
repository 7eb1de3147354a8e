package service_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
)

func TestAMachineHasAHostFromItsClaimToItsWipe(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	if s := r.register("h1", "192.0.2.1", "a").GetStatus(); s.GetPhase() != "Lost" || s.GetReason() != "NeverAttended" {
		t.Errorf("a host whose agent never attended is %v", s)
	}
	a := r.join("h1", "192.0.2.1") // again
	i := r.create("m1")
	if i.GetProviderId() != "inventory://c/h1/m1" || i.GetZone() != "a" ||
		i.GetAddresses()[0].GetAddress() != "192.0.2.1" {
		t.Errorf("the instance is %v", i)
	}
	r.awaitState("m1", "Running")
	if o := a.last(); o.GetType() != hostv1.HostOrder_TYPE_CLAIM || o.GetBootstrap().GetToken() != "secret-of-m1" ||
		o.GetProviderId() != i.GetProviderId() || o.GetMachineRef().GetName() != "m1" {
		t.Errorf("the order was %v", o)
	}
	s := r.phase("h1", "InUse").GetStatus()
	if s.GetBootId() != "boot-1" || s.GetAgentVersion() != "v1" || s.GetCapacity()["cpu"].GetStringValue() != "8" {
		t.Errorf("the agent's facts are not stored: %v", s)
	}
	r.delete("m1")
	r.awaitState("m1", "")
	if h := r.phase("h1", "Available"); a.runs() != "" || h.GetStatus().GetMachineRef() != nil {
		t.Errorf("%q runs on %v", a.runs(), h)
	}
	if _, err := r.provider.CreateInstance(t.Context(), request("m1", 1)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a token whose instance was deleted: %v", err)
	}
	if again := r.create("m2"); again.GetProviderId() == i.GetProviderId() {
		t.Errorf("provider id %s was given again", again.GetProviderId())
	}
}

func TestTheMoreMachinesWaitTheLongerEachDoes(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a")
	var last time.Duration
	for i := range 200 {
		_, err := r.provider.CreateInstance(t.Context(), request(fmt.Sprint("m", i), 1))
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
		last = rpcerr.Retry(err)
	}
	if last != 10*time.Second {
		t.Errorf("the last of 200 machines asks again after %v, want 10s", last)
	}
}

// The bootstrap of a claim is what a machine gets its identity with.
func TestABootstrapIsSealedAndDeletedOnceItIsUsed(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	a := r.join("h1", "192.0.2.1")
	a.failing(&hostv1.HostReport{Message: "no cgroups"})
	r.create("m1")
	r.awaitState("m1", "Failed")
	kept := func() (sealed, plain bool) {
		all, err := etcdtest.Client(t).Get(t.Context(), topology.Prefix(topology.ProviderInventory), clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range all.Kvs {
			sealed = sealed || strings.HasSuffix(string(kv.Key), "bootstrap/h1")
			plain = plain || bytes.Contains(kv.Value, []byte("secret-of-m1"))
		}
		return sealed, plain
	}
	if sealed, plain := kept(); !sealed || plain {
		t.Errorf("the bootstrap is kept: %v, readable: %v", sealed, plain)
	}
	if h := r.host("h1"); !strings.Contains(h.GetStatus().GetMessage(), "no cgroups") ||
		strings.Contains(h.String(), "secret") {
		t.Errorf("the host is %v", h)
	}
	a.failing(nil)
	r.awaitState("m1", "Running")
	if sealed, _ := kept(); sealed {
		t.Error("the bootstrap is kept though the machine has started")
	}
}

func TestWhyNoHostMatchesIsSaid(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	for n := range 3 {
		r.join(fmt.Sprint("h", n), fmt.Sprint("192.0.2.", n+1))
	}
	r.register("h3", "192.0.2.4", "b")
	r.create("m1")
	if _, err := r.hosts.CordonHost(t.Context(), &hostv1.CordonHostRequest{Name: "h1", Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	ask := request("m2", 1)
	ask.ProviderSpec = spec("a")
	plan, err := r.hosts.PlanHosts(t.Context(), &hostv1.PlanHostsRequest{ProviderSpec: ask.GetProviderSpec()})
	if err != nil || len(plan.GetActions()) != 1 || plan.GetActions()[0].GetObject().GetName() != "h2" ||
		len(plan.GetHeldBack()) != 3 || plan.GetHeldBack()[1].GetReason() != "new disk" {
		t.Errorf("the plan is %v, %v", plan, err)
	}
	if i, err := r.provider.CreateInstance(t.Context(), ask); err != nil || i.GetProviderId() != "inventory://c/h2/m2" {
		t.Fatalf("what was planned is not done: %v, %v", i, err)
	}
	ask = request("m3", 1)
	ask.ProviderSpec = spec("a")
	const want = "0 of 4 hosts match: 2 in use, 1 unschedulable, 1 in another zone"
	_, err = r.provider.CreateInstance(t.Context(), ask)
	if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
		t.Errorf("CreateInstance = %v, want %q", err, want)
	}
	plan, err = r.hosts.PlanHosts(t.Context(), &hostv1.PlanHostsRequest{ProviderSpec: spec("a")})
	if err != nil || plan.GetWaitsFor() != want || len(plan.GetActions()) != 0 {
		t.Errorf("the plan is %v, %v", plan, err)
	}
	given := &hostv1.HostList{Items: []*hostv1.Host{{
		Metadata: &metav1.ObjectMeta{Name: "x"},
		Spec:     &hostv1.HostSpec{Roles: []string{"control-plane"}, Address: "192.0.2.1"},
	}}}
	plan, err = r.hosts.PlanHosts(t.Context(), &hostv1.PlanHostsRequest{ProviderSpec: spec(""), Hosts: given})
	if err != nil || plan.GetWaitsFor() != "0 of 1 hosts match: 1 of another role" {
		t.Errorf("the plan of given hosts is %v, %v", plan, err)
	}
	if _, err := r.hosts.UncordonHost(t.Context(), &hostv1.UncordonHostRequest{Name: "h1"}); err != nil {
		t.Fatal(err)
	}
	if i := r.create("m3"); i.GetProviderId() != "inventory://c/h1/m3" {
		t.Errorf("the uncordoned host was not claimed: %v", i)
	}
}

// Two replicas believe that they lead, and machines race for one host.
func TestOneOfManyMachinesClaimsAHostThoughTwoReplicasServe(t *testing.T) {
	in := newInventory(t, long)
	first := in.start().leads()
	first.join("h1", "192.0.2.1").mute.Store(true)
	second := in.start()
	type result struct {
		machine string
		err     error
	}
	results := make(chan result, 16)
	var group sync.WaitGroup
	for n := range cap(results) {
		r, machine := []*replica{first, second}[n%2], fmt.Sprint("m", n)
		group.Go(func() {
			var err error
			for { // as machine-api does, at the other replica too
				_, err = r.provider.CreateInstance(t.Context(), request(machine, 1))
				if code := status.Code(err); code != codes.Unavailable && code != codes.Aborted {
					break
				}
				r = map[*replica]*replica{first: second, second: first}[r]
			}
			results <- result{machine, err}
		})
	}
	if _, err := etcdtest.Client(t).Delete(t.Context(), topology.ElectionKey(topology.ProviderInventory)); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	close(results)
	var won []string
	for x := range results {
		switch status.Code(x.err) {
		case codes.OK:
			won = append(won, x.machine)
		case codes.ResourceExhausted:
		default:
			t.Errorf("%s: %v", x.machine, x.err)
		}
	}
	h := first.host("h1").GetStatus()
	if len(won) != 1 || h.GetMachineRef().GetName() != won[0] {
		t.Errorf("%q claimed the host that %v has", won, h)
	}
}

// A leader of machine-api that was replaced can change nothing, also after a restart of the provider.
func TestCallsOfAFormerLeaderOfMachineAPIAreRefused(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.join("h1", "192.0.2.1")
	if i, err := r.provider.CreateInstance(t.Context(), request("m1", 5)); err != nil || i.GetFence() != 5 {
		t.Fatalf("CreateInstance = %v, %v", i, err)
	}
	if _, err := r.provider.CreateInstance(t.Context(), request("m1", 6)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for name, call := range map[string]func() error{
			"CreateInstance of the same machine": func() error {
				_, err := r.provider.CreateInstance(t.Context(), request("m1", 5))
				return err
			},
			"CreateInstance of another machine": func() error {
				_, err := r.provider.CreateInstance(t.Context(), request("m2", 5))
				return err
			},
			"DeleteInstance": func() error {
				_, err := r.provider.DeleteInstance(t.Context(), &providerv1.DeleteInstanceRequest{RequestToken: "m1", Fence: 5})
				return err
			},
		} {
			if err := call(); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("%s with a lower fence: %v, want FAILED_PRECONDITION", name, err)
			}
		}
		r.stop()
		r = in.start().leads()
	}
	if s := r.host("h1").GetStatus(); s.GetMachineRef().GetName() != "m1" {
		t.Errorf("the host is %v", s)
	}
}

// The provider is killed when the claim is in etcd, before the answer.
func TestAClaimWhoseAnswerWasLostIsFoundAgain(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	for n := range 3 {
		r.join(fmt.Sprint("h", n), fmt.Sprint("192.0.2.", n+1)).mute.Store(true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stored := etcdtest.Client(t).Watch(ctx, topology.Prefix(topology.ProviderInventory)+"bootstrap/",
		clientv3.WithPrefix())
	go func() {
		_, _ = r.provider.CreateInstance(ctx, request("m1", 1)) // its answer is lost
	}()
	<-stored
	cancel()
	r.stop()
	r = in.start().leads()
	l, err := r.provider.ListInstances(t.Context(), &providerv1.ListInstancesRequest{})
	if err != nil || len(l.GetInstances()) != 1 {
		t.Fatalf("instances: %v, %v", l, err)
	}
	if i := r.create("m1"); i.GetProviderId() != l.GetInstances()[0].GetProviderId() {
		t.Errorf("the machine has %s, and then %s", l.GetInstances()[0].GetProviderId(), i.GetProviderId())
	}
	l, err = r.provider.ListInstances(t.Context(), &providerv1.ListInstancesRequest{})
	if err != nil || len(l.GetInstances()) != 1 {
		t.Errorf("instances: %v, %v", l, err)
	}
}

func TestASilentHostIsNeverGone(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	a := r.join("h1", "192.0.2.1")
	r.create("m1")
	r.awaitState("m1", "Running")
	r = r.silent(a)
	if s := r.host("h1").GetStatus(); s.GetPhase() != "Lost" || s.GetResumePhase() != "InUse" || s.GetUnblock() == "" {
		t.Errorf("the silent host is %v", s)
	}
	if got := r.state("m1"); got != "Running" {
		t.Errorf("the instance of a silent host is %q", got)
	}
	for range 3 { // also for the next leader
		r.delete("m1")
		i, err := r.provider.GetInstance(t.Context(), &providerv1.GetInstanceRequest{RequestToken: "m1"})
		if err != nil || i.GetState() != "Deleting" || !strings.Contains(i.GetMessage(), "h1") {
			t.Errorf("the deleted instance of a silent host is %v, %v", i, err)
		}
		r.stop()
		r = in.start().leads()
	}
	a = a.back(r)
	r.awaitState("m1", "")
	if o := a.last(); o.GetType() != hostv1.HostOrder_TYPE_WIPE || a.runs() != "" {
		t.Errorf("the order was %v, and %q runs", o, a.runs())
	}
	r.phase("h1", "Available")
}

func TestAHostThatAttendsAgainIsWhereItWas(t *testing.T) {
	in := newInventory(t, 2*time.Second)
	r := in.start().leads()
	a := r.join("h1", "192.0.2.1")
	servetest.Await(t, func() string { // on a slow machine, the agent may seem to be silent
		if _, err := r.provider.CreateInstance(t.Context(), request("m1", 1)); err != nil {
			return err.Error()
		}
		return ""
	})
	r.phase("h1", "InUse")
	a.mute.Store(true)
	r.phase("h1", "Lost")
	a.mute.Store(false)
	if s := r.phase("h1", "InUse").GetStatus(); s.GetResumePhase() != "" || s.GetMachineRef().GetName() != "m1" {
		t.Errorf("the host is %v", s)
	}
	if got := r.state("m1"); got != "Running" {
		t.Errorf("the instance is %q", got)
	}
}

// A host that was Lost for long is not Lost again between the first message of its agent and the second.
func TestAHostThatAttendsAgainDoesNotFlap(t *testing.T) {
	in := newInventory(t, 2*time.Second)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a")
	time.Sleep(in.silence) // the term is older than the silence
	changes, err := r.hosts.WatchHosts(t.Context(), &hostv1.WatchHostsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	in.attend("h1", r)
	var phases []string
	for len(phases) == 0 || phases[len(phases)-1] != "Available" {
		m, err := changes.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEvents() {
			phases = append(phases, e.GetObject().GetStatus().GetPhase())
		}
	}
	next := make(chan string, 1)
	go func() {
		if m, err := changes.Recv(); err == nil && len(m.GetEvents()) > 0 {
			next <- m.GetEvents()[0].GetObject().GetStatus().GetPhase()
		}
	}()
	select {
	case phase := <-next:
		t.Errorf("after %q the host is %s", phases, phase)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestWhatUsersDoToAHostIsAnEventOfIt(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r = r.silent(r.join("h1", "192.0.2.1"))
	if _, err := r.hosts.CordonHost(t.Context(), &hostv1.CordonHostRequest{Name: "h1", Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hosts.UncordonHost(t.Context(), &hostv1.UncordonHostRequest{Name: "h1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hosts.FenceHost(t.Context(), &hostv1.FenceHostRequest{Name: "h1", Reason: "unplugged"}); err != nil {
		t.Fatal(err)
	}
	const by = `, by order of user "alice"`
	want := map[string]string{
		"HostCordoned":   "No machine claims the host" + by + ": new disk",
		"HostUncordoned": "Machines may claim the host again" + by,
		"HostFenced":     "The host counts as off, and its machine has no instance any more" + by + ": unplugged",
	}
	client := eventv1.NewEventServiceClient(in.ground.Dial(r.address, servetest.Admin()))
	servetest.Await(t, func() string {
		list, err := client.ListEvents(t.Context(), &eventv1.ListEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, e := range list.GetItems() {
			if _, is := want[e.GetReason()]; is && e.GetInvolvedObject().GetKind() == "Host" &&
				e.GetInvolvedObject().GetName() == "h1" {
				got[e.GetReason()] = e.GetMessage()
			}
		}
		return cmp.Diff(want, got)
	})
}

func TestAnAdministratorConfirmsThatAHostIsOff(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	a := r.join("h1", "192.0.2.1")
	r.create("m1")
	r.awaitState("m1", "Running")
	fence := &hostv1.FenceHostRequest{Name: "h1", Reason: "unplugged"}
	if _, err := r.hosts.FenceHost(t.Context(), fence); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a host that attends: %v, want FAILED_PRECONDITION", err)
	}
	r = r.silent(a)
	editor := hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.User("eve", "windlass:editors")))
	if _, err := editor.FenceHost(t.Context(), fence); status.Code(err) != codes.PermissionDenied {
		t.Errorf("by an editor: %v, want PERMISSION_DENIED", err)
	}
	h, err := r.hosts.FenceHost(t.Context(), fence)
	if f := h.GetStatus().GetFencing(); err != nil || f.GetBy() != "alice" || f.GetReason() != "unplugged" ||
		f.GetMachineRef().GetName() != "m1" {
		t.Fatalf("FenceHost = %v, %v", h, err)
	}
	if got := r.state("m1"); got != "" {
		t.Errorf("the instance of a host that is off is %q", got)
	}
	if _, err := r.provider.CreateInstance(t.Context(), request("m1", 1)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("its machine claims again: %v, want FAILED_PRECONDITION", err)
	}
	a = a.back(r)
	h = r.phase("h1", "Available")
	if o := a.last(); o.GetType() != hostv1.HostOrder_TYPE_FENCE || o.GetMachineRef().GetName() != "m1" ||
		h.GetStatus().GetFencing() != nil || a.runs() != "" {
		t.Errorf("the order was %v, the host is %v", o, h)
	}
}

func TestAHostThatCannotBeWipedIsQuarantined(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	a := r.join("h1", "192.0.2.1")
	r.create("m1")
	r.awaitState("m1", "Running")
	a.failing(&hostv1.HostReport{Message: "a process does not end"})
	r.delete("m1")
	h := r.phase("h1", "Quarantined")
	if got := r.state("m1"); got != "Deleting" || !strings.Contains(h.GetStatus().GetMessage(), "a process does not end") {
		t.Errorf("the instance is %q, the host %v", got, h)
	}
	if _, err := r.hosts.RemoveHost(t.Context(), &hostv1.RemoveHostRequest{Name: "h1"}); status.Code(err) !=
		codes.FailedPrecondition {
		t.Errorf("a host whose machine may still run is removed: %v", err)
	}
	a.failing(&hostv1.HostReport{Stopped: true, Message: "a file cannot be restored"})
	r.awaitState("m1", "")
	if h := r.host("h1"); h.GetStatus().GetPhase() != "Quarantined" {
		t.Errorf("the host is %v", h)
	}
	if _, err := r.provider.CreateInstance(t.Context(), request("m2", 1)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a quarantined host is claimed: %v", err)
	}
	a.failing(nil)
	r.phase("h1", "Available")
	if _, err := r.hosts.RemoveHost(t.Context(), &hostv1.RemoveHostRequest{Name: "h1"}); err != nil {
		t.Error(err)
	}
	if _, err := r.hosts.GetHost(t.Context(), &hostv1.GetHostRequest{Name: "h1"}); status.Code(err) != codes.NotFound {
		t.Errorf("the removed host: %v", err)
	}
	// All services are to expect no process there, until a host of its name is registered.
	expected := func(want int64) {
		t.Helper()
		got, err := etcdtest.Client(t).Get(t.Context(), topology.EndpointsOf(topology.ProviderInventory)+"removed/h1")
		if err != nil || got.Count != want {
			t.Errorf("%d notes that the host was removed, %v; want %d", got.Count, err, want)
		}
	}
	expected(1)
	r.register("h1", "192.0.2.1", "a")
	expected(0)
}

// A machine whose host cannot be read is not gone.
func TestWithAnUnreadableHostNoInstanceIsReportedAsGone(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.join("h1", "192.0.2.1")
	r.create("m1")
	r.awaitState("m1", "Running")
	etcd, key := etcdtest.Client(t), topology.Prefix(topology.ProviderInventory)+"hosts/-/h1"
	r.stop()
	was, err := etcd.Get(t.Context(), key)
	if err != nil || len(was.Kvs) != 1 {
		t.Fatalf("the record of the host: %v, %v", was, err)
	}
	if _, err := etcd.Put(t.Context(), key, "garbage"); err != nil {
		t.Fatal(err)
	}
	r = in.start().leads()
	r.join("h2", "192.0.2.2")
	_, err = r.provider.GetInstance(t.Context(), &providerv1.GetInstanceRequest{RequestToken: "m1"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "h1") {
		t.Errorf("the instance is %v, want UNAVAILABLE", err)
	}
	if i, err := r.provider.CreateInstance(t.Context(), request("m1", 1)); status.Code(err) != codes.Aborted {
		t.Errorf("its machine has another host, too: %v, %v", i, err)
	}
	r.create("m2")
	if _, err := etcd.Put(t.Context(), key, string(was.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if _, err := r.provider.GetInstance(t.Context(), &providerv1.GetInstanceRequest{RequestToken: "m1"}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// On hosts, a call that only the leader answers goes there.
func TestCallsForTheLeaderAreMarked(t *testing.T) {
	for _, c := range []struct {
		service protoreflect.ServiceDescriptor
		leader  []string
	}{
		{
			providerv1.File_windlass_provider_v1_provider_service_proto.Services().ByName("ProviderService"),
			[]string{"CreateInstance", "GetInstance", "ListInstances", "DeleteInstance"},
		},
		{
			hostv1.File_windlass_host_v1_host_service_proto.Services().ByName("HostService"),
			[]string{
				"RegisterHost", "CordonHost", "UncordonHost", "FenceHost", "RemoveHost", "AttendHost", "RenewHostCertificates",
				"StartRotation", "PlanRotation", "SyncCertificates", "GetClusterAccess", "SetClusterAccess", "PlanClusterAccess",
				"SyncAccess",
			},
		},
	} {
		for i := range c.service.Methods().Len() {
			m := c.service.Methods().Get(i)
			if want := slices.Contains(c.leader, string(m.Name())); discovery.ForLeader(m) != want {
				t.Errorf("%s is for the leader: %v, want %v", m.FullName(), !want, want)
			}
		}
	}
}

func TestOnlyAHostsOwnAgentAttends(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a")
	for _, c := range []struct {
		name string
		as   hostv1.HostServiceClient
		host string
		want codes.Code
	}{
		{
			"another host", hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host("h2", "u"))), "h1",
			codes.PermissionDenied,
		},
		{
			"a node", hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Node("h1"))), "h1",
			codes.PermissionDenied,
		},
		{"an administrator", r.hosts, "h1", codes.PermissionDenied},
		{
			"an earlier host of the name", hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host("h1", "u"))),
			"h1", codes.PermissionDenied,
		},
		{
			"a host that is not registered", hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host("h3", "u"))),
			"h3", codes.NotFound,
		},
	} {
		s, err := c.as.AttendHost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&hostv1.AttendHostRequest{Name: c.host, Facts: &hostv1.HostFacts{BootId: "b"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	agent := hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host("h1", r.uid("h1"))))
	for name, m := range map[string]*hostv1.AttendHostRequest{
		"no facts": {Name: "h1"},
		"a long address": {Name: "h1", Facts: &hostv1.HostFacts{
			BootId: "b", Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: strings.Repeat("1", 1<<20)}},
		}},
		"a long quantity": {Name: "h1", Facts: &hostv1.HostFacts{
			BootId: "b", Capacity: map[string]*structpb.Value{"cpu": structpb.NewStringValue(strings.Repeat("1", 1<<20))},
		}},
	} {
		s, err := agent.AttendHost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	if _, err := agent.GetHost(t.Context(), &hostv1.GetHostRequest{Name: "h1"}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("an agent reads hosts: %v, want PERMISSION_DENIED", err)
	}
}

func TestANewerStreamOfAHostEndsTheFormer(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a")
	agent := hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host("h1", r.uid("h1"))))
	attend := func() func() error {
		s, err := agent.AttendHost(t.Context())
		if err == nil {
			err = s.Send(&hostv1.AttendHostRequest{Name: "h1", Facts: &hostv1.HostFacts{BootId: "b"}})
		}
		if err == nil {
			_, err = s.Recv() // it attends
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() error { _, err := s.Recv(); return err }
	}
	former := attend()
	attend()
	if err := former(); status.Code(err) != codes.Aborted {
		t.Errorf("the former stream: %v, want ABORTED", err)
	}
}

// The agent of a host is a caller as any other: what it says is stored, so it may not say much.
func TestAnAgentCannotFillEtcdWithFacts(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a")
	agent := hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host("h1", r.uid("h1"))))
	s, err := agent.AttendHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if s.Send(&hostv1.AttendHostRequest{Name: "h1", Facts: &hostv1.HostFacts{BootId: fmt.Sprint(i)}}) != nil {
			break // Recv says why
		}
	}
	for err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a thousand messages with facts: %v, want RESOURCE_EXHAUSTED", err)
	}
	if h := r.host("h1"); h.GetStatus().GetBootId() == "999" {
		t.Error("the last of a thousand facts is stored")
	}
}

func TestWhatUsersMayWriteOfAHost(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.join("h1", "192.0.2.1")
	change := func(f func(*hostv1.Host)) error {
		h := r.host("h1")
		f(h)
		h.Metadata.ResourceVersion = ""
		_, err := r.hosts.UpdateHost(t.Context(), &hostv1.UpdateHostRequest{Name: "h1", Host: h})
		return err
	}
	if err := change(func(h *hostv1.Host) {
		h.Metadata.Labels, h.Spec.Unschedulable = map[string]string{"disk": "ssd"}, true
	}); err != nil {
		t.Errorf("labels and a cordon: %v", err)
	}
	if err := change(func(h *hostv1.Host) { h.Spec.Unschedulable = false }); err != nil {
		t.Errorf("the end of a cordon: %v", err)
	}
	for name, f := range map[string]func(*hostv1.Host){
		"an address":  func(h *hostv1.Host) { h.Spec.Address = "192.0.2.9" },
		"a zone":      func(h *hostv1.Host) { h.Spec.Zone = "b" },
		"a finalizer": func(h *hostv1.Host) { h.Metadata.Finalizers = []string{"example.com/x"} },
		"an owner": func(h *hostv1.Host) {
			h.Metadata.OwnerReferences = []*metav1.OwnerReference{{ApiVersion: "v1", Kind: "ConfigMap", Name: "c", Uid: "u"}}
		},
		"the label of a token": func(h *hostv1.Host) { h.Metadata.Labels["windlass.dev/join-token"] = "x" },
	} {
		if err := change(f); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want PERMISSION_DENIED", name, err)
		}
	}
	for _, address := range []string{"::ffff:192.0.2.1", "2001:DB8::1", "0.0.0.0", "224.0.0.1", "fe80::1"} {
		if _, err := r.hosts.RegisterHost(t.Context(), &hostv1.RegisterHostRequest{
			Name: "h9", Address: address, Roles: []string{"worker"},
		}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a host at %s: %v, want INVALID_ARGUMENT", address, err)
		}
	}
	if err := change(func(h *hostv1.Host) { h.Spec.Roles = []string{"control-plane"} }); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("roles: %v, want INVALID_ARGUMENT", err)
	}
	if err := change(func(h *hostv1.Host) { h.Status.MachineRef = nil; h.Status.Phase = new("InUse") }); err != nil {
		t.Errorf("a status: %v", err) // an update ignores it
	}
	if s := r.host("h1").GetStatus(); s.GetPhase() != "Available" {
		t.Errorf("a user wrote %v", s)
	}
	_, err := r.hosts.RegisterHost(t.Context(), &hostv1.RegisterHostRequest{
		Name: "h2", Address: "192.0.2.1", Roles: []string{"worker"},
	})
	if rpcerr.TakenField(err) != "spec.address" {
		t.Errorf("a host with the address of another one: %v", err)
	}
	_, err = r.hosts.RegisterHost(t.Context(), &hostv1.RegisterHostRequest{
		Name: "h1", Address: "192.0.2.2", Roles: []string{"worker"},
	})
	if status.Code(err) != codes.AlreadyExists {
		t.Errorf("another host with the name of one: %v, want ALREADY_EXISTS", err)
	}
}

func TestWhatIsWrongWithAProviderSpecIsSaid(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	bad := spec("a")
	bad.Fields["kind"] = bad.Fields["zone"]
	bad.Fields["hostSelector"] = bad.Fields["zone"]
	bad.Fields["region"] = bad.Fields["zone"]
	_, err := r.provider.ValidateProviderSpec(t.Context(), &providerv1.ValidateProviderSpecRequest{ProviderSpec: bad})
	faults, _ := rpcerr.Fields(err)
	var paths []string
	for _, f := range faults {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); got != "hostSelector kind region" {
		t.Errorf("the wrong fields are %q: %v", got, err)
	}
}
