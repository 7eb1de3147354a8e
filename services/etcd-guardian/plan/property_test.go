package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

const tick = 100 * time.Millisecond

// simMember is one member as it truly is.
type simMember struct {
	id       uint64
	node     string
	learner  bool
	started  bool // once
	running  bool
	broken   bool // a fault: it does not run until it is repaired
	lost     bool // its machine's instance is gone
	hampered bool // a learner that does not catch up
	applied  int64
	silent   time.Time // as the guardian noted it
	progress time.Time
	stop     time.Time
	trust    int       // the authorities that it trusts since it was started
	told     time.Time // when the guardian last commanded its agent to restart it
	order    int       // authorities that its agent was commanded to trust; 0 for none
	back     time.Time // when it is up again after that
}

func (m *simMember) up() bool { return m.running && m.started && !m.broken && !m.lost }

type simMachine struct {
	plan.Machine
	attended bool
	gone     bool
	notAgain time.Time
}

// world imitates etcd, machine-api with a control-plane machine set, and agents.
type world struct {
	t         rapid.TB
	draw      func(lo, hi int, what string) int // both included
	now       time.Time
	members   []*simMember
	machines  []*simMachine
	leader    uint64
	log       int64
	promoted  time.Time
	permit    *plan.Permit
	retired   bool
	endpoints []string
	published time.Time
	refused   bool
	desired   int
	nextID    uint64
	nextName  int
	faults    bool
	freeAt    time.Time // when the other holder's permit is released
	repairAt  time.Time // when the voter that it took down is up again
	trust     int       // the authorities that members have to trust
	hosts     bool      // the bootstrap member is on the host of the first machine
	elsewhere bool      // this guardian is on another host, so that it cannot end the bootstrap member
	trace     []string
}

func newWorld(t rapid.TB, desired int, draw func(lo, hi int, what string) int) *world {
	w := &world{t: t, draw: draw, now: time.Unix(1e9, 0).UTC(), desired: desired, faults: true, log: 1000, trust: 1}
	w.members = []*simMember{{id: w.id(), node: plan.BootstrapName, started: true, running: true, applied: 1000, trust: 1}}
	w.leader = w.members[0].id
	for range desired {
		w.newMachine()
	}
	return w
}

func (w *world) id() uint64 { w.nextID++; return w.nextID }

func (w *world) newMachine() {
	w.nextName++
	name := fmt.Sprintf("m%d", w.nextName)
	w.machines = append(w.machines, &simMachine{Machine: plan.Machine{
		Name: name, Namespace: "ns", UID: name, Index: (w.nextName - 1) % w.desired, Node: name, Addresses: []string{
			"127.0.0." + fmt.Sprint(w.nextName),
		},
	}})
}

func (w *world) voters() (all, healthy int) {
	for _, m := range w.members {
		if !m.learner {
			all++
			if m.up() {
				healthy++
			}
		}
	}
	return all, healthy
}

func (w *world) quorum() bool {
	all, healthy := w.voters()
	return healthy >= plan.Majority(all)
}

func (w *world) machine(node string) *simMachine {
	for _, m := range w.machines {
		if m.Node == node && !m.gone {
			return m
		}
	}
	return nil
}

func peerURL(m *simMachine) string { return "https://" + m.Addresses[0] + ":2380" }

func (w *world) view() plan.View {
	v := plan.View{
		Fresh: w.quorum(), MachinesKnown: true, NodesKnown: true, Permit: w.permit, Desired: w.desired,
		BootstrapRetired: w.retired, BootstrapElsewhere: w.elsewhere,
		Endpoints: w.endpoints, EndpointsAge: w.now.Sub(w.published), AddRefused: w.refused,
		Trust: fmt.Sprint(w.trust),
	}
	for _, m := range w.members {
		p := plan.Member{
			ID: m.id, Learner: m.learner, Leader: m.id == w.leader, Healthy: m.up() && (w.quorum() || m.learner), Runs: m.up(),
			Applied: m.applied,
			Idle:    w.now.Sub(m.progress), Stopping: !m.stop.IsZero(), StoppingFor: w.now.Sub(m.stop),
			Trust: fmt.Sprint(m.trust), Restarting: !m.told.IsZero() && m.trust != w.trust, RestartFor: w.now.Sub(m.told),
		}
		if !m.silent.IsZero() {
			p.Silent = w.now.Sub(m.silent)
		}
		if m.started {
			p.Name, p.ClientURLs = m.node, []string{"https://" + m.node}
		}
		if sm := w.machine(m.node); sm != nil {
			p.PeerURLs = []string{peerURL(sm)}
		}
		if m.node == plan.BootstrapName && w.hosts {
			p.PeerURLs = []string{"https://" + w.machines[0].Addresses[0] + ":2390"}
		}
		v.Members = append(v.Members, p)
	}
	for _, m := range w.machines {
		if !m.gone {
			v.Machines = append(v.Machines, m.Machine)
			if m.attended {
				v.Offers = append(v.Offers, plan.Offer{Node: m.Node, PeerURL: peerURL(m), Wait: m.notAgain.Sub(w.now)})
			}
		}
	}
	return v
}

// pass lets a moment go by: processes start, learners catch up, leaders are elected, machines come and go.
func (w *world) pass() {
	w.now = w.now.Add(tick)
	w.log += 5
	for _, m := range w.members {
		sm := w.machine(m.node)
		m.lost = sm == nil && m.node != plan.BootstrapName
		agent := m.node == plan.BootstrapName || sm != nil && sm.attended
		if agent && !m.lost && !m.broken {
			w.restart(m)
			wanted := m.stop.IsZero() && !w.now.Before(m.back)
			if m.running && !wanted || !m.running && wanted {
				w.checkStop(m, wanted)
				m.running = wanted
				m.started = m.started || wanted
				m.trust = w.trust // counts only while it runs
			}
		}
		if m.up() && !(m.learner && m.hampered) && w.quorum() {
			if m.learner {
				m.progress = w.now
			}
			m.applied = w.log
		}
		switch {
		case m.up() && (w.quorum() || m.learner):
			m.silent = time.Time{}
		case m.silent.IsZero():
			m.silent = w.now
		}
	}
	w.elect()
	w.machineAPI()
	if !w.repairAt.IsZero() && !w.now.Before(w.repairAt) {
		w.repairAt = time.Time{}
		if m := w.disturbed(); m != nil {
			m.broken = false
		}
	}
	if !w.freeAt.IsZero() && !w.now.Before(w.freeAt) {
		w.freeAt = time.Time{}
		if w.permit != nil && !w.permit.Ours {
			w.permit.Released = true
		}
	}
}

// restart has an agent follow the order to start its member again, perhaps long after it was given.
func (w *world) restart(m *simMember) {
	order := m.order
	m.order = 0
	if order == 0 || order == m.trust || !m.running {
		return
	}
	if !m.learner && (w.permit == nil || w.permit.Reason != plan.RotationReason ||
		w.permit.Machine.GetUid() != w.machine(m.node).UID) {
		w.t.Fatalf("%s goes down without the permit", m.node)
	}
	m.running, m.back = false, w.now.Add(time.Duration(w.draw(1, 30, "restart"))*tick)
}

// checkStop: no member stops while another voter has been silent for so long that the guardian knows.
func (w *world) checkStop(m *simMember, wanted bool) {
	for _, o := range w.members {
		if !wanted && o != m && !o.learner && !o.silent.IsZero() && w.now.Sub(o.silent) > 2*time.Second && w.quorum() {
			w.t.Fatalf("%s stops while %s is silent since %s", m.node, o.node, w.now.Sub(o.silent))
		}
	}
}

func (w *world) elect() {
	for _, m := range w.members {
		if m.id == w.leader && m.up() && !m.learner {
			return
		}
	}
	w.leader = 0
	if !w.quorum() {
		return
	}
	for _, m := range w.members {
		if m.up() && !m.learner {
			w.leader = m.id
			return
		}
	}
}

// machineAPI replaces deleted machines, starts agents, and removes machines whose hook is gone.
func (w *world) machineAPI() {
	staying := 0
	for _, m := range w.machines {
		if m.gone {
			continue
		}
		if m.Deleting && !m.Hooked {
			m.gone = true
			continue
		}
		if !m.Deleting {
			staying++
		}
	}
	for ; staying < w.desired; staying++ {
		w.newMachine()
	}
	if !w.faults {
		for _, m := range w.machines {
			m.attended = !m.gone
		}
	}
}

func (w *world) fault() {
	pick := func(n int) int { return w.draw(0, n-1, "which") }
	switch w.draw(0, 15, "fault") {
	case 0, 1: // an agent comes or goes; its member goes on
		m := w.machines[pick(len(w.machines))]
		m.attended = !m.gone && !m.attended
	case 2, 3:
		for _, m := range w.machines {
			m.attended = !m.gone
		}
	case 4: // a member dies, or comes back
		m := w.members[pick(len(w.members))]
		m.broken = !m.broken
	case 5: // everybody comes back
		for _, m := range w.members {
			m.broken = false
		}
	case 6, 7: // a user deletes a machine
		m := w.machines[pick(len(w.machines))]
		if !m.Deleting && !m.gone {
			m.Deleting, m.DeletionTime = true, w.now
		}
	case 8: // the guardian restarts and forgets what it noted
		w.forget()
	case 9: // another holder takes the permit, as the server would give it
		m := w.machines[pick(len(w.machines))]
		all, healthy := w.voters()
		for _, member := range w.members {
			if w.permit == nil && member.node == m.Node && !member.learner && all == healthy {
				w.permit = &plan.Permit{Machine: m.Reference(), Reason: "drain", Holder: "other"}
				w.freeAt = w.now.Add(time.Duration(w.draw(1, 100, "ticks")) * tick)
			}
		}
	case 10:
		m := w.members[pick(len(w.members))]
		m.hampered = !m.hampered
	case 12, 13:
		w.disrupt()
	case 14, 15: // an authority is prepared or retired
		w.trust++
	case 11: // an administrator takes the hook off a machine that is being deleted
		m := w.machines[pick(len(w.machines))]
		if m.Deleting && w.draw(0, 3, "really") == 0 {
			m.Hooked = false
		}
	}
}

// forget has the guardian start again: what it noted of the members begins again.
func (w *world) forget() {
	for _, m := range w.members {
		m.stop, m.told, m.progress = time.Time{}, time.Time{}, w.now
		if !m.silent.IsZero() {
			m.silent = w.now
		}
	}
	w.refused = false
}

// act does what the plan says as etcd would, and checks the promise before and after.
func (w *world) act(p plan.Plan) {
	for _, h := range p.Hooks {
		m := w.machine(h.Machine.Node)
		m.Hooked = h.Kind == plan.AddHook
		if h.Kind == plan.AddHook && m.Deleting {
			w.t.Fatalf("hook added to %s, which is being deleted", m.Name)
		}
		if h.Kind == plan.RemoveHook {
			for _, member := range w.members {
				if member.node == m.Node {
					w.t.Fatalf("hook removed from %s, which has a member", m.Name)
				}
			}
		}
	}
	if p.Next == nil {
		return
	}
	a := *p.Next
	w.trace = append(w.trace, w.now.Format("05.0 ")+a.String()+": "+a.Reason)
	i := slices.IndexFunc(w.members, func(m *simMember) bool { return m.id == a.Member.ID })
	all, healthy := w.voters()
	switch a.Kind {
	case plan.AddLearner:
		w.addLearner(a)
	case plan.Promote:
		m := w.members[i]
		if !w.quorum() || !m.learner || w.log-m.applied > w.log/10 {
			w.t.Fatalf("promotion that etcd refuses: %+v", m)
		}
		m.learner, w.promoted = false, w.now
		w.checkSteady("promote")
	case plan.PublishEndpoints:
		w.endpoints, w.published = a.Endpoints, w.now
	case plan.AcquirePermit:
		if w.permit != nil {
			w.t.Fatalf("permit taken from %s", w.permit.Holder)
		}
		w.permit = &plan.Permit{Machine: a.Subject(), Reason: a.Permit, Holder: plan.GuardianUser, Ours: true}
	case plan.FreePermit:
		w.permit = nil
	case plan.MoveLeader:
		if t := w.byID(a.Target.ID); t == nil || !t.up() || t.learner {
			w.t.Fatalf("leadership moved to no member: %+v", a.Target)
		}
		w.leader = a.Target.ID
	case plan.StopMember:
		m := w.members[i]
		if w.permit == nil {
			w.t.Fatalf("%s is stopped without the permit", m.node)
		}
		if m.up() && (healthy-1 < plan.Majority(all) || all-healthy > 0) {
			w.t.Fatalf("stopping %s leaves %d of %d voters", m.node, healthy-1, all)
		}
		if m.id == w.leader {
			w.t.Fatalf("the leader %s is stopped", m.node)
		}
		if w.elsewhere && m.node == plan.BootstrapName {
			w.t.Fatal("the process of another host is stopped")
		}
		m.stop = w.now
	case plan.RestartMember:
		m := w.members[i]
		if !m.learner && (w.permit == nil || !w.permit.Ours || w.permit.Machine.GetUid() != a.Machine.UID) {
			w.t.Fatalf("%s is started again without the permit", m.node)
		}
		if !m.learner && (healthy-1 < plan.Majority(all) || all-healthy > 0) {
			w.t.Fatalf("starting %s again leaves %d of %d voters", m.node, healthy-1, all)
		}
		if m.id == w.leader {
			w.t.Fatalf("the leader %s is started again", m.node)
		}
		m.told, m.order = w.now, w.trust
	case plan.StartMember:
		w.members[i].stop = time.Time{}
	case plan.RemoveMember:
		w.remove(i)
	case plan.RetireBootstrap:
		if w.byID(1) != nil {
			w.t.Fatal("bootstrap retired while a member")
		}
		w.retired = true
	default:
		w.t.Fatalf("unknown action %s", a.Kind)
	}
}

func (w *world) byID(id uint64) *simMember {
	for _, m := range w.members {
		if m.id == id {
			return m
		}
	}
	return nil
}

func (w *world) addLearner(a plan.Action) {
	all, healthy := w.voters()
	for _, m := range w.members {
		if m.learner {
			w.t.Fatal("two learners at once")
		}
	}
	bootstrap := w.byID(1) // etcd's own check is off there
	w.refused = (bootstrap == nil || !bootstrap.up()) && (w.now.Sub(w.promoted) < 5*time.Second ||
		all > 1 && healthy < plan.Majority(all+1))
	if w.refused {
		return
	}
	w.members = append(w.members, &simMember{
		id: w.id(), node: a.Offer.Node, learner: true, progress: w.now, silent: w.now,
		hampered: w.faults && w.draw(0, 4, "hampered") == 0,
	})
}

func (w *world) remove(i int) {
	m := w.members[i]
	all, healthy := w.voters()
	if !w.quorum() {
		w.t.Fatal("removal without a quorum cannot come through")
	}
	if !m.learner {
		sm := w.machine(m.node)
		leaves := m.node == plan.BootstrapName || sm == nil || sm.Deleting
		if !leaves {
			w.t.Fatalf("%s removed, which stays", m.node)
		}
		if m.up() {
			if healthy--; m.id == w.leader {
				w.t.Fatalf("the leader %s is removed", m.node)
			}
			replaced := healthy >= w.desired || m.node == plan.BootstrapName && w.besideBootstrap()
			if !replaced || healthy < all-1 {
				w.t.Fatalf("healthy %s removed with %d of %d others healthy", m.node, healthy, all-1)
			}
		} else if m.stop.IsZero() && w.now.Sub(m.silent) < 5*time.Second {
			w.t.Fatalf("%s was silent for %s only", m.node, w.now.Sub(m.silent))
		}
	}
	if sm := w.machine(m.node); sm != nil && m.learner {
		sm.notAgain = w.now.Add(5 * time.Second)
	}
	down := !m.up()
	w.members = slices.Delete(w.members, i, i+1)
	w.checkI1("remove " + m.node)
	if down && !m.learner {
		w.checkSteady("remove " + m.node)
	}
}

// besideBootstrap reports whether a healthy voter that stays is on the bootstrap member's host.
func (w *world) besideBootstrap() bool {
	first := w.machines[0]
	return w.hosts && !first.Deleting && slices.ContainsFunc(w.members, func(m *simMember) bool {
		return m.node == first.Node && !m.learner && m.up()
	})
}

// checkSteady: after a dead voter was removed or a learner promoted, a majority stays healthy though the voter under
// another's permit goes down.
func (w *world) checkSteady(what string) {
	all, healthy := w.voters()
	if m := w.disturbed(); m != nil && m.up() {
		healthy--
	}
	if healthy < plan.Majority(all) {
		w.t.Fatalf("%s left %d steady voters of %d", what, healthy, all)
	}
}

// disturbed returns the voter that another holder has the permit for.
func (w *world) disturbed() *simMember {
	if w.permit == nil || w.permit.Ours {
		return nil
	}
	for _, m := range w.members {
		if sm := w.machine(m.node); sm != nil && !m.learner && sm.UID == w.permit.Machine.GetUid() {
			return m
		}
	}
	return nil
}

// disrupt has the holder of a permit ask again and then take its voter down.
func (w *world) disrupt() {
	m := w.disturbed()
	if m == nil || !m.up() || !w.quorum() {
		return
	}
	switch d := plan.Disrupt(w.view(), w.machine(m.node).Machine); {
	case d.Needless:
		w.t.Fatalf("%s is said to be no voter", m.node)
	case d.Why == "":
		m.broken, w.repairAt = true, w.freeAt
		w.checkI1("the permitted work on " + m.node)
	case d.Withdraw:
		w.permit = nil
	}
}

// checkI1: after an action of ours the healthy voters are a majority.
func (w *world) checkI1(what string) {
	all, healthy := w.voters()
	if healthy < plan.Majority(all) {
		w.t.Fatalf("%s left %d healthy voters of %d", what, healthy, all)
	}
}

func (w *world) settled() bool {
	p := plan.Next(w.view())
	all, healthy := w.voters()
	if p.Phase != plan.Stable || p.Next != nil || len(p.Hooks) > 0 || all != w.desired || healthy != all || !w.retired ||
		w.permit != nil {
		return false
	}
	for _, m := range w.machines {
		if m.Deleting && !m.gone {
			return false
		}
	}
	return !slices.ContainsFunc(w.members, func(m *simMember) bool { return m.trust != w.trust })
}

func (w *world) step() { w.act(plan.Next(w.view())) }

func TestTheViewIsNotModified(t *testing.T) {
	v := stableView(deleted("m1"), withVoter("m3"), withMachine("m4"), permitFor("m1", true), func(v *plan.View) {
		slices.Reverse(v.Members)
	})
	before := fmt.Sprintf("%+v", v)
	plan.Next(v)
	if diff := cmp.Diff(before, fmt.Sprintf("%+v", v)); diff != "" {
		t.Errorf("view (-before +after):\n%s", diff)
	}
}

func TestNoActionLeavesLessThanAHealthyMajorityAndItAlwaysEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.SampledFrom([]int{3, 3, 5}).Draw(t, "desired"), func(lo, hi int, what string) int {
			return rapid.IntRange(lo, hi).Draw(t, what)
		})
		w.hosts = rapid.Bool().Draw(t, "on hosts")
		w.elsewhere = w.hosts && rapid.Bool().Draw(t, "guardian on another host")
		for range rapid.IntRange(0, 200).Draw(t, "length") {
			for range rapid.IntRange(1, 50).Draw(t, "quiet") {
				w.pass()
				if rapid.IntRange(0, 9).Draw(t, "slow") > 0 { // else the guardian is late
					w.step()
				}
			}
			w.fault()
		}
		w.faults = false
		w.recover()
		for range 6000 { // ten minutes
			if w.settled() {
				return
			}
			w.pass()
			w.step()
		}
		all, healthy := w.voters()
		p := plan.Next(w.view())
		t.Fatalf("never settled: %d of %d voters healthy, plan %+v\npermit %+v\n%v", healthy, all, p, w.permit,
			strings.Join(w.trace[max(0, len(w.trace)-20):], "\n"))
	})
}

// recover ends all faults but two: a learner that does not catch up never does, and of the voters that are down some
// stay down permanently, as far as a majority is left without them; then a user deletes their machines.
func (w *world) recover() {
	all, alive := 0, 0
	for _, m := range w.members {
		if !m.learner {
			all++
			if !m.lost {
				alive++
			}
		}
	}
	if alive < plan.Majority(all) {
		w.t.Skipf("an administrator destroyed %d of %d voters", all-alive, all)
	}
	for _, m := range w.members {
		sm := w.machine(m.node)
		if m.broken && !m.learner && sm != nil && alive > plan.Majority(all) && w.draw(0, 1, "permanently") == 1 {
			alive--
			sm.Deleting, sm.DeletionTime = true, w.now
			continue
		}
		m.broken = false
	}
	if w.permit != nil && !w.permit.Ours {
		w.permit.Released = true
	}
}
