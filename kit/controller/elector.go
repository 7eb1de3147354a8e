package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	leaseTTL   = 5 * time.Second        // another process can lead this long after the leader died
	renewals   = 5                      // in each TTL, so that a few may fail
	callLimit  = time.Second            // timeout of a request to etcd, after which another member is tried
	callLimits = 4 * time.Second        // the timeout doubles up to this if responses take longer
	retryPause = 100 * time.Millisecond // after a failed request
	askNext    = 400 * time.Millisecond // the next member renews the lease if one has not answered by then
	lookAgain  = 3 * time.Second        // a candidate reopens its watch of the key after this time without an event
	// the same for a leader: a lost key that is detected late costs only time, since writes are fenced and the lease
	// expires
	lookAtOwn = 15 * time.Second
)

var (
	errLeaseLost = errors.New("lease expired")
	errKeyLost   = errors.New("election key was removed")

	errWatchEnded = errors.New("watch ended")
)

// Candidacy is the value of an election key: the leader and its address.
type Candidacy struct {
	Address string `json:"address"` // host:port that the holder has bound
	Holder  string `json:"holder"`  // for people: program@pid
}

// Elector is a candidate in the election of a service's leader. Make one with NewElector.
type Elector struct {
	client *clientv3.Client
	key    string
	self   Candidacy
	ttl    time.Duration
	leads  atomic.Bool
	missed store.Refusals
	log    *slog.Logger

	mu    sync.Mutex
	limit time.Duration // timeout of the next call
}

// Leads reports whether this process leads. It may be outdated; writes are fenced. It is safe for concurrent use.
func (e *Elector) Leads() bool { return e.leads.Load() }

// The metrics of an elector.
var (
	leading       = prometheus.NewDesc("windlass_leader", "1 if this process leads its service, 0 if not.", nil, nil)
	missedWatches = prometheus.NewDesc("windlass_election_refused_watches_total",
		"Times that etcd refused to let the election key be read or watched, or did not answer.", nil, nil)
)

// Describe and Collect make the elector a prometheus.Collector.
func (e *Elector) Describe(out chan<- *prometheus.Desc) {
	out <- leading
	out <- missedWatches
}

// Collect sends whether the process leads, and the number of refusals.
func (e *Elector) Collect(out chan<- prometheus.Metric) {
	leads := 0.0
	if e.Leads() {
		leads = 1
	}
	out <- prometheus.MustNewConstMetric(leading, prometheus.GaugeValue, leads)
	out <- prometheus.MustNewConstMetric(missedWatches, prometheus.CounterValue, float64(e.missed.Count()))
}

// NewElector returns a candidate for the lead of service. address is the address of this process, which must have bound
// it: a candidate assumes that any other holder with the same address is dead.
func NewElector(c *clientv3.Client, service, address string, log *slog.Logger) *Elector {
	return &Elector{
		client: c, key: topology.ElectionKey(service), ttl: leaseTTL, limit: callLimit, log: log.With("election", service),
		self: Candidacy{Address: address, Holder: fmt.Sprintf("%s@%d", service, os.Getpid())},
	}
}

// term is one leadership.
type term struct {
	fence store.Fence
	lease clientv3.LeaseID
	until time.Time // the lease is valid at least until then
}

// Run campaigns until ctx ends and calls lead each time it wins the election. The context of lead contains the fence,
// so that a Commit with it fails with store.ErrFenced once another process leads. The context ends when the leadership
// is lost; lead must then return soon. Run returns nil when ctx ends, or the error of lead, except errors that result
// from a lost leadership or an unavailable etcd: after these it campaigns again.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context) error) error {
	for {
		t, err := e.campaign(ctx)
		if err != nil {
			return nil // ctx ended
		}
		if err := e.hold(ctx, t, lead); err != nil {
			return err
		}
		if !pause(ctx, retryPause) {
			return nil
		}
	}
}

// campaign returns once the election is won, or when ctx ends.
func (e *Elector) campaign(ctx context.Context) (term, error) {
	logged := ""
	for {
		t, rival, err := e.try(ctx)
		switch {
		case err != nil:
			if text := err.Error(); text != logged && ctx.Err() == nil {
				e.log.WarnContext(ctx, "campaign", "error", err)
				logged = text
			}
		case rival != nil:
			e.waitGone(ctx, rival.CreateRevision, lookAgain)
		default:
			return t, nil
		}
		if ctx.Err() != nil {
			return term{}, ctx.Err()
		}
		if err != nil && !pause(ctx, retryPause) {
			return term{}, ctx.Err()
		}
	}
}

// try takes the key if it is free or held with our own address. If another candidate holds it, try returns that key.
func (e *Elector) try(ctx context.Context) (term, *mvccpb.KeyValue, error) {
	kv, _, err := e.get(ctx)
	if err != nil {
		if ctx.Err() == nil {
			e.missed.Note(ctx, e.log, e.key, err)
		}
		return term{}, nil, err
	}
	if kv != nil && !e.ours(kv) {
		return term{}, kv, nil
	}
	if kv != nil {
		// The holder had the address that is ours now, so it is dead. A put would keep the creation revision, and with it the
		// old fence; so the key is deleted and created again.
		if err := e.remove(ctx, clientv3.Compare(clientv3.ModRevision(e.key), "=", kv.ModRevision)); err != nil {
			return term{}, nil, err
		}
	}
	return e.create(ctx)
}

func (e *Elector) ours(kv *mvccpb.KeyValue) bool {
	var c Candidacy
	return json.Unmarshal(kv.Value, &c) == nil && c.Address == e.self.Address
}

// create creates the key if it is absent. If another candidate created it first, create returns that key.
func (e *Elector) create(ctx context.Context) (term, *mvccpb.KeyValue, error) {
	value, err := json.Marshal(e.self)
	if err != nil {
		return term{}, nil, err
	}
	asked := time.Now()
	lease, err := call(ctx, e, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return e.client.Grant(ctx, int64(e.ttl/time.Second))
	})
	if err != nil {
		return term{}, nil, fmt.Errorf("lease: %w", err)
	}
	// A delayed attempt finds no lease, so it cannot take the key after a later attempt.
	resp, err := call(ctx, e, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0)).
			Then(clientv3.OpPut(e.key, string(value), clientv3.WithLease(lease.ID))).
			Else(clientv3.OpGet(e.key)).Commit()
	})
	if err != nil {
		e.revoke(ctx, lease.ID) // if the put was applied, the key is deleted with the lease
		return term{}, nil, fmt.Errorf("take key: %w", err)
	}
	if !resp.Succeeded {
		e.revoke(ctx, lease.ID)
		return term{}, resp.Responses[0].GetResponseRange().Kvs[0], nil
	}
	fence := store.Fence{Key: e.key, CreateRevision: resp.Header.Revision}
	return term{fence: fence, lease: lease.ID, until: asked.Add(time.Duration(lease.TTL) * time.Second)}, nil, nil
}

// hold calls lead for one term and then resigns.
func (e *Elector) hold(ctx context.Context, t term, lead func(ctx context.Context) error) error {
	leading, end := context.WithCancelCause(store.WithFence(ctx, t.fence))
	var group sync.WaitGroup
	group.Go(func() {
		e.keepAlive(leading, t)
		end(errLeaseLost)
	})
	group.Go(func() {
		e.waitGone(leading, t.fence.CreateRevision, lookAtOwn)
		end(errKeyLost)
	})
	e.log.InfoContext(ctx, "leadership won", "revision", t.fence.CreateRevision)
	e.leads.Store(true)
	stop := context.AfterFunc(leading, func() { e.leads.Store(false) })
	err := lead(leading)
	stop()
	e.leads.Store(false)
	cause := context.Cause(leading)
	end(nil)
	group.Wait()
	e.resign(ctx, t)
	if ctx.Err() != nil {
		return nil
	}
	e.log.InfoContext(ctx, "leadership ended", "revision", t.fence.CreateRevision, "cause", cause, "error", err)
	if cause != nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrUnavailable) {
		return nil
	}
	return err
}

// keepAlive renews the lease until ctx ends or the lease is lost. Each renewal may take as long as the lease is valid,
// and does not delay the next one: neither a member that hangs nor a slow etcd ends the leadership.
func (e *Elector) keepAlive(ctx context.Context, t term) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	until, every := t.until, e.ttl/renewals
	renewed, gone := make(chan time.Time), make(chan struct{}, 1)
	next := time.NewTimer(min(every, time.Until(until)/4)) // a slow campaign has used a part of the lease
	defer next.Stop()
	for {
		end := time.NewTimer(time.Until(until))
		select {
		case <-ctx.Done():
		case <-gone:
		case <-end.C:
		case at := <-renewed:
			end.Stop()
			if at.After(until) {
				until = at
			}
			continue
		case <-next.C:
			end.Stop()
			// At a multiple of the period, as the reads of kit/serve: processes of one host that act at the same time wake the
			// CPU once.
			now := time.Now()
			next.Reset(now.Truncate(every).Add(every).Sub(now))
			limit := until
			group.Go(func() {
				ctx, cancel := context.WithDeadline(ctx, limit)
				defer cancel()
				at, err := store.RenewLease(ctx, e.client, t.lease, askNext)
				switch {
				case errors.Is(err, rpctypes.ErrLeaseNotFound):
					select {
					case gone <- struct{}{}:
					default:
					}
				case err == nil:
					select {
					case renewed <- at:
					case <-ctx.Done():
					}
				}
			})
			continue
		}
		end.Stop()
		return
	}
}

// waitGone returns when the key created at that revision is gone, or when ctx ends. It reads the key at least every
// patience, since a stream may hang.
func (e *Elector) waitGone(ctx context.Context, created int64, patience time.Duration) {
	for ctx.Err() == nil {
		kv, revision, err := e.get(ctx)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				e.missed.Note(ctx, e.log, e.key, err)
			}
			pause(ctx, retryPause)
		case kv == nil || kv.CreateRevision != created:
			return
		default:
			e.awaitChange(ctx, revision, patience)
		}
	}
}

// awaitChange returns when the key may have changed after revision, or after patience.
func (e *Elector) awaitChange(ctx context.Context, revision int64, patience time.Duration) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), patience)
	watcher := clientv3.NewWatcher(e.client)
	defer func() {
		cancel()
		watcher.Close()
	}()
	resp, ok := <-watcher.Watch(ctx, e.key, clientv3.WithRev(revision+1))
	if ctx.Err() != nil || ok && resp.Err() == nil {
		return
	}
	err := resp.Err()
	if !ok {
		err = errWatchEnded
	}
	if !errors.Is(err, rpctypes.ErrCompacted) { // after a compaction the key is only read again
		e.missed.Note(ctx, e.log, e.key, err)
	}
	pause(ctx, retryPause)
}

// get returns the key, nil if it is absent, and the revision of the read.
func (e *Elector) get(ctx context.Context) (*mvccpb.KeyValue, int64, error) {
	resp, err := call(ctx, e, func(ctx context.Context) (*clientv3.GetResponse, error) { return e.client.Get(ctx, e.key) })
	if err != nil {
		return nil, 0, fmt.Errorf("read key: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return nil, resp.Header.Revision, nil
	}
	return resp.Kvs[0], resp.Header.Revision, nil
}

// remove deletes the key if the condition holds.
func (e *Elector) remove(ctx context.Context, condition clientv3.Cmp) error {
	if _, err := call(ctx, e, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return e.client.Txn(ctx).If(condition).Then(clientv3.OpDelete(e.key)).Commit()
	}); err != nil {
		return fmt.Errorf("remove key: %w", err)
	}
	return nil
}

// resign releases the key immediately, also after ctx has ended. If etcd does not answer, the lease expires by itself.
func (e *Elector) resign(ctx context.Context, t term) {
	ctx = context.WithoutCancel(ctx)
	if err := e.remove(ctx, clientv3.Compare(clientv3.CreateRevision(e.key), "=", t.fence.CreateRevision)); err != nil {
		e.log.DebugContext(ctx, "resign", "error", err)
		return
	}
	e.revoke(ctx, t.lease)
}

func (e *Elector) revoke(ctx context.Context, lease clientv3.LeaseID) {
	if _, err := call(context.WithoutCancel(ctx), e, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return e.client.Revoke(ctx, lease)
	}); err != nil {
		e.log.DebugContext(ctx, "revoke lease", "error", err)
	}
}

// call makes one request to etcd, with an adaptive timeout: it doubles after a timeout, up to callLimits, and returns
// to callLimit when responses are fast again.
func call[R any](ctx context.Context, e *Elector, f func(context.Context) (R, error)) (R, error) {
	e.mu.Lock()
	limit := e.limit
	e.mu.Unlock()
	asked := time.Now()
	try, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := f(try)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch took := time.Since(asked); {
	case err == nil:
		e.limit = max(min(2*took, callLimits), callLimit)
	case took >= limit:
		e.limit = min(max(e.limit, 2*limit), callLimits)
	}
	return answer, err
}

// pause waits for d, less up to a quarter of it at random, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	d = max(d, 0)
	timer := time.NewTimer(d - rand.N(d/4+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
