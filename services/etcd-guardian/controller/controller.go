// Package controller observes the etcd cluster and the control-plane machines, asks the plan, and acts: one change of
// the membership at a time. What it keeps in memory only affects how fast it acts: after a crash the next process
// decides from the members and machines alone.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/etcd-guardian/agents"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

const (
	gather      = 5 * time.Millisecond // several reasons to observe mostly come together
	probeLimit  = time.Second          // a member that takes longer is not healthy; about one election
	probeLimits = 3 * time.Second      // where etcd is slow: three times what the member needed last, up to this
	callLimit   = 4 * time.Second      // for a change of membership, which is three calls of an etcd that may be slow
	spaceLimit  = time.Minute          // to compact: 2 GiB take some seconds on a slow disk
	// to defragment, beside the loop: the same, and no member is worse off for more time
	defragLimit = 10 * time.Minute
	readLimit   = 3 * time.Second // for our own records; the ones known before do for a while
	hookLimit   = 3 * time.Second // for a change of a machine, which is several calls of an etcd that may be slow
	// between two looks of a guardian that does not lead, while another one does
	followerRest = 2 * time.Second
	recordsRest  = 5 * time.Second // between two reads of our own records while nothing happens
	// without an observation for so long, this process was paused: no member counts as silent
	ownPause   = 5 * time.Second
	retryFirst = 5 * time.Second // until a machine whose learner did not catch up is tried again; doubles
	retryMost  = 2 * time.Minute
)

// Eventer records events, as kit/events does.
type Eventer interface {
	Event(obj object.Object, typ, reason, message string)
}

// Config is what a Controller is made of. All fields but Nodes, Settings and Quota must be set.
type Config struct {
	Members      *members.Client
	Records      *store.Records
	Note         *store.NoteFile
	Bootstrap    *Bootstrap
	BootstrapURL string // for clients, of the bootstrap member
	// Recovered is when etcd was last recovered or restored; zero if it never was.
	Recovered time.Time
	// Led reports whether another process or this one leads the guardians, as far as is known without etcd.
	Led func() bool
	// Endpoints returns the addresses of members that our own client of etcd has, some of which may be gone.
	Endpoints  func() []string
	Machines   *informer.Informer[*machinev1.Machine]
	Sets       *informer.Informer[*machinev1.ControlPlaneMachineSet]
	Nodes      *informer.Informer[*nodev1.Node] // nil: not known, so that no voter counts as an orphan
	MachineAPI machinev1.MachineServiceClient
	// has our own client of etcd use these members, which were learned from their agents
	Reach    func(urls []string)
	Trust    func() (string, error) // hash of the authorities that members have to trust
	Events   Eventer
	Settings plan.Settings
	Quota    int64                // that members have to have, in bytes; 0 if any will do
	Now      func() time.Time     // the time of day, for people
	Elapsed  func() time.Duration // since this process started, by a monotonic clock; more than 0
	Log      *slog.Logger
}

// Observation is one reading of the cluster and what was decided from it. It is shared and never modified.
type Observation struct {
	View   plan.View
	Plan   plan.Plan
	Quorum *etcdv1.Quorum
	Permit *store.Permit
}

// Controller is the guardian's loop.
type Controller struct {
	Config
	Agents *agents.Registry

	loop    *controller.Loop // of the one key all
	clean   *controller.Loop // the same: removes what is left of the bootstrap member until that succeeds
	leading atomic.Pointer[leadership]
	memory  memory         // only the loop touches it
	beside  sync.WaitGroup // defragmentations under way
	woken   atomic.Bool    // whether there is a reason to observe other than that time went by

	mu      sync.Mutex
	said    map[string]string // what was logged last of each trouble
	last    *Observation
	changed chan struct{} // closed when last is replaced
	begun   int64         // number of looks begun
	done    int64         // number of the look that last is from
	ended   []ended       // defragmentations that the loop has not taken note of yet
}

type leadership struct{ ctx context.Context }

// New returns a controller without an observation.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, changed: make(chan struct{}), said: map[string]string{}}
	c.loop = controller.NewLoop("quorum", 1, c.look, cfg.Log)
	c.loop.Gather(gather)
	c.loop.Begin(func() []string { return []string{all} })
	c.clean = controller.NewLoop("bootstrap", 1, c.cleanBootstrap, cfg.Log)
	c.clean.Begin(func() []string { return []string{all} })
	c.memory = newMemory(cfg.Note.Get())
	c.Agents = agents.New(c.Wake)
	view := plan.View{Trouble: "no member was queried yet", BootstrapRetired: cfg.Note.Get().BootstrapRetired}
	view.Desired = plan.Desired(0, nil, nil)
	c.last = c.observation(view, nil, nil)
	return c
}

// all is the only key: every decision is about the whole quorum.
const all = "quorum"

// Wake has the controller observe again at once.
func (c *Controller) Wake() {
	c.woken.Store(true)
	c.loop.Add(all)
}

// Lead lets the controller act until ctx ends. It is what the elector calls.
func (c *Controller) Lead(ctx context.Context) error {
	l := &leadership{ctx}
	c.leading.Store(l)
	c.Wake()
	<-ctx.Done()
	c.leading.CompareAndSwap(l, nil)
	return nil
}

// Run looks and acts until ctx ends. While this process does not lead, it only looks.
func (c *Controller) Run(ctx context.Context) error {
	defer c.beside.Wait()
	c.Machines.Subscribe(func(resource.Change[*machinev1.Machine]) { c.Wake() })
	c.Sets.Subscribe(func(resource.Change[*machinev1.ControlPlaneMachineSet]) { c.Wake() })
	c.memory.bootstrap = c.Bootstrap.Start()
	c.say(ctx, "bootstrap", c.memory.bootstrap)
	c.beside.Go(func() { _ = c.clean.Run(ctx) }) // fails only if it runs already
	return c.loop.Run(ctx)
}

// cleanBootstrap ends a bootstrap member that has left and removes its data. It is repeated until that succeeds: the
// supervisor may not run yet, and what is left would let an empty member start if all records were lost.
func (c *Controller) cleanBootstrap(ctx context.Context, _ string) (time.Time, error) {
	return time.Time{}, c.Bootstrap.Clean(ctx)
}

// look observes, decides and acts once, and returns when to do so again.
func (c *Controller) look(ctx context.Context, _ string) (time.Time, error) {
	c.mu.Lock()
	c.begun++
	number := c.begun
	c.mu.Unlock()
	view, records := c.observe(ctx)
	if ctx.Err() != nil {
		return time.Time{}, nil
	}
	o := c.observation(view, records.Permit, c.memory.answers)
	c.publish(o, number)
	c.direct(view)
	if c.act(ctx, o) {
		c.memory.acted = c.Elapsed()
		c.direct(c.memory.freshen(view, c.Elapsed())) // a learner that was just added is started at once
		return time.Now(), nil
	}
	wake := o.Plan.Wake
	if c.leading.Load() == nil && view.Fresh && c.Led() {
		wake = max(wake, followerRest)
	}
	return time.Now().Add(wake), nil
}

// publish makes an observation the one that everybody sees.
func (c *Controller) publish(o *Observation, number int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.done = o, number
	close(c.changed)
	c.changed = make(chan struct{})
}

// Last returns the newest observation and a channel that is closed when there is a newer one.
func (c *Controller) Last() (*Observation, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.changed
}

// Refresh returns an observation that was begun after the call.
func (c *Controller) Refresh(ctx context.Context) (*Observation, error) {
	c.mu.Lock()
	after := c.begun
	c.mu.Unlock()
	for {
		c.Wake()
		c.mu.Lock()
		o, done, changed := c.last, c.done, c.changed
		c.mu.Unlock()
		if done > after {
			return o, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// say logs an error once, until its text changes; nil forgets it.
func (c *Controller) say(ctx context.Context, what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.said, what)
		return
	}
	if c.said[what] == err.Error() || errors.Is(err, context.Canceled) {
		return
	}
	c.said[what] = err.Error()
	c.Log.WarnContext(ctx, what, "error", err)
}
