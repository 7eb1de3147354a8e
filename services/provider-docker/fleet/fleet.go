// Package fleet keeps the rules of windlass.provider.v1 for the containers of a Docker engine. The engine is the record
// of what exists, and is asked at each call: what it does not say is unknown, never gone.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/services/provider-docker/engine"
)

// Errors that callers distinguish.
var (
	ErrNotFound = errors.New("no such instance")
	ErrTaken    = errors.New("an instance of that name exists")
	ErrUsed     = errors.New("the request token's instance was deleted")
	ErrOther    = errors.New("provider id and request token are of different instances")
	ErrFull     = errors.New("no address is free")
	ErrBusy     = errors.New("other calls wait for the Docker engine")
)

const (
	// period is between two lists, for changes that no event reported.
	period = 10 * time.Second
	// retry is between two attempts while the engine does not answer.
	retry = time.Second
	// removals is how many containers are removed at a time.
	removals = 4
)

// Config says what the fleet consists of.
type Config struct {
	Cluster   string       // name of the cluster, part of the provider ids
	Addresses netip.Prefix // IPv4 network that instances on the host's network get addresses from
	Image     engine.Image // of instances whose spec has none
	Images    string       // directory on the engine's host with the images of pods; empty for none
	Identity  string       // file that has the identity of the engine; it is written at the first answer
	Log       *slog.Logger
}

// Instance is an instance as it was listed.
type Instance struct {
	engine.Container
	State string // of windlass.provider.v1
}

// Request is a request to create an instance.
type Request struct {
	Token, Machine, UID string
	Fence               int64
	Spec                Spec
	Bootstrap           Bootstrap // Create completes it
}

// Bootstrap is what the agent finds in the container: where to join, and what the agent cannot find out by itself.
type Bootstrap struct {
	Endpoints    []string          `json:"endpoints"`
	Token        string            `json:"token"`
	Role         string            `json:"role"`
	Address      string            `json:"address"`
	NodeName     string            `json:"nodeName"`
	ProviderID   string            `json:"providerID"`
	InstanceType string            `json:"instanceType,omitempty"`
	Region       string            `json:"region,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	Capacity     map[string]string `json:"capacity,omitempty"`
}

// Fleet is all instances of a cluster. Its methods may be called concurrently.
type Fleet struct {
	cfg    Config
	engine *engine.Engine
	ledger *ledger.Ledger
	turn   chan struct{} // has room for the one creation or deletion that is carried out
	wake   chan struct{} // has room for one: list again
	listed chan struct{} // has room for one: the engine answered, so import the image

	last       netip.Addr // address given last; guarded by turn
	unprepared string     // why the image was not imported last; only prepare uses it

	mu      sync.Mutex
	same    bool          // the engine is the one of the identity file, and was not away since that was checked
	known   []Instance    // of the last list
	fault   error         // of the last list; not nil before the first
	changed chan struct{} // closed and replaced at each list that differs
}

// New returns the fleet of an engine.
func New(cfg Config, e *engine.Engine, l *ledger.Ledger) *Fleet {
	return &Fleet{
		cfg: cfg, engine: e, ledger: l, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		listed: make(chan struct{}, 1), changed: make(chan struct{}),
		fault: fmt.Errorf("%w: no answer yet", engine.ErrUnavailable),
	}
}

// Run removes the containers of used tokens and keeps Snapshot current, until ctx ends. The containers run on then.
func (f *Fleet) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for ctx.Err() == nil {
			if err := f.engine.Follow(ctx, f.look); err != nil && ctx.Err() == nil {
				f.cfg.Log.DebugContext(ctx, "events of the Docker engine ended", "error", err) // pass logs why
			}
			f.doubt()
			f.look()
			backoff.Sleep(ctx, retry)
		}
		return nil
	})
	g.Go(func() error {
		for {
			wait := period
			if f.pass(ctx) != nil {
				wait = retry
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-f.wake:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
			timer.Stop()
		}
	})
	g.Go(func() error {
		for {
			select {
			case <-f.listed:
				f.prepare(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// look has the containers be listed again.
func (f *Fleet) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pass lists the containers once, removes those of used tokens, and then has the image of instances be imported, so
// that none waits for that. An engine whose disk is full cannot import it, and has space again after removals. The
// import may take two minutes. Containers are listed at the same time, so an engine that stops answering is reported.
func (f *Fleet) pass(ctx context.Context) error {
	list, err := f.List(ctx)
	if f.note(list, err) && err != nil && ctx.Err() == nil {
		f.cfg.Log.WarnContext(ctx, "the Docker engine is not available", "error", err)
	}
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(removals)
	for _, i := range list {
		if i.State == deleting {
			g.Go(func() error { return f.engine.Remove(ctx, i.ID) })
		}
	}
	if err := g.Wait(); err != nil {
		f.cfg.Log.WarnContext(ctx, "container not removed", "error", err)
		return err
	}
	select {
	case f.listed <- struct{}{}:
	default:
	}
	return nil
}

// prepare imports the image of instances, if it does not exist. A creation that needs it returns the error again.
func (f *Fleet) prepare(ctx context.Context) {
	if f.cfg.Image.Name == "" {
		return
	}
	text := ""
	if err := f.engine.Import(ctx, f.cfg.Image); err != nil {
		text = err.Error()
	}
	if text != "" && text != f.unprepared && ctx.Err() == nil {
		f.cfg.Log.WarnContext(ctx, "image of instances not imported", "error", text)
	}
	f.unprepared = text
}

// note keeps what was listed, or why not, and reports whether that differs from before.
func (f *Fleet) note(list []Instance, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Equal(list, f.known) && fmt.Sprint(err) == fmt.Sprint(f.fault) {
		return false
	}
	f.known, f.fault = list, err
	close(f.changed)
	f.changed = make(chan struct{})
	return true
}

// Snapshot returns the instances of the last list, and a channel that is closed when they change. If the engine did not
// answer, the error says why.
func (f *Fleet) Snapshot() ([]Instance, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.changed, f.fault
}

// Fence returns the highest fence of all calls.
func (f *Fleet) Fence() int64 { return f.ledger.Fence() }

// doubt has the identity of the engine be checked again: another one may answer now.
func (f *Fleet) doubt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.same = false
}

// confirm returns an error unless the engine is the one that made the instances: they are not gone if another one, or
// one without its data, does not know them.
func (f *Fleet) confirm(ctx context.Context) error {
	f.mu.Lock()
	same := f.same
	f.mu.Unlock()
	if same {
		return nil
	}
	id, err := f.engine.Identity(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known, err := os.ReadFile(f.cfg.Identity)
	if errors.Is(err, fs.ErrNotExist) {
		known, err = []byte(id), durable.WriteFile(f.cfg.Identity, []byte(id), 0o600)
	}
	if err != nil {
		return err
	}
	if string(known) != id {
		return fmt.Errorf("%w: it is not the engine that made the instances: its id is %s, that of %s is %s; "+
			"give the earlier engine, or remove the file if all instances are gone", engine.ErrUnavailable, id, f.cfg.Identity,
			known)
	}
	f.same = true
	return nil
}

// List returns the instances by provider id.
func (f *Fleet) List(ctx context.Context) ([]Instance, error) {
	if err := f.confirm(ctx); err != nil {
		return nil, err
	}
	containers, err := f.engine.List(ctx)
	if err != nil {
		f.doubt()
		return nil, err
	}
	var out []Instance
	for _, c := range containers {
		i := Instance{Container: c, State: stateOf(c)}
		if c.Problem == "" && f.ledger.Used(c.Token) {
			i.State, i.Fence = deleting, f.ledger.Fence()
		}
		out = append(out, i)
	}
	return out, nil
}

// States of an instance.
const (
	creating = "Creating"
	running  = "Running"
	stopped  = "Stopped"
	deleting = "Deleting"
	failed   = "Failed" // its labels cannot be read
)

// stateOf returns the state of a container whose token is not used up. One that restarts is running: its agent ended,
// as it does for a reboot.
func stateOf(c engine.Container) string {
	switch {
	case c.Problem != "":
		return failed
	case c.State == container.StateCreated:
		return creating
	case c.State == container.StateRunning, c.State == container.StateRestarting:
		return running
	case c.State == container.StateRemoving:
		return deleting
	}
	return stopped
}

// Get returns an instance by provider id, by request token, or by both, which must match then.
func (f *Fleet) Get(ctx context.Context, id, token string) (Instance, error) {
	list, err := f.List(ctx)
	if err != nil {
		return Instance{}, err
	}
	i, err := find(list, id, token)
	if errors.Is(err, ErrOther) {
		return Instance{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return i, err
}

func find(list []Instance, id, token string) (Instance, error) {
	for _, i := range list {
		byID, byToken := id != "" && i.ProviderID == id, token != "" && i.Token == token
		switch {
		case byID && (byToken || token == ""), byToken && id == "":
			return i, nil
		case byID, byToken:
			return Instance{}, fmt.Errorf("%w: %s has request token %s", ErrOther, i.ProviderID, i.Token)
		}
	}
	return Instance{}, fmt.Errorf("%w: provider id %q, request token %q", ErrNotFound, id, token)
}

// begin waits for the turn of a call that changes something. The function that it returns ends the turn.
func (f *Fleet) begin(ctx context.Context) (func(), error) {
	select {
	case f.turn <- struct{}{}:
		return func() { <-f.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
}

// Create makes an instance, or returns the one that was made for the same request token. A container that an earlier
// call made and did not start is started with the bootstrap of this call.
func (f *Fleet) Create(ctx context.Context, r Request) (Instance, error) {
	end, err := f.begin(ctx)
	if err != nil {
		return Instance{}, err
	}
	defer end()
	if err := f.ledger.Admit(r.Fence); err != nil {
		return Instance{}, err
	}
	if f.ledger.Used(r.Token) {
		return Instance{}, fmt.Errorf("%w: %s", ErrUsed, r.Token)
	}
	list, err := f.List(ctx)
	if err != nil {
		return Instance{}, err
	}
	made, err := find(list, "", r.Token)
	if errors.Is(err, ErrNotFound) {
		made, err = f.make(ctx, r, list)
	}
	if err != nil || made.State != creating {
		return made, err
	}
	b := r.Bootstrap
	b.Address, b.NodeName, b.ProviderID = made.Address, r.Machine, made.ProviderID
	b.InstanceType, b.Region, b.Zone, b.Capacity = r.Spec.Type, r.Spec.Region, r.Spec.Zone, r.Spec.Capacity
	if err := f.engine.Start(ctx, made.ID, b); err != nil {
		return Instance{}, err
	}
	f.look()
	return made, nil
}

// make makes the container of a request, which is not started yet.
func (f *Fleet) make(ctx context.Context, r Request, list []Instance) (Instance, error) {
	if slices.ContainsFunc(list, func(i Instance) bool { return i.Machine == r.Machine }) {
		return Instance{}, fmt.Errorf("%w: %s", ErrTaken, r.Machine)
	}
	image := r.Spec.Image
	if image == "" {
		if image = f.cfg.Image.Name; image != "" {
			if err := f.engine.Import(ctx, f.cfg.Image); err != nil {
				return Instance{}, err
			}
		}
	}
	address, err := f.address(ctx, r.Spec.Network, list)
	if err != nil {
		return Instance{}, err
	}
	sum := sha256.Sum256([]byte(r.Token))
	unique := hex.EncodeToString(sum[:6]) // no later instance of a machine with the same name has it
	o := engine.Order{
		Container: engine.Container{
			ProviderID: fmt.Sprintf("docker://%s/%s/%s", f.cfg.Cluster, r.Machine, unique), Token: r.Token, Machine: r.Machine,
			UID: r.UID, Address: address.String(), Type: r.Spec.Type, Region: r.Spec.Region, Zone: r.Spec.Zone, Fence: r.Fence,
			Created: time.Now().UTC(), State: container.StateCreated,
		},
		Name: fmt.Sprintf("windlass-%s-%s-%s", f.cfg.Cluster, r.Machine, unique), Image: image, Images: f.cfg.Images,
		Network:  r.Spec.Network,
		NanoCPUs: r.Spec.limit("cpu", resource.Nano), Memory: r.Spec.limit("memory", 0),
	}
	if o.ID, err = f.engine.Create(ctx, o); err != nil {
		return Instance{}, err
	}
	return Instance{Container: o.Container, State: creating}, nil
}

// address returns the next free address of a network, in turn, so that one is not given again soon.
func (f *Fleet) address(ctx context.Context, network string, list []Instance) (netip.Addr, error) {
	prefix := f.cfg.Addresses
	taken := map[netip.Addr]bool{}
	if network != engine.HostNetwork {
		var others []netip.Addr
		var err error
		if prefix, others, err = f.engine.Network(ctx, network); err != nil {
			return netip.Addr{}, err
		}
		for _, a := range others {
			taken[a] = true
		}
	}
	newest := time.Time{}
	for _, i := range list {
		a, err := netip.ParseAddr(i.Address)
		if err != nil {
			continue
		}
		taken[a] = true
		if !f.last.IsValid() && i.Created.After(newest) {
			f.last, newest = a, i.Created
		}
	}
	a, ok := nextFree(prefix, f.last, taken)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%w in %s", ErrFull, prefix)
	}
	f.last = a
	return a, nil
}

// nextFree returns the first address of a network after last that is not taken, and begins again at its end. The first
// and the last address of the network are not given.
func nextFree(p netip.Prefix, last netip.Addr, taken map[netip.Addr]bool) (netip.Addr, bool) {
	first := p.Masked().Addr().Next()
	if !p.Contains(last) {
		last = first.Prev()
	}
	a := last
	for range 1 << (32 - p.Bits()) {
		if a = a.Next(); !p.Contains(a.Next()) {
			a = first
		}
		if !taken[a] {
			return a, p.Contains(a.Next())
		}
	}
	return netip.Addr{}, false
}

// Delete begins to delete an instance, and uses its request token up. It succeeds if the instance does not exist or is
// being deleted.
func (f *Fleet) Delete(ctx context.Context, id, token string, fence int64) error {
	end, err := f.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := f.ledger.Admit(fence); err != nil {
		return err
	}
	list, err := f.List(ctx)
	if err != nil {
		return err
	}
	i, err := find(list, id, token)
	switch {
	case errors.Is(err, ErrNotFound):
		return f.ledger.Use(token, time.Now())
	case err != nil:
		return err
	case i.Problem != "":
		return fmt.Errorf("%w: %s", engine.ErrUnavailable, i.Problem)
	}
	if err := f.ledger.Use(i.Token, time.Now()); err != nil {
		return err
	}
	f.look()
	return nil
}
