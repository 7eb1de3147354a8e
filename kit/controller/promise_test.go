package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/windlass-dev/windlass/kit/controller"
)

// judge is a Func that fails, asks for another call, takes its time and adds keys at random, and notes what a loop must
// keep to.
type judge struct {
	t    *testing.T
	rand *rand.Rand
	loop *controller.Loop

	mu      sync.Mutex
	running map[string]bool
	due     map[string]time.Time // when a call of the key is due; none if it is absent
	leads   bool
	calls   int
}

// owes notes that a call is due at a time, or was before.
func (j *judge) owes(key string, at time.Time) {
	if due, ok := j.due[key]; !ok || at.Before(due) {
		j.due[key] = at
	}
}

func (j *judge) add(key string) {
	j.mu.Lock()
	j.owes(key, time.Now())
	j.mu.Unlock()
	j.loop.Add(key)
}

func (j *judge) reconcile(_ context.Context, key string) (time.Time, error) {
	j.mu.Lock()
	if !j.leads {
		j.t.Errorf("%s is reconciled after the end of the term", key)
	}
	if j.running[key] {
		j.t.Errorf("%s is reconciled twice at once", key)
	}
	j.running[key] = true
	delete(j.due, key)
	j.calls++
	takes, other := time.Duration(j.rand.IntN(300))*time.Millisecond, fmt.Sprint("k", j.rand.IntN(12))
	adds, outcome := j.rand.IntN(4) == 0, j.rand.IntN(5)
	wake := time.Now().Add(takes + time.Duration(j.rand.IntN(120)-20)*time.Second)
	j.mu.Unlock()

	time.Sleep(takes)
	if adds {
		j.add(other)
	}

	j.mu.Lock()
	defer j.mu.Unlock()
	j.running[key] = false
	switch outcome {
	case 0:
		j.owes(key, time.Now().Add(30*time.Second)) // the longest back-off
		return wake, errors.New("failed")           // it is not asked for after an error
	case 1:
		j.owes(key, wake)
		return wake, nil
	}
	return time.Time{}, nil
}

// TestNoKeyIsLostOrReconciledTwiceAtOnceOrAfterTheTerm adds keys while calls fail, take long and ask for others, in
// several terms.
func TestNoKeyIsLostOrReconciledTwiceAtOnceOrAfterTheTerm(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			j := &judge{t: t, rand: r, running: map[string]bool{}, due: map[string]time.Time{}}
			loops := controller.New(slog.New(slog.DiscardHandler))
			j.loop = loops.Loop("test", 1+r.IntN(4), j.reconcile)
			if r.IntN(2) == 0 {
				j.loop.Gather(time.Duration(r.IntN(50)) * time.Millisecond)
				if r.IntN(2) == 0 {
					j.loop.Pace()
				}
			}
			j.loop.Begin(func() []string { return []string{"k0", "k1", "k1"} })
			for range 3 {
				j.term(loops)
			}
			if j.calls == 0 {
				t.Error("no key was reconciled")
			}
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// term leads once. All workers may be busy, and a key is reconciled again after that.
func (j *judge) term(loops *controller.Loops) {
	const late = 30 * time.Second
	ctx, cancel := context.WithCancel(j.t.Context())
	ended := make(chan error)
	j.mu.Lock()
	j.leads, j.due = true, map[string]time.Time{"k0": time.Now(), "k1": time.Now()}
	j.mu.Unlock()
	go func() { ended <- loops.Lead(ctx) }()
	synctest.Wait()
	for range 200 {
		j.mu.Lock()
		pause, key := time.Duration(j.rand.IntN(1000))*time.Millisecond, fmt.Sprint("k", j.rand.IntN(12))
		for key, at := range j.due {
			if since := time.Since(at); since > late {
				j.t.Errorf("%s was due %v ago", key, since)
			}
		}
		j.mu.Unlock()
		time.Sleep(pause)
		j.add(key)
	}
	cancel()
	if err := <-ended; err != nil {
		j.t.Errorf("Lead = %v", err)
	}
	j.mu.Lock()
	j.leads = false
	j.mu.Unlock()
	time.Sleep(time.Hour)
}
