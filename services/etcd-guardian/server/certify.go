package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/etcd-guardian/peers"
)

// CertifyMember signs the certificates of the member that is listed in the cluster for the caller's node, decided on an
// observation made after the call came in. Name, address and identity are the member's.
func (s *Server) CertifyMember(ctx context.Context, r *etcdv1.CertifyMemberRequest) (*etcdv1.CertifyMemberResponse,
	error,
) {
	caller, _ := identity.CallerFrom(ctx)
	if node, ok := caller.Node(); !ok || node != r.GetNode() {
		return nil, rpcerr.Forbidden(fmt.Sprintf("%s may not speak for node %q", caller.User, r.GetNode()))
	}
	o, err := s.Controller.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	if !o.View.Fresh || !o.View.MachinesKnown {
		return nil, rpcerr.Unavailable("the members or the machines are not known now: " + o.View.Trouble)
	}
	machine, ok := o.View.MachineOfUID(caller.UID)
	if !ok {
		return nil, rpcerr.Forbidden(fmt.Sprintf("node %q has no control-plane machine", r.GetNode()))
	}
	if len(machine.Addresses) == 0 {
		return nil, rpcerr.Unavailable("no address of machine " + machine.Name +
			" is known yet: the member's comes from its agent alone")
	}
	member, ok := o.View.MemberOfMachine(machine)
	if !ok || len(member.PeerURLs) != 1 || !machine.Owns(member.PeerURLs) {
		return nil, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "nodes/"+r.GetNode(),
			"no member of the etcd cluster is planned for this node, or it was removed")
	}
	cluster, err := strconv.ParseUint(o.Quorum.GetClusterId(), 16, 64)
	if err != nil {
		return nil, rpcerr.Unavailable("the identity of the etcd cluster is not known yet")
	}
	m, err := peers.MemberAt(machine.Node, cluster, member.ID, member.PeerURLs[0])
	if err != nil {
		return nil, err
	}
	identity.Describe(ctx, machine.Namespace, machine.Name, fmt.Sprintf("certificates of etcd member %x", member.ID))
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	out, err := s.Signer.Sign(m, r.GetServerRequest(), r.GetPeerRequest())
	if errors.Is(err, peers.ErrRequest) {
		return nil, rpcerr.Invalid(object.Fault{Path: "serverRequest, peerRequest", Description: err.Error()})
	}
	return out, err
}
