package identity

import (
	"context"
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// AgentOf returns nil if the caller is the agent of the node with that name, by a certificate of the machine that
// registered the node. node is the node's metadata; nil means that there is no such node: its agent has not registered
// it yet, which is no refusal, and tries again.
func AgentOf(ctx context.Context, name string, node *metav1.ObjectMeta) error {
	if err := NamedAgentOf(ctx, name); err != nil {
		return err
	}
	if node == nil {
		return rpcerr.Unavailable(fmt.Sprintf("node %q is not registered yet", name))
	}
	caller, _ := CallerFrom(ctx)
	if node.GetAnnotations()[nodeid.MachineUID] != caller.UID {
		return rpcerr.Forbidden(fmt.Sprintf("node %q is not of the machine with uid %s, whose certificate the caller has",
			name, caller.UID))
	}
	return nil
}

// NamedAgentOf returns nil if the caller's certificate names the node. Whether the node is of the certificate's machine
// is not checked.
func NamedAgentOf(ctx context.Context, name string) error {
	caller, _ := CallerFrom(ctx)
	if own, ok := caller.Node(); ok && own == name && caller.UID != "" {
		return nil
	}
	who := "an unknown caller"
	if caller.User != "" {
		who = fmt.Sprintf("%q", caller.User)
	}
	return rpcerr.Forbidden(fmt.Sprintf("%s does not speak for node %q: only the node's own agent does", who, name))
}
