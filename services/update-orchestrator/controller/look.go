package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// look moves the cluster closer to its desired release, and returns when to run again.
func (c *Controller) look(ctx context.Context, _ string) (time.Time, error) {
	if p := c.term.pass.Load(); p != nil && p.over.Load() {
		if err := c.finish(ctx, p); err != nil {
			return time.Time{}, err
		}
	}
	cv, ok := c.Tables.Cluster()
	if !ok {
		return time.Time{}, errors.New("there is no ClusterVersion")
	}
	again, err := c.start(ctx, cv)
	if err != nil {
		return time.Time{}, err
	}
	if cv, ok = c.Tables.Cluster(); ok {
		wake, err := c.follow(ctx, cv)
		if err != nil {
			return time.Time{}, err
		}
		again = controller.Earliest(again, wake)
	}
	if c.term.release == nil {
		if cv, ok = c.Tables.Cluster(); ok {
			err = c.keepInStep(ctx, cv)
		}
		return again, err
	}
	next, err := c.pass(ctx)
	return controller.Earliest(again, next), err
}

// start finds out, in the first look of a term, at which release the cluster is. It returns when to look again if that
// cannot be read.
func (c *Controller) start(ctx context.Context, cv *updatev1.ClusterVersion) (time.Time, error) {
	st := cv.GetStatus()
	switch image := st.GetDesired().GetImage(); {
	case c.term.release != nil:
		return time.Time{}, nil
	case image != "":
		return c.resume(ctx, st)
	case c.Initial != "":
		return c.install(ctx)
	case st.GetDesired().GetVersion() == c.Program:
		return time.Time{}, nil
	}
	return time.Time{}, c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		st := cv.GetStatus()
		st.Desired = &updatev1.ReleaseReference{Version: proto.String(c.Program)}
		c.say(st, plan.Run{Version: c.Program, Mode: plan.Reconciling, Completed: true}, now)
	})
}

// resume reads the release that the cluster is kept at. It was accepted once, so it is not verified again.
func (c *Controller) resume(ctx context.Context, st *updatev1.ClusterVersionStatus) (time.Time, error) {
	image := st.GetDesired().GetImage()
	l, err := c.open(ctx, image)
	if err != nil {
		return c.unreadable(ctx, plan.Run{
			Version: st.GetDesired().GetVersion(), Mode: c.mode(st, image),
			Done: int(st.GetProgress().GetDone()), Total: int(st.GetProgress().GetTotal()),
		}, fmt.Errorf("release image %s: %w", image, err))
	}
	l.image = image
	c.term.sightings.Resume(st.GetProgress().GetWaits())
	enabled := l.knows() // an earlier version of this program applied all of it
	if st.GetCapabilities() != nil {
		enabled = st.GetCapabilities().GetEnabledCapabilities()
	}
	c.begin(l.with(enabled))
	if err := c.noteKept(ctx, l); err != nil {
		return time.Time{}, err
	}
	if err := c.retain(ctx, plan.Kept(image, st.GetHistory())); err != nil {
		c.Log.WarnContext(ctx, "kept releases not looked through", "error", err)
	}
	return time.Time{}, nil
}

// install begins with the image that the cluster was started with. It is as trusted as this program, so its signature
// is not verified.
func (c *Controller) install(ctx context.Context) (time.Time, error) {
	l, err := c.open(ctx, c.Initial)
	if err != nil {
		return c.unreadable(ctx, plan.Run{Version: c.Initial, Mode: plan.Initializing},
			fmt.Errorf("initial release %s: %w", c.Initial, err))
	}
	return time.Time{}, c.accept(ctx, l, nil, "")
}

// unreadable says that the release of the cluster cannot be read, and returns when to try again.
func (c *Controller) unreadable(ctx context.Context, r plan.Run, err error) (time.Time, error) {
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	if c.term.unread != err.Error() {
		c.term.unread = err.Error()
		c.Log.WarnContext(ctx, "release not read", "update", r.Version, "error", err)
	}
	r.Failures = []plan.Failure{{Reason: retrievePayload, Name: r.Version, Message: err.Error()}}
	return time.Now().Add(firstRetry), c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		c.say(cv.GetStatus(), r, now)
	})
}

func (c *Controller) open(ctx context.Context, ref string) (*loaded, error) {
	ctx, cancel := context.WithTimeout(ctx, retrieveLimit)
	defer cancel()
	image, err := c.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	l, err := c.load(image)
	if err != nil {
		return nil, err
	}
	if err := c.preserve(ctx, l, image); err != nil {
		c.Log.WarnContext(ctx, "release not kept", "update", l.version(), "error", err)
		l.unkept = err.Error() // it is no reason to leave the cluster alone
	}
	return l, nil
}

// mode returns what an application of a release is for. A cluster that was not started with an image is there already,
// so its first update is one like any other.
func (c *Controller) mode(st *updatev1.ClusterVersionStatus, image string) plan.Mode {
	m := plan.ModeOf(st, image)
	if m == plan.Initializing && (c.Initial == "" || len(st.GetHistory()) > 1) {
		return plan.Updating
	}
	return m
}

// pass begins a pass over the manifests if one is due, and returns when the next one is.
func (c *Controller) pass(ctx context.Context) (time.Time, error) {
	cv, ok := c.Tables.Cluster()
	if !ok {
		return time.Time{}, nil
	}
	if enabled, err := c.enable(ctx, cv); err != nil || !enabled {
		return time.Time{}, err // the status that is written leads to the next look
	}
	t := &c.term
	if p := t.pass.Load(); p != nil {
		if p.follows(cv.GetSpec().GetOverrides()) {
			return time.Time{}, c.keepInStep(ctx, cv) // its end leads to the next look
		}
		c.stopPass()
		t.failures = p.plan.Failed()
		t.rhythm.Again()
	}
	if !sameOverrides(t.overrides, cv.GetSpec().GetOverrides()) {
		t.rhythm.Again()
	}
	now := time.Now()
	if held := c.held(cv, now); held != t.held { // what is said of a pass that rests must be said again
		t.held = held
		t.rhythm.Again()
	}
	due := t.rhythm.Due(now, func() []string { return c.drifted(cv) })
	if !due.All {
		c.shown.rest(t.rhythm.Next())
	}
	if !due.All && len(due.Only) == 0 {
		return controller.Earliest(due.Wake, plan.PauseEnds(plan.Paused(cv, now))), c.judge(ctx, cv)
	}
	// Not from the cache, which may not show yet what the last pass noted.
	r, err := c.Tables.Releases.Get(ctx, "", t.release.name())
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND && err != nil {
		return time.Time{}, err
	}
	if t.drift.watch(ctx, c); due.All {
		t.overrides = cv.GetSpec().GetOverrides()
	}
	next := c.newPass(ctx, cv, r.GetStatus().GetJobs(), due)
	if due.All {
		c.shown.begin(next)
	}
	t.pass.Store(next)
	c.passes.Add(key)
	return time.Time{}, nil
}

// drifted returns the IDs of the manifests whose objects are no longer as the release has them. What is not applied yet
// has not drifted.
func (c *Controller) drifted(cv *updatev1.ClusterVersion) []string {
	if c.mode(cv.GetStatus(), c.term.release.image) != plan.Reconciling {
		return nil
	}
	var out []string
	for _, tasks := range c.term.release.tasks {
		for _, t := range tasks {
			if (c.term.drift.has(id(t)) || !c.Applier.Kept(t)) && !unmanaged(cv.GetSpec().GetOverrides(), t) {
				out = append(out, id(t))
			}
		}
	}
	return out
}

// held says what holds back the update that is not completed; empty if nothing does.
func (c *Controller) held(cv *updatev1.ClusterVersion, now time.Time) string {
	p := plan.Paused(cv, now)
	if p == nil || c.mode(cv.GetStatus(), c.term.release.image) != plan.Updating {
		return ""
	}
	return plan.PauseText(p)
}

// stopPass ends the pass that is under way.
func (c *Controller) stopPass() {
	if p := c.term.pass.Swap(nil); p != nil {
		if !p.partial {
			c.shown.begin(nil)
		}
		p.stop()
	}
}

// finish takes in how a pass ended.
func (c *Controller) finish(ctx context.Context, p *pass) error {
	run := p.plan.Run()
	run.Completed = p.plan.Completed()
	if p.partial {
		c.finishPart(ctx, p)
		return nil
	}
	if run.Completed && p.mode == plan.Updating {
		if err := c.removed(ctx, p); err != nil {
			return err
		}
	}
	err := c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		st := cv.GetStatus()
		if run.Completed {
			st.Progress = nil
			st.History = plan.Record(st.GetHistory(), completed(st, p.release), now)
		} else if p.mode != plan.Reconciling {
			st.Progress = p.plan.Progress()
		}
		c.say(st, run, now)
	})
	if err != nil {
		return err
	}
	c.term.pass.Store(nil)
	c.term.failures = p.plan.Failed()
	c.term.rhythm.Ended(time.Now(), run.Completed, c.Reconcile)
	if !run.Completed {
		c.Log.WarnContext(ctx, "release not applied", "update", p.release.version(), "error", run.Failures[0].Message,
			"failures", len(run.Failures))
		return nil
	}
	if p.mode != plan.Reconciling {
		c.Log.InfoContext(ctx, "release applied", "update", p.release.version(), "elapsed_ms",
			time.Since(p.begun).Milliseconds())
		if cv, ok := c.Tables.Cluster(); ok {
			c.Events.Event(cv, "Normal", "UpdateCompleted", fmt.Sprintf("Done applying %s", p.release.version()))
		}
	}
	return nil
}

// finishPart takes in how a pass over what had drifted ended: the looks that follow say how the release is.
func (c *Controller) finishPart(ctx context.Context, p *pass) {
	c.term.pass.Store(nil)
	c.term.failures = p.plan.Failed()
	for id := range p.tasks {
		if f, failed := c.term.failures[id]; failed {
			c.Log.WarnContext(ctx, "manifest not put back", "update", p.release.version(), "error", f.Message)
		}
	}
}

// completed is what the history says of a release once all of it is applied; what its beginning said of its signature
// stays.
func completed(st *updatev1.ClusterVersionStatus, l *loaded) plan.Reached {
	r := plan.Reached{Version: l.version(), Image: l.image, Completed: true, Verified: l.verified, AcceptedRisks: l.waived}
	if h := st.GetHistory(); len(h) > 0 && plan.SameImage(h[0].GetImage(), l.image) {
		r.Verified, r.AcceptedRisks = h[0].GetVerified(), h[0].GetAcceptedRisks()
	}
	return r
}

// judge says how the operators of a release that is applied are, between two passes.
func (c *Controller) judge(ctx context.Context, cv *updatev1.ClusterVersion) error {
	st := cv.GetStatus()
	if c.mode(st, c.term.release.image) != plan.Reconciling {
		return c.keepInStep(ctx, cv)
	}
	run := plan.Run{
		Version: c.term.release.version(), Mode: plan.Reconciling, Done: c.term.release.total, Total: c.term.release.total,
		Completed: len(c.term.failures) == 0, Failures: plan.Failures(c.term.failures),
	}
	for _, name := range c.term.release.payload.FileNames() {
		for _, t := range c.term.release.tasks[name] {
			m := manifest(t, cv.GetSpec().GetOverrides())
			if m.Operator == "" || m.Unmanaged {
				continue
			}
			g := c.term.sightings.Gate(m, c.operator(m.Operator), plan.Reconciling, time.Now())
			if g.Effect != plan.Ready {
				run.Gates = append(run.Gates, g)
			}
		}
	}
	return c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) { c.say(cv.GetStatus(), run, now) })
}

// say puts the conditions of an application into a status.
func (c *Controller) say(st *updatev1.ClusterVersionStatus, r plan.Run, now time.Time) {
	r.Invalid = plan.Find(st.GetConditions(), plan.Invalid).GetStatus() == plan.True
	for _, condition := range plan.Conditions(r, st.GetConditions(), now) {
		set(st, condition.GetType(), condition, now)
	}
}
