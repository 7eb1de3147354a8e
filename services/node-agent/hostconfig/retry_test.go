package hostconfig

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/windlass-dev/windlass/kit/process"
)

// attempts notes when a configuration was not taken up.
type attempts struct {
	slog.Handler
	began time.Time
	at    []time.Duration
}

func (a *attempts) Enabled(context.Context, slog.Level) bool { return true }

func (a *attempts) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "configuration is not taken up" {
		a.at = append(a.at, r.Time.Sub(a.began))
	}
	return nil
}

// TestWhatCannotBeTakenUpIsTriedLessAndLessOften also has another configuration come, which starts over.
func TestWhatCannotBeTakenUpIsTriedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried := &attempts{began: time.Now()}
		log := slog.New(tried)
		h := New(Config{Dir: t.TempDir(), Supervisor: process.NewSupervisor(t.TempDir(), log), Drift: time.Hour, Log: log})
		if err := h.open(); err != nil {
			t.Fatal(err)
		}
		defer h.tree.root.Close()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.work(ctx) }()
		impossible := map[string]any{"storage": map[string]any{"disks": []any{map[string]any{"device": "/dev/sda"}}}}
		h.orders <- order{config: configOf(t, "a", impossible), apply: true}
		time.Sleep(20 * time.Minute)
		h.orders <- order{config: configOf(t, "b", impossible), apply: true}
		time.Sleep(15 * time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		const s = time.Second
		want := []time.Duration{0, 10 * s, 30 * s, 70 * s, 150 * s, 310 * s, 610 * s, 910 * s, 1200 * s, 1210 * s}
		if diff := cmp.Diff(want, tried.at); diff != "" {
			t.Errorf("tried (-want +got):\n%s", diff)
		}
	})
}
