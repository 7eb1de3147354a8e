package proxy

import (
	"container/list"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	// maxFlows bounds the connections and UDP conversations of all services. Of these one port has at most a share, so
	// that clients of one service do not lock out those of the others.
	maxFlows, portShare = 2048, 4
	// filesPerFlow is how many files a connection takes: two sockets, and while data flows two pipes of two ends.
	filesPerFlow = 6
	// maxPorts is how many ports of services an agent listens on, which are a quarter of its files at most.
	maxPorts = 4096
	// maxClients is how many clients of one port have an affinity; those that connected least recently lose it.
	maxClients = 4096
)

// limits bound the flows of all ports.
type limits struct {
	all      atomic.Int64
	max      int64
	perPort  int64
	ports    atomic.Int64 // that are listened on
	maxPorts int64
	idle     time.Duration // of UDP conversations
}

// newLimits returns the limits of a process: connections leave it half of the files that it may open.
func newLimits() *limits {
	most := int64(maxFlows)
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur/2/filesPerFlow < maxFlows {
		most = max(portShare, int64(files.Cur)/2/filesPerFlow)
	}
	ports := int64(maxPorts)
	if files.Cur > 0 && files.Cur/4 < maxPorts {
		ports = max(1, int64(files.Cur)/4)
	}
	return &limits{max: most, perPort: most / portShare, maxPorts: ports, idle: udpIdle}
}

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
