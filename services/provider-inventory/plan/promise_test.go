package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

// agent is a host as it really is.
type agent struct {
	on      bool
	last    time.Time          // message that arrived
	machine string             // that runs while the host is on, and whose files stay while it is off
	report  *hostv1.HostReport // of the last order
	queue   []*hostv1.AttendHostRequest
}

// write is a decision that is not stored yet: it fails if the host, or the record that all calls of machine-api write,
// changed after it was read.
type write struct {
	host       string
	read, call int
	status     *hostv1.HostStatus
	use        string // token that is used up
	ofCall     bool
}

// world is the stored state, the real hosts, and what is under way. Two leaders decide on it at once: each decision may
// be stored late, or never.
type world struct {
	t       *testing.T
	random  *rand.Rand
	now     time.Time
	hosts   map[string]*hostv1.Host
	version map[string]int
	calls   int
	used    map[string]bool
	claimed map[string]string // the host that a token has claimed first
	fenced  map[string]bool   // tokens whose machine was on a host that was confirmed to be off
	agents  map[string]*agent
	pending []write
}

const silence = 40 * time.Second

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0).UTC(),
		hosts:   map[string]*hostv1.Host{},
		version: map[string]int{}, used: map[string]bool{}, claimed: map[string]string{}, fenced: map[string]bool{},
		agents: map[string]*agent{},
	}
	for i := range 3 {
		name := fmt.Sprint("h", i)
		w.hosts[name] = &hostv1.Host{
			Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-" + name},
			Spec:     &hostv1.HostSpec{Roles: []string{"worker"}}, Status: plan.New(w.now),
		}
		w.agents[name] = &agent{on: true}
	}
	return w
}

func (w *world) names() []string { return []string{"h0", "h1", "h2"} }

func (w *world) any() string { return w.names()[w.random.IntN(3)] }

func (w *world) token() string { return fmt.Sprint("m", w.random.IntN(8)) }

func (w *world) holder(token string) *hostv1.Host {
	for _, name := range w.names() {
		if w.hosts[name].GetStatus().GetRequestToken() == token {
			return w.hosts[name]
		}
	}
	return nil
}

// decide notes a decision about a host as it is stored now.
func (w *world) decide(h *hostv1.Host, status *hostv1.HostStatus, use string, ofCall bool) {
	name := h.GetMetadata().GetName()
	w.pending = append(w.pending, write{name, w.version[name], w.calls, status, use, ofCall})
}

// store carries out a decision, or drops it because of a crash or of a change since.
func (w *world) store() {
	if len(w.pending) == 0 {
		return
	}
	i := w.random.IntN(len(w.pending))
	p := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	if w.random.IntN(8) == 0 || p.read != w.version[p.host] || p.ofCall && p.call != w.calls {
		return
	}
	if p.ofCall {
		w.calls++
	}
	if p.use != "" {
		w.used[p.use] = true
	}
	w.version[p.host]++
	next := object.Clone(w.hosts[p.host])
	next.Status = p.status
	w.hosts[p.host] = next
	w.check()
}

func (w *world) create(token string) {
	if w.used[token] || w.holder(token) != nil {
		return
	}
	var all []*hostv1.Host
	for _, name := range w.names() {
		all = append(all, w.hosts[name])
	}
	if h := plan.Choose(plan.Ask{Role: "worker"}, all).Host; h != nil {
		w.decide(h, plan.Claim(h, plan.Claimant{
			Machine: &metav1.ObjectReference{Kind: "Machine", Name: token, Uid: token}, Token: token,
			ProviderID: "inventory://c/" + h.GetMetadata().GetName() + "/" + token, Fence: 1,
		}, w.now), "", true)
	}
}

func (w *world) delete(token string) {
	h := w.holder(token)
	if h == nil {
		w.used[token] = true
		w.calls++
		return
	}
	w.decide(h, plan.Delete(h, 1, w.now), token, true)
}

// speak has an agent that is on carry out the present order, and send a message, which arrives later.
func (w *world) speak(name string) {
	a, h := w.agents[name], w.hosts[name]
	if !a.on {
		return
	}
	for _, act := range plan.Watch(plan.View{Now: w.now, Host: h, Last: w.now, Since: w.now, Silence: silence}).Do {
		if act.Verb == plan.SendOrder && a.report.GetOrderId() != act.Order.GetId() || a.report.GetMessage() != "" {
			a.obey(w, act.Order)
		}
	}
	m := &hostv1.AttendHostRequest{Name: name, Report: a.report, Facts: &hostv1.HostFacts{MachineUid: a.machine}}
	if w.random.IntN(2) == 0 {
		m.Facts = nil
	}
	a.queue = append(a.queue, m)
}

// deliver has the first message of an agent arrive.
func (w *world) deliver(name string) {
	a := w.agents[name]
	if len(a.queue) == 0 {
		return
	}
	m := a.queue[0]
	a.last, a.queue = w.now, a.queue[1:]
	w.decide(w.hosts[name], plan.Received(w.hosts[name], m, w.now), "", false)
}

func (a *agent) obey(w *world, o *hostv1.HostOrder) {
	if o == nil {
		return
	}
	a.report = &hostv1.HostReport{OrderId: o.GetId(), Done: true, Stopped: true}
	fails := w.random.IntN(4) == 0
	switch {
	case o.GetType() == hostv1.HostOrder_TYPE_CLAIM && (fails || a.machine != ""):
		a.report.Done, a.report.Message = false, "disk full"
	case o.GetType() == hostv1.HostOrder_TYPE_CLAIM:
		a.machine = o.GetMachineRef().GetUid()
	case fails && w.random.IntN(2) == 0:
		a.report.Done, a.report.Stopped, a.report.Message = false, false, "a process does not end"
	case fails:
		a.machine = ""
		a.report.Done, a.report.Message = false, "a file cannot be restored"
	default:
		a.machine = ""
	}
}

func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.random.IntN(10)) * time.Second)
	name := w.any()
	switch w.random.IntN(12) {
	case 0, 1:
		w.create(w.token())
	case 2:
		w.delete(w.token())
	case 3, 4:
		w.speak(name)
	case 5:
		w.deliver(name)
	case 6:
		w.agents[name].on, w.agents[name].queue = false, nil
	case 7:
		w.agents[name].on = true
	case 8:
		for _, act := range plan.Watch(plan.View{
			Now: w.now, Host: w.hosts[name], Last: w.agents[name].last, Silence: silence,
		}).Do {
			if act.Verb == plan.StoreStatus {
				w.decide(w.hosts[name], act.Status, "", false)
			}
		}
	case 9:
		if w.agents[name].on || w.random.IntN(4) > 0 {
			return // confirmed only when it is true
		}
		if s, err := plan.Fence(w.hosts[name], false, "alice", "unplugged", w.now); err == nil {
			w.fenced[w.hosts[name].GetStatus().GetRequestToken()] = true
			w.decide(w.hosts[name], s, w.hosts[name].GetStatus().GetRequestToken(), false)
		}
	default:
		w.store()
	}
}

// check reports what never may be.
func (w *world) check() {
	w.t.Helper()
	holders, runs := map[string]string{}, map[string]string{}
	for _, name := range w.names() {
		h, s := w.hosts[name], w.hosts[name].GetStatus()
		token := s.GetRequestToken()
		if (token == "") != (s.GetMachineRef() == nil) || (token == "") != (s.GetProviderId() == "") {
			w.t.Fatalf("%s has a part of a machine: %v", name, s)
		}
		phase := s.GetPhase()
		if phase == plan.Lost {
			phase = s.GetResumePhase()
		}
		if (phase == plan.Claimed || phase == plan.InUse) && token == "" || phase == plan.Available && token != "" ||
			(s.GetPhase() == plan.Lost) != (s.GetResumePhase() != "") {
			w.t.Fatalf("%s is %s (%s) with token %q", name, s.GetPhase(), s.GetResumePhase(), token)
		}
		if token != "" {
			if other := holders[token]; other != "" {
				w.t.Fatalf("machine %s has %s and %s", token, other, name)
			}
			holders[token] = name
			if first, was := w.claimed[token]; was && first != name {
				w.t.Fatalf("machine %s had %s, and has %s", token, first, name)
			}
			w.claimed[token] = name
			if i := plan.Instance(h); i.GetState() != "Deleting" && w.used[token] {
				w.t.Fatalf("the token of %s is used up, and its instance is %s", token, i.GetState())
			}
		}
	}
	for _, name := range w.names() {
		m := w.agents[name].machine
		if m == "" {
			continue
		}
		if other := runs[m]; other != "" {
			w.t.Fatalf("machine %s runs on %s and %s", m, other, name)
		}
		runs[m] = name
		if holders[m] != name && !w.fenced[m] {
			w.t.Fatalf("machine %s has no instance, and runs on %s: %v", m, name, w.hosts[name].GetStatus())
		}
	}
}

// Whatever is called, stored late, lost or silent: a machine has one host, a host has one machine, and an instance is
// gone only when nothing of it runs or its host was confirmed to be off.
func TestOneMachinePerHost(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		w := newWorld(t, seed)
		for range 600 {
			w.step()
			for _, name := range w.names() {
				seen[w.hosts[name].GetStatus().GetPhase()]++
			}
		}
	}
	for _, phase := range []string{plan.Available, plan.Claimed, plan.InUse, plan.Wiping, plan.Quarantined, plan.Lost} {
		if seen[phase] < 100 {
			t.Errorf("hosts were %s %d times: the test does not reach it", phase, seen[phase])
		}
	}
}
