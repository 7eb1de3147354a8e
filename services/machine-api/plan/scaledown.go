package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/disruption"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/types/known/timestamppb"
)

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
	for _, c := range candidates {
		if c.held == "" {
			c.held = a.holds(c)
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
	for _, c := range candidates {
		s := c.g.status
		if len(s.ScaleDownCandidates) < mostListed && !slices.ContainsFunc(c.g.remove,
			func(r ScaleDown) bool { return r.Machine == c.machine }) {
			s.ScaleDownCandidates = append(s.ScaleDownCandidates, &machinev1.ScaleDownCandidate{
				Machine: c.machine.GetMetadata().GetName(), Node: c.node.GetMetadata().GetName(),
				UtilizationPercent: int32(c.used * 100), SinceTime: since(c.since), HeldBy: c.held,
			})
		}
	}
}

// candidates returns the machines whose nodes are used less than the threshold, by group and name.
func (a *autoscaler) candidates() []*candidate {
	var out []*candidate
	asked := 0
	for _, g := range a.groups {
		if g.fault != "" || !a.rules.down {
			continue
		}
		for _, m := range g.machines {
			n := linkedNode(a.v.Nodes, m)
			ready, _ := readySince(n)
			used := a.utilization(n)
			if !ready || used >= a.rules.threshold || isControlPlaneNode(n) {
				continue
			}
			c := &candidate{g: g, machine: m, node: n, used: used}
			out = append(out, c)
			if c.held = a.bound(c); c.held != "" {
				continue
			}
			before := sinceOf(g.status.GetScaleDownCandidates(), m)
			if len(a.moving(n)) > 0 {
				if asked++; asked > mostCandidates {
					c.held, c.since = fmt.Sprintf("%d other nodes are checked first", mostCandidates), before.AsTime()
					if before == nil {
						c.since = time.Time{}
					}
					continue
				}
				if c.held = a.homeless(c); c.held != "" {
					continue
				}
			}
			if c.since = a.v.Now; before != nil {
				c.since = before.AsTime()
			}
		}
	}
	return out
}

// sinceOf returns since when a machine's node was not needed at the last decision; nil if it was needed.
func sinceOf(list []*machinev1.ScaleDownCandidate, m *machinev1.Machine) *timestamppb.Timestamp {
	for _, c := range list {
		if c.GetMachine() == m.GetMetadata().GetName() {
			return c.GetSinceTime()
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
			return fmt.Sprintf("pod %s/%s fits on no other node: %s", p.GetNamespace(), p.GetName(), p.GetMessage())
		}
	}
	return ""
}

// holds returns what keeps a machine whose node is not needed.
func (a *autoscaler) holds(c *candidate) string {
	if text := a.lowest(c); text != "" {
		return text // no time ends it
	}
	if at := c.since.Add(a.rules.unneeded); at.After(a.v.Now) {
		a.wake(at)
		return fmt.Sprintf("unneededTime (%v) ends at %s", a.rules.unneeded, at.UTC().Format("15:04:05"))
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
		if at := d.after.Add(d.delay); !d.after.IsZero() && at.After(a.v.Now) {
			a.wake(at)
			return fmt.Sprintf("%s (%v) ends at %s", d.name, d.delay, at.UTC().Format("15:04:05"))
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
func (a *autoscaler) lowest(c *candidate) string {
	all, one := a.total(), sum{}
	one.add(c.node, 1)
	switch {
	case c.g.desired <= c.g.low:
		return fmt.Sprintf("minReplicas is %d", c.g.low)
	case (all.milliCPU - one.milliCPU) < int64(a.rules.cores.GetMin())*1000:
		return fmt.Sprintf("the cluster keeps %d cores", a.rules.cores.GetMin())
	case (all.memory - one.memory) < int64(a.rules.memory.GetMin())*gibibyte:
		return fmt.Sprintf("the cluster keeps %d GiB of memory", a.rules.memory.GetMin())
	}
	return ""
}

func latest(t time.Time, o *timestamppb.Timestamp) time.Time {
	if o != nil && o.AsTime().After(t) {
		return o.AsTime()
	}
	return t
}
