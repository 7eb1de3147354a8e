// Package presence keeps in memory which owners of hooks are connected, and when each was seen last. It knows something
// only while its process leads; the controller stores what must outlive that.
package presence

import (
	"sync"
	"time"
)

// Tracker counts the streams of owners. Make one with New; it is safe for concurrent use.
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
	seen    time.Time
}

// New returns a tracker that does not lead. now is the clock.
func New(now func() time.Time) *Tracker { return &Tracker{now: now} }

// Lead begins to track, with no owner connected. changed is called, without a lock, with each owner that connects,
// disconnects or calls; it must return at once. The returned function ends it, and every visit with it.
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

// Visit is a stream of a client that acts for some owners.
type Visit struct {
	tracker *Tracker
	term    *term
	owners  []string
}

// Over is closed when this process no longer leads: the client must connect to the one that does.
func (v *Visit) Over() <-chan struct{} { return v.term.over }

// Leave ends the visit. Call it once.
func (v *Visit) Leave() { v.tracker.step(v.term, v.owners, -1) }

// Join begins a visit of a client that acts for these owners. It reports false if this process does not lead.
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

// Seen notes that a client that acts for an owner called just now. Without effect while this process does not lead.
func (t *Tracker) Seen(name string) {
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
		o.seen = at
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

// Of returns whether an owner is connected, and when it was seen last; zero if never. leads is false, and nothing is
// known, while this process does not lead.
func (t *Tracker) Of(name string) (connected bool, seen time.Time, leads bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term == nil {
		return false, time.Time{}, false
	}
	o := t.term.owners[name]
	return o.streams > 0, o.seen, true
}

// Owners returns the owners that were seen, in no particular order.
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
