// Package share gives each class of callers, and each caller in it, a share of what the gateway can do at a time:
// calls, streams and bytes of messages. No class can starve another, and no caller its class. It is priority and
// fairness in small: a call that finds no room waits for a moment, a stream or a message does not; what is refused gets
// RESOURCE_EXHAUSTED and the time after which to try again.
package share

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const (
	// patience is how long a call waits for room, and a refused caller should wait before it tries again.
	patience = 2 * time.Second
	// queue is how many calls of one class wait, for their beginning or for their message.
	queue = 512
	// slow is after how long the message of a caller with several ends for a caller with fewer that waits. A friendly one
	// takes milliseconds.
	slow = time.Second
	// slowLarge is the same for a large request: 64 MiB at 13 MiB a second.
	slowLarge = 5 * time.Second
	// largest is how many large requests there may be at a time in all classes, and eachLargest of one caller.
	largest, eachLargest = 4, 1
)

// Limit is how much there may be at a time, in all and for each caller.
type Limit struct{ All, Each int }

// Limits are those of one class.
type Limits struct {
	Calls   Limit
	Streams Limit
	// streams on which the caller sends messages: one that is not complete has up to 4 MiB and is not counted yet
	Upwards Limit
	Uploads Limit // calls whose first message, of at most 4 MiB, is on its way in
	Bytes   Limit // of messages on their way, in either direction
}

// Class is a group of callers that share one set of limits.
type Class string

// The classes.
const (
	System    Class = "system"    // services, and administrators, who must come through when others do too much
	Agents    Class = "agents"    // nodes
	Users     Class = "users"     // everybody else who is known
	Anonymous Class = "anonymous" // distinguished by their addresses
)

// Defaults are the limits of a gateway with 256 MiB of memory. An idle stream takes 22 KiB. Each caller may have two of
// the largest messages, 16 MiB, on their way.
func Defaults() map[Class]Limits {
	const mib = 1 << 20
	return map[Class]Limits{
		System: {
			Calls: Limit{256, 128}, Streams: Limit{4000, 2000}, Upwards: Limit{64, 32}, Uploads: Limit{16, 8},
			Bytes: Limit{96 * mib, 64 * mib},
		},
		Agents: {
			Calls: Limit{256, 32}, Streams: Limit{8000, 64}, Upwards: Limit{8000, 32}, Uploads: Limit{16, 4},
			Bytes: Limit{64 * mib, 33 * mib},
		},
		Users: {
			Calls: Limit{128, 64}, Streams: Limit{4000, 1000}, Upwards: Limit{64, 16}, Uploads: Limit{24, 6},
			Bytes: Limit{96 * mib, 48 * mib},
		},
		Anonymous: {
			Calls: Limit{16, 4}, Streams: Limit{16, 4}, Upwards: Limit{1, 1}, Uploads: Limit{4, 2},
			Bytes: Limit{2 * mib, 1 * mib},
		},
	}
}

// Shares hands out room. Concurrent calls are safe.
type Shares struct {
	rooms map[Class]*room
	large *room // of large requests, which all classes share
}

// New makes shares with limits for every class.
func New(limits map[Class]Limits) *Shares {
	s := &Shares{rooms: map[Class]*room{}}
	for _, class := range []Class{System, Agents, Users, Anonymous} {
		s.rooms[class] = &room{class: "class " + string(class), limits: limits[class], each: map[string]*use{}, slow: slow}
	}
	s.large = &room{
		class: "this gateway", limits: Limits{Uploads: Limit{largest, eachLargest}}, each: map[string]*use{}, slow: slowLarge,
	}
	return s
}

// Of returns the class of a caller and the name by which its share is counted; source is the caller's address.
func Of(caller identity.Caller, source string) (Class, string) {
	switch {
	case caller.User == "":
		return Anonymous, Host(source)
	case caller.In(identity.GroupNodes), caller.In(identity.GroupHosts):
		return Agents, caller.User
	case caller.In(identity.GroupServices), caller.In(identity.GroupMasters):
		return System, caller.User
	}
	return Users, caller.User
}

// Host returns by what a client's address and port are counted: the address, or of IPv6 the network of 64 bits, in
// which one client can have as many addresses as it likes.
func Host(source string) string {
	host, _, err := net.SplitHostPort(source)
	if err != nil {
		host = source
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if address = address.Unmap(); address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address.WithZone(""), 64).Masked().String()
}

// Call takes room for a call that ends soon; it waits up to two seconds. release must be called once when err is nil.
func (s *Shares) Call(ctx context.Context, caller identity.Caller, source string) (release func(), err error) {
	class, name := Of(caller, source)
	return s.rooms[class].wait(ctx, name, calls)
}

// Upload takes room for the first message of a call while it comes in, as Call does. What has come of a message is in
// memory before its bytes can be counted, so there are few at a time. The message must end when late is closed: it is
// slow, and a caller that has fewer waits.
func (s *Shares) Upload(ctx context.Context, caller identity.Caller, source string) (late <-chan struct{},
	release func(), err error,
) {
	class, name := Of(caller, source)
	late, _, free, err := s.rooms[class].upload(ctx, name, uploads)
	if err != nil {
		return nil, nil, err
	}
	return late, free, nil
}

// Large takes room for a large request, as Upload does for the first message of a call: the request must end when late
// is closed. came must be called when all of it has come, and release when it has been answered; further calls of them
// have no effect.
func (s *Shares) Large(ctx context.Context, caller identity.Caller, source string) (late <-chan struct{}, came,
	release func(), err error,
) {
	class, name := Of(caller, source)
	return s.large.upload(ctx, string(class)+" "+name, larges)
}

// Stream takes room for a call that may stay open.
func (s *Shares) Stream(caller identity.Caller, source string) (release func(), err error) {
	class, name := Of(caller, source)
	return s.rooms[class].take(name, 1, streams)
}

// Upwards takes room, beside that of Stream, for a stream on which the caller sends messages.
func (s *Shares) Upwards(caller identity.Caller, source string) (release func(), err error) {
	class, name := Of(caller, source)
	return s.rooms[class].take(name, 1, upwards)
}

// Bytes takes room for n bytes of messages.
func (s *Shares) Bytes(caller identity.Caller, source string, n int) (release func(), err error) {
	class, name := Of(caller, source)
	return s.rooms[class].take(name, n, bytes)
}

// Use returns how many calls, streams and bytes of a class there are.
func (s *Shares) Use(class Class) (calls, streams, bytes int) {
	r := s.rooms[class]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.calls, r.all.streams, r.all.bytes
}

// use is what is taken, by all or by one caller.
type use struct{ calls, streams, upwards, uploads, bytes int }

// A field is one number of a use, with its limit and its word in refusals.
type field struct {
	of    func(*use) *int
	limit func(Limits) Limit
	word  string
}

var (
	calls   = &field{func(u *use) *int { return &u.calls }, func(l Limits) Limit { return l.Calls }, "calls"}
	streams = &field{func(u *use) *int { return &u.streams }, func(l Limits) Limit { return l.Streams }, "streams"}
	upwards = &field{
		func(u *use) *int { return &u.upwards }, func(l Limits) Limit { return l.Upwards },
		"streams with messages of the caller",
	}
	uploads = &field{
		func(u *use) *int { return &u.uploads }, func(l Limits) Limit { return l.Uploads },
		"unfinished messages",
	}
	larges = &field{uploads.of, uploads.limit, "large requests"}
	bytes  = &field{func(u *use) *int { return &u.bytes }, func(l Limits) Limit { return l.Bytes }, "bytes of messages"}
)

type room struct {
	class  string // for people
	limits Limits
	slow   time.Duration // see hurry

	mu      sync.Mutex
	all     use
	each    map[string]*use
	waiting []*waiter // the first has waited longest
	uploads []*upload // the first has begun first
}

// upload is the first message of a call on its way in.
type upload struct {
	name  string
	begun time.Time
	late  chan struct{} // closed when it has to end
	ends  bool          // late is closed
}

// upload takes room for one more message on its way in, and waits for it as wait does.
func (r *room) upload(ctx context.Context, name string, f *field) (late <-chan struct{}, came, release func(),
	err error,
) {
	free, err := r.wait(ctx, name, f)
	if err != nil {
		return nil, nil, nil, err
	}
	u := &upload{name: name, begun: time.Now(), late: make(chan struct{})}
	r.mu.Lock()
	r.uploads = append(r.uploads, u)
	r.mu.Unlock()
	came = func() {
		r.mu.Lock()
		r.uploads = slices.DeleteFunc(r.uploads, func(other *upload) bool { return other == u })
		r.mu.Unlock()
	}
	return u.late, came, func() { came(); free() }, nil
}

// hurry ends the oldest slow message of a caller that has more of them than the named one, which waits; one at a time.
func (r *room) hurry(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.uploads, func(u *upload) bool { return u.ends }) {
		return
	}
	for _, u := range r.uploads {
		if time.Since(u.begun) >= r.slow && r.of(u.name, uploads) > r.of(name, uploads) {
			u.ends = true
			close(u.late)
			return
		}
	}
}

// of returns how much a caller has; r.mu is held.
func (r *room) of(name string, f *field) int {
	if u := r.each[name]; u != nil {
		return *f.of(u)
	}
	return 0
}

type waiter struct {
	name  string
	of    *field
	ready chan struct{} // closed when the waiter has its room
}

// fits reports whether n more are within the limits; r.mu is held.
func (r *room) fits(name string, n int, f *field) bool {
	limit := f.limit(r.limits)
	return *f.of(&r.all)+n <= limit.All && r.of(name, f)+n <= limit.Each
}

// add counts n more, or fewer if n is negative; r.mu is held.
func (r *room) add(name string, n int, f *field) {
	u := r.each[name]
	if u == nil {
		u = &use{}
		r.each[name] = u
	}
	*f.of(&r.all) += n
	*f.of(u) += n
	if *u == (use{}) {
		delete(r.each, name)
	}
}

func (r *room) full(f *field) error {
	return rpcerr.TooMany(fmt.Sprintf("too many %s at a time: the limit of %s is %d for each caller and %d for all",
		f.word, r.class, f.limit(r.limits).Each, f.limit(r.limits).All), patience)
}

func (r *room) take(name string, n int, f *field) (func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fits(name, n, f) {
		return nil, r.full(f)
	}
	r.add(name, n, f)
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.add(name, -n, f)
	}), nil
}

// wait takes room for one more; it waits for it up to two seconds.
func (r *room) wait(ctx context.Context, name string, f *field) (func(), error) {
	release := sync.OnceFunc(func() { r.done(name, f) })
	r.mu.Lock()
	if r.fits(name, 1, f) {
		r.add(name, 1, f)
		r.mu.Unlock()
		return release, nil
	}
	// One caller has no more than a quarter of the queue.
	mine := 0
	for _, w := range r.waiting {
		if w.name == name && w.of == f {
			mine++
		}
	}
	if len(r.waiting) >= queue || mine >= queue/4 {
		r.mu.Unlock()
		return nil, r.full(f)
	}
	w := &waiter{name: name, of: f, ready: make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	look := time.NewTicker(slow / 4)
	defer look.Stop()
	for waits := true; waits; {
		select {
		case <-w.ready:
			return release, nil
		case <-look.C:
			if f == uploads || f == larges {
				r.hurry(name)
			}
		case <-ctx.Done():
			waits = false
		case <-timer.C:
			waits = false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting, w); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
		if ctx.Err() != nil {
			return nil, rpcerr.From(ctx.Err())
		}
		return nil, r.full(f)
	}
	return release, nil // room came at the last moment
}

// done gives room to the caller that has least among those that fit, and of several to the one that has waited longest.
func (r *room) done(name string, f *field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(name, -1, f)
	next := -1
	for i, w := range r.waiting {
		if w.of == f && r.fits(w.name, 1, f) && (next < 0 || r.of(w.name, f) < r.of(r.waiting[next].name, f)) {
			next = i
		}
	}
	if next < 0 {
		return
	}
	w := r.waiting[next]
	r.add(w.name, 1, f)
	close(w.ready)
	r.waiting = slices.Delete(r.waiting, next, next+1)
}
