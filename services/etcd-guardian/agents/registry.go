// Package agents keeps the connected agents and sends each the command for its member. A command is a state, not
// an event: it is sent when it differs from what was sent last on the agent's stream, and again on each new stream.
package agents

import (
	"cmp"
	"context"
	"slices"
	"sync"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
)

// The commands.
const (
	Start = "Start"
	Stop  = "Stop"
	Wipe  = "Wipe"
)

// Offer is one agent that attends.
type Offer struct {
	Node, PeerURL, ClientURL string
	MachineUID               string // of the machine whose certificate the agent has
	NextVersion              string // of etcd, that the member would run after a restart; empty if it did not say
	Other                    bool   // the member runs from another executable than it would be started from
	HasData                  bool   // it has a member's data on its disk, or was commanded to create it
	Told                     string // the last command on this stream; empty for none
	ToldTrust                string // and what the member was to trust by it; empty for none
}

// Registry holds the agents. Its methods may be called concurrently.
type Registry struct {
	changed func() // called when an agent comes or goes

	mu     sync.Mutex
	agents map[string]*agent
}

type agent struct {
	offer  Offer
	want   *etcdv1.AttendMemberResponse // nil: nothing new
	wake   chan struct{}
	ousted chan struct{} // closed when a newer stream of the same node came
}

// New returns an empty registry; changed must return at once.
func New(changed func()) *Registry {
	return &Registry{changed: changed, agents: map[string]*agent{}}
}

// Attend takes an agent in and sends it commands until its stream breaks or it comes again on another.
func (r *Registry) Attend(ctx context.Context, offer Offer, send func(*etcdv1.AttendMemberResponse) error) error {
	a := r.enter(offer)
	defer r.leave(a)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.ousted:
			return nil
		case <-a.wake:
			if m := r.take(a); m != nil {
				if err := send(m); err != nil {
					return err
				}
			}
		}
	}
}

func (r *Registry) enter(offer Offer) *agent {
	a := &agent{offer: offer, wake: make(chan struct{}, 1), ousted: make(chan struct{})}
	r.mu.Lock()
	if old := r.agents[offer.Node]; old != nil {
		close(old.ousted)
	}
	r.agents[offer.Node] = a
	r.mu.Unlock()
	r.changed()
	return a
}

func (r *Registry) leave(a *agent) {
	r.mu.Lock()
	if r.agents[a.offer.Node] == a {
		delete(r.agents, a.offer.Node)
	}
	r.mu.Unlock()
	r.changed()
}

func (r *Registry) take(a *agent) *etcdv1.AttendMemberResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := a.want
	a.want = nil
	return m
}

// Send sets the command of a node's agent. It does nothing if the command is unchanged, or if no agent is connected. A
// command without authorities to trust leaves the former ones in force.
func (r *Registry) Send(node string, m *etcdv1.AttendMemberResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[node]
	if a == nil || a.offer.Told == m.GetCommand() && (m.GetTrust() == "" || m.GetTrust() == a.offer.ToldTrust) {
		return
	}
	a.want, a.offer.Told, a.offer.ToldTrust, a.offer.HasData = m, m.GetCommand(), m.GetTrust(), m.GetCommand() != Wipe
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Forget makes the next command be sent even if it is unchanged.
func (r *Registry) Forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.agents[node]; a != nil {
		a.offer.Told, a.offer.ToldTrust = "", ""
	}
}

// Offers returns the agents that attend now, ordered by node.
func (r *Registry) Offers() []Offer {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Offer, 0, len(r.agents))
	for _, a := range r.agents {
		out = append(out, a.offer)
	}
	slices.SortFunc(out, func(a, b Offer) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
