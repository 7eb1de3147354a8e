package controller

import (
	"testing"
	"time"
)

func TestPacer(t *testing.T) {
	var p pacer
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		what       string
		zone, node string
		at, want   time.Duration // from start; a want of 0 means that it is the node's turn
	}{
		{"the first node need not wait", "z", "a", 0, 0},
		{"nor does it when it is looked at again", "z", "a", time.Second, 0},
		{"the second waits for it", "z", "b", time.Second, 10 * time.Second},
		{"a node of another zone does not", "y", "c", time.Second, 0},
		{"its turn comes", "z", "b", 10 * time.Second, 0},
		{"and the next waits for that", "z", "d", 11 * time.Second, 20 * time.Second},
	} {
		got := p.admit(tc.zone, tc.node, start.Add(tc.at), 10*time.Second)
		if (tc.want == 0) != got.IsZero() || (tc.want != 0 && !got.Equal(start.Add(tc.want))) {
			t.Errorf("%s: %v", tc.what, got)
		}
	}
}
