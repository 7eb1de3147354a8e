package audit

import (
	"sync"
	"time"
)

const (
	// countFor is how long records of one kind are counted into one.
	countFor = time.Minute
	// maxKinds bounds what is counted apart at a time; what comes beyond shares one record.
	maxKinds = 4096
)

// kind is what records have in common that are counted together.
type kind struct{ user, method, verb, group, resource, object, code, reason string }

// refusalKey counts refusals per caller, verb and resource. Objects' names are the caller's choice and not part of it.
// Refusals of unknown callers are counted by reason, of which there are few.
func refusalKey(r Record) kind {
	k := kind{user: r.User, verb: r.Verb, group: r.Group, resource: r.Resource, code: r.Code}
	if r.Verb != "" {
		k.method = r.Method // one of ours: names that a caller makes up have no verb
	}
	if r.User == "" {
		k.reason = r.Reason
	}
	return k
}

// readKey counts reads per caller, verb, resource and object.
func readKey(r Record) kind {
	return kind{user: r.User, verb: r.Verb, group: r.Group, resource: r.Resource, object: r.Namespace + "/" + r.Name}
}

// counter writes the first record of a kind at once, and those that follow within a minute as one with their number.
type counter struct {
	to *chain

	mu     sync.Mutex
	closed bool
	kinds  map[kind]*tally
}

type tally struct {
	first Record // of those that were not written by themselves
	count uint64
	last  time.Time
	from  string
	timer *time.Timer
}

func newCounter(to *chain) *counter { return &counter{to: to, kinds: map[kind]*tally{}} }

func (c *counter) add(r Record, k kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if c.kinds[k] == nil && len(c.kinds) >= maxKinds {
		k = kind{}
		r.User, r.Groups, r.Reason = "", nil, "too many kinds of records: those of several callers are counted together here"
	}
	t := c.kinds[k]
	if t == nil {
		t = &tally{}
		t.timer = time.AfterFunc(countFor, func() { c.flush(k, t) })
		c.kinds[k] = t
		_, _ = c.to.add(r, false)
		return
	}
	if t.count == 0 {
		t.first = r
	}
	t.count, t.last, t.from = t.count+1, r.Time, r.Source
}

// flush writes what was counted of a kind and forgets it.
func (c *counter) flush(k kind, t *tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[k] != t {
		return
	}
	delete(c.kinds, k)
	c.write(t)
}

func (c *counter) write(t *tally) {
	t.timer.Stop()
	if t.count == 0 {
		return
	}
	r := t.first
	if t.count > 1 {
		r.Count, r.LastTime, r.LastSource = t.count, &t.last, t.from
	}
	_, _ = c.to.add(r, false)
}

func (c *counter) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, t := range c.kinds {
		c.write(t)
	}
	clear(c.kinds)
}
