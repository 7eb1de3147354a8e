package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// lostKey is the queue's key for all nodes that are lost: many are often lost together, and one pass over all pods does
// for them.
const lostKey = "nodes"

// Lost says of the pods of nodes that are not ready that they are not ready either.
type Lost struct {
	tables *kinds.Tables
	nodes  Nodes
	events events.Sink
	loops  *controller.Loops

	memory plan.LostMemory // of this term as the leader; used by the loop only
}

// NewLost returns a controller that does nothing before Lead.
func NewLost(tables *kinds.Tables, nodes Nodes, events events.Sink, log *slog.Logger) *Lost {
	l := &Lost{tables: tables, nodes: nodes, events: events, loops: controller.New(log)}
	loop := l.loops.Loop("lostnodes", 1, l.reconcile)
	loop.Begin(func() []string { return []string{lostKey} })
	loop.Needs(tables.Pods, nodes)
	nodes.Subscribe(func(resource.Change[*nodev1.Node]) { loop.Add(lostKey) })
	return l
}

// Lead works until ctx ends.
func (l *Lost) Lead(ctx context.Context) error {
	l.memory = nil
	return l.loops.Lead(ctx)
}

func (l *Lost) reconcile(ctx context.Context, _ string) (time.Time, error) {
	p := plan.Lost(plan.LostView{
		Nodes: l.nodes.All(), Memory: l.memory,
		PodsOn: func(node string) []*schedulingv1.Pod { return l.tables.Pods.ByIndex(kinds.ByNode, node) },
	})
	failed, err := l.record(ctx, p.NotReady)
	l.memory = p.Done(failed)
	return time.Time{}, err
}

// errSettled ends a change of a pod that ended, moved or is not ready by now.
var errSettled = errors.New("the pod does not count as ready any more")

// record records that pods are not ready, and returns those of which that was not possible.
func (l *Lost) record(ctx context.Context, pods []*schedulingv1.Pod) (failed []*schedulingv1.Pod, err error) {
	if len(pods) == 0 {
		return nil, nil
	}
	keys, planned := make([]object.Key, len(pods)), make(map[object.Key]*schedulingv1.Pod, len(pods))
	for i, pod := range pods {
		keys[i] = object.KeyOf(pod)
		planned[keys[i]] = pod
	}
	var errs []error
	for i, w := range l.tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		was := planned[object.KeyOf(pod)]
		if !plan.CountsOn(pod, was.GetMetadata().GetUid(), was.GetSpec().GetNodeName()) {
			return errSettled
		}
		l.tables.SetPodCondition(pod, plan.NodeNotReady())
		return nil
	}) {
		switch {
		case w.Err == nil:
			l.events.Event(w.Object, "Warning", placement.NodeNotReady, plan.NodeNotReady().GetMessage())
		case !errors.Is(w.Err, errSettled) && rpcerr.IgnoreChanged(w.Err) != nil:
			failed, errs = append(failed, pods[i]), append(errs, fmt.Errorf("pod %s: %w", keys[i], w.Err))
		}
	}
	return failed, errors.Join(errs...)
}
