package gcpace

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for name, c := range map[string]struct {
		live  uint64
		since time.Duration
		want  int
	}{
		"quiet":                          {20 << 20, time.Minute, 100},
		"busy":                           {20 << 20, 100 * time.Millisecond, 400},
		"busy, nothing live":             {0, 100 * time.Millisecond, 400},
		"busy and large":                 {200 << 20, 100 * time.Millisecond, 150},
		"busy, half of the bound":        {256 << 20, 100 * time.Millisecond, 100},
		"busy, more than half":           {300 << 20, 100 * time.Millisecond, 100},
		"busy beyond the bound":          {2 << 30, 100 * time.Millisecond, 100},
		"a second between is not busy":   {20 << 20, time.Second, 100},
		"quiet for a second, then busy":  {20 << 20, time.Second - 1, 400},
		"the growth is in steps of 10 %": {123 << 20, 100 * time.Millisecond, 310},
	} {
		if got := percentFor(100, c.live, c.since); got != c.want {
			t.Errorf("%s: %d %%, want %d", name, got, c.want)
		}
	}
	if got := percentFor(30, 20<<20, time.Minute); got != 30 {
		t.Errorf("a quiet etcd: %d %%, want 30", got)
	}
}

// A process that collects often becomes busy, and quiet again when it does nothing any more.
func TestThePaceFollowsTheCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	Follow(100)
	current := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	percent := func() uint64 {
		metrics.Read(current)
		return current[0].Value.Uint64()
	}
	for percent() == 100 {
		runtime.GC()
	}
	for percent() != 100 {
		time.Sleep(10 * time.Millisecond)
	}
}
