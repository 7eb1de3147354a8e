package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
)

const internalIP = "InternalIP"

// FixedFaults returns the changes of what is fixed when a machine is created: its role, and the provider that makes its
// instance. A role that could be changed would make a worker a member of the quorum.
func FixedFaults(old, changed *machinev1.Machine) []object.Fault {
	var out []object.Fault
	for _, key := range []string{LabelRole, LabelType} {
		was, had := old.GetMetadata().GetLabels()[key]
		is, has := changed.GetMetadata().GetLabels()[key]
		if was != is || had != has {
			out = append(out, object.Faultf(fmt.Sprintf("metadata.labels['%s']", key),
				"cannot be changed from %q to %q: a machine's role is fixed at creation", was, is))
		}
	}
	if was, is := providerKind(old), providerKind(changed); was != "" && was != is {
		out = append(out, object.Faultf("spec.providerSpec.value.kind",
			"cannot be changed from %q to %q: a machine's provider is fixed at creation", was, is))
	}
	return out
}

func providerKind(m *machinev1.Machine) string {
	return m.GetSpec().GetProviderSpec().GetValue().GetFields()["kind"].GetStringValue()
}

// NameFaults returns what is wrong with a machine's name as that of a node: it is an address, or refers to the host
// that reads it.
func NameFaults(name string) []object.Fault {
	_, err := netip.ParseAddr(name)
	if err != nil && name != "localhost" && !strings.HasSuffix(name, ".localhost") {
		return nil
	}
	return []object.Fault{object.Faultf("metadata.name",
		"invalid value %q: it is also the node's name, and an address or localhost names another host", name)}
}

// NodeRoleFaults returns the labels for a machine's node that only a control-plane machine may give it. path is that of
// the labels.
func NodeRoleFaults(role string, labels map[string]string, path string) []object.Fault {
	if role == RoleMaster {
		return nil
	}
	var out []object.Fault
	for _, key := range []string{nodeLabelControlPlane, nodeLabelMaster} {
		if _, ok := labels[key]; ok {
			out = append(out, object.Faultf(fmt.Sprintf("%s['%s']", path, key), "is for machines of role %q, by their label %s",
				RoleMaster, LabelRole))
		}
	}
	return out
}

// SameNodeRoles reports whether a change leaves the roles as they are that a machine gives its node.
func SameNodeRoles(old, changed *machinev1.Machine) bool {
	return slices.Equal(nodeid.Roles(old.GetSpec().GetMetadata().GetLabels()),
		nodeid.Roles(changed.GetSpec().GetMetadata().GetLabels()))
}

// InternalAddress returns the address of a machine inside the cluster, as machine-api took it over from the provider;
// empty if it is not known.
func InternalAddress(m *machinev1.Machine) string {
	return internalAddress(m.GetStatus().GetAddresses())
}

func internalAddress(list []*nodev1.NodeAddress) string {
	for _, a := range list {
		if a.GetType() == internalIP {
			return a.GetAddress()
		}
	}
	return ""
}

// InternalAddresses returns the addresses inside the cluster of a list, each in the one form in which equal addresses
// are equal strings. What is no IP address is left out.
func InternalAddresses(list []*nodev1.NodeAddress) []string {
	var out []string
	for _, a := range list {
		if ip, err := netip.ParseAddr(a.GetAddress()); err == nil && a.GetType() == internalIP {
			out = append(out, ip.Unmap().String())
		}
	}
	return out
}

// HeldAddress returns the address that no other machine may have while this one has it: it gives it up for good when
// its instance is gone.
func HeldAddress(m *machinev1.Machine) string {
	if c := object.FindCondition(m.GetStatus().GetConditions(), InstanceExists); c.GetStatus() == conditionFalse ||
		c.GetReason() == reasonReappeared {
		return ""
	}
	return InternalAddress(m)
}

// gaveUpAddress reports whether the provider once said that a machine's instance is gone. Its address may be another
// machine's since, so what is said of the instance later must not claim it again.
func gaveUpAddress(m *machinev1.Machine) bool {
	c := object.FindCondition(m.GetStatus().GetConditions(), InstanceExists)
	return c.GetReason() == reasonCannotFindInstance || c.GetReason() == reasonReappeared
}

// InstanceView is what the judgement of a provider's word about an instance depends on.
type InstanceView struct {
	Machine  *machinev1.Machine
	Instance *providerv1.Instance
	Machines []*machinev1.Machine // all that have the instance or one of its addresses; others make no difference
	Reserved []netip.Prefix       // addresses of the cluster's own programs
}

// InstanceFault returns why an instance cannot be that of a machine; empty if it can. A provider is trusted with its
// own instances: it cannot make one that takes another machine's place, or the gateway's.
func InstanceFault(v InstanceView) string {
	m, i := v.Machine.GetMetadata(), v.Instance
	if uid := i.GetMachineUid(); uid != "" && uid != m.GetUid() {
		return fmt.Sprintf("the provider's instance %s is of machine uid %s", i.GetProviderId(), uid)
	}
	if id := v.Machine.GetSpec().GetProviderId(); id != "" && i.GetProviderId() != id {
		return fmt.Sprintf("the provider has instance %q for the machine, not %q", i.GetProviderId(), id)
	}
	for _, other := range v.Machines {
		if other.GetMetadata().GetUid() != m.GetUid() && i.GetProviderId() != "" &&
			other.GetSpec().GetProviderId() == i.GetProviderId() {
			return fmt.Sprintf("the provider's instance %s belongs to machine %s", i.GetProviderId(), object.KeyOf(other))
		}
	}
	for _, a := range i.GetAddresses() {
		if a.GetType() != internalIP {
			continue
		}
		if fault := addressFault(v, a.GetAddress()); fault != "" {
			return fmt.Sprintf("the provider's address %q %s", a.GetAddress(), fault)
		}
	}
	return ""
}

func addressFault(v InstanceView, text string) string {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return "is no IP address"
	}
	ip = ip.Unmap()
	switch {
	case ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is not that of one host"
	case ip == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || ip == netip.IPv6Loopback():
		return "is localhost, which is every host's own"
	case ip.IsLinkLocalUnicast():
		return "is a link-local one"
	case slices.ContainsFunc(v.Reserved, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return "is that of a program of the cluster"
	}
	for _, other := range v.Machines {
		if other.GetMetadata().GetUid() == v.Machine.GetMetadata().GetUid() {
			continue
		}
		if HeldAddress(other) == "" {
			continue
		}
		for _, a := range other.GetStatus().GetAddresses() { // it may have several
			if held, err := netip.ParseAddr(a.GetAddress()); a.GetType() == internalIP && err == nil && held.Unmap() == ip {
				return fmt.Sprintf("is that of machine %s", object.KeyOf(other))
			}
		}
	}
	return ""
}

// IsNodeOf reports whether a node is that of a machine: by the reference that was noted, by the machine's uid that the
// node registered with, or, of a node that no agent registered, by the instance. A name alone never links the two.
func IsNodeOf(n *nodev1.Node, m *machinev1.Machine, providerID string) bool {
	if uid := n.GetMetadata().GetAnnotations()[nodeid.MachineUID]; uid != "" {
		return uid == m.GetMetadata().GetUid()
	}
	if ref := m.GetStatus().GetNodeRef(); ref.GetUid() != "" && ref.GetUid() == n.GetMetadata().GetUid() &&
		ref.GetName() == n.GetMetadata().GetName() {
		return true
	}
	return providerID != "" && n.GetSpec().GetProviderId() == providerID
}

// linkedNode returns the node that a machine's reference names, among nodes by name; nil if there is none, or if it is
// another one of that name.
func linkedNode(nodes map[string]*nodev1.Node, m *machinev1.Machine) *nodev1.Node {
	ref := m.GetStatus().GetNodeRef()
	n := nodes[ref.GetName()]
	// The nodes of a plan request have no uid.
	if ref.GetUid() != "" && n.GetMetadata().GetUid() != "" && ref.GetUid() != n.GetMetadata().GetUid() {
		return nil
	}
	return n
}
