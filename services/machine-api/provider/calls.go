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
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Purpose is what a call to a plugin is for. Calls of different purposes do not wait for each other.
type Purpose int

const (
	// Create makes the instance of a machine.
	Create Purpose = iota
	// Look asks whether the instance of a machine exists.
	Look
	// Delete has the instance of a machine deleted, or its token used up, and then asks whether it exists.
	Delete
	purposes
)

// atATime is how many calls of one purpose are made to one plugin concurrently. A call that hangs occupies one place
// for up to callLimit.
const atATime = 16

// errOvertaken means that the plugin has been called by a later leader.
var errOvertaken = errors.New("the provider was called by a later leader of machine-api")

// errAnotherToken means that an answer is about another request token than the one that was sent.
var errAnotherToken = errors.New("the provider answered for another request token")

// Answer is the result of the calls of one purpose for one machine.
type Answer struct {
	Busy     bool                 // one is under way or waits for its turn
	At       time.Time            // when the last one was answered; zero if none was
	Err      error                // of the last one
	Failed   int                  // calls that failed since the last one that did not
	Since    time.Time            // when the first of these was answered
	Instance *providerv1.Instance // that the last one found; nil if it found none
	Absent   bool                 // the last one found that there is none; for Delete, after the token was used up

	gone bool // the machine is gone: the answer of the call that is under way is not kept
}

// Bootstrap makes what a new instance joins the cluster with.
type Bootstrap func(ctx context.Context, m *machinev1.Machine) (*providerv1.Bootstrap, error)

// lane makes the calls of one purpose to one plugin, by uid of the machine. Results are kept until Drop or the next
// term.
type lane struct {
	set     *Set
	plugin  *Plugin
	purpose Purpose
	loop    *controller.Loop

	mu      sync.Mutex
	waiting map[string]*machinev1.Machine
	answers map[string]Answer
}

func newLane(s *Set, p *Plugin, purpose Purpose, log *slog.Logger) *lane {
	l := &lane{set: s, plugin: p, purpose: purpose}
	l.reset()
	l.loop = controller.NewLoop(p.Name, atATime, l.call, log)
	l.loop.Begin(func() []string {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Collect(maps.Keys(l.waiting))
	})
	return l
}

func (l *lane) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.answers = map[string]*machinev1.Machine{}, map[string]Answer{}
}

// begin has a call made, unless one for the machine is under way or waits.
func (l *lane) begin(m *machinev1.Machine) {
	uid := m.GetMetadata().GetUid()
	l.mu.Lock()
	h := l.answers[uid]
	if !h.Busy {
		h.Busy = true
		l.answers[uid], l.waiting[uid] = h, m
	}
	l.mu.Unlock()
	l.loop.Add(uid)
}

// call makes one call. The plan of the machine decides whether and when it is repeated.
func (l *lane) call(ctx context.Context, uid string) (time.Time, error) {
	l.mu.Lock()
	m, ok := l.waiting[uid]
	delete(l.waiting, uid)
	if l.answers[uid].gone { // before its turn came
		delete(l.answers, uid)
		ok = false
	}
	l.mu.Unlock()
	if !ok {
		return time.Time{}, nil
	}
	ctx = trace.Continue(ctx, m.GetMetadata())
	var i *providerv1.Instance
	var absent bool
	var err error
	switch l.purpose {
	case Create:
		i, err = l.set.create(ctx, l.plugin, m)
	case Look:
		i, absent, err = l.plugin.look(ctx, m)
	case Delete:
		i, absent, err = l.plugin.remove(ctx, m)
	}
	l.mu.Lock()
	h := l.answers[uid]
	if h.gone {
		delete(l.answers, uid)
		l.mu.Unlock()
		return time.Time{}, nil
	}
	h.Busy, h.At, h.Err, h.Instance, h.Absent = false, time.Now(), err, i, absent
	if err == nil {
		h.Failed, h.Since = 0, time.Time{}
	} else if h.Failed++; h.Failed == 1 {
		h.Since = h.At
	}
	l.answers[uid] = h
	l.mu.Unlock()
	l.set.tell(uid)
	return time.Time{}, nil
}

// eager has failed calls repeated at once, as when the plugin can be reached again, and returns their machines' uids.
func (l *lane) eager() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for uid, h := range l.answers {
		if h.Err != nil {
			h.Failed = 0
			l.answers[uid] = h
			out = append(out, uid)
		}
	}
	return out
}

func (l *lane) drop(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.answers[uid].Busy {
		delete(l.answers, uid)
	}
}

// forget drops the answer for a machine that is gone, also one that is still to come.
func (l *lane) forget(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.answers[uid]; h.Busy {
		h.gone = true
		l.answers[uid] = h
		return
	}
	delete(l.answers, uid)
}

// Begin has the provider of a machine called, and returns at once. The result is in Answered when the subscribers are
// called with the machine's uid. While a call of the purpose for the machine is under way, it does nothing.
func (s *Set) Begin(purpose Purpose, m *machinev1.Machine) error {
	p, err := s.Of(m)
	if err != nil {
		return err
	}
	p.lanes[purpose].begin(m)
	return nil
}

// Answered returns the result of the calls for a machine in this term.
func (s *Set) Answered(purpose Purpose, m *machinev1.Machine) Answer {
	p, err := s.Of(m)
	if err != nil {
		return Answer{}
	}
	l := p.lanes[purpose]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answers[m.GetMetadata().GetUid()]
}

// Drop forgets the answers of a purpose for a machine, because they no longer hold. The answer of a call that is under
// way is kept.
func (s *Set) Drop(purpose Purpose, m *machinev1.Machine) {
	if p, err := s.Of(m); err == nil {
		p.lanes[purpose].drop(m.GetMetadata().GetUid())
	}
}

// Forget drops all answers for a machine that is gone, also those of calls that are under way.
func (s *Set) Forget(m *machinev1.Machine) {
	p, err := s.Of(m)
	if err != nil {
		return
	}
	for _, l := range p.lanes {
		l.forget(m.GetMetadata().GetUid())
	}
}

// Reset forgets all answers. Call it at the beginning of a term, before the first Begin.
func (s *Set) Reset() {
	for _, p := range s.plugins {
		for _, l := range p.lanes {
			l.reset()
		}
	}
}

// Lead makes the calls that are begun, until ctx ends. It takes the fence that they carry from ctx. bootstrap makes
// what new instances join with.
func (s *Set) Lead(ctx context.Context, bootstrap Bootstrap) error {
	s.mu.Lock()
	s.bootstrap = bootstrap
	s.mu.Unlock()
	if err := s.claimAgain(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("claim kinds of provider specs: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range s.plugins {
		for _, l := range p.lanes {
			group.Go(func() error { return l.loop.Run(ctx) })
		}
	}
	return group.Wait()
}

// fence returns the number of the term of ctx; 0 if it has none.
func fence(ctx context.Context) int64 {
	f, _ := store.FenceFrom(ctx)
	return f.CreateRevision
}

// checkFence refuses an answer from after a later leader's call.
func checkFence(ctx context.Context, seen int64) error {
	if own := fence(ctx); own > 0 && seen > own {
		return fmt.Errorf("%w: fence %d, this leader has %d", errOvertaken, seen, own)
	}
	return nil
}

// create makes a machine's instance, or finds the one that was made before.
func (s *Set) create(ctx context.Context, p *Plugin, m *machinev1.Machine) (*providerv1.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s.mu.Lock()
	bootstrap := s.bootstrap
	s.mu.Unlock()
	boot, err := bootstrap(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	uid := m.GetMetadata().GetUid()
	i, err := p.client.CreateInstance(ctx, &providerv1.CreateInstanceRequest{
		RequestToken: uid, Machine: object.Reference(m), ProviderSpec: m.GetSpec().GetProviderSpec().GetValue(),
		Bootstrap: boot, Fence: fence(ctx),
	})
	if err != nil {
		return nil, err
	}
	if err := checkFence(ctx, i.GetFence()); err != nil {
		return nil, err
	}
	if err := checkToken(i, uid); err != nil {
		return nil, err
	}
	p.rememberNew(uid, i)
	return i, nil
}

// checkToken refuses an instance that was made for another machine. One of a plugin without tokens has none.
func checkToken(i *providerv1.Instance, uid string) error {
	for _, token := range []string{i.GetRequestToken(), i.GetMachineUid()} {
		if token != "" && token != uid {
			return fmt.Errorf("%w: instance %s is of %s, not of %s", errAnotherToken, i.GetProviderId(), token, uid)
		}
	}
	return nil
}

// look asks for the instance of a machine. absent is true if the plugin says that there is none.
func (p *Plugin) look(ctx context.Context, m *machinev1.Machine) (i *providerv1.Instance, absent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	uid := m.GetMetadata().GetUid()
	had := p.instance(uid) != nil
	i, err = p.client.GetInstance(ctx, &providerv1.GetInstanceRequest{RequestToken: uid})
	if status.Code(err) == codes.NotFound {
		p.forget(uid)
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	if err := checkFence(ctx, i.GetFence()); err != nil {
		return nil, false, err
	}
	if !had { // otherwise what is missing now went while it was asked for
		p.rememberNew(uid, i)
	}
	return i, false, nil
}

// remove begins to delete the instance that was made for a machine, uses its token up, and asks whether there is one.
func (p *Plugin) remove(ctx context.Context, m *machinev1.Machine) (i *providerv1.Instance, absent bool, err error) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	uid := m.GetMetadata().GetUid()
	answer, err := p.client.DeleteInstance(limited, &providerv1.DeleteInstanceRequest{
		ProviderId: m.GetSpec().GetProviderId(), RequestToken: uid, Fence: fence(ctx),
	})
	if err != nil {
		return nil, false, err
	}
	if err := checkFence(ctx, answer.GetFence()); err != nil {
		return nil, false, err
	}
	if token := answer.GetRequestToken(); token != "" && token != uid {
		return nil, false, fmt.Errorf("%w: %s, not %s", errAnotherToken, token, uid)
	}
	return p.look(ctx, m)
}
