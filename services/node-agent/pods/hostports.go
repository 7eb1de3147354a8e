package pods

import (
	"fmt"
	"slices"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// leadHostPorts has the host ports of a pod lead to it while it runs. Only settle calls it, without the lock, which
// the notification of a port takes.
func (s *Pods) leadHostPorts(p *pod) {
	if s.cfg.HostPorts == nil {
		return
	}
	s.mu.Lock()
	var ports []plan.HostPort
	var refused []string
	if p.hasStarted() && !p.over && !ended(p) {
		ports, refused = plan.HostPortsOf(p.object.GetSpec(), s.cfg.Address, p.record.Address)
	}
	same := slices.Equal(ports, p.hostPorts) && slices.Equal(refused, p.refusedPorts)
	if !same {
		for _, why := range refused {
			s.event(p, plan.Warning, hostPortNotOpened, why)
		}
		p.hostPorts, p.refusedPorts = ports, refused
	}
	s.mu.Unlock()
	if !same {
		s.cfg.HostPorts(p.uid, ports, func(port plan.HostPort, why string) { s.hostPort(p, port, why) })
	}
}

// Reasons of events.
const (
	hostPortOpened    = "HostPortOpened"
	hostPortNotOpened = "HostPortNotOpened"
)

// hostPort records an event: a port of the machine does not lead to a pod, for a reason, or it does again.
func (s *Pods) hostPort(p *pod, port plan.HostPort, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := p.closedPorts[port]
	switch {
	case why != "":
		s.event(p, plan.Warning, hostPortNotOpened, fmt.Sprintf("%s port %s is not led to the pod: %s", port.Protocol,
			port.Machine, why))
	case failed:
		s.event(p, plan.Normal, hostPortOpened, fmt.Sprintf("%s port %s is led to the pod", port.Protocol, port.Machine))
	}
	if p.closedPorts == nil {
		p.closedPorts = map[plan.HostPort]bool{}
	}
	p.closedPorts[port] = why != ""
}
