package controller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/windlass-dev/windlass/kit/object"
)

// errNotLeading means that this process does not place pods.
var errNotLeading = errors.New("this process does not place pods")

// Settle waits until this process places pods with the node of that name as it has it now, and until all bindings that
// it decided on before are stored or refused. It returns the error of ctx if that does not happen in time, and another
// one if this process does not lead.
func (s *Scheduler) Settle(ctx context.Context, node string) error {
	return s.settleAfter(ctx, change{nodeKind, object.Key{Name: node}})
}

// SettleClaim is Settle for a claim.
func (s *Scheduler) SettleClaim(ctx context.Context, claim object.Key) error {
	return s.settleAfter(ctx, change{claimKind, claim})
}

func (s *Scheduler) settleAfter(ctx context.Context, ch change) error {
	// The subscribers of a kind may be behind the copy.
	if !s.news.add(ch) {
		return errNotLeading
	}
	return s.observed(ctx)
}

// observed waits for an observation that begins after this call, and until the bindings that were decided on before are
// settled. While this process does not lead that does not happen.
func (s *Scheduler) observed(ctx context.Context) error {
	done := s.settle.wait()
	s.loop.Add(queueKey)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle holds the calls that wait for the next observation of the loop. The loop carries out its decisions before the
// next observation, so that these are settled then. Creators of pods carry out the others: a call waits for those that
// were made before the observation. wait and take are safe for concurrent use; the rest is used by the loop only.
type settle struct {
	mu    sync.Mutex
	calls calls

	under  map[*offer]int // by offer: how many of its creations are not settled
	behind []behind
}

// behind are calls that wait for the creations of offers.
type behind struct {
	calls  calls
	offers map[*offer]int
}

// begin notes that creators carry out a decision about n pods.
func (s *settle) begin(one *offer, n int) {
	if s.under == nil {
		s.under = map[*offer]int{}
	}
	s.under[one] = n
}

// settled notes that one of the creations of an offer is settled.
func (s *settle) settled(one *offer) {
	if s.under[one]--; s.under[one] > 0 {
		return
	}
	delete(s.under, one)
	s.behind = slices.DeleteFunc(s.behind, func(b behind) bool {
		if delete(b.offers, one); len(b.offers) == 0 {
			b.calls.done()
		}
		return len(b.offers) == 0
	})
}

// observed ends calls after an observation, or once the creations are settled that were decided on before it.
func (s *settle) observed(waiting calls) {
	switch {
	case len(waiting) == 0:
	case len(s.under) == 0:
		waiting.done()
	default:
		s.behind = append(s.behind, behind{waiting, maps.Clone(s.under)})
	}
}

// forget drops everything.
func (s *settle) forget() {
	s.take()
	s.under, s.behind = nil, nil
}

type calls []chan struct{}

// wait returns a channel that is closed after an observation that begins after this call.
func (s *settle) wait() <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, done)
	return done
}

// take returns the calls so far, before an observation.
func (s *settle) take() calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}

func (c calls) done() {
	for _, done := range c {
		close(done)
	}
}
