package serve

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/topology"
)

// writeAgain is the pause before a failed write of the deny list to disk is repeated.
const writeAgain = 10 * time.Second

// followRevocations returns the part that follows the deny list; it does nothing without the address of machine-api.
func (p *Process) followRevocations() (Part, error) {
	if p.cfg.Peers[topology.MachineAPI] == "" {
		return func(context.Context) error { return nil }, nil
	}
	conn, err := p.Dial(topology.MachineAPI)
	if err != nil {
		return nil, err
	}
	return FollowRevocations(conn, p.Validity, p.Log)
}

// FollowRevocations returns a part that keeps the deny list of v in sync with machine-api, over a connection to it.
// While machine-api is unavailable the last list remains in force.
func FollowRevocations(conn grpc.ClientConnInterface, v *identity.Validity, log *slog.Logger) (Part, error) {
	list, err := informer.New[*machinev1.Revocation](conn, log)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		followed := make(chan error, 1)
		go func() { followed <- list.Run(ctx) }()
		err := EnforceRevocations(ctx, list.Cache, v, log)
		cancel()
		<-followed
		return err
	}, nil
}

// EnforceRevocations keeps the deny list of v in sync with a cache until ctx ends.
func EnforceRevocations(ctx context.Context, list *resource.Cache[*machinev1.Revocation], v *identity.Validity,
	log *slog.Logger,
) error {
	if list.WaitSynced(ctx) != nil {
		return nil
	}
	changed := make(chan struct{}, 1)
	notify(list, changed)
	for {
		var again <-chan time.Time
		if err := v.Revoke(denyList(list.All())); err != nil {
			log.ErrorContext(ctx, "deny list in force, but not written to disk", "error", err)
			again = time.After(writeAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

func denyList(objects []*machinev1.Revocation) []identity.Revocation {
	out := make([]identity.Revocation, 0, len(objects))
	for _, o := range objects {
		s := o.GetSpec()
		r := identity.Revocation{
			User: s.GetUser(), Serial: s.GetSerialNumber(), MachineUID: s.GetMachineUid(),
			Reason: s.GetReason(),
		}
		if s.GetIssuedBefore() != nil {
			r.IssuedBefore = s.GetIssuedBefore().AsTime()
		}
		out = append(out, r)
	}
	return out
}
