package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	leaseTTL   = 10 * time.Second // a process that ends without a word is still listed for this long
	renewals   = 4                // in each TTL
	callLimit  = 4 * time.Second  // timeout of a request to etcd
	retryPause = 500 * time.Millisecond
)

// Announcer keeps the endpoint of this process in etcd. Make one with NewAnnouncer.
type Announcer struct {
	client *clientv3.Client
	log    *slog.Logger

	mu      sync.Mutex
	current Endpoint
	changed chan struct{}
}

// NewAnnouncer returns what announces e while it runs. At first the process is not ready.
func NewAnnouncer(c *clientv3.Client, e Endpoint, log *slog.Logger) *Announcer {
	e.Ready, e.Reason = false, "it has just started"
	return &Announcer{client: c, current: e, log: log, changed: make(chan struct{}, 1)}
}

// Set says whether the process is ready; reason says why it is not.
func (a *Announcer) Set(ready bool, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current.Ready, a.current.Reason = ready, reason
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Run announces the endpoint until ctx ends, and withdraws it then. It returns nil.
func (a *Announcer) Run(ctx context.Context) error {
	logged := ""
	for {
		lease, err := a.hold(ctx)
		if ctx.Err() != nil {
			a.withdraw(ctx, lease)
			return nil
		}
		if text := fmt.Sprint(err); text != logged {
			logged = text
			a.log.WarnContext(ctx, "endpoint is not announced", "error", err)
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
	}
}

// hold announces the endpoint under one lease for as long as that can be renewed. It returns the lease.
func (a *Announcer) hold(ctx context.Context) (clientv3.LeaseID, error) {
	lease, err := limited(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return a.client.Grant(ctx, int64(leaseTTL/time.Second))
	})
	if err != nil {
		return 0, fmt.Errorf("lease: %w", err)
	}
	if err := a.put(ctx, lease.ID); err != nil {
		return lease.ID, err
	}
	const every = leaseTTL / renewals
	until := time.Now().Add(leaseTTL)
	for {
		// At a multiple of the period, as the renewals of kit/controller: processes of one host wake the CPU once.
		now := time.Now()
		next := time.NewTimer(now.Truncate(every).Add(every).Sub(now))
		select {
		case <-ctx.Done():
			next.Stop()
			return lease.ID, ctx.Err()
		case <-a.changed:
			next.Stop()
			if err := a.put(ctx, lease.ID); err != nil {
				return lease.ID, err
			}
		case <-next.C:
			asked := time.Now()
			_, err := limited(ctx, func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
				return a.client.KeepAliveOnce(ctx, lease.ID)
			})
			switch {
			case err == nil:
				until = asked.Add(leaseTTL)
			case errors.Is(err, rpctypes.ErrLeaseNotFound) || time.Now().After(until):
				return lease.ID, fmt.Errorf("renew lease: %w", err)
			}
		}
	}
}

func (a *Announcer) put(ctx context.Context, lease clientv3.LeaseID) error {
	a.mu.Lock()
	e := a.current
	a.mu.Unlock()
	value, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := limited(ctx, func(ctx context.Context) (*clientv3.PutResponse, error) {
		return a.client.Put(ctx, e.Key(), string(value), clientv3.WithLease(lease))
	}); err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	return nil
}

// withdraw removes the endpoint, unless a later process at the same address has announced itself.
func (a *Announcer) withdraw(ctx context.Context, lease clientv3.LeaseID) {
	if lease == 0 {
		return
	}
	// Revoking the lease deletes what it still holds; a later process' key has another lease.
	if _, err := limited(context.WithoutCancel(ctx), func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return a.client.Revoke(ctx, lease)
	}); err != nil {
		a.log.DebugContext(ctx, "endpoint is withdrawn when its lease ends", "error", err)
	}
}

// limited makes one request to etcd.
func limited[R any](ctx context.Context, f func(context.Context) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f(ctx)
}
