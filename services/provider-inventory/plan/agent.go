package plan

import (
	"cmp"
	"fmt"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
)

// Order returns the present order of a host's agent, without a bootstrap; nil if there is none. It is the same until it
// is answered or replaced, so it may be sent many times. A Quarantined host still has the order to be wiped.
func Order(h *hostv1.Host) *hostv1.HostOrder {
	s := h.GetStatus()
	out := &hostv1.HostOrder{
		Id: fmt.Sprintf("%.8s-%d", h.GetMetadata().GetUid(), s.GetOrders()), MachineRef: s.GetMachineRef(),
	}
	switch work(h) {
	case Claimed:
		out.Type, out.ProviderId = hostv1.HostOrder_TYPE_CLAIM, s.GetProviderId()
	case Wiping, Quarantined:
		out.Type = hostv1.HostOrder_TYPE_WIPE
		if f := s.GetFencing(); f != nil {
			out.Type, out.MachineRef = hostv1.HostOrder_TYPE_FENCE, f.GetMachineRef()
		}
	default:
		return nil
	}
	return out
}

// Received returns the status of a host after a message of its agent. A Lost host returns to its former phase. A report
// counts only if it answers the present order.
func Received(h *hostv1.Host, m *hostv1.AttendHostRequest, now time.Time) *hostv1.HostStatus {
	s := next(h)
	if s.GetPhase() == Lost {
		s.Phase, s.ResumePhase, s.LastTransitionTime = s.ResumePhase, nil, seconds(now)
	}
	if f := m.GetFacts(); f != nil {
		s.BootId, s.AgentVersion, s.Capacity, s.Addresses = text(f.GetBootId()), text(f.GetAgentVersion()), f.GetCapacity(),
			f.GetAddresses()
	}
	if o, r := Order(h), m.GetReport(); o != nil && r.GetOrderId() == o.GetId() {
		reported(s, o, r, now)
	}
	if f := m.GetFacts(); f != nil {
		files(s, f.GetMachineUid(), now)
	}
	return described(s)
}

// files applies what the agent says of the machine whose files the host has, by its uid. A host in use whose machine is
// not there stays in use until that machine is deleted: what it has lost is not made again.
func files(s *hostv1.HostStatus, uid string, now time.Time) {
	switch own := s.GetMachineRef().GetUid(); {
	case s.GetPhase() == Available && uid != "":
		order(s)
		enter(s, Wiping, now)
	case s.GetPhase() != InUse:
	case uid == own:
		s.Failure = nil
	case uid == "":
		s.Failure = new("the host has the files of no machine")
	default:
		s.Failure = new("the host has the files of another machine, with uid " + uid)
	}
}

// reported applies a report of the present order.
func reported(s *hostv1.HostStatus, o *hostv1.HostOrder, r *hostv1.HostReport, now time.Time) {
	s.Failure = nil
	if !r.GetDone() {
		s.Failure = new(cmp.Or(r.GetMessage(), "the agent gave no reason"))
	}
	switch {
	case o.GetType() == hostv1.HostOrder_TYPE_CLAIM && r.GetDone():
		enter(s, InUse, now)
	case o.GetType() == hostv1.HostOrder_TYPE_CLAIM:
	case r.GetDone():
		release(s)
		s.Fencing = nil
		enter(s, Available, now)
	default:
		if r.GetStopped() {
			release(s)
		}
		enter(s, Quarantined, now)
	}
}

// View is what the controller's decision about a host depends on.
type View struct {
	Now     time.Time     // with Last and Since by a clock that goes on while the time of day is set
	Host    *hostv1.Host  // nil if it does not exist
	Last    time.Time     // message of the agent to this leader; zero without one
	Since   time.Time     // when this process became the leader
	Silence time.Duration // after which a host is Lost
}

// Verbs of actions.
const (
	StoreStatus = "StoreStatus"
	SendOrder   = "SendOrder"
)

// Action is one step of a Plan.
type Action struct {
	Verb   string
	Reason string
	Status *hostv1.HostStatus // of StoreStatus
	Order  *hostv1.HostOrder  // of SendOrder, without a bootstrap
}

// Plan is the outcome of one decision. The zero Plan means nothing to do.
type Plan struct {
	Do   []Action  // one after the other, also if one fails
	Wake time.Time // when to decide again even if nothing changes; zero means never
}

// Watch decides whether a host is Lost, and what its agent is sent. A new leader allows the agents the time of Silence
// to come to it.
func Watch(v View) Plan {
	h := v.Host
	if h == nil {
		return Plan{}
	}
	var p Plan
	if o := Order(h); o != nil && !v.Last.IsZero() {
		p.Do = append(p.Do, Action{Verb: SendOrder, Reason: "the host is " + work(h), Order: o})
	}
	if h.GetStatus().GetPhase() == Lost {
		return p // until its agent attends
	}
	last := v.Since
	if v.Last.After(last) {
		last = v.Last
	}
	if end := last.Add(v.Silence); v.Now.Before(end) {
		p.Wake = end
		return p
	}
	s := next(h)
	s.ResumePhase, s.Phase, s.LastTransitionTime = s.Phase, new(Lost), seconds(v.Now.UTC())
	p.Do = append(p.Do, Action{
		Verb: StoreStatus, Status: described(s), Reason: fmt.Sprintf("its agent is silent for %s", v.Silence),
	})
	return p
}
