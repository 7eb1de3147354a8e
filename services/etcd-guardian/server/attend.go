package server

import (
	"fmt"
	"net/netip"
	"net/url"

	"google.golang.org/grpc"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/etcd-guardian/agents"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// AttendMember takes the offer of a control-plane machine's agent. The caller must be that node itself, by a
// certificate of the machine that has its name now, and offer addresses of its own.
func (s *Server) AttendMember(r *etcdv1.AttendMemberRequest,
	stream grpc.ServerStreamingServer[etcdv1.AttendMemberResponse],
) error {
	ctx := stream.Context()
	caller, _ := identity.CallerFrom(ctx)
	if node, ok := caller.Node(); !ok || node != r.GetNode() {
		return rpcerr.Forbidden(fmt.Sprintf("%s may not speak for node %q", caller.User, r.GetNode()))
	}
	o, _ := s.Controller.Last()
	if err := admit(o.View, caller, r); err != nil {
		return err
	}
	offer := agents.Offer{
		Node: r.GetNode(), MachineUID: caller.UID, PeerURL: r.GetPeerUrl(), ClientURL: r.GetClientUrl(),
		HasData: r.GetHasData(), NextVersion: r.GetEtcdVersion(), Other: r.GetOtherExecutable(),
	}
	return s.Controller.Agents.Attend(ctx, offer, stream.Send)
}

func admit(v plan.View, caller identity.Caller, r *etcdv1.AttendMemberRequest) error {
	var bad []object.Fault
	hosts := map[string]string{}
	for _, f := range []struct{ path, value string }{{"peerUrl", r.GetPeerUrl()}, {"clientUrl", r.GetClientUrl()}} {
		host, ok := hostOf(f.value)
		if !ok {
			bad = append(bad, object.Fault{Path: f.path, Description: fmt.Sprintf("%q is not of the form https://IP:PORT",
				f.value)})
		}
		hosts[f.path] = host
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	if !v.MachinesKnown {
		return nil // the controller checks the machine, and the plan the addresses, before they use the offer
	}
	machine, ok := v.MachineOfUID(caller.UID)
	if _, named := v.MachineOfNode(r.GetNode()); !ok && !named {
		return rpcerr.Unavailable(fmt.Sprintf("node %q has no control-plane machine", r.GetNode()))
	}
	if !ok {
		return rpcerr.Forbidden(fmt.Sprintf("the certificate of node %q is not of the machine that has this name now",
			r.GetNode()))
	}
	for path, host := range hosts {
		if len(machine.Addresses) > 0 && !machine.Has(host) {
			return rpcerr.Forbidden(fmt.Sprintf("%s: %s is no address of machine %s", path, host, machine.Name))
		}
	}
	return nil
}

func hostOf(s string) (string, bool) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Path != "" {
		return "", false
	}
	a, err := netip.ParseAddrPort(u.Host)
	return a.Addr().String(), err == nil && !a.Addr().Unmap().IsUnspecified()
}
