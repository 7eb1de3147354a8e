package server

import (
	"testing"
	"time"
)

func TestANodeReportsABoundedNumberOfPorts(t *testing.T) {
	r, now := reports{of: map[string]span{}}, time.Unix(1_000_000, 0)
	for what, c := range []struct {
		node string
		n    int
		at   time.Duration
		want bool
	}{
		{"a", nodeReports - 1, 0, true},
		{"a", 2, 0, false},
		{"a", 1, time.Second, true},
		{"a", 1, nodeReportsFor - 1, false},
		{"b", nodeReports, nodeReportsFor - 1, true},
		{"a", nodeReports, nodeReportsFor, true},
		{"a", nodeReports + 1, 2 * nodeReportsFor, false},
		{"c", 1, 3 * nodeReportsFor, true},
	} {
		if got := r.take(c.node, c.n, now.Add(c.at)); got != c.want {
			t.Errorf("%d: %d ports of node %s after %v = %t", what, c.n, c.node, c.at, got)
		}
	}
	if len(r.of) != 1 {
		t.Errorf("nodes that report nothing any more are remembered: %v", r.of)
	}
}
