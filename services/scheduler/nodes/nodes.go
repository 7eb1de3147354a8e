// Package nodes is what the scheduler knows of nodes: a copy that follows their owner, and a question for when the copy
// is not enough.
package nodes

import (
	"context"
	"log/slog"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
)

// Nodes is a copy of all nodes. It is safe for concurrent use.
type Nodes struct {
	*informer.Informer[*nodev1.Node]
	owner nodev1.NodeServiceClient
}

// New returns a copy over a connection to the owner of nodes. Nothing is read before Run.
func New(conn grpc.ClientConnInterface, log *slog.Logger) (*Nodes, error) {
	i, err := informer.New[*nodev1.Node](conn, log)
	if err != nil {
		return nil, err
	}
	return &Nodes{Informer: i, owner: nodev1.NewNodeServiceClient(conn)}, nil
}

// HasNode reports whether a node exists; true as long as that is not known.
func (n *Nodes) HasNode(name string) bool {
	if !n.IsSynced() {
		return true
	}
	_, ok := n.Lookup("", name)
	return ok
}

// patience bounds one question to the owner of nodes: it answers after one read.
const patience = 3 * time.Second

// Exists asks the owner whether a node exists.
func (n *Nodes) Exists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := n.owner.GetNode(ctx, &nodev1.GetNodeRequest{Name: name})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return false, nil
	}
	return err == nil, err
}

// Speaks returns nil if the caller of ctx is the agent of a node, by a certificate of the machine that the node is of
// now. A node that registered a moment ago may not be in the copy yet, so a refusal comes from its owner.
func (n *Nodes) Speaks(ctx context.Context, name string) error {
	if node, ok := n.Lookup("", name); ok && identity.AgentOf(ctx, name, node.GetMetadata()) == nil {
		return nil
	}
	if err := identity.NamedAgentOf(ctx, name); err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := n.owner.GetNode(ask, &nodev1.GetNodeRequest{Name: name})
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	return identity.AgentOf(ctx, name, node.GetMetadata())
}
