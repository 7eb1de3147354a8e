package server

import (
	"slices"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// nothing shows a drain alone: nothing else is known.
type nothing struct{ Views }

func (nothing) Drain(d *nodev1.Drain) plan.DrainView {
	return plan.DrainView{Now: time.Now(), Drain: d}
}

func TestADrainThatNamesNoNodeIsNotPlanned(t *testing.T) {
	s := NewEviction(newTables(t), nothing{}, nil)
	for _, r := range []*schedulingv1.PlanDrainRequest{
		{Drain: &nodev1.Drain{}},
		{Drain: &nodev1.Drain{Spec: &nodev1.DrainSpec{}}},
		{},
	} {
		_, err := s.PlanDrain(t.Context(), r)
		fields, _ := rpcerr.Fields(err)
		var paths []string
		for _, f := range fields {
			paths = append(paths, f.Path)
		}
		want := "drain.spec.nodeName"
		if r.GetDrain() == nil {
			want = "name"
		}
		if !slices.Equal(paths, []string{want}) {
			t.Errorf("PlanDrain(%v): %v, want field %s", r, err, want)
		}
	}
}

// TestAPlanOfADrainHasNoStepThatABudgetRefuses gives every object that the decision needs, so no live object is read.
func TestAPlanOfADrainHasNoStepThatABudgetRefuses(t *testing.T) {
	s := NewEviction(newTables(t), nothing{}, nil)
	app := map[string]string{"app": "web"}
	pod := func(name string, labels map[string]string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{
				Namespace: "default", Name: name, Labels: labels,
				OwnerReferences: []*metav1.OwnerReference{{Kind: "ReplicaSet", Controller: proto.Bool(true)}},
			},
			Status: &schedulingv1.PodStatus{Phase: proto.String("Running"), Conditions: []*schedulingv1.PodCondition{
				{Type: "Ready", Status: "True"},
			}},
		}
	}
	r, err := s.PlanDrain(t.Context(), &schedulingv1.PlanDrainRequest{
		Drain: &nodev1.Drain{Spec: &nodev1.DrainSpec{NodeName: "a"}, Status: &nodev1.DrainStatus{
			Phase: proto.String(plan.Draining),
		}},
		Node: &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "a"}, Spec: &nodev1.NodeSpec{Unschedulable: proto.Bool(true)}},
		Pods: &schedulingv1.PodList{Items: []*schedulingv1.Pod{pod("guarded", app), pod("free", nil)}},
		Budgets: &schedulingv1.PodDisruptionBudgetList{Items: []*schedulingv1.PodDisruptionBudget{{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:     &schedulingv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: app}},
			Status:   &schedulingv1.PodDisruptionBudgetStatus{DisruptionsAllowed: proto.Int32(0)},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := r.GetActions(); len(a) != 1 || a[0].GetObject().GetName() != "free" {
		t.Errorf("steps %v", a)
	}
	if h := r.GetHeldBack(); len(h) != 1 || h[0].GetObject().GetName() != "guarded" || h[0].GetReason() == "" {
		t.Errorf("held back %v", h)
	}
}

// paced knows how fast it goes, and panics if it is asked for live objects.
type paced struct{ Views }

func (paced) Paces() (grace, pause time.Duration) { return 40 * time.Second, 10 * time.Second }

// Requests with given objects read nothing live, and say what is missing for that.
func TestGivenObjectsAreNotMixedWithLiveOnes(t *testing.T) {
	evictions, nodes := NewEviction(newTables(t), paced{}, nil), NewNode(newTables(t), paced{}, nil)
	node := func(name string) *nodev1.Node { return &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name}} }
	two := &nodev1.NodeList{Items: []*nodev1.Node{node("a"), node("b")}}
	twice := &nodev1.NodeList{Items: []*nodev1.Node{node("a"), node("a"), node("")}}
	agents := []*nodev1.AgentState{{Node: "x"}}
	contrary := []*nodev1.AgentState{{Node: "a"}, {Node: "a", NotReady: "no"}}
	silent := &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_NodeSilent{NodeSilent: "x"}}
	plan := func(r *schedulingv1.PlanEvictionsRequest) error {
		_, err := evictions.PlanEvictions(t.Context(), r)
		return err
	}
	zones := func(r *nodev1.PlanZonesRequest) error {
		_, err := nodes.PlanZones(t.Context(), r)
		return err
	}
	taints := func(r *nodev1.PlanTaintsRequest) error {
		_, err := nodes.PlanTaints(t.Context(), r)
		return err
	}
	drain := func(r *schedulingv1.PlanDrainRequest) error {
		_, err := evictions.PlanDrain(t.Context(), r)
		return err
	}
	ofNode := func(r *nodev1.PlanNodeRequest) error {
		_, err := nodes.PlanNode(t.Context(), r)
		return err
	}
	spec := &nodev1.Drain{Spec: &nodev1.DrainSpec{NodeName: "a"}}
	named := &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: "d"}, Spec: spec.GetSpec()}
	none := &schedulingv1.PodDisruptionBudgetList{}
	pods := &schedulingv1.PodList{}
	for name, tc := range map[string]struct {
		err  error
		want []string
	}{
		"a node and pods": {plan(&schedulingv1.PlanEvictionsRequest{
			Node: node("a"), Pods: pods,
		}), nil},
		"nodes and pods": {plan(&schedulingv1.PlanEvictionsRequest{
			Nodes: two, Pods: pods,
		}), nil},
		"a node without pods": {plan(&schedulingv1.PlanEvictionsRequest{
			Node: node("a"),
		}), []string{"pods"}},
		"nodes without pods": {plan(&schedulingv1.PlanEvictionsRequest{
			Nodes: two,
		}), []string{"pods"}},
		"pods without nodes": {plan(&schedulingv1.PlanEvictionsRequest{
			Pods: pods,
		}), []string{"nodes"}},
		"a time without nodes": {plan(&schedulingv1.PlanEvictionsRequest{
			Now: timestamppb.Now(),
		}), []string{"nodes"}},
		"a node and nodes": {plan(&schedulingv1.PlanEvictionsRequest{
			Node: node("a"), Nodes: two, Pods: pods,
		}), []string{"node"}},
		"a live node beside": {plan(&schedulingv1.PlanEvictionsRequest{
			NodeName: "a", Nodes: two, Pods: pods,
		}), []string{"nodeName"}},
		"events of one node": {plan(&schedulingv1.PlanEvictionsRequest{
			Node: node("a"), Pods: pods, Events: []*schedulingv1.EvictionEvent{silent},
		}), []string{"nodes"}},
		"an event of no node": {plan(&schedulingv1.PlanEvictionsRequest{
			Nodes: two, Pods: pods, Events: []*schedulingv1.EvictionEvent{silent},
		}), []string{"events[0].nodeSilent"}},
		"names twice and none": {plan(&schedulingv1.PlanEvictionsRequest{
			Nodes: twice, Pods: pods,
		}), []string{"nodes.items[1].metadata.name", "nodes.items[2].metadata.name"}},
		"zones": {zones(&nodev1.PlanZonesRequest{Nodes: two}), nil},
		"zones without nodes": {zones(&nodev1.PlanZonesRequest{
			Disrupted: true,
		}), []string{"nodes"}},
		"an agent of no node": {zones(&nodev1.PlanZonesRequest{
			Nodes: two, Agents: agents,
		}), []string{"agents[0].node"}},
		"zones with two states of an agent": {zones(&nodev1.PlanZonesRequest{
			Nodes: two, Agents: contrary,
		}), []string{"agents[1].node"}},
		"too many nodes": {zones(&nodev1.PlanZonesRequest{
			Nodes: &nodev1.NodeList{Items: make([]*nodev1.Node, maxNodes+1)},
		}), []string{"nodes.items"}},
		"taints": {taints(&nodev1.PlanTaintsRequest{
			Node: node("a"), Agent: &nodev1.AgentState{},
		}), nil},
		"taints of nothing": {taints(&nodev1.PlanTaintsRequest{}), []string{"name"}},
		"an agent of a live node": {taints(&nodev1.PlanTaintsRequest{
			Name: "a", Agent: &nodev1.AgentState{},
		}), []string{"node"}},
		"an agent of another node": {taints(&nodev1.PlanTaintsRequest{
			Node: node("a"), Agent: agents[0],
		}), []string{"agent.node"}},
		"taints of a named node that is given": {taints(&nodev1.PlanTaintsRequest{
			Name: "a", Node: node("a"),
		}), nil},
		"taints of a named node and a given one": {taints(&nodev1.PlanTaintsRequest{
			Name: "b", Node: node("a"),
		}), []string{"name"}},
		"taints of a named node and one without a name": {taints(&nodev1.PlanTaintsRequest{
			Name: "b", Node: &nodev1.Node{},
		}), []string{"name"}},
		"a named node that is given": {ofNode(&nodev1.PlanNodeRequest{Name: "a", Node: node("a")}), nil},
		"a named node and a given one": {ofNode(&nodev1.PlanNodeRequest{
			Name: "b", Node: node("a"),
		}), []string{"name"}},
		"a named drain that is given": {drain(&schedulingv1.PlanDrainRequest{
			Name: "d", Drain: named, Node: node("a"), Pods: pods, Budgets: none,
		}), nil},
		"a named drain and a given one": {drain(&schedulingv1.PlanDrainRequest{
			Name: "e", Drain: named, Node: node("a"), Pods: pods, Budgets: none,
		}), []string{"name"}},
		"pods of a drain": {drain(&schedulingv1.PlanDrainRequest{
			Drain: spec, Pods: pods,
		}), []string{"budgets", "node"}},
		"a live drain with objects": {drain(&schedulingv1.PlanDrainRequest{
			Name: "d", Node: node("a"), Pods: pods,
		}), []string{"budgets", "drain"}},
	} {
		fields, _ := rpcerr.Fields(tc.err)
		var got []string
		for _, f := range fields {
			got = append(got, f.Path)
		}
		if name == "too many nodes" && len(got) > 0 {
			got = got[:1]
		}
		if !slices.Equal(got, tc.want) || tc.want == nil && tc.err != nil {
			t.Errorf("%s: %v, want faults %v", name, tc.err, tc.want)
		}
	}
}

// A time that JSON cannot say would make the answer an error over REST.
func TestAPlanThatGoesBeyondTheYear9999CanBeWritten(t *testing.T) {
	out, err := NewEviction(newTables(t), paced{}, nil).PlanEvictions(t.Context(), &schedulingv1.PlanEvictionsRequest{
		Nodes: &nodev1.NodeList{Items: []*nodev1.Node{{Metadata: &metav1.ObjectMeta{Name: "a"}}}},
		Pods:  &schedulingv1.PodList{}, Now: &timestamppb.Timestamp{Seconds: 253402300799}, Span: durationpb.New(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.Encode(out); err != nil {
		t.Error(err)
	}
}
