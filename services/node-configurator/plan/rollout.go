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
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// View is everything that decides about a pool.
type View struct {
	Now     time.Time                   // UTC
	Pool    *configv1.MachineConfigPool // nil if it is gone or being deleted
	Target  *configv1.MachineConfig     // the configuration of Pool; nil if it is not known
	Members Members
	Drains  map[string]*nodev1.Drain // by the node that they empty for its configuration
	// What the machine configurations of the pool make together; the zero Rendered if they were not rendered: then the
	// pool keeps its configuration.
	Rendered Rendered
	Stored   bool      // Rendered is stored
	Failure  string    // why the pool's configuration cannot be rendered or not put in force; empty if it can
	Settled  time.Time // when the last change of machine configurations will have settled; zero if none was seen
	Windows  Windows
	gate     *maintenance.State // what Windows says, computed once for all nodes; nil before that
	waves    *waves             // of the pool; nil if it has none
	// Rendered configurations of the pool that neither a pool nor a node uses, in any order.
	Unused []*configv1.MachineConfig
}

// Settling reports whether a machine configuration has just changed: the configuration of the pool is not rendered
// before the changes have settled, so that several make one roll-out. A pool that is held does not wait for them.
func (v View) Settling() bool { return v.Pool.GetSpec().GetPin() == nil && v.Now.Before(v.Settled) }

// paused returns what holds back the nodes of the pool.
func (v View) paused() *Pause { return Paused(v.Pool, v.Now) }

// boots reports whether a first configuration of the pool restarts a node, since it has an operating system.
func (v View) boots() bool { return !machineconfig.SystemOf(v.Target).Equal(machineconfig.System{}) }

// disturbs reports whether a first configuration of the pool may disturb a node: it restarts it, or changes the files
// of a host, which it may cut off.
func (v View) disturbs(n *nodev1.Node) bool {
	return v.boots() || n.GetMetadata().GetLabels()[nodeid.FilesLabel] != ""
}

// changing reports whether a node is disturbed on its way to its target.
func (v View) changing(n *nodev1.Node) bool {
	target := v.Pool.GetSpec().GetConfiguration().GetName()
	return changing(n) || v.disturbs(n) && mark(n, CurrentConfig) == "" && rolling(n) &&
		(mark(n, DesiredConfig) == target || v.Drains[n.GetMetadata().GetName()] != nil)
}

// bare reports whether a node serves without any configuration, and is to have none yet.
func bare(n *nodev1.Node) bool {
	return mark(n, CurrentConfig) == "" && mark(n, DesiredConfig) == "" && ready(n)
}

// unavailable reports whether a node counts against maxUnavailable. One that serves without any configuration does not
// if its first one disturbs it.
func (v View) unavailable(n *nodev1.Node) bool {
	return unavailable(n) && !(v.disturbs(n) && bare(n))
}

// keepUnused is how many unused rendered configurations of a pool are kept, so that recent ones can be inspected.
const keepUnused = 5

// Rollout is the state of a roll-out that a plan was decided by.
type Rollout struct {
	MaxUnavailable int
	Unavailable    int
	Capacity       int      // how many more nodes that are available may begin
	Next           []string // nodes that get the pool's configuration as their target now, in order
	Nodes          []*configv1.PlanMachineConfigPoolResponse_NodePlan

	under  int // nodes that change to another configuration, those of Next included
	failed int // nodes that serve although they failed on the pool's configuration
	begun  int // nodes of Next that were available
	behind int // nodes that do not get the pool's configuration as their target yet
}

// States of nodes in a plan.
const (
	Updated     = "Updated"
	Updating    = "Updating"
	Waiting     = "Waiting"
	Unavailable = "Unavailable"
)

// MaxUnavailable returns how many of so many nodes of a pool may be unavailable at once, 1 or more. Percentages are
// rounded down. Masters and arbiters go one at a time, whatever is given: each may hold a voter.
func MaxUnavailable(pool *configv1.MachineConfigPool, nodes int) int {
	if name := pool.GetMetadata().GetName(); name == MasterPool || name == arbiterPool {
		return 1
	}
	v := pool.GetSpec().GetMaxUnavailable()
	if p, ok := v.GetKind().(*structpb.Value_StringValue); ok {
		digits, found := strings.CutSuffix(p.StringValue, "%")
		percent, err := strconv.Atoi(digits)
		if !found || err != nil {
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

// Pool decides which configuration is the target of a pool, which of its nodes begin to change to it now, what its
// status is, and which former configurations are deleted. A plan that aims the pool at another configuration does
// nothing else: decide again once that is stored.
//
// A node without any configuration gets one without an operating system at once, and so does one that goes back to the
// configuration that it has: neither disturbs a pod. A node that is down for another target, which is abandoned, gets
// the new one at once, too. Of the others, nodes that are down come first and cost nothing, since they do no work;
// nodes that serve begin while fewer than MaxUnavailable are unavailable, those that failed on an abandoned target
// first, then by zone and age. Never more than MaxUnavailable nodes are under way at once. While maintenance windows
// apply to the pool and none is open, no node begins that is not down for another target. Of a pool with waves, a node
// that is not under way begins when the waves before its own are updated and have soaked.
func Pool(v View) (Plan, Rollout) {
	if v.Pool == nil {
		var p Plan
		p.sweep(v, 0)
		return p, Rollout{}
	}
	if a := aim(v); a != nil {
		return Plan{Do: []Action{*a}}, Rollout{}
	}
	gate := v.window()
	v.gate, v.waves = &gate, wavesOf(v)
	p, r := rollOut(v)
	if v.Settling() {
		p.wake(v.Settled)
	}
	if until := v.paused().GetUntil(); until != nil {
		p.wake(until.AsTime())
	}
	for _, wake := range []time.Time{v.window().Wake, v.waves.wakes()} {
		if !wake.IsZero() {
			p.wake(wake)
		}
	}
	next := object.Clone(v.Pool)
	next.Status = status(v, &r)
	updated := object.FindCondition(next.GetStatus().GetConditions(), ConditionUpdated)
	switch {
	case !proto.Equal(v.Pool.GetStatus(), next.GetStatus()):
		p.Do = append(p.Do, Action{Verb: StorePool, Object: object.Reference(next), Pool: next})
	case !v.Settling() && v.Failure == "":
		p.sweep(v, keepUnused) // also while the pool is paused or degraded, which may be for long
	}
	if p.WaitsFor = ""; updated.GetStatus() != "True" {
		p.WaitsFor = updated.GetMessage()
	}
	return p, r
}

// Foresee returns what Pool decides in the end: a pool that is aimed at another configuration is decided about as it is
// stored then. It also returns the status of the pool after that.
func Foresee(v View) (Plan, Rollout, *configv1.MachineConfigPoolStatus) {
	p, r := Pool(v)
	if aimed := p.Aimed(); aimed != nil {
		v.Pool, v.Target, v.Rendered = aimed, v.Rendered.Config, Rendered{}
		p, r = Pool(v)
	}
	return p, r, p.StatusAfter(v.Pool)
}

// aim returns the action that makes the rendered configuration the target of a pool; nil if it is and is stored.
func aim(v View) *Action {
	cfg := v.Rendered.Config
	if cfg == nil || v.Settling() {
		return nil
	}
	next := object.Clone(v.Pool)
	if next.Spec == nil {
		next.Spec = &configv1.MachineConfigPoolSpec{}
	}
	next.Spec.Configuration = &configv1.MachineConfigPoolConfiguration{Name: cfg.GetMetadata().GetName()}
	for _, s := range v.Rendered.Sources {
		next.Spec.Configuration.Source = append(next.Spec.Configuration.Source,
			&metav1.ObjectReference{ApiVersion: cfg.GetApiVersion(), Kind: cfg.GetKind(), Name: s})
	}
	// A waiver is for the change that was urgent, and not for the same content at another time.
	if was := v.Pool.GetSpec().GetConfiguration().GetName(); was != cfg.GetMetadata().GetName() &&
		next.GetSpec().GetWindowWaiver().GetConfiguration() == was {
		next.Spec.WindowWaiver = nil
	}
	if v.Stored && proto.Equal(next.GetSpec(), v.Pool.GetSpec()) {
		return nil
	}
	a := &Action{Verb: AimPool, Object: object.Reference(next), Pool: next}
	if !v.Stored {
		a.Config = cfg
		a.Reason = "made from " + strings.Join(v.Rendered.Sources, ", ")
	}
	return a
}

// sweep deletes unused configurations, but for the newest few.
func (p *Plan) sweep(v View, keep int) {
	unused := slices.Clone(v.Unused)
	slices.SortFunc(unused, func(a, b *configv1.MachineConfig) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		return cmp.Or(x.GetCreationTimestamp().AsTime().Compare(y.GetCreationTimestamp().AsTime()),
			strings.Compare(y.GetName(), x.GetName()))
	})
	for _, cfg := range unused[:max(0, len(unused)-keep)] {
		p.Do = append(p.Do, Action{Verb: DeleteConfig, Object: object.Reference(cfg), Config: cfg})
	}
}

// rollOut decides which nodes begin now.
func rollOut(v View) (Plan, Rollout) {
	target := v.Pool.GetSpec().GetConfiguration().GetName()
	r := Rollout{MaxUnavailable: MaxUnavailable(v.Pool, len(v.Members.Nodes))}
	var p Plan
	for _, n := range v.Members.Nodes {
		if v.unavailable(n) {
			r.Unavailable++
		}
		if mark(n, DesiredConfig) == target && stuck(n) {
			r.failed++
		}
		// A node that failed on an abandoned target and serves is at rest: another one that is down need not wait for it.
		atRest := mark(n, DesiredConfig) != target && stuck(n) && ready(n)
		if v.changing(n) && !atRest {
			r.under++
		}
	}
	if v.Members.Wait == "" {
		r.Capacity = max(0, r.MaxUnavailable-r.Unavailable-r.failed)
	}
	next := map[string]string{} // why
	if target != "" && !v.Settling() && v.Failure == "" {
		next = r.begin(v, target, &p)
	}
	if v.paused() != nil || v.window().Closed() {
		r.Capacity = 0
	}
	for _, n := range v.Members.Nodes {
		r.Nodes = append(r.Nodes, r.describe(v, n, target, next, &p))
	}
	return p, r
}

// begin chooses the nodes that get a target now.
func (r *Rollout) begin(v View, target string, p *Plan) map[string]string {
	next := map[string]string{}
	take := func(n *nodev1.Node, why string) {
		name := n.GetMetadata().GetName()
		p.Do = append(p.Do, Action{Verb: SetDesired, Object: object.Reference(n), Reason: why, Node: n, Target: target})
		r.Next = append(r.Next, name)
		next[name] = why
	}
	var down, abandoned, others []*nodev1.Node
	paused, closed := v.paused() != nil, v.window().Closed()
	for _, n := range inOrder(v.Members.Nodes) {
		former := "its former target " + mark(n, DesiredConfig) + " is abandoned"
		switch {
		case mark(n, DesiredConfig) == target || n.GetMetadata().GetDeletionTimestamp() != nil:
		case mark(n, CurrentConfig) == "" && !v.disturbs(n):
			take(n, "it has no configuration yet")
		case paused:
		case rolling(n) && (mark(n, CurrentConfig) == target || v.changing(n) && !ready(n) && (!closed || v.downFor(n))):
			take(n, former)
		case closed:
		case v.waves.before(n) != nil && !(v.changing(n) && !stuck(n)): // one that is under way counts as unavailable
		case rolling(n) && ready(n):
			abandoned = append(abandoned, n)
		case !up(n) || rolling(n): // rolling: it is on its way back to what it has, and still cordoned
			down = append(down, n)
		case ready(n): // one that is up and not ready runs its pods, but is held: it waits for that
			others = append(others, n)
		}
	}
	for _, n := range down {
		if r.under < r.MaxUnavailable {
			take(n, "it is unavailable already, so it does no work")
			r.under++
		}
	}
	for _, n := range append(abandoned, others...) {
		underWay := v.changing(n) && !stuck(n) // it is counted already
		switch {
		case v.Members.Wait != "" || r.under >= r.MaxUnavailable && !underWay:
			continue
		case v.unavailable(n) && r.Unavailable+r.begun <= r.MaxUnavailable:
			// It serves, and counts as unavailable: it has not been drained yet, or its disk differs from its configuration.
			take(n, "it counts as unavailable already")
		case !v.unavailable(n) && r.begun < r.Capacity:
			take(n, fmt.Sprintf("%d of %d nodes that may be unavailable are", r.MaxUnavailable-r.Capacity+r.begun,
				r.MaxUnavailable))
			r.begun++
		default:
			continue
		}
		if !underWay {
			r.under++
		}
	}
	return next
}

// inOrder returns nodes by zone, those without one last, and inside a zone the oldest first. Source: MCO.
func inOrder(nodes []*nodev1.Node) []*nodev1.Node {
	type place struct {
		zone    string
		created time.Time
		node    *nodev1.Node
	}
	places := make([]place, len(nodes))
	for i, n := range nodes {
		places[i] = place{zone(n), n.GetMetadata().GetCreationTimestamp().AsTime(), n}
	}
	slices.SortStableFunc(places, func(a, b place) int {
		if (a.zone == "") != (b.zone == "") {
			return cmp.Compare(b.zone, a.zone)
		}
		return cmp.Or(cmp.Compare(a.zone, b.zone), a.created.Compare(b.created),
			cmp.Compare(a.node.GetMetadata().GetName(), b.node.GetMetadata().GetName()))
	})
	out := make([]*nodev1.Node, len(places))
	for i, p := range places {
		out[i] = p.node
	}
	return out
}

func zone(n *nodev1.Node) string {
	l := n.GetMetadata().GetLabels()
	return cmp.Or(l["topology.kubernetes.io/zone"], l["failure-domain.beta.kubernetes.io/zone"])
}

// describe returns what one node is doing, and adds to the plan what is held back.
func (r *Rollout) describe(v View, n *nodev1.Node, target string, next map[string]string,
	p *Plan,
) *configv1.PlanMachineConfigPoolResponse_NodePlan {
	name := n.GetMetadata().GetName()
	out := &configv1.PlanMachineConfigPoolResponse_NodePlan{
		Node: name, Current: mark(n, CurrentConfig), Desired: mark(n, DesiredConfig), Wave: v.waves.nameOf(n),
	}
	if why, ok := next[name]; ok {
		out.State, out.Desired, out.Reason = Updating, target, "begins: "+why
		return out
	}
	switch {
	case failed(n):
		out.State, out.Reason = degraded, mark(n, Reason)
	case out.Desired != "" && !done(n):
		out.State, out.Reason = Updating, progress(n, v.Drains[name])
		if v.undisturbed(n) && mark(n, Reason) == "" && v.window().Closed() {
			out.Reason = v.window().Waits
		}
	case target != "" && out.Desired != target:
		out.State, out.Reason = Waiting, r.obstacle(v, n)
	case !ready(n):
		out.State, out.Reason = Unavailable, "the node is not ready or unschedulable"
	case target == "":
		out.State, out.Reason = Waiting, "the pool has no configuration yet"
	default:
		out.State, out.Reason = Updated, "it has the pool's configuration"
	}
	if target != "" && out.Desired != target {
		r.behind++
		h := &metav1.HeldBack{Action: SetDesired, Reason: r.obstacle(v, n)}
		resume := "windlass rollout resume machineconfigpool/" + v.Pool.GetMetadata().GetName()
		switch pause := v.paused(); {
		case v.Failure != "" || v.Settling():
		case pause != nil:
			h.SinceTime, h.Unblock = timestamppb.New(v.waitsSince(pause)), resume
		case v.window().Closed():
			h.SinceTime, h.Unblock = timestamppb.New(v.behindSince()), "the window opens, or "+resume+" --now --reason TEXT"
		case v.waves.before(n) != nil:
			h.SinceTime = timestamppb.New(v.waves.before(n).since)
		}
		p.hold(n, h)
	}
	return out
}

// progress says what a node that is under way is doing.
func progress(n *nodev1.Node, d *nodev1.Drain) string {
	switch {
	case mark(n, State) == rebooting:
		return "the machine restarts"
	case d == nil || mark(n, State) == "":
		return cmp.Or(mark(n, Reason), "its agent is ordered to apply the configuration")
	case d.GetStatus().GetPhase() != drained:
		text := strings.Join(append([]string{d.GetStatus().GetMessage()}, d.GetStatus().GetBlocked()...), "; ")
		return "is drained: " + cmp.Or(strings.Trim(text, "; "), "the drain has not begun")
	case !n.GetSpec().GetUnschedulable():
		return "is drained, but schedulable: its agent waits until it is unschedulable again"
	}
	return cmp.Or(mark(n, Reason), "is drained, its agent applies the configuration")
}

// obstacle says why a node does not begin.
func (r *Rollout) obstacle(v View, n *nodev1.Node) string {
	switch {
	case v.Failure != "":
		return "the pool is RenderDegraded: " + v.Failure
	case v.Settling():
		return "machine configs have just changed"
	case v.paused() != nil:
		return PauseText(v.Pool, v.paused())
	case v.window().Closed():
		return v.window().Waits
	case v.waves.before(n) != nil:
		return v.waves.before(n).blocks
	case up(n) && !ready(n):
		return "the node is unschedulable or under pressure: it begins when it can be given work again"
	case up(n) && v.Members.Wait != "":
		return v.Members.Wait
	case up(n) && r.Unavailable+r.begun >= r.MaxUnavailable:
		return fmt.Sprintf("%d of %d nodes that may be unavailable are", r.Unavailable+r.begun, r.MaxUnavailable)
	case up(n) && r.under < r.MaxUnavailable:
		return fmt.Sprintf("%d of %d nodes that may be unavailable are, and %d failed on this configuration",
			r.Unavailable+r.begun, r.MaxUnavailable, r.failed)
	}
	return fmt.Sprintf("%d of %d nodes that may change at once have not finished", r.under, r.MaxUnavailable)
}
