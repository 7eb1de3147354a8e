// Package plan decides about the hosts of the inventory: which host a machine claims, how a host changes by a call or
// by a message of its agent, and when a silent agent makes it Lost. It does no I/O and reads no clock. Functions that
// change a host return its next status and do not modify the host.
package plan

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Phases of a host.
const (
	Available   = "Available"
	Claimed     = "Claimed"
	InUse       = "InUse"
	Wiping      = "Wiping"
	Quarantined = "Quarantined"
	Lost        = "Lost"
)

// Roles of hosts.
const (
	worker       = "worker"
	controlPlane = "control-plane"
)

// RoleOf returns the role that a host needs for a machine with a role of provider.v1.
func RoleOf(machine string) string {
	if machine == "master" {
		return controlPlane
	}
	return worker
}

// work returns the phase of a host, and of a Lost one the phase that it returns to.
func work(h *hostv1.Host) string {
	if s := h.GetStatus(); s.GetPhase() == Lost {
		return s.GetResumePhase()
	}
	return h.GetStatus().GetPhase()
}

// New returns the status of a host that was just registered.
func New(now time.Time) *hostv1.HostStatus {
	s := &hostv1.HostStatus{Phase: new(Lost), ResumePhase: new(Available), LastTransitionTime: seconds(now)}
	return described(s)
}

// next returns a copy of the host's status to change.
func next(h *hostv1.Host) *hostv1.HostStatus {
	if h.GetStatus() == nil {
		return &hostv1.HostStatus{}
	}
	return object.Clone(h).GetStatus()
}

// seconds is a time as objects have it: without fractions of a second.
func seconds(t time.Time) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: t.Unix()} }

// enter changes the phase to one other than Lost. A Lost host stays Lost, and returns to that phase.
func enter(s *hostv1.HostStatus, phase string, now time.Time) {
	switch {
	case s.GetPhase() == Lost:
		s.ResumePhase = &phase
	case s.GetPhase() != phase:
		s.Phase, s.LastTransitionTime = &phase, seconds(now)
	}
}

// release removes the machine from a status.
func release(s *hostv1.HostStatus) {
	s.MachineRef, s.ProviderId, s.RequestToken, s.ClaimTime = nil, nil, nil, nil
}

// order gives a status a new order.
func order(s *hostv1.HostStatus) {
	n := s.GetOrders() + 1
	s.Orders, s.Failure = &n, nil
}

// described sets what a status says to people. It follows from the other fields.
func described(s *hostv1.HostStatus) *hostv1.HostStatus {
	reason, message, unblock := says(s)
	s.Reason, s.Message, s.Unblock = text(reason), text(message), text(unblock)
	return s
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func says(s *hostv1.HostStatus) (reason, message, unblock string) {
	machine := "machine " + s.GetMachineRef().GetName()
	stray := s.GetMachineRef() == nil
	switch s.GetPhase() {
	case Available:
		return "Ready", "no machine has it", ""
	case Claimed:
		if s.GetFailure() != "" {
			return "StartFailed", "the agent could not start " + machine + ": " + s.GetFailure(), "delete " + machine
		}
		return "Starting", "the agent starts " + machine, ""
	case InUse:
		if s.GetFailure() != "" {
			return "MachineMissing", machine + " has it, but does not run there: " + s.GetFailure(), "delete " + machine
		}
		return "MachineStarted", machine + " has it", ""
	case Wiping:
		switch {
		case s.GetFencing() != nil:
			return "Fenced", "the agent stops the former machine and restores the host", ""
		case stray:
			return "ForeignMachine", "the agent removes the files of a machine that does not have this host", ""
		}
		return "MachineDeleted", "the agent stops " + machine + " and restores the host", ""
	case Quarantined:
		if stray {
			return "WipeFailed", "its machine is stopped, but the host was not restored: " + s.GetFailure(),
				"repair the host and restart its agent, or remove the host"
		}
		return "WipeFailed", machine + " may still run: " + s.GetFailure(),
			"repair the host and restart its agent; or turn the host off, and fence it once it is Lost"
	case Lost:
		return lostSays(s)
	}
	return "", "", ""
}

func lostSays(s *hostv1.HostStatus) (reason, message, unblock string) {
	switch f := s.GetFencing(); {
	case f != nil:
		return "Fenced", fmt.Sprintf("%s confirmed that it is off: %s", f.GetBy(), f.GetReason()),
			"start the host, which is wiped then, or remove it"
	case s.GetBootId() == "" && s.GetOrders() == 0:
		return "NeverAttended", "its agent has not attended yet", "start the agent of the host"
	case s.GetMachineRef() != nil:
		return "Silent", fmt.Sprintf("its agent is silent, and machine %s may still run", s.GetMachineRef().GetName()),
			"start the host; or turn it off, and fence it"
	}
	return "Silent", "its agent is silent", "start the host, or remove it"
}

// byName orders hosts.
func byName(a, b *hostv1.Host) int {
	return cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
}
