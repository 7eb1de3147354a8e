package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// Chains of a step that are worked on at once; the initial release has no such limit.
	updatingChains    = 16
	reconcilingChains = 2

	// What a service refuses for the moment is tried again within a pass, as long as a service may take to start.
	firstTry     = 100 * time.Millisecond
	mostTry      = 5 * time.Second
	tryLimit     = time.Minute
	tryLimitKept = 3 * time.Second // of a release that is kept, until the first failure

	// waitAfterFailure is how long the other chains of a step still wait after one failed: what is about to be ready may
	// become so. Then they wait for nothing any more, since what they wait for may need the manifest that failed, and the
	// next pass is the one that tries it again.
	waitAfterFailure = 5 * time.Second

	// lookAgain is the pause before it is looked again whether what is removed has gone.
	lookAgain = time.Second

	// watchAgain is the pause before a workload is watched again after its watch broke.
	watchAgain = time.Second
)

// applyFailed is the reason of a manifest that could not be applied.
const applyFailed = "UpdatePayloadFailed"

// Manifest is a manifest of a release, as far as its application depends on it.
type Manifest struct {
	ID        string // unique in a release
	File      string // empty for what is no manifest
	Object    *metav1.ObjectReference
	Operator  string                     // name of the cluster operator that it is waited for; or empty
	Operands  []*updatev1.OperandVersion // that the operator must report
	Unmanaged bool                       // the cluster wants its object to be left alone
	Program   bool                       // it is of a program, whose operator reports the version that runs
	Job       bool                       // it is a Job: nothing passes its file, and it runs once for a release
	Ran       bool                       // the Job ran for this release
	Leftover  bool                       // no manifest, but an object that the release lacks: it is removed
	Members   bool                       // no manifest, but the members of etcd: they are waited for
}

// skipped reports whether nothing is done with a manifest: Jobs run in updates alone, and once.
func (m *Manifest) skipped(mode Mode) bool {
	return m.Unmanaged || m.Job && (m.Ran || mode == Reconciling)
}

// Nodes reports whether the manifest is of the operator of the nodes' configuration, which is waited for together with
// the nodes of the control plane. The program that reports that operator is waited for alone.
func (m *Manifest) Nodes() bool { return m.Operator == NodeOperator && !m.Program }

// Title names the object of a manifest for people.
func (m *Manifest) Title() string {
	if ns := m.Object.GetNamespace(); ns != "" {
		return fmt.Sprintf("%s \"%s/%s\"", m.Object.GetKind(), ns, m.Object.GetName())
	}
	return fmt.Sprintf("%s %q", m.Object.GetKind(), m.Object.GetName())
}

// Unmanaged reports whether a cluster wants an object to be left alone.
func Unmanaged(overrides []*updatev1.ComponentOverride, group, kind, namespace, name string) bool {
	return slices.ContainsFunc(overrides, func(o *updatev1.ComponentOverride) bool {
		return o.GetUnmanaged() && o.GetKind() == kind && o.GetGroup() == group && o.GetNamespace() == namespace &&
			o.GetName() == name
	})
}

// Sightings are since when each manifest is waited for. They outlive a pass, which may have to begin again.
type Sightings map[string]time.Time

func sighting(file string, o *metav1.ObjectReference) string {
	return fmt.Sprintf("%s %s %s/%s", file, o.GetKind(), o.GetNamespace(), o.GetName())
}

// Resume takes over what an earlier process waited for.
func (s Sightings) Resume(waits []*updatev1.UpdateWait) {
	for _, w := range waits {
		s[sighting(w.GetManifest(), w.GetObject())] = w.GetSince().AsTime()
	}
}

// of returns since when a manifest is waited for: now, if it was not before.
func (s Sightings) of(m *Manifest, now time.Time) time.Time {
	k := sighting(m.File, m.Object)
	if _, ok := s[k]; !ok {
		s[k] = now.UTC().Truncate(time.Second) // as conditions have it
	}
	return s[k]
}

func (s Sightings) forget(m *Manifest) { delete(s, sighting(m.File, m.Object)) }

// Gate returns what the cluster operator of a manifest owes at now; live is nil if there is none.
func (s Sightings) Gate(m *Manifest, live *updatev1.ClusterOperator, mode Mode, now time.Time) Gate {
	g := operatorGate(gateView{
		Operator: m.Operator, File: m.File, Object: m.Object, Declared: m.Operands, Live: live, Mode: mode,
		Since: s.of(m, now),
	})
	if g.Effect == Ready {
		s.forget(m)
	}
	return g
}

// PassView is what a pass begins with.
type PassView struct {
	Version   string
	Mode      Mode
	Aborts    bool                   // there is a release to go back to from the one that is applied
	Drifted   bool                   // it is over what has drifted alone: what fails holds up nothing
	Files     []string               // of manifests, in load order
	Manifests map[string][]*Manifest // by file; those of a file in load order
	Leftovers []*Manifest            // what is removed once everything is applied
	Members   *Manifest              // the members of etcd, which are waited for after that; nil for none
	Nodes     *Manifest              // the operator of the nodes' configuration, which is waited for last; nil for none
	Before    int                    // manifests that were reached before: a pass that begins again does not count down
	Failures  map[string]Failure     // of the last pass, by ID; each stays until its manifest succeeds
	Sightings Sightings              // changed by the pass while it lasts
}

// Pass is one application of all manifests of a release. Next says what to do now; Applied, Rolled, Broke and Published
// take in what came of it. It is not safe for concurrent use.
//
// The chains of a step are applied at once, the manifests of a chain one after the other; a chain waits for what its
// manifests start. The first manifest that fails ends its chain, other chains go on, and the pass ends with the step.
type Pass struct {
	track
	steps     []*stepRun
	at        int              // the step under way
	tasks     map[string]*task // by ID: where a manifest is applied
	sightings Sightings
	paused    *Pause
	goesOn    bool // after failures
	failures  int  // after which it went on
	completed bool
	aborts    bool // there is a release to go back to
}

// stepRun is a step under way.
type stepRun struct {
	level    string // run level; empty where several are in one step
	job      bool
	chains   []*chainRun
	failedAt time.Time // when the first manifest failed
}

// chainRun is a chain under way. Its operators are applied first of all, so that people see what will be waited for.
type chainRun struct {
	step          *stepRun
	component     string  // empty where several are in one chain
	all           []*task // in order
	tasks         []*task // those of all that are not over
	begun, failed bool
}

func (c *chainRun) over() bool { return c.failed || len(c.tasks) == 0 }

// task is a manifest in a chain.
type task struct {
	*Manifest
	chain     *chainRun
	announces bool // it only makes the operator, and does not wait for it
	state     state
	began     time.Time // of the first try
	again     time.Time // of the next one
	refusals  int       // in a row
	problem   bool      // why it is refused: its owner does not take it
	held      bool      // by a pause
}

// call is what brings the manifest to where it belongs.
func (e *task) call() Action {
	if e.Leftover {
		return Action{Verb: Remove, Manifest: e.Manifest}
	}
	return Action{Verb: Apply, Manifest: e.Manifest}
}

// state is what is done with a manifest.
type state int

const (
	fresh     state = iota // nothing yet
	applying               // a call is under way
	refused                // it is applied again later
	awaiting               // its operator is waited for
	following              // its workload is watched
	unwatched              // it is watched again later
)

// What an Action of a pass does.
const (
	Apply   = "Apply"   // apply Action.Manifest, then call Applied
	Remove  = "Remove"  // remove the object of Action.Manifest, then call Applied
	Follow  = "Follow"  // watch the workload of Action.Manifest until it is ready, then call Rolled or Broke
	Publish = "Publish" // write Action.Run and Action.Progress into the status, then call Published
)

// Action is one thing to do; of the fields those are set that the verb names.
type Action struct {
	Verb     string
	Manifest *Manifest
	Run      Run
	Progress *updatev1.UpdateProgress
}

// Plan is what a pass does next.
type Plan struct {
	Do   []Action  // all at once
	Wake time.Time // when to decide again even if nothing happens; zero means never
	Over bool      // the pass has ended
}

func (p *Plan) wake(at time.Time) {
	if p.Wake.IsZero() || at.Before(p.Wake) {
		p.Wake = at
	}
}

// NewPass returns a pass that begins with its first Next.
func NewPass(v PassView) *Pass {
	p := &Pass{tasks: map[string]*task{}, sightings: v.Sightings, goesOn: v.Drifted, aborts: v.Aborts}
	total, jobs := 0, map[string]bool{}
	for file, list := range v.Manifests {
		jobs[file] = slices.ContainsFunc(list, func(m *Manifest) bool { return m.Job })
	}
	steps, _ := TaskGraph(v.Files, jobs, v.Mode)
	for _, s := range steps {
		run := &stepRun{level: s.RunLevel, job: s.Job}
		for _, c := range s.Chains {
			chain := &chainRun{step: run, component: c.Component}
			for _, announces := range []bool{true, false} {
				for _, file := range c.Manifests {
					for _, m := range v.Manifests[file] {
						if !announces || m.Operator != "" && !m.Program && !m.Unmanaged {
							chain.tasks = append(chain.tasks, &task{Manifest: m, chain: chain, announces: announces})
						}
					}
				}
			}
			chain.all = chain.tasks
			run.chains = append(run.chains, chain)
		}
		p.steps = append(p.steps, run)
	}
	for _, list := range v.Manifests {
		total += len(list)
	}
	if v.Mode == Updating {
		p.steps = append(p.steps, lastSteps(v)...)
	}
	p.track = newTrack(Run{Version: v.Version, Mode: v.Mode, Done: min(v.Before, total), Total: total}, v.Failures)
	return p
}

// lastSteps are what an update does when everything is applied: it removes what the release lacks, all at once, and
// then waits for the members of etcd and for the nodes. Source: seed 001, "until the entire control plane is updated".
func lastSteps(v PassView) (out []*stepRun) {
	alone := func(run *stepRun, m *Manifest) {
		chain := &chainRun{step: run}
		chain.all = []*task{{Manifest: m, chain: chain}}
		chain.tasks = chain.all
		run.chains = append(run.chains, chain)
	}
	if len(v.Leftovers) > 0 {
		run := &stepRun{}
		for _, m := range v.Leftovers {
			alone(run, m)
		}
		out = append(out, run)
	}
	for _, m := range []*Manifest{v.Members, v.Nodes} {
		if m != nil {
			run := &stepRun{}
			alone(run, m)
			out = append(out, run)
		}
	}
	return out
}

// Completed reports whether everything was applied.
func (p *Pass) Completed() bool { return p.completed }

// Next says what to do at now. operator returns a cluster operator as it is, or nil. While an update is paused, nothing
// begins that has not begun.
func (p *Pass) Next(now time.Time, operator func(name string) *updatev1.ClusterOperator, paused *Pause) Plan {
	var out Plan
	if p.start.Mode == Updating && !proto.Equal(p.paused, paused) {
		p.paused, p.urgent, p.start.Paused = paused, true, ""
		if paused != nil {
			p.start.Paused = PauseText(paused)
		}
	}
	for !out.Over {
		if p.at == len(p.steps) {
			p.completed, out.Over = p.failures == 0, true
			break
		}
		s := p.steps[p.at]
		if !p.advance(s, now, operator, &out) {
			break
		}
		if out.Over = slices.ContainsFunc(s.chains, func(c *chainRun) bool { return c.failed }); !out.Over {
			p.at++
		}
	}
	if !out.Over && p.start.Mode != Reconciling {
		p.report(now, &out)
	}
	return out
}

// advance brings the chains of a step as far as possible, and reports whether all of them are over.
func (p *Pass) advance(s *stepRun, now time.Time, operator func(string) *updatev1.ClusterOperator, out *Plan) bool {
	limit, running, over := p.chains(), 0, 0
	for _, c := range s.chains {
		if c.begun && !c.over() {
			running++
		}
	}
	for _, c := range s.chains {
		if !c.begun && !c.over() {
			if limit > 0 && running == limit {
				break
			}
			c.begun = true
			running++
		}
		if !c.over() {
			if p.chain(c, now, operator, out); c.over() {
				running--
			}
		}
		if c.over() {
			over++
		}
	}
	return over == len(s.chains)
}

func (p *Pass) chains() int {
	switch p.start.Mode {
	case Updating:
		return updatingChains
	case Reconciling:
		return reconcilingChains
	}
	return 0
}

// chain brings a chain as far as possible.
func (p *Pass) chain(c *chainRun, now time.Time, operator func(string) *updatev1.ClusterOperator, out *Plan) {
	for !c.over() {
		e := c.tasks[0]
		p.tasks[e.ID] = e
		switch e.state {
		case fresh:
			if p.holds(out) {
				return
			}
			if !e.announces {
				p.begin(e.Manifest)
			}
			if e.skipped(p.start.Mode) {
				p.ended(e)
				continue
			}
			if e.Members { // nothing is applied
				e.state = unwatched
				continue
			}
			e.state, e.began = applying, now
			out.Do = append(out.Do, e.call())
			return
		case refused:
			if e.problem { // nothing came of it yet
				if p.holds(out) {
					e.held = true
					return
				}
				if e.held {
					e.held, e.began = false, now
				}
			}
			if now.Before(e.again) {
				out.wake(e.again)
				return
			}
			e.state = applying
			out.Do = append(out.Do, e.call())
			return
		case awaiting:
			g := p.sightings.Gate(e.Manifest, operator(e.Operator), p.start.Mode, now)
			p.gate(e.Manifest, g)
			if !g.Blocks() || p.start.Mode == Reconciling { // then it only looks: the rest is applied all the same
				p.ended(e)
				continue
			}
			p.patience(e, now, out)
			return
		case unwatched:
			if p.patience(e, now, out); c.over() {
				return
			}
			if now.Before(e.again) {
				out.wake(e.again)
				return
			}
			e.state = following
			out.Do = append(out.Do, Action{Verb: Follow, Manifest: e.Manifest})
			return
		case following:
			p.patience(e, now, out)
			return
		case applying:
			return
		}
	}
}

// holds reports whether nothing may begin now, and has the pass asked again when that ends.
func (p *Pass) holds(out *Plan) bool {
	if end := PauseEnds(p.paused); !end.IsZero() {
		out.wake(end)
	}
	return p.paused != nil
}

// patience ends the chain of a manifest that is waited for in vain, since another one of the step has failed.
func (p *Pass) patience(e *task, now time.Time, out *Plan) {
	failed := e.chain.step.failedAt
	switch end := failed.Add(waitAfterFailure); {
	case failed.IsZero():
	case now.Before(end):
		out.wake(end)
	default:
		e.chain.failed = true
	}
}

// ended goes on to the next manifest of a chain.
func (p *Pass) ended(e *task) {
	if !e.announces {
		p.end(e.Manifest)
	}
	e.chain.tasks = e.chain.tasks[1:]
}

// under returns the manifest of an ID if it is in a state.
func (p *Pass) under(id string, is state) *task {
	if e := p.tasks[id]; e != nil && e.state == is && !e.chain.over() && e.chain.tasks[0] == e {
		return e
	}
	return nil
}

// Outcome is what came of the application of a manifest.
type Outcome struct {
	Problem  string // why it could not be applied; empty if it was
	Passing  bool   // the problem may go away by itself
	RollsOut bool   // the object is a workload that is waited for; see RollsOut
	Leaving  string // what an object that is removed still waits for; empty once it is gone
}

// Applied takes in what came of an Apply or a Remove.
func (p *Pass) Applied(id string, o Outcome, now time.Time) {
	e := p.under(id, applying)
	switch {
	case e == nil:
	case o.Problem != "" && o.Passing && now.Sub(e.began) <= p.tryLimit(e.chain.step):
		e.state, e.again, e.problem = refused, now.Add(min(firstTry<<min(e.refusals, 10), mostTry)), true
		e.refusals++
		p.gate(e.Manifest, p.held(e.Manifest, "must be taken up by its service", o.Problem, now))
	case o.Problem != "":
		p.failed(e, o.Problem, now)
	case o.Leaving != "":
		e.state, e.again, e.problem = refused, now.Add(lookAgain), false
		e.refusals++
		p.gate(e.Manifest, p.held(e.Manifest, "must be gone", o.Leaving, now))
	default:
		p.applied(e, o.RollsOut)
	}
}

// tryLimit returns how long what a service refuses for the moment is tried again within a step. A release that is kept
// is applied again soon, and until then what has drifted must not wait for a service that is away.
func (p *Pass) tryLimit(s *stepRun) time.Duration {
	switch {
	case p.start.Mode != Reconciling:
		return tryLimit
	case s.failedAt.IsZero() && p.failures == 0:
		return tryLimitKept
	}
	return -1
}

func (p *Pass) applied(e *task, rollsOut bool) {
	if e.refusals > 0 {
		p.gate(e.Manifest, Gate{})
		p.sightings.forget(e.Manifest) // the next time is another wait
	}
	switch {
	case e.announces:
		p.ended(e)
	case rollsOut && p.start.Mode != Reconciling:
		e.state = unwatched
	case e.Operator != "":
		e.state = awaiting
	default:
		p.ended(e)
	}
}

// failed ends the chain of a manifest that could not be applied.
func (p *Pass) failed(e *task, problem string, now time.Time) {
	if p.goesOn {
		p.failures++
		e.chain.tasks = e.chain.tasks[1:]
	} else {
		e.chain.failed = true
		if s := e.chain.step; s.failedAt.IsZero() {
			s.failedAt = now
		}
	}
	message := fmt.Sprintf("Could not update %s (%s): %s", e.Title(), e.File, problem)
	switch {
	case e.Leftover:
		message = fmt.Sprintf("Could not remove %s, which the release lacks: %s", e.Title(), problem)
	case e.File == "":
		message = fmt.Sprintf("Could not wait for %s: %s", e.Title(), problem)
	}
	p.fail(e.Manifest, Failure{Reason: applyFailed, Name: e.Object.GetName(), Message: message})
}

// Rolled takes in how far the workload of a manifest has come. Its Follow ends when it is ready.
func (p *Pass) Rolled(id string, r Rollout, now time.Time) {
	e := p.under(id, following)
	switch {
	case e == nil:
	case r.Ready:
		p.gate(e.Manifest, Gate{})
		p.sightings.forget(e.Manifest)
		if e.state = awaiting; e.Operator == "" || r.Missing {
			p.ended(e)
		}
	default:
		p.gate(e.Manifest, p.rolling(e.Manifest, r, now))
	}
}

// Broke takes in why a Follow ended before the workload was ready. One that was deleted is a failure: the next pass
// creates it again.
func (p *Pass) Broke(id, problem string, gone bool, now time.Time) {
	e := p.under(id, following)
	switch {
	case e == nil:
	case gone:
		p.failed(e, problem, now)
	default:
		e.state, e.again = unwatched, now.Add(watchAgain)
		p.gate(e.Manifest, p.held(e.Manifest, "must be shown by its service", problem, now))
	}
}

func (p *Pass) wait(m *Manifest, fact, observed string, now time.Time) *updatev1.UpdateWait {
	return &updatev1.UpdateWait{
		Object: m.Object, Manifest: m.File, Fact: fact, Observed: observed,
		Since: timestamppb.New(p.sightings.of(m, now)),
	}
}

// held is the gate of a manifest whose owner does not do what it is asked for.
func (p *Pass) held(m *Manifest, fact, problem string, now time.Time) Gate {
	return Gate{
		Effect: Wait, Operator: m.Title(), Reason: applyFailed, Message: problem,
		Wait: p.wait(m, fmt.Sprintf("%s %s.", m.Title(), fact), problem, now),
	}
}

// rolling is the gate of a workload that is not ready.
func (p *Pass) rolling(m *Manifest, r Rollout, now time.Time) Gate {
	g := Gate{
		Effect: Wait, Operator: cmp.Or(m.Operator, m.Title()), Reason: r.Reason, Message: fmt.Sprintf("%s: %s", m.Title(),
			r.Observed),
		Wait: p.wait(m, fmt.Sprintf("%s: %s.", m.Title(), r.Fact), r.Observed, now),
	}
	if r.Failed {
		g.Effect = Fail
	}
	return g
}
