package server

import (
	"context"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
)

// permitPatience bounds one question to the guardian: it answers from one observation.
const permitPatience = 3 * time.Second

// Guardian asks etcd-guardian for the disruption permit.
type Guardian struct{ client etcdv1.QuorumServiceClient }

// NewGuardian returns the guardian behind a connection.
func NewGuardian(conn grpc.ClientConnInterface) Guardian {
	return Guardian{etcdv1.NewQuorumServiceClient(conn)}
}

// Acquire returns nil if the voter of a node may go down now, or if the node has none. The drain of the node has the
// permit already; it is given back with the drain.
func (g Guardian) Acquire(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, permitPatience)
	defer cancel()
	_, err := g.client.AcquireDisruptionPermit(ctx, &etcdv1.AcquireDisruptionPermitRequest{
		Machine: &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: node}, Reason: "reboot",
	})
	return err
}

// Release gives the permit of a node's machine back if this service took it: one that a drain or a reboot took is
// theirs. A machine that the guardian does not know holds none.
func (g Guardian) Release(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, permitPatience)
	defer cancel()
	_, err := g.client.ReleaseDisruptionPermit(ctx, &etcdv1.ReleaseDisruptionPermitRequest{
		Machine: &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: node},
		Holder:  identity.ServiceUser(topology.NodeConfigurator),
	})
	return err
}
