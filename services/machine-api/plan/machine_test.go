package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

func noon() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

func settings(zone string) *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue("LocalMachineProviderSpec")}}
	if zone != "" {
		s.Fields["zone"] = structpb.NewStringValue(zone)
	}
	return s
}

// newMachine returns a machine named m whose instance has not been made yet, changed by each of the functions.
func newMachine(change ...func(*machinev1.Machine)) *machinev1.Machine {
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Namespace: "openshift-machine-api", Name: "m", Uid: "uid-m", ResourceVersion: "7",
			CreationTimestamp: seconds(noon().Add(-time.Hour)), Finalizers: []string{FinalizerMachine},
		},
		Spec:   &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: settings("a")}},
		Status: &machinev1.MachineStatus{},
	}
	for _, f := range change {
		f(m)
	}
	return m
}

func provisioned(m *machinev1.Machine) {
	m.Spec.ProviderId = "local://c/m"
	m.Status.Phase = proto.String(PhaseProvisioned)
}

func running(m *machinev1.Machine) {
	provisioned(m)
	m.Status.Phase = proto.String(PhaseRunning)
	m.Status.NodeRef = &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: "m", Uid: "uid-node"}
}

func deleted(m *machinev1.Machine) { m.Metadata.DeletionTimestamp = seconds(noon()) }

func preDrain(m *machinev1.Machine) {
	ensureHooks(m).PreDrain = []*machinev1.LifecycleHook{{Name: "EtcdQuorumOperator", Owner: "clusteroperator/etcd"}}
}

func preTerminate(m *machinev1.Machine) {
	ensureHooks(m).PreTerminate = []*machinev1.LifecycleHook{{Name: "BackupFileSystem", Owner: "my-backup-controller"}}
}

func ensureHooks(m *machinev1.Machine) *machinev1.LifecycleHooks {
	if m.Spec.LifecycleHooks == nil {
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{}
	}
	return m.Spec.LifecycleHooks
}

func drained(m *machinev1.Machine) {
	m.Status.Conditions = append(m.Status.Conditions, condition(Drained, conditionTrue, "", "", drainedMessage))
}

func instance() *providerv1.Instance {
	return &providerv1.Instance{
		ProviderId: "local://c/m", MachineName: "m", MachineUid: "uid-m", State: "Running", InstanceType: "small",
		Region: "local", Zone: "a",
		Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: "127.0.0.10"}},
	}
}

func newNode(name string, ready string, since time.Time) *nodev1.Node {
	return &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-node", ResourceVersion: "9", Annotations: map[string]string{
			AnnotationMachine: "openshift-machine-api/" + name,
		}},
		Spec: &nodev1.NodeSpec{ProviderId: "local://c/" + name},
		Status: &nodev1.NodeStatus{
			Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: ready, LastTransitionTime: seconds(since)}},
		},
	}
}

func readyNode() *nodev1.Node { return newNode("m", "True", noon().Add(-time.Hour)) }

func newDrain(phase, message string) *nodev1.Drain {
	return &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: "machine-uid-m"}, Status: &nodev1.DrainStatus{
		Phase: proto.String(phase), Message: proto.String(message),
	}}
}

func TestTheNextStepOfAMachine(t *testing.T) {
	type want struct {
		phase, waits string
		actions      []Action
	}
	seen := func(v MachineView) MachineView { v.NodesSeen = true; return v }
	for name, tt := range map[string]struct {
		view MachineView
		want want
	}{
		"a new machine gets an instance": {
			seen(MachineView{Machine: newMachine()}),
			want{PhaseProvisioning, "the provider to make its instance", []Action{CreateInstance}},
		},
		"the error of the creation is reported": {
			seen(MachineView{Machine: newMachine(), CreateErr: "no room"}),
			want{PhaseProvisioning, "the provider to make its instance: no room", []Action{CreateInstance}},
		},
		"a machine without provider settings fails for good": {
			seen(MachineView{Machine: newMachine(func(m *machinev1.Machine) { m.Spec.ProviderSpec = nil })}),
			want{PhaseFailed, "deletion by a user: it has failed permanently", nil},
		},
		"a machine that the provider refuses fails for good": {
			seen(MachineView{Machine: newMachine(), Refused: "zone: unknown"}),
			want{PhaseFailed, "deletion by a user: it has failed permanently", nil},
		},
		"a failed machine stays failed though its instance is there": {
			seen(MachineView{
				Machine:  newMachine(running, func(m *machinev1.Machine) { m.Status.Phase = proto.String(PhaseFailed) }),
				Instance: instance(), Node: readyNode(),
			}),
			want{PhaseFailed, "deletion by a user: it has failed permanently", nil},
		},
		"an instance without a node is provisioned": {
			seen(MachineView{Machine: newMachine(), Instance: instance()}),
			want{PhaseProvisioned, "its node to join the cluster", nil},
		},
		"a node makes it run": {
			seen(MachineView{Machine: newMachine(provisioned), Instance: instance(), Node: readyNode()}),
			want{PhaseRunning, "", nil},
		},
		"a running machine whose node is not ready says so": {
			seen(MachineView{Machine: newMachine(running), Instance: instance(), Node: newNode("m", "Unknown", noon())}),
			want{PhaseRunning, "its node to become ready", nil},
		},
		"labels of the spec go onto the node": {
			seen(MachineView{Machine: newMachine(running, func(m *machinev1.Machine) {
				m.Spec.Metadata = &metav1.ObjectMeta{Labels: map[string]string{"node-role.kubernetes.io/worker": ""}}
			}), Instance: instance(), Node: readyNode()}),
			want{PhaseRunning, "", []Action{UpdateNode}},
		},
		"an instance that vanished fails the machine": {
			seen(MachineView{Machine: newMachine(running), InstanceGone: true, Node: readyNode()}),
			want{PhaseFailed, "deletion by a user: it has failed permanently", nil},
		},
		"an instance that cannot be seen just now changes nothing": {
			seen(MachineView{Machine: newMachine(running), InstanceErr: "down", Node: readyNode()}),
			want{PhaseRunning, "the provider to answer: down", []Action{GetInstance}},
		},
		"a pre-drain hook holds the drain": {
			seen(MachineView{Machine: newMachine(running, deleted, preDrain), Instance: instance(), Node: readyNode()}),
			want{PhaseDeleting, "hook EtcdQuorumOperator of clusteroperator/etcd, before its node is drained", nil},
		},
		"a pre-drain hook also holds a machine without a node": {
			seen(MachineView{Machine: newMachine(provisioned, deleted, preDrain), Instance: instance()}),
			want{PhaseDeleting, "hook EtcdQuorumOperator of clusteroperator/etcd, before its node is drained", nil},
		},
		"a pre-drain hook also holds a machine that is excluded from draining": {
			seen(MachineView{Machine: newMachine(running, deleted, preDrain, func(m *machinev1.Machine) {
				m.Metadata.Annotations = map[string]string{AnnotationExcludeDrain: ""}
			}), Instance: instance(), Node: readyNode()}),
			want{PhaseDeleting, "hook EtcdQuorumOperator of clusteroperator/etcd, before its node is drained", nil},
		},
		"without hooks the drain begins": {
			seen(MachineView{Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode()}),
			want{PhaseDeleting, "the drain of node m", []Action{CreateDrain}},
		},
		"a pre-terminate hook does not hold the drain": {
			seen(MachineView{Machine: newMachine(running, deleted, preTerminate), Instance: instance(), Node: readyNode()}),
			want{PhaseDeleting, "the drain of node m", []Action{CreateDrain}},
		},
		"a drain under way is waited for": {
			seen(MachineView{
				Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode(),
				Drain: newDrain("Pending", "m-2 holds the permit"),
			}),
			want{PhaseDeleting, "the drain of node m: m-2 holds the permit", nil},
		},
		"a failed drain is waited for": {
			seen(MachineView{
				Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode(),
				Drain: newDrain("Failed", "budget web"),
			}),
			want{PhaseDeleting, "the drain of node m: budget web", nil},
		},
		"after the drain the instance goes at once": {
			seen(MachineView{
				Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode(),
				Drain: newDrain("Succeeded", ""),
			}),
			want{PhaseDeleting, "the provider to delete instance local://c/m", []Action{DeleteInstance}},
		},
		"a pre-terminate hook holds the instance": {
			seen(MachineView{
				Machine: newMachine(running, deleted, preTerminate), Instance: instance(), Node: readyNode(),
				Drain: newDrain("Succeeded", ""),
			}),
			want{PhaseDeleting, "hook BackupFileSystem of my-backup-controller, before its instance is deleted", nil},
		},
		"once drained a pre-drain hook no longer matters": {
			seen(MachineView{Machine: newMachine(running, deleted, drained, preDrain), Instance: instance(), Node: readyNode()}),
			want{PhaseDeleting, "the provider to delete instance local://c/m", []Action{DeleteInstance}},
		},
		"a node that is gone counts as drained": {
			seen(MachineView{Machine: newMachine(running, deleted), Instance: instance()}),
			want{PhaseDeleting, "the provider to delete instance local://c/m", []Action{DeleteInstance}},
		},
		"what the provider says of an instance that stays is shown": {
			seen(MachineView{
				Machine: newMachine(running, deleted, drained),
				Instance: &providerv1.Instance{
					ProviderId: "inventory://c/h/m", State: "Deleting",
					Message: "host h: its agent is silent",
				},
			}),
			want{
				PhaseDeleting, "the provider to delete instance inventory://c/h/m: host h: its agent is silent",
				[]Action{DeleteInstance},
			},
		},
		"without known nodes there is no drain and no deletion": {
			MachineView{Machine: newMachine(running, deleted), Instance: instance()},
			want{PhaseDeleting, "word of its node", nil},
		},
		"once the instance is gone the rest goes in order": {
			seen(MachineView{
				Machine: newMachine(running, deleted, drained), InstanceGone: true, Node: readyNode(),
				Drain: newDrain("Succeeded", ""),
			}),
			want{PhaseDeleting, "", []Action{RevokeMachine, DeleteNode, DeleteDrain, RemoveFinalizer}},
		},
		"while the provider does not answer nothing goes": {
			seen(MachineView{Machine: newMachine(running, deleted, drained), InstanceErr: "down", Node: readyNode()}),
			want{
				PhaseDeleting, "the provider to answer which volumes are attached: down", []Action{GetInstance},
			},
		},
		"a machine that never was anything can be deleted": {
			seen(MachineView{Machine: newMachine(deleted, func(m *machinev1.Machine) { m.Spec = nil }), InstanceGone: true}),
			want{PhaseDeleting, "", []Action{RevokeMachine, RemoveFinalizer}},
		},
		"a machine of another API is left alone": {
			seen(MachineView{Machine: newMachine(func(m *machinev1.Machine) { m.Spec.AuthoritativeApi = "ClusterAPI" })}),
			want{"", "spec.authoritativeAPI to be MachineAPI again", nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.Now = noon()
			p := Next(tt.view)
			got := want{p.Status.GetPhase(), p.WaitsFor, p.Actions}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("Next (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConditionsOfAMachine(t *testing.T) {
	for name, tt := range map[string]struct {
		view           MachineView
		typ            string
		status, reason string
		message        string
	}{
		"hooks show on a machine that lives on": {
			MachineView{Machine: newMachine(running, preDrain), Instance: instance(), Node: readyNode(), NodesSeen: true},
			Drainable,
			"False", "HookPresent",
			"Drain operation currently blocked by: [{Name:EtcdQuorumOperator Owner:clusteroperator/etcd}]",
		},
		"no hooks, no obstacle": {
			MachineView{Machine: newMachine(running), Instance: instance(), Node: readyNode(), NodesSeen: true},
			Terminable,
			"True", "", "",
		},
		"a failed drain is written down": {
			MachineView{
				Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode(), NodesSeen: true,
				Drain: newDrain("Failed", "budget web"),
			},
			Drained,
			"False", "DrainError", "could not drain machine: budget web",
		},
		"a skipped drain is written down": {
			MachineView{Machine: newMachine(provisioned, deleted), Instance: instance(), NodesSeen: true},
			Drained, "True", "",
			"Node drain skipped",
		},
		"a provider that does not answer leaves it open whether there is an instance": {
			MachineView{Machine: newMachine(running), InstanceErr: "down", NodesSeen: true},
			InstanceExists, "Unknown",
			"ErrorCheckingProvider", "Failed to check if machine exists: down",
		},
		"an instance that was never made": {
			MachineView{Machine: newMachine(), NodesSeen: true},
			InstanceExists, "False", "InstanceNotCreated",
			"Instance has not been created",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.Now = noon()
			c := object.FindCondition(Next(tt.view).Status.GetConditions(), tt.typ)
			if c.GetStatus() != tt.status || c.GetReason() != tt.reason || c.GetMessage() != tt.message {
				t.Errorf("condition %s = %v, want %s %s %q", tt.typ, c, tt.status, tt.reason, tt.message)
			}
		})
	}
}

func TestAStatusIsDatedOnlyWhenItChanges(t *testing.T) {
	v := MachineView{
		Now: noon(), Machine: newMachine(provisioned), Instance: instance(), Node: readyNode(),
		NodesSeen: true,
	}
	first := Next(v)
	v.Machine.Status = first.Status
	v.Now = v.Now.Add(time.Hour)
	if second := Next(v); !proto.Equal(first.Status, second.Status) {
		t.Errorf("the status moved from %v to %v", first.Status, second.Status)
	}
}

func TestWhatANodeLacks(t *testing.T) {
	m := newMachine(func(m *machinev1.Machine) {
		m.Spec.Metadata = &metav1.ObjectMeta{Labels: map[string]string{"a": "1", "b": "2"}}
		m.Spec.Taints = []*nodev1.Taint{
			{Key: "k", Value: proto.String("mine"), Effect: "NoSchedule"},
			{Key: "new", Effect: "NoExecute"},
		}
	})
	n := readyNode()
	n.Metadata.Labels = map[string]string{"a": "1", "b": "other", "c": "3"}
	n.Spec.Taints = []*nodev1.Taint{{Key: "k", Value: proto.String("theirs"), Effect: "NoSchedule"}}
	labels, annotations, taints := NodeChange(m, n)
	if diff := cmp.Diff(map[string]string{"b": "2"}, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if annotations != nil {
		t.Errorf("annotations = %v, want none", annotations)
	}
	if len(taints) != 2 || taints[0].GetValue() != "theirs" || taints[1].GetKey() != "new" {
		t.Errorf("taints = %v, want the node's own and the new one", taints)
	}
}

func TestANodeThatIsLinkedMayTakePods(t *testing.T) {
	m, n := newMachine(), readyNode()
	n.Metadata.Annotations = map[string]string{AnnotationMachine: m.Metadata.Namespace + "/" + m.Metadata.Name}
	n.Spec.Taints = []*nodev1.Taint{
		{Key: taintUninitialized, Value: proto.String("true"), Effect: "NoSchedule"},
		{Key: "k", Effect: "NoSchedule"},
	}
	_, _, taints := NodeChange(m, n)
	if len(taints) != 1 || taints[0].GetKey() != "k" {
		t.Errorf("taints = %v, want those of others", taints)
	}
	n.Spec.Taints = n.Spec.Taints[:1]
	if _, _, taints = NodeChange(m, n); taints == nil || len(taints) != 0 {
		t.Errorf("taints = %v, want an empty list", taints)
	}
	n.Spec.Taints = nil
	if !InStep(m, n) {
		t.Error("a linked node is out of date")
	}
}

// anyView draws a machine at any point of its life, with any world around it.
func anyView(t *rapid.T) MachineView {
	flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
	v := MachineView{Now: noon(), Machine: newMachine(), NodesSeen: flag("nodes seen")}
	for name, f := range map[string]func(*machinev1.Machine){
		"provisioned": provisioned, "running": running,
		"deleted": deleted, "pre-drain": preDrain, "pre-terminate": preTerminate, "drained": drained,
	} {
		if flag(name) {
			f(v.Machine)
		}
	}
	if flag("excluded") {
		v.Machine.Metadata.Annotations = map[string]string{AnnotationExcludeDrain: "x"}
	}
	if flag("no settings") {
		v.Machine.Spec.ProviderSpec = nil
	}
	switch rapid.IntRange(0, 2).Draw(t, "instance") {
	case 0:
		v.Instance = instance()
	case 1:
		v.InstanceGone = true
	}
	if flag("node") {
		v.Node = newNode("m", rapid.SampledFrom([]string{"True", "False", "Unknown"}).Draw(t, "ready"), noon())
	}
	if flag("drain") {
		v.Drain = newDrain(rapid.SampledFrom([]string{"", "Pending", "Draining", "Succeeded", "Failed"}).Draw(t,
			"drain phase"), "x")
	}
	return v
}

func TestCallsToAProviderArePaced(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		call Call
		want time.Duration // after the answer; negative: not while one is under way
	}{
		"one that was never made is made at once":      {Call{}, 0},
		"one that is under way is not made again":      {Call{Busy: true, At: now}, -1},
		"one that succeeded is repeated as planned":    {Call{At: now}, time.Minute},
		"one that failed is repeated soon":             {Call{At: now, Err: "no", Failed: 1}, 50 * time.Millisecond},
		"the pause doubles":                            {Call{At: now, Err: "no", Failed: 4}, 400 * time.Millisecond},
		"every machine is checked at least every 30 s": {Call{At: now, Err: "no", Failed: 1000}, 30 * time.Second},
		"a provider may say that it is worth it sooner": {
			Call{At: now, Err: "no", Failed: 1000, Retry: 3 * time.Second}, 3 * time.Second,
		},
		"no more often than once a second": {Call{At: now, Err: "no", Failed: 1000, Retry: 1}, time.Second},
		"a longer time does not make it rarer": {
			Call{At: now, Err: "no", Failed: 1, Retry: time.Hour}, 50 * time.Millisecond,
		},
		"one whose provider is back is repeated at once": {Call{At: now, Err: "no"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			want := now.Add(c.want)
			if c.want < 0 {
				want = time.Time{}
			}
			if got := c.call.due(now, time.Minute); !got.Equal(want) {
				t.Errorf("due = %v, want %v", got, want)
			}
		})
	}
}

func TestPromisesOfAMachinesPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyView(t)
		was := proto.Clone(v.Machine)
		p := Next(v)
		if !proto.Equal(was, v.Machine) {
			t.Fatal("the plan changed its view")
		}
		hooks := v.Machine.GetSpec().GetLifecycleHooks()
		wasDrained := object.IsTrue(v.Machine.GetStatus().GetConditions(), Drained)
		isDrained := object.IsTrue(p.Status.GetConditions(), Drained)
		for _, a := range p.Actions {
			deleting := object.Deleting(v.Machine)
			switch a {
			case CreateInstance:
				if deleting || v.Machine.Spec.ProviderId != "" {
					t.Fatal("an instance is made twice, or for a machine that goes")
				}
			case CreateDrain:
				if !deleting || len(hooks.GetPreDrain()) > 0 {
					t.Fatal("a drain slipped past a hook")
				}
			case DeleteInstance, RemoveFinalizer, DeleteNode:
				if !deleting || !isDrained || len(hooks.GetPreTerminate()) > 0 {
					t.Fatalf("%s before its time", a)
				}
			}
			if (a == DeleteNode || a == RemoveFinalizer) && !v.InstanceGone && MayHaveInstance(v.Machine) {
				t.Fatalf("%s while there may be an instance", a)
			}
		}
		if isDrained && !wasDrained && len(hooks.GetPreDrain()) > 0 {
			t.Fatal("it became drained past a hook")
		}
		again := v
		again.Machine = proto.Clone(v.Machine).(*machinev1.Machine)
		again.Machine.Status = p.Status
		if second := Next(again); !proto.Equal(second.Status, p.Status) {
			t.Fatalf("a second plan for the same view changes the status:\n%v\n%v", p.Status, second.Status)
		}
	})
}

// The instance of a new machine may have the address of one that is about to be gone; the new one cannot detect that.
func TestAnInstanceThatCannotBeTheMachinesIsLookedAtAgainSoon(t *testing.T) {
	v := MachineView{
		Now: noon(), Machine: newMachine(), InstanceErr: "the provider's address is that of machine ns/other",
		NodesSeen: true,
	}
	if p := Next(v); p.Wake.Sub(noon()) > 2*time.Second || p.Wake.IsZero() {
		t.Errorf("planned again after %v, want at most 2s", p.Wake.Sub(noon()))
	}
}

func TestAFailedMachineDoesNotShowTheLastStateOfItsInstance(t *testing.T) {
	state := func(of string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{
			"instanceId": structpb.NewStringValue("i-1"), "instanceState": structpb.NewStringValue(of),
		}}
	}
	m := newMachine(running, func(m *machinev1.Machine) {
		m.Status.ProviderStatus = state("Running")
		m.Metadata.Annotations = map[string]string{AnnotationInstanceState: "Running"}
	})
	p := Next(MachineView{Now: noon(), Machine: m, InstanceGone: true, NodesSeen: true, Node: readyNode()})
	want := map[string]string{AnnotationInstanceState: "Unknown"}
	if !proto.Equal(p.Status.GetProviderStatus(), state("Unknown")) || !cmp.Equal(p.Annotations, want) {
		t.Errorf("provider status %v, annotations %v; want the state Unknown", p.Status.GetProviderStatus(), p.Annotations)
	}
	if len(p.Events) != 1 || p.Events[0].Reason != "InstanceMissing" {
		t.Errorf("events %v, want InstanceMissing", p.Events)
	}
	m.Status, m.Metadata.Annotations = p.Status, p.Annotations
	back := instance()
	back.ProviderStatus = state("Running")
	p = Next(MachineView{Now: noon(), Machine: m, Instance: back, NodesSeen: true, Node: readyNode()})
	if !proto.Equal(p.Status.GetProviderStatus(), state("Unknown")) || p.Annotations != nil {
		t.Errorf("after the instance appeared again: provider status %v, annotations %v; want no change",
			p.Status.GetProviderStatus(), p.Annotations)
	}
}
