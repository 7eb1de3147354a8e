package controller

import (
	"context"
	"log/slog"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// Addresses gives an address to each service that was stored by a version of Windlass that gave it none, and has each
// service hold the one that it has.
type Addresses struct {
	tables *kinds.Tables
	log    *slog.Logger
	loops  *controller.Loops
}

// NewAddresses returns a controller that does nothing before Lead.
func NewAddresses(tables *kinds.Tables, log *slog.Logger) *Addresses {
	a := &Addresses{tables: tables, log: log, loops: controller.New(log)}
	controller.Watches(a.loops.Loop("serviceaddresses", 1, a.reconcile), tables.Services,
		func(ch resource.Change[*schedulingv1.Service]) []string {
			if ch.Deleted || !plan.LacksAddress(ch.Object) {
				return nil
			}
			return []string{ch.Key.String()}
		})
	return a
}

// Lead works until ctx ends.
func (a *Addresses) Lead(ctx context.Context) error {
	if a.tables.Services.WaitSynced(ctx) != nil {
		return nil // ctx ended
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	tried := make(chan struct{})
	group.Go(func() error {
		a.tables.Services.HoldClaims(ctx, a.log, func() { close(tried) })
		return nil
	})
	group.Go(func() error {
		defer stop()
		select {
		case <-tried: // before any is given away: they could be addresses that services have
			return a.loops.Lead(ctx)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// reconcile writes a service that lacks an address: each write chooses one.
func (a *Addresses) reconcile(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	s, ok := a.tables.Services.Lookup(k.Namespace, k.Name)
	if !ok || !plan.LacksAddress(s) || object.Deleting(s) {
		return time.Time{}, nil
	}
	s, err := a.tables.Services.Modify(ctx, k, func(*schedulingv1.Service) error { return nil })
	if err == nil {
		a.log.InfoContext(ctx, "service has an address", "namespace", k.Namespace, "name", k.Name, "address",
			s.GetSpec().GetClusterIp())
	}
	return time.Time{}, rpcerr.IgnoreChanged(err)
}
