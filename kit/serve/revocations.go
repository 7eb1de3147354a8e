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

const (
	// writeAgain is the pause before a failed write of the deny list to disk is repeated.
	writeAgain = 10 * time.Second
	// After a write the next one waits for writeShare times as long as that one took, at most longestPause: until then a
	// process that is killed begins with a list that lacks the changes since.
	writeShare   = 20
	longestPause = time.Second
)

// followRevocations returns the part that follows the deny list; it does nothing without the address of machine-api.
func (p *Process) followRevocations() (Part, error) {
	if !p.cfg.Knows(topology.MachineAPI) {
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

// EnforceRevocations keeps the deny list of v in sync with a cache until ctx ends. Each change is in force at once. The
// list is written as a whole, so that a burst of changes, such as of a fleet that shrinks, is written as one: after
// each write the next one waits in proportion to the time that it took.
func EnforceRevocations(ctx context.Context, list *resource.Cache[*machinev1.Revocation], v *identity.Validity,
	log *slog.Logger,
) error {
	if list.WaitSynced(ctx) != nil {
		return nil
	}
	changed := make(chan struct{}, 1)
	notify(list, changed)
	var due <-chan time.Time // nil while what is in force is on the disk
	var free time.Time       // of the next write
	for {
		deny := denyList(list.All())
		v.Deny(deny)
		if due == nil {
			due = time.After(time.Until(free))
		}
		for same := true; same; {
			select {
			case <-ctx.Done():
				if due == nil {
					return nil
				}
				if err := v.Keep(deny); err != nil {
					log.ErrorContext(ctx, "deny list not written to disk", "error", err)
				}
				return nil
			case <-changed:
				same = false
			case <-due:
				began := time.Now()
				if err := v.Keep(deny); err != nil {
					log.ErrorContext(ctx, "deny list in force, but not written to disk", "error", err)
					due = time.After(writeAgain)
					continue
				}
				due, free = nil, time.Now().Add(min(writeShare*time.Since(began), longestPause))
			}
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
