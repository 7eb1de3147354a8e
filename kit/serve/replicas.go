package serve

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/discovery"
)

const (
	// patience is how long a process may be missing or not ready before its service is Degraded: a restart is shorter.
	patience = 30 * time.Second
	// steady is how long a process must be ready without a pause until it counts as well again.
	steady = 30 * time.Second
	// stale is how old the knowledge of other hosts may be from which a state is derived.
	stale = 30 * time.Second
)

// Replicated returns state with what the processes of the service on all hosts are like: the version is the lowest of
// them, and the service is Degraded while a host has none or it has not been ready for half a minute. While the other
// hosts are not known, no version is reported. state is that of the leader.
func Replicated(view func() discovery.View, service string, state func(context.Context) clusteroperator.State,
) func(context.Context) clusteroperator.State {
	var mu sync.Mutex
	seen := map[string]*lacking{} // by host
	return func(ctx context.Context) clusteroperator.State {
		s, v, now := state(ctx), view(), time.Now()
		mu.Lock()
		defer mu.Unlock()
		if now.Sub(v.Confirmed) > stale || len(v.Endpoints[service]) == 0 {
			s.VersionUnknown = true
			return s
		}
		r := v.Replicas(service)
		s.ProgramVersion = r.Lowest
		var bad []string
		for host, why := range r.Lacks {
			if seen[host] == nil {
				seen[host] = &lacking{since: now}
			}
			l := seen[host]
			l.why, l.well = why, time.Time{}
			l.bad = l.bad || now.Sub(l.since) >= patience
		}
		for host, l := range seen {
			if r.Lacks[host] == "" && l.well.IsZero() {
				l.well = now
			}
			switch {
			case !l.well.IsZero() && now.Sub(l.well) >= steady || !slices.Contains(v.Hosts(), host):
				delete(seen, host)
			case l.bad:
				bad = append(bad, host)
			}
		}
		if s.Degraded || len(bad) == 0 {
			return s
		}
		slices.Sort(bad)
		s.Degraded, s.Reason = true, "ReplicaNotReady"
		s.Message = fmt.Sprintf("host %s: %s", bad[0], seen[bad[0]].text())
		if len(bad) > 1 {
			s.Message += fmt.Sprintf("; also hosts %s", strings.Join(bad[1:], ", "))
		}
		return s
	}
}

// lacking is what is known of a host whose process is missing or not ready.
type lacking struct {
	since time.Time
	well  time.Time // since when it is ready without a pause; zero while it is not
	bad   bool      // it was lacking for so long, with short pauses, that the service is Degraded
	why   string
}

func (l *lacking) text() string {
	if l.well.IsZero() {
		return l.why
	}
	return fmt.Sprintf("the process is ready again, and must stay so for %s; before: %s", steady, l.why)
}
