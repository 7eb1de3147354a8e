package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/disruption"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// fitsNowhere is in what holds a candidate whose pods were checked.
const fitsNowhere = " fits on no other node"

// checkOthers is how soon the next nodes are checked where they are too many for one decision.
const checkOthers = 10 * time.Second

// candidate is a machine whose node is used less than the threshold.
type candidate struct {
	g       *scaleGroup
	machine *machinev1.Machine
	node    *nodev1.Node
	used    float64
	since   time.Time // since when its node is not needed; zero while it is
	held    string
}

// scaleDown removes the machine whose node has not been needed for the longest time, if it may go.
func (a *autoscaler) scaleDown() {
	candidates := a.candidates()
	if len(a.p.Ask) > 0 {
		return
	}
	var due []*candidate
	all := a.total()
	for _, c := range candidates {
		if c.held == "" {
			c.held = a.holds(c, all)
		}
		if c.held == "" {
			due = append(due, c)
		}
	}
	slices.SortStableFunc(due, func(x, y *candidate) int {
		return cmp.Or(x.since.Compare(y.since), cmp.Compare(x.used, y.used),
			cmp.Compare(object.KeyOf(x.machine).String(), object.KeyOf(y.machine).String()))
	})
	for i, c := range due {
		if i > 0 {
			c.held = "one machine is removed at a time"
			a.wake(a.v.Now.Add(max(a.rules.afterDelete, time.Second)))
			continue
		}
		c.g.shrink(ScaleDown{c.machine, fmt.Sprintf(
			"its node %s has not been needed since %s: less than %g of it is requested, and its pods fit elsewhere",
			c.node.GetMetadata().GetName(), c.since.UTC().Format(time.RFC3339), a.rules.threshold)})
	}
	for _, g := range a.groups {
		g.status.ScaleDownCandidates = nil
	}
	for _, c := range listed(candidates) {
		s := c.g.status
		if !slices.ContainsFunc(c.g.remove, func(r ScaleDown) bool { return r.Machine == c.machine }) {
			s.ScaleDownCandidates = append(s.ScaleDownCandidates, &machinev1.ScaleDownCandidate{
				Machine: c.machine.GetMetadata().GetName(), Node: c.node.GetMetadata().GetName(),
				UtilizationPercent: int32(c.used * 100), SinceTime: since(c.since), HeldBy: c.held,
			})
		}
	}
}

// listed returns the candidates that are in the status of their groups, where they are more than it has room for: first
// those whose time counts, the longest first, and then those that were checked in this decision.
func listed(candidates []*candidate) []*candidate {
	rank := func(c *candidate) int {
		switch {
		case !c.since.IsZero():
			return 0
		case strings.Contains(c.held, fitsNowhere):
			return 1
		}
		return 2
	}
	order := slices.Clone(candidates)
	slices.SortStableFunc(order, func(x, y *candidate) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x.since.Compare(y.since))
	})
	count, in := map[*scaleGroup]int{}, map[*candidate]bool{}
	for _, c := range order {
		if count[c.g]++; count[c.g] <= mostListed {
			in[c] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(candidates), func(c *candidate) bool { return !in[c] })
}

// candidates returns the machines whose nodes are used less than the threshold, by group and name.
func (a *autoscaler) candidates() []*candidate {
	var out, check []*candidate
	for _, g := range a.groups {
		if g.fault != "" || !a.rules.down {
			continue
		}
		for _, m := range g.machines {
			n := linkedNode(a.v.Nodes, m)
			ready, _ := readySince(n)
			used := a.utilization(n)
			if !ready || used >= a.rules.threshold || IsControlPlaneNode(n) {
				continue
			}
			c := &candidate{g: g, machine: m, node: n, used: used}
			out = append(out, c)
			if c.held = a.bound(c); c.held != "" {
				continue
			}
			if len(a.moving(n)) == 0 {
				c.since = a.unneededSince(c)
			} else if g.desired <= g.low {
				c.held = atMinimum(g) // it is not checked in place of one that may go
			} else {
				check = append(check, c)
			}
		}
	}
	a.check(check)
	return out
}

// check finds out which nodes' pods fit elsewhere, of a limited number of nodes: first of those that are not needed so
// far, and then of others in turn.
func (a *autoscaler) check(list []*candidate) {
	last := -1 // the last one that was checked in the decision before, and is needed
	for i, c := range list {
		if strings.Contains(storedOf(c).GetHeldBy(), fitsNowhere) {
			last = i
		}
	}
	turn := slices.Concat(list[last+1:], list[:last+1])
	slices.SortStableFunc(turn, func(x, y *candidate) int {
		return later(storedOf(x).GetSinceTime() != nil, storedOf(y).GetSinceTime() != nil)
	})
	for i, c := range turn {
		if i >= mostCandidates {
			c.held = fmt.Sprintf("%d other nodes are checked first", mostCandidates)
			if t := storedOf(c).GetSinceTime(); t != nil {
				c.since = t.AsTime()
			}
			a.wake(a.v.Now.Add(checkOthers))
		} else if c.held = a.homeless(c); c.held == "" {
			c.since = a.unneededSince(c)
		}
	}
}

// unneededSince returns since when a node that is not needed has not been.
func (a *autoscaler) unneededSince(c *candidate) time.Time {
	if t := storedOf(c).GetSinceTime(); t != nil {
		return t.AsTime()
	}
	return a.v.Now
}

// storedOf returns what the last decision stored of a candidate; nil if it stored nothing.
func storedOf(c *candidate) *machinev1.ScaleDownCandidate {
	for _, s := range c.g.status.GetScaleDownCandidates() {
		if s.GetMachine() == c.machine.GetMetadata().GetName() {
			return s
		}
	}
	return nil
}

// utilization returns the requested part of a node's CPU or memory, whichever is more.
func (a *autoscaler) utilization(n *nodev1.Node) float64 {
	var used placement.Resources
	for _, p := range a.byNode[n.GetMetadata().GetName()] {
		if !a.rules.ignoreDaemons || !placement.IsDaemon(p) {
			used.Add(placement.RequestsOf(p.GetSpec()))
		}
	}
	has, _ := placement.Allocatable(n)
	return max(1-free(used.MilliCPU, has.MilliCPU), 1-free(used.Memory, has.Memory))
}

// moving returns the pods that must find another node if theirs goes.
func (a *autoscaler) moving(n *nodev1.Node) []*schedulingv1.Pod {
	var out []*schedulingv1.Pod
	for _, p := range a.byNode[n.GetMetadata().GetName()] {
		if !placement.IsDaemon(p) && !object.Deleting(p) && p.GetSpec().GetPriority() >= a.rules.priority {
			out = append(out, p)
		}
	}
	return out
}

// bound returns what keeps a machine, whatever other nodes have.
func (a *autoscaler) bound(c *candidate) string {
	for _, o := range []object.Object{c.node, c.machine} {
		if o.GetMetadata().GetAnnotations()[annotationNoScaleDown] == "true" {
			return "it has the annotation " + annotationNoScaleDown
		}
	}
	for _, p := range a.moving(c.node) {
		name := "pod " + object.KeyOf(p).String()
		safe := p.GetMetadata().GetAnnotations()[annotationSafeToEvict]
		switch {
		case safe == "false":
			return name + " has the annotation " + annotationSafeToEvict + "=false"
		case safe != "true" && placement.ControllerOf(p) == nil:
			return name + " has no controller that would create it again"
		case safe != "true" && a.rules.skipLocal && hasLocalStorage(p):
			return name + " has local storage"
		}
		if v, why := disruption.Evict(p, a.budgetsOf(p)); v == disruption.Refuse || v == disruption.Ambiguous {
			return name + ": " + why
		}
	}
	return ""
}

func (a *autoscaler) budgetsOf(p *schedulingv1.Pod) []*schedulingv1.PodDisruptionBudget {
	var out []*schedulingv1.PodDisruptionBudget
	for _, b := range a.v.Budgets {
		if b.GetMetadata().GetNamespace() == p.GetMetadata().GetNamespace() &&
			placement.BudgetSelects(b, p.GetMetadata().GetLabels()) {
			out = append(out, b)
		}
	}
	return out
}

func hasLocalStorage(p *schedulingv1.Pod) bool {
	return slices.ContainsFunc(p.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
		return v.GetEmptyDir() != nil || v.GetHostPath() != nil
	})
}

// homeless returns which pod would fit on no other node if a node went. The pods of nodes that go already need places,
// too; machines under way do not count.
func (a *autoscaler) homeless(c *candidate) string {
	v := &schedulingv1.PlanPlacementRequest_Variation{
		Remove: append(slices.Clone(a.gone), c.node.GetMetadata().GetName()),
	}
	for _, node := range v.GetRemove() {
		for _, p := range a.moving(a.v.Nodes[node]) {
			v.Place = append(v.Place, &schedulingv1.PlanPlacementRequest_PodName{
				Namespace: p.GetMetadata().GetNamespace(), Name: p.GetMetadata().GetName(),
			})
		}
	}
	placed, ok := a.ask("node "+c.node.GetMetadata().GetName(), v)
	if !ok {
		return ""
	}
	for _, p := range placed {
		if p.GetNode() == "" {
			return fmt.Sprintf("pod %s/%s%s: %s", p.GetNamespace(), p.GetName(), fitsNowhere, p.GetMessage())
		}
	}
	return ""
}

// holds returns what keeps a machine whose node is not needed. all is what the cluster will have.
func (a *autoscaler) holds(c *candidate, all sum) string {
	if text := a.lowest(c, all); text != "" {
		return text // no time ends it
	}
	at := a.clock.End(spans.Key(c.since, "unneeded", c.machine.GetMetadata().GetUid()), c.since, a.rules.unneeded)
	if at.After(a.v.Now) {
		a.wake(at)
		return fmt.Sprintf("unneededTime (%v) ends at %s", a.rules.unneeded,
			c.since.Add(a.rules.unneeded).UTC().Format("15:04:05"))
	}
	var added, removed, failed time.Time
	for _, g := range a.groups {
		added = latest(added, g.status.GetLastScaleUpTime())
		removed = latest(removed, g.status.GetLastScaleDownTime())
		failed = latest(failed, g.status.GetLastScaleDownFailureTime())
	}
	for _, d := range []struct {
		name  string
		after time.Time
		delay time.Duration
	}{
		{"delayAfterAdd", added, a.rules.afterAdd},
		{"delayAfterDelete", removed, a.rules.afterDelete},
		{"delayAfterFailure", failed, a.rules.afterFailure},
	} {
		if d.after.IsZero() {
			continue
		}
		if at := a.clock.End(spans.Key(d.after, d.name), d.after, d.delay); at.After(a.v.Now) {
			a.wake(at)
			return fmt.Sprintf("%s (%v) ends at %s", d.name, d.delay, d.after.Add(d.delay).UTC().Format("15:04:05"))
		}
	}
	switch g := c.g; {
	case a.grows:
		return "pods wait for machines that are added"
	case g.desired != g.current:
		return "the set is scaled already"
	case len(g.leaving) > 0:
		return "a machine of the set is being deleted: " + names(g.leaving)
	case g.current != len(g.machines):
		return fmt.Sprintf("the set has %d machines of %d", len(g.machines), g.current)
	}
	return ""
}

// lowest returns the lower limit that keeps a machine.
func (a *autoscaler) lowest(c *candidate, all sum) string {
	one := sum{}
	one.add(c.node, 1)
	switch {
	case c.g.desired <= c.g.low:
		return atMinimum(c.g)
	case (all.milliCPU - one.milliCPU) < int64(a.rules.cores.GetMin())*1000:
		return fmt.Sprintf("the cluster keeps %d cores", a.rules.cores.GetMin())
	case (all.memory - one.memory) < int64(a.rules.memory.GetMin())*gibibyte:
		return fmt.Sprintf("the cluster keeps %d GiB of memory", a.rules.memory.GetMin())
	}
	return ""
}

func atMinimum(g *scaleGroup) string { return fmt.Sprintf("minReplicas is %d", g.low) }

func latest(t time.Time, o *timestamppb.Timestamp) time.Time {
	if o != nil && o.AsTime().After(t) {
		return o.AsTime()
	}
	return t
}
