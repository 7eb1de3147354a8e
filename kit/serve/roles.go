package serve

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/topology"
)

// followRoles returns the part that follows the stored roles; it does nothing in a process that has no way to them.
func (p *Process) followRoles() (Part, error) {
	if !p.cfg.Knows(topology.Scheduler) {
		return func(context.Context) error { return nil }, nil
	}
	conn, err := p.Dial(topology.Scheduler)
	if err != nil {
		return nil, err
	}
	return FollowRoles(conn, p.Policy, p.Log)
}

// FollowRoles returns a part that keeps the roles and bindings that scheduler stores in force in a policy, by a
// connection to it. Before they are read for the first time the policy file alone is in force. While scheduler is away
// the last ones stay in force.
func FollowRoles(conn grpc.ClientConnInterface, policy *identity.Policy, log *slog.Logger) (Part, error) {
	clusterRoles, err := informer.New[*rbacv1.ClusterRole](conn, log)
	if err != nil {
		return nil, err
	}
	roles, err := informer.New[*rbacv1.Role](conn, log)
	if err != nil {
		return nil, err
	}
	clusterBindings, err := informer.New[*rbacv1.ClusterRoleBinding](conn, log)
	if err != nil {
		return nil, err
	}
	bindings, err := informer.New[*rbacv1.RoleBinding](conn, log)
	if err != nil {
		return nil, err
	}
	enforce := EnforceRoles(Roles{clusterRoles.Cache, roles.Cache, clusterBindings.Cache, bindings.Cache}, policy)
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, part := range []Part{clusterRoles.Run, roles.Run, clusterBindings.Run, bindings.Run, enforce} {
			group.Go(func() error { return part(ctx) })
		}
		return group.Wait()
	}, nil
}

// Roles are the caches of the kinds by which rights are stored.
type Roles struct {
	ClusterRoles        *resource.Cache[*rbacv1.ClusterRole]
	Roles               *resource.Cache[*rbacv1.Role]
	ClusterRoleBindings *resource.Cache[*rbacv1.ClusterRoleBinding]
	RoleBindings        *resource.Cache[*rbacv1.RoleBinding]
}

// A process rests after it put roles in force: a multiple of the time that this took, at most longestRest. All
// processes of a cluster do so after each change, on one machine at the same time: with 10,000 roles a series of
// changes would leave no time for anything else. A right that is revoked during the rest holds until its end.
const (
	restFactor  = 20
	longestRest = 2 * time.Second
)

func restAfter(took time.Duration) time.Duration { return min(took*restFactor, longestRest) }

// EnforceRoles returns a part that keeps in force in a policy what caches have. The policy says that it awaits them
// from now on, until all are filled.
func EnforceRoles(r Roles, policy *identity.Policy) Part {
	policy.AwaitStored()
	return func(ctx context.Context) error {
		for _, cache := range []interface{ WaitSynced(context.Context) error }{
			r.ClusterRoles, r.Roles, r.ClusterRoleBindings, r.RoleBindings,
		} {
			if cache.WaitSynced(ctx) != nil {
				return nil // ctx ended
			}
		}
		changed := make(chan struct{}, 1)
		notify(r.ClusterRoles, changed)
		notify(r.Roles, changed)
		notify(r.ClusterRoleBindings, changed)
		notify(r.RoleBindings, changed)
		for {
			began := time.Now()
			policy.SetStored(identity.Stored{
				ClusterRoles: r.ClusterRoles.All(), Roles: r.Roles.All(),
				ClusterRoleBindings: r.ClusterRoleBindings.All(), RoleBindings: r.RoleBindings.All(),
			})
			rest := time.NewTimer(restAfter(time.Since(began)))
			select {
			case <-ctx.Done():
				return nil
			case <-rest.C:
			}
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
		}
	}
}

// notify has each change of a cache fill changed.
func notify[T object.Object](c *resource.Cache[T], changed chan<- struct{}) {
	c.Subscribe(func(resource.Change[T]) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
}
