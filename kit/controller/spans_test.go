package controller_test

import (
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/spans"
)

func TestSpansOfStates(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	var s controller.Spans
	s.Reset(start)
	if c := s.Clock("a", at(0)); c.Seen != nil {
		t.Errorf("before the first decision, seen is %v", c.Seen)
	}
	s.Keep("a", spans.Seen{"x": 0, "y": time.Hour}, at(0))
	s.Keep("b", spans.Seen{"x": 0}, at(time.Minute))
	c := s.Clock("a", at(2*time.Minute))
	if c.Seen["x"] != 2*time.Minute || c.Seen["y"] != time.Hour+2*time.Minute {
		t.Errorf("after two minutes: %v", c.Seen)
	}
	if got := c.Steady.Sub(start.Round(0)); got != 2*time.Minute {
		t.Errorf("the steady clock is %v after the begin", got)
	}
	s.Keep("a", spans.Seen{"x": 0}, at(3*time.Minute))
	if c := s.Clock("a", at(3*time.Minute)); c.Seen["x"] != 3*time.Minute || len(c.Seen) != 1 {
		t.Errorf("a state that is named again keeps its time, one that is not loses it: %v", c.Seen)
	}
	if c := s.Clock("b", at(3*time.Minute)); c.Seen["x"] != 2*time.Minute {
		t.Errorf("another object: %v", c.Seen)
	}
	s.Keep("b", nil, at(3*time.Minute))
	if c := s.Clock("b", at(3*time.Minute)); c.Seen != nil {
		t.Errorf("without states: %v", c.Seen)
	}
	s.Reset(at(4 * time.Minute))
	if c := s.Clock("a", at(4*time.Minute)); c.Seen != nil {
		t.Errorf("after another process led: %v", c.Seen)
	}
}
