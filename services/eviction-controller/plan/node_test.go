package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"
)

const grace = 40 * time.Second

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func at(d time.Duration) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: now().Add(d).Unix()}
}

func newNode(change ...func(*nodev1.Node)) *nodev1.Node {
	n := &nodev1.Node{
		ApiVersion: "v1", Kind: "Node", Metadata: &metav1.ObjectMeta{
			Name: "a", Labels: map[string]string{},
			Annotations: map[string]string{},
		},
		Spec: &nodev1.NodeSpec{}, Status: &nodev1.NodeStatus{NodeInfo: &nodev1.NodeSystemInfo{BootId: "boot-1"}},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func controlPlane(n *nodev1.Node) {
	n.Metadata.Labels["node-role.kubernetes.io/control-plane"] = ""
}

func annotated(key, value string) func(*nodev1.Node) {
	return func(n *nodev1.Node) { n.Metadata.Annotations[key] = value }
}

func unschedulable(n *nodev1.Node) { n.Spec.Unschedulable = proto.Bool(true) }

func observed(list ...*nodev1.NodeCondition) func(*nodev1.Node) {
	return func(n *nodev1.Node) { n.Status.Conditions = list }
}

func seen(c *nodev1.NodeCondition, transition, heartbeat time.Duration) *nodev1.NodeCondition {
	c = proto.Clone(c).(*nodev1.NodeCondition)
	c.LastTransitionTime, c.LastHeartbeatTime = at(transition), at(heartbeat)
	return c
}

func readyTrue() *nodev1.NodeCondition {
	return condition(Ready, "True", reasonReady, "the node's agent reports that it is ready")
}

func readyUnknown() *nodev1.NodeCondition {
	return condition(Ready, "Unknown", reasonUnknown, "the node's agent has sent no heartbeat for more than 40s")
}

func newDrain(name, phase string, change ...func(*nodev1.Drain)) *nodev1.Drain {
	d := &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: name}, Spec: &nodev1.DrainSpec{NodeName: "a"},
		Status: &nodev1.DrainStatus{},
	}
	if phase != "" {
		d.Status.Phase = proto.String(phase)
	}
	for _, f := range change {
		f(d)
	}
	return d
}

func deleting(d *nodev1.Drain) {
	d.Metadata.DeletionTimestamp, d.Metadata.Finalizers = at(-time.Second), []string{Finalizer}
}

func permit(status string) func(*nodev1.Drain) {
	return func(d *nodev1.Drain) {
		d.Status.Conditions = append(d.Status.Conditions, &metav1.Condition{Type: PermitHeld, Status: status})
	}
}

// nodeOutcome is the part of a plan for a node that tests compare.
type nodeOutcome struct {
	Conditions          []*nodev1.NodeCondition
	Unschedulable       bool
	HeldBy              []string
	RebootDone, Release bool
	Wake                time.Time
}

func nodeOutcomeOf(v NodeView, p Plan) nodeOutcome {
	after := p.NodeAfter(v.Node)
	return nodeOutcome{
		Conditions: after.GetStatus().GetConditions(), Unschedulable: after.GetSpec().GetUnschedulable(),
		HeldBy: HeldBy(v.Node, v.Drains), Release: p.Does(ReleasePermit), Wake: p.Wake,
		RebootDone: v.Node.Metadata.Annotations[RebootOf] != "" && after.Metadata.Annotations[RebootOf] == "",
	}
}

func TestNode(t *testing.T) {
	pressure := condition("MemoryPressure", "False", "Enough", "there is enough memory")
	silentFor := func(silence time.Duration) Agent { return Agent{Reported: true, Silence: silence, BootID: "boot-1"} }
	for _, tc := range []struct {
		name   string
		node   *nodev1.Node
		agent  Agent
		drains []*nodev1.Drain
		want   nodeOutcome
	}{
		{
			name: "a node without a heartbeat has no Ready condition within the grace",
			node: newNode(), agent: Agent{Silence: 10 * time.Second},
			want: nodeOutcome{Wake: now().Add(30 * time.Second)},
		},
		{
			name: "a node without a heartbeat is Unknown after the grace",
			node: newNode(), agent: Agent{Silence: grace},
			want: nodeOutcome{Conditions: []*nodev1.NodeCondition{func() *nodev1.NodeCondition {
				c := condition(Ready, "Unknown", reasonNeverUpdated, "the node's agent has never sent a heartbeat")
				c.LastTransitionTime = at(0)
				return c
			}()}},
		},
		{
			name: "the first heartbeat makes the node ready",
			node: newNode(), agent: silentFor(0),
			want: nodeOutcome{Conditions: []*nodev1.NodeCondition{seen(readyTrue(), 0, 0)}, Wake: now().Add(grace)},
		},
		{
			name: "a further heartbeat changes nothing",
			node: newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour))), agent: silentFor(0),
			want: nodeOutcome{
				Conditions: []*nodev1.NodeCondition{seen(readyTrue(), -time.Hour, -time.Hour)},
				Wake:       now().Add(grace),
			},
		},
		{
			name:  "an agent that says why it is not ready is believed",
			node:  newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour))),
			agent: Agent{Reported: true, NotReady: "disk is full"},
			want: nodeOutcome{
				Conditions: []*nodev1.NodeCondition{seen(condition(Ready, "False", reasonNotReady, "disk is full"), 0, 0)},
				Wake:       now().Add(grace),
			},
		},
		{
			name:  "another reason of the same status does not move the time of transition",
			node:  newNode(observed(seen(condition(Ready, "False", reasonNotReady, "disk is full"), -time.Hour, -time.Hour))),
			agent: Agent{Reported: true, NotReady: "no memory"},
			want: nodeOutcome{
				Conditions: []*nodev1.NodeCondition{seen(condition(Ready, "False", reasonNotReady, "no memory"), -time.Hour, 0)},
				Wake:       now().Add(grace),
			},
		},
		{
			name: "silence just below the grace changes nothing",
			node: newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour))), agent: silentFor(grace - time.Nanosecond),
			want: nodeOutcome{
				Conditions: []*nodev1.NodeCondition{seen(readyTrue(), -time.Hour, -time.Hour)},
				Wake:       now().Add(time.Nanosecond),
			},
		},
		{
			name:  "silence beyond the grace makes everything Unknown and keeps the time of the last heartbeat",
			node:  newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour), seen(pressure, -time.Hour, -time.Hour))),
			agent: silentFor(grace),
			want: nodeOutcome{Conditions: []*nodev1.NodeCondition{
				seen(readyUnknown(), 0, -time.Hour),
				seen(condition("MemoryPressure", "Unknown", reasonUnknown, "the node's agent sends no heartbeats"), 0, -time.Hour),
			}},
		},
		{
			name: "after a change of leader the old condition stays until a heartbeat or the end of the grace",
			node: newNode(observed(seen(readyUnknown(), -time.Hour, -2*time.Hour))), agent: Agent{Silence: time.Second},
			want: nodeOutcome{
				Conditions: []*nodev1.NodeCondition{seen(readyUnknown(), -time.Hour, -2*time.Hour)},
				Wake:       now().Add(39 * time.Second),
			},
		},
		{
			name: "conditions that the agent reports are taken over, but for Ready",
			node: newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour))),
			agent: Agent{Reported: true, Conditions: []*nodev1.NodeCondition{
				pressure, condition(Ready, "False", "Lie", "not the agent's word"),
			}},
			want: nodeOutcome{
				Conditions: []*nodev1.NodeCondition{seen(readyTrue(), -time.Hour, -time.Hour), seen(pressure, 0, 0)},
				Wake:       now().Add(grace),
			},
		},
		{
			name: "a user and drains that go on hold the node, one that is being deleted or waits for a permit does not",
			node: newNode(annotated(CordonedBy, "alice")), agent: Agent{Silence: time.Second},
			drains: []*nodev1.Drain{
				newDrain("z", Draining), newDrain("y", Succeeded), newDrain("x", Pending), newDrain("w", Draining, deleting),
				newDrain("v", ""),
			},
			want: nodeOutcome{
				Unschedulable: true, HeldBy: []string{`user "alice"`, `drain "y"`, `drain "z"`},
				Wake: now().Add(39 * time.Second),
			},
		},
		{
			name: "a reboot is not over while the boot is the same",
			node: newNode(annotated(RebootOf, "boot-1")), agent: Agent{Silence: time.Second},
			want: nodeOutcome{Wake: now().Add(39 * time.Second)},
		},
		{
			name: "a reboot of a worker is over with another boot",
			node: newNode(annotated(RebootOf, "boot-0")), agent: Agent{Silence: time.Second},
			want: nodeOutcome{RebootDone: true, Wake: now().Add(39 * time.Second)},
		},
		{
			name: "a reboot of a control-plane node gives the permit back",
			node: newNode(controlPlane, annotated(RebootOf, "boot-0")), agent: Agent{Silence: time.Second},
			want: nodeOutcome{RebootDone: true, Release: true, Wake: now().Add(39 * time.Second)},
		},
		{
			name: "a drain that uses the permit keeps it when a reboot is over",
			node: newNode(controlPlane, annotated(RebootOf, "boot-0")), agent: Agent{Silence: time.Second},
			drains: []*nodev1.Drain{newDrain("x", Pending, permit("Unknown"))},
			want:   nodeOutcome{RebootDone: true, Wake: now().Add(39 * time.Second)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := NodeView{
				Now: now(), Node: tc.node, Reachability: Reachability{Agent: tc.agent, Grace: grace},
				Drains: tc.drains,
			}
			before := proto.Clone(tc.node)
			got := nodeOutcomeOf(v, Node(v))
			if len(got.Conditions) == 0 {
				got.Conditions = nil
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("Node (-want +got):\n%s", diff)
			}
			if !proto.Equal(before, tc.node) {
				t.Error("Node modified its view")
			}
		})
	}
}

// TestNodeSettles holds for any state: what the plan wants is what it wants again a moment later, so that no write
// follows from nothing.
func TestNodeSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		status := rapid.SampledFrom([]string{"True", "False", "Unknown"})
		node := newNode()
		for _, typ := range []string{Ready, "MemoryPressure"} {
			if rapid.Bool().Draw(t, "has "+typ) {
				node.Status.Conditions = append(node.Status.Conditions,
					seen(condition(typ, status.Draw(t, typ), "R", "m"), -time.Hour, -time.Hour))
			}
		}
		if rapid.Bool().Draw(t, "cordoned") {
			annotated(CordonedBy, "alice")(node)
		}
		if rapid.Bool().Draw(t, "unschedulable") {
			unschedulable(node)
		}
		node.Spec.Taints = anyTaints(t)
		v := NodeView{Now: now(), Node: node, Reachability: anyHearing(t)}
		first := Node(v)
		v.Node = first.NodeAfter(node)
		v.Now = v.Now.Add(time.Hour) // with the same silence
		v.Disrupted = v.Disrupted && !first.Does(EndDisruption) || first.Does(BeginDisruption)
		if first.Does(EndDisruption) && !v.Agent.Healthy(grace) {
			v.Agent = Agent{}
		}
		for _, a := range first.Do {
			if a.Verb == TakeTurn {
				v.Turn = a.Turn
			}
		}
		second := Node(v)
		if again := second.NodeAfter(v.Node); !proto.Equal(again, v.Node) {
			t.Fatalf("the plan does not settle:\n%s", cmp.Diff(v.Node, again, protocmp.Transform()))
		}
		gone := v.Agent.Silence >= grace
		if got := find(v.Node.GetStatus().GetConditions(), Ready); gone && got.GetStatus() != "Unknown" {
			t.Fatalf("silent for %v, and Ready is %q", v.Agent.Silence, got.GetStatus())
		}
		disrupted := v.Census.disrupted() && v.Agent.Settled(grace)
		if second.Wake.IsZero() != (gone && !disrupted) {
			t.Fatalf("wake at %v, silent for %v", second.Wake, v.Agent.Silence)
		}
	})
}

func TestCordon(t *testing.T) {
	held := []*nodev1.Drain{newDrain("x", Draining)}
	for _, tc := range []struct {
		name      string
		old, next *nodev1.Node
		drains    []*nodev1.Drain
		by        string
		on        bool
	}{
		{"a new node that is unschedulable is cordoned by its maker", nil, newNode(unschedulable), nil, "bob", true},
		{"a new node without a word is free", nil, newNode(), nil, "", false},
		{"a new node cannot bring a cordon of another", nil, newNode(annotated(CordonedBy, "alice")), nil, "", false},
		{"setting unschedulable cordons", newNode(), newNode(unschedulable), nil, "bob", true},
		{
			"dropping unschedulable uncordons", newNode(unschedulable, annotated(CordonedBy, "alice")),
			newNode(annotated(CordonedBy, "alice")), nil, "", false,
		},
		{
			"another change keeps the cordon and its owner", newNode(unschedulable, annotated(CordonedBy, "alice")),
			newNode(unschedulable), nil, "alice", true,
		},
		{
			"an uncordoned node stays unschedulable while a drain holds it",
			newNode(unschedulable, annotated(CordonedBy, "alice")), newNode(), held, "", true,
		},
		{"a drain's hold is no cordon", newNode(unschedulable), newNode(unschedulable), held, "", true},
		{"a drain's hold cannot be lifted by a user", newNode(unschedulable), newNode(), held, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			Cordon(tc.old, tc.next, tc.drains, "bob")
			if got := tc.next.GetSpec().GetUnschedulable(); got != tc.on {
				t.Errorf("unschedulable = %v, want %v", got, tc.on)
			}
			if got := tc.next.GetMetadata().GetAnnotations()[CordonedBy]; got != tc.by {
				t.Errorf("cordoned by %q, want %q", got, tc.by)
			}
		})
	}
}

func TestCordonKeepsTheRebootAnnotation(t *testing.T) {
	next := newNode(annotated(RebootOf, "forged"))
	Cordon(newNode(), next, nil, "bob")
	if got, ok := next.GetMetadata().GetAnnotations()[RebootOf]; ok {
		t.Errorf("a user's write set it to %q", got)
	}
	next = newNode()
	Cordon(newNode(annotated(RebootOf, "boot-1")), next, nil, "bob")
	if got := next.GetMetadata().GetAnnotations()[RebootOf]; got != "boot-1" {
		t.Errorf("after a user's write it is %q", got)
	}
}

func TestRegistered(t *testing.T) {
	old := newNode(unschedulable, annotated(CordonedBy, "alice"), observed(seen(readyTrue(), 0, 0)), func(n *nodev1.Node) {
		n.Metadata.Labels["zone"] = "z"
		n.Spec.Taints = []*nodev1.Taint{{Key: "k", Effect: "NoSchedule"}}
	})
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: "ns", Name: "a", Uid: "u-1", Labels: map[string]string{
			machineRoleLabel: "master",
		}},
		Spec: &machinev1.MachineSpec{ProviderId: "local://c/a"},
	}
	r := &nodev1.RegisterNodeRequest{
		Name: "a", ProviderId: "local://c/another", Machine: &metav1.ObjectReference{Namespace: "ns", Name: "another"},
		Labels: map[string]string{"kubernetes.io/os": "linux"},
		Status: &nodev1.NodeStatus{
			Conditions: []*nodev1.NodeCondition{condition(Ready, "False", "Lie", ""), condition("DiskPressure", "True", "Full",
				"")},
			NodeInfo: &nodev1.NodeSystemInfo{BootId: "boot-2"},
		},
	}
	got := Registered(old, r, m, now())
	want := proto.Clone(old).(*nodev1.Node)
	want.Metadata.Labels["kubernetes.io/os"] = "linux"
	want.Metadata.Annotations[MachineOf] = "ns/a"
	want.Metadata.Annotations[nodeid.MachineUID] = "u-1"
	want.Metadata.Annotations[nodeid.MachineRole] = "master"
	want.Spec.ProviderId = "local://c/a"
	want.Status.NodeInfo.BootId = "boot-2"
	want.Status.Conditions = append(want.Status.Conditions, seen(condition("DiskPressure", "True", "Full", ""), 0, 0))
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Registered (-want +got):\n%s", diff)
	}
	again := Registered(got, r, nil, now())
	if diff := cmp.Diff(want, again, protocmp.Transform()); diff != "" {
		t.Errorf("registered again (-want +got):\n%s", diff)
	}
	fresh := Registered(nil, r, m, now())
	if len(fresh.GetSpec().GetTaints()) != 1 || fresh.Spec.Taints[0].GetKey() != UninitializedTaint {
		t.Errorf("a new node has taints %v, want %s", fresh.GetSpec().GetTaints(), UninitializedTaint)
	}
}

func TestRegistrationNeedsAMachine(t *testing.T) {
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "a", Uid: "u-1"}}
	leaving := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Name: "a", Uid: "u-1", DeletionTimestamp: timestamppb.New(now())},
	}
	for name, tt := range map[string]struct {
		uid  string
		m    *machinev1.Machine
		want bool
	}{
		"its machine":                     {"u-1", m, false},
		"a machine that is gone":          {"u-1", nil, true},
		"a later machine of its name":     {"u-0", m, true},
		"a machine that is being deleted": {"u-1", leaving, true},
	} {
		if got := RegistrationFault(tt.uid, tt.m); (got != "") != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestWhichFilesANodeHasIsThatOfTheLastRegistration(t *testing.T) {
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "a", Uid: "u-1"}}
	of := &nodev1.RegisterNodeRequest{Name: "a", Labels: map[string]string{nodeid.FilesLabel: nodeid.ObservedFiles}}
	if f := ForeignLabels(of); len(f) > 0 {
		t.Errorf("labels %v are refused", f)
	}
	node := Registered(nil, of, m, now())
	if got := node.GetMetadata().GetLabels()[nodeid.FilesLabel]; got != nodeid.ObservedFiles {
		t.Errorf("the label is %q", got)
	}
	node = Registered(node, &nodev1.RegisterNodeRequest{Name: "a"}, m, now())
	if got, ok := node.GetMetadata().GetLabels()[nodeid.FilesLabel]; ok {
		t.Errorf("the label is kept: %q", got)
	}
}

func TestTheAddressOfPodsIsThatOfTheLastRegistration(t *testing.T) {
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "a", Uid: "u-1"}}
	shares := &nodev1.RegisterNodeRequest{
		Name: "a", Labels: map[string]string{placement.PodAddressLabel: placement.NodeAddress},
	}
	if f := ForeignLabels(shares); len(f) > 0 {
		t.Errorf("labels %v are refused", f)
	}
	node := Registered(nil, shares, m, now())
	if !placement.SharesAddress(node.GetMetadata().GetLabels()) {
		t.Error("the label is not set")
	}
	if node = Registered(node, &nodev1.RegisterNodeRequest{Name: "a"}, m, now()); placement.SharesAddress(
		node.GetMetadata().GetLabels()) {
		t.Error("the label is kept although pods have addresses of their own")
	}
}

func TestForeignLabels(t *testing.T) {
	got := ForeignLabels(&nodev1.RegisterNodeRequest{Labels: map[string]string{
		"kubernetes.io/os": "linux", "node-role.kubernetes.io/master": "", "a": "b",
	}})
	if diff := cmp.Diff([]string{"a", "node-role.kubernetes.io/master"}, got); diff != "" {
		t.Error(diff)
	}
}
