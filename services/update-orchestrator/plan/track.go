package plan

import (
	"maps"
	"slices"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// reportEvery is the time between two reports of progress. A change of what is waited for is reported at once.
	reportEvery = time.Second
	// reportIdle is how often progress is reported even if nothing happens: that something takes too long must be said
	// too.
	reportIdle = 30 * time.Second
)

// track notes how far a pass has come, and when that is reported.
type track struct {
	start    Run // Done is what was reached before
	done     int
	level    string            // of the manifest that was begun last
	active   map[string]string // run levels of the manifests under way, by ID
	gates    map[string]Gate
	failures map[string]Failure // those of the last pass stay until their manifests succeed

	changed   bool      // something is new
	urgent    bool      // something began or ended to be waited for
	reporting bool      // a report is under way
	reported  time.Time // the last report, or the begin
}

func newTrack(start Run, failures map[string]Failure) track {
	if failures = maps.Clone(failures); failures == nil {
		failures = map[string]Failure{}
	}
	return track{start: start, active: map[string]string{}, gates: map[string]Gate{}, failures: failures}
}

func (k *track) begin(m *Manifest) {
	if m.File != "" { // what comes after all manifests is of the level of the last one
		k.level, _, _ = RunLevel(m.File)
	}
	k.active[m.ID] = k.level
	k.changed = true
}

func (k *track) end(m *Manifest) {
	if m.File != "" {
		k.done++
	}
	delete(k.active, m.ID)
	delete(k.failures, m.ID)
	if g, ok := k.gates[m.ID]; ok && g.Wait != nil && k.start.Mode != Reconciling {
		delete(k.gates, m.ID)
		k.urgent = true
	}
	k.changed = true
}

// gate notes what a manifest waits for; the zero Gate means nothing.
func (k *track) gate(m *Manifest, g Gate) {
	old, had := k.gates[m.ID]
	if g.Effect == Ready {
		delete(k.gates, m.ID)
	} else {
		k.gates[m.ID] = g
	}
	if had != (g.Effect != Ready) || old.Effect != g.Effect || old.Reason != g.Reason {
		k.urgent = true
	}
	if k.urgent || old.Message != g.Message || !proto.Equal(old.Wait, g.Wait) {
		k.changed = true
	}
}

func (k *track) fail(m *Manifest, f Failure) {
	delete(k.active, m.ID)
	delete(k.gates, m.ID)
	k.failures[m.ID] = f
	k.urgent, k.changed = true, true
}

// report adds a report to a plan if one is due.
func (k *track) report(now time.Time, out *Plan) {
	due := k.reported.Add(reportIdle)
	if k.changed {
		due = k.reported.Add(reportEvery)
	}
	switch {
	case k.reporting:
	case !k.urgent && now.Before(due):
		out.wake(due)
	default:
		k.changed, k.urgent, k.reporting = false, false, true
		out.Do = append(out.Do, Action{Verb: Publish, Run: k.Run(), Progress: k.Progress()})
	}
}

// Published takes in whether the status was written. It is written again if it was not.
func (k *track) Published(written bool, now time.Time) {
	k.reporting, k.reported = false, now
	k.changed = k.changed || !written
}

// Run returns how the pass goes.
func (k *track) Run() Run {
	r := k.start
	r.Done, r.Failures = max(k.done, r.Done), Failures(k.failures)
	for _, id := range slices.Sorted(maps.Keys(k.gates)) {
		r.Gates = append(r.Gates, k.gates[id])
	}
	return r
}

// Failed returns the manifests that could not be applied, by ID.
func (k *track) Failed() map[string]Failure { return maps.Clone(k.failures) }

// Failures returns failures in the order of their IDs.
func Failures(byID map[string]Failure) []Failure {
	var out []Failure
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out = append(out, byID[id])
	}
	return out
}

// Progress returns how far the pass has come, for people.
func (k *track) Progress() *updatev1.UpdateProgress {
	out := &updatev1.UpdateProgress{
		Done:  proto.Int32(int32(max(k.done, k.start.Done))),
		Total: proto.Int32(int32(k.start.Total)), RunLevel: k.level,
	}
	if len(k.active) > 0 {
		out.RunLevel = slices.Min(slices.Collect(maps.Values(k.active)))
	}
	for _, id := range slices.Sorted(maps.Keys(k.gates)) {
		if w := k.gates[id].Wait; w != nil {
			out.Waits = append(out.Waits, proto.CloneOf(w))
		}
	}
	return out
}
