package plan

import (
	"strconv"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// Instance returns the instance of the machine that has a host; nil if no machine has it. The instance of a silent host
// exists: it is Deleting or as it was, never gone.
func Instance(h *hostv1.Host) *providerv1.Instance {
	s := h.GetStatus()
	if s.GetMachineRef() == nil {
		return nil
	}
	fence, _ := strconv.ParseInt(s.GetFence(), 10, 64) // validated when it is stored; empty is 0
	out := &providerv1.Instance{
		ProviderId: s.GetProviderId(), RequestToken: s.GetRequestToken(), MachineName: s.GetMachineRef().GetName(),
		MachineUid: s.GetMachineRef().GetUid(), Zone: h.GetSpec().GetZone(), CreateTime: s.GetClaimTime(), Fence: fence,
		State: state(h), Addresses: addresses(h), VolumesKnown: true,
	}
	if s.GetUnblock() != "" {
		out.Message = "host " + h.GetMetadata().GetName() + ": " + s.GetMessage() + "; " + s.GetUnblock()
	}
	return out
}

func state(h *hostv1.Host) string {
	switch work(h) {
	case Claimed:
		if h.GetStatus().GetFailure() != "" {
			return "Failed"
		}
		return "Creating"
	case InUse:
		return "Running"
	}
	return "Deleting"
}

// addresses returns the registered address of a host as its InternalIP, and what its agent reported besides. Other
// internal addresses stay in the host's status: no two machines may have one, and bridges of containers are alike.
func addresses(h *hostv1.Host) []*nodev1.NodeAddress {
	own := h.GetSpec().GetAddress()
	out := []*nodev1.NodeAddress{
		{Type: "InternalIP", Address: own}, {Type: "Hostname", Address: h.GetMetadata().GetName()},
	}
	for _, a := range h.GetStatus().GetAddresses() {
		if a.GetType() != "InternalIP" && a.GetAddress() != own && a.GetAddress() != h.GetMetadata().GetName() {
			out = append(out, a)
		}
	}
	return out
}
