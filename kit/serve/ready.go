package serve

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

const (
	// maxSilence is how long a ready process remains ready without a successful read of etcd: longer than an election.
	maxSilence        = 3 * time.Second
	readyPollStarting = 50 * time.Millisecond // until the process is ready: a client may wait for it
	readyPollRunning  = time.Second           // at least: each check is one read from etcd's members
	readyTimeout      = 2 * time.Second
)

// WatchReady calls check, with a timeout of two seconds, until ctx ends: every 50 ms until it returns nil, then at each
// full second. It calls changed with nil when check begins to succeed, and with an error when it has not succeeded for
// three seconds; while the process is not ready, also for each different error.
func WatchReady(ctx context.Context, check func(context.Context) error, changed func(error)) {
	ready, reason, last := false, "", time.Time{}
	for {
		until := time.Now().Add(readyTimeout)
		if end := last.Add(maxSilence); ready && end.Before(until) {
			until = end
		}
		try, cancel := context.WithDeadline(ctx, until)
		err := check(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := readyPollStarting
		switch {
		case err == nil:
			if !ready {
				changed(nil)
			}
			ready, reason, last, wait = true, "", time.Now(), untilFull(readyPollRunning)
		case ready && time.Since(last) < maxSilence: // it may come back
		case ready || err.Error() != reason:
			ready, reason = false, err.Error()
			changed(err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// untilFull returns the time until the time of day is a multiple of d. Processes of one host that check at the same
// time wake the CPU once, and an etcd member confirms its reads together.
func untilFull(d time.Duration) time.Duration {
	now := time.Now()
	return now.Truncate(d).Add(d).Sub(now)
}

// watchReadiness keeps the health service in sync with isReady, until ctx ends. A process that is no longer ready ends
// its watches and refuses calls immediately: they would wait for etcd until their deadlines.
func (p *Process) watchReadiness(ctx context.Context) {
	start, served := time.Now(), false
	WatchReady(ctx, p.isReady, func(err error) {
		if err == nil {
			p.away.Store(nil)
			p.announce(true, "")
			p.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
			p.Log.InfoContext(ctx, "ready", "elapsed_ms", time.Since(start).Milliseconds())
			served = true
			return
		}
		p.Log.InfoContext(ctx, "not ready", "error", err)
		p.announce(false, err.Error())
		p.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		if served && !p.WithoutEtcd && errors.Is(err, store.ErrNotReady) {
			text := fmt.Sprintf("%s: no read for %s: %s", p.cfg.Name, maxSilence, err)
			p.away.Store(&text)
			p.streams.endWatches(errors.New(text))
		}
		start = time.Now()
	})
}

// announce has the other processes of the cluster know whether this one is ready.
func (p *Process) announce(ready bool, reason string) {
	if p.announcer != nil {
		p.announcer.Set(ready, reason)
	}
}

// refuse returns the error of calls while the process is no longer ready. Health checks are always answered.
func (p *Process) refuse(method string) error {
	reason := p.away.Load()
	if reason == nil || !strings.HasPrefix(method, "/windlass.") {
		return nil
	}
	return rpcerr.Unavailable(*reason)
}

func (p *Process) refuseUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error,
) {
	if err := p.refuse(info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// refuseStream refuses only watches. The streams of agents and hook owners continue: without them every node would
// appear silent when etcd is available again, and members of etcd are started through them.
func (p *Process) refuseStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	if isWatch(info.FullMethod) {
		if err := p.refuse(info.FullMethod); err != nil {
			return err
		}
	}
	return handler(srv, ss)
}

func isWatch(method string) bool {
	return strings.HasPrefix(method, "/windlass.") && strings.HasPrefix(path.Base(method), "Watch")
}

func (p *Process) isReady(ctx context.Context) error {
	if p.endpoints != nil {
		if err := p.endpoints.Ready(ctx); err != nil {
			return err
		}
	}
	p.mu.Lock()
	conditions := slices.Clone(p.ready)
	p.mu.Unlock()
	for _, holds := range append(conditions, p.Tables.WaitSynced) {
		if err := holds(ctx); err != nil {
			return err
		}
	}
	return nil
}
