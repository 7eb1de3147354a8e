package serve

import (
	"context"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/discovery"
)

// patience is how long a process may be missing or not ready before its service is Degraded: a restart is shorter.
const patience = 30 * time.Second

// Replicated returns state with what the processes of the service on all hosts are like: the version is the lowest of
// them, and the service is Degraded while one is missing or has not been ready for half a minute. state is that of the
// leader.
func Replicated(view func() discovery.View, service string, state func(context.Context) clusteroperator.State,
) func(context.Context) clusteroperator.State {
	var mu sync.Mutex
	var since time.Time // when something was first lacking, without a pause; zero if nothing is
	return func(ctx context.Context) clusteroperator.State {
		s, r, now := state(ctx), view().Replicas(service), time.Now()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Lacks == "":
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		s.ProgramVersion = r.Lowest
		if !s.Degraded && r.Lacks != "" && now.Sub(since) >= patience {
			s.Degraded, s.Reason, s.Message = true, "ReplicaNotReady", r.Lacks
		}
		return s
	}
}
