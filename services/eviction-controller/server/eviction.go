package server

import (
	"context"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Pods lists the pods of a node as they are now.
type Pods interface {
	On(ctx context.Context, node string) ([]*schedulingv1.Pod, error)
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
	nodes, err := s.tainted(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, known := s.views.Pods(""); r.GetPods() == nil && !known {
		return nil, rpcerr.Unavailable("the list of pods was not received from the scheduler yet: give pods, or try again")
	}
	out := &schedulingv1.PlanEvictionsResponse{}
	var all []plan.Eviction
	var first time.Time
	for _, n := range nodes {
		v := s.views.Evictions(n)
		if r.GetNode() != nil {
			v.Reachability, v.Settled = plan.Reachability{}, time.Time{} // a given node has no live agent
		}
		if r.GetPods() != nil {
			v.Pods, v.Tries = givenPods(n.GetMetadata().GetName(), r.GetPods()), nil
		}
		all = append(all, plan.Deadlines(v)...)
		if wakes := plan.Evictions(v).Wake; first.IsZero() || (!wakes.IsZero() && wakes.Before(first)) {
			first = wakes
		}
	}
	for _, e := range plan.InOrder(all) {
		out.Evictions = append(out.Evictions, &schedulingv1.PlanEvictionsResponse_Eviction{
			Namespace: e.Pod.GetMetadata().GetNamespace(), Name: e.Pod.GetMetadata().GetName(), Node: e.Node,
			Verdict: e.Verdict, Time: object.Timestamp(e.At), Reason: e.Reason,
		})
	}
	out.WakeTime = object.Timestamp(first)
	return out, nil
}

// tainted returns the nodes that a request asks about: the given one, the named one, or all that have a NoExecute
// taint.
func (s *Eviction) tainted(ctx context.Context, r *schedulingv1.PlanEvictionsRequest) ([]*nodev1.Node, error) {
	switch {
	case r.GetNode() != nil:
		return []*nodev1.Node{r.GetNode()}, nil
	case r.GetNodeName() != "":
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
		if a.Pods, err = s.pods.On(ctx, v.Drain.GetSpec().GetNodeName()); err != nil {
			a.Code, a.Why = plan.Away, status.Convert(err).Message()
		}
	}
	return []plan.Answered{{Question: questions[0], Answer: a}}
}

// drainView returns the controller's view of a drain, with what the request gives in place of the live objects.
func (s *Eviction) drainView(ctx context.Context, r *schedulingv1.PlanDrainRequest) (plan.DrainView, error) {
	d := r.GetDrain()
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
	if name == "" {
		return plan.DrainView{}, rpcerr.Invalid(object.Fault{Path: "drain.spec.nodeName", Description: "must be given"})
	}
	v := s.views.Drain(d)
	if r.GetNode() != nil {
		v.Node = r.GetNode()
	}
	if r.GetPods() != nil {
		v.Pods, v.Known, v.Tries = givenPods(name, r.GetPods()), true, nil
	}
	if r.GetBudgets() != nil {
		v.Budgets = r.GetBudgets().GetItems()
	}
	return v, nil
}
