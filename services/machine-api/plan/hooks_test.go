package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

func hook(name, owner string) *machinev1.LifecycleHook {
	return &machinev1.LifecycleHook{Name: name, Owner: owner}
}

func withPreDrain(hooks ...*machinev1.LifecycleHook) func(*machinev1.Machine) {
	return func(m *machinev1.Machine) { ensureHooks(m).PreDrain = hooks }
}

func TestChangesOfHooks(t *testing.T) {
	a, b := hook("HookA", "owner-a"), hook("HookB", "owner-b")
	for name, tt := range map[string]struct {
		old, changed *machinev1.Machine
		want         []object.Fault
	}{
		"before deletion hooks may be added": {newMachine(), newMachine(withPreDrain(a, b)), nil},
		"a name may not come twice in a list": {
			newMachine(), newMachine(withPreDrain(a, hook("HookA", "other"))),
			[]object.Fault{{Path: "spec.lifecycleHooks.preDrain[1].name", Description: `Duplicate value: "HookA"`}},
		},
		"the same name may be in both lists": {newMachine(), newMachine(withPreDrain(a), func(m *machinev1.Machine) {
			ensureHooks(m).PreTerminate = []*machinev1.LifecycleHook{a}
		}), nil},
		"once deletion was requested none may be added": {
			newMachine(deleted, withPreDrain(a)), newMachine(deleted, withPreDrain(a, b)),
			[]object.Fault{
				{
					Path:        "spec.lifecycleHooks.preDrain",
					Description: "pre-drain hooks are immutable when machine is marked for deletion: the following hooks are new or changed: [{Name:HookB Owner:owner-b}]",
				},
			},
		},
		"nor may one change its owner": {
			newMachine(deleted, withPreDrain(a)), newMachine(deleted, withPreDrain(hook("HookA", "thief"))),
			[]object.Fault{
				{
					Path:        "spec.lifecycleHooks.preDrain",
					Description: "pre-drain hooks are immutable when machine is marked for deletion: the following hooks are new or changed: [{Name:HookA Owner:thief}]",
				},
			},
		},
		"they may be removed":    {newMachine(deleted, withPreDrain(a, b)), newMachine(deleted, withPreDrain(b)), nil},
		"they may change places": {newMachine(deleted, withPreDrain(a, b)), newMachine(deleted, withPreDrain(b, a)), nil},
		"one may not move its point": {
			newMachine(deleted, withPreDrain(hook("BackupFileSystem", "my-backup-controller"))),
			newMachine(deleted, preTerminate),
			[]object.Fault{
				{
					Path:        "spec.lifecycleHooks.preTerminate",
					Description: "pre-terminate hooks are immutable when machine is marked for deletion: the following hooks are new or changed: [{Name:BackupFileSystem Owner:my-backup-controller}]",
				},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, HookChange(tt.old, tt.changed)); diff != "" {
				t.Errorf("HookChange (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemovalsThatOnlyOwnersMayMake(t *testing.T) {
	a, b := hook("HookA", "owner-a"), hook("HookB", "owner-b")
	if got := GuardedRemovals(newMachine(withPreDrain(a)), newMachine()); got != nil {
		t.Errorf("before deletion: %v, want nothing guarded", got)
	}
	got := GuardedRemovals(newMachine(deleted, withPreDrain(a, b), preTerminate), newMachine(deleted, withPreDrain(b)))
	if len(got) != 2 || got[0].Hook != a || got[0].Field != "spec.lifecycleHooks.preDrain" ||
		got[1].Field != "spec.lifecycleHooks.preTerminate" {
		t.Errorf("GuardedRemovals = %v, want HookA and BackupFileSystem", got)
	}
}
