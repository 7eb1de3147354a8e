package controller

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
)

// TestSettleWaitsForAnObservationThatBeginsLater has the loop observe, and store bindings for a while after it.
func TestSettleWaitsForAnObservationThatBeginsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Scheduler{loop: controller.NewLoop("probe", 1, nil, slog.New(slog.DiscardHandler))}
		s.news.take()
		under := s.settle.take() // an observation that is under way
		began, settled := time.Now(), make(chan time.Duration, 1)
		go func() {
			if err := s.Settle(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			settled <- time.Since(began)
		}()
		synctest.Wait()
		under.done()
		time.Sleep(time.Minute) // its bindings are stored
		next := s.settle.take()
		if _, ok := s.news.take()[change{nodeKind, object.Key{Name: "a"}}]; !ok || len(next) != 1 {
			t.Errorf("the node is observed: %t; %d calls wait for that", ok, len(next))
		}
		next.done()
		if took := <-settled; took != time.Minute {
			t.Errorf("settled after %v", took)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Settle(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without an observation: %v", err)
		}
		s.news.close()
		if err := s.Settle(t.Context(), "a"); !errors.Is(err, errNotLeading) {
			t.Errorf("in a process that does not lead: %v", err)
		}
	})
}
