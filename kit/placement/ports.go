package placement

import (
	"fmt"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// anyIP is the wildcard address: all addresses of a host.
const anyIP = "0.0.0.0"

// HostPort is a port of a node that a pod takes.
type HostPort struct {
	IP       string // never empty: 0.0.0.0 means all
	Protocol string // TCP, UDP or SCTP
	Port     int32  // 1 to 65535
}

// String gives the port as "8080/TCP", with its address if it is not all of them.
func (p HostPort) String() string {
	if p.IP == anyIP {
		return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	return fmt.Sprintf("%s:%d/%s", p.IP, p.Port, p.Protocol)
}

// Clashes reports whether two pods of one node cannot have p and o: the same protocol and port, and the same address or
// all of them.
func (p HostPort) Clashes(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}

// HostPorts returns the ports of its node that a pod takes; nil if there are none. Of the init containers only
// sidecars take any.
func HostPorts(spec *schedulingv1.PodSpec) []HostPort {
	var out []HostPort
	add := func(c *schedulingv1.Container) {
		for _, p := range c.GetPorts() {
			if p.GetHostPort() > 0 {
				out = append(out, newHostPort(p))
			}
		}
	}
	for _, c := range spec.GetContainers() {
		add(c)
	}
	for _, c := range spec.GetInitContainers() {
		if IsSidecar(c) {
			add(c)
		}
	}
	return out
}

// PodAddressLabel is the label of a node by which its agent reports which address its pods have. With the value
// NodeAddress they have that of the node, so that their container ports must not clash. Any other value, and a node
// without the label, mean that each pod that is not in the network of its host has an address of its own.
const (
	PodAddressLabel = "windlass.dev/pod-address"
	NodeAddress     = "node"
)

// SharesAddress reports whether the pods of a node have the address of the node.
func SharesAddress(labels map[string]string) bool { return labels[PodAddressLabel] == NodeAddress }

// SharedPorts returns the ports that a pod takes of a node whose pods have the node's address: its host ports and its
// container ports; nil if there are none. Of the init containers only sidecars take any.
func SharedPorts(spec *schedulingv1.PodSpec) []HostPort {
	out := HostPorts(spec)
	for _, c := range slices.Concat(spec.GetContainers(), spec.GetInitContainers()) {
		if slices.Contains(spec.GetInitContainers(), c) && !IsSidecar(c) {
			continue
		}
		for _, p := range c.GetPorts() {
			if p.GetContainerPort() > 0 {
				own := newHostPort(p)
				own.IP, own.Port = anyIP, p.GetContainerPort()
				out = append(out, own)
			}
		}
	}
	return out
}

// PortsOn returns the ports that a pod takes of a node with these labels.
func PortsOn(labels map[string]string, spec *schedulingv1.PodSpec) []HostPort {
	if SharesAddress(labels) {
		return SharedPorts(spec)
	}
	return HostPorts(spec)
}

func newHostPort(p *schedulingv1.ContainerPort) HostPort {
	out := HostPort{IP: p.GetHostIp(), Protocol: p.GetProtocol(), Port: p.GetHostPort()}
	if out.IP == "" {
		out.IP = anyIP
	}
	if out.Protocol == "" {
		out.Protocol = "TCP"
	}
	return out
}

// FirstClash returns the first wanted port that clashes with one that is taken; false if none does.
func FirstClash(wanted, taken []HostPort) (HostPort, bool) {
	for _, w := range wanted {
		for _, t := range taken {
			if w.Clashes(t) {
				return w, true
			}
		}
	}
	return HostPort{}, false
}

// ValidatePorts returns the wrong ports of a pod's spec below path: host ports that the pod itself wants twice, and
// host ports that differ from the container's in the network of the host.
func ValidatePorts(path string, spec *schedulingv1.PodSpec) (fields []object.Fault) {
	var seen []HostPort
	for i, c := range spec.GetContainers() {
		for j, p := range c.GetPorts() {
			at := fmt.Sprintf("%s.containers[%d].ports[%d]", path, i, j)
			if p.GetContainerPort() <= 0 {
				fields = append(fields, object.Fault{Path: at + ".containerPort", Description: "must be 1 to 65535"})
			}
			if p.GetHostPort() == 0 {
				continue
			}
			if spec.GetHostNetwork() && p.GetHostPort() != p.GetContainerPort() {
				fields = append(fields,
					object.Fault{
						Path:        at + ".hostPort",
						Description: "must be the container's port, for the pod is in the network of its host",
					})
			}
			wanted := newHostPort(p)
			if clash, ok := FirstClash([]HostPort{wanted}, seen); ok {
				fields = append(fields, object.Fault{Path: at + ".hostPort", Description: "the pod wants " + clash.String() +
					" twice"})
			}
			seen = append(seen, wanted)
		}
	}
	return fields
}
