// Package spans measures for how long states of objects have lasted, for plans: by what a process has seen of them with
// its monotonic clock, because a time in an object comes from the clock of another process, or from one that was set
// since. It reads no clock: a View brings what was seen. Package controller of the kit records it.
package spans

import (
	"fmt"
	"time"
)

// apart is by how much two times in objects may be wrong relative to each other and to a leader's clock: each clock is
// off by an hour at most.
const apart = 2 * time.Hour

// Seen is for how long this process has seen states as they are, measured by its monotonic clock. The key of a state
// names that very state: one that ends and comes again has another key. It is nil if this process has not decided on
// the object before.
type Seen map[string]time.Duration

// Clock measures how long states have lasted, and notes which. It is made for one decision.
type Clock struct {
	Now    time.Time
	Steady time.Time // what the clock would show if it had not been set since this process began to lead; zero means Now
	Seen   Seen
	Exact  bool // Now and the times in the objects are of one clock, as in a plan request

	// Used are the states that were asked for, and for how long each has lasted: Seen of the next decision.
	Used Seen
}

// End returns when the state of a key, which began at since, will have lasted for d: as soon as this process has seen
// it for so long, and no later than two hours after the time that since says. A leader that begins therefore waits
// again, but frequent changes of leader do not delay the end without a limit.
func (c *Clock) End(key string, since time.Time, d time.Duration) time.Time {
	if c.Exact {
		return since.Add(d)
	}
	c.note(key, c.Seen[key])
	steady := c.Steady
	if steady.IsZero() {
		steady = c.Now
	}
	left := min(d-c.Seen[key], since.Add(d+apart).Sub(steady))
	return c.Now.Add(left)
}

// Trust has a state count as having lasted for d at least: what an object says shows that another process saw it. It is
// only for objects on which this process has not decided before.
func (c *Clock) Trust(key string, d time.Duration) {
	if c.Seen == nil {
		c.Seen = Seen{}
	}
	c.Seen[key] = max(c.Seen[key], d)
}

func (c *Clock) note(key string, d time.Duration) {
	if c.Used == nil {
		c.Used = Seen{}
	}
	c.Used[key] = d
}

// Key returns the key of a state that an object shows since a time.
func Key(since time.Time, parts ...string) string {
	return fmt.Sprintf("%q@%d", parts, since.Unix())
}
