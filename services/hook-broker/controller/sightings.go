package controller

import (
	"maps"
	"sync"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

// sightings remembers since when this process has seen tasks as they are. A new leader begins again. Its methods may be
// called concurrently.
type sightings struct {
	elapsed func() time.Duration // by a monotonic clock

	mu    sync.Mutex
	tasks map[string]sighting // by the task's name
	swept int                 // how many were left when those of tasks that are gone were forgotten last
}

type sighting struct {
	uid            string
	waits          bool
	begun, claimed time.Duration          // when it was first seen to have begun, and with its claim
	claim          *hookv1.HookTaskStatus // the fields of its claim
}

// look returns for how long each of a machine's tasks was seen as it is. known reports whether a task exists: others
// are forgotten.
func (s *sightings) look(tasks []*hookv1.HookTask, known func(name string) bool) map[string]plan.Sight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.elapsed()
	out := map[string]plan.Sight{}
	for _, t := range tasks {
		name := t.GetMetadata().GetName()
		next := s.take(t, now)
		s.tasks[name] = next
		out[name] = plan.Sight{Begun: now - next.begun, Claimed: now - next.claimed}
	}
	const spare = 100
	if len(s.tasks) > 2*s.swept+spare { // most are gone, unless there are many more tasks than before
		maps.DeleteFunc(s.tasks, func(name string, _ sighting) bool { return !known(name) })
		s.swept = len(s.tasks)
	}
	return out
}

func (s *sightings) take(t *hookv1.HookTask, now time.Duration) sighting {
	st := t.GetStatus()
	next := sighting{
		uid: t.GetMetadata().GetUid(), waits: st.GetPhase() == plan.Waiting, begun: now, claimed: now,
		claim: &hookv1.HookTaskStatus{
			ClaimedBy: proto.String(st.GetClaimedBy()), ClaimTime: st.GetClaimTime(),
			ClaimExpiryTime: st.GetClaimExpiryTime(), RenewTime: st.GetRenewTime(),
		},
	}
	was, ok := s.tasks[t.GetMetadata().GetName()]
	if !ok || was.uid != next.uid {
		return next
	}
	if !was.waits && !next.waits {
		next.begun = was.begun
	}
	if proto.Equal(was.claim, next.claim) {
		next.claimed = was.claimed
	}
	return next
}
