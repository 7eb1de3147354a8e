// Package proxy gives the services of a cluster their addresses on a host: it listens on the address and ports of each
// service and leads connections, and datagrams, to the pods that serve. The agents of one host share its loopback
// network, so one of them, which holds a lock, listens; another one takes over when that one ends.
//
// Any process of the host may connect: there are no network policies. A pod sees a connection of the agent, from the
// address that the host chooses for it, not from the client's. Connections end with the agent that leads them.
package proxy

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

// Config says what a proxy belongs to.
type Config struct {
	Dir     string // of the agent, for the services as they were last known
	HostDir string // that the agents of the host share; empty: there is no other agent
	Node    string
	Conn    grpc.ClientConnInterface
	// Elected runs while this agent is the elected one of its host, for what else one agent of a host does; it blocks
	// until its context ends. nil: nothing.
	Elected func(context.Context) error
	Log     *slog.Logger
}

// Proxy leads the connections to services. Make it with New; its methods may be called concurrently.
type Proxy struct {
	cfg    Config
	agents schedulingv1.PodAgentServiceClient
	flows  *limits
	wake   chan struct{} // has a token if there are dirty services
	save   chan struct{} // has a token if the file may be out of date
	news   chan struct{} // has a token if a port has begun to listen, or failed to
	pace   pace

	mu       sync.Mutex
	services map[string]*schedulingv1.ServiceEndpoints // by "namespace/name"; the messages are never changed
	list     []*schedulingv1.ServiceEndpoints          // the same, sorted; nil if it is not made yet
	known    bool                                      // all services are, or were at some time
	current  bool                                      // this process was sent all of them
	begun    int                                       // streams
	broken   int                                       // number of the last stream that broke off
	changed  chan struct{}                             // closed, and replaced, when one of the above changes
	elected  bool
	dirty    map[string]bool               // services whose ports are to be brought up to date
	ports    map[string]map[portName]*port // by service; of the elected only
	saved    [sha256.Size]byte             // of what is in the file
}

// New returns the proxy, with the services as they were last known. Nothing listens before Run.
func New(cfg Config) *Proxy {
	p := &Proxy{
		cfg: cfg, agents: schedulingv1.NewPodAgentServiceClient(cfg.Conn), flows: newLimits(),
		wake: make(chan struct{}, 1), save: make(chan struct{}, 1), news: make(chan struct{}, 1),
		pace: pace{reportAfter, reportEvery, reportAgain}, services: map[string]*schedulingv1.ServiceEndpoints{},
		changed: make(chan struct{}), dirty: map[string]bool{}, ports: map[string]map[portName]*port{},
	}
	p.load()
	return p
}

// Run follows the services, and leads connections while this agent is the elected one of its host, until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return stream.Again(ctx, p.cfg.Log, "services", nil, p.watch) })
	group.Go(func() error { return p.keepSaved(ctx) })
	group.Go(func() error { return p.lead(ctx) })
	return group.Wait()
}

// Services returns all services as they were last known, sorted by namespace and name. Neither the list nor its
// elements may be changed.
func (p *Proxy) Services() []*schedulingv1.ServiceEndpoints {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.list == nil {
		p.list = slices.SortedFunc(maps.Values(p.services), func(a, b *schedulingv1.ServiceEndpoints) int {
			return strings.Compare(keyOf(a), keyOf(b))
		})
	}
	return p.list
}

// Known reports whether all services are known, or were at some time. current is false if that is what an earlier
// agent knew: there may be others by now.
func (p *Proxy) Known() (known, current bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known, p.current
}

// patience bounds how long Await waits for a cluster that takes calls but sends no services.
const patience = 10 * time.Second

// Await waits until all services are known, which they are at once if an earlier agent knew them. It returns false if
// they are not and the cluster does not answer.
func (p *Proxy) Await(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := -1
	for {
		p.mu.Lock()
		if begun < 0 {
			begun = p.begun
		}
		known, broken, changed := p.known, p.broken, p.changed
		p.mu.Unlock()
		// A stream that had begun before may have found a cluster that was away then.
		if known || broken > begun {
			return known
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// notify wakes those that wait for a change. The lock is held.
func (p *Proxy) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// lead leads connections while this agent is the elected one.
func (p *Proxy) lead(ctx context.Context) error {
	release, err := elect(ctx, p.cfg.HostDir, p.cfg.Log)
	if err != nil {
		return err
	}
	defer release()
	if ctx.Err() != nil {
		return nil
	}
	p.mu.Lock()
	p.elected = true
	for key := range p.services {
		p.dirty[key] = true
	}
	p.mu.Unlock()
	poke(p.wake)
	group, ctx := errgroup.WithContext(ctx)
	if p.cfg.Elected != nil {
		group.Go(func() error { return p.cfg.Elected(ctx) })
	}
	group.Go(func() error {
		p.keepPorts(ctx)
		return nil
	})
	group.Go(func() error {
		p.keepReporting(ctx)
		return nil
	})
	return group.Wait()
}

// keepPorts keeps the ports up to date until ctx ends.
func (p *Proxy) keepPorts(ctx context.Context) {
	defer p.endAll()
	for {
		select {
		case <-p.wake:
			p.reconcile(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// reconcile brings the ports of the dirty services up to date: first those end that are not wanted any more, whose
// addresses others may have now.
func (p *Proxy) reconcile(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dirty := p.dirty
	p.dirty = map[string]bool{}
	wanted := map[string]map[portName]target{}
	var ending []*port
	for key := range dirty {
		wanted[key] = targetsOf(p.services[key])
		for name, o := range p.ports[key] {
			if _, ok := wanted[key][name]; !ok {
				ending = append(ending, o)
				delete(p.ports[key], name)
			}
		}
		if len(p.ports[key]) == 0 {
			delete(p.ports, key)
		}
	}
	endPorts(ending)
	for key, targets := range wanted {
		for name, to := range targets {
			o := p.ports[key][name]
			if o == nil {
				o = newPort(key, name, p.flows, rand.Uint(), p.cfg.Log)
				o.news = p.news
				if p.ports[key] == nil {
					p.ports[key] = map[portName]*port{}
				}
				p.ports[key][name] = o
				defer o.begin(ctx) // once it has endpoints
			}
			o.aim(to)
		}
	}
}

// endAll ends all ports.
func (p *Proxy) endAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.elected = false
	var all []*port
	for _, ports := range p.ports {
		all = slices.AppendSeq(all, maps.Values(ports))
	}
	clear(p.ports)
	endPorts(all)
}

// PortStatus is whether this agent listens on a port of a service.
type PortStatus struct {
	Service  string // "namespace/name"
	Protocol string // TCP, UDP or SCTP
	Address  netip.AddrPort
	Why      string // why it does not listen; empty if it does
}

// Status returns all ports of services that have an address, sorted.
func (p *Proxy) Status() []PortStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []PortStatus
	for key, s := range p.services {
		for name := range targetsOf(s) {
			st := PortStatus{key, name.protocol, name.address, "another agent of this host listens"}
			if o := p.ports[key][name]; o != nil {
				st.Why = o.obstacle()
			} else if p.elected {
				st.Why = notYet
			}
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b PortStatus) int {
		if c := strings.Compare(a.Service, b.Service); c != 0 {
			return c
		}
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return strings.Compare(a.Protocol, b.Protocol)
	})
	return out
}

func keyOf(s *schedulingv1.ServiceEndpoints) string { return s.GetNamespace() + "/" + s.GetName() }

// poke puts a token into a channel that has room for one, unless it has it.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
