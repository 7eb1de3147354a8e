package plan

import (
	"fmt"
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

// etcdPorts are those of members of etcd, which machines of the control plane run.
var etcdPorts = []int32{2379, 2380}

// HostPortsOf returns the ports of a machine that lead to a pod with an address of its own; none if the pod has that of
// the machine. A port of another address of the machine, and those of etcd, are not led: refused says why.
func HostPortsOf(spec *schedulingv1.PodSpec, machine, address string) (led []HostPort, refused []string) {
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
				refused = append(refused, fmt.Sprintf("port %d of %s: its machine has the address %s", p.GetHostPort(), ip,
					machine))
				continue
			}
			if slices.Contains(etcdPorts, p.GetHostPort()) {
				refused = append(refused, fmt.Sprintf("port %d: it is one of etcd's", p.GetHostPort()))
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
	return led, refused
}

func endsEarly(init *schedulingv1.Container) bool { return !placement.IsSidecar(init) }
