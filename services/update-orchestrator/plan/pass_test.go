package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"pgregory.net/rapid"
)

// host is what is around a pass whose owners answer as a draw says, and which notes what was applied.
type host struct {
	t        *rapid.T
	now      time.Time
	pass     *Pass
	steps    []Step
	calls    map[string]Action // under way, by the ID of their manifest
	applied  map[string]bool   // the last application of the manifest itself succeeded, by ID
	reached  map[string]bool   // it was applied, and what it started has ended, by ID
	rollout  map[string]bool   // workloads that are waited for, by ID
	trouble  bool              // owners may refuse
	operator *updatev1.ClusterOperator
}

func sick(ok bool) *updatev1.ClusterOperator {
	status := False
	if ok {
		status = True
	}
	return &updatev1.ClusterOperator{Status: &updatev1.ClusterOperatorStatus{
		Conditions: []*metav1.Condition{condition(Available, status, "", ""), condition(Degraded, False, "", "")},
		Versions:   []*updatev1.OperandVersion{{Name: "operator", Version: "1.1.0"}},
	}}
}

// TestAPassKeepsTheOrder draws releases, and owners that answer late, refuse, break off and lose workloads. Whatever
// they do, nothing of a step is applied before the steps before it have ended well, a chain applies one manifest at a
// time and in order, not more chains than allowed are worked on, and a pass that ends says truly whether it completed.
// Once all owners answer well, it ends.
func TestAPassKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]Mode{Updating, Updating, Initializing, Reconciling}).Draw(t, "mode")
		h := &host{
			t: t, now: time.Unix(1e9, 0), calls: map[string]Action{}, applied: map[string]bool{}, reached: map[string]bool{},
			rollout: map[string]bool{}, trouble: true, operator: sick(false),
		}
		v := PassView{Version: "1.1.0", Mode: mode, Manifests: map[string][]*Manifest{}, Sightings: Sightings{}}
		jobs := map[string]bool{}
		files := rapid.IntRange(1, 40).Draw(t, "files")
		for i := range files {
			level := 10 * (1 + 3*i/files)
			name := fmt.Sprintf("0000_%d_c%02d_%02d_x.yaml", level, rapid.IntRange(0, 20).Draw(t, "component"), i)
			m := &Manifest{
				ID: name + "#0", File: name, Object: &metav1.ObjectReference{Kind: "Thing", Name: fmt.Sprint("o", i)},
				Unmanaged: rapid.IntRange(0, 9).Draw(t, "unmanaged") == 0,
			}
			switch rapid.IntRange(0, 4).Draw(t, "sort") {
			case 4:
				m.Job, m.Ran = true, rapid.Bool().Draw(t, "ran")
				jobs[name], h.rollout[m.ID] = true, true
			case 0:
				m.Operator, m.Operands = m.Object.GetName(), []*updatev1.OperandVersion{{Name: "operator", Version: "1.1.0"}}
			case 1:
				h.rollout[m.ID] = true
			}
			v.Files = append(v.Files, name)
			v.Manifests[name] = []*Manifest{m}
		}
		slices.Sort(v.Files)
		h.steps, _ = TaskGraph(v.Files, jobs, mode)
		h.pass = NewPass(v)
		for range rapid.IntRange(0, 200).Draw(t, "rounds") {
			if h.round(v) {
				return
			}
		}
		h.trouble, h.operator = false, sick(true)
		for range 10_000 {
			if h.round(v) {
				return
			}
		}
		t.Fatal("the pass does not end though all owners answer")
	})
}

// round asks the pass once, lets some calls be answered, and reports whether the pass is over.
func (h *host) round(v PassView) bool {
	next := h.pass.Next(h.now, func(string) *updatev1.ClusterOperator { return h.operator }, nil)
	for _, a := range next.Do {
		if a.Verb == Publish {
			h.pass.Published(true, h.now)
			continue
		}
		if _, twice := h.calls[a.Manifest.ID]; twice {
			h.t.Fatalf("%s has two calls at once", a.Manifest.ID)
		}
		h.calls[a.Manifest.ID] = a
		h.inOrder(v, a.Manifest)
	}
	h.withinLimits(v.Mode)
	if next.Over {
		h.truly(v)
		return true
	}
	if len(h.calls) == 0 && next.Wake.IsZero() && h.operator.GetStatus().GetConditions()[0].GetStatus() == True {
		h.t.Fatal("nothing is under way, and nothing will wake the pass")
	}
	h.now = h.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(h.t, "ms")) * time.Millisecond)
	for _, id := range slices.Sorted(maps.Keys(h.calls)) {
		if h.trouble && rapid.Bool().Draw(h.t, "late") {
			continue
		}
		h.answer(id, h.calls[id])
	}
	return false
}

func (h *host) answer(id string, a Action) {
	luck := 9
	if h.trouble {
		luck = rapid.IntRange(0, 9).Draw(h.t, "luck")
	}
	switch {
	case a.Verb == Apply:
		delete(h.calls, id)
		o := Outcome{RollsOut: h.rollout[id]}
		if luck < 3 {
			o = Outcome{Problem: "no", Passing: luck > 0}
		}
		h.applied[id] = o.Problem == ""
		h.pass.Applied(id, o, h.now)
	case luck < 3:
		delete(h.calls, id)
		h.pass.Broke(id, "broken off", luck == 0, h.now)
	case luck < 6:
		h.pass.Rolled(id, Rollout{Observed: "half way", Failed: luck == 5}, h.now)
	default:
		delete(h.calls, id)
		h.reached[id] = true
		h.pass.Rolled(id, Rollout{Ready: true}, h.now)
	}
}

// ended reports whether a manifest was applied and what it started has ended.
func (h *host) ended(m *Manifest, mode Mode) bool {
	switch {
	case m.skipped(mode):
		return true
	case h.rollout[m.ID] && mode != Reconciling:
		return h.reached[m.ID]
	}
	return h.applied[m.ID]
}

// inOrder checks that all that comes before a manifest has ended. An operator may be made before the others of its
// chain.
func (h *host) inOrder(v PassView, m *Manifest) {
	if m.skipped(v.Mode) {
		h.t.Fatalf("%s is applied", m.File)
	}
	for _, s := range h.steps {
		for _, c := range s.Chains {
			at := slices.Index(c.Manifests, m.File)
			for _, file := range c.Manifests[:max(at, 0)] {
				if m.Operator == "" && !h.ended(v.Manifests[file][0], v.Mode) {
					h.t.Fatalf("%s is applied before %s has ended", m.File, file)
				}
			}
			if at >= 0 {
				return
			}
		}
		if slices.ContainsFunc(s.Chains, func(c Chain) bool { return slices.Contains(c.Manifests, m.File) }) {
			return
		}
		for _, c := range s.Chains {
			for _, file := range c.Manifests {
				if !h.ended(v.Manifests[file][0], v.Mode) {
					h.t.Fatalf("%s is applied before %s of an earlier step has ended", m.File, file)
				}
			}
		}
	}
}

func (h *host) withinLimits(mode Mode) {
	limit := map[Mode]int{Updating: updatingChains, Reconciling: reconcilingChains}[mode]
	if limit > 0 && len(h.calls) > limit {
		h.t.Fatalf("%d chains are worked on, more than %d", len(h.calls), limit)
	}
}

// truly checks that a pass that is over says what was applied.
func (h *host) truly(v PassView) {
	missing, failed := "", h.pass.Failed()
	for _, file := range v.Files {
		if m := v.Manifests[file][0]; !h.ended(m, v.Mode) {
			missing = file
		}
	}
	switch completed := h.pass.Completed(); {
	case completed && missing != "":
		h.t.Fatalf("the pass says that it is complete, without %s", missing)
	case completed && len(failed) > 0:
		h.t.Fatalf("the pass says that it is complete, and that %v failed", failed)
	case completed && int(h.pass.Progress().GetDone()) != len(v.Files):
		h.t.Fatalf("the pass is complete at %d of %d", h.pass.Progress().GetDone(), len(v.Files))
	case !completed && len(failed) == 0:
		h.t.Fatal("the pass ended early, and nothing failed")
	}
}

func TestWhenTheNextPassIsDue(t *testing.T) {
	now := time.Unix(1e9, 0)
	drifted := func(ids ...string) func() []string { return func() []string { return ids } }
	var r Rhythm
	due := func(ids ...string) string {
		d := r.Due(now, drifted(ids...))
		if d.All {
			return "all"
		}
		return fmt.Sprintf("%v, all in %v", d.Only, d.Wake.Sub(now))
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("the first pass over a release", due("a"), "all")
	for _, pause := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		r.Ended(now, false, time.Minute)
		want("after a failure", due(), fmt.Sprintf("[], all in %v", pause*time.Second))
		now = now.Add(pause * time.Second)
		want("then", due("a"), "all")
	}
	r.Ended(now, true, time.Minute)
	want("after a success", due(), "[], all in 1m0s")
	want("what was changed", due("a"), "[a], all in 1m0s")
	now = now.Add(time.Second)
	want("what is changed again, beside another", due("a", "b"), "[b], all in 9s")
	now = now.Add(9 * time.Second)
	want("ten seconds later", due("a"), "[a], all in 50s")
	now = now.Add(50 * time.Second)
	want("a minute after the last one", due("a"), "all")
	r.Ended(now, false, time.Minute)
	want("while others fail", due("a", "c"), "[a c], all in 2s")
	r.Ended(now, true, time.Minute)
	now = now.Add(-time.Hour)
	want("on a clock that was set back", due("a"), "[a], all in 1h1m0s")
	r.Again()
	want("a pass over other manifests", due(), "all")
}

// In a pass over what has drifted, neither what fails nor an owner that is away holds up the rest.
func TestWhatHasDriftedIsAppliedWhateverElseFails(t *testing.T) {
	now := time.Unix(1e9, 0)
	var files []string
	manifests := map[string][]*Manifest{}
	for _, file := range []string{"0000_10_a_00_x.yaml", "0000_10_a_01_y.yaml", "0000_20_b_00_z.yaml"} {
		files = append(files, file)
		manifests[file] = []*Manifest{{ID: file, File: file, Object: &metav1.ObjectReference{Kind: "ConfigMap", Name: file}}}
	}
	p := NewPass(PassView{
		Version: "1.0.0", Mode: Reconciling, Drifted: true, Files: files, Manifests: manifests, Sightings: Sightings{},
	})
	var applied []string
	for end := now.Add(time.Minute); ; now = now.Add(100 * time.Millisecond) {
		next := p.Next(now, func(string) *updatev1.ClusterOperator { return nil }, nil)
		if next.Over {
			break
		}
		if now.After(end) {
			t.Fatal("the pass does not end")
		}
		for _, a := range next.Do {
			var o Outcome
			switch a.Manifest.ID {
			case files[0]:
				o = Outcome{Problem: "away", Passing: true}
			case files[1]:
				o = Outcome{Problem: "away as well", Passing: true}
			}
			applied = append(applied, a.Manifest.ID)
			p.Applied(a.Manifest.ID, o, now)
		}
	}
	if took := now.Sub(time.Unix(1e9, 0)); took > tryLimitKept+mostTry || slices.Index(applied, files[2]) < 0 {
		t.Errorf("after %s %q were applied", took, applied)
	}
	if failed := p.Failed(); p.Completed() || len(failed) != 2 || failed[files[2]].Message != "" {
		t.Errorf("completed is %v, failed are %v", p.Completed(), failed)
	}
	if n := len(slices.DeleteFunc(applied, func(id string) bool { return id != files[1] })); n != 1 {
		t.Errorf("a second owner that is away was tried %d times", n)
	}
}
