package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// pass carries out one plan.Pass. Its loop asks the plan what to do; the calls run beside the loop, so that one that
// takes long holds up no other.
type pass struct {
	c         *Controller
	release   *loaded
	mode      plan.Mode
	overrides []*updatev1.ComponentOverride
	tasks     map[string]apply.Task // by the ID of their manifest
	partial   bool                  // it is over some manifests of a release that is applied
	drift     *drift
	begun     time.Time
	ctx       context.Context // of its calls
	cancel    context.CancelFunc
	calls     sync.WaitGroup
	over      atomic.Bool // the plan has ended, and no call runs any more

	mu      sync.Mutex
	plan    *plan.Pass // the calls report to it, the loop asks it
	stopped bool       // no call begins any more
	stays   []*updatev1.ReleaseLeftover
}

// newPass returns a pass that begins when its loop is triggered. jobs are those of the release, with what is known of
// their runs; due is over which manifests the pass is.
func (c *Controller) newPass(ctx context.Context, cv *updatev1.ClusterVersion, jobs []*updatev1.ReleaseJob,
	due plan.Turn,
) *pass {
	l := c.term.release
	p := &pass{
		c: c, release: l, mode: c.mode(cv.GetStatus(), l.image), overrides: cv.GetSpec().GetOverrides(),
		tasks: map[string]apply.Task{}, partial: !due.All, drift: c.term.drift, begun: time.Now(),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	v := plan.PassView{
		Version: l.version(), Mode: p.mode, Aborts: p.mode == plan.Updating && plan.Underway(cv),
		Files: l.payload.FileNames(), Manifests: map[string][]*plan.Manifest{},
		Drifted: p.partial, Before: int(cv.GetStatus().GetProgress().GetDone()), Failures: c.term.failures,
		Sightings: c.term.sightings,
	}
	for file, tasks := range l.tasks {
		for _, t := range tasks {
			m := manifest(t, p.overrides)
			if p.partial && !slices.Contains(due.Only, m.ID) {
				continue
			}
			m.Ran = plan.Ran(jobs, m.Object)
			p.tasks[m.ID] = t
			v.Manifests[file] = append(v.Manifests[file], m)
		}
	}
	if p.mode == plan.Updating {
		for _, o := range plan.Leftovers(l.place(c.inventory(cv.GetStatus().GetDesired().GetImage())), l.wants()) {
			v.Leftovers = append(v.Leftovers, &plan.Manifest{ID: "leftover " + plan.Identity(o), Object: o, Leftover: true})
		}
		if c.Members != nil {
			v.Members = plan.MembersManifest()
		}
		t := l.nodeTask()
		t.File, t.Document = "", 0
		v.Nodes = manifest(t, p.overrides)
		p.tasks[v.Nodes.ID] = t
	}
	p.plan = plan.NewPass(v)
	return p
}

// manifest is what plans know of a task.
func manifest(t apply.Task, overrides []*updatev1.ComponentOverride) *plan.Manifest {
	m := &plan.Manifest{
		ID: id(t), File: t.File, Object: t.Object(), Operands: t.Operands,
		Unmanaged: unmanaged(overrides, t), Job: t.Job(),
	}
	switch p := t.Program(); {
	case t.Delete():
	case t.Operator():
		m.Operator = t.Name
	case p != nil:
		m.Program, m.Operator = true, topology.Operator(t.Name)
		m.Operands = apply.ProgramVersions(p)
	}
	return m
}

// id identifies a task in its release.
func id(t apply.Task) string { return fmt.Sprintf("%s#%06d", t.File, t.Document) }

// unmanaged reports whether the cluster wants the object of a task to be left alone.
func unmanaged(overrides []*updatev1.ComponentOverride, t apply.Task) bool {
	return plan.Unmanaged(overrides, t.Group(), t.Kind, t.Namespace, t.Name)
}

// follows reports whether the pass leaves alone what a cluster wants to be left alone.
func (p *pass) follows(overrides []*updatev1.ComponentOverride) bool {
	return sameOverrides(p.overrides, overrides)
}

func sameOverrides(a, b []*updatev1.ComponentOverride) bool {
	return proto.Equal(&updatev1.ClusterVersionSpec{Overrides: a}, &updatev1.ClusterVersionSpec{Overrides: b})
}

// stop ends the pass, and returns when none of its calls runs any more.
func (p *pass) stop() {
	p.cancel()
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.calls.Wait()
}

// advance has the present pass do what is next, and returns when to ask again. The end of the pass leads to the next
// look.
func (c *Controller) advance(context.Context, string) (time.Time, error) {
	p := c.term.pass.Load()
	if p == nil || p.over.Load() {
		return time.Time{}, nil
	}
	next := p.next()
	if next.Over {
		p.stop()
		p.over.Store(true)
		c.work.Add(key)
	}
	return next.Wake, nil
}

// next begins the calls that are due.
func (p *pass) next() plan.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return plan.Plan{}
	}
	now := time.Now()
	cv, _ := p.c.Tables.Cluster()
	next := p.plan.Next(now, p.c.operator, plan.Paused(cv, now))
	for _, a := range next.Do {
		p.calls.Go(func() { p.do(a) })
	}
	return next
}

// operator returns a cluster operator, or nil.
func (c *Controller) operator(name string) *updatev1.ClusterOperator {
	o, _ := c.Tables.Operators.Lookup("", name)
	return o
}

// note has the plan take in what came of a call, unless the pass was stopped, and asks it again.
func (p *pass) note(f func(now time.Time)) {
	p.mu.Lock()
	if p.ctx.Err() == nil {
		f(time.Now())
	}
	p.mu.Unlock()
	p.c.passes.Add(key)
}

func (p *pass) do(a plan.Action) {
	switch a.Verb {
	case plan.Apply:
		o := p.apply(a.Manifest)
		p.note(func(now time.Time) { p.plan.Applied(a.Manifest.ID, o, now) })
	case plan.Remove:
		o := p.remove(a.Manifest)
		p.note(func(now time.Time) { p.plan.Applied(a.Manifest.ID, o, now) })
	case plan.Follow:
		err := p.follow(a.Manifest, func(r plan.Rollout) {
			p.note(func(now time.Time) { p.plan.Rolled(a.Manifest.ID, r, now) })
		})
		if err != nil {
			problem, gone := status.Convert(err).Message(), errors.Is(err, apply.ErrGone)
			p.note(func(now time.Time) { p.plan.Broke(a.Manifest.ID, problem, gone, now) })
		}
	case plan.Publish:
		err := p.c.write(p.ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
			cv.GetStatus().Progress = a.Progress
			p.c.say(cv.GetStatus(), a.Run, now)
		})
		if err != nil && p.ctx.Err() == nil {
			p.c.Log.DebugContext(p.ctx, "progress not reported", "error", err)
		}
		p.note(func(now time.Time) { p.plan.Published(err == nil, now) })
	}
}

func (p *pass) apply(m *plan.Manifest) plan.Outcome {
	p.drift.applying(m.ID, p.tasks[m.ID], p.c.Applier)
	applied, err := p.c.Applier.Apply(p.ctx, p.tasks[m.ID], apply.Release{
		Version: p.release.version(), Digest: p.release.payload.Digest, Deletions: p.mode == plan.Updating,
	})
	if err != nil {
		p.c.Log.DebugContext(p.ctx, "manifest not applied", "manifest", m.File, "error", err)
		return plan.Outcome{Problem: status.Convert(err).Message(), Passing: passing(err)}
	}
	p.noteApplied(m, applied.Object)
	nodes := m.Nodes() && p.mode == plan.Updating
	return plan.Outcome{RollsOut: nodes || plan.RollsOut(applied.Object, p.c.Supervised), Leaving: applied.Leaving}
}

// noteApplied takes in how the application of a manifest left its object.
func (p *pass) noteApplied(m *plan.Manifest, o object.Object) {
	t := p.tasks[m.ID]
	if m.Leftover || t.File == "" || t.Job() || t.Delete() {
		return
	}
	back := p.drift.applied(m.ID, t, o)
	if len(back) == 0 || p.mode != plan.Reconciling {
		return
	}
	message := fmt.Sprintf("%s was changed by others, and is as release %s has it again: %s", m.Title(),
		p.release.version(), strings.Join(back, ", "))
	p.c.Log.WarnContext(p.ctx, "drift put back", "update", p.release.version(), "manifest", m.File, "object", m.Title(),
		"fields", back)
	if cv, ok := p.c.Tables.Cluster(); ok {
		p.c.Events.Event(cv, "Warning", "DriftPutBack", message)
	}
}

// follow watches what a manifest started until it is ready.
func (p *pass) follow(m *plan.Manifest, see func(plan.Rollout)) error {
	if m.Members {
		return p.c.Members.Follow(p.ctx, p.release.bringsHost(), see)
	}
	if !m.Nodes() {
		return p.c.Applier.Follow(p.ctx, p.tasks[m.ID], func(o object.Object, r plan.Rollout) error {
			if m.Job && r.Ready {
				if err := p.ran(m, o.GetMetadata().GetUid()); err != nil {
					return err
				}
			}
			see(r)
			return nil
		})
	}
	return p.c.Applier.FollowNodes(p.ctx, p.release.nodeVersion(), see)
}

// ran notes that the Job of a manifest ran to completion: it is not run again.
func (p *pass) ran(m *plan.Manifest, uid string) error {
	_, err := p.c.Tables.Releases.Modify(p.ctx, object.Key{Name: p.release.name()}, func(r *updatev1.Release) error {
		r.Status.Jobs = plan.NoteJob(r.GetStatus().GetJobs(), &updatev1.ReleaseJob{
			Object: m.Object, Manifest: m.File, Hash: p.tasks[m.ID].Hash(), Uid: uid, CompletionTime: timestamppb.New(now()),
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("it is complete, which is not noted yet: %w", err)
	}
	return nil
}

// remove removes an object that the release lacks.
func (p *pass) remove(m *plan.Manifest) plan.Outcome {
	r, err := p.c.Applier.Remove(p.ctx, m.Object, p.overrides)
	if err != nil {
		return plan.Outcome{Problem: status.Convert(err).Message(), Passing: passing(err)}
	}
	if r.Stays != "" {
		p.mu.Lock()
		p.stays = append(p.stays, &updatev1.ReleaseLeftover{Object: m.Object, Reason: r.Stays})
		p.mu.Unlock()
	}
	return plan.Outcome{Leaving: r.Leaving}
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
