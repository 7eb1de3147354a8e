package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// View is everything that decides about a pool.
type View struct {
	Now      time.Time // UTC
	Pool     *configv1.MachineConfigPool
	Members  Members
	Drains   map[string]*nodev1.Drain // by the node that they empty for its configuration
	Failure  string                   // why the pool's configuration cannot be rendered; empty if it can
	Settling bool                     // something was changed just now: its configuration is about to be rendered anew
}

// Rollout is what becomes of a pool. The zero Rollout begins with no node.
type Rollout struct {
	MaxUnavailable int
	Unavailable    int
	Capacity       int      // how many more nodes that are available may begin
	Next           []string // nodes that get the pool's configuration as their target now, in order
	Nodes          []*configv1.PlanMachineConfigPoolResponse_NodePlan
	Actions        []*metav1.PlannedAction
	HeldBack       []*metav1.HeldBack
	Status         *configv1.MachineConfigPoolStatus
	Completed      bool // every node has the configuration, for the first time

	under int // nodes that were told to change and have not done so
}

// States of nodes in a plan.
const (
	Updated     = "Updated"
	Updating    = "Updating"
	Waiting     = "Waiting"
	Unavailable = "Unavailable"
)

// MaxUnavailable returns how many of so many nodes of a pool may be unavailable at once, 1 or more. Percentages are
// rounded down. Masters go one at a time, whatever is given: each may hold a voter.
func MaxUnavailable(pool *configv1.MachineConfigPool, nodes int) int {
	if pool.GetMetadata().GetName() == masterPool {
		return 1
	}
	v := pool.GetSpec().GetMaxUnavailable()
	if p, ok := v.GetKind().(*structpb.Value_StringValue); ok {
		percent, err := strconv.Atoi(strings.TrimSuffix(p.StringValue, "%"))
		if err != nil {
			return 1
		}
		return max(1, nodes*min(percent, 100)/100)
	}
	return max(1, int(v.GetNumberValue()))
}

// MaxUnavailableFault returns what is wrong with maxUnavailable beyond what the message's own rule finds; empty for
// nothing.
func MaxUnavailableFault(v *structpb.Value) string {
	s, ok := v.GetKind().(*structpb.Value_StringValue)
	if !ok {
		return ""
	}
	percent, found := strings.CutSuffix(s.StringValue, "%")
	n, err := strconv.Atoi(percent)
	if found && err == nil && (n < 1 || n > 100) {
		return fmt.Sprintf("is %q, must be between 1%% and 100%%", s.StringValue)
	}
	return ""
}

// Pool decides which nodes of a pool begin now, and what its status is.
//
// A node without any configuration gets it at once. A node that was told to change to something else and has not done
// so is told the new target at once: it is down for it already. Of the others, nodes that are down come first and cost
// nothing, since nobody loses them; nodes that can be given work begin while fewer than MaxUnavailable are unavailable,
// by zone and age. Never more than MaxUnavailable nodes are under way at once.
func Pool(v View) Rollout {
	target := v.Pool.GetSpec().GetConfiguration().GetName()
	r := Rollout{MaxUnavailable: MaxUnavailable(v.Pool, len(v.Members.Nodes))}
	failing := 0
	for _, n := range v.Members.Nodes {
		if unavailable(n) {
			r.Unavailable++
		}
		if mark(n, DesiredConfig) == target && stuck(n) {
			failing++
		}
		if mark(n, CurrentConfig) != "" && rolling(n) {
			r.under++
		}
	}
	r.Capacity = max(0, r.MaxUnavailable-r.Unavailable-failing)
	next := map[string]string{} // why
	if target != "" && !v.Settling && v.Failure == "" {
		next = r.begin(v, target)
	}
	for _, n := range v.Members.Nodes {
		r.tell(v, n, target, next)
	}
	r.Status, r.Completed = status(v, &r)
	return r
}

// begin chooses the nodes that get a target now.
func (r *Rollout) begin(v View, target string) map[string]string {
	next := map[string]string{}
	take := func(n *nodev1.Node, why string) {
		name := n.GetMetadata().GetName()
		r.Next = append(r.Next, name)
		next[name] = why
	}
	var down, candidates []*nodev1.Node
	for _, n := range inOrder(v.Members.Nodes) {
		switch {
		case mark(n, DesiredConfig) == target || n.GetMetadata().GetDeletionTimestamp() != nil:
		case mark(n, CurrentConfig) == "":
			take(n, "it has no configuration yet")
		case v.Pool.GetSpec().GetPaused():
		case rolling(n):
			take(n, "its former target "+mark(n, DesiredConfig)+" is abandoned")
		case !up(n):
			down = append(down, n)
		case ready(n): // one that is up and not ready runs its pods, but somebody holds it: it waits for that
			candidates = append(candidates, n)
		}
	}
	free := r.MaxUnavailable - r.under
	for _, n := range down {
		if free > 0 {
			take(n, "it is unavailable already, so nobody loses it")
			free--
		}
	}
	// A node that serves although it counts as unavailable (its disk differs from its configuration) is its own obstacle
	// and nobody else's.
	capacity := r.Capacity
	for _, n := range candidates {
		switch {
		case free <= 0:
		case unavailable(n) && r.Unavailable <= r.MaxUnavailable:
			take(n, "it counts as unavailable already")
			free--
		case !unavailable(n) && capacity > 0:
			take(n, fmt.Sprintf("%d of %d nodes that may be unavailable are", r.MaxUnavailable-capacity, r.MaxUnavailable))
			capacity--
			free--
		}
	}
	return next
}

// inOrder returns nodes by zone, those without one last, and inside a zone the oldest first. Source: MCO.
func inOrder(nodes []*nodev1.Node) []*nodev1.Node {
	out := slices.Clone(nodes)
	slices.SortStableFunc(out, func(a, b *nodev1.Node) int {
		za, zb := zone(a), zone(b)
		if (za == "") != (zb == "") {
			return cmp.Compare(zb, za)
		}
		return cmp.Or(cmp.Compare(za, zb),
			a.GetMetadata().GetCreationTimestamp().AsTime().Compare(b.GetMetadata().GetCreationTimestamp().AsTime()),
			cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()))
	})
	return out
}

func zone(n *nodev1.Node) string {
	l := n.GetMetadata().GetLabels()
	return cmp.Or(l["topology.kubernetes.io/zone"], l["failure-domain.beta.kubernetes.io/zone"])
}

// tell writes down what one node is doing, and what is done about it.
func (r *Rollout) tell(v View, n *nodev1.Node, target string, next map[string]string) {
	name := n.GetMetadata().GetName()
	p := &configv1.PlanMachineConfigPoolResponse_NodePlan{
		Node: name, Current: mark(n, CurrentConfig),
		Desired: mark(n, DesiredConfig),
	}
	r.Nodes = append(r.Nodes, p)
	ref := &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: name, Uid: n.GetMetadata().GetUid()}
	if why, ok := next[name]; ok {
		p.State, p.Desired, p.Reason = Updating, target, "begins: "+why
		r.Actions = append(r.Actions, &metav1.PlannedAction{
			Action: "SetDesiredConfig", Object: ref, Reason: why, Details: map[string]string{"machineConfig": target},
		})
		return
	}
	switch {
	case failed(n):
		p.State, p.Reason = degraded, mark(n, Reason)
	case p.Desired != "" && !done(n):
		p.State, p.Reason = Updating, progress(n, v.Drains[name])
	case target != "" && p.Desired != target:
		p.State, p.Reason = Waiting, r.obstacle(v, n)
	case !ready(n):
		p.State, p.Reason = Unavailable, "the node is not ready or unschedulable"
	case target == "":
		p.State, p.Reason = Waiting, "the pool has no configuration yet"
	default:
		p.State, p.Reason = Updated, "it has the pool's configuration"
	}
	if target != "" && p.Desired != target {
		r.HeldBack = append(r.HeldBack, &metav1.HeldBack{
			Action: "SetDesiredConfig", Object: ref, Reason: r.obstacle(v, n), Unblock: unblock(v),
		})
	}
}

// progress says what a node that is under way is doing.
func progress(n *nodev1.Node, d *nodev1.Drain) string {
	switch {
	case mark(n, State) == rebooting:
		return "the machine restarts"
	case d == nil || mark(n, State) == "":
		return "its agent is told to take the configuration up"
	case d.GetStatus().GetPhase() != drained:
		text := strings.Join(append([]string{d.GetStatus().GetMessage()}, d.GetStatus().GetBlocked()...), "; ")
		return "is drained: " + cmp.Or(strings.Trim(text, "; "), "the drain has not begun")
	}
	return cmp.Or(mark(n, Reason), "is drained, its agent takes the configuration up")
}

// obstacle says why a node does not begin.
func (r *Rollout) obstacle(v View, n *nodev1.Node) string {
	switch {
	case v.Failure != "":
		return "the pool's configuration cannot be rendered: " + v.Failure
	case v.Settling:
		return "machine configs have just changed"
	case v.Pool.GetSpec().GetPaused():
		return "the pool is paused"
	case up(n) && !ready(n):
		return "the node is unschedulable or under pressure: it begins when it can be given work again"
	case r.Unavailable < r.MaxUnavailable:
		return fmt.Sprintf("%d of %d nodes that may change at once have not finished", r.under, r.MaxUnavailable)
	}
	return fmt.Sprintf("%d of %d nodes that may be unavailable are", r.Unavailable, r.MaxUnavailable)
}

func unblock(v View) string {
	if v.Pool.GetSpec().GetPaused() {
		return "set spec.paused to false"
	}
	return ""
}
