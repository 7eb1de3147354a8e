package controller

import (
	"context"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// permitPatience is the timeout of one request to etcd-guardian, which answers from memory or after one write.
const permitPatience = 3 * time.Second

// Guardian implements Permits with etcd-guardian's API.
type Guardian struct{ client etcdv1.QuorumServiceClient }

// NewGuardian returns a Guardian that uses a client.
func NewGuardian(client etcdv1.QuorumServiceClient) Guardian { return Guardian{client: client} }

// Acquire requests the permit of a machine. held is false if the machine has no voter and so needs no permit.
func (g Guardian) Acquire(ctx context.Context, machine *metav1.ObjectReference, reason string) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, permitPatience)
	defer cancel()
	p, err := g.client.AcquireDisruptionPermit(ctx, &etcdv1.AcquireDisruptionPermitRequest{
		Machine: machine, Reason: reason,
	})
	return p.GetHeld(), err
}

// Release releases the permit of a machine. A machine that etcd-guardian does not know holds none.
func (g Guardian) Release(ctx context.Context, machine *metav1.ObjectReference) error {
	ctx, cancel := context.WithTimeout(ctx, permitPatience)
	defer cancel()
	_, err := g.client.ReleaseDisruptionPermit(ctx, &etcdv1.ReleaseDisruptionPermitRequest{Machine: machine})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
