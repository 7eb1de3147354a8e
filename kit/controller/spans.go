package controller

import (
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/spans"
)

// Spans is since when this leader has seen states of objects as they are. It keeps the states that the last plan of an
// object named, and no others. Objects are named by any keys, such as kind and name. The zero Spans is ready to use; it
// is safe for concurrent use.
type Spans struct {
	mu    sync.Mutex
	began time.Time
	since map[string]map[string]time.Time // by object, then by the key of the state
}

// Reset forgets everything: another process may have led, and seen states come and go. now is when this process begins
// to lead; zero if it does not lead.
func (s *Spans) Reset(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.since = now, nil
}

// Clock returns the clock of a decision on an object. Its Steady is zero while this process does not lead. now has a
// monotonic reading, so that a step of the wall clock means nothing.
func (s *Spans) Clock(object string, now time.Time) spans.Clock {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := spans.Clock{Now: now}
	if !s.began.IsZero() {
		c.Steady = s.began.Round(0).Add(now.Sub(s.began))
	}
	if states, ok := s.since[object]; ok {
		c.Seen = make(spans.Seen, len(states))
		for state, since := range states {
			c.Seen[state] = now.Sub(since)
		}
	}
	return c
}

// Keep notes which states the plan of an object names, each as it was seen before or, if it was not, as having lasted
// for so long as the plan says.
func (s *Spans) Keep(object string, used spans.Seen, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.since[object]
	if len(used) == 0 {
		delete(s.since, object)
		return
	}
	next := make(map[string]time.Time, len(used))
	for state, seen := range used {
		next[state] = now.Add(-seen)
		if since, ok := before[state]; ok {
			next[state] = since
		}
	}
	if s.since == nil {
		s.since = map[string]map[string]time.Time{}
	}
	s.since[object] = next
}
