package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Figures of scaling that the documents leave open.
const (
	mostUpAtOnce     = 100              // machines that one decision adds to a set
	mostCandidates   = 30               // nodes whose pods are placed elsewhere in one decision
	mostListed       = 50               // pods or candidates in a status
	firstScalePause  = 5 * time.Minute  // after machines that failed; doubled for each failure in turn
	longestScaling   = 30 * time.Minute // the longest such pause
	forgetScalePause = 3 * time.Hour    // after the end of the pause
	retryUnknown     = 5 * time.Second  // while nodes or pods are not known: the reason may change without any object
)

// Conditions and actions of autoscalers.
const (
	conditionAbleToScale    = "AbleToScale"
	conditionScalingLimited = "ScalingLimited"
	conditionActive         = "Active"
	actionScaleUp           = "ScaleUp"
	actionScaleDown         = "ScaleDown"
)

// Names of the further nodes in questions: those of machines under way sort first.
const (
	underwayPrefix = "~1-"
	furtherPrefix  = "~2-"
)

// AutoscalerView is everything that a decision about the size of the cluster depends on.
type AutoscalerView struct {
	Now         time.Time
	Cluster     *machinev1.ClusterAutoscaler   // nil if there is none
	Autoscalers []*machinev1.MachineAutoscaler // ordered by namespace and name
	Sets        []*machinev1.MachineSet
	Machines    []*machinev1.Machine // ordered by namespace and name
	Nodes       map[string]*nodev1.Node
	Pods        []*schedulingv1.Pod
	Budgets     []*schedulingv1.PodDisruptionBudget
	// Unseen is why nodes or pods are not known, or the scheduler does not answer; empty if neither is so.
	Unseen string
	// Answers holds the scheduler's answers by the ID of the question.
	Answers map[string]*schedulingv1.PlanPlacementResponse_Result
	// Seen is for how long the states that the last plan named have been seen. It is not needed if Exact is set: Now and
	// the times of the objects are of one clock.
	Seen  spans.Seen
	Exact bool
}

// PlacementQuestion is what the scheduler must answer before the next decision.
type PlacementQuestion struct {
	ID        string
	Variation *schedulingv1.PlanPlacementRequest_Variation
}

// ScaleDown is the removal of a machine together with a replica of its set.
type ScaleDown struct {
	Machine *machinev1.Machine
	Reason  string
}

// AutoscaledSet is the decision about the set of one machine autoscaler.
type AutoscaledSet struct {
	Autoscaler *machinev1.MachineAutoscaler
	Set        *machinev1.MachineSet // nil if it does not exist or is another autoscaler's
	Current    int
	Desired    int // Current if the replicas do not change
	Reason     string
	Pods       []string    // namespace/name of the pods for which machines are added
	Remove     []ScaleDown // machines to remove, one replica for each
	Status     *machinev1.MachineAutoscalerStatus
}

// AutoscalerPlan is the outcome of one decision. While Ask is not empty the decision is incomplete: nothing is to be
// done, and it is made again with the answers.
type AutoscalerPlan struct {
	Sets   []AutoscaledSet
	Status *machinev1.ClusterAutoscalerStatus
	Held   []*metav1.HeldBack
	Ask    []PlacementQuestion
	Wake   time.Time  // when to decide again even if nothing changes; zero means never
	States spans.Seen // keys of the states whose durations count: Seen of the next view
}

// Autoscale decides about the sizes of all autoscaled sets. A set grows for unschedulable pods that would fit on its
// next node, one set in a decision, and shrinks by machines whose nodes are not needed, one machine in a decision and
// never in a decision that grows a set. It leaves no set outside of the bounds of its autoscaler that was within them.
// It does not modify v. Source: OpenShift's and Kubernetes' cluster autoscaler.
func Autoscale(v AutoscalerView) AutoscalerPlan {
	a := newAutoscaler(v)
	for _, g := range a.groups {
		a.survey(g)
	}
	if a.fault == "" {
		a.raiseToMin()
		a.replaceFailed()
		a.scaleUp()
		a.scaleDown()
	}
	return a.finish()
}

// autoscaler is one decision.
type autoscaler struct {
	v       AutoscalerView
	rules   scaleRules
	groups  []*scaleGroup
	byNode  map[string][]*schedulingv1.Pod // pods on nodes that have not ended
	gone    []string                       // nodes of machines that are being deleted
	fault   string                         // why nothing is decided
	reason  string                         // the same in one word
	present *sum                           // what all nodes have; nil until it is needed
	grows   bool                           // a set grows, or pods wait for machines under way
	status  *machinev1.ClusterAutoscalerStatus
	clock   spans.Clock
	p       AutoscalerPlan
}

// scaleGroup is the set of one machine autoscaler.
type scaleGroup struct {
	a        *machinev1.MachineAutoscaler
	set      *machinev1.MachineSet
	status   *machinev1.MachineAutoscalerStatus
	low      int
	high     int
	current  int
	desired  int
	reason   string
	pods     []string
	remove   []ScaleDown
	machines []*machinev1.Machine // that count for the set
	leaving  []string             // machines that are being deleted
	failed   []ScaleDown          // machines that have failed or did not join in time
	underway int                  // machines that are expected to join
	unborn   int                  // of these, the ones without a node
	template *nodev1.Node         // the next node; nil if its capacity is not known
	fault    string               // why the set is not scaled
	word     string               // the same in one word
	limit    string               // what limits the set now
	limiting string               // the same in one word
}

func (g *scaleGroup) name() string { return object.KeyOf(g.a).String() }

func (g *scaleGroup) stop(word, fault string) {
	if g.fault == "" {
		g.word, g.fault = word, fault
	}
}

func (g *scaleGroup) limited(word, text string) {
	if g.limit == "" {
		g.limiting, g.limit = word, text
	}
}

func newAutoscaler(v AutoscalerView) *autoscaler {
	a := &autoscaler{
		v: v, rules: scaleRulesOf(v.Cluster), byNode: map[string][]*schedulingv1.Pod{},
		status: &machinev1.ClusterAutoscalerStatus{}, clock: spans.Clock{Now: v.Now, Seen: v.Seen, Exact: v.Exact},
	}
	if s := v.Cluster.GetStatus(); s != nil {
		a.status = proto.Clone(s).(*machinev1.ClusterAutoscalerStatus)
	}
	a.status.UnhelpedPodCount, a.status.UnhelpedPods = 0, nil
	switch {
	case v.Cluster == nil:
		a.reason, a.fault = "NoClusterAutoscaler", "there is no ClusterAutoscaler, so nothing is scaled"
	case object.Deleting(v.Cluster):
		a.reason, a.fault = "NoClusterAutoscaler", "the ClusterAutoscaler is being deleted"
	case v.Unseen != "":
		a.reason, a.fault = "ClusterUnknown", v.Unseen
	}
	for _, pod := range v.Pods {
		if placement.Assigned(pod) {
			a.byNode[pod.GetSpec().GetNodeName()] = append(a.byNode[pod.GetSpec().GetNodeName()], pod)
		}
	}
	for _, m := range v.Machines {
		if n := linkedNode(v.Nodes, m); n != nil && object.Deleting(m) {
			a.gone = append(a.gone, n.GetMetadata().GetName())
		}
	}
	sets := map[object.Key]*machinev1.MachineSet{}
	for _, s := range v.Sets {
		sets[object.KeyOf(s)] = s
	}
	taken := map[object.Key]string{}
	for _, ma := range byAge(v.Autoscalers) {
		g := &scaleGroup{a: ma, status: &machinev1.MachineAutoscalerStatus{}}
		if s := ma.GetStatus(); s != nil {
			g.status = proto.Clone(s).(*machinev1.MachineAutoscalerStatus)
		}
		g.low, g.high = int(ma.GetSpec().GetMinReplicas()), int(ma.GetSpec().GetMaxReplicas())
		target := ma.GetSpec().GetScaleTargetRef()
		g.status.LastTargetRef = target
		key := object.Key{Namespace: ma.GetMetadata().GetNamespace(), Name: target.GetName()}
		set := sets[key]
		switch {
		case set == nil:
			g.stop("TargetNotFound", fmt.Sprintf("machine set %s does not exist", target.GetName()))
		case taken[key] != "":
			g.stop("AmbiguousTarget", fmt.Sprintf("machine set %s belongs to the older machine autoscaler %s",
				target.GetName(), taken[key]))
		default:
			g.set, taken[key] = set, ma.GetMetadata().GetName()
		}
		a.groups = append(a.groups, g)
	}
	slices.SortFunc(a.groups, func(x, y *scaleGroup) int { return cmp.Compare(x.name(), y.name()) })
	return a
}

// byAge returns autoscalers with the oldest first.
func byAge(list []*machinev1.MachineAutoscaler) []*machinev1.MachineAutoscaler {
	return slices.SortedStableFunc(slices.Values(list), func(a, b *machinev1.MachineAutoscaler) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		return cmp.Or(x.GetCreationTimestamp().AsTime().Compare(y.GetCreationTimestamp().AsTime()),
			cmp.Compare(object.KeyOf(a).String(), object.KeyOf(b).String()))
	})
}

// survey counts the machines of a group, and says what its next node is.
func (a *autoscaler) survey(g *scaleGroup) {
	if g.set == nil {
		return
	}
	g.current = wantedReplicas(g.set)
	g.desired = g.current
	template := &machinev1.Machine{Metadata: g.set.GetSpec().GetTemplate().GetMetadata()}
	switch {
	case object.Deleting(g.a):
		g.stop("Deleting", "the machine autoscaler is being deleted")
	case object.Deleting(g.set):
		g.stop("TargetDeleting", "the machine set is being deleted")
	case OtherAPI(g.set.GetSpec()):
		g.stop("TargetPaused", pausedMessage)
	case Role(template) == RoleMaster:
		g.stop("ControlPlane", "control-plane machines are not scaled")
	}
	sel, fault := setFault(g.set)
	if fault != "" {
		g.stop("TargetInvalid", fault)
	}
	var sample *nodev1.Node
	for _, m := range a.v.Machines {
		if object.ControllerOf(m).GetUid() != g.set.GetMetadata().GetUid() ||
			m.GetMetadata().GetNamespace() != g.set.GetMetadata().GetNamespace() || !matches(sel, m) {
			continue
		}
		if object.Deleting(m) {
			g.leaving = append(g.leaving, m.GetMetadata().GetName())
			continue
		}
		g.machines = append(g.machines, m)
		node := linkedNode(a.v.Nodes, m)
		if ready, _ := readySince(node); ready {
			if sample == nil && !node.GetSpec().GetUnschedulable() {
				sample = node
			}
			continue
		}
		a.expected(g, m, node)
	}
	if missing := g.current - len(g.machines); missing > 0 {
		g.underway, g.unborn = g.underway+missing, g.unborn+missing
	}
	g.template = nextNode(g.set, sample, a.byNode[sample.GetMetadata().GetName()])
	a.pause(g)
}

// expected counts a machine without a ready node: it is under way, or has failed.
func (a *autoscaler) expected(g *scaleGroup, m *machinev1.Machine, node *nodev1.Node) {
	created := m.GetMetadata().GetCreationTimestamp().AsTime()
	late := a.clock.End(spans.Key(created, "starting", m.GetMetadata().GetUid()), created, a.rules.provision)
	switch {
	case node == nil && (m.GetStatus().GetPhase() == PhaseFailed || m.GetStatus().GetErrorReason() != ""):
		g.failed = append(g.failed, ScaleDown{m, "it has failed without a node: " + m.GetStatus().GetErrorMessage()})
	case m.GetStatus().GetNodeRef() == nil && !late.After(a.v.Now):
		g.failed = append(g.failed, ScaleDown{m, fmt.Sprintf("it has no node %v after its creation", a.rules.provision)})
	case late.After(a.v.Now):
		a.wake(late)
		g.underway++
		if node == nil {
			g.unborn++
		}
	}
}

// pause keeps the back-off of a group: it begins when a machine fails, and ends with a machine that joined after it.
func (a *autoscaler) pause(g *scaleGroup) {
	b := g.status.GetBackOff()
	var uids []string
	for _, f := range g.failed {
		uid := f.Machine.GetMetadata().GetUid()
		uids = append(uids, uid)
		if slices.Contains(b.GetMachineUids(), uid) {
			continue
		}
		failures := b.GetFailures()
		if len(uids) == 1 || b == nil || !a.pauseEnd(g, b).After(a.v.Now) {
			failures++
		}
		b = &machinev1.ScaleUpBackOff{
			Failures: failures, UntilTime: seconds(a.v.Now.Add(scalePause(failures))),
			Reason: f.Machine.GetMetadata().GetName() + ": " + f.Reason, MachineUids: b.GetMachineUids(),
		}
	}
	if b != nil {
		b.MachineUids = uids
		until := a.pauseEnd(g, b)
		recovered := slices.ContainsFunc(g.machines, func(m *machinev1.Machine) bool {
			ready, _ := readySince(linkedNode(a.v.Nodes, m))
			return ready && m.GetMetadata().GetCreationTimestamp().AsTime().After(until)
		})
		if len(uids) == 0 && (recovered || until.Add(forgetScalePause).Before(a.v.Now)) {
			b = nil
		} else if until.After(a.v.Now) {
			a.wake(until)
		}
	}
	g.status.BackOff = b
}

// scalePause is how long a group does not grow after so many failures in turn.
func scalePause(failures int32) time.Duration {
	return min(longestScaling, firstScalePause<<min(max(failures-1, 0), 8))
}

// pauseEnd returns when a back-off ends, which was noted when it began.
func (a *autoscaler) pauseEnd(g *scaleGroup, b *machinev1.ScaleUpBackOff) time.Time {
	until, long := b.GetUntilTime().AsTime(), scalePause(b.GetFailures())
	return a.clock.End(spans.Key(until, "pause", g.a.GetMetadata().GetUid()), until.Add(-long), long)
}

// backingOff reports whether a group waits after machines that failed.
func (a *autoscaler) backingOff(g *scaleGroup) bool {
	b := g.status.GetBackOff()
	return b != nil && a.pauseEnd(g, b).After(a.v.Now)
}

// raiseToMin grows sets that have fewer machines than their autoscalers' minReplicas.
func (a *autoscaler) raiseToMin() {
	for _, g := range a.groups {
		if g.fault != "" || g.current >= g.low {
			continue
		}
		room, word, text := a.room(g)
		n := min(g.low-g.current, room)
		if room < min(g.low-g.current, mostUpAtOnce) {
			g.limited(word, fmt.Sprintf("minReplicas is %d, but %s", g.low, text))
		}
		if n > 0 {
			g.grow(n, fmt.Sprintf("minReplicas is %d", g.low), nil)
			a.grows = true
		}
	}
}

func (g *scaleGroup) grow(n int, reason string, pods []string) {
	g.desired += n
	g.reason, g.pods = reason, pods
}

// replaceFailed removes machines that have failed or did not join in time, so that other sets are tried.
func (a *autoscaler) replaceFailed() {
	for _, g := range a.groups {
		if g.fault != "" || g.desired != g.current {
			continue
		}
		for _, f := range g.failed {
			if g.desired <= g.low || g.desired == 0 {
				a.hold(actionScaleDown, f.Machine, fmt.Sprintf("%s, and the set has minReplicas (%d)", f.Reason, g.low),
					"correct the set's template, or delete the machine")
				continue
			}
			g.shrink(f)
		}
	}
}

func (g *scaleGroup) shrink(d ScaleDown) {
	g.desired--
	g.remove = append(g.remove, d)
	g.reason = fmt.Sprintf("machine %s is removed: %s", d.Machine.GetMetadata().GetName(), d.Reason)
}

func (a *autoscaler) hold(action string, o object.Object, reason, unblock string) {
	a.p.Held = append(a.p.Held, &metav1.HeldBack{
		Action: action, Object: object.Reference(o), Reason: reason, Unblock: unblock,
	})
}

func (a *autoscaler) wake(t time.Time) {
	if t.After(a.v.Now) {
		a.p.Wake = earliest(a.p.Wake, t)
	}
}

// ask returns the scheduler's answer to a question, or notes that it must be asked.
func (a *autoscaler) ask(id string, v *schedulingv1.PlanPlacementRequest_Variation) (
	[]*schedulingv1.PlanPlacementResponse_Placement, bool,
) {
	answer, ok := a.v.Answers[id]
	if !ok {
		a.p.Ask = append(a.p.Ask, PlacementQuestion{id, v})
		return nil, false
	}
	return answer.GetPlacements(), true
}

// finish writes the statuses.
func (a *autoscaler) finish() AutoscalerPlan {
	slices.SortFunc(a.status.UnhelpedPods, func(x, y *machinev1.UnhelpedPod) int {
		return cmp.Compare(x.GetNamespace()+"/"+x.GetName(), y.GetNamespace()+"/"+y.GetName())
	})
	a.status.UnhelpedPodCount = int32(len(a.status.UnhelpedPods))
	a.status.UnhelpedPods = a.status.UnhelpedPods[:min(len(a.status.UnhelpedPods), mostListed)]
	active := condition(conditionActive, conditionTrue, "", "Active", "")
	if a.v.Cluster != nil && a.v.Unseen != "" {
		a.p.Wake = earliest(a.p.Wake, a.v.Now.Add(retryUnknown))
	}
	if a.fault != "" {
		active = condition(conditionActive, conditionFalse, severityWarning, a.reason, a.fault)
	}
	a.status.Conditions = object.SetCondition(a.status.Conditions, active, a.v.Now)
	a.p.Status = a.status
	for _, g := range a.groups {
		a.p.Sets = append(a.p.Sets, a.decided(g))
	}
	a.p.States = a.clock.Used
	return a.p
}

// decided returns the decision about a group, with its status.
func (a *autoscaler) decided(g *scaleGroup) AutoscaledSet {
	s := g.status
	s.CurrentReplicas, s.DesiredReplicas, s.UnderwayMachines = int32(g.current), int32(g.desired), int32(g.underway)
	able := condition(conditionAbleToScale, conditionTrue, "", "Ready", "")
	switch {
	case a.fault != "":
		able = condition(conditionAbleToScale, conditionFalse, severityWarning, a.reason, a.fault)
	case g.fault != "":
		able = condition(conditionAbleToScale, conditionFalse, severityWarning, g.word, g.fault)
	case a.backingOff(g):
		able = condition(conditionAbleToScale, conditionFalse, severityWarning, "BackOff", fmt.Sprintf(
			"the set does not grow until %s: %s", s.GetBackOff().GetUntilTime().AsTime().Format(time.RFC3339),
			s.GetBackOff().GetReason()))
	case g.template == nil:
		able = condition(conditionAbleToScale, conditionFalse, severityWarning, "CapacityUnknown", capacityUnknown)
	}
	limited := condition(conditionScalingLimited, conditionFalse, "", "WithinLimits", "")
	if g.limit != "" {
		limited = condition(conditionScalingLimited, conditionTrue, "", g.limiting, g.limit)
	}
	s.Conditions = object.SetCondition(object.SetCondition(s.Conditions, able, a.v.Now), limited, a.v.Now)
	switch {
	case g.desired > g.current:
		s.LastScaleUpTime, s.LastScaleReason = seconds(a.v.Now), g.reason
	case g.desired < g.current:
		s.LastScaleDownTime, s.LastScaleReason = seconds(a.v.Now), g.reason
	}
	if g.fault != "" || a.fault != "" {
		s.ScaleDownCandidates = nil // the times count only while all of it is known
	}
	return AutoscaledSet{
		Autoscaler: g.a, Set: g.set, Current: g.current, Desired: g.desired, Reason: g.reason, Pods: g.pods,
		Remove: g.remove, Status: s,
	}
}

// Actions returns what a plan does, for people.
func (p AutoscalerPlan) Actions() []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, s := range p.Sets {
		for _, r := range s.Remove {
			out = append(out, &metav1.PlannedAction{
				Action: "DeleteAndShrink", Object: object.Reference(r.Machine), Reason: r.Reason,
			})
		}
		if s.Desired > s.Current {
			out = append(out, &metav1.PlannedAction{
				Action: actionScaleUp, Object: object.Reference(s.Set), Reason: s.Reason,
				Details: map[string]string{"replicas": fmt.Sprintf("%d to %d", s.Current, s.Desired)},
			})
		}
	}
	return out
}

// podNames returns the names of pods as namespace/name.
func podNames(pods []*schedulingv1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, object.KeyOf(p).String())
	}
	return out
}

func since(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return seconds(t)
}

// isFurther reports whether a node of an answer is one of those that a set would add.
func isFurther(node string) bool { return strings.HasPrefix(node, furtherPrefix) }
