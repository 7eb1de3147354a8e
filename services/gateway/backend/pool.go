// Package backend carries calls to the programs behind the gateway: it knows where each runs and who leads, holds calls
// back while a program restarts, puts the caller's identity on them, and words what the transport says.
package backend

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// Pool is the connections to all programs: one to the address that was given for each, and one more to its leader while
// that is elsewhere. Concurrent calls are safe. Close must be called.
type Pool struct {
	creds   func(program string) (credentials.TransportCredentials, error)
	log     *slog.Logger
	options []grpc.DialOption

	mu    sync.Mutex
	peers map[string]*target // by program
	lead  map[string]*target // by program, only where it is another address
	// standIn is any process of etcd-guardian, for streams while its leader is away; nil if it was not needed since the
	// leader changed
	standIn *target
	// former are former leaders with calls that are under way
	former  []*target
	changed chan struct{} // is closed when the leaders change
}

// NewPool makes connections to peers (program → address) in the background; an empty address means discovery.Target,
// which one of the options resolves. creds makes the credentials for a program, options go to every connection.
func NewPool(peers map[string]string, creds func(program string) (credentials.TransportCredentials, error),
	log *slog.Logger, options ...grpc.DialOption,
) (*Pool, error) {
	p := &Pool{
		creds: creds, log: log, options: options,
		peers: map[string]*target{}, lead: map[string]*target{}, changed: make(chan struct{}),
	}
	for program, address := range peers {
		t, err := p.dial(program, address)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.peers[program] = t
	}
	return p, nil
}

func (p *Pool) dial(program, address string) (*target, error) {
	creds, err := p.creds(program)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", program, err)
	}
	return newTarget(program, address, creds, p.options)
}

// SetLeaders says where each program's leader is; a program that is not named has none. Streams to a former leader
// end; calls that are under way there do not.
func (p *Pool) SetLeaders(leaders map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	if lead, now := p.lead[topology.EtcdGuardian], leaders[topology.EtcdGuardian]; now != "" &&
		(lead == nil || lead.address != now) {
		p.endStandIn(p.standIn)
	}
	for program, t := range p.lead {
		if leaders[program] != t.address {
			delete(p.lead, program)
			t.retire()
			p.former = append(slices.DeleteFunc(p.former, (*target).ended), t)
		}
	}
	for program, address := range leaders {
		peer := p.peers[program]
		if peer == nil || peer.address == address || p.lead[program] != nil {
			continue
		}
		t, err := p.dial(program, address)
		if err != nil {
			p.log.Error("no connection to the leader", "service", program, "error", err)
			continue
		}
		p.lead[program] = t
		p.log.Info("streams go to the leader", "service", program, "address", address)
	}
}

// target returns where a call goes, or nil if program is none of the peers. A stream for the leader waits for it;
// another call goes elsewhere while the leader is not connected, since any replica answers it or refuses it at once.
func (p *Pool) target(ctx context.Context, program string, m *catalog.Method) (*target, error) {
	end := time.Now().Add(hold)
	for {
		p.mu.Lock()
		lead, peer, changed := p.lead[program], p.peers[program], p.changed
		p.mu.Unlock()
		switch {
		case lead != nil && m.Leader && (m.Streaming && !mayStandIn(peer) || lead.calls.ready()):
			return lead, nil
		case peer == nil || peer.address != "" || !m.Leader || !m.Streaming:
			return peer, nil
		case lead != nil:
			if lead.calls.await(ctx) == nil {
				return lead, nil
			}
			return p.anyGuardian(lead)
		}
		// Which process leads is not known, and a stream that was opened at another one would stay there.
		wait := time.NewTimer(time.Until(end))
		select {
		case <-changed:
			wait.Stop()
		case <-ctx.Done():
			wait.Stop()
			return nil, rpcerr.From(ctx.Err())
		case <-wait.C:
			if mayStandIn(peer) {
				return p.anyGuardian(nil)
			}
			return nil, rpcerr.Unavailable(program + " has no leader now")
		}
	}
}

// mayStandIn reports whether any process of a program takes the streams for its leader while that is away.
// etcd-guardian does: without a majority there is no leader of anything, and it brings the majority back through the
// streams of the agents.
func mayStandIn(peer *target) bool {
	return peer != nil && peer.address == "" && peer.program == topology.EtcdGuardian
}

// anyGuardian returns the connection to any process of etcd-guardian. Its streams end when the leader is there again,
// nil if it is not known, or another one leads: what the agents offer is of use there alone.
func (p *Pool) anyGuardian(lead *target) (*target, error) {
	p.mu.Lock()
	have := p.standIn
	p.mu.Unlock()
	if have != nil {
		return have, nil
	}
	t, err := p.dial(topology.EtcdGuardian, "") // without the lock, under which SetLeaders is called by what resolves this
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.standIn != nil {
		go t.close()
		return p.standIn, nil
	}
	p.standIn = t
	p.log.Warn("streams go to any etcd-guardian, since its leader cannot be reached")
	if lead != nil {
		go func() {
			if lead.calls.back() {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.endStandIn(t)
			}
		}()
	}
	return t, nil
}

// endStandIn ends the streams to t if it acts for the leader; the lock is held. It does not wait for that: what
// resolves the target may be what calls SetLeaders, and has a lock of its own.
func (p *Pool) endStandIn(t *target) {
	if t == nil || p.standIn != t {
		return
	}
	p.standIn = nil
	go t.retire()
}

// Conn returns the connection to a program over which the gateway calls for itself, not for a caller; nil if no address
// of the program was given.
func (p *Pool) Conn(program string) grpc.ClientConnInterface {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.peers[program]
	if t == nil {
		return nil
	}
	return t.calls.conn
}

// LeadersAway names the programs whose leaders could not be reached for so long, sorted. It is longer than a leader
// that is gone is taken for one.
func (p *Pool) LeadersAway(length time.Duration) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for program, t := range p.lead {
		if lost := t.calls.lost.Load(); lost != nil && time.Since(*lost) >= length {
			out = append(out, program)
		}
	}
	slices.Sort(out)
	return out
}

// Missing names the programs that cannot be reached now.
func (p *Pool) Missing() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing []string
	for program, t := range p.peers {
		if !t.calls.ready() {
			missing = append(missing, program)
		}
	}
	slices.Sort(missing)
	return missing
}

// Programs names all programs that have an address, sorted.
func (p *Pool) Programs() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]string, 0, len(p.peers))
	for program := range p.peers {
		names = append(names, program)
	}
	slices.Sort(names)
	return names
}

// Close ends all connections and what runs over them.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.former {
		t.close()
	}
	if p.standIn != nil {
		p.standIn.close()
	}
	for _, t := range p.lead {
		t.close()
	}
	for _, t := range p.peers {
		t.close()
	}
}
