package hostagent

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
)

const (
	// accessEvery is how soon a host gets another policy and other tokens, and notices that its files were changed;
	// accessBusy is how often it says how far that is.
	accessEvery = 2 * time.Second
	accessBusy  = 500 * time.Millisecond
)

// Access keeps the policy and the bearer tokens of a control-plane host. Its methods are for one goroutine.
type Access interface {
	// Report returns what the host has.
	Report(ctx context.Context) (*hostv1.SyncAccessRequest, error)
	// Follow does what an answer asks for.
	Follow(ctx context.Context, answer *hostv1.SyncAccessResponse) error
}

// syncAccess reports the policy and the tokens of the host and keeps them as the cluster has them, until ctx ends.
// While the inventory is not reached, the files stay as they are.
func (a *Agent) syncAccess(ctx context.Context, conn grpc.ClientConnInterface) error {
	for said := ""; ctx.Err() == nil; {
		busy, err := a.syncAccessOnce(ctx, conn)
		if text := fmt.Sprint(err); text != said && ctx.Err() == nil {
			if said = text; err != nil {
				a.cfg.Log.WarnContext(ctx, "the policy and the tokens of this host are not compared with those of the cluster",
					"error", err)
			}
		}
		pause := accessEvery
		if busy {
			pause = accessBusy
		}
		backoff.Sleep(ctx, pause)
	}
	return nil
}

// syncAccessOnce is one report and what follows from it. busy means that the next one will say something else soon.
func (a *Agent) syncAccessOnce(ctx context.Context, conn grpc.ClientConnInterface) (busy bool, err error) {
	r, err := a.cfg.Access.Report(ctx)
	if err != nil {
		return false, err
	}
	r.Name = a.cfg.Name
	call, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	answer, err := hostv1.NewHostServiceClient(conn).SyncAccess(call, r)
	if err != nil {
		return false, err
	}
	if err := a.cfg.Access.Follow(ctx, answer); err != nil {
		return false, err
	}
	is := r.GetAccess()
	noted := is.GetGeneration() != answer.GetGeneration() && is.GetPolicyHash() == answer.GetPolicyHash() &&
		is.GetTokensHash() == answer.GetTokensHash()
	return noted || answer.GetWanted() || answer.Policy != nil || answer.Tokens != nil || is.GetPending() != "", nil
}
