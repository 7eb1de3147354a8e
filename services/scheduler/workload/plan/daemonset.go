package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
)

// leastLife is how old a pod of a daemon set or stateful set that has ended must be to be replaced, so that one that
// ends at once is not made again and again.
const leastLife = 30 * time.Second

// nameField is the field of a node that a daemon set's pods ask for.
const nameField = "metadata.name"

// DaemonSetView is everything that a daemon set is decided on.
type DaemonSetView struct {
	Now   time.Time
	Clock spans.Clock // which measures waits
	Set   *schedulingv1.DaemonSet
	Nodes []*nodev1.Node // all
	// of the namespace: those that the set manages, and those without a controller
	Pods      []*schedulingv1.Pod
	Revisions []*schedulingv1.ControllerRevision // the same of revisions

	Deaths map[string]YoungDeaths // by node
}

// DaemonSetPlan is what is done for a daemon set. While something is adopted or released, there is nothing else in it:
// look again afterwards.
type DaemonSetPlan struct {
	Adopt, Release []*schedulingv1.Pod
	History        HistoryPlan
	Create         []*schedulingv1.Pod // without names
	Delete         []*schedulingv1.Pod
	Tell           []Event // for the set, beside those of Create and Delete
	Status         *schedulingv1.DaemonSetStatus
	Held           []*metav1.HeldBack // what would be done and waits
	Wake           time.Time          // when to decide again even if nothing changes; zero means never
	States         spans.Seen         // what the next view has seen

	why reasons
}

// Settled reports whether nothing changes hands.
func (p DaemonSetPlan) Settled() bool { return len(p.Adopt)+len(p.Release) == 0 && p.History.settled() }

// Actions returns what is done, in its order, and why.
func (p DaemonSetPlan) Actions() []*metav1.PlannedAction {
	return slices.Concat(transfers(p.Adopt, p.Release), p.History.before(p.why), planned("CreatePod", p.Create, p.why),
		planned("DeletePod", p.Delete, p.why), p.History.after(p.why))
}

// DaemonSet decides on which nodes a daemon set's pods are made, removed and renewed. Pods on nodes that do not exist
// are left to the controller that removes the pods of lost nodes.
func DaemonSet(v DaemonSetView) DaemonSetPlan {
	c := claimAll(v.Set, matcher(v.Set.GetSpec().GetSelector()), v.Pods, placement.Active)
	revisions := claimRevisions(v.Set, v.Set.GetSpec().GetSelector(), v.Revisions)
	if !c.settled() || !revisions.settled() {
		return DaemonSetPlan{
			Adopt: c.adopt, Release: c.release,
			History: HistoryPlan{Adopt: revisions.adopt, Release: revisions.release},
		}
	}
	d := newDaemons(v, c.mine, newHistory(revisions.mine))
	for _, n := range v.Nodes {
		d.look(n)
	}
	d.dropHomeless()
	if !object.Deleting(v.Set) {
		d.renew()
		d.cleanUp()
	} else {
		d.p.Create, d.p.Delete, d.p.Tell, d.p.Held, d.p.History = nil, nil, nil, nil, HistoryPlan{}
	}
	d.p.Delete = d.p.Delete[:min(len(d.p.Delete), maxBurst)]
	d.observe()
	d.p.Wake, d.p.States = sooner(d.p.Wake, d.ready.wake), d.ready.clock.Used
	return d.p
}

// daemons is a daemon set while a plan is made for it.
type daemons struct {
	v       DaemonSetView
	history history
	present *schedulingv1.ControllerRevision // of the present template
	hash    string                           // the label of its pods
	spec    *schedulingv1.PodSpec            // of the template, with the tolerations that every daemon has
	fits    placement.NodeMatcher
	byNode  map[string][]*schedulingv1.Pod
	known   map[string]bool // nodes that exist
	wanted  []string        // nodes that should have a pod, in the order of the view
	strange int             // nodes that have a pod and should not
	leaving map[*schedulingv1.Pod]bool
	surging bool // a node may have two pods during a rolling update

	ready *readiness
	p     DaemonSetPlan
}

func newDaemons(v DaemonSetView, mine []*schedulingv1.Pod, h history) *daemons {
	template := v.Set.GetSpec().GetTemplate()
	d := &daemons{
		v: v, history: h, spec: daemonSpec(template.GetSpec()),
		fits: placement.NewNodeMatcher(template.GetSpec()), byNode: map[string][]*schedulingv1.Pod{},
		p:     DaemonSetPlan{why: reasons{}},
		known: make(map[string]bool, len(v.Nodes)), leaving: map[*schedulingv1.Pod]bool{},
	}
	clock := clockAt(v.Clock, v.Now)
	d.ready = newReadiness(&clock, v.Set.GetSpec().GetMinReadySeconds(), mine, v.Set.GetStatus().GetNumberAvailable())
	d.present, d.p.History = h.present(v.Set, template, v.Set.GetStatus().GetCollisionCount(), d.p.why)
	d.hash = d.present.GetMetadata().GetLabels()[RevisionHashLabel]
	strategy := v.Set.GetSpec().GetUpdateStrategy()
	d.surging = strategy.GetType() != "OnDelete" && share(strategy.GetRollingUpdate().GetMaxSurge(), 1, true) > 0
	for _, pod := range mine {
		node := TargetNode(pod)
		d.byNode[node] = append(d.byNode[node], pod)
	}
	for _, pods := range d.byNode {
		slices.SortFunc(pods, byAge)
	}
	return d
}

// daemonSpec returns the spec of a daemon's pods.
func daemonSpec(spec *schedulingv1.PodSpec) *schedulingv1.PodSpec {
	out := &schedulingv1.PodSpec{}
	proto.Merge(out, spec)
	placement.TolerateAsDaemon(out)
	return out
}

// TargetNode returns the node that a daemon's pod runs on or is made for; empty if it names none.
func TargetNode(pod *schedulingv1.Pod) string {
	if n := pod.GetSpec().GetNodeName(); n != "" {
		return n
	}
	required := pod.GetSpec().GetAffinity().GetNodeAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()
	for _, t := range required.GetNodeSelectorTerms() {
		for _, f := range t.GetMatchFields() {
			if f.GetKey() == nameField && f.GetOperator() == "In" && len(f.GetValues()) == 1 {
				return f.GetValues()[0]
			}
		}
	}
	return ""
}

// wants reports whether a node should have a pod, and whether one that is there may stay.
func (d *daemons) wants(n *nodev1.Node) (run, stay bool) {
	if name := d.spec.GetNodeName(); name != "" && name != n.GetMetadata().GetName() {
		return false, false
	}
	if !d.fits.Matches(n) {
		return false, false
	}
	taints := n.GetSpec().GetTaints()
	stay = placement.Untolerated(d.spec.GetTolerations(), taints, placement.NoExecute) == nil
	return stay && placement.Untolerated(d.spec.GetTolerations(), taints, placement.NoSchedule) == nil, stay
}

// look sees to the pods of one node.
func (d *daemons) look(n *nodev1.Node) {
	name := n.GetMetadata().GetName()
	d.known[name] = true
	run, stay := d.wants(n)
	pods := d.byNode[name]
	if run {
		d.wanted = append(d.wanted, name)
	} else if len(pods) > 0 {
		d.strange++
	}
	switch {
	case run && len(pods) == 0:
		d.create(name, "the node fits, and has none", "node "+name+" has none")
	case !stay:
		d.remove("its node does not fit any more, or has a taint that it does not tolerate", pods...)
	default:
		d.keepOne(name, pods)
	}
}

// create makes a pod for a node, unless pods of it die young. short says what is missing if they do.
func (d *daemons) create(node, why, short string) {
	if at := d.v.Deaths[node].until(d.v.Now); at.After(d.v.Now) {
		d.hold("CreatePod", d.v.Set, short+diedYoung, pauseEnds(at))
		d.p.Wake = sooner(d.p.Wake, at)
		return
	}
	if len(d.p.Create) < maxBurst {
		pod := d.pod(node)
		d.p.Create = append(d.p.Create, pod)
		note(d.p.why, why, pod)
	}
}

func (d *daemons) hold(action string, on object.Object, why, unblock string) {
	d.p.Held = append(d.p.Held, held(action, on, why, unblock)...)
}

// keepOne removes all pods of a node that ended, and all but one of the others: one that is available, else a bound
// one, the oldest. While pods surge, it may keep one of the present template beside one of a former.
func (d *daemons) keepOne(node string, pods []*schedulingv1.Pod) {
	var former, updated []*schedulingv1.Pod
	for _, pod := range pods {
		switch {
		case object.Deleting(pod):
		case placement.Terminated(pod):
			d.replaceEnded(node, pod)
		case d.surging && d.isNew(pod):
			updated = append(updated, pod)
		default:
			former = append(former, pod)
		}
	}
	const another = "its node has another one"
	d.remove(another, d.allBut(former)...)
	d.remove(another, d.allBut(updated)...)
}

// allBut returns all of some pods of a node but the one that stays.
func (d *daemons) allBut(pods []*schedulingv1.Pod) []*schedulingv1.Pod {
	if len(pods) < 2 {
		return nil
	}
	keep := slices.IndexFunc(pods, d.ready.up)
	if keep < 0 {
		keep = max(0, slices.IndexFunc(pods, func(p *schedulingv1.Pod) bool { return p.GetSpec().GetNodeName() != "" }))
	}
	return slices.Delete(pods, keep, keep+1)
}

func (d *daemons) replaceEnded(node string, pod *schedulingv1.Pod) {
	if at := tooYoung(d.ready.clock, pod); !at.IsZero() {
		d.hold("DeletePod", pod, "it ended soon after it was made: the next one comes after a pause", pauseEnds(at))
		d.p.Wake = sooner(d.p.Wake, at)
		return
	}
	if m := pod.GetMetadata(); pod.GetStatus().GetPhase() == placement.Failed {
		d.p.Tell = append(d.p.Tell, Event{
			"Warning", "FailedDaemonPod",
			fmt.Sprintf("Found failed daemon pod %s/%s on node %s, will try to kill it", m.GetNamespace(), m.GetName(), node),
		})
	}
	d.remove("it has ended, and another one takes its place", pod)
}

// dropHomeless removes pods that are not bound and ask for a node that is not there.
func (d *daemons) dropHomeless() {
	for _, pod := range d.allPods() {
		if pod.GetSpec().GetNodeName() == "" && !d.known[TargetNode(pod)] {
			d.remove("its node is not there", pod)
		}
	}
}

func (d *daemons) allPods() []*schedulingv1.Pod {
	var out []*schedulingv1.Pod
	for _, node := range slices.Sorted(maps.Keys(d.byNode)) {
		out = append(out, d.byNode[node]...)
	}
	return out
}

func (d *daemons) remove(why string, pods ...*schedulingv1.Pod) {
	for _, pod := range pods {
		if !object.Deleting(pod) && !d.leaving[pod] {
			d.leaving[pod] = true
			d.p.Delete = append(d.p.Delete, pod)
			note(d.p.why, why, pod)
		}
	}
}

// pod returns a new pod for a node.
func (d *daemons) pod(node string) *schedulingv1.Pod {
	pod := newPod(d.v.Set, d.v.Set.GetSpec().GetTemplate())
	pod.Metadata.Labels = label(pod.Metadata.Labels, RevisionHashLabel, d.hash)
	pod.Spec = proto.CloneOf(d.spec)
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &schedulingv1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &schedulingv1.NodeAffinity{}
	}
	// That the node has what the template requires is decided; it stays true if its labels change, until this set decides
	// again.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &schedulingv1.NodeSelector{
		NodeSelectorTerms: []*schedulingv1.NodeSelectorTerm{{
			MatchFields: []*schedulingv1.NodeSelectorRequirement{{Key: nameField, Operator: "In", Values: []string{node}}},
		}},
	}
	return pod
}

func (d *daemons) isNew(pod *schedulingv1.Pod) bool {
	return pod.GetMetadata().GetLabels()[RevisionHashLabel] == d.hash
}

// limits returns how many nodes an update may leave without an available pod, and how many get a second one for it.
// Both zero would let nothing move, so then one may be without.
func (d *daemons) limits() (missing, surge int) {
	rolling := d.v.Set.GetSpec().GetUpdateStrategy().GetRollingUpdate()
	missing, surge = 1, share(rolling.GetMaxSurge(), len(d.wanted), true)
	if m := rolling.GetMaxUnavailable(); m != nil {
		missing = share(m, len(d.wanted), true)
	}
	if missing == 0 && surge == 0 {
		missing = 1
	}
	return missing, surge
}

// former is why an update replaces a pod.
const former = "it is of a former template"

// renew replaces pods of former templates, unless users do that.
func (d *daemons) renew() {
	if d.v.Set.GetSpec().GetUpdateStrategy().GetType() == "OnDelete" {
		return
	}
	missing, surge := d.limits()
	if d.surging {
		d.renewBeside(surge)
	} else {
		d.renewInPlace(missing)
	}
}

// pair returns the pods of a node that count: one of the present template, and one of a former.
func (d *daemons) pair(node string) (updated, old *schedulingv1.Pod) {
	for _, pod := range d.byNode[node] {
		switch {
		case !placement.Active(pod) || d.leaving[pod]:
		case d.isNew(pod):
			updated = pod
		default:
			old = pod
		}
	}
	return updated, old
}

// renewInPlace removes pods of former templates: those that are not available at once, others as long as not too many
// nodes are without. The next ones come once they are gone.
func (d *daemons) renewInPlace(most int) {
	var candidates []*schedulingv1.Pod
	for _, node := range d.wanted {
		updated, old := d.pair(node)
		switch {
		case updated != nil:
			if !d.ready.up(updated) {
				most--
			}
		case old == nil:
			most--
		case !d.ready.up(old):
			most--
			d.remove(former+" and not available", old)
		default:
			candidates = append(candidates, old)
		}
	}
	now := max(0, min(most, len(candidates)))
	d.remove(former+", and few enough nodes are without one that is available", candidates[:now]...)
	for _, pod := range candidates[now:] {
		d.hold("DeletePod", pod, former+", but as many nodes are without one that is available as may be",
			"the new ones become available")
	}
}

// renewBeside creates new pods beside those of former templates, which go once the new one of their node is available:
// at most surge beside pods that are available, and any number beside pods that are not.
func (d *daemons) renewBeside(surge int) {
	var candidates []string
	for _, node := range d.wanted {
		updated, old := d.pair(node)
		switch {
		case old == nil:
		case updated == nil && !d.ready.up(old):
			d.create(node, "the one of a former template is not available", "node "+node+" has none of the present template")
		case updated == nil:
			candidates = append(candidates, node)
		case !placement.IsReady(old):
			d.remove(former+" and not ready, and its node has a new one", old)
		case d.ready.up(updated):
			d.remove(former+", and the new one of its node is available", old)
		default:
			surge--
			name := updated.GetMetadata().GetName()
			d.hold("DeletePod", old, former+", but the new one of its node, "+name+", is not available"+stateOf(updated),
				name+" becomes available")
			d.p.Held[len(d.p.Held)-1].SinceTime = updated.GetMetadata().GetCreationTimestamp()
		}
	}
	now := max(0, min(surge, len(candidates)))
	for _, node := range candidates[:now] {
		d.create(node, "the node has one of a former template, which goes once this one is available",
			"node "+node+" has none of the present template")
	}
	for _, node := range candidates[now:] {
		_, old := d.pair(node)
		d.hold("CreatePod", old, former+", but as many nodes have a second pod as may have",
			"the new pods of other nodes become available")
	}
}

// stateOf says what a pod that is not available lacks, for people.
func stateOf(pod *schedulingv1.Pod) string {
	switch {
	case pod.GetSpec().GetNodeName() == "":
		return ": it is not bound to the node"
	case !placement.IsReady(pod):
		return ": it is not ready"
	}
	return ": it has not been ready for long enough"
}

// cleanUp forgets the oldest revisions that no pod has.
func (d *daemons) cleanUp() {
	hashes := map[string]bool{d.hash: true}
	for _, pods := range d.byNode {
		for _, pod := range pods {
			hashes[pod.GetMetadata().GetLabels()[RevisionHashLabel]] = true
		}
	}
	live := map[string]bool{}
	for _, r := range d.history {
		if m := r.GetMetadata(); hashes[m.GetLabels()[RevisionHashLabel]] {
			live[m.GetName()] = true
		}
	}
	d.p.History.Forget = d.history.superfluous(d.v.Set.GetSpec().RevisionHistoryLimit, live, d.p.why)
}

// observe sets the status as seen before the plan is carried out.
func (d *daemons) observe() {
	var n count
	have, updated := 0, 0
	for _, node := range d.wanted {
		pods := d.byNode[node]
		if len(pods) == 0 {
			continue
		}
		have++
		i := slices.IndexFunc(pods, placement.Active)
		if i < 0 {
			continue
		}
		n.add(pods[i], d.ready)
		if d.isNew(pods[i]) {
			updated++
		}
	}
	was := d.v.Set.GetStatus()
	d.p.Status = &schedulingv1.DaemonSetStatus{
		CurrentNumberScheduled: number(have), NumberMisscheduled: number(d.strange),
		DesiredNumberScheduled: number(len(d.wanted)),
		NumberReady:            number(n.ready), UpdatedNumberScheduled: number(updated),
		NumberAvailable:    number(n.available),
		NumberUnavailable:  number(len(d.wanted) - n.available),
		ObservedGeneration: proto.Int32(d.v.Set.GetMetadata().GetGeneration()),
		Conditions:         was.GetConditions(),
	}
	if n := was.GetCollisionCount(); n > 0 {
		d.p.Status.CollisionCount = &n
	}
}

// DaemonRevisionCollided returns a daemon set's status that counts one collision of the names of revisions more.
func DaemonRevisionCollided(s *schedulingv1.DaemonSetStatus) *schedulingv1.DaemonSetStatus {
	out := proto.CloneOf(s)
	if out == nil {
		out = &schedulingv1.DaemonSetStatus{}
	}
	out.CollisionCount = proto.Int32(s.GetCollisionCount() + 1)
	return out
}
