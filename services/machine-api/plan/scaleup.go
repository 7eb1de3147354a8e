package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// mostPending is how many pods one decision places; the others are in the next ones.
const mostPending = 5000

// option is what a set would do for the pods that wait.
type option struct {
	g     *scaleGroup
	nodes int
	pods  []*schedulingv1.Pod
	more  []*schedulingv1.Pod // that would fit on machines for which there is no room
	waste float64             // part of the new nodes that pods leave free, from 0 to 1
}

// scaleUp grows the set that helps the pods that no node fits.
func (a *autoscaler) scaleUp() {
	pending := a.pending()
	if len(pending) == 0 {
		return
	}
	byName := map[string]*schedulingv1.Pod{}
	for _, p := range pending {
		byName[object.KeyOf(p).String()] = p
	}
	now, ok := a.ask("pending", a.variation(pending))
	if !ok {
		return
	}
	why := map[string]string{} // by the names of the pods that neither nodes nor machines under way fit
	var waiting []*schedulingv1.Pod
	for _, at := range now {
		key := at.GetNamespace() + "/" + at.GetName()
		switch {
		case at.GetNode() == "" && byName[key] != nil:
			why[key] = at.GetMessage()
			waiting = append(waiting, byName[key])
		case strings.HasPrefix(at.GetNode(), underwayPrefix):
			a.grows = true
		}
	}
	if len(waiting) == 0 {
		return
	}
	options, complete := a.options(pending, len(waiting))
	if !complete {
		return
	}
	helped := map[string]bool{}
	var best []option
	for _, o := range options {
		if o.nodes > 0 {
			best = append(best, o)
		}
		for _, p := range o.pods {
			helped[object.KeyOf(p).String()] = true
		}
		if len(o.more) == 0 {
			continue
		}
		_, word, text := a.room(o.g)
		o.g.limited(word, fmt.Sprintf("%s, and more would help %s", text, names(podNames(o.more))))
		for _, p := range o.more {
			key := object.KeyOf(p).String()
			why[key] = fmt.Sprintf("machine set %s would help, but %s", o.g.set.GetMetadata().GetName(), text)
		}
	}
	for _, p := range waiting {
		if key := object.KeyOf(p).String(); !helped[key] {
			a.unhelped(p, why[key])
		}
	}
	if len(best) > 0 {
		a.choose(best)
	}
}

// pending returns the pods that the scheduler reports as unschedulable and that count, by name.
func (a *autoscaler) pending() []*schedulingv1.Pod {
	var out []*schedulingv1.Pod
	for _, p := range a.v.Pods {
		c := placement.PodCondition(p, "PodScheduled")
		if p.GetSpec().GetNodeName() == "" && placement.Active(p) && c.GetStatus() == conditionFalse &&
			c.GetReason() == "Unschedulable" && len(p.GetSpec().GetSchedulingGates()) == 0 &&
			p.GetSpec().GetPriority() >= a.rules.priority {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y *schedulingv1.Pod) int {
		return cmp.Compare(object.KeyOf(x).String(), object.KeyOf(y).String())
	})
	return out[:min(len(out), mostPending)]
}

// variation returns the cluster with the machines under way and without those that are being deleted.
func (a *autoscaler) variation(place []*schedulingv1.Pod) *schedulingv1.PlanPlacementRequest_Variation {
	v := &schedulingv1.PlanPlacementRequest_Variation{Remove: slices.Clone(a.gone)}
	for _, g := range a.groups {
		if g.underway > 0 && g.template != nil && g.fault == "" {
			v.Add = append(v.Add, further(underwayPrefix, g, g.underway))
		}
	}
	for _, p := range place {
		v.Place = append(v.Place, &schedulingv1.PlanPlacementRequest_PodName{
			Namespace: p.GetMetadata().GetNamespace(), Name: p.GetMetadata().GetName(),
		})
	}
	return v
}

// further returns so many next nodes of a group.
func further(prefix string, g *scaleGroup, n int) *schedulingv1.PlanPlacementRequest_FurtherNodes {
	node := object.Clone(g.template)
	node.Metadata.Name = strings.TrimPrefix(prefix, "~") + g.set.GetMetadata().GetNamespace() + "." +
		g.set.GetMetadata().GetName()
	return &schedulingv1.PlanPlacementRequest_FurtherNodes{Node: node, Count: int32(min(n, 1000))}
}

// options returns what each set would do for the pods, sets without room included; complete is false while the
// scheduler must be asked.
func (a *autoscaler) options(pending []*schedulingv1.Pod, waiting int) (out []option, complete bool) {
	complete = true
	for _, g := range a.groups {
		if g.fault != "" || g.template == nil || g.desired != g.current || a.backingOff(g) {
			continue
		}
		v := a.variation(pending)
		v.Add = append(v.Add, further(furtherPrefix, g, min(waiting, mostUpAtOnce)))
		placed, ok := a.ask("set "+g.name(), v)
		if !ok {
			complete = false
			continue
		}
		room, _, _ := a.room(g)
		if o := newOption(g, placed, pending, room); len(o.pods)+len(o.more) > 0 {
			out = append(out, o)
		}
	}
	return out, complete
}

// newOption returns what a set with so much room would do, by the answer for as many machines as could be needed.
func newOption(g *scaleGroup, placed []*schedulingv1.PlanPlacementResponse_Placement, pending []*schedulingv1.Pod,
	room int,
) option {
	at, nodes := map[string]string{}, map[string]bool{}
	for _, p := range placed {
		if isFurther(p.GetNode()) {
			at[p.GetNamespace()+"/"+p.GetName()] = p.GetNode()
			nodes[p.GetNode()] = true
		}
	}
	first := slices.Sorted(maps.Keys(nodes))
	first = first[:min(room, len(first))]
	o, used := option{g: g, nodes: len(first)}, placement.Resources{}
	for _, p := range pending {
		switch node, ok := at[object.KeyOf(p).String()]; {
		case !ok:
		case slices.Contains(first, node):
			used.Add(placement.RequestsOf(p.GetSpec()))
			o.pods = append(o.pods, p)
		default:
			o.more = append(o.more, p)
		}
	}
	has, _ := placement.Allocatable(g.template)
	o.waste = (free(used.MilliCPU, has.MilliCPU*int64(o.nodes)) + free(used.Memory, has.Memory*int64(o.nodes))) / 2
	return o
}

func free(used, has int64) float64 {
	if has <= 0 {
		return 0
	}
	return 1 - float64(used)/float64(has)
}

// choose grows the best of sets that all help and have room: the one that leaves the least free, then the one that
// helps most pods with the fewest machines, then the first by name.
func (a *autoscaler) choose(list []option) {
	slices.SortStableFunc(list, func(x, y option) int {
		if a.rules.any {
			return cmp.Compare(x.g.name(), y.g.name())
		}
		return cmp.Or(cmp.Compare(x.waste, y.waste), cmp.Compare(len(y.pods), len(x.pods)), cmp.Compare(x.nodes, y.nodes),
			cmp.Compare(x.g.name(), y.g.name()))
	})
	best := list[0]
	verb := "pods fit"
	if len(best.pods) == 1 {
		verb = "pod fits"
	}
	reason := fmt.Sprintf("%d unschedulable %s on %d more: %s", len(best.pods), verb, best.nodes,
		names(podNames(best.pods)))
	a.grows = true
	groups := []*scaleGroup{best.g}
	if a.rules.balance {
		for _, o := range list[1:] {
			if a.rules.alike(best.g.template, o.g.template) {
				groups = append(groups, o.g)
			}
		}
	}
	for range best.nodes {
		g := slices.MinFunc(groups, func(x, y *scaleGroup) int {
			return cmp.Or(later(a.hasRoom(x), a.hasRoom(y)), cmp.Compare(x.desired, y.desired))
		})
		g.grow(1, reason, podNames(best.pods))
	}
}

// unhelped notes a pod that no set can help now.
func (a *autoscaler) unhelped(p *schedulingv1.Pod, reason string) {
	for _, g := range a.groups {
		if g.fault == "" && a.backingOff(g) {
			reason += fmt.Sprintf("; machine set %s does not grow until %s, after machines that failed",
				g.set.GetMetadata().GetName(), g.status.GetBackOff().GetUntilTime().AsTime().Format("15:04:05"))
		}
	}
	a.status.UnhelpedPods = append(a.status.UnhelpedPods, &machinev1.UnhelpedPod{
		Namespace: p.GetMetadata().GetNamespace(), Name: p.GetMetadata().GetName(), Reason: reason,
		SinceTime: placement.PodCondition(p, "PodScheduled").GetLastTransitionTime(),
	})
}

// sum is what nodes have.
type sum struct {
	nodes            int
	milliCPU, memory int64
}

func (s *sum) add(n *nodev1.Node, count int) {
	if n == nil || count <= 0 {
		return
	}
	has, _ := placement.Allocatable(&nodev1.Node{Status: &nodev1.NodeStatus{Capacity: n.GetStatus().GetCapacity()}})
	s.milliCPU += has.MilliCPU * int64(count)
	s.memory += has.Memory * int64(count)
}

// total returns what the cluster will have after this decision. Machines that did not join in time count until they are
// gone: they may still join.
func (a *autoscaler) total() sum {
	if a.present == nil { // each machine that is added asks for the total again
		a.present = &sum{nodes: len(a.v.Nodes)}
		for _, n := range a.v.Nodes {
			a.present.add(n, 1)
		}
	}
	s := *a.present
	for _, g := range a.groups {
		more := g.unborn + len(g.failed) + max(0, g.desired-g.current)
		s.nodes += more
		s.add(g.template, more)
	}
	return s
}

const gibibyte = 1 << 30

// room returns how many machines a set may get now, and which limit is the next one: in one word, and for people.
func (a *autoscaler) room(g *scaleGroup) (n int, word, text string) {
	n, word, text = g.high-g.desired, "TooManyReplicas", fmt.Sprintf("maxReplicas is %d", g.high)
	all, one := a.total(), sum{}
	one.add(g.template, 1)
	limit := func(most int32, rest int, has, unit string) {
		if most > 0 && rest < n {
			n, word, text = rest, "ClusterLimit", fmt.Sprintf("%s is %d and the cluster has %s", has, most, unit)
		}
	}
	cores, memory := a.rules.cores.GetMax(), a.rules.memory.GetMax()
	limit(int32(a.rules.maxNodes), a.rules.maxNodes-all.nodes, "maxNodesTotal",
		fmt.Sprintf("%d nodes, those under way included", all.nodes))
	limit(cores, times(int64(cores)*1000-all.milliCPU, one.milliCPU), "resourceLimits.cores.max",
		fmt.Sprintf("%d", all.milliCPU/1000))
	limit(memory, times(int64(memory)*gibibyte-all.memory, one.memory), "resourceLimits.memory.max",
		fmt.Sprintf("%d GiB", all.memory/gibibyte))
	return max(0, min(n, mostUpAtOnce)), word, text
}

func (a *autoscaler) hasRoom(g *scaleGroup) bool {
	n, _, _ := a.room(g)
	return n > 0
}

// times returns how often an amount is within a rest; 0 if the amount is not known.
func times(rest, amount int64) int {
	if amount <= 0 || rest <= 0 {
		return 0
	}
	return int(min(rest/amount, mostUpAtOnce))
}
