package serve

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/windlass-dev/windlass/kit/store"
)

// watchReadiness keeps the health service in step with what Ready says, until ctx ends.
func (p *Process) watchReadiness(ctx context.Context) {
	start := time.Now()
	ready, reason := false, ""
	for {
		err := p.isReady(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil && !ready:
			p.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
			p.Log.InfoContext(ctx, "ready", "elapsed_ms", time.Since(start).Milliseconds())
			reason = ""
		case err != nil && ready:
			p.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			start = time.Now()
			fallthrough
		case err != nil && err.Error() != reason:
			reason = err.Error()
			p.Log.InfoContext(ctx, "not ready", "error", err)
		}
		ready = err == nil
		if !pause(ctx, ready) {
			return
		}
	}
}

func pause(ctx context.Context, ready bool) bool {
	wait := readyPollStarting
	if ready {
		wait = readyPollRunning
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *Process) isReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if p.Etcd != nil {
		if err := store.Ready(ctx, p.Etcd); err != nil {
			return err
		}
	}
	p.mu.Lock()
	conditions := slices.Clone(p.ready)
	p.mu.Unlock()
	for _, holds := range conditions {
		if err := holds(ctx); err != nil {
			return err
		}
	}
	return nil
}
