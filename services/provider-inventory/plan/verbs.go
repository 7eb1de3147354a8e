package plan

import (
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
)

// Refusal is why a request of a user is refused.
type Refusal struct {
	Host    string
	Text    string // what prevents it
	Unblock string // what would let it succeed
}

func (r *Refusal) Error() string { return "host " + r.Host + ": " + r.Text + "; " + r.Unblock }

// Fence returns the status of a host after the confirmation that it is off. The machine loses the host, and the agent
// wipes it when the host comes back. A host whose agent attends is not off, also if that is not stored yet; answered is
// whether it sent a message to this leader.
func Fence(h *hostv1.Host, answered bool, by, reason string, now time.Time) (*hostv1.HostStatus, error) {
	s := next(h)
	if s.GetPhase() != Lost || answered {
		return nil, &Refusal{
			Host: h.GetMetadata().GetName(), Text: "its agent attends, so the host is not off",
			Unblock: "turn it off and wait until it is Lost",
		}
	}
	machine := s.GetMachineRef()
	if machine == nil {
		machine = s.GetFencing().GetMachineRef()
	}
	s.Fencing = &hostv1.HostFencing{By: by, Reason: reason, Time: seconds(now), MachineRef: machine}
	release(s)
	order(s)
	enter(s, Wiping, now)
	return described(s), nil
}

// Removable returns why a host cannot be removed from the inventory; nil if it can.
func Removable(h *hostv1.Host) error {
	s, w := h.GetStatus(), work(h)
	switch {
	case s.GetFencing() != nil && s.GetPhase() == Lost, w == Available,
		w == Quarantined && s.GetMachineRef() == nil:
		return nil
	case s.GetMachineRef() == nil:
		return &Refusal{Host: h.GetMetadata().GetName(), Text: s.GetMessage(), Unblock: "wait until it is wiped"}
	}
	machine := "machine " + s.GetMachineRef().GetName()
	r := &Refusal{Host: h.GetMetadata().GetName(), Text: machine + " has it", Unblock: "delete " + machine}
	if w != Claimed && w != InUse {
		r.Text, r.Unblock = machine+" is not wiped yet", "wait until it is"
	}
	if s.GetUnblock() != "" {
		r.Unblock = s.GetUnblock()
	}
	return r
}
