package proxy

import (
	"container/list"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	// maxFlows bounds the connections and UDP conversations of all services, and maxPortFlows those of one port, so that
	// clients of one do not lock out those of the others. A connection takes two sockets, and while data flows two pipes.
	maxFlows, maxPortFlows = 2048, 512
	// maxClients is how many clients of one port have an affinity; those that connected least recently lose it.
	maxClients = 4096
)

// limits bound the flows of all ports.
type limits struct {
	all     atomic.Int64
	max     int64
	perPort int64
	idle    time.Duration // of UDP conversations
}

func newLimits() *limits { return &limits{max: maxFlows, perPort: maxPortFlows, idle: udpIdle} }

// slots are those of one port.
type slots struct {
	of   *limits
	used atomic.Int64
}

func (l *limits) newSlots() *slots { return &slots{of: l} }

// take reports whether there is a slot; then give it back.
func (s *slots) take() bool {
	if s.used.Add(1) > s.of.perPort {
		s.used.Add(-1)
		return false
	}
	if s.of.all.Add(1) > s.of.max {
		s.give()
		return false
	}
	return true
}

func (s *slots) give() {
	s.used.Add(-1)
	s.of.all.Add(-1)
}

// clients are the affinities of the clients that connected most recently. They are not safe for concurrent use.
type clients struct {
	max    int
	by     map[netip.Addr]*list.Element
	recent *list.List // of client; the most recent first
}

type client struct {
	address netip.Addr
	is      plan.Affinity
}

func newClients(limit int) *clients {
	return &clients{max: limit, by: map[netip.Addr]*list.Element{}, recent: list.New()}
}

func (c *clients) get(address netip.Addr) plan.Affinity {
	if e := c.by[address]; e != nil {
		return e.Value.(client).is
	}
	return plan.Affinity{}
}

func (c *clients) forget(address netip.Addr) {
	if e := c.by[address]; e != nil {
		c.recent.Remove(e)
		delete(c.by, address)
	}
}

func (c *clients) set(address netip.Addr, is plan.Affinity) {
	if e := c.by[address]; e != nil {
		e.Value = client{address, is}
		c.recent.MoveToFront(e)
		return
	}
	if c.recent.Len() >= c.max {
		delete(c.by, c.recent.Remove(c.recent.Back()).(client).address)
	}
	c.by[address] = c.recent.PushFront(client{address, is})
}
