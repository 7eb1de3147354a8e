package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Pods lists the pods of a node as they are now. An empty revision of the node means any.
type Pods interface {
	On(ctx context.Context, node, revision string) ([]*schedulingv1.Pod, error)
}

// Eviction serves EvictionService, which returns the plans of drains and of taint-based evictions.
type Eviction struct {
	schedulingv1.UnimplementedEvictionServiceServer
	tables *kinds.Tables
	views  Views
	pods   Pods
}

// NewEviction returns the EvictionService.
func NewEviction(tables *kinds.Tables, views Views, pods Pods) *Eviction {
	return &Eviction{tables: tables, views: views, pods: pods}
}

// PlanEvictions returns which pods are evicted because of NoExecute taints, and when.
func (s *Eviction) PlanEvictions(ctx context.Context, r *schedulingv1.PlanEvictionsRequest) (
	*schedulingv1.PlanEvictionsResponse, error,
) {
	if fields := mixedEvictions(r); len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	if r.GetNodes() != nil {
		return s.course(ctx, r)
	}
	if r.GetNode() != nil {
		v := plan.EvictionView{
			Now: timeOf(r.GetNow()), Node: r.GetNode(),
			Pods: givenPods(r.GetNode().GetMetadata().GetName(), r.GetPods()),
		}
		out := evictionsOf(plan.Deadlines(v), plan.Evictions(v).Wake)
		out.PlannedUntil = object.Timestamp(v.Now)
		return out, nil
	}
	nodes, err := s.tainted(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, known := s.views.Pods(""); !known {
		return nil, rpcerr.Unavailable("the list of pods was not received from the scheduler yet: give pods, or try again")
	}
	var all []plan.Eviction
	var first time.Time
	for _, n := range nodes {
		v := s.views.Evictions(n)
		all = append(all, plan.Deadlines(v)...)
		if wakes := plan.Evictions(v).Wake; first.IsZero() || (!wakes.IsZero() && wakes.Before(first)) {
			first = wakes
		}
	}
	out := evictionsOf(plan.InOrder(all), first)
	out.Nodes = s.unwell(r.GetNodeName())
	return out, nil
}

func evictionsOf(list []plan.Eviction, wake time.Time) *schedulingv1.PlanEvictionsResponse {
	out := &schedulingv1.PlanEvictionsResponse{WakeTime: object.Timestamp(wake)}
	for _, e := range list {
		out.Evictions = append(out.Evictions, &schedulingv1.PlanEvictionsResponse_Eviction{
			Namespace: e.Pod.GetMetadata().GetNamespace(), Name: e.Pod.GetMetadata().GetName(), Node: e.Node,
			Verdict: e.Verdict, Time: object.Timestamp(e.At), Reason: e.Reason,
		})
	}
	return out
}

// mixedEvictions returns what is missing in a request, or is not for live nodes.
func mixedEvictions(r *schedulingv1.PlanEvictionsRequest) (fields []object.Fault) {
	fault := func(path, text string) { fields = append(fields, object.Fault{Path: path, Description: text}) }
	given := r.GetNode() != nil || r.GetNodes() != nil
	over := len(r.GetEvents()) > 0 || r.GetSpan().AsDuration() > 0 || len(r.GetAgents())+len(r.GetMemory()) > 0 ||
		r.GetDisrupted() || r.GetBootId() != "" || r.GetUptime() != nil
	switch {
	case r.GetNode() != nil && r.GetNodes() != nil:
		fault("node", "give either node or nodes")
	case given && r.GetNodeName() != "":
		fault("nodeName", "names a live node, and nodes are given")
	case given && r.GetPods() == nil:
		fault("pods", "give the pods too, at least an empty list: live ones are not mixed with given objects")
	case r.GetNode() != nil && over:
		fault("nodes", "give nodes instead of node: only these have agents, zones and a clock, and events happen to them")
	case !given && (r.GetPods() != nil || over || r.GetNow() != nil):
		fields = append(fields, nodesToo)
	}
	return append(fields, atMost("pods.items", len(r.GetPods().GetItems()), maxPods)...)
}

// course plays what happens to the given nodes and pods over time.
func (s *Eviction) course(ctx context.Context, r *schedulingv1.PlanEvictionsRequest) (
	*schedulingv1.PlanEvictionsResponse, error,
) {
	given, err := givenCluster(r.GetNodes().GetItems(), r.GetAgents(), r.GetMemory(), r.GetDisrupted())
	if err != nil {
		return nil, err
	}
	given.Now, given.Pods = timeOf(r.GetNow()), r.GetPods().GetItems()
	given.Clock = plan.Clock{Boot: r.GetBootId(), Uptime: r.GetUptime().AsDuration()}
	given.Grace, given.Pause = s.views.Paces()
	c := plan.NewCourse(given, r.GetEvents(), r.GetSpan().AsDuration())
	for more := true; more; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var wrong *plan.Fault
		if more, wrong = c.Next(); wrong != nil {
			return nil, rpcerr.Invalid(object.Fault{
				Path: fmt.Sprintf("events[%d].%s", wrong.Place, wrong.Field), Description: wrong.Text,
			})
		}
	}
	out := evictionsOf(c.Evictions(), c.Wake())
	out.PlannedUntil = object.Timestamp(c.Until())
	nodes, waits := c.Unwell()
	for i, n := range nodes {
		out.Nodes = append(out.Nodes, &schedulingv1.PlanEvictionsResponse_Node{
			Name: n.GetMetadata().GetName(), Evictions: n.GetStatus().GetEvictions(), WaitsFor: waits[i],
		})
	}
	for _, step := range c.Steps {
		next := &schedulingv1.PlanEvictionsResponse_Step{
			Time: object.Timestamp(step.At), After: durationpb.New(step.After), Action: step.Action, Node: step.Node,
			Value: step.Value, Reason: step.Reason,
		}
		if step.Pod != nil {
			next.Pod = object.Reference(step.Pod)
		}
		out.Steps = append(out.Steps, next)
	}
	return out, nil
}

// unwell returns the nodes that are not ready or have a NoExecute taint, or one of them, with the state of their zones
// and their places in the queue.
func (s *Eviction) unwell(name string) []*schedulingv1.PlanEvictionsResponse_Node {
	var out []*schedulingv1.PlanEvictionsResponse_Node
	for _, n := range s.tables.Nodes.All() {
		if name != "" && n.GetMetadata().GetName() != name {
			continue
		}
		v := s.views.Node(n)
		p := plan.Node(v)
		if e := p.NodeAfter(n).GetStatus().GetEvictions(); e != nil {
			out = append(out, &schedulingv1.PlanEvictionsResponse_Node{
				Name: n.GetMetadata().GetName(), Evictions: e, WaitsFor: p.HeldReason(plan.TaintNode),
			})
		}
	}
	return out
}

// tainted returns the live nodes that a request asks about: the named one, or all that have a NoExecute taint.
func (s *Eviction) tainted(ctx context.Context, r *schedulingv1.PlanEvictionsRequest) ([]*nodev1.Node, error) {
	if r.GetNodeName() != "" {
		n, err := s.tables.Nodes.Get(ctx, "", r.GetNodeName())
		return []*nodev1.Node{n}, err
	}
	return slices.DeleteFunc(s.tables.Nodes.All(), func(n *nodev1.Node) bool { return !plan.NoExecutes(n) }), nil
}

// givenPods returns those of the given pods that are bound to the node, or to none.
func givenPods(node string, given *schedulingv1.PodList) []*schedulingv1.Pod {
	return slices.DeleteFunc(slices.Clone(given.GetItems()), func(p *schedulingv1.Pod) bool {
		on := p.GetSpec().GetNodeName()
		return on != "" && node != "" && on != node
	})
}

// PlanDrain returns what a drain would do now, with a verdict for each pod. It requests no permit and evicts no pod:
// the effect of budgets is predicted. Only the read-only question, for the list of remaining pods, is sent.
func (s *Eviction) PlanDrain(ctx context.Context, r *schedulingv1.PlanDrainRequest) (*schedulingv1.PlanDrainResponse,
	error,
) {
	v, err := s.drainView(ctx, r)
	if err != nil {
		return nil, err
	}
	p, pods := plan.Foresee(v)
	if p.Asks(plan.ListPods) {
		p, pods = plan.Foresee(v.With(s.list(ctx, v, r.GetPods() != nil, p.Ask)))
	}
	out := &schedulingv1.PlanDrainResponse{
		Actions: p.Steps(), HeldBack: p.Held, Status: p.StatusAfter(v.Drain), WakeTime: object.Timestamp(p.Wake),
	}
	if out.Status == nil {
		out.Status = &nodev1.DrainStatus{}
	}
	for _, pod := range pods {
		out.Pods = append(out.Pods, &schedulingv1.PlanDrainResponse_PodVerdict{
			Namespace: pod.Pod.GetMetadata().GetNamespace(), Name: pod.Pod.GetMetadata().GetName(), Verdict: pod.Verdict,
			Reason: pod.Reason,
		})
	}
	return out, nil
}

// list answers the question for the pods of a drain's node. Given pods are taken as the complete list.
func (s *Eviction) list(ctx context.Context, v plan.DrainView, given bool, questions []plan.Question) []plan.Answered {
	a := plan.Answer{Code: plan.Granted, At: time.Now().UTC(), Pods: v.Pods}
	if !given {
		var err error
		if a.Pods, err = s.pods.On(ctx, v.Drain.GetSpec().GetNodeName(), ""); err != nil {
			a.Code, a.Why = plan.Away, status.Convert(err).Message()
		}
	}
	return []plan.Answered{{Question: questions[0], Answer: a}}
}

// drainView returns the controller's view of a live or given drain of a live node, or the view of given objects alone.
func (s *Eviction) drainView(ctx context.Context, r *schedulingv1.PlanDrainRequest) (plan.DrainView, error) {
	given := r.GetNode() != nil || r.GetPods() != nil || r.GetBudgets() != nil
	if fields := mixedDrain(r); given && len(fields) > 0 {
		return plan.DrainView{}, rpcerr.Invalid(fields...)
	}
	d := r.GetDrain()
	if d != nil && misnamed(r.GetName(), d) != nil {
		return plan.DrainView{}, rpcerr.Invalid(misnamed(r.GetName(), d)...)
	}
	if d == nil {
		if r.GetName() == "" {
			return plan.DrainView{}, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a drain"})
		}
		var err error
		if d, err = s.tables.Drains.Get(ctx, "", r.GetName()); err != nil {
			return plan.DrainView{}, err
		}
	}
	name := d.GetSpec().GetNodeName()
	switch {
	case name == "":
		return plan.DrainView{}, rpcerr.Invalid(object.Fault{Path: "drain.spec.nodeName", Description: "must be given"})
	case !given:
		return s.views.Drain(d), nil
	}
	return plan.DrainView{
		Now: time.Now().UTC(), Drain: d, Node: r.GetNode(), Pods: givenPods(name, r.GetPods()), Known: true,
		Budgets: r.GetBudgets().GetItems(),
	}, nil
}

// mixedDrain returns what is missing in a request that gives objects.
func mixedDrain(r *schedulingv1.PlanDrainRequest) []object.Fault {
	fields := atMost("pods.items", len(r.GetPods().GetItems()), maxPods)
	for _, f := range []struct {
		path  string
		given bool
	}{
		{"budgets", r.GetBudgets() != nil},
		{"drain", r.GetDrain() != nil},
		{"node", r.GetNode() != nil},
		{"pods", r.GetPods() != nil},
	} {
		if !f.given {
			fields = append(fields, object.Fault{
				Path: f.path, Description: "must be given too: live objects are not mixed with given ones",
			})
		}
	}
	return fields
}
