package plan_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/labels"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

var start = time.Unix(1_800_000_000, 0).UTC()

// free returns an Available host.
func free(name string, change ...func(*hostv1.Host)) *hostv1.Host {
	h := &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: name, Uid: "0123456789-" + name},
		Spec:     &hostv1.HostSpec{Roles: []string{"worker"}, Zone: "a", Address: "192.0.2.1"},
		Status:   plan.New(start),
	}
	h.Status = plan.Received(h, &hostv1.AttendHostRequest{Name: name, Facts: &hostv1.HostFacts{BootId: "b1"}}, start)
	for _, f := range change {
		f(h)
	}
	return h
}

func machine(name string) plan.Claimant {
	return plan.Claimant{
		Machine: &metav1.ObjectReference{Kind: "Machine", Name: name, Uid: "uid-" + name}, Token: "uid-" + name,
		ProviderID: "inventory://c/h/uid-" + name, Fence: 7,
	}
}

func claimed(h *hostv1.Host) { h.Status = plan.Claim(h, machine("m"), start) }

// report has the agent answer its present order.
func report(done, stopped bool, message string) func(*hostv1.Host) {
	return func(h *hostv1.Host) {
		h.Status = plan.Received(h, &hostv1.AttendHostRequest{Report: &hostv1.HostReport{
			OrderId: plan.Order(h).GetId(), Done: done, Stopped: stopped, Message: message,
		}}, start)
	}
}

func deleted(h *hostv1.Host) { h.Status = plan.Delete(h, 8, start) }

func silent(h *hostv1.Host) {
	h.Status = plan.Watch(plan.View{Now: start.Add(silence), Host: h, Since: start, Silence: silence}).Do[0].Status
}

func attends(h *hostv1.Host) { h.Status = plan.Received(h, &hostv1.AttendHostRequest{}, start) }

func fenced(t *testing.T) func(*hostv1.Host) {
	return func(h *hostv1.Host) {
		var err error
		if h.Status, err = plan.Fence(h, false, "alice", "unplugged", start); err != nil {
			t.Fatal(err)
		}
	}
}

var (
	started = report(true, false, "")
	wiped   = report(true, true, "")
)

func TestChoose(t *testing.T) {
	zone := func(z string) func(*hostv1.Host) { return func(h *hostv1.Host) { h.Spec.Zone = z } }
	cordoned := func(h *hostv1.Host) { h.Spec.Unschedulable, h.Spec.UnschedulableReason = true, "new disk" }
	disk := labels.SelectorFromSet(labels.Set{"disk": "ssd"})
	for _, c := range []struct {
		name     string
		ask      plan.Ask
		hosts    []*hostv1.Host
		host     string
		waitsFor string
	}{
		{"without hosts none matches", plan.Ask{Role: "worker"}, nil, "", "0 of 0 hosts match"},
		{
			"the first by name of those that match",
			plan.Ask{Role: "worker", Zone: "a"},
			[]*hostv1.Host{free("c"), free("b"), free("a", zone("b"))},
			"b", "",
		},
		{
			"one that had fewer orders comes first",
			plan.Ask{Role: "worker"},
			[]*hostv1.Host{free("a", claimed, deleted, wiped), free("b")},
			"b", "",
		},
		{
			"each host that does not match is counted by its cause",
			plan.Ask{Role: "worker", Zone: "a"},
			[]*hostv1.Host{
				free("a", claimed), free("b", claimed, started), free("c", zone("b")),
				free("d", claimed, deleted, report(false, true, "x")),
			},
			"", "0 of 4 hosts match: 2 in use, 1 quarantined, 1 in another zone",
		},
		{
			"a host that could never match counts as that, whatever its phase",
			plan.Ask{Role: "worker", Zone: "b"},
			[]*hostv1.Host{free("a", claimed)},
			"", "0 of 1 hosts match: 1 in another zone",
		},
		{
			"a host that is silent, wiped or cordoned is not claimed",
			plan.Ask{Role: "worker"},
			[]*hostv1.Host{free("a", silent), free("b", claimed, deleted), free("c", cordoned)},
			"", "0 of 3 hosts match: 1 being wiped, 1 lost, 1 unschedulable",
		},
		{
			"a host that a finalizer keeps from its removal is not claimed",
			plan.Ask{Role: "worker"},
			[]*hostv1.Host{free("a", func(h *hostv1.Host) { h.Metadata.DeletionTimestamp = object.Timestamp(start) })},
			"", "0 of 1 hosts match: 1 being removed",
		},
		{
			"a control-plane machine needs a host with that role",
			plan.Ask{Role: plan.RoleOf("master")},
			[]*hostv1.Host{free("a")},
			"", "0 of 1 hosts match: 1 of another role",
		},
		{
			"a selector selects by labels",
			plan.Ask{Role: "worker", Selector: disk},
			[]*hostv1.Host{free("a"), free("b", func(h *hostv1.Host) { h.Metadata.Labels = map[string]string{"disk": "ssd"} })},
			"b", "",
		},
		{
			"a selector that selects none says so",
			plan.Ask{Role: "worker", Selector: disk},
			[]*hostv1.Host{free("a")},
			"", "0 of 1 hosts match: 1 not selected by hostSelector",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan.Choose(c.ask, c.hosts)
			if name := got.Host.GetMetadata().GetName(); name != c.host || got.WaitsFor() != c.waitsFor {
				t.Errorf("chose %q, %q; want %q, %q", name, got.WaitsFor(), c.host, c.waitsFor)
			}
			actions, held := got.Steps()
			if len(actions)+len(held) != len(c.hosts) {
				t.Errorf("of %d hosts, the plan shows %d", len(c.hosts), len(actions)+len(held))
			}
			for _, h := range held {
				if h.GetReason() == "" {
					t.Errorf("no reason is given for %v", h.GetObject())
				}
			}
		})
	}
}

// files are the facts of an agent whose host has the files of the machine with that uid.
func files(uid string) func(*hostv1.Host) {
	return func(h *hostv1.Host) {
		h.Status = plan.Received(h, &hostv1.AttendHostRequest{Facts: &hostv1.HostFacts{MachineUid: uid}}, start)
	}
}

func TestTheLifeOfAHost(t *testing.T) {
	type steps = []func(*hostv1.Host)
	off := fenced(t)
	for _, c := range []struct {
		name           string
		steps          steps
		phase, resumes string
		reason         string
		order          hostv1.HostOrder_Type
		instance       string // its state; empty without one
	}{
		{"a claimed host has the order to start its machine", steps{claimed}, "Claimed", "", "Starting", 1, "Creating"},
		{"a machine that started runs", steps{claimed, started}, "InUse", "", "MachineStarted", 0, "Running"},
		{
			"a machine that cannot start has failed",
			steps{claimed, report(false, false, "no cgroups")},
			"Claimed", "",
			"StartFailed", 1, "Failed",
		},
		{
			"a later report of the same order counts",
			steps{claimed, report(false, false, "no cgroups"), started},
			"InUse",
			"", "MachineStarted", 0, "Running",
		},
		{"a deleted machine is wiped", steps{claimed, started, deleted}, "Wiping", "", "MachineDeleted", 2, "Deleting"},
		{"also before it has started", steps{claimed, deleted}, "Wiping", "", "MachineDeleted", 2, "Deleting"},
		{
			"a repeated deletion changes nothing",
			steps{claimed, deleted, deleted},
			"Wiping", "", "MachineDeleted", 2,
			"Deleting",
		},
		{"a wiped host is available", steps{claimed, started, deleted, wiped}, "Available", "", "Ready", 0, ""},
		{
			"a host whose machine may still run keeps it",
			steps{claimed, deleted, report(false, false, "stuck")},
			"Quarantined", "", "WipeFailed", 2, "Deleting",
		},
		{
			"a host whose machine is stopped has none",
			steps{claimed, deleted, report(false, true, "read-only disk")},
			"Quarantined", "", "WipeFailed", 2, "",
		},
		{
			"a host that could be wiped later is available",
			steps{claimed, deleted, report(false, true, "x"), wiped},
			"Available", "", "Ready", 0, "",
		},
		{
			"a silent host is lost, its machine is not",
			steps{claimed, started, silent},
			"Lost", "InUse", "Silent", 0,
			"Running",
		},
		{
			"the machine of a silent host that is deleted is not gone",
			steps{claimed, started, silent, deleted},
			"Lost",
			"Wiping", "Silent", 2, "Deleting",
		},
		{
			"a host that attends again is where it was",
			steps{claimed, started, silent, attends},
			"InUse", "", "MachineStarted",
			0, "Running",
		},
		{
			"a host that is deleted while it is lost is wiped when it attends",
			steps{claimed, started, silent, deleted, attends},
			"Wiping", "", "MachineDeleted", 2, "Deleting",
		},
		{
			"the machine of a host that is confirmed to be off is gone",
			steps{claimed, started, silent, off},
			"Lost",
			"Wiping", "Fenced", 3, "",
		},
		{
			"a fenced host is wiped when it attends",
			steps{claimed, started, silent, off, attends},
			"Wiping", "", "Fenced",
			3, "",
		},
		{
			"and then it is available",
			steps{claimed, started, silent, off, attends, wiped},
			"Available", "", "Ready", 0, "",
		},
		{
			"a host with the files of a machine that it is not of is wiped",
			steps{files("old")},
			"Wiping", "", "ForeignMachine", 2, "",
		},
		{"a host in use with the files of its machine", steps{claimed, started, files("uid-m")}, "InUse", "", "MachineStarted", 0, "Running"},
		{"a host in use that has lost its machine says so", steps{claimed, started, files("")}, "InUse", "", "MachineMissing", 0, "Running"},
		{
			"a host in use with the files of another machine says so", steps{claimed, started, files("other")},
			"InUse", "", "MachineMissing", 0, "Running",
		},
		{
			"a machine that is there again runs", steps{claimed, started, files(""), files("uid-m")},
			"InUse", "", "MachineStarted", 0, "Running",
		},
		{
			"a machine that is missing is wiped when it is deleted", steps{claimed, started, files(""), deleted},
			"Wiping", "", "MachineDeleted", 2, "Deleting",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := free("h", c.steps...)
			s := h.GetStatus()
			if s.GetPhase() != c.phase || s.GetResumePhase() != c.resumes || s.GetReason() != c.reason {
				t.Errorf("it is %s, returns to %q, because of %s (%s)", s.GetPhase(), s.GetResumePhase(), s.GetReason(),
					s.GetMessage())
			}
			if got := plan.Order(h).GetType(); got != c.order {
				t.Errorf("the order is %v, want %v", got, c.order)
			}
			if got := plan.Instance(h).GetState(); got != c.instance {
				t.Errorf("the instance is %q, want %q", got, c.instance)
			}
		})
	}
}

func TestAReportOfAnotherOrderChangesNothing(t *testing.T) {
	h := free("h", claimed)
	old := plan.Order(h).GetId()
	deleted(h)
	before := object.Clone(h).GetStatus()
	after := plan.Received(h, &hostv1.AttendHostRequest{Report: &hostv1.HostReport{OrderId: old, Done: true}}, start)
	if diff := cmp.Diff(before, after, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestAnInstance(t *testing.T) {
	h := free("h", claimed, started, func(h *hostv1.Host) {
		h.Status.Addresses = []*nodev1.NodeAddress{
			{Type: "InternalIP", Address: "192.0.2.1"},
			{Type: "ExternalIP", Address: "198.51.100.1"},
			{Type: "InternalIP", Address: "172.17.0.1"}, // of a bridge, as on every other host
		}
	}, silent)
	want := &providerv1.Instance{
		ProviderId: "inventory://c/h/uid-m", MachineName: "m", MachineUid: "uid-m", RequestToken: "uid-m", State: "Running",
		Zone: "a", CreateTime: object.Timestamp(start), Fence: 7, VolumesKnown: true,
		Addresses: []*nodev1.NodeAddress{
			{Type: "InternalIP", Address: "192.0.2.1"},
			{Type: "Hostname", Address: "h"},
			{Type: "ExternalIP", Address: "198.51.100.1"},
		},
		Message: "host h: its agent is silent, and machine m may still run; start the host; or turn it off, and fence it",
	}
	if diff := cmp.Diff(want, plan.Instance(h), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestWatch(t *testing.T) {
	at := func(d time.Duration) time.Time { return start.Add(d) }
	for _, c := range []struct {
		name  string
		v     plan.View
		verbs []string
		wake  time.Time
	}{
		{"a host that does not exist needs nothing", plan.View{Now: at(time.Hour)}, nil, time.Time{}},
		{
			"a new leader gives the agents time",
			plan.View{Now: at(39 * time.Second), Host: free("h")},
			nil, at(silence),
		},
		{"then the host is lost", plan.View{Now: at(silence), Host: free("h")}, []string{plan.StoreStatus}, time.Time{}},
		{
			"a host whose agent sent a message is checked again later",
			plan.View{Now: at(time.Minute), Last: at(30 * time.Second), Host: free("h")},
			nil, at(70 * time.Second),
		},
		{
			"an agent that attends gets its order",
			plan.View{Now: at(time.Minute), Last: at(time.Minute), Host: free("h", claimed)},
			[]string{plan.SendOrder},
			at(100 * time.Second),
		},
		{
			"one that does not attend gets none",
			plan.View{Now: at(0), Host: free("h", claimed)},
			nil, at(silence),
		},
		{"a lost host waits for its agent", plan.View{Now: at(time.Hour), Host: free("h", silent)}, nil, time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.v.Since, c.v.Silence = start, silence
			p := plan.Watch(c.v)
			var verbs []string
			for _, a := range p.Do {
				verbs = append(verbs, a.Verb)
			}
			if !cmp.Equal(verbs, c.verbs) || !p.Wake.Equal(c.wake) {
				t.Errorf("%v, again at %v; want %v, %v", verbs, p.Wake, c.verbs, c.wake)
			}
		})
	}
}

func TestOnlyASilentHostIsFenced(t *testing.T) {
	_, err := plan.Fence(free("h", claimed, started), false, "alice", "unplugged", start)
	var r *plan.Refusal
	if !errors.As(err, &r) || r.Unblock == "" {
		t.Errorf("a host that attends: %v", err)
	}
	h := free("h", claimed, started, silent)
	if _, err := plan.Fence(h, true, "alice", "unplugged", start); !errors.As(err, &r) {
		t.Errorf("a host whose agent is back, which is not stored yet: %v", err)
	}
	s, err := plan.Fence(h, false, "alice", "unplugged", start)
	want := &hostv1.HostFencing{
		By: "alice", Reason: "unplugged", Time: object.Timestamp(start), MachineRef: machine("m").Machine,
	}
	if diff := cmp.Diff(want, s.GetFencing(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

func TestRemovable(t *testing.T) {
	off := fenced(t)
	for name, c := range map[string]struct {
		steps []func(*hostv1.Host)
		want  bool
	}{
		"an available host":                {nil, true},
		"an available host that is silent": {[]func(*hostv1.Host){silent}, true},
		"a claimed host":                   {[]func(*hostv1.Host){claimed}, false},
		"a host in use":                    {[]func(*hostv1.Host){claimed, started}, false},
		"a host in use that is silent":     {[]func(*hostv1.Host){claimed, started, silent}, false},
		"a host that is wiped":             {[]func(*hostv1.Host){claimed, deleted}, false},
		"a quarantined host whose machine is stopped": {
			[]func(*hostv1.Host){claimed, deleted, report(false, true, "")},
			true,
		},
		"a quarantined host whose machine may still run": {
			[]func(*hostv1.Host){claimed, deleted, report(false, false, "")},
			false,
		},
		"a host that is confirmed to be off": {[]func(*hostv1.Host){claimed, started, silent, off}, true},
		"a host that came back after it was fenced": {
			[]func(*hostv1.Host){claimed, started, silent, off, attends},
			false,
		},
		"a host that was wiped after it had come back": {
			[]func(*hostv1.Host){claimed, silent, off, attends, wiped},
			true,
		},
		"a silent host whose machine is deleted but not of": {[]func(*hostv1.Host){claimed, silent, deleted}, false},
	} {
		err := plan.Removable(free("h", c.steps...))
		var r *plan.Refusal
		if (err == nil) != c.want || err != nil && (!errors.As(err, &r) || r.Text == "" || r.Unblock == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
