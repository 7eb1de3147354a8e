package controller

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// tracker notes how far a pass has come. It is safe for concurrent use.
type tracker struct {
	changed chan struct{} // something is new
	urgent  chan struct{} // something began or ended to be waited for

	mu       sync.Mutex
	start    plan.Run // Done is what was reached before: a pass that begins again does not count down
	done     int
	level    string            // of the manifest that was begun last
	active   map[string]string // run levels of the manifests under way
	gates    map[string]plan.Gate
	failures map[string]plan.Failure // those of the last pass stay until their manifests succeed
}

func newTracker(start plan.Run, failures map[string]plan.Failure) *tracker {
	if failures == nil {
		failures = map[string]plan.Failure{}
	}
	return &tracker{
		changed: make(chan struct{}, 1), urgent: make(chan struct{}, 1), start: start,
		active: map[string]string{}, gates: map[string]plan.Gate{}, failures: maps.Clone(failures),
	}
}

func (*tracker) mark(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// id identifies a manifest of a release: its index in load order.
func id(t apply.Task) string { return fmt.Sprintf("%s#%06d", t.File, t.Document) }

func (k *tracker) begin(t apply.Task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.level, _, _ = plan.RunLevel(t.File)
	k.active[id(t)] = k.level
	k.mark(k.changed)
}

func (k *tracker) end(t apply.Task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done++
	delete(k.active, id(t))
	delete(k.failures, id(t))
	if g, ok := k.gates[id(t)]; ok && g.Wait != nil && k.start.Mode != plan.Reconciling {
		delete(k.gates, id(t))
		k.mark(k.urgent)
	}
	k.mark(k.changed)
}

// gate notes what a manifest waits for; the zero Gate means nothing.
func (k *tracker) gate(t apply.Task, g plan.Gate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old, had := k.gates[id(t)]
	if g.Effect == plan.Ready {
		delete(k.gates, id(t))
	} else {
		k.gates[id(t)] = g
	}
	if had != (g.Effect != plan.Ready) || old.Effect != g.Effect || old.Reason != g.Reason {
		k.mark(k.urgent)
	}
	k.mark(k.changed)
}

func (k *tracker) fail(t apply.Task, f plan.Failure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.active, id(t))
	delete(k.gates, id(t))
	k.failures[id(t)] = f
	k.mark(k.urgent)
	k.mark(k.changed)
}

// run returns how the pass goes.
func (k *tracker) run() plan.Run {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.start
	r.Done, r.Failures = max(k.done, r.Done), listed(k.failures)
	for _, name := range slices.Sorted(maps.Keys(k.gates)) {
		r.Gates = append(r.Gates, k.gates[name])
	}
	return r
}

// failed returns the manifests that could not be applied.
func (k *tracker) failed() map[string]plan.Failure {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.failures)
}

func listed(failures map[string]plan.Failure) []plan.Failure {
	var out []plan.Failure
	for _, name := range slices.Sorted(maps.Keys(failures)) {
		out = append(out, failures[name])
	}
	return out
}

// progress returns how far the pass has come, for people.
func (k *tracker) progress() *updatev1.UpdateProgress {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := &updatev1.UpdateProgress{
		Done:  proto.Int32(int32(max(k.done, k.start.Done))),
		Total: proto.Int32(int32(k.start.Total)), RunLevel: k.level,
	}
	if len(k.active) > 0 {
		out.RunLevel = slices.Min(slices.Collect(maps.Values(k.active)))
	}
	for _, name := range slices.Sorted(maps.Keys(k.gates)) {
		if w := k.gates[name].Wait; w != nil {
			out.Waits = append(out.Waits, proto.CloneOf(w))
		}
	}
	return out
}
