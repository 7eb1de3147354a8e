package controller

import (
	"sync"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

// conflictsUnreported is how often in a row a machine's step may conflict with another write before that is reported. A
// conflict is normal and the step is repeated from the newer state, unless that state never arrives.
const conflictsUnreported = 4

// memory is what the leader knows of failing steps beyond what is stored on the machines, by uid. It is safe for
// concurrent use.
type memory struct {
	mu       sync.Mutex
	machines map[string]remembered
}

type remembered struct {
	failures  []*machinev1.StepFailure
	conflicts int // in a row
	calls     int // failed deletions of its instance, in a row, that are counted in failures
}

// reset forgets everything: what is stored on the machines counts again.
func (y *memory) reset() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.machines = map[string]remembered{}
}

// failures returns the failing steps of a machine: those stored on it, unless more is known.
func (y *memory) failures(m *machinev1.Machine) []*machinev1.StepFailure {
	y.mu.Lock()
	defer y.mu.Unlock()
	if r, ok := y.machines[m.GetMetadata().GetUid()]; ok {
		return r.failures
	}
	return m.GetStatus().GetStepFailures()
}

// keep remembers the failing steps of a machine.
func (y *memory) keep(m *machinev1.Machine, failures []*machinev1.StepFailure) {
	y.mu.Lock()
	defer y.mu.Unlock()
	uid := m.GetMetadata().GetUid()
	r := y.machines[uid]
	r.failures = failures
	if len(failures) == 0 && len(m.GetStatus().GetStepFailures()) == 0 && r.conflicts == 0 && r.calls == 0 {
		delete(y.machines, uid)
		return
	}
	y.machines[uid] = r
}

// conflicts counts one more conflict of a machine's step and reports whether there were too many in a row.
func (y *memory) conflicts(m *machinev1.Machine) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	r, ok := y.machines[m.GetMetadata().GetUid()]
	if !ok {
		r.failures = m.GetStatus().GetStepFailures()
	}
	r.conflicts++
	y.machines[m.GetMetadata().GetUid()] = r
	return r.conflicts > conflictsUnreported
}

// failedCalls takes the number of deletions of a machine's instance that failed in a row, and returns how many of them
// were not counted yet.
func (y *memory) failedCalls(m *machinev1.Machine, failed int) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	uid := m.GetMetadata().GetUid()
	r, ok := y.machines[uid]
	if !ok && failed == 0 {
		return 0
	}
	if !ok {
		r.failures = m.GetStatus().GetStepFailures()
	}
	more := max(0, failed-r.calls)
	r.calls = failed
	y.machines[uid] = r
	return more
}

// settle notes that no step of a machine failed.
func (y *memory) settle(m *machinev1.Machine, failures []*machinev1.StepFailure) {
	y.mu.Lock()
	if r, ok := y.machines[m.GetMetadata().GetUid()]; ok {
		r.conflicts = 0
		y.machines[m.GetMetadata().GetUid()] = r
	}
	y.mu.Unlock()
	y.keep(m, failures)
}

// forget removes a machine that is gone.
func (y *memory) forget(m *machinev1.Machine) {
	y.mu.Lock()
	defer y.mu.Unlock()
	delete(y.machines, m.GetMetadata().GetUid())
}
