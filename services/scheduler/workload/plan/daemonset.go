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
	"google.golang.org/protobuf/proto"
)

// RevisionHashLabel is the label of a daemon set's pods that says of which template they are.
const RevisionHashLabel = "controller-revision-hash"

// leastLife is how old a failed pod of a daemon set must be to be replaced, so that one that fails at once is not made
// again and again.
const leastLife = 30 * time.Second

// nameField is the field of a node that a daemon set's pods ask for.
const nameField = "metadata.name"

// DaemonSetView is everything that a daemon set is decided on.
type DaemonSetView struct {
	Now   time.Time
	Set   *schedulingv1.DaemonSet
	Nodes []*nodev1.Node      // all
	Pods  []*schedulingv1.Pod // of the namespace: those that the set manages, and those without a controller
}

// DaemonSetPlan is what is done for a daemon set. While Adopt or Release has anything, there is nothing else in it:
// look again afterwards.
type DaemonSetPlan struct {
	Adopt, Release []*schedulingv1.Pod
	Create         []*schedulingv1.Pod // without names
	Delete         []*schedulingv1.Pod
	Tell           []Event // for the set, beside those of Create and Delete
	Status         *schedulingv1.DaemonSetStatus
	Held           []*metav1.HeldBack // what would be done and waits
	Wake           time.Time          // when to decide again even if nothing changes; zero means never

	why reasons
}

// Actions returns what is done, in its order, and why.
func (p DaemonSetPlan) Actions() []*metav1.PlannedAction {
	return slices.Concat(transfers(p.Adopt, p.Release), planned("CreatePod", p.Create, p.why),
		planned("DeletePod", p.Delete, p.why))
}

// DaemonSet decides on which nodes a daemon set's pods are made, removed and renewed. Pods on nodes that do not exist
// are left to the controller that removes the pods of lost nodes.
func DaemonSet(v DaemonSetView) DaemonSetPlan {
	c := claimAll(v.Set, matcher(v.Set.GetSpec().GetSelector()), v.Pods, placement.Active)
	if !c.settled() {
		return DaemonSetPlan{Adopt: c.adopt, Release: c.release}
	}
	d := newDaemons(v, c.mine)
	for _, n := range v.Nodes {
		d.look(n)
	}
	d.dropHomeless()
	if !object.Deleting(v.Set) {
		d.renew()
	} else {
		d.p.Create, d.p.Delete, d.p.Tell, d.p.Held = nil, nil, nil, nil
	}
	d.p.Delete = d.p.Delete[:min(len(d.p.Delete), maxBurst)]
	d.observe()
	return d.p
}

// daemons is a daemon set while a plan is made for it.
type daemons struct {
	v       DaemonSetView
	hash    string
	spec    *schedulingv1.PodSpec // of the template, with the tolerations that every daemon has
	fits    placement.NodeMatcher
	byNode  map[string][]*schedulingv1.Pod
	known   map[string]bool // nodes that exist
	wanted  []string        // nodes that should have a pod, in the order of the view
	strange int             // nodes that have a pod and should not
	leaving map[*schedulingv1.Pod]bool
	p       DaemonSetPlan
}

func newDaemons(v DaemonSetView, mine []*schedulingv1.Pod) *daemons {
	template := v.Set.GetSpec().GetTemplate()
	d := &daemons{
		v: v, hash: templateHash(template, 0), spec: daemonSpec(template.GetSpec()),
		fits: placement.NewNodeMatcher(template.GetSpec()), byNode: map[string][]*schedulingv1.Pod{},
		p:     DaemonSetPlan{why: reasons{}},
		known: make(map[string]bool, len(v.Nodes)), leaving: map[*schedulingv1.Pod]bool{},
	}
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
		if len(d.p.Create) < maxBurst {
			pod := d.pod(name)
			d.p.Create = append(d.p.Create, pod)
			note(d.p.why, "the node fits, and has none", pod)
		}
	case !stay:
		d.remove("its node does not fit any more, or has a taint that it does not tolerate", pods...)
	default:
		d.keepOne(name, pods)
	}
}

// keepOne removes all pods of a node that ended, and all but one of the others: a bound one, the oldest.
func (d *daemons) keepOne(node string, pods []*schedulingv1.Pod) {
	var running []*schedulingv1.Pod
	for _, pod := range pods {
		switch {
		case object.Deleting(pod):
		case !placement.Terminated(pod):
			running = append(running, pod)
		default:
			d.replaceEnded(node, pod)
		}
	}
	if len(running) < 2 {
		return
	}
	keep := max(0, slices.IndexFunc(running, func(p *schedulingv1.Pod) bool { return p.GetSpec().GetNodeName() != "" }))
	d.remove("its node has another one", slices.Delete(running, keep, keep+1)...)
}

func (d *daemons) replaceEnded(node string, pod *schedulingv1.Pod) {
	if at := created(pod).Add(leastLife); at.After(d.v.Now) {
		d.p.Held = append(d.p.Held,
			held("DeletePod", pod, "it ended soon after it was made: the next one comes after a pause", "")...)
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

// present returns the pod of a node that counts, the newest of the present template or else any; nil if there is none.
func (d *daemons) present(node string) *schedulingv1.Pod {
	var found *schedulingv1.Pod
	for _, pod := range d.byNode[node] {
		if placement.Active(pod) && !d.leaving[pod] && (found == nil || d.isNew(pod)) {
			found = pod
		}
	}
	return found
}

func (d *daemons) isNew(pod *schedulingv1.Pod) bool {
	return pod.GetMetadata().GetLabels()[RevisionHashLabel] == d.hash
}

// renew removes pods of former templates: those that are not available at once, others as long as not too many nodes
// are without.
func (d *daemons) renew() {
	strategy := d.v.Set.GetSpec().GetUpdateStrategy()
	if strategy.GetType() == "OnDelete" {
		return
	}
	most := 1
	const former = "it is of a former template"
	if m := strategy.GetRollingUpdate().GetMaxUnavailable(); m != nil {
		most = max(1, share(m, len(d.wanted), true))
	}
	minReady := seconds(d.v.Set.GetSpec().GetMinReadySeconds())
	var candidates []*schedulingv1.Pod
	for _, node := range d.wanted {
		pod := d.present(node)
		up, _ := available(pod, minReady, d.v.Now)
		switch {
		case !up:
			most--
			if pod != nil && !d.isNew(pod) {
				d.remove(former+" and not available", pod)
			}
		case !d.isNew(pod):
			candidates = append(candidates, pod)
		}
	}
	now := max(0, min(most, len(candidates)))
	d.remove(former+", and few enough nodes are without one that is available", candidates[:now]...)
	for _, pod := range candidates[now:] {
		d.p.Held = append(d.p.Held,
			held("DeletePod", pod, former+", but as many nodes are without one that is available as may be",
				"the new ones become available")...)
	}
}

// observe sets the status as seen before the plan is carried out.
func (d *daemons) observe() {
	minReady := seconds(d.v.Set.GetSpec().GetMinReadySeconds())
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
		n.add(pods[i], minReady, d.v.Now)
		if d.isNew(pods[i]) {
			updated++
		}
	}
	d.p.Wake = sooner(d.p.Wake, n.wake)
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
}
