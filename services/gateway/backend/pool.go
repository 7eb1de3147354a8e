// Package backend carries calls to the programs behind the gateway: it knows where each runs and who leads, holds calls
// back while a program restarts, puts the caller's identity on them, and words what the transport says.
package backend

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Pool is the connections to all programs: one to the address that was given for each, and one more to its leader while
// that is elsewhere. Concurrent calls are safe. Close must be called.
type Pool struct {
	creds func(program, address string) (credentials.TransportCredentials, error)
	log   *slog.Logger

	mu     sync.Mutex
	peers  map[string]*link // by program
	static map[string]string
	lead   map[string]*link // by program, only where it is another address
	leadAt map[string]string
}

// NewPool makes connections to peers (program → address) in the background. creds makes the
// credentials for a program at an address.
func NewPool(peers map[string]string, creds func(program, address string) (credentials.TransportCredentials, error), log *slog.Logger) (*Pool, error) {
	p := &Pool{
		creds: creds, log: log,
		peers: map[string]*link{}, static: map[string]string{},
		lead: map[string]*link{}, leadAt: map[string]string{},
	}
	for program, address := range peers {
		l, err := p.dial(program, address)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.peers[program], p.static[program] = l, address
	}
	return p, nil
}

func (p *Pool) dial(program, address string) (*link, error) {
	creds, err := p.creds(program, address)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", program, err)
	}
	return newLink(program, address, creds)
}

// SetLeaders says where each program's leader is; a program that is not named has none.
func (p *Pool) SetLeaders(leaders map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for program, address := range p.leadAt {
		if leaders[program] != address {
			p.forget(program)
		}
	}
	for program, address := range leaders {
		p.follow(program, address)
	}
}

func (p *Pool) forget(program string) {
	if l := p.lead[program]; l != nil {
		l.close()
	}
	delete(p.lead, program)
	delete(p.leadAt, program)
}

func (p *Pool) follow(program, address string) {
	if address == "" || address == p.static[program] || address == p.leadAt[program] || p.peers[program] == nil {
		return
	}
	l, err := p.dial(program, address)
	if err != nil {
		p.log.Error("no connection to the leader", "service", program, "error", err)
		return
	}
	p.lead[program], p.leadAt[program] = l, address
	p.log.Info("streams go to the leader", "service", program, "address", address)
}

// link returns the connection for a call, or nil if no address was given for program.
func (p *Pool) link(program string, leader bool) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if leader {
		if l := p.lead[program]; l != nil {
			return l
		}
	}
	return p.peers[program]
}

// Missing names the programs that cannot be reached now.
func (p *Pool) Missing() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing []string
	for program, l := range p.peers {
		if !l.ready() {
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
	for program := range p.leadAt {
		p.forget(program)
	}
	for _, l := range p.peers {
		l.close()
	}
}
