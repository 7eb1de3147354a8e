package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	leaseTTL   = 10 * time.Second       // a process that ends without a word is still listed for this long
	renewals   = 4                      // in each TTL
	callLimit  = 4 * time.Second        // timeout of a request to etcd
	askNext    = time.Second            // how long a member may take to renew the lease before the next one is asked, too
	retryPause = 500 * time.Millisecond // before the first repetition
	longPause  = 10 * time.Second       // between later ones

	rememberEvery = time.Hour
	forgetAfter   = 7 * 24 * time.Hour
)

// Announcer keeps the endpoint of this process in etcd. Make one with NewAnnouncer.
type Announcer struct {
	client *clientv3.Client
	log    *slog.Logger

	mu      sync.Mutex
	current Endpoint
	ready   bool   // of the process; it serves if there is no fault either
	reason  string // why it is not ready
	fault   string // why it refuses callers although it is ready
	changed chan struct{}
}

// NewAnnouncer returns what announces e while it runs. At first the process is not ready.
func NewAnnouncer(c *clientv3.Client, e Endpoint, log *slog.Logger) *Announcer {
	a := &Announcer{client: c, current: e, log: log, changed: make(chan struct{}, 1)}
	a.Set(false, "it has just started")
	return a
}

// Set says whether the process is ready; reason says why it is not.
func (a *Announcer) Set(ready bool, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready, a.reason = ready, reason
	a.update()
}

// Fault says why the process refuses callers although it is ready: others are then called instead. Empty: it does not.
func (a *Announcer) Fault(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = text
	a.update()
}

// update derives what is announced. The lock is held.
func (a *Announcer) update() {
	ready, reason := a.ready && a.fault == "", a.reason
	if a.ready {
		reason = a.fault
	}
	if ready == a.current.Ready && reason == a.current.Reason {
		return
	}
	a.current.Ready, a.current.Reason = ready, reason
	a.again()
}

// again has Run write the endpoint once more.
func (a *Announcer) again() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Run announces the endpoint until ctx ends, and withdraws it then. It returns nil.
func (a *Announcer) Run(ctx context.Context) error {
	logged := ""
	for wait := retryPause; ; wait = min(2*wait, longPause) {
		began := time.Now()
		lease, err := a.hold(ctx)
		a.withdraw(ctx, lease)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > leaseTTL {
			wait = retryPause
		}
		if text := fmt.Sprint(err); text != logged {
			logged = text
			a.log.WarnContext(ctx, "endpoint is not announced", "error", err)
		}
		select {
		case <-time.After(wait):
		case <-a.changed: // it reads from etcd again: others should not pass over it until a pause is over
			wait = retryPause
		case <-ctx.Done():
			return nil
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
	until, remembered := time.Now().Add(leaseTTL), time.Time{}
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
			switch err := a.put(ctx, lease.ID); {
			case err == nil:
			case errors.Is(err, rpctypes.ErrLeaseNotFound) || time.Now().After(until):
				return lease.ID, err
			default: // what is announced stays, which is better than nothing
				time.AfterFunc(retryPause, a.again)
			}
		case <-next.C:
			renewed, err := limited(ctx, func(ctx context.Context) (time.Time, error) {
				return store.RenewLease(ctx, a.client, lease.ID, askNext)
			})
			switch {
			case err == nil:
				until = renewed
				a.restore(ctx, lease.ID)
				if time.Since(remembered) > rememberEvery && a.remember(ctx) == nil {
					remembered = time.Now()
				}
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

// restore announces the endpoint again if the key is not as it was written: a user has deleted it, another process
// had the address for a while, or etcd was restored from a snapshot.
func (a *Announcer) restore(ctx context.Context, lease clientv3.LeaseID) {
	a.mu.Lock()
	e := a.current
	a.mu.Unlock()
	got, err := limited(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return a.client.Get(ctx, e.Key())
	})
	if err != nil || len(got.Kvs) == 1 && clientv3.LeaseID(got.Kvs[0].Lease) == lease {
		return // after an error the next renewal looks again
	}
	a.log.WarnContext(ctx, "the announced endpoint was gone, or another process's with the same address", "key", e.Key())
	a.again()
}

// remember writes down that the process runs here, for the time after it has gone, and removes what was not renewed
// for a week: of hosts that are no longer there.
func (a *Announcer) remember(ctx context.Context) error {
	a.mu.Lock()
	e := a.current
	a.mu.Unlock()
	now := time.Now().UTC()
	value, err := json.Marshal(last{Host: e.Host, Version: e.Version, Seen: now})
	if err != nil {
		return err
	}
	prefix := topology.EndpointsOf(e.Service)
	got, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return a.client.Txn(ctx).Then(clientv3.OpPut(e.Key()+lastSuffix, string(value)),
			clientv3.OpGet(prefix, clientv3.WithPrefix())).Commit()
	})
	if err != nil {
		return err
	}
	for _, kv := range got.Responses[1].GetResponseRange().Kvs {
		var l last
		if !strings.HasSuffix(string(kv.Key), lastSuffix) || json.Unmarshal(kv.Value, &l) != nil ||
			now.Sub(l.Seen) < forgetAfter {
			continue
		}
		if _, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return a.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)).
				Then(clientv3.OpDelete(string(kv.Key))).Commit()
		}); err != nil {
			return err
		}
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
