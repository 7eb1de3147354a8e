// Package controller binds pods to nodes, as package plan decides, and records why no node fits a pod.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/placement/view"
)

// Nodes is a copy of all nodes.
type Nodes interface {
	Lookup(namespace, name string) (*nodev1.Node, bool)
	All() []*nodev1.Node
	Subscribe(f func(resource.Change[*nodev1.Node]))
	WaitSynced(ctx context.Context) error
	HasNode(name string) bool
	// Exists asks the owner of nodes.
	Exists(ctx context.Context, name string) (bool, error)
}

// queueKey is the one key of the scheduler's loop: all pods are placed in one cluster, one decision after another.
const queueKey = "pods"

// Scheduler binds pods to nodes while this process leads.
type Scheduler struct {
	tables *kinds.Tables
	nodes  Nodes
	events events.Sink
	log    *slog.Logger
	loops  *controller.Loops
	news   news
	queue  *plan.Queue // nil until the first decision as the leader; used by the loop only
}

// NewScheduler returns a scheduler that does nothing before Lead.
func NewScheduler(tables *kinds.Tables, nodes Nodes, events events.Sink, log *slog.Logger) *Scheduler {
	s := &Scheduler{tables: tables, nodes: nodes, events: events, log: log, loops: controller.New(log)}
	l := s.loops.Loop("placement", 1, s.reconcile)
	l.Begin(func() []string { return []string{queueKey} })
	follow(s, l, podKind, tables.Pods)
	follow(s, l, nodeKind, nodes)
	follow(s, l, policyKind, tables.Policies)
	follow(s, l, serviceKind, tables.Services)
	follow(s, l, controllerKind, tables.ReplicationControllers)
	follow(s, l, replicaSetKind, tables.ReplicaSets)
	follow(s, l, statefulSetKind, tables.StatefulSets)
	return s
}

// source is a copy of all objects of a kind.
type source[T object.Object] interface {
	controller.Synced
	Subscribe(f func(resource.Change[T]))
}

// follow has a loop decide after each change of a kind. The loop begins once it knows the bindings of the leader
// before, or their nodes would be filled twice.
func follow[T object.Object](s *Scheduler, l *controller.Loop, kind string, from source[T]) {
	l.Needs(from)
	from.Subscribe(func(ch resource.Change[T]) {
		if s.news.add(change{kind, ch.Key}) {
			l.Add(queueKey)
		}
	})
}

// Lead places pods until ctx ends.
func (s *Scheduler) Lead(ctx context.Context) error {
	defer func() {
		s.news.close()
		s.queue = nil
	}()
	return s.loops.Lead(ctx)
}

// Kinds as a cluster's selectors are named by, and the other kinds that placing depends on.
const (
	podKind         = "Pod"
	nodeKind        = "Node"
	policyKind      = "Policy"
	serviceKind     = "Service"
	controllerKind  = "ReplicationController"
	replicaSetKind  = "ReplicaSet"
	statefulSetKind = "StatefulSet"
)

// change names an object that changed.
type change struct {
	kind string
	key  object.Key
}

// news collects what changed until the next decision. The zero news is closed: a process that does not lead collects
// nothing. It is safe for concurrent use.
type news struct {
	mu    sync.Mutex
	fresh map[change]struct{} // nil while it is closed
}

func (n *news) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fresh = nil
}

// add reports whether n is open.
func (n *news) add(c change) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fresh == nil {
		return false
	}
	n.fresh[c] = struct{}{}
	return true
}

// take returns what was added since the last call, and opens n.
func (n *news) take() map[change]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.fresh
	n.fresh = map[change]struct{}{}
	return out
}

// reconcile places pods until the plan is to wait.
func (s *Scheduler) reconcile(ctx context.Context, _ string) (time.Time, error) {
	for ctx.Err() == nil {
		s.observe()
		now := time.Now()
		p := s.queue.Next(now)
		s.carryOut(ctx, p)
		if p.Wake.IsZero() || p.Wake.After(now) {
			return p.Wake, nil
		}
	}
	return time.Time{}, nil
}

// observe brings the queue up to date: with all objects at first, then with those that changed.
func (s *Scheduler) observe() {
	changes := s.news.take() // before the objects are read, so that no change is missed
	if s.queue == nil {
		s.queue = plan.NewQueue(view.Cluster(s.tables, s.nodes.All(), nil), view.Profile(s.tables))
		for pod := range s.tables.Pods.Objects() {
			s.queue.AddPod(pod)
		}
		return
	}
	for c := range changes {
		switch c.kind {
		case podKind:
			s.observePod(c.key)
		case nodeKind:
			if n, ok := s.nodes.Lookup("", c.key.Name); ok {
				s.queue.AddNode(n)
			} else {
				s.queue.RemoveNode(c.key.Name)
			}
		case policyKind:
			s.queue.SetProfile(view.Profile(s.tables))
		case serviceKind:
			observeSelector(s, c, s.tables.Services.Lookup, s.queue.AddService)
		case controllerKind:
			observeSelector(s, c, s.tables.ReplicationControllers.Lookup, s.queue.AddReplicationController)
		case replicaSetKind:
			observeSelector(s, c, s.tables.ReplicaSets.Lookup, s.queue.AddReplicaSet)
		case statefulSetKind:
			observeSelector(s, c, s.tables.StatefulSets.Lookup, s.queue.AddStatefulSet)
		}
	}
}

func (s *Scheduler) observePod(k object.Key) {
	if pod, ok := s.tables.Pods.Lookup(k.Namespace, k.Name); ok {
		s.queue.AddPod(pod)
	} else {
		s.queue.RemovePod(k)
	}
}

func observeSelector[T object.Object](s *Scheduler, c change, lookup func(string, string) (T, bool), add func(T)) {
	if o, ok := lookup(c.key.Namespace, c.key.Name); ok {
		add(o)
		return
	}
	s.queue.RemoveSelector(c.kind, c.key.Namespace, c.key.Name)
}

// carryOut writes what a plan wants and gives the queue the outcomes: those of the bindings first, which the pods that
// no node fits may have waited for.
func (s *Scheduler) carryOut(ctx context.Context, p plan.Plan) {
	s.write(ctx, p, plan.BindPod, s.bind)
	s.write(ctx, p, plan.StorePending, s.storePending)
}

// write does all actions of one verb.
func (s *Scheduler) write(ctx context.Context, p plan.Plan, verb string,
	modify func(a plan.Action, pod *schedulingv1.Pod) error,
) {
	var keys []object.Key
	var outcomes []plan.Outcome
	wanted := map[object.Key]plan.Action{}
	for _, a := range p.Do {
		if a.Verb == verb {
			keys = append(keys, object.KeyOf(a.Pod))
			wanted[object.KeyOf(a.Pod)] = a
		}
	}
	if len(keys) == 0 {
		return
	}
	unwritten := 0
	var failed error
	// A pod that changed is placed again as the cache has it, which must not be what it was placed as before.
	caughtUp := sync.OnceValue(func() error { return s.tables.Pods.CatchUp(ctx) })
	for i, w := range s.tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		return modify(wanted[object.KeyOf(pod)], pod)
	}) {
		k := keys[i]
		o := plan.Outcome{Action: wanted[k], Result: resultOf(verb, w.Err)}
		if o.Result == plan.Changed && caughtUp() != nil {
			o.Result = plan.Unwritten
		}
		switch o.Result {
		case plan.Written:
			o.Now = w.Object
			s.record(o)
		case plan.Changed:
			o.Now, _ = s.tables.Pods.Lookup(k.Namespace, k.Name)
			s.log.DebugContext(ctx, "pod changed since it was placed", "pod", k.String(), "verb", verb, "error", w.Err)
		case plan.Invalid:
			s.log.WarnContext(ctx, "write refused", "pod", k.String(), "verb", verb, "error", w.Err)
		case plan.Unwritten:
			unwritten++
			failed = w.Err
		}
		outcomes = append(outcomes, o)
	}
	if unwritten > 0 && ctx.Err() == nil {
		s.log.WarnContext(ctx, "pods not written", "verb", verb, "count", unwritten, "error", failed)
	}
	s.queue.Done(time.Now(), outcomes)
}

// resultOf classifies the error of a write. A condition is to be stored whatever else of the pod changed.
func resultOf(verb string, err error) plan.Result {
	switch reason := rpcerr.Reason(err); {
	case err == nil:
		return plan.Written
	case errors.Is(err, errSettled), reason == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		return plan.Changed
	case verb == plan.BindPod && (reason == metav1.ErrorReason_ERROR_REASON_CONFLICT ||
		reason == metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION):
		return plan.Changed
	case reason == metav1.ErrorReason_ERROR_REASON_INVALID_FIELD:
		return plan.Invalid
	}
	return plan.Unwritten
}

// record stores the event of a write.
func (s *Scheduler) record(o plan.Outcome) {
	if o.Verb == plan.BindPod {
		s.events.Event(o.Now, "Normal", "Scheduled",
			"Successfully assigned "+object.KeyOf(o.Now).String()+" to "+o.Node)
		return
	}
	s.events.Event(o.Now, "Warning", "FailedScheduling", o.Message)
}

// bind binds a pod that is still as it was placed.
func (s *Scheduler) bind(a plan.Action, pod *schedulingv1.Pod) error {
	if was, is := a.Pod.GetMetadata().GetResourceVersion(), pod.GetMetadata().GetResourceVersion(); was != is {
		return rpcerr.Conflict("Pod", pod.GetMetadata().GetName(), "it changed since it was placed")
	}
	return s.tables.Bind(pod, a.Pod.GetMetadata().GetUid(), a.Node)
}

// storePending stores why no node fits a pod, whatever else of the pod changed.
func (s *Scheduler) storePending(a plan.Action, pod *schedulingv1.Pod) error {
	if !plan.NeedsNode(pod) || pod.GetMetadata().GetUid() != a.Pod.GetMetadata().GetUid() {
		return errSettled
	}
	reason, message := "Unschedulable", a.Message
	s.tables.SetPodCondition(pod, &schedulingv1.PodCondition{
		Type: plan.PodScheduled, Status: "False", Reason: &reason, Message: &message,
	})
	return nil
}

// errSettled ends a change of a pod that has a node or is gone by now.
var errSettled = errors.New("the pod needs no node any more")
