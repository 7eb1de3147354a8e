package plan

import (
	"cmp"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Decision is the result for one pod.
type Decision struct {
	Pod  *schedulingv1.Pod
	Node string // where it goes; empty if it stays pending

	// Why it stays pending; empty if it does not.
	Message    string         // of the event FailedScheduling and the condition PodScheduled
	Reasons    map[string]int // number of nodes by reason, such as "Insufficient cpu"
	Predicates map[string]int // number of nodes by the rule that failed, such as PodFitsResources
	Refused    bool           // whatever the nodes are; Message says why
	Extended   bool           // by an extender, which may decide otherwise though nothing changes here
	Verdict    Verdict        // the same for people, bounded

	Preempts *Preemption // what gives it room; nil if nothing does

	// Claims is what those of its claims get that are not bound, to be stored before its binding.
	Claims []ClaimChoice

	choice *choice // why it goes to Node
}

// placeAll decides where pods go: those of higher priority first, then the older ones, and returns the decisions in
// that order. Every pod that is placed counts in c for the next one and stays there as if it were bound: take it away
// with RemovePod if its binding cannot be written. Pods that are bound already, have ended or are being deleted must
// not be given. turn decides between nodes that are equally good; it counts the pods that were placed, so that a
// caller who keeps it goes round them.
func placeAll(c *Cluster, p *Profile, pods []*schedulingv1.Pod, turn *uint64) []Decision {
	queue := slices.Clone(pods)
	slices.SortStableFunc(queue, earlier)
	b := c.boardFor(p)
	b.round++
	out := make([]Decision, 0, len(queue))
	for _, pod := range queue {
		out = append(out, b.place(pod, turn))
	}
	return out
}

// earlier orders pods as they are placed: by priority, age, namespace and name.
func earlier(a, b *schedulingv1.Pod) int {
	x, y := a.GetMetadata(), b.GetMetadata()
	return cmp.Or(
		cmp.Compare(b.GetSpec().GetPriority(), a.GetSpec().GetPriority()),
		cmp.Compare(x.GetCreationTimestamp().GetSeconds(), y.GetCreationTimestamp().GetSeconds()),
		cmp.Compare(x.GetCreationTimestamp().GetNanos(), y.GetCreationTimestamp().GetNanos()),
		strings.Compare(x.GetNamespace(), y.GetNamespace()),
		strings.Compare(x.GetName(), y.GetName()),
	)
}

// place decides where one pod goes.
func (b *board) place(pod *schedulingv1.Pod, turn *uint64) Decision {
	if why := b.cluster.refusal(b.profile, pod); why != "" {
		return Decision{Pod: pod, Message: why, Refused: true}
	}
	restore := b.cluster.withdraw(pod)
	k := b.classOf(pod)
	p := k.choose(*turn)
	if p.at == nowhere {
		defer restore()
		return k.unfit(pod)
	}
	*turn++
	d := k.settleOn(p, nil, pod)
	if d.Node == "" {
		restore()
	}
	return d
}

// settleOn binds a pod of the class to the node that it was given, with what its claims get there. in is what extenders
// said, nil if none was asked. The pod is not bound yet if another program has to make a volume first.
func (k *class) settleOn(p pick, in *Inquiry, pod *schedulingv1.Pod) Decision {
	n := k.cluster.nodes[p.at]
	var claims []ClaimChoice
	if len(k.demand.wanted) > 0 && k.profile.checks(checkVolumeBinding) {
		claims, _ = k.choices(n) // the node passed CheckVolumeBinding
	}
	if why := awaited(claims); why != "" {
		return Decision{Pod: pod, Message: why, Refused: true, Claims: claims}
	}
	why := k.choiceOf(p, in)
	k.cluster.bindAs(k, pod, n)
	k.cluster.assume(claims)
	return Decision{Pod: pod, Node: n.name, Claims: claims, choice: why}
}

// unfit returns the decision about a pod of the class that no node fits.
func (k *class) unfit(pod *schedulingv1.Pod) Decision {
	b := k.board
	if k.failed == nil || k.round != b.round || k.followsOthers() && k.judged != b.now() {
		d := k.failure()
		k.failed, k.round, k.judged = &d, b.round, b.now()
	}
	d := *k.failed
	d.Pod = pod
	return d
}

// followsOthers reports whether a node may come to fit by pods that are placed on others.
func (k *class) followsOthers() bool {
	return k.terms != nil && len(k.terms.near) > 0 || k.spread != nil
}

// failure says why no node fits.
func (k *class) failure() Decision {
	tally := newTally(k.profile)
	for _, n := range k.cluster.nodes {
		tally.add(n.name, k.judge(n))
	}
	return tally.decision()
}
