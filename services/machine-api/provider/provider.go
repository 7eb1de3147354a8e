// Package provider speaks with the plugins of infrastructure providers and keeps a copy of their instances. The copy
// says quickly that something changed; that an instance does not exist only the plugin itself can say (Absent).
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	callLimit    = 30 * time.Second // of one call to a plugin; it answers before the instance is ready
	firstBackOff = 50 * time.Millisecond
	mostBackOff  = time.Second
)

// ErrUnknownKind means that every plugin has answered and none understands the kind of a provider spec.
var ErrUnknownKind = errors.New("no provider understands it")

// errSilent means that a plugin has not said yet what it understands.
var errSilent = errors.New("a provider has not answered yet")

// Plugin is one provider. Its methods may be called concurrently.
type Plugin struct {
	Name   string
	client providerv1.ProviderServiceClient

	mu        sync.RWMutex
	info      *providerv1.GetProviderInfoResponse
	instances map[string]*providerv1.Instance // by uid of the machine; shared, never modified
}

// Set is all providers of a cluster.
type Set struct {
	plugins []*Plugin
	log     *slog.Logger

	mu          sync.Mutex
	subscribers []func(machineUID string)
}

// New returns the set of the providers behind connections, by name.
func New(conns map[string]grpc.ClientConnInterface, log *slog.Logger) *Set {
	s := &Set{log: log}
	for name, c := range conns {
		s.plugins = append(s.plugins, &Plugin{
			Name: name, client: providerv1.NewProviderServiceClient(c),
			instances: map[string]*providerv1.Instance{},
		})
	}
	return s
}

// Subscribe has f called with the uid of the machine of every instance that changes. f must return at once.
func (s *Set) Subscribe(f func(machineUID string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, f)
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
	if err := p.introduce(ctx); err != nil {
		return err
	}
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
		case m.GetSynced():
			s.tell(p.keep(seen)...)
			seen = nil
			continue
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
func (p *Plugin) introduce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	info, err := p.client.GetProviderInfo(ctx, &providerv1.GetProviderInfoRequest{})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = info
	return nil
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

// keep forgets every instance but those seen, and returns all uids that it knew: each may have changed unnoticed.
func (p *Plugin) keep(seen map[string]bool) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var known []string
	for uid := range p.instances {
		known = append(known, uid)
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
	p, err := s.For(m.GetSpec().GetProviderSpec().GetValue())
	if err != nil {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.instances[m.GetMetadata().GetUid()]
}

// For returns the provider that understands a provider spec: ErrUnknownKind if there is none, another error while that
// is unknown.
func (s *Set) For(spec *structpb.Struct) (*Plugin, error) {
	kind := spec.GetFields()["kind"].GetStringValue()
	silent := false
	for _, p := range s.plugins {
		info := p.known()
		if info == nil {
			silent = true
			continue
		}
		if slices.Contains(info.GetProviderSpecKinds(), kind) {
			return p, nil
		}
	}
	if silent {
		return nil, errSilent
	}
	return nil, fmt.Errorf("spec.providerSpec.value.kind: is %q: %w", kind, ErrUnknownKind)
}

// DomainFields says where the provider of a provider spec has the settings of a failure domain; nothing if no provider
// understands the spec. known is false while that is unknown.
func (s *Set) DomainFields(spec *structpb.Struct) (fields map[string]string, known bool) {
	p, err := s.For(spec)
	if err != nil {
		return nil, errors.Is(err, ErrUnknownKind)
	}
	return p.known().GetFailureDomainFields(), true
}

// Look returns the instance of a machine, asked of its provider. absent is true if the provider says that there is
// none, or if no provider could ever have made one.
func (s *Set) Look(ctx context.Context, m *machinev1.Machine) (i *providerv1.Instance, absent bool, err error) {
	p, err := s.For(m.GetSpec().GetProviderSpec().GetValue())
	if errors.Is(err, ErrUnknownKind) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	i, err = p.client.GetInstance(ctx, &providerv1.GetInstanceRequest{RequestToken: m.GetMetadata().GetUid()})
	if status.Code(err) == codes.NotFound {
		p.forget(m.GetMetadata().GetUid())
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	p.remember(i)
	return i, false, nil
}

// Create makes a machine's instance, or finds the one that was made before.
func (p *Plugin) Create(ctx context.Context, req *providerv1.CreateInstanceRequest) (*providerv1.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	i, err := p.client.CreateInstance(ctx, req)
	if err != nil {
		return nil, err
	}
	p.rememberNew(i)
	return i, nil
}

// rememberNew keeps the answer of a creation unless the watch has brought a newer word already.
func (p *Plugin) rememberNew(i *providerv1.Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.instances[i.GetMachineUid()]; !ok {
		p.instances[i.GetMachineUid()] = i
	}
}

// Delete begins to delete the instance that was made for a machine. It succeeds if the instance is already gone.
func (s *Set) Delete(ctx context.Context, m *machinev1.Machine) error {
	p, err := s.For(m.GetSpec().GetProviderSpec().GetValue())
	if err != nil {
		return err
	}
	i := s.Instance(m)
	if i == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err = p.client.DeleteInstance(ctx, &providerv1.DeleteInstanceRequest{
		ProviderId:   i.GetProviderId(),
		RequestToken: m.GetMetadata().GetUid(),
	})
	return err
}
