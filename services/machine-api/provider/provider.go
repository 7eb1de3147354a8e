// Package provider speaks with the plugins of infrastructure providers and keeps a copy of their instances. The copy
// says quickly that something changed; that an instance does not exist only the plugin itself can say (Absent).
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	callLimit    = 30 * time.Second // of one call to a plugin; it answers before the instance is ready
	firstBackOff = 50 * time.Millisecond
	mostBackOff  = time.Second
)

// errUnknownKind means that every plugin has answered and none understands the kind of a provider spec.
var errUnknownKind = errors.New("no provider understands it")

var (
	// errSilent means that a plugin has not said yet what it understands.
	errSilent = errors.New("a provider has not answered yet")
	// errNotConnected means that machine-api has no connection to the provider that a machine's instance is of.
	errNotConnected = errors.New("machine-api has no such peer")
	// errDropped means that the provider that is in force for a kind does not understand it any more.
	errDropped = errors.New("it does not understand it any more")
	// errContested means that it is not known which of several providers made an instance.
	errContested = errors.New("several providers understand it")
)

// Plugin is one provider. Its methods may be called concurrently.
type Plugin struct {
	Name   string
	client providerv1.ProviderServiceClient

	mu        sync.RWMutex
	info      *providerv1.GetProviderInfoResponse
	instances map[string]*providerv1.Instance // by uid of the machine; shared, never modified
	err       error                           // why it could not be asked what it is last; nil if it could
	lanes     [purposes]*lane                 // by purpose; fixed
}

// Set is all providers of a cluster.
type Set struct {
	plugins []*Plugin
	claim   Claim
	log     *slog.Logger

	mu          sync.Mutex
	subscribers []func(machineUID string)
	introduced  []func()
	bootstrap   Bootstrap
	inForce     map[string]string   // by kind of provider spec: the name of the provider that claimed it
	kinds       map[string]*Plugin  // by kind: the provider in force, if it understands the kind
	contested   map[string][]string // by kind: further providers that understand it, which are not in force
}

// New returns the set of the providers behind connections, by name. claim says which of them is in force for a kind;
// with nil it is the first one that answers.
func New(conns map[string]grpc.ClientConnInterface, claim Claim, log *slog.Logger) *Set {
	if claim == nil {
		claim = firstToCome()
	}
	s := &Set{
		claim: claim, log: log, inForce: map[string]string{}, kinds: map[string]*Plugin{},
		contested: map[string][]string{},
	}
	for _, name := range slices.Sorted(maps.Keys(conns)) {
		p := &Plugin{
			Name: name, client: providerv1.NewProviderServiceClient(conns[name]),
			instances: map[string]*providerv1.Instance{},
		}
		for purpose := range purposes {
			p.lanes[purpose] = newLane(s, p, purpose, log)
		}
		s.plugins = append(s.plugins, p)
	}
	return s
}

// Subscribe has f called with the uid of the machine of every instance that changes. f must return at once.
func (s *Set) Subscribe(f func(machineUID string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, f)
}

// SubscribeProviders has f called when a provider has introduced itself, which may change what Of and For return. f
// must return at once.
func (s *Set) SubscribeProviders(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.introduced = append(s.introduced, f)
}

func (s *Set) tell(uids ...string) {
	s.mu.Lock()
	subscribers := slices.Clone(s.subscribers)
	s.mu.Unlock()
	for _, uid := range uids {
		for _, f := range subscribers {
			f(uid)
		}
	}
}

// Run keeps the copies up to date until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range s.plugins {
		group.Go(func() error { s.follow(ctx, p); return nil })
	}
	return group.Wait()
}

func (s *Set) follow(ctx context.Context, p *Plugin) {
	again := backoff.New(firstBackOff, mostBackOff)
	for ctx.Err() == nil {
		began := time.Now()
		err := s.watch(ctx, p)
		if ctx.Err() != nil {
			return
		}
		s.log.DebugContext(ctx, "watch of instances broke off", "provider", p.Name, "error", err)
		if time.Since(began) > mostBackOff {
			again.Reset()
		}
		again.Wait(ctx)
	}
}

func (s *Set) watch(ctx context.Context, p *Plugin) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	info, err := p.introduce(ctx)
	if err != nil {
		return err
	}
	if err := s.admit(ctx, p, info); err != nil {
		return fmt.Errorf("claim kinds of provider specs: %w", err)
	}
	before := p.uids() // an instance that is made from here on may be too new for the initial list
	stream, err := p.client.WatchInstances(ctx, &providerv1.WatchInstancesRequest{})
	if err != nil {
		return err
	}
	seen := map[string]bool{} // nil once the instances that there were at the beginning have come
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		uid := m.GetInstance().GetMachineUid()
		switch {
		case m.GetSynced() && seen == nil:
			continue // it said so before
		case m.GetSynced():
			s.tell(p.keep(before, seen)...)
			for _, l := range p.lanes {
				s.tell(l.eager()...)
			}
			seen = nil
			continue
		case uid == "":
			continue // an instance that the provider cannot read is in its list only
		case m.GetDeleted():
			p.forget(uid)
		default:
			p.remember(m.GetInstance())
		}
		if seen != nil {
			seen[uid] = !m.GetDeleted()
		}
		s.tell(uid)
	}
}

// introduce asks who the plugin is.
func (p *Plugin) introduce(ctx context.Context) (*providerv1.GetProviderInfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	info, err := p.client.GetProviderInfo(ctx, &providerv1.GetProviderInfoRequest{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	return info, err
}

// admit puts a provider in force for the kinds of provider spec that it has claimed. What it understands is known only
// after that: until then machines wait, instead of having no provider.
func (s *Set) admit(ctx context.Context, p *Plugin, info *providerv1.GetProviderInfoResponse) error {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	claimed := map[string]string{}
	for _, kind := range info.GetProviderSpecKinds() {
		inForce, err := s.claim(limited, kind, p.Name)
		if err != nil {
			return err
		}
		claimed[kind] = inForce
	}
	p.mu.Lock()
	p.info = info
	p.mu.Unlock()
	s.mu.Lock()
	for kind, name := range claimed {
		if name != p.Name && s.inForce[kind] != name {
			s.log.ErrorContext(ctx, "provider not in force for a kind", "provider", p.Name, "kind", kind, "in_force", name)
		}
		s.inForce[kind] = name
	}
	s.sort()
	subscribers := slices.Clone(s.introduced)
	s.mu.Unlock()
	for _, f := range subscribers {
		f()
	}
	return nil
}

// sort says of each kind which provider serves it, and which ones do not although they understand it. The lock is held.
func (s *Set) sort() {
	clear(s.kinds)
	clear(s.contested)
	for _, p := range s.plugins {
		for _, kind := range p.known().GetProviderSpecKinds() {
			if s.inForce[kind] == p.Name {
				s.kinds[kind] = p
			} else {
				s.contested[kind] = append(s.contested[kind], p.Name)
			}
		}
	}
}

// claimAgain has all providers that are known claim their kinds again: another process may have put another one in
// force.
func (s *Set) claimAgain(ctx context.Context) error {
	for _, p := range s.plugins {
		if info := p.known(); info != nil {
			if err := s.admit(ctx, p, info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plugin) instance(uid string) *providerv1.Instance {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.instances[uid]
}

func (p *Plugin) remember(i *providerv1.Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instances[i.GetMachineUid()] = i
}

func (p *Plugin) forget(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.instances, uid)
}

// uids returns the machines whose instances are known.
func (p *Plugin) uids() []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Collect(maps.Keys(p.instances))
}

// keep forgets the instances that were known before and not seen since, and returns all uids that it knew: each may
// have changed unnoticed.
func (p *Plugin) keep(before []string, seen map[string]bool) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := slices.Collect(maps.Keys(p.instances))
	for _, uid := range before {
		if !seen[uid] {
			delete(p.instances, uid)
		}
	}
	return known
}

func (p *Plugin) known() *providerv1.GetProviderInfoResponse {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.info
}

// Instance returns the instance of a machine as far as the copy of its own provider shows it; nil if that shows none.
// What another provider says of the machine does not count.
func (s *Set) Instance(m *machinev1.Machine) *providerv1.Instance {
	p, err := s.Of(m)
	if err != nil {
		return nil
	}
	return p.instance(m.GetMetadata().GetUid())
}

// Of returns the provider of a machine's instance: the one that was asked for it, else the one that understands the
// machine's provider spec.
func (s *Set) Of(m *machinev1.Machine) (*Plugin, error) {
	spec := m.GetSpec().GetProviderSpec().GetValue()
	name := m.GetMetadata().GetAnnotations()[plan.AnnotationProvider]
	if name == "" {
		if kind := kindOf(spec); m.GetSpec().GetProviderId() != "" && s.isContested(kind) {
			return nil, fmt.Errorf("spec.providerSpec.value.kind: is %q: %w, and instance %s may be of either", kind,
				errContested, m.GetSpec().GetProviderId())
		}
		return s.For(spec)
	}
	for _, p := range s.plugins {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the instance was requested of %s: %w", name, errNotConnected)
}

func kindOf(spec *structpb.Struct) string { return spec.GetFields()["kind"].GetStringValue() }

func (s *Set) isContested(kind string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.contested[kind]) > 0
}

// For returns the provider that is in force for a provider spec: errUnknownKind if there is none, another error while
// that is unknown.
func (s *Set) For(spec *structpb.Struct) (*Plugin, error) {
	kind := kindOf(spec)
	s.mu.Lock()
	p, inForce := s.kinds[kind], s.inForce[kind]
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	connected := false
	for _, p := range s.plugins {
		if p.known() == nil {
			return nil, fmt.Errorf("spec.providerSpec.value.kind: is %q: %w: %s", kind, errSilent, p.Name)
		}
		connected = connected || p.Name == inForce
	}
	switch {
	case connected:
		return nil, fmt.Errorf("spec.providerSpec.value.kind: is %q: of %s, which is in force for it: %w", kind, inForce,
			errDropped)
	case inForce != "":
		return nil, fmt.Errorf("spec.providerSpec.value.kind: is %q: %s is in force for it: %w", kind, inForce,
			errNotConnected)
	}
	return nil, fmt.Errorf("spec.providerSpec.value.kind: is %q: %w", kind, errUnknownKind)
}

// DomainFields says where the provider of a provider spec has the settings of a failure domain; nothing if no provider
// understands the spec. known is false while that is unknown.
func (s *Set) DomainFields(spec *structpb.Struct) (fields map[string]string, known bool) {
	p, err := s.For(spec)
	if err != nil {
		return nil, errors.Is(err, errUnknownKind)
	}
	return p.known().GetFailureDomainFields(), true
}

// Look returns the instance of a machine, asked of its provider. absent is true if the provider says that there is
// none.
func (s *Set) Look(ctx context.Context, m *machinev1.Machine) (i *providerv1.Instance, absent bool, err error) {
	p, err := s.Of(m)
	if err != nil {
		return nil, false, err
	}
	return p.look(ctx, m)
}

// rememberNew keeps an answer unless the watch has brought newer word already.
func (p *Plugin) rememberNew(uid string, i *providerv1.Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.instances[uid]; !ok {
		p.instances[uid] = i
	}
}
