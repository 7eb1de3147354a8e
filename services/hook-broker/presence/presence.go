// Package presence knows, in memory alone, which owners of hooks are connected and when each was heard of last. It
// knows something only while its process leads; what is worth keeping is stored by others.
package presence

import (
	"sync"
	"time"
)

// Tracker counts who is there. Make one with New; it is safe for concurrent use.
type Tracker struct {
	now func() time.Time

	mu   sync.Mutex
	term *term // nil while this process does not lead
}

// term is what is known while this process leads once.
type term struct {
	owners  map[string]owner
	changed func(owner string)
	over    chan struct{}
}

type owner struct {
	streams int
	heard   time.Time
}

// New returns a tracker that does not lead. now is the clock.
func New(now func() time.Time) *Tracker { return &Tracker{now: now} }

// Lead begins to take notice, with nobody there. changed is called, without a lock, with each owner of whom something
// is news; it must return at once. The returned function ends it, and every visit with it.
func (t *Tracker) Lead(changed func(owner string)) (end func()) {
	now := &term{owners: map[string]owner{}, changed: changed, over: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term = now
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		close(now.over)
		if t.term == now {
			t.term = nil
		}
	}
}

// Visit is somebody who is connected.
type Visit struct {
	tracker *Tracker
	term    *term
	owners  []string
}

// Over is closed when this process no longer leads: the visitor must turn to the one that does.
func (v *Visit) Over() <-chan struct{} { return v.term.over }

// Leave ends the visit. Call it once.
func (v *Visit) Leave() { v.tracker.step(v.term, v.owners, -1) }

// Join says that somebody who answers for these owners is connected. It reports false if this process does not lead.
func (t *Tracker) Join(owners []string) (*Visit, bool) {
	t.mu.Lock()
	now := t.term
	t.mu.Unlock()
	if now == nil {
		return nil, false
	}
	v := &Visit{tracker: t, term: now, owners: distinct(owners)}
	t.step(now, v.owners, 1)
	return v, true
}

// Heard says that somebody who answers for an owner spoke just now. Without effect while this process does not lead.
func (t *Tracker) Heard(name string) {
	t.mu.Lock()
	now := t.term
	t.mu.Unlock()
	if now != nil {
		t.step(now, []string{name}, 0)
	}
}

func (t *Tracker) step(in *term, owners []string, streams int) {
	at := t.now()
	t.mu.Lock()
	for _, name := range owners {
		o := in.owners[name]
		o.streams += streams
		o.heard = at
		in.owners[name] = o
	}
	live := t.term == in
	t.mu.Unlock()
	if !live {
		return
	}
	for _, name := range owners {
		in.changed(name)
	}
}

// Of returns whether somebody is connected for an owner, and when somebody was heard of last; zero if never.
func (t *Tracker) Of(name string) (connected bool, heard time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term == nil {
		return false, time.Time{}
	}
	o := t.term.owners[name]
	return o.streams > 0, o.heard
}

// Owners returns everybody who was heard of, in no particular order.
func (t *Tracker) Owners() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term == nil {
		return nil
	}
	out := make([]string, 0, len(t.term.owners))
	for name := range t.term.owners {
		out = append(out, name)
	}
	return out
}

func distinct(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	return out
}
