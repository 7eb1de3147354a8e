package plan_test

import (
	"testing"
	"time"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

func TestWaitingMachinesAskInTurn(t *testing.T) {
	for _, test := range []struct {
		name    string
		waiting int
		want    time.Duration
	}{
		{"none waits", 0, 5 * time.Second},
		{"one waits", 1, 5 * time.Second},
		{"a hundred ask 20 times a second", 100, 5 * time.Second},
		{"a thousand ask 20 times a second", 1000, 50 * time.Second},
		{"no machine waits for more than a minute", 100_000, time.Minute},
	} {
		if got := plan.AskAgain(test.waiting); got != test.want {
			t.Errorf("%s: AskAgain(%d) = %v, want %v", test.name, test.waiting, got, test.want)
		}
	}
	for waiting := 1; waiting <= 1200; waiting++ {
		if rate := float64(waiting) / plan.AskAgain(waiting).Seconds(); rate > 20 {
			t.Fatalf("%d machines ask %.1f times a second", waiting, rate)
		}
	}
}
