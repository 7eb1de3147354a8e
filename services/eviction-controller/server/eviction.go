package server

import (
	"context"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Pods knows the pods of nodes.
type Pods interface {
	Known() bool
	On(node string) []*schedulingv1.Pod
}

// Budgets knows the disruption budgets.
type Budgets interface {
	All() []*schedulingv1.PodDisruptionBudget
}

// Eviction serves EvictionService: what a drain and what taints would do.
type Eviction struct {
	schedulingv1.UnimplementedEvictionServiceServer
	tables  *kinds.Tables
	heard   Listener
	pods    Pods
	budgets Budgets
}

// NewEviction returns the EvictionService.
func NewEviction(tables *kinds.Tables, heard Listener, pods Pods, budgets Budgets) *Eviction {
	return &Eviction{tables: tables, heard: heard, pods: pods, budgets: budgets}
}

// PlanEvictions says which pods leave because of NoExecute taints, and when.
func (s *Eviction) PlanEvictions(ctx context.Context, r *schedulingv1.PlanEvictionsRequest) (*schedulingv1.PlanEvictionsResponse, error) {
	nodes, err := s.tainted(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.GetPods() == nil && !s.pods.Known() {
		return nil, rpcerr.Unavailable("the scheduler has not said yet which pods there are: give pods, or try again")
	}
	out := &schedulingv1.PlanEvictionsResponse{}
	var all []plan.Eviction
	var first time.Time
	for _, n := range nodes {
		v := plan.EvictionView{Now: time.Now().UTC(), Node: n, Pods: s.podsOn(n.GetMetadata().GetName(), r.GetPods())}
		if r.GetNode() == nil { // of a node that is given nobody was heard
			v.Doubt = s.doubt(v.Now, n.GetMetadata().GetName())
		}
		evictions, wakes := plan.Evictions(v)
		all = append(all, evictions...)
		if first.IsZero() || (!wakes.IsZero() && wakes.Before(first)) {
			first = wakes
		}
	}
	for _, e := range plan.InOrder(all) {
		out.Evictions = append(out.Evictions, &schedulingv1.PlanEvictionsResponse_Eviction{
			Namespace: e.Pod.GetMetadata().GetNamespace(), Name: e.Pod.GetMetadata().GetName(), Node: e.Node,
			Verdict: e.Verdict, Time: wake(e.At), Reason: e.Reason,
		})
	}
	out.WakeTime = wake(first)
	return out, nil
}

// doubt is what keeps the controller from evicting pods of a node.
func (s *Eviction) doubt(now time.Time, node string) time.Time {
	grace := s.heard.Grace()
	return plan.Doubt(now, s.heard.Agent(node), grace, func() bool {
		return plan.Disrupted(s.heard.Witnesses(s.tables.Nodes.All()), grace)
	})
}

// tainted returns the nodes that a request asks about: the given one, the named one, or all that have a NoExecute taint.
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

// podsOn returns the pods of a node: of the given ones those that are bound to it or to none, or the live ones.
func (s *Eviction) podsOn(node string, given *schedulingv1.PodList) []*schedulingv1.Pod {
	if given == nil {
		return s.pods.On(node)
	}
	return slices.DeleteFunc(slices.Clone(given.GetItems()), func(p *schedulingv1.Pod) bool {
		on := p.GetSpec().GetNodeName()
		return on != "" && node != "" && on != node
	})
}

// PlanDrain says what a drain would do now, and what it makes of each pod. The permit is not asked for.
func (s *Eviction) PlanDrain(ctx context.Context, r *schedulingv1.PlanDrainRequest) (*schedulingv1.PlanDrainResponse, error) {
	v, err := s.drainView(ctx, r)
	if err != nil {
		return nil, err
	}
	p := plan.Drain(v).Foresee(v)
	out := &schedulingv1.PlanDrainResponse{Actions: p.Actions, HeldBack: p.HeldBack, Status: p.Status, WakeTime: wake(p.Wake)}
	for _, pod := range p.Pods {
		out.Pods = append(out.Pods, &schedulingv1.PlanDrainResponse_PodVerdict{
			Namespace: pod.Pod.GetMetadata().GetNamespace(), Name: pod.Pod.GetMetadata().GetName(), Verdict: pod.Verdict, Reason: pod.Reason,
		})
	}
	return out, nil
}

func (s *Eviction) drainView(ctx context.Context, r *schedulingv1.PlanDrainRequest) (plan.DrainView, error) {
	v := plan.DrainView{
		Now: time.Now().UTC(), Drain: r.GetDrain(), Node: r.GetNode(), Budgets: r.GetBudgets().GetItems(), Fresh: true,
		Known: r.GetPods() != nil || s.pods.Known(),
	}
	var err error
	if v.Drain == nil {
		if r.GetName() == "" {
			return v, rpcerr.Invalid(rpcerr.Field{Path: "name", Description: "give a name or a drain"})
		}
		if v.Drain, err = s.tables.Drains.Get(ctx, "", r.GetName()); err != nil {
			return v, err
		}
	}
	name := v.Drain.GetSpec().GetNodeName()
	if name == "" {
		return v, rpcerr.Invalid(rpcerr.Field{Path: "drain.spec.nodeName", Description: "must be given"})
	}
	if v.Node == nil {
		v.Node, err = s.tables.Nodes.Get(ctx, "", name)
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return v, err
		}
		if !plan.Drains(v.Drain, v.Node) {
			v.Node = nil
		}
	}
	v.Others = s.tables.OtherDrains(v.Drain)
	v.Pods = s.podsOn(name, r.GetPods())
	if r.GetBudgets() == nil {
		v.Budgets = s.budgets.All()
	}
	return v, nil
}
