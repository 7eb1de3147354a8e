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
	"github.com/windlass-dev/windlass/services/scheduler/plan"
)

// lostKey is the queue's key for all nodes that are lost: many are often lost together, and one pass over all pods does
// for them.
const lostKey = "nodes"

// Lost says of the pods of nodes that are not ready that they are not ready either.
type Lost struct {
	tables *kinds.Tables
	nodes  Nodes
	events events.Sink
	log    *slog.Logger
	loop   *controller.Loop

	// reported is, by the name of a lost node, since when it is lost, once its pods were recorded as not ready. Only
	// the loop uses it. A pod that says of itself that it is ready after that has an agent that is connected here, and
	// is left alone.
	reported map[string]time.Time
}

// NewLost returns a controller that does nothing before Lead.
func NewLost(tables *kinds.Tables, nodes Nodes, events events.Sink, log *slog.Logger) *Lost {
	l := &Lost{tables: tables, nodes: nodes, events: events, log: log}
	l.loop = controller.NewLoop("lostnodes", 1, l.reconcile, log)
	l.loop.Begin(func() []string { return []string{lostKey} })
	nodes.Subscribe(func(resource.Change[*nodev1.Node]) { l.loop.Add(lostKey) })
	return l
}

// Lead works until ctx ends.
func (l *Lost) Lead(ctx context.Context) error {
	if errors.Join(l.tables.Pods.WaitSynced(ctx), l.nodes.WaitSynced(ctx)) != nil {
		return nil // ctx ended
	}
	l.reported = map[string]time.Time{}
	return l.loop.Run(ctx)
}

func (l *Lost) reconcile(ctx context.Context, _ string) (time.Time, error) {
	now, news := map[string]time.Time{}, map[string]bool{}
	for _, n := range l.nodes.All() {
		if !plan.Lost(n) {
			continue
		}
		name, since := n.GetMetadata().GetName(), placement.NodeCondition(n, "Ready").GetLastTransitionTime().AsTime()
		now[name] = since
		if at, known := l.reported[name]; !known || !at.Equal(since) {
			news[name] = true
		}
	}
	if len(news) > 0 {
		var pods []*schedulingv1.Pod
		for node := range news {
			pods = append(pods, l.tables.Pods.ByIndex(kinds.ByNode, node)...)
		}
		if err := l.record(ctx, plan.Stranded(pods, news)); err != nil {
			return time.Time{}, err
		}
	}
	l.reported = now
	return time.Time{}, nil
}

// record records that pods are not ready.
func (l *Lost) record(ctx context.Context, pods []*schedulingv1.Pod) error {
	keys, nodes := make([]object.Key, len(pods)), make(map[object.Key]string, len(pods))
	for i, pod := range pods {
		keys[i] = object.KeyOf(pod)
		nodes[keys[i]] = pod.GetSpec().GetNodeName()
	}
	var failed []error
	for i, w := range l.tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		if pod.GetSpec().GetNodeName() == nodes[object.KeyOf(pod)] { // else it is another one of its name
			l.tables.SetPodCondition(pod, plan.NodeNotReady())
		}
		return nil
	}) {
		switch err := rpcerr.IgnoreChanged(w.Err); {
		case err != nil:
			failed = append(failed, fmt.Errorf("pod %s: %w", keys[i], err))
		case w.Err == nil:
			l.events.Event(w.Object, "Warning", placement.NodeNotReady, plan.NodeNotReady().GetMessage())
		}
	}
	return errors.Join(failed...)
}
