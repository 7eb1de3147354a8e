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
	leaseTTL   = 5 * time.Second        // a leader that died is followed by another after this
	renewals   = 5                      // in each TTL, so that a few may fail
	callLimit  = time.Second            // for a question to etcd, so that another member is soon asked
	callLimits = 4 * time.Second        // where answers take longer than that: the limit doubles up to this
	retryPause = 100 * time.Millisecond // after one that failed
	lookAgain  = 3 * time.Second        // a candidate opens its watch of the key again after this much silence
	// a leader's: a key that is lost unseen costs time only, since writes are fenced and the lease runs out
	lookAtOwn = 15 * time.Second
)

var (
	errLeaseLost = errors.New("lease ran out")
	errKeyLost   = errors.New("election key was taken away")

	errWatchEnded = errors.New("watch ended")
)

// Candidacy is what an election key holds: who leads, and where it can be reached.
type Candidacy struct {
	Address string `json:"address"` // host:port that the holder has bound
	Holder  string `json:"holder"`  // for people: program@pid
}

// Elector takes part in the election of a service's leader. Make one with NewElector.
type Elector struct {
	client *clientv3.Client
	key    string
	self   Candidacy
	ttl    time.Duration
	leads  atomic.Bool
	missed store.Refusals
	log    *slog.Logger

	mu    sync.Mutex
	limit time.Duration // of the next call
}

// Leads reports whether this process leads now, as far as it knows.
func (e *Elector) Leads() bool { return e.leads.Load() }

// missedWatches is the metric of an elector: how often the election key could not be read or watched.
var missedWatches = prometheus.NewDesc("windlass_election_refused_watches_total",
	"Times that etcd refused to let the election key be read or watched, or did not answer.", nil, nil)

// Describe and Collect make the elector a prometheus.Collector.
func (e *Elector) Describe(out chan<- *prometheus.Desc) { out <- missedWatches }

// Collect sends the number of refusals.
func (e *Elector) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(missedWatches, prometheus.CounterValue, float64(e.missed.Count()))
}

// NewElector returns a candidate for the lead of service. address is where this process is reached; it must be bound
// by this process, since whoever else stands in the election with it is taken for dead.
func NewElector(c *clientv3.Client, service, address string, log *slog.Logger) *Elector {
	return &Elector{
		client: c, key: topology.ElectionKey(service), ttl: leaseTTL, limit: callLimit, log: log.With("election", service),
		self: Candidacy{Address: address, Holder: fmt.Sprintf("%s@%d", service, os.Getpid())},
	}
}

// term is an election won.
type term struct {
	fence store.Fence
	lease clientv3.LeaseID
	until time.Time // the lease holds at least this long
}

// Run campaigns until ctx ends and calls lead each time the election is won. The context of lead carries the fence, so
// that a Commit under it fails with store.ErrFenced after the leadership went over, and it ends when the leadership is
// lost; lead then returns soon. Run returns nil when ctx ends, or the error with which lead gave up. What comes of a
// lost leadership or of an etcd that does not answer is no reason to give up.
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
	said := ""
	for {
		t, rival, err := e.try(ctx)
		switch {
		case err != nil:
			if text := err.Error(); text != said && ctx.Err() == nil {
				e.log.WarnContext(ctx, "campaign", "error", err)
				said = text
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

// try takes the key if it is free or held from our own address. If it is another's, it returns that.
func (e *Elector) try(ctx context.Context) (term, *mvccpb.KeyValue, error) {
	kv, _, err := e.get(ctx)
	if err != nil {
		return term{}, nil, err
	}
	if kv != nil && !e.ours(kv) {
		return term{}, kv, nil
	}
	if kv != nil {
		// The holder had the address that is ours now, so it is dead. A put would keep the creation revision, and with
		// it the old fence; so the key is removed and made anew.
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

// create puts the key if it is absent. If another was faster, it returns that one's.
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
	// An attempt that comes late finds no lease, so it cannot take the key after the next one.
	resp, err := call(ctx, e, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0)).
			Then(clientv3.OpPut(e.key, string(value), clientv3.WithLease(lease.ID))).
			Else(clientv3.OpGet(e.key)).Commit()
	})
	if err != nil {
		e.revoke(ctx, lease.ID) // the put may have come through: then it goes with the lease
		return term{}, nil, fmt.Errorf("take key: %w", err)
	}
	if !resp.Succeeded {
		e.revoke(ctx, lease.ID)
		return term{}, resp.Responses[0].GetResponseRange().Kvs[0], nil
	}
	fence := store.Fence{Key: e.key, CreateRevision: resp.Header.Revision}
	return term{fence: fence, lease: lease.ID, until: asked.Add(time.Duration(lease.TTL) * time.Second)}, nil, nil
}

// hold leads for one term.
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

// keepAlive renews the lease until ctx ends or the lease is lost. Each renewal is a stream of its own with the lease's
// time to be answered, and the next one does not wait for it: so neither a member that hangs nor an etcd that is slow
// costs the lead.
func (e *Elector) keepAlive(ctx context.Context, t term) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	until, every := t.until, e.ttl/renewals
	renewed, gone := make(chan time.Time), make(chan struct{}, 1)
	next := time.NewTimer(min(every, time.Until(until)/4)) // a slow campaign has used up a part of the lease
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
			// At a round time of day, as kit/serve's reads: processes of one host that ask at the same moment wake it once.
			now := time.Now()
			next.Reset(now.Truncate(every).Add(every).Sub(now))
			limit := until
			group.Go(func() {
				asked := time.Now()
				ctx, cancel := context.WithDeadline(ctx, limit)
				defer cancel()
				resp, err := e.client.KeepAliveOnce(ctx, t.lease)
				switch {
				case errors.Is(err, rpctypes.ErrLeaseNotFound):
					select {
					case gone <- struct{}{}:
					default:
					}
				case err == nil:
					select {
					case renewed <- asked.Add(time.Duration(resp.TTL) * time.Second):
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
// patience: a stream can be stuck.
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
	if !errors.Is(err, rpctypes.ErrCompacted) { // then the key is read again
		e.missed.Note(ctx, e.log, e.key, err)
	}
	pause(ctx, retryPause)
}

// get returns the key, nil if it is absent, and the revision at which that was so.
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

// resign makes way at once, also when ctx has ended. If etcd does not answer, the lease runs out by itself.
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

// call asks etcd once. Its time is that of one answer: where none came in time, the next call gets twice as long, and
// where answers come quickly again, the usual limit holds again.
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

// pause waits about d, and reports false if ctx ended first.
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
