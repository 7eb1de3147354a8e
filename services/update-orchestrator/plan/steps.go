package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/topology"
)

// States of a manifest in a pass, and of a step.
const (
	StateDone     = "Done"
	StateSkipped  = "Skipped" // of manifests alone: nothing is done with it
	StateRunning  = "Running"
	StateWaiting  = "Waiting"
	StateFailed   = "Failed"
	StateNotBegun = "NotBegun"
)

type (
	// passStep is a step of a pass as Plan RPCs show it.
	passStep = updatev1.PlanClusterVersionRunResponse_Step
	// passManifest is a manifest of it.
	passManifest = updatev1.PlanClusterVersionRunResponse_Manifest
)

// Steps returns how far the pass has come with each manifest, in the order of their application.
func (p *Pass) Steps() []*passStep {
	var out []*passStep
	for i, s := range p.steps {
		to := &passStep{RunLevel: s.level, Job: s.job}
		states := map[string]bool{}
		for _, c := range s.chains {
			chain := &updatev1.PlanClusterVersionRunResponse_Chain{Component: c.component}
			for j, e := range c.all {
				if e.announces {
					continue
				}
				m := p.shows(e, c, j)
				states[m.GetState()] = true
				chain.Manifests = append(chain.Manifests, m)
			}
			to.Chains = append(to.Chains, chain)
		}
		to.State = p.stepState(i, states)
		out = append(out, to)
	}
	return out
}

// stepState returns the state of a step whose manifests are in some states.
func (p *Pass) stepState(i int, of map[string]bool) string {
	switch {
	case i < p.at && of[StateFailed]: // a pass over what has drifted goes on after failures
		return StateFailed
	case i < p.at:
		return StateDone
	case i > p.at && of[StateFailed]: // in the pass before
		return StateFailed
	case i > p.at:
		return StateNotBegun
	}
	if of[StateFailed] && !slices.ContainsFunc(p.steps[i].chains, func(c *chainRun) bool { return !c.over() }) {
		return StateFailed
	}
	for _, state := range []string{StateRunning, StateWaiting, StateFailed} {
		if of[state] {
			return state
		}
	}
	if of[StateDone] || of[StateSkipped] { // a pause holds back the rest
		return StateWaiting
	}
	return StateNotBegun
}

// shows returns how far the pass has come with the manifest at a place of a chain.
func (p *Pass) shows(e *task, c *chainRun, place int) *passManifest {
	m := &passManifest{File: e.File, Object: e.Object, State: StateNotBegun}
	failure, failed := p.track.failures[e.ID]
	gate, gated := p.gates[e.ID]
	over := place < len(c.all)-len(c.tasks)
	underWay := c.begun && !over && c.tasks[0].ID == e.ID && c.tasks[0].state != fresh && !(c.failed && failed)
	switch {
	case over && !failed && e.skipped(p.start.Mode):
		m.State = StateSkipped
	case over && !failed:
		m.State = StateDone
		gated = gated && p.start.Mode != Reconciling // it was checked some time ago: the conditions are newer
	case underWay && gated && gate.Blocks():
		m.State = StateWaiting
	case underWay && !c.failed: // another one of the step has failed, and what ran was given up
		m.State = StateRunning
	case failed:
		m.State = StateFailed
	}
	if gated {
		m.Wait, m.Reason, m.Message = proto.CloneOf(gate.Wait), gate.Reason, gate.Message
		m.Resolution = resolution(e.Manifest, gate)
	} else if failed {
		m.Reason, m.Message = failure.Reason, failure.Message
		m.Resolution = "The manifest is applied again in the next pass."
		if p.aborts {
			m.Resolution = "The manifest is applied again in the next pass; `windlass adm upgrade --abort` goes back to the " +
				"release before."
		}
	}
	return m
}

// resolution says what ends the wait for a manifest, in one sentence.
func resolution(m *Manifest, g Gate) string {
	o := m.Object
	show := strings.ToLower(o.GetKind()) + " " + o.GetName()
	if o.GetNamespace() != "" {
		show += " -n " + o.GetNamespace()
	}
	switch {
	case g.Reason == operatorNoVersions:
		return "A release whose manifest declares the versions of the operator: build it again, and update to that one."
	case m.Members:
		return "etcd-guardian restarts the members, one at a time: `windlass plan quorum` shows what it waits for."
	case strings.HasPrefix(g.Reason, "ControlPlane"):
		return "The pool master reaches its configuration: `windlass plan machineconfigpool master` shows what its nodes " +
			"wait for."
	case strings.HasPrefix(g.Reason, "ClusterOperator"):
		return fmt.Sprintf("The operator itself reports it: `windlass describe clusteroperator %s` shows what it says.",
			m.Operator)
	case g.Reason == programNotUpdated && g.Effect == Fail:
		return "The Program is changed: `windlass adm upgrade --abort` goes back with everything."
	case g.Reason == programNotUpdated:
		return fmt.Sprintf("The supervisor of the cluster brings it there: `windlass describe %s` shows how far it is.", show)
	case m.Job && g.Effect == Fail:
		return fmt.Sprintf("Once the Job is deleted it runs again: `windlass delete %s`.", show)
	case m.Job && g.Reason != applyFailed:
		return fmt.Sprintf("The Job completes: `windlass describe %s` shows how far it is.", show)
	case g.Reason == applyFailed:
		return fmt.Sprintf("It is tried again by itself: `windlass describe %s` shows the object.", show)
	}
	return fmt.Sprintf("Its pods become ready: `windlass describe %s` shows what they lack.", show)
}

// Limits of what plans are asked about: far beyond real clusters, and small enough that no request holds up a leader.
const (
	mostUpdates   = 10_000   // that are offered
	mostOverrides = 1_000    // of the spec
	mostGiven     = 4 << 20  // bytes of a ClusterVersion
	mostPause     = 1 << 10  // bytes of who paused it
	mostOperator  = 64 << 10 // bytes of a ClusterOperator
)

// GivenFaults returns why plans of a ClusterVersion that a caller gives would take too much.
func GivenFaults(cv *updatev1.ClusterVersion) []object.Fault {
	var out []object.Fault
	most := func(path string, have, most int, what string) {
		if have > most {
			out = append(out, object.Fault{
				Path: "clusterVersion" + path, Description: fmt.Sprintf("must have at most %d %s", most, what),
			})
		}
	}
	st := cv.GetStatus()
	most("", proto.Size(cv), mostGiven, "bytes")
	most(".spec.overrides", len(cv.GetSpec().GetOverrides()), mostOverrides, "items")
	most(".spec.pause.by", len(cv.GetSpec().GetPause().GetBy()), mostPause, "bytes")
	most(".status.history", len(st.GetHistory()), maxHistory, "items")
	most(".status.availableUpdates", len(st.GetAvailableUpdates()), mostUpdates, "items")
	most(".status.conditionalUpdates", len(st.GetConditionalUpdates()), mostUpdates, "items")
	for i, h := range st.GetHistory() {
		most(fmt.Sprintf(".status.history[%d]", i), proto.Size(h), mostOperator, "bytes")
	}
	return out
}

// Current returns the position of the step under way, from 1; 0 if the pass has ended well.
func (p *Pass) Current() int {
	if p.at >= len(p.steps) {
		return 0
	}
	return p.at + 1
}

// Coming returns the objects of the manifests that begin when what is under way is done: the next one of each chain of
// the present step, or those that begin the step after it. After a failure no later step begins in this pass.
func (p *Pass) Coming() []*metav1.ObjectReference {
	for i := p.at; i < len(p.steps); i++ {
		var out []*metav1.ObjectReference
		failed := slices.ContainsFunc(p.steps[i].chains, func(c *chainRun) bool { return c.failed })
		for _, c := range p.steps[i].chains {
			rest := c.tasks
			if len(rest) > 0 && rest[0].state != fresh { // under way
				id := rest[0].ID
				rest = slices.DeleteFunc(slices.Clone(rest), func(e *task) bool { return e.ID == id })
			}
			if c.failed {
				continue
			}
			for _, e := range rest {
				if !e.announces && !e.skipped(p.start.Mode) {
					out = append(out, e.Object)
					break
				}
			}
		}
		if len(out) > 0 || failed {
			return out
		}
	}
	return nil
}

// Describe puts how far the pass has come into a response.
func (p *Pass) Describe(out *updatev1.PlanClusterVersionRunResponse) {
	progress := p.Progress()
	out.Version, out.Mode, out.Paused = p.start.Version, string(p.start.Mode), p.start.Paused
	out.Done, out.Total = proto.Int32(progress.GetDone()), proto.Int32(progress.GetTotal())
	out.CurrentStep, out.Completed = proto.Int32(int32(p.Current())), p.completed
	out.Steps, out.Next = p.Steps(), p.Coming()
}

// Foresee returns a pass that begins at now and finds that every service takes every manifest at once, as far as it
// comes: to where something is waited for. That is what a status waits for already, and what its operators are not.
func Foresee(v PassView, waits []*updatev1.UpdateWait, operator func(name string) *updatev1.ClusterOperator,
	paused *Pause, now time.Time,
) *Pass {
	if v.Sightings == nil {
		v.Sightings = Sightings{}
	}
	v.Sightings.Resume(waits)
	waited := map[string]*updatev1.UpdateWait{}
	for _, w := range waits {
		waited[sighting(w.GetManifest(), w.GetObject())] = w
	}
	p := NewPass(v)
	for moved := true; moved; {
		next := p.Next(now, operator, paused)
		moved = false
		for _, a := range next.Do {
			if a.Verb == Publish {
				p.Published(true, now)
				continue
			}
			moved = true
			m := a.Manifest
			w := waited[sighting(m.File, m.Object)]
			if m.Operator != "" && strings.HasPrefix(w.GetFact(), operatorFact(m.Operator)) {
				w = nil // what the operator reports decides
			}
			switch {
			case a.Verb != Follow:
				p.Applied(m.ID, Outcome{RollsOut: w != nil}, now)
			case w == nil:
				p.Rolled(m.ID, Rollout{Ready: true}, now)
			default:
				p.gate(m, Gate{
					Effect: Wait, Operator: m.Title(), Reason: waitReasonOf(m, w), Message: w.GetObserved(), Wait: w,
				})
			}
		}
		if next.Over {
			break
		}
	}
	return p
}

// waitReasonOf returns the reason of the gate of a manifest, of which only the wait is known.
func waitReasonOf(m *Manifest, w *updatev1.UpdateWait) string {
	switch {
	case m.Nodes():
		return "ControlPlaneNotUpdated"
	case m.Members:
		return membersNotUpdated
	case strings.HasPrefix(w.GetFact(), m.Title()+" must "):
		return applyFailed
	case m.Program:
		return programNotUpdated
	}
	return "WorkloadNotAvailable"
}

// operatorFact is how the fact of a wait for an operator begins.
func operatorFact(operator string) string {
	return fmt.Sprintf("ClusterOperator %s must report ", operator)
}

// requested returns the update that a cluster version requests and that has not begun, with what holds it back at now;
// nil if there is none.
func requested(cv *updatev1.ClusterVersion, windows []*updatev1.MaintenanceWindow, now time.Time) *metav1.HeldBack {
	target := Desired(cv)
	if invalid := Find(cv.GetStatus().GetConditions(), Invalid); target == nil && invalid.GetStatus() == True {
		return &metav1.HeldBack{
			Action: "Update", Object: object.Reference(cv), Reason: invalid.GetMessage(),
			Unblock: "a valid spec of the ClusterVersion", SinceTime: invalid.GetLastTransitionTime(),
		}
	}
	if target == nil || SameImage(target.GetImage(), cv.GetStatus().GetDesired().GetImage()) {
		return nil
	}
	out := &metav1.HeldBack{Action: "Update", Object: object.Reference(cv)}
	name := target.GetVersion()
	if name == "" {
		name = target.GetImage()
	}
	accepted := Find(cv.GetStatus().GetConditions(), ReleaseAccepted)
	if cv.GetStatus().GetObservedGeneration() < cv.GetMetadata().GetGeneration() {
		accepted = nil // it may be about the request before
	}
	p, w := Paused(cv, now), Windows(cv, target.GetImage(), windows, now)
	switch {
	case p != nil:
		out.Reason = fmt.Sprintf("the update to %s waits: updates are %s", name, PauseText(p))
		out.Unblock, out.SinceTime = "windlass adm upgrade resume", p.GetSince()
	case w.Closed():
		out.Reason, out.Unblock = fmt.Sprintf("the update to %s %s", name, w.Waits),
			"the window opens, or --waive MaintenanceWindow=REASON of windlass adm upgrade"
		if accepted.GetReason() == MaintenanceWindow {
			out.SinceTime = accepted.GetLastTransitionTime()
		}
	case accepted.GetStatus() == False:
		out.Reason = fmt.Sprintf("the update to %s is refused: %s", name, accepted.GetMessage())
		out.Unblock = "`windlass adm upgrade --to VERSION --dry-run` shows all checks; `windlass adm upgrade --clear` takes " +
			"the request back"
		out.SinceTime = accepted.GetLastTransitionTime()
	case accepted.GetStatus() == Unknown:
		out.Reason, out.SinceTime = accepted.GetMessage(), accepted.GetLastTransitionTime()
	default:
		out.Reason = fmt.Sprintf("the update to %s has not been considered yet", name)
	}
	return out
}

// RunWithout is how a run is described of which no pass is known: by what the status says alone.
func RunWithout(cv *updatev1.ClusterVersion, mode Mode, windows []*updatev1.MaintenanceWindow, now time.Time,
) *updatev1.PlanClusterVersionRunResponse {
	st := cv.GetStatus()
	out := &updatev1.PlanClusterVersionRunResponse{
		Version: st.GetDesired().GetVersion(), Image: st.GetDesired().GetImage(), Mode: string(mode),
		Done: proto.Int32(st.GetProgress().GetDone()), Total: proto.Int32(st.GetProgress().GetTotal()),
		CurrentStep: proto.Int32(0),
	}
	for _, kind := range []string{Available, Progressing, Failing} {
		if c := Find(st.GetConditions(), kind); c != nil {
			out.Conditions = append(out.Conditions, c)
		}
	}
	if p := Paused(cv, now); p != nil && mode == Updating {
		out.Paused = PauseText(p)
	}
	if held := requested(cv, windows, now); held != nil {
		out.HeldBack = append(out.HeldBack, held)
	}
	return out
}

// NextPass says when the pass after one that has ended begins; nil if that is not known.
func NextPass(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// GivenMode returns what a pass over a given cluster version is for: the first release is installed, as long as it is
// the only one.
func GivenMode(st *updatev1.ClusterVersionStatus) Mode {
	m := ModeOf(st, st.GetDesired().GetImage())
	if m == Initializing && len(st.GetHistory()) > 1 {
		return Updating
	}
	return m
}

// GivenPass returns what a pass over the objects of a request begins with.
func GivenPass(r *updatev1.PlanClusterVersionRunRequest, mode Mode) PassView {
	cv := r.GetClusterVersion()
	v := PassView{
		Version: cv.GetStatus().GetDesired().GetVersion(), Mode: mode, Aborts: mode == Updating && Underway(cv),
		Manifests: map[string][]*Manifest{},
		Sightings: Sightings{},
	}
	for _, m := range r.GetManifests() {
		if m.GetExcluded() != "" {
			continue
		}
		file := m.GetFile()
		if v.Manifests[file] == nil {
			v.Files = append(v.Files, file)
		}
		v.Manifests[file] = append(v.Manifests[file], given(m, len(v.Manifests[file]), cv.GetSpec().GetOverrides()))
	}
	if mode != Updating {
		return v
	}
	for _, o := range r.GetRemoved() {
		v.Leftovers = append(v.Leftovers, &Manifest{ID: "leftover " + Identity(o), Object: o, Leftover: true})
	}
	v.Nodes = &Manifest{
		ID: "#nodes", Operator: NodeOperator,
		Object:   &metav1.ObjectReference{ApiVersion: "config.openshift.io/v1", Kind: "ClusterOperator", Name: NodeOperator},
		Operands: []*updatev1.OperandVersion{{Name: "operator", Version: v.Version}},
	}
	for _, list := range v.Manifests {
		for _, m := range list {
			if m.Nodes() {
				v.Nodes.Operands = m.Operands
			}
		}
	}
	return v
}

// given is what a plan knows of a manifest of a request, at a place in its file.
func given(m *updatev1.ReleaseManifest, place int, overrides []*updatev1.ComponentOverride) *Manifest {
	o := m.GetObject()
	group, _, ok := strings.Cut(o.GetApiVersion(), "/")
	if !ok {
		group = ""
	}
	out := &Manifest{
		ID: fmt.Sprintf("%s#%06d", m.GetFile(), place), File: m.GetFile(), Object: o, Operands: m.GetVersions(),
		Job: m.GetJob() && !m.GetDeletion(), Ran: m.GetRan(),
		Unmanaged: m.GetUnmanaged() || Unmanaged(overrides, group, o.GetKind(), o.GetNamespace(), o.GetName()),
	}
	switch {
	case m.GetDeletion():
	case m.GetClusterOperator():
		out.Operator = o.GetName()
	case group == "windlass.dev" && o.GetKind() == "Program":
		out.Program, out.Operator = true, topology.Operator(o.GetName())
	}
	return out
}

// RunFaults returns what is wrong with the objects of a request.
func RunFaults(r *updatev1.PlanClusterVersionRunRequest) []object.Fault {
	if r.GetClusterVersion() == nil {
		for _, f := range []struct {
			path  string
			given bool
		}{
			{"manifests", len(r.GetManifests()) > 0},
			{"clusterOperators", len(r.GetClusterOperators()) > 0},
			{"removed", len(r.GetRemoved()) > 0},
			{"now", r.GetNow() != nil},
			{"maintenanceWindows", len(r.GetMaintenanceWindows()) > 0},
		} {
			if f.given {
				return []object.Fault{{Path: f.path, Description: "is only allowed together with clusterVersion"}}
			}
		}
		return nil
	}
	out := GivenFaults(r.GetClusterVersion())
	for i, w := range r.GetMaintenanceWindows() {
		for _, f := range maintenance.Faults(w) {
			f.Path = fmt.Sprintf("maintenanceWindows[%d].%s", i, f.Path)
			out = append(out, f)
		}
	}
	operators := map[string]bool{}
	for i, o := range r.GetClusterOperators() {
		path, name := fmt.Sprintf("clusterOperators[%d]", i), o.GetMetadata().GetName()
		if name == "" || operators[name] {
			out = append(out, object.Fault{Path: path + ".metadata.name", Description: "must be given, and each once"})
		}
		if proto.Size(o) > mostOperator {
			out = append(out, object.Fault{Path: path, Description: fmt.Sprintf("must have at most %d bytes", mostOperator)})
		}
		operators[name] = true
	}
	removed := map[string]bool{}
	for i, o := range r.GetRemoved() {
		path, id := fmt.Sprintf("removed[%d]", i), Identity(o)
		switch {
		case o.GetKind() == "" || o.GetName() == "":
			out = append(out, object.Fault{Path: path, Description: "must have a kind and a name"})
		case removed[id]:
			out = append(out, object.Fault{Path: path, Description: "is there twice"})
		}
		removed[id] = true
	}
	seen := map[string]int{}
	for i, m := range r.GetManifests() {
		path, o := fmt.Sprintf("manifests[%d]", i), m.GetObject()
		switch id := Identity(o); {
		case m.GetExcluded() != "":
			continue
		case m.GetFile() == "":
			out = append(out, object.Fault{Path: path + ".file", Description: "must be given"})
		case o.GetKind() == "" || o.GetName() == "":
			out = append(out, object.Fault{Path: path + ".object", Description: "must have a kind and a name"})
		default:
			if first, twice := seen[id]; twice {
				out = append(out, object.Fault{
					Path: path + ".object", Description: fmt.Sprintf("is the object of manifests[%d], too", first),
				})
				continue
			}
			seen[id] = i
		}
	}
	return out
}
