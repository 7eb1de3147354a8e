package controller

import (
	"sync"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// pacer lets the nodes of a zone be told one after the other that their pods have to leave. It lives in memory: a new leader begins with
// the first node at once. The zero pacer is ready.
type pacer struct {
	mu   sync.Mutex
	last map[string]turn // by zone
}

type turn struct {
	node string
	at   time.Time
}

// admit returns zero if it is a node's turn, or when it may be. A node whose turn it was keeps it until another's comes.
func (p *pacer) admit(zone, node string, now time.Time, wait time.Duration) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, before := p.last[zone]
	switch next := last.at.Add(wait); {
	case before && last.node == node:
		return time.Time{}
	case before && now.Before(next):
		return next
	}
	if p.last == nil {
		p.last = map[string]turn{}
	}
	p.last[zone] = turn{node: node, at: now}
	return time.Time{}
}

// held returns until when a node that is lost is to wait for others of its zone; zero if it need not.
func (c *Controller) held(node *nodev1.Node, now time.Time) time.Time {
	zone, grace := plan.Zone(node), c.Tracker.Grace()
	wait, stopped := plan.Pace(c.lately(), zone, grace, c.Pause)
	if stopped {
		return now.Add(grace / 2)
	}
	return c.pacer.admit(zone, node.GetMetadata().GetName(), now, wait)
}
