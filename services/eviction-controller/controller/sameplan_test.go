package controller

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
	"github.com/windlass-dev/windlass/services/eviction-controller/server"
)

// siblings are a guardian and a scheduler that note what they are asked. Permits and pods of the app web are refused.
type siblings struct {
	mu    sync.Mutex
	asked []string
}

func (s *siblings) note(verb, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, verb+" "+name)
	slices.Sort(s.asked)
}

// took returns what was asked since the last call.
func (s *siblings) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked
	s.asked = nil
	return out
}

func (s *siblings) Acquire(_ context.Context, m *metav1.ObjectReference, _ string) (bool, error) {
	s.note(plan.AcquirePermit, m.GetName())
	return false, status.Error(codes.FailedPrecondition, "member b does not answer")
}

func (s *siblings) Release(context.Context, *metav1.ObjectReference) error { return nil }

func (s *siblings) Delete(_ context.Context, pod *schedulingv1.Pod) error {
	s.note(plan.DeletePod, pod.GetMetadata().GetName())
	return nil
}

func (s *siblings) Evict(_ context.Context, pod *schedulingv1.Pod, _ *int32, _ bool) error {
	s.note(plan.EvictPod, pod.GetMetadata().GetName())
	if pod.GetMetadata().GetLabels()["app"] == "web" {
		return status.Error(codes.ResourceExhausted, "its budget allows no disruption")
	}
	return nil
}

func (s *siblings) On(context.Context, string, string) ([]*schedulingv1.Pod, error) { return nil, nil }

// TestThePlanIsWhatIsDone asks for plans, has the controller decide about the same state, and asks again: each plan
// names the steps that the controller takes, and then what it waits for and until when.
func TestThePlanIsWhatIsDone(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, nil, log)
	for _, run := range []func(context.Context) error{tables.Nodes.Run, tables.Drains.Run} {
		go func() { _ = run(t.Context()) }()
	}
	for _, wait := range []func(context.Context) error{tables.Nodes.WaitSynced, tables.Drains.WaitSynced} {
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := NewPods(nil, log)
	if err != nil {
		t.Fatal(err)
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](nil, log)
	if err != nil {
		t.Fatal(err)
	}
	tracker := liveness.New(liveness.NewAwake(), time.Minute)
	views, others := NewViews(tables, tracker, pods, budgets, time.Hour), &siblings{}
	c := New(Config{
		Tables: tables, Tracker: tracker, Views: views, Permits: others, Pods: pods, Budgets: budgets, Evictor: others,
		Events: noEvents{}, Retry: time.Hour, Log: log,
	})
	nodes, evictions := server.NewNode(tables, views, others), server.NewEviction(tables, views, others)
	ctx := t.Context()
	create := func(node *nodev1.Node, drains ...*nodev1.Drain) {
		t.Helper()
		if _, err := tables.Nodes.Create(ctx, node); err != nil {
			t.Fatal(err)
		}
		for _, d := range drains {
			made, err := tables.Drains.Create(ctx, d)
			if err == nil && d.Status != nil {
				made.Status = d.Status
				_, err = tables.Drains.UpdateStatus(ctx, made)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	named := func(name string) *metav1.ObjectMeta { return &metav1.ObjectMeta{Name: name} }
	on := func(name, node, app string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{
				Namespace: "default", Name: name, Uid: name, Labels: map[string]string{"app": app},
				OwnerReferences: []*metav1.OwnerReference{{Kind: "ReplicaSet", Uid: "r", Controller: proto.Bool(true)}},
			},
			Spec: &schedulingv1.PodSpec{NodeName: node}, Status: &schedulingv1.PodStatus{Phase: proto.String(placement.Running)},
		}
	}
	draining := &nodev1.DrainStatus{Phase: proto.String(plan.Draining)}
	create(&nodev1.Node{
		Metadata: named("drained"), Spec: &nodev1.NodeSpec{Unschedulable: proto.Bool(true)},
	}, &nodev1.Drain{Metadata: named("drained"), Spec: &nodev1.DrainSpec{NodeName: "drained"}, Status: draining})
	create(&nodev1.Node{Metadata: &metav1.ObjectMeta{
		Name: "master", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
	}}, &nodev1.Drain{Metadata: named("master"), Spec: &nodev1.DrainSpec{NodeName: "master"}})
	create(&nodev1.Node{Metadata: named("tainted"), Spec: &nodev1.NodeSpec{Taints: []*nodev1.Taint{
		{Key: "k", Effect: placement.NoExecute, TimeAdded: timestamppb.New(time.Now().Add(-time.Minute))},
	}}})
	for _, name := range []string{"lost-1", "lost-2"} {
		create(&nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{placement.ZoneLabel: "z"}}})
	}
	pods.Replace([]*schedulingv1.Pod{
		on("web", "drained", "web"), on("free", "drained", "free"), on("other", "tainted", ""),
	}, 1)
	budgets.Replace(nil, 1)

	planDrain := func(name string) *schedulingv1.PlanDrainResponse {
		t.Helper()
		r, err := evictions.PlanDrain(t.Context(), &schedulingv1.PlanDrainRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	steps := func(r *schedulingv1.PlanDrainResponse) []string {
		var out []string
		for _, a := range r.GetActions() {
			out = append(out, a.GetAction()+" "+a.GetObject().GetName())
		}
		slices.Sort(out)
		return out
	}
	for _, name := range []string{"drained", "master"} {
		before := planDrain(name)
		wake, err := c.reconcilePods(t.Context(), name)
		if did := others.took(); err != nil || len(did) == 0 || !slices.Equal(steps(before), did) {
			t.Errorf("%s: the plan is %v, done is %v, %v", name, steps(before), did, err)
		}
		after := planDrain(name)
		for time.Now().After(wake) && err == nil { // a plan from before the time to decide again is compared
			wake, err = c.reconcilePods(t.Context(), name)
			after = planDrain(name)
		}
		others.took()
		stored, _ := tables.Drains.Lookup("", name)
		if diff := cmp.Diff(stored.GetStatus(), after.GetStatus(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: status (-stored +planned):\n%s", name, diff)
		}
		if len(after.GetActions()) > 0 || len(after.GetHeldBack()) != 1 || !after.GetWakeTime().AsTime().Equal(wake) {
			t.Errorf("%s: the controller waits until %v, the plan is %v", name, wake, after)
		}
		if since := after.GetHeldBack()[0].GetSinceTime(); since == nil || since.AsTime().After(time.Now()) {
			t.Errorf("%s: held back since %v", name, since)
		}
	}

	planEvictions := func() *schedulingv1.PlanEvictionsResponse {
		t.Helper()
		r, err := evictions.PlanEvictions(t.Context(), &schedulingv1.PlanEvictionsRequest{NodeName: "tainted"})
		if err != nil || len(r.GetEvictions()) != 1 {
			t.Fatal(r, err)
		}
		return r
	}
	if got := planEvictions().GetEvictions()[0].GetVerdict(); got != plan.Evict {
		t.Errorf("before: %s", got)
	}
	wake, err := c.reconcilePods(t.Context(), "tainted")
	if did := others.took(); err != nil || !slices.Equal(did, []string{"DeletePod other"}) {
		t.Errorf("done is %v, %v", did, err)
	}
	if r := planEvictions(); r.GetEvictions()[0].GetVerdict() != plan.Wait || !r.GetWakeTime().AsTime().Equal(wake) {
		t.Errorf("the controller waits until %v, the plan is %v", wake, r)
	}

	// The pods of the second lost node of a zone leave only after those of the first.
	defer tracker.Lead(func(string) {})()
	tracker.Beat(&nodev1.HeartbeatRequest{Name: "tainted"})
	planned := planCourse(t, tables, evictions)
	for _, name := range []string{"lost-1", "lost-2"} {
		tracker.Beat(&nodev1.HeartbeatRequest{Name: name, NotReady: "its disk is full"})
		ask := func() *nodev1.PlanNodeResponse {
			t.Helper()
			r, err := nodes.PlanNode(t.Context(), &nodev1.PlanNodeRequest{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		before := ask()
		wake, err := c.reconcileNode(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		after := ask()
		stored, _ := tables.Nodes.Lookup("", name)
		if got, want := planned[name], slices.Sorted(slices.Values(texts(stored.GetSpec().GetTaints()))); !slices.Equal(got,
			want) {
			t.Errorf("%s: planned over time are taints %v, set are %v", name, got, want)
		}
		for _, r := range []*nodev1.PlanNodeResponse{before, after} {
			got, want := texts(r.GetTaints()), texts(stored.GetSpec().GetTaints())
			if !slices.Equal(got, want) || len(want) != map[string]int{"lost-1": 2, "lost-2": 1}[name] {
				t.Errorf("%s: planned are taints %v, set are %v", name, got, want)
			}
		}
		taints, err := nodes.PlanTaints(t.Context(), &nodev1.PlanTaintsRequest{Name: name})
		if err != nil || !slices.Equal(texts(taints.GetTaints()), texts(stored.GetSpec().GetTaints())) ||
			slices.ContainsFunc(taints.GetChanges(), func(c *nodev1.PlanTaintsResponse_Change) bool {
				return c.GetChange() == plan.AddTaint || c.GetChange() == plan.RemoveTaint
			}) {
			t.Errorf("%s: planned taints are %v, %v; set are %v", name, taints, err, stored.GetSpec().GetTaints())
		}
		zones, err := nodes.PlanZones(t.Context(), &nodev1.PlanZonesRequest{})
		if err != nil || len(zones.GetZones()) != 2 {
			t.Fatal(zones, err)
		}
		z, state := zones.GetZones()[1], stored.GetStatus().GetEvictions().GetZoneState()
		// The controller may have decided on the agents of a moment ago, before this one reported.
		if z.GetZone() != "z" || name == "lost-2" && (z.GetState() != plan.FullDisruption || z.GetPreviousState() != state ||
			z.GetNextNode() != name || !z.GetNextTime().AsTime().Equal(wake)) {
			t.Errorf("%s: it is in state %s and decided again at %v, the plan of zones is %v", name, state, wake, z)
		}
		if name == "lost-2" && (wake.IsZero() || !after.GetWakeTime().AsTime().Equal(wake)) {
			t.Errorf("%s: the controller waits until %v, the plan is %v", name, wake, after)
		}
	}
}

// planCourse returns the taints that the nodes of zone z get if their agents report that they are not ready, as the
// plan of the same nodes says that gets them as given objects.
func planCourse(t *testing.T, tables *kinds.Tables, evictions *server.Eviction) map[string][]string {
	t.Helper()
	r := &schedulingv1.PlanEvictionsRequest{
		Nodes: &nodev1.NodeList{Items: tables.Nodes.All()}, Pods: &schedulingv1.PodList{},
	}
	for i, name := range []string{"lost-1", "lost-2"} {
		r.Events = append(r.Events, &schedulingv1.EvictionEvent{
			After: durationpb.New(time.Duration(i) * time.Second), What: &schedulingv1.EvictionEvent_NodeReports{
				NodeReports: &nodev1.AgentState{Node: name, NotReady: "its disk is full"},
			},
		})
	}
	got, err := evictions.PlanEvictions(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, step := range got.GetSteps() {
		if step.GetAction() == plan.StepAddTaint {
			out[step.GetNode()] = append(out[step.GetNode()], step.GetValue())
			slices.Sort(out[step.GetNode()])
		}
	}
	return out
}

func texts(taints []*nodev1.Taint) []string {
	var out []string
	for _, t := range taints {
		out = append(out, plan.TaintText(t))
	}
	return out
}
