package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
)

// agentsAtOnce is how many agents are asked concurrently by one call.
const agentsAtOnce = 64

// ListPodMetrics returns what pods use.
func (s *Pods) ListPodMetrics(ctx context.Context, r *schedulingv1.ListPodMetricsRequest) (
	*schedulingv1.ListPodMetricsResponse, error,
) {
	sel, err := resource.ParseSelection(r.GetLabelSelector(), "")
	if err != nil {
		return nil, err
	}
	if r.GetName() != "" {
		key := keyOf(r.GetNamespace(), r.GetName())
		if _, err := s.Tables.Pods.Get(ctx, key.Namespace, key.Name); err != nil {
			return nil, err
		}
	}
	wanted, nodes := map[string]*schedulingv1.Pod{}, map[string]bool{}
	for _, p := range s.Tables.Pods.All() {
		m := p.GetMetadata()
		if r.GetNamespace() != "" && m.GetNamespace() != r.GetNamespace() ||
			r.GetName() != "" && m.GetName() != r.GetName() || p.GetSpec().GetNodeName() == "" || !sel.Matches(p) {
			continue
		}
		wanted[m.GetUid()], nodes[p.GetSpec().GetNodeName()] = p, true
	}
	metrics, missing, err := s.nodeMetrics(ctx, nodes)
	if err != nil {
		return nil, err
	}
	out := &schedulingv1.ListPodMetricsResponse{Missing: missing}
	for _, node := range metrics {
		delete(nodes, node.GetName())
		for _, p := range node.GetPods() {
			if wanted[p.GetUid()] != nil {
				out.Items = append(out.Items, p)
				delete(wanted, p.GetUid())
			}
		}
	}
	for _, p := range wanted { // nodes has those that did not answer
		if p.GetStatus().GetPhase() == "Running" && !nodes[p.GetSpec().GetNodeName()] {
			out.Unmeasured++
		}
	}
	slices.SortFunc(out.GetItems(), func(a, b *schedulingv1.PodMetrics) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return out, nil
}

// ListNodeMetrics returns what the pods of nodes use.
func (s *Pods) ListNodeMetrics(ctx context.Context, r *schedulingv1.ListNodeMetricsRequest) (
	*schedulingv1.ListNodeMetricsResponse, error,
) {
	nodes := map[string]bool{}
	for _, n := range s.Nodes.All() {
		if name := n.GetMetadata().GetName(); r.GetName() == "" || r.GetName() == name {
			nodes[name] = true
		}
	}
	if r.GetName() != "" && len(nodes) == 0 {
		return nil, rpcerr.NotFound("nodes", r.GetName())
	}
	metrics, missing, err := s.nodeMetrics(ctx, nodes)
	if err != nil {
		return nil, err
	}
	return &schedulingv1.ListNodeMetricsResponse{Items: metrics, Missing: missing}, nil
}

// nodeMetrics asks the agents of nodes, and returns their answers by the name of the node. It fails if none answers.
func (s *Pods) nodeMetrics(ctx context.Context, nodes map[string]bool) (
	[]*schedulingv1.NodeMetrics, []*schedulingv1.MissingMetrics, error,
) {
	var mu sync.Mutex
	var found []*schedulingv1.NodeMetrics
	var missing []*schedulingv1.MissingMetrics
	var group errgroup.Group
	group.SetLimit(agentsAtOnce)
	for name := range nodes {
		group.Go(func() error {
			m, err := s.metricsOf(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, &schedulingv1.MissingMetrics{NodeName: name, Reason: err.Error()})
				return nil
			}
			found = append(found, m)
			return nil
		})
	}
	_ = group.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(found, func(a, b *schedulingv1.NodeMetrics) int { return strings.Compare(a.GetName(), b.GetName()) })
	slices.SortFunc(missing, func(a, b *schedulingv1.MissingMetrics) int {
		return strings.Compare(a.GetNodeName(), b.GetNodeName())
	})
	if len(found) == 0 && len(missing) > 0 {
		return nil, nil, rpcerr.Unavailable("metrics are not available: node " + missing[0].GetNodeName() + ": " +
			missing[0].GetReason())
	}
	return found, missing, nil
}

// metricsOf asks the agent of a node. What it says of pods that are not on its node is dropped.
func (s *Pods) metricsOf(ctx context.Context, node string) (*schedulingv1.NodeMetrics, error) {
	w, err := s.Relay.Ask(ctx, node, &schedulingv1.AttendResponse{Metrics: true})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for {
		m, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, relay.ErrBrokeOff
		case err != nil:
			return nil, err
		case m.GetError() != "":
			return nil, errors.New(m.GetError())
		case m.GetMetrics() == nil:
			continue
		}
		return s.own(node, m.GetMetrics()), nil
	}
}

// own keeps of what an agent says that which it may say.
func (s *Pods) own(node string, m *schedulingv1.NodeMetrics) *schedulingv1.NodeMetrics {
	m.Name = node
	seen := map[string]bool{}
	m.Pods = slices.DeleteFunc(m.GetPods(), func(p *schedulingv1.PodMetrics) bool {
		pod, ok := s.Tables.Pods.Lookup(p.GetNamespace(), p.GetName())
		again := seen[p.GetUid()]
		seen[p.GetUid()] = true
		return again || !ok || pod.GetMetadata().GetUid() != p.GetUid() || pod.GetSpec().GetNodeName() != node
	})
	for _, p := range m.GetPods() {
		p.NodeName = node
	}
	return m
}
