package plan

import (
	"net/netip"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/placement"
)

// HostPort is a port of a machine that leads to a port of a pod on it.
type HostPort struct {
	Protocol     string // TCP or UDP
	Machine, Pod netip.AddrPort
}

// HostPortsOf returns the ports of a machine that lead to a pod with an address of its own; none if the pod has that of
// the machine. A port that asks for another address of the machine is not led: it is returned with elsewhere.
func HostPortsOf(spec *schedulingv1.PodSpec, machine, address string) (led []HostPort, elsewhere []string) {
	at, err := netip.ParseAddr(machine)
	to, err2 := netip.ParseAddr(address)
	if err != nil || err2 != nil || at == to || spec.GetHostNetwork() {
		return nil, nil
	}
	for _, c := range slices.Concat(slices.DeleteFunc(slices.Clone(spec.GetInitContainers()), endsEarly),
		spec.GetContainers()) {
		for _, p := range c.GetPorts() {
			if p.GetHostPort() == 0 {
				continue
			}
			if ip := p.GetHostIp(); ip != "" && ip != "0.0.0.0" && ip != "::" && ip != machine {
				elsewhere = append(elsewhere, ip)
				continue
			}
			protocol := p.GetProtocol()
			if protocol == "" {
				protocol = "TCP"
			}
			led = append(led, HostPort{
				Protocol: protocol, Machine: netip.AddrPortFrom(at, uint16(p.GetHostPort())),
				Pod: netip.AddrPortFrom(to, uint16(p.GetContainerPort())),
			})
		}
	}
	return led, elsewhere
}

func endsEarly(init *schedulingv1.Container) bool { return !placement.IsSidecar(init) }
