package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const (
	// Chains of a step that are worked on at once; the initial release has no such limit.
	updatingChains    = 16
	reconcilingChains = 2

	// What a service refuses for the moment is tried again within a pass, as long as a service may take to start.
	firstTry = 100 * time.Millisecond
	mostTry  = 5 * time.Second
	tryLimit = time.Minute

	// How long the other chains of a step still wait after one failed: what is about to be ready may become so.
	waitAfterFailure = 5 * time.Second

	// Between two reports of progress. A change of what is waited for is reported at once.
	reportEvery = time.Second
	// Progress is reported this often even if nothing happens: that something takes too long must be said too.
	reportIdle = 30 * time.Second
)

// errNotAwaited ends a wait because another manifest of the step failed.
var errNotAwaited = errors.New("another manifest failed")

// applyFailed is the reason of a manifest that could not be applied.
const applyFailed = "UpdatePayloadFailed"

// pass is one application of all manifests of a release.
type pass struct {
	c         *Controller
	release   *loaded
	mode      plan.Mode
	overrides []*updatev1.ComponentOverride
	track     *tracker
	begun     time.Time
	cancel    context.CancelFunc
	ended     chan struct{}
	whole     bool // everything was applied; read it after the end
}

// newPass returns a pass that begins with run; cancel ends it.
func (c *Controller) newPass(cv *updatev1.ClusterVersion, cancel context.CancelFunc) *pass {
	l := c.term.release
	p := &pass{
		c: c, release: l, mode: c.mode(cv.GetStatus(), l.image), overrides: cv.GetSpec().GetOverrides(),
		begun: time.Now(), cancel: cancel, ended: make(chan struct{}),
	}
	before := min(int(cv.GetStatus().GetProgress().GetDone()), l.total)
	p.track = newTracker(plan.Run{Version: l.version(), Mode: p.mode, Done: before, Total: l.total}, c.term.failures)
	return p
}

// follows reports whether the pass leaves alone what a cluster wants to be left alone.
func (p *pass) follows(overrides []*updatev1.ComponentOverride) bool {
	return proto.Equal(&updatev1.ClusterVersionSpec{Overrides: p.overrides}, &updatev1.ClusterVersionSpec{
		Overrides: overrides,
	})
}

func (p *pass) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop ends the pass before its next step, and returns when it has ended.
func (p *pass) stop() {
	p.cancel()
	<-p.ended
}

// run applies everything in order and says how it goes, until that is done or ctx ends.
func (p *pass) run(ctx context.Context) {
	defer close(p.ended)
	telling, told := context.WithCancel(ctx)
	var reports sync.WaitGroup
	if p.mode != plan.Reconciling {
		reports.Go(func() { p.report(telling) })
	}
	p.whole = p.apply(ctx)
	told()
	reports.Wait()
	p.cancel()
}

// apply reports whether it came to the end. What went wrong is with the tracker.
func (p *pass) apply(ctx context.Context) bool {
	steps, _ := plan.TaskGraph(p.release.payload.FileNames(), p.mode)
	for _, s := range steps {
		if !p.step(ctx, s) {
			return false
		}
	}
	return true
}

// step applies the chains of a step at once, and reports whether all of them came to their end. When one fails the
// others go on, but wait for nothing any more: what they wait for may need the manifest that failed, and the next pass
// is the one that tries it again.
func (p *pass) step(ctx context.Context, s plan.Step) bool {
	waits, end := context.WithCancelCause(ctx)
	defer end(nil)
	var group errgroup.Group
	group.SetLimit(p.chains())
	for _, chain := range s.Chains {
		group.Go(func() error {
			err := p.chain(ctx, waits, chain)
			if err != nil {
				time.AfterFunc(waitAfterFailure, func() { end(errNotAwaited) })
			}
			return err
		})
	}
	return group.Wait() == nil && ctx.Err() == nil
}

func (p *pass) chains() int {
	switch p.mode {
	case plan.Updating:
		return updatingChains
	case plan.Reconciling:
		return reconcilingChains
	}
	return -1
}

// chain applies the manifests of a chain one after the other, and waits for what they start as long as waits lasts. The
// first that fails ends it; other chains go on.
func (p *pass) chain(ctx, waits context.Context, chain plan.Chain) error {
	for _, file := range chain.Manifests {
		for _, t := range p.release.tasks[file] {
			if t.Operator() && !t.Delete() && !unmanaged(p.overrides, t) {
				if _, err := p.try(ctx, t); err != nil { // so that people see what will be waited for
					return p.failed(ctx, t, err)
				}
			}
		}
	}
	for _, file := range chain.Manifests {
		for _, t := range p.release.tasks[file] {
			p.track.begin(t)
			if err := p.do(ctx, waits, t); err != nil {
				return p.failed(ctx, t, err)
			}
			p.track.end(t)
		}
	}
	return nil
}

// failed notes that a manifest could not be applied, unless the pass was stopped or another one failed.
func (p *pass) failed(ctx context.Context, t apply.Task, err error) error {
	if ctx.Err() == nil && !errors.Is(err, errNotAwaited) {
		p.track.fail(t, plan.Failure{
			Reason: applyFailed, Name: t.Name,
			Message: fmt.Sprintf("Could not update %s (%s): %s", title(t), t.File, status.Convert(err).Message()),
		})
	}
	return err
}

func title(t apply.Task) string {
	ref := t.Object()
	if ref.GetNamespace() == "" {
		return fmt.Sprintf("%s %q", t.Kind, ref.GetName())
	}
	return fmt.Sprintf("%s \"%s/%s\"", t.Kind, ref.GetNamespace(), ref.GetName())
}

// unmanaged reports whether the cluster wants an object to be left alone.
func unmanaged(overrides []*updatev1.ComponentOverride, t apply.Task) bool {
	for _, o := range overrides {
		if o.GetUnmanaged() && o.GetKind() == t.Kind && o.GetGroup() == t.Group() && o.GetNamespace() == t.Namespace &&
			o.GetName() == t.Name {
			return true
		}
	}
	return false
}

// do applies one manifest and waits for what it starts.
func (p *pass) do(ctx, waits context.Context, t apply.Task) error {
	if unmanaged(p.overrides, t) {
		return nil
	}
	object, err := p.try(ctx, t)
	switch {
	case err != nil:
		return err
	case t.Operator() && !t.Delete():
		return p.await(waits, t)
	case p.mode != plan.Reconciling && apply.Waits(object):
		return p.rollOut(waits, t)
	}
	return nil
}

// try applies a manifest, again and again while its owner only says that it cannot now.
func (p *pass) try(ctx context.Context, t apply.Task) (object.Object, error) {
	var last error
	begun := time.Now()
	for again := backoff.New(firstTry, mostTry); ; {
		object, err := p.c.Applier.Apply(ctx, t, p.release.version(), p.mode == plan.Updating)
		if err == nil && last != nil {
			p.track.gate(t, plan.Gate{})
			p.c.term.seen.forget(t) // the next time is another wait
		}
		if err == nil || !passing(err) || time.Since(begun) > tryLimit {
			return object, err
		}
		if last == nil {
			p.c.Log.InfoContext(ctx, "manifest refused for the moment", "manifest", t.File, "error", err)
		}
		last = err
		p.track.gate(t, p.held(t, "must be taken up by its service", err))
		if !again.Wait(ctx) {
			return nil, ctx.Err()
		}
	}
}

// passing reports whether an error may go away by itself.
func passing(err error) bool {
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrConflict) ||
		rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_CONFLICT {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return true
	}
	return false
}

func (p *pass) wait(t apply.Task, fact, observed string) *updatev1.UpdateWait {
	return &updatev1.UpdateWait{
		Object: t.Object(), Manifest: t.File, Fact: fact, Observed: observed,
		Since: timestamppb.New(p.c.term.seen.of(t, now())),
	}
}

// held is the gate of a manifest whose owner does not do what it is asked for.
func (p *pass) held(t apply.Task, fact string, err error) plan.Gate {
	return plan.Gate{
		Effect: plan.Wait, Operator: title(t), Reason: applyFailed, Message: err.Error(),
		Wait: p.wait(t, fmt.Sprintf("%s %s.", title(t), fact), status.Convert(err).Message()),
	}
}

// gate returns what the operator of a manifest owes.
func gate(tables *kinds.Tables, seen *sightings, t apply.Task, mode plan.Mode) plan.Gate {
	live, _ := tables.Operators.Lookup("", t.Name)
	g := plan.OperatorGate(plan.GateView{
		Operator: t.Name, File: t.File, Declared: t.Operands, Live: live, Mode: mode,
		Since: seen.of(t, now()),
	})
	if g.Effect == plan.Ready {
		seen.forget(t)
	}
	return g
}

// await returns when an operator owes nothing any more. While reconciling it only looks: the rest is applied all the
// same.
func (p *pass) await(ctx context.Context, t apply.Task) error {
	for {
		moved := p.c.moved.next()
		g := gate(p.c.Tables, p.c.term.seen, t, p.mode)
		p.track.gate(t, g)
		if !g.Blocks() || p.mode == plan.Reconciling {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// rollOut returns when a workload that was applied is as its manifest wants it. One that was deleted is an error: the
// next pass creates it again.
func (p *pass) rollOut(ctx context.Context, t apply.Task) error {
	for {
		err := p.c.Applier.Follow(ctx, t, func(s apply.State) { p.track.gate(t, p.rolling(t, s)) })
		if err == nil {
			p.c.term.seen.forget(t)
			return nil
		}
		if errors.Is(err, apply.ErrGone) {
			return err
		}
		if ctx.Err() == nil {
			p.c.Log.DebugContext(ctx, "watch of a workload broke off", "manifest", t.File, "error", err)
			p.track.gate(t, p.held(t, "must be shown by its service", err))
		}
		if !backoff.Sleep(ctx, time.Second) {
			return context.Cause(ctx)
		}
	}
}

func (p *pass) rolling(t apply.Task, s apply.State) plan.Gate {
	if s.Ready {
		return plan.Gate{}
	}
	g := plan.Gate{
		Effect: plan.Wait, Operator: title(t), Reason: s.Reason, Message: fmt.Sprintf("%s: %s", title(t), s.Observed),
		Wait: p.wait(t, fmt.Sprintf("%s: %s.", title(t), s.Fact), s.Observed),
	}
	if s.Failed {
		g.Effect = plan.Fail
	}
	return g
}

// report updates the status with the progress of the pass until ctx ends.
func (p *pass) report(ctx context.Context) {
	idle := time.NewTicker(reportIdle)
	defer idle.Stop()
	for {
		select {
		case <-p.track.changed:
		case <-idle.C:
		case <-ctx.Done():
			return
		}
		err := p.c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
			st := cv.GetStatus()
			st.Progress = p.track.progress()
			p.c.say(st, p.track.run(), now)
		})
		if err != nil && ctx.Err() == nil {
			p.c.Log.DebugContext(ctx, "progress not reported", "error", err)
		}
		timer := time.NewTimer(reportEvery)
		select {
		case <-timer.C:
		case <-p.track.urgent:
			p.track.mark(p.track.changed)
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
