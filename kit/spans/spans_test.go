package spans_test

import (
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/spans"
)

func TestAStateHasLastedOnceItWasSeenForSoLong(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name  string
		clock spans.Clock
		since time.Duration // before now
		want  time.Duration // after now, of a state that must last ten minutes
	}{
		{"not seen before", spans.Clock{}, time.Hour, 10 * time.Minute},
		{"seen for a part", spans.Clock{Seen: spans.Seen{"k": 4 * time.Minute}}, time.Hour, 6 * time.Minute},
		{"seen for long enough", spans.Clock{Seen: spans.Seen{"k": 11 * time.Minute}}, time.Minute, -time.Minute},
		{"of a clock that was ahead", spans.Clock{Seen: spans.Seen{"k": 4 * time.Minute}}, -time.Hour, 6 * time.Minute},
		{"long ago by any clock", spans.Clock{}, 3 * time.Hour, -50 * time.Minute},
		{
			"long ago only by a clock that was set forward",
			spans.Clock{Steady: now.Add(-3 * time.Hour)},
			3 * time.Hour,
			10 * time.Minute,
		},
		{"given", spans.Clock{Exact: true}, 4 * time.Minute, 6 * time.Minute},
	} {
		tc.clock.Now = now
		if got := tc.clock.End("k", now.Add(-tc.since), 10*time.Minute).Sub(now); got != tc.want {
			t.Errorf("%s: it ends after %v, want %v", tc.name, got, tc.want)
		}
		if _, used := tc.clock.Used["k"]; used == tc.clock.Exact {
			t.Errorf("%s: used are %v", tc.name, tc.clock.Used)
		}
	}
}
