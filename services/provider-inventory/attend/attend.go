// Package attend keeps in memory which agents of hosts attend, when each sent its last message, and what it is sent. It
// knows something only while its process leads; what must outlive that is stored in the hosts.
package attend

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/store"
)

// Registry is the agents of all hosts. Make one with New; it is safe for concurrent use.
type Registry struct {
	now func() time.Time

	mu   sync.Mutex
	term *term // nil while this process does not lead
}

// term is what is known while this process leads once.
type term struct {
	fence   store.Fence
	since   time.Time
	hosts   map[string]*host
	changed func(host string)
	over    chan struct{}
}

// What of an agent may be stored: its facts and reports. An agent of its own says little, and the writes of a hostile
// one must not fill etcd.
const (
	storeEvery = 2 * time.Second
	storeBurst = 20
)

// host is what is known of one host's agent.
type host struct {
	last   time.Time // message
	visit  *Visit    // the newest stream; nil if none is open
	stores *rate.Limiter
}

// New returns a registry that does not lead. now is the clock.
func New(now func() time.Time) *Registry { return &Registry{now: now} }

// Lead begins a term in which no agent has sent a message. ctx has the fence of the term. changed is called, without a
// lock, with each host whose agent begins to attend; it must return at once. The returned function ends the term, and
// every visit.
func (r *Registry) Lead(ctx context.Context, changed func(host string)) (end func()) {
	fence, _ := store.FenceFrom(ctx)
	now := &term{
		fence: fence, since: r.now(), hosts: map[string]*host{}, changed: changed, over: make(chan struct{}),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term = now
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(now.over)
		if r.term == now {
			r.term = nil
		}
	}
}

// Fenced returns a context whose writes fail once the present term is over; false if this process does not lead.
func (r *Registry) Fenced(ctx context.Context) (context.Context, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil {
		return ctx, false
	}
	return store.WithFence(ctx, r.term.fence), true
}

// Of returns when the agent of a host sent its last message in the present term, zero without one, and when the term
// began.
func (r *Registry) Of(name string) (last, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil {
		return time.Time{}, r.now()
	}
	if h := r.term.hosts[name]; h != nil {
		last = h.last
	}
	return last, r.term.since
}

// Received notes a message of a host's agent.
func (r *Registry) Received(name string) {
	at := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term != nil {
		r.term.of(name).last = at
	}
}

// Stores reports whether one more message of a host's agent may be stored now: one every two seconds, and up to 20 at
// once after a time without any. False if this process does not lead.
func (r *Registry) Stores(name string) bool {
	at := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term != nil && r.term.of(name).stores.AllowN(at, 1)
}

// of returns what is known of a host's agent; the lock is held.
func (t *term) of(name string) *host {
	h := t.hosts[name]
	if h == nil {
		h = &host{stores: rate.NewLimiter(rate.Every(storeEvery), storeBurst)}
		t.hosts[name] = h
	}
	return h
}

// Visit is one stream of an agent.
type Visit struct {
	registry *Registry
	term     *term
	name     string
	want     *hostv1.HostOrder // that was not taken yet
	sent     string            // ID of the last one
	wake     chan struct{}     // has room for one: want is new
	ousted   chan struct{}     // closed when a newer stream of the host came
}

// Join begins a visit of a host's agent, which ends the former one. False if this process does not lead.
func (r *Registry) Join(name string) (*Visit, bool) {
	r.mu.Lock()
	now := r.term
	if now == nil {
		r.mu.Unlock()
		return nil, false
	}
	v := &Visit{registry: r, term: now, name: name, wake: make(chan struct{}, 1), ousted: make(chan struct{})}
	h := now.of(name)
	if h.visit != nil {
		close(h.visit.ousted)
	}
	h.visit = v
	r.mu.Unlock()
	now.changed(name)
	return v, true
}

// Over is closed when this process no longer leads.
func (v *Visit) Over() <-chan struct{} { return v.term.over }

// Ousted is closed when a newer stream of the host's agent began.
func (v *Visit) Ousted() <-chan struct{} { return v.ousted }

// Wake receives when Take has a new order.
func (v *Visit) Wake() <-chan struct{} { return v.wake }

// Take returns the order that is to be sent; nil if there is none.
func (v *Visit) Take() *hostv1.HostOrder {
	v.registry.mu.Lock()
	defer v.registry.mu.Unlock()
	o := v.want
	v.want = nil
	return o
}

// Leave ends the visit. Call it once.
func (v *Visit) Leave() {
	v.registry.mu.Lock()
	defer v.registry.mu.Unlock()
	if h := v.term.hosts[v.name]; h != nil && h.visit == v {
		h.visit = nil
	}
}

// Send has an order sent to the agent of a host, unless it was sent on the agent's present stream already. It does
// nothing if the agent does not attend.
func (r *Registry) Send(name string, o *hostv1.HostOrder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil || r.term.hosts[name] == nil {
		return
	}
	v := r.term.hosts[name].visit
	if v == nil || v.sent == o.GetId() {
		return
	}
	v.want, v.sent = o, o.GetId()
	select {
	case v.wake <- struct{}{}:
	default:
	}
}
