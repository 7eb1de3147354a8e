package harness

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/audit"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	desiredConfig = "machineconfiguration.openshift.io/desiredConfig"
	// evictor deletes pods for taints; for drains it asks for their eviction instead.
	evictor   = "system:windlass:eviction-controller"
	podDelete = "/windlass.scheduling.v1.PodService/DeletePod"
)

// Promise is what holds for some pods: disruptions leave at least so many of them ready.
type Promise struct {
	Namespace string
	Labels    map[string]string
	Ready     int
}

// Check ends a record and fails the test if something in it breaks a promise: a pod is bound once and runs once; a
// taint evicts no pod before its time; no disruption leaves fewer ready pods than promised; of each role at most one
// node is unavailable at once; no machine boots again with pods that should have left; nodes change only when the
// operators are at the release's version; the history of versions only grows; the steps of a machine's deletion have
// their order.
func (r *Record) Check(promises ...Promise) {
	t := r.c.t
	t.Helper()
	r.end()
	audit, err := r.c.Audit()
	if err != nil {
		t.Error(err)
	}
	const shown = 10
	steps := r.Steps()
	faults := append(slices.Clone(r.faults), Broken(steps, audit, promises)...)
	faults = append(faults, BrokenDeletions(steps)...)
	for i, f := range faults {
		if i == shown {
			t.Errorf("… and %d more", len(faults)-shown)
			break
		}
		t.Error(f)
	}
	if r.scans == 0 {
		t.Error("no processes were checked")
	}
	t.Logf("%d changes of pods, nodes, drains, operators and versions were held against what is promised", len(r.steps))
}

// Broken says which promises the steps break. The audit log names who deleted pods.
func Broken(steps []Step, audit []audit.Record, promises []Promise) []string {
	s := &replay{
		promises: promises, audit: audit, pods: map[string]*schedulingv1.Pod{}, nodes: map[string]*nodev1.Node{},
		operators: map[string]*updatev1.ClusterOperator{}, taints: map[string][]*nodev1.Taint{},
	}
	for _, step := range steps {
		switch o := step.Object.(type) {
		case *schedulingv1.Pod:
			s.pod(o, step.Deleted)
		case *nodev1.Node:
			s.node(o, step.Deleted)
		case *updatev1.ClusterOperator:
			s.operator(o, step.Deleted)
		case *updatev1.ClusterVersion:
			s.version(o)
		}
	}
	return s.broken
}

// replay is the state of a cluster as its steps describe it.
type replay struct {
	promises []Promise
	audit    []audit.Record

	pods      map[string]*schedulingv1.Pod // by uid
	nodes     map[string]*nodev1.Node
	operators map[string]*updatev1.ClusterOperator
	current   *updatev1.ClusterVersion
	taints    map[string][]*nodev1.Taint // NoExecute, by node
	broken    []string
}

func (s *replay) breaks(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(s.broken, text) {
		s.broken = append(s.broken, text)
	}
}

func (s *replay) pod(now *schedulingv1.Pod, deleted bool) {
	uid, name := now.GetMetadata().GetUid(), now.GetMetadata().GetNamespace()+"/"+now.GetMetadata().GetName()
	was := s.pods[uid]
	if from, to := was.GetSpec().GetNodeName(), now.GetSpec().GetNodeName(); from != "" && from != to {
		s.breaks("pod %s was bound to %s and then to %q", name, from, to)
	}
	leaves := was != nil && was.GetMetadata().GetDeletionTimestamp() == nil &&
		(deleted || now.GetMetadata().GetDeletionTimestamp() != nil)
	s.pods[uid] = now
	if deleted {
		delete(s.pods, uid)
	}
	if !leaves {
		return
	}
	at, known := s.evictedForTaint(now, deleted)
	due, tainted := deadline(now, evicting(s.nodes[now.GetSpec().GetNodeName()]))
	switch {
	case known:
		s.inTime(now, name, at)
	// a scheduler that is killed does not record who asked
	case tainted && !requested(now.GetMetadata()).Before(due.Truncate(time.Second)):
	case podReady(was):
		s.enough(now, name)
	}
}

// requested is when a pod's deletion was asked for, in whole seconds. A pod that went at once has no such record.
func requested(m *metav1.ObjectMeta) time.Time {
	return m.GetDeletionTimestamp().AsTime().Add(-time.Duration(m.GetDeletionGracePeriodSeconds()) * time.Second)
}

// evictedForTaint reports whether a pod leaves because of a taint, and when that was asked for.
func (s *replay) evictedForTaint(pod *schedulingv1.Pod, gone bool) (time.Time, bool) {
	for _, a := range s.audit {
		if a.User != evictor || a.Method != podDelete || a.Namespace != pod.GetMetadata().GetNamespace() ||
			a.Name != pod.GetMetadata().GetName() {
			continue
		}
		if gone && pod.GetMetadata().GetDeletionTimestamp() == nil {
			return a.Time, true
		}
		return requested(pod.GetMetadata()), true
	}
	return time.Time{}, false
}

// inTime holds an eviction against the taints that the node has, or had a moment ago.
func (s *replay) inTime(pod *schedulingv1.Pod, name string, at time.Time) {
	due, ok := deadline(pod, s.taints[pod.GetSpec().GetNodeName()])
	switch {
	case !ok:
		s.breaks("pod %s was evicted for a taint at %s, and %s had none that it does not tolerate", name,
			at.Format(time.TimeOnly), pod.GetSpec().GetNodeName())
	case at.Before(due.Truncate(time.Second)):
		s.breaks("pod %s was evicted at %s, its time was %s", name, at.Format(time.TimeOnly), due.Format(time.TimeOnly))
	}
}

// deadline is when a pod has to leave because of taints; false if it may stay.
func deadline(pod *schedulingv1.Pod, taints []*nodev1.Taint) (due time.Time, leaves bool) {
	for _, t := range taints {
		bears, ever := bearing(pod, t)
		at := t.GetTimeAdded().AsTime().Add(bears)
		if !ever && (!leaves || at.Before(due)) {
			due, leaves = at, true
		}
	}
	return due, leaves
}

// bearing is how long a pod tolerates a taint, or that it does permanently.
func bearing(pod *schedulingv1.Pod, t *nodev1.Taint) (bears time.Duration, ever bool) {
	for _, o := range pod.GetSpec().GetTolerations() {
		key := o.GetKey() == t.GetKey() || o.GetKey() == "" && o.GetOperator() == "Exists"
		value := o.GetOperator() == "Exists" || o.GetValue() == t.GetValue()
		if key && value && (o.GetEffect() == "" || o.GetEffect() == t.GetEffect()) {
			return time.Duration(max(0, o.GetTolerationSeconds())) * time.Second, o.TolerationSeconds == nil
		}
	}
	return 0, false
}

// enough holds a pod's leaving against what is promised for its like.
func (s *replay) enough(pod *schedulingv1.Pod, name string) {
	for _, p := range s.promises {
		if !p.covers(pod) {
			continue
		}
		left := 0
		for _, other := range s.pods {
			if p.covers(other) && podReady(other) && other.GetMetadata().GetDeletionTimestamp() == nil {
				left++
			}
		}
		if left < p.Ready {
			s.breaks("pod %s left and only %d like it were ready, fewer than %d", name, left, p.Ready)
		}
	}
}

func (p Promise) covers(pod *schedulingv1.Pod) bool {
	for k, v := range p.Labels {
		if pod.GetMetadata().GetLabels()[k] != v {
			return false
		}
	}
	return pod.GetMetadata().GetNamespace() == p.Namespace
}

func podReady(pod *schedulingv1.Pod) bool {
	return slices.ContainsFunc(pod.GetStatus().GetConditions(), func(c *schedulingv1.PodCondition) bool {
		return c.GetType() == "Ready" && c.GetStatus() == "True"
	})
}

func (s *replay) node(now *nodev1.Node, deleted bool) {
	name := now.GetMetadata().GetName()
	was := s.nodes[name]
	s.nodes[name] = now
	if deleted {
		delete(s.nodes, name)
	}
	// those that are gone stay known: a deletion that was decided before may still arrive
	if has := evicting(now); len(has) > 0 {
		s.taints[name] = has
	}
	if was == nil || deleted {
		return
	}
	if from, to := was.GetStatus().GetNodeInfo().GetBootId(), now.GetStatus().GetNodeInfo().GetBootId(); from != "" &&
		from != to {
		s.rebooted(now)
	}
	if mark(was) != "" && mark(was) != mark(now) {
		s.configured(now)
	}
	s.available(now)
}

func mark(n *nodev1.Node) string { return n.GetMetadata().GetAnnotations()[desiredConfig] }

// evicting are a node's taints that evict.
func evicting(n *nodev1.Node) []*nodev1.Taint {
	return slices.DeleteFunc(slices.Clone(n.GetSpec().GetTaints()), func(t *nodev1.Taint) bool {
		return t.GetEffect() != "NoExecute"
	})
}

// rebooted holds a new boot of a machine against the drain that comes before it: only pods of daemon sets may still be
// there.
func (s *replay) rebooted(n *nodev1.Node) {
	name := n.GetMetadata().GetName()
	if !n.GetSpec().GetUnschedulable() {
		s.breaks("machine %s booted again, and nothing kept pods from it", name)
	}
	for _, p := range s.pods {
		daemon := slices.ContainsFunc(p.GetMetadata().GetOwnerReferences(), func(o *metav1.OwnerReference) bool {
			return o.GetKind() == "DaemonSet"
		})
		if p.GetSpec().GetNodeName() == name && !daemon {
			s.breaks("machine %s booted again before pod %s had left", name, p.GetMetadata().GetName())
		}
	}
}

// configured holds the begin of a node's change against the operators, which come before.
func (s *replay) configured(n *nodev1.Node) {
	version := s.current.GetStatus().GetDesired().GetVersion()
	for name, o := range s.operators {
		for _, v := range o.GetStatus().GetVersions() {
			if v.GetName() == "operator" && v.GetVersion() != version {
				s.breaks("node %s was to change for version %s before operator %s, which was at %s", n.GetMetadata().GetName(),
					version, name, v.GetVersion())
			}
		}
	}
}

// available holds the nodes of a role against each other.
func (s *replay) available(n *nodev1.Node) {
	var out []string
	for name, other := range s.nodes {
		if sameRole(n, other) && (other.GetSpec().GetUnschedulable() || !Ready(other)) {
			out = append(out, name)
		}
	}
	if slices.Sort(out); len(out) > 1 {
		s.breaks("nodes %v were unavailable at once", out)
	}
}

func sameRole(a, b *nodev1.Node) bool {
	const worker = "node-role.kubernetes.io/worker"
	_, one := a.GetMetadata().GetLabels()[worker]
	_, other := b.GetMetadata().GetLabels()[worker]
	return one == other
}

// operator keeps what an operator of a release says. The cluster's own programs are of the version that runs, whatever
// the release.
func (s *replay) operator(o *updatev1.ClusterOperator, deleted bool) {
	name := o.GetMetadata().GetName()
	if deleted || ownOperator(name) {
		delete(s.operators, name)
		return
	}
	s.operators[name] = o
}

// ownOperator reports whether a ClusterOperator is that of one of the cluster's own programs.
func ownOperator(name string) bool {
	return slices.ContainsFunc(topology.Names(), func(service string) bool { return topology.Operator(service) == name })
}

// version holds the history of versions against what it was: entries are added in front, and the newest may become
// complete.
func (s *replay) version(now *updatev1.ClusterVersion) {
	was, is := s.current.GetStatus().GetHistory(), now.GetStatus().GetHistory()
	s.current = now
	if len(is) < len(was) {
		s.breaks("the history of versions lost entries: it had %d, now %d", len(was), len(is))
		return
	}
	older := is[len(is)-len(was):]
	for i, w := range was {
		o := older[i]
		same := o.GetVersion() == w.GetVersion() && o.GetImage() == w.GetImage() &&
			proto.Equal(o.GetStartedTime(), w.GetStartedTime())
		if !same || w.GetState() == "Completed" && !proto.Equal(o, w) {
			s.breaks("the history of versions changed: %v became %v", w, o)
		}
	}
}
