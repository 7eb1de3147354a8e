// Package members waits for the members of etcd, which the guardian restarts after an update.
package members

import (
	"context"
	"time"

	"google.golang.org/grpc"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const (
	lookEvery = 500 * time.Millisecond
	callLimit = 10 * time.Second
)

// Follower asks the guardian about the members.
type Follower struct{ client etcdv1.QuorumServiceClient }

// New returns a follower that asks the guardian.
func New(guardian grpc.ClientConnInterface) *Follower {
	return &Follower{etcdv1.NewQuorumServiceClient(guardian)}
}

// Follow calls see with how far the members have come, until they run what the executables of their hosts have, ctx
// ends, or the guardian does not answer. brings is that of plan.Members. What the guardian observed before the first
// answer is not enough: the agents report after the programs of their hosts have changed.
func (f *Follower) Follow(ctx context.Context, brings bool, see func(plan.Rollout)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var first time.Time
	for {
		now, err := f.ask(ctx)
		if err != nil {
			return err
		}
		observed := now.GetQuorum().GetObserveTime().AsTime()
		if first.IsZero() {
			first = observed
		}
		if r := plan.Members(now, brings); !r.Ready || !observed.Equal(first) {
			if see(r); r.Ready {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (f *Follower) ask(ctx context.Context) (*etcdv1.PlanQuorumResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f.client.PlanQuorum(ctx, &etcdv1.PlanQuorumRequest{})
}
