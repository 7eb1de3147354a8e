package controller

import (
	"context"
	"sync"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// Extenders asks the extenders of policies.
type Extenders interface {
	// Ask returns what an extender answers, within the time-out of its policy.
	Ask(ctx context.Context, q plan.Question) plan.Answer
}

// inquirer has questions answered beside the loop, which goes on with the pods that no extender is asked about. The
// plan bounds how many questions there are. The zero inquirer is ready; it is safe for concurrent use.
type inquirer struct {
	mu        sync.Mutex
	questions []plan.Question
	answers   []plan.Answer
	added     chan struct{} // has an element if there may be questions; nil while nothing asks
}

// ask has questions answered.
func (a *inquirer) ask(questions []plan.Question) {
	if len(questions) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.questions = append(a.questions, questions...)
	a.notify()
}

// notify is called with the lock held.
func (a *inquirer) notify() {
	select {
	case a.added <- struct{}{}: // blocks if added is nil
	default:
	}
}

// take returns the answers since the last call.
func (a *inquirer) take() []plan.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.answers
	a.answers = nil
	return out
}

// run asks until ctx ends, and calls answered after each answer. What is left then is forgotten: the next leader asks
// by itself.
func (a *inquirer) run(ctx context.Context, extenders Extenders, answered func()) {
	added := make(chan struct{}, 1)
	a.mu.Lock()
	a.added = added
	a.notify() // of what was asked before
	a.mu.Unlock()
	var calls sync.WaitGroup
	defer func() {
		calls.Wait()
		a.mu.Lock()
		a.questions, a.answers, a.added = nil, nil, nil
		a.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-added:
		}
		a.mu.Lock()
		questions := a.questions
		a.questions = nil
		a.mu.Unlock()
		for _, q := range questions {
			calls.Go(func() {
				answer := extenders.Ask(ctx, q)
				a.mu.Lock()
				a.answers = append(a.answers, answer)
				a.mu.Unlock()
				answered()
			})
		}
	}
}
