package plan

import (
	"fmt"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// point is one of the two lists of hooks.
type point struct {
	path string // in JSON names
	word string // in messages
	get  func(*machinev1.LifecycleHooks) []*machinev1.LifecycleHook
}

func points() []point {
	return []point{
		{"spec.lifecycleHooks.preDrain", "pre-drain", (*machinev1.LifecycleHooks).GetPreDrain},
		{"spec.lifecycleHooks.preTerminate", "pre-terminate", (*machinev1.LifecycleHooks).GetPreTerminate},
	}
}

// DuplicateHooks returns each hook whose name its point has already. The same name may be used at both points.
func DuplicateHooks(h *machinev1.LifecycleHooks, prefix string) []object.Fault {
	var bad []object.Fault
	for _, p := range points() {
		seen := map[string]bool{}
		for i, hook := range p.get(h) {
			if seen[hook.GetName()] {
				bad = append(bad, object.Faultf(fmt.Sprintf("%s%s[%d].name", prefix, p.path, i), "Duplicate value: %q",
					hook.GetName()))
			}
			seen[hook.GetName()] = true
		}
	}
	return bad
}

// HookChange returns what forbids a change of a machine's hooks. Once deletion was requested hooks can only be removed
// or change places: whatever waits for one that is there keeps waiting for that one alone.
func HookChange(old, changed *machinev1.Machine) []object.Fault {
	bad := DuplicateHooks(changed.GetSpec().GetLifecycleHooks(), "")
	if !object.Deleting(old) {
		return bad
	}
	for _, p := range points() {
		if fresh := newOrChanged(p.get(old.GetSpec().GetLifecycleHooks()), p.get(changed.GetSpec().GetLifecycleHooks())); len(
			fresh) > 0 {
			bad = append(bad, object.Faultf(p.path,
				"%s hooks are immutable when machine is marked for deletion: the following hooks are new or changed: %s", p.word,
				hookList(fresh)))
		}
	}
	return bad
}

func newOrChanged(old, now []*machinev1.LifecycleHook) []*machinev1.LifecycleHook {
	have := byName(old)
	var out []*machinev1.LifecycleHook
	for _, h := range now {
		if was, ok := have[h.GetName()]; !ok || !proto.Equal(was, h) {
			out = append(out, h)
		}
	}
	return out
}

func byName(hooks []*machinev1.LifecycleHook) map[string]*machinev1.LifecycleHook {
	out := map[string]*machinev1.LifecycleHook{}
	for _, h := range hooks {
		out[h.GetName()] = h
	}
	return out
}

// Removal is a hook that a change takes off a machine.
type Removal struct {
	Field string // its list, as a path in JSON names
	Hook  *machinev1.LifecycleHook
}

// GuardedRemovals returns the hooks that a change takes off a machine which is being deleted: only their owners and
// administrators may do that. Before deletion every caller that may write the machine may.
func GuardedRemovals(old, changed *machinev1.Machine) []Removal {
	if !object.Deleting(old) {
		return nil
	}
	var out []Removal
	for _, p := range points() {
		stay := byName(p.get(changed.GetSpec().GetLifecycleHooks()))
		for _, h := range p.get(old.GetSpec().GetLifecycleHooks()) {
			if _, ok := stay[h.GetName()]; !ok {
				out = append(out, Removal{p.path, h})
			}
		}
	}
	return out
}
