// Package controller does what package plan decides: it binds pods to nodes, and removes what nobody keeps any more.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/plan"
	"github.com/windlass-dev/windlass/services/scheduler/view"
)

const (
	// mostAtOnce is how many pods are placed before their bindings are written: enough for full transactions, few enough
	// that the first of many pods do not wait for the last.
	mostAtOnce = 1000
	// retryPause is the least time between two tries of pods that nothing fits: what helps one of them mostly comes
	// together with more.
	retryPause = 200 * time.Millisecond
	// writePause is how long to wait after bindings could not be written.
	writePause = 500 * time.Millisecond
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

// Scheduler binds pods to nodes while this process leads.
type Scheduler struct {
	tables *kinds.Tables
	nodes  Nodes
	events events.Sink
	log    *slog.Logger
	news   *news
}

// NewScheduler returns a scheduler that does nothing before Lead.
func NewScheduler(tables *kinds.Tables, nodes Nodes, events events.Sink, log *slog.Logger) *Scheduler {
	s := &Scheduler{tables: tables, nodes: nodes, events: events, log: log, news: newNews()}
	follow(s.news, podKind, tables.Pods.Subscribe)
	follow(s.news, serviceKind, tables.Services.Subscribe)
	follow(s.news, controllerKind, tables.ReplicationControllers.Subscribe)
	follow(s.news, replicaSetKind, tables.ReplicaSets.Subscribe)
	follow(s.news, statefulSetKind, tables.StatefulSets.Subscribe)
	follow(s.news, policyKind, tables.Policies.Subscribe)
	follow(s.news, nodeKind, nodes.Subscribe)
	return s
}

// follow has news take in each change of a kind.
func follow[T object.Object](n *news, kind string, subscribe func(func(resource.Change[T]))) {
	subscribe(func(ch resource.Change[T]) { n.tell(change{kind, ch.Key}) })
}

// Lead places pods until ctx ends.
func (s *Scheduler) Lead(ctx context.Context) error {
	if err := s.sync(ctx); err != nil {
		return nil // ctx ended
	}
	s.news.open()
	defer s.news.close()
	pods := s.tables.Pods.All()
	t := &term{
		Scheduler: s, cluster: view.Cluster(s.tables, s.nodes.All(), pods), profile: view.Profile(s.tables),
		ready: map[object.Key]struct{}{}, stuck: map[object.Key]failure{},
	}
	for _, pod := range pods {
		t.takePod(object.KeyOf(pod))
	}
	t.run(ctx)
	return nil
}

func (s *Scheduler) sync(ctx context.Context) error {
	for _, wait := range []func(context.Context) error{
		s.tables.Pods.WaitSynced, s.tables.Services.WaitSynced, s.tables.ReplicationControllers.WaitSynced,
		s.tables.ReplicaSets.WaitSynced,
		s.tables.StatefulSets.WaitSynced, s.tables.Policies.WaitSynced, s.nodes.WaitSynced,
	} {
		if err := wait(ctx); err != nil {
			return err
		}
	}
	// The bindings of the leader before must be seen, or its nodes would be filled twice.
	if fence, ok := store.FenceFrom(ctx); ok {
		return s.tables.Pods.WaitRevision(ctx, fence.CreateRevision)
	}
	return nil
}

// Kinds as a cluster's selectors are named by, and those that a change may be of besides.
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

// news collects what changed until somebody has time for it.
type news struct {
	mu     sync.Mutex
	isOpen bool
	fresh  map[change]struct{}
	wake   chan struct{}
}

func newNews() *news { return &news{fresh: map[change]struct{}{}, wake: make(chan struct{}, 1)} }

func (n *news) open() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isOpen = true
}

// close forgets everything: whoever opens it again looks at all there is.
func (n *news) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isOpen, n.fresh = false, map[change]struct{}{}
}

func (n *news) tell(c change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.isOpen {
		return
	}
	n.fresh[c] = struct{}{}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *news) take() map[change]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.fresh
	n.fresh = map[change]struct{}{}
	return out
}

// term is a scheduler while it leads. Only its own goroutine touches it.
type term struct {
	*Scheduler
	cluster *plan.Cluster
	profile *plan.Profile
	ready   map[object.Key]struct{} // pods to place now
	stuck   map[object.Key]failure  // pods that nothing fits
	lonely  int                     // how many of those want to be near other pods, or away from them
	helped  bool                    // something changed that may help those
	tried   time.Time               // when those were tried last
	turn    uint64                  // decides between nodes that are equally good
}

// failure is a pod that was not placed, as it was then.
type failure struct {
	uid        string
	generation int32
	labels     map[string]string
	lonely     bool // what it says about other pods keeps it from nodes
}

func failureOf(pod *schedulingv1.Pod) failure {
	m, affinity := pod.GetMetadata(), pod.GetSpec().GetAffinity()
	return failure{
		uid: m.GetUid(), generation: m.GetGeneration(), labels: m.GetLabels(),
		lonely: len(affinity.GetPodAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()) > 0 ||
			len(affinity.GetPodAntiAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()) > 0,
	}
}

// of reports whether a pod is the one that was not placed, and asks for the same as then.
func (f failure) of(pod *schedulingv1.Pod) bool {
	m := pod.GetMetadata()
	return f.uid == m.GetUid() && f.generation == m.GetGeneration() && maps.Equal(f.labels, m.GetLabels())
}

// run places pods whenever there are any, until ctx ends.
func (t *term) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var wait time.Duration
		for len(t.ready) > 0 || t.unstick() {
			if !t.round(ctx) {
				wait = writePause
				break
			}
			if ctx.Err() != nil {
				return
			}
			t.takeNews()
		}
		if wait == 0 && t.helped && len(t.stuck) > 0 {
			wait = max(time.Until(t.tried.Add(retryPause)), time.Millisecond)
		}
		timer.Stop()
		var late <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			late = timer.C
		}
		wake := t.news.wake
		if wait == writePause {
			wake = nil // etcd does not answer: more news do not help
		}
		select {
		case <-wake:
		case <-late:
		case <-ctx.Done():
			return
		}
		t.takeNews()
	}
}

// unstick makes pods ready that nothing fitted, if something changed that may help them. It reports whether there are
// any.
func (t *term) unstick() bool {
	if !t.helped || len(t.stuck) == 0 || time.Since(t.tried) < retryPause {
		return false
	}
	for key := range t.stuck {
		t.ready[key] = struct{}{}
	}
	t.helped, t.tried = false, time.Now()
	return true
}

// takeNews takes in what changed since the last time.
func (t *term) takeNews() {
	for c := range t.news.take() {
		k := c.key
		switch c.kind {
		case podKind:
			t.takePod(k)
		case nodeKind:
			if n, ok := t.nodes.Lookup("", k.Name); ok {
				t.cluster.AddNode(n)
			} else {
				t.cluster.RemoveNode(k.Name)
			}
			t.helped = true
		case policyKind:
			t.takePolicy()
		case serviceKind:
			takeSelector(t, c, t.tables.Services.Lookup, t.cluster.AddService)
			t.helped = true
		case controllerKind:
			takeSelector(t, c, t.tables.ReplicationControllers.Lookup, t.cluster.AddReplicationController)
		case replicaSetKind:
			takeSelector(t, c, t.tables.ReplicaSets.Lookup, t.cluster.AddReplicaSet)
		case statefulSetKind:
			takeSelector(t, c, t.tables.StatefulSets.Lookup, t.cluster.AddStatefulSet)
		}
	}
}

func (t *term) takePolicy() {
	t.profile, t.helped = view.Profile(t.tables), true
}

func takeSelector[T object.Object](t *term, c change, lookup func(string, string) (T, bool), add func(T)) {
	if o, ok := lookup(c.key.Namespace, c.key.Name); ok {
		add(o)
		return
	}
	t.cluster.RemoveSelector(c.kind, c.key.Namespace, c.key.Name)
}

// takePod takes in one pod as it is now.
func (t *term) takePod(k object.Key) {
	pod, ok := t.tables.Pods.Lookup(k.Namespace, k.Name)
	if ok {
		t.note(t.cluster.AddPod(pod))
	} else {
		t.note(t.cluster.RemovePod(k.Namespace, k.Name))
	}
	if !ok || !ours(pod) {
		delete(t.ready, k)
		t.settle(k)
		return
	}
	if f, failed := t.stuck[k]; !failed || !f.of(pod) {
		t.ready[k] = struct{}{}
	}
}

// note has the pods that nothing fitted tried again if what became of another may help them.
func (t *term) note(e plan.Effect) {
	t.helped = t.helped || e == plan.Room || e == plan.Company && t.lonely > 0
}

// settle forgets that a pod was not placed.
func (t *term) settle(k object.Key) {
	if t.stuck[k].lonely {
		t.lonely--
	}
	delete(t.stuck, k)
}

// stick notes that a pod was not placed.
func (t *term) stick(pod *schedulingv1.Pod) {
	k, f := object.KeyOf(pod), failureOf(pod)
	t.settle(k)
	if f.lonely {
		t.lonely++
	}
	t.stuck[k] = f
}

// ours reports whether this scheduler has to find a node for a pod.
func ours(pod *schedulingv1.Pod) bool {
	s := pod.GetSpec()
	return s.GetNodeName() == "" && s.GetSchedulerName() == plan.DefaultScheduler && len(s.GetSchedulingGates()) == 0 &&
		!placement.Terminated(pod) && !object.Deleting(pod)
}

// round places the pods that are ready and writes what comes of it. It reports whether that could be written.
func (t *term) round(ctx context.Context) bool {
	if len(t.stuck) == 0 {
		t.helped = false // what came before is in the cluster that pods are placed in now
	}
	pods := t.batch()
	var fitting, failing []plan.Decision
	for _, d := range plan.Place(t.cluster, t.profile, pods, &t.turn) {
		if d.Node == "" {
			failing = append(failing, d)
		} else {
			fitting = append(fitting, d)
		}
	}
	wrote := len(fitting) == 0 || t.bind(ctx, fitting)
	said := len(failing) == 0 || t.fail(ctx, failing)
	return wrote && said
}

// batch takes pods off those that are ready: of one priority the oldest first, so that none waits for ever.
func (t *term) batch() []*schedulingv1.Pod {
	pods := make([]*schedulingv1.Pod, 0, len(t.ready))
	for k := range t.ready {
		if pod, ok := t.tables.Pods.Lookup(k.Namespace, k.Name); ok && ours(pod) {
			pods = append(pods, pod)
		} else {
			delete(t.ready, k)
		}
	}
	slices.SortFunc(pods, plan.Before)
	pods = pods[:min(len(pods), mostAtOnce)]
	for _, pod := range pods {
		delete(t.ready, object.KeyOf(pod))
	}
	return pods
}

// bind writes bindings of pods that are still as they were placed. Those that are refused are undone, which leaves
// their places free: the pod's own news say what became of it. It reports whether etcd took the writes.
func (t *term) bind(ctx context.Context, decisions []plan.Decision) bool {
	keys := make([]object.Key, len(decisions))
	wanted := make(map[object.Key]plan.Decision, len(decisions))
	for i, d := range decisions {
		keys[i] = object.KeyOf(d.Pod)
		wanted[keys[i]] = d
	}
	var failed []error
	for i, w := range t.tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		d := wanted[object.KeyOf(pod)]
		if was, is := d.Pod.GetMetadata().GetResourceVersion(), pod.GetMetadata().GetResourceVersion(); was != is {
			return rpcerr.Conflict("Pod", pod.GetMetadata().GetName(), "it changed since it was placed")
		}
		return t.tables.Bind(pod, d.Pod.GetMetadata().GetUid(), d.Node)
	}) {
		k, d := keys[i], decisions[i]
		if w.Err == nil {
			t.cluster.AddPod(w.Object)
			t.settle(k)
			t.note(plan.Company)
			t.events.Event(w.Object, "Normal", "Scheduled", "Successfully assigned "+k.String()+" to "+d.Node)
			continue
		}
		free := t.cluster.RemovePod(k.Namespace, k.Name)
		switch rpcerr.Reason(w.Err) {
		case metav1.ErrorReason_ERROR_REASON_CONFLICT, metav1.ErrorReason_ERROR_REASON_NOT_FOUND,
			metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION:
			t.log.DebugContext(ctx, "binding refused", "pod", k.String(), "node", d.Node, "error", w.Err)
			t.note(free)
			t.takePod(k)
		case metav1.ErrorReason_ERROR_REASON_INVALID_FIELD: // it keeps no other pod waiting
			t.log.WarnContext(ctx, "binding refused", "pod", k.String(), "node", d.Node, "error", w.Err)
			if !t.stuck[k].of(d.Pod) { // else it would be tried again for the room that it leaves itself
				t.note(free)
			}
			t.stick(d.Pod)
		default:
			failed = append(failed, w.Err)
			t.ready[k] = struct{}{}
		}
	}
	if len(failed) > 0 && ctx.Err() == nil {
		t.log.WarnContext(ctx, "bindings not written", "count", len(failed), "error", failed[0])
	}
	return len(failed) == 0
}

// fail says of pods why no node takes them, where that was not said before. It reports whether etcd took the writes.
func (t *term) fail(ctx context.Context, decisions []plan.Decision) bool {
	var keys []object.Key
	said := map[object.Key]plan.Decision{}
	for _, d := range decisions {
		k := object.KeyOf(d.Pod)
		t.stick(d.Pod)
		if c := placement.PodCondition(d.Pod, kinds.PodScheduled); c.GetStatus() != "False" || c.GetMessage() != d.Message {
			keys = append(keys, k)
			said[k] = d
		}
	}
	reason := "Unschedulable"
	var failed []error
	for i, w := range t.tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		d := said[object.KeyOf(pod)]
		if !ours(pod) || pod.GetMetadata().GetUid() != d.Pod.GetMetadata().GetUid() {
			return errSettled
		}
		message := d.Message
		t.tables.SetPodCondition(pod, &schedulingv1.PodCondition{
			Type: kinds.PodScheduled, Status: "False", Reason: &reason,
			Message: &message,
		})
		return nil
	}) {
		switch reason := rpcerr.Reason(w.Err); {
		case w.Err == nil:
			t.events.Event(w.Object, "Warning", "FailedScheduling", said[keys[i]].Message)
		// its own news say what became of it
		case errors.Is(w.Err, errSettled), reason == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		case reason == metav1.ErrorReason_ERROR_REASON_INVALID_FIELD:
			t.log.WarnContext(ctx, "failure refused", "pod", keys[i].String(), "error", w.Err)
		default:
			failed = append(failed, w.Err)
			t.settle(keys[i])
			t.ready[keys[i]] = struct{}{} // or nobody would say it before something changes
		}
	}
	if len(failed) > 0 && ctx.Err() == nil {
		t.log.WarnContext(ctx, "failures not written", "count", len(failed), "error", failed[0])
	}
	return len(failed) == 0
}

// errSettled ends a change of a pod that is placed or gone by now.
var errSettled = errors.New("settled meanwhile")
