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
	"github.com/windlass-dev/windlass/kit/store"

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
	loop   *controller.Loop
	news   news
	settle settle
	asked  asks
	offers offers
	asking inquirer
	// extenders answers the questions of plans.
	extenders Extenders
	// patience is how long a creation waits for a decision to begin.
	patience time.Duration

	mu    sync.Mutex  // of queue and seen; the loop holds it whenever it uses the cluster, but never during I/O
	queue *plan.Queue // nil until the first decision as the leader
	seen  int64       // the revision up to which queue has all changes of pods

	explaining chan struct{} // holds one value while an explanation is made

	// Used by the loop only.
	doubtful  []inDoubt
	resolveAt time.Time // when to ask for doubtful again
}

// NewScheduler returns a scheduler that does nothing before Lead.
func NewScheduler(tables *kinds.Tables, nodes Nodes, events events.Sink, extenders Extenders,
	log *slog.Logger,
) *Scheduler {
	s := &Scheduler{
		tables: tables, nodes: nodes, events: events, extenders: extenders, log: log, loops: controller.New(log),
		patience: offerPatience, explaining: make(chan struct{}, 1),
	}
	l := s.loops.Loop("placement", 1, s.reconcile)
	s.loop = l
	l.Begin(func() []string { return []string{queueKey} })
	follow(s, l, podKind, tables.Pods)
	follow(s, l, nodeKind, nodes)
	follow(s, l, policyKind, tables.Policies)
	follow(s, l, serviceKind, tables.Services)
	follow(s, l, controllerKind, tables.ReplicationControllers)
	follow(s, l, replicaSetKind, tables.ReplicaSets)
	follow(s, l, statefulSetKind, tables.StatefulSets)
	follow(s, l, budgetKind, tables.Budgets)
	follow(s, l, volumeKind, tables.Volumes)
	follow(s, l, claimKind, tables.Claims)
	follow(s, l, classKind, tables.StorageClasses)
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
		s.asked.close()
		s.offers.end()
		s.settle.forget() // these calls end with their contexts
		s.doubtful, s.resolveAt = nil, time.Time{}
		s.mu.Lock()
		s.queue = nil
		s.mu.Unlock()
	}()
	return s.loops.Lead(ctx, func(ctx context.Context) error {
		s.asking.run(ctx, s.extenders, func() { s.loop.Add(queueKey) })
		return nil
	})
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
	budgetKind      = "PodDisruptionBudget"
	volumeKind      = "PersistentVolume"
	claimKind       = "PersistentVolumeClaim"
	classKind       = "StorageClass"
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

// waits reports whether something was added since take was called.
func (n *news) waits() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.fresh) > 0
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
		waiting := s.settle.take()
		s.observe()
		offered, created := s.offers.take()
		s.takeCreated(created)
		s.takeAnswers()
		again := s.resolve(ctx)
		s.settle.observed(waiting)
		s.grant(ctx)
		fence, fenced := store.FenceFrom(ctx)
		now := time.Now()
		p := s.decide(now, offered, fenced)
		s.answer(offered, p, fence)
		s.asking.ask(p.Ask)
		s.carryOut(ctx, p)
		if p.Wake.IsZero() || p.Wake.After(now) {
			return controller.Earliest(p.Wake, again), nil
		}
	}
	return time.Time{}, nil
}

// decide has the queue place pods, and those of offers if this process is fenced as the leader.
func (s *Scheduler) decide(now time.Time, offered []*offer, fenced bool) plan.Plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range offered {
		if fenced {
			s.queue.Offer(one.pods)
		}
	}
	return s.queue.Next(now)
}

// takeAnswers gives the queue what extenders answered.
func (s *Scheduler) takeAnswers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Answer(time.Now(), s.asking.take())
}

// done gives the queue outcomes.
func (s *Scheduler) done(outcomes []plan.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Done(time.Now(), outcomes)
}

// observe brings the queue up to date: with all objects at first, then with those that changed.
func (s *Scheduler) observe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = s.tables.Pods.Notified()
	changes := s.news.take() // before the objects are read, so that no change is missed
	if s.queue == nil {
		s.queue = plan.NewQueue(view.Cluster(s.tables, s.nodes.All(), nil), view.Profiles(s.tables))
		for pod := range s.tables.Pods.Objects() {
			s.queue.AddPod(pod)
		}
		s.offers.begin()
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
			s.observePolicies()
		case serviceKind:
			observeSelector(s, c, s.tables.Services.Lookup, s.queue.AddService)
		case controllerKind:
			observeSelector(s, c, s.tables.ReplicationControllers.Lookup, s.queue.AddReplicationController)
		case replicaSetKind:
			observeSelector(s, c, s.tables.ReplicaSets.Lookup, s.queue.AddReplicaSet)
		case statefulSetKind:
			observeSelector(s, c, s.tables.StatefulSets.Lookup, s.queue.AddStatefulSet)
		case budgetKind:
			if b, ok := s.tables.Budgets.Lookup(c.key.Namespace, c.key.Name); ok {
				s.queue.AddBudget(b)
			} else {
				s.queue.RemoveBudget(c.key)
			}
		case volumeKind, claimKind, classKind:
			s.observeStorage(c)
		}
	}
}

func (s *Scheduler) observePolicies() {
	changed := s.queue.SetProfiles(view.Profiles(s.tables))
	for pod := range s.tables.Pods.Objects() {
		if changed[plan.SchedulerOf(pod)] {
			s.queue.AddPod(pod)
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
	p = s.bindClaims(ctx, p)
	s.write(ctx, p, plan.BindPod, s.bind)
	unwritten := s.write(ctx, p, plan.StorePending, s.storePending)
	s.write(ctx, p, plan.StoreUnseen, s.storeUnseen)
	s.evictVictims(ctx, p, unwritten)
}

// write does all actions of one verb, and returns the result of those that are not written.
func (s *Scheduler) write(ctx context.Context, p plan.Plan, verb string,
	modify func(a plan.Action, pod *schedulingv1.Pod) error,
) (refused map[object.Key]plan.Result) {
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
		return nil
	}
	refused = map[object.Key]plan.Result{}
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
		if o.Result != plan.Written {
			refused[k] = o.Result
		}
	}
	if unwritten > 0 && ctx.Err() == nil {
		s.log.WarnContext(ctx, "pods not written", "verb", verb, "count", unwritten, "error", failed)
	}
	s.done(outcomes)
	return refused
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
	if o.Verb == plan.BindPod || o.Verb == plan.CreateBound {
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
	if !s.queue.NeedsNode(pod) || pod.GetMetadata().GetUid() != a.Pod.GetMetadata().GetUid() {
		return errSettled
	}
	s.setPending(pod, "Unschedulable", a.Message)
	pod.Status.NominatedNodeName = a.Nominated()
	return nil
}

// storeUnseen stores that the scheduler that a pod names was not seen.
func (s *Scheduler) storeUnseen(a plan.Action, pod *schedulingv1.Pod) error {
	if !s.queue.AwaitsOther(pod) || pod.GetMetadata().GetUid() != a.Pod.GetMetadata().GetUid() {
		return errSettled
	}
	s.setPending(pod, plan.NotSeen, a.Message)
	return nil
}

func (s *Scheduler) setPending(pod *schedulingv1.Pod, reason, message string) {
	s.tables.SetPodCondition(pod, &schedulingv1.PodCondition{
		Type: plan.PodScheduled, Status: "False", Reason: &reason, Message: &message,
	})
}

// errSettled ends a change of a pod that has a node or is gone by now.
var errSettled = errors.New("the pod needs no node any more")
