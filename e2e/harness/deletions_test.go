package harness

import (
	"slices"
	"strings"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestTheOrderOfADeletionIsChecked(t *testing.T) {
	hook := []*machinev1.LifecycleHook{{Name: "Hook", Owner: "owner"}}
	machine := func(deleting bool, preDrain, preTerminate []*machinev1.LifecycleHook, drained string) Object {
		m := &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Name: "m", Uid: "u"},
			Spec: &machinev1.MachineSpec{
				LifecycleHooks: &machinev1.LifecycleHooks{PreDrain: preDrain, PreTerminate: preTerminate},
			},
			Status: &machinev1.MachineStatus{
				NodeRef:    &metav1.ObjectReference{Name: "n"},
				Conditions: []*metav1.Condition{{Type: "Drained", Status: drained}},
			},
		}
		if deleting {
			m.Metadata.DeletionTimestamp = timestamppb.Now()
		}
		return m
	}
	drain := Step{Object: &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: "d"},
		Spec:     &nodev1.DrainSpec{NodeName: "n", MachineRef: &metav1.ObjectReference{Name: "m", Uid: "u"}},
	}}
	noNode := Step{Object: &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "n"}}, Deleted: true}
	last := machine(true, nil, nil, "True")
	gone := Step{Object: last, Deleted: true}
	for what, c := range map[string]struct {
		steps []Step
		want  string
	}{
		"in order": {[]Step{
			{Object: machine(true, hook, hook, "False")},
			{Object: machine(true, nil, hook, "False")},
			drain,
			{Object: machine(true, nil, hook, "True")},
			{Object: last},
			noNode, gone,
		}, ""},
		"a drain before a hook is removed": {
			[]Step{{Object: machine(true, hook, nil, "False")}, drain}, "drained before its preDrain hooks",
		},
		"a node goes without a deletion": {[]Step{{Object: machine(false, nil, nil, "")}, noNode}, "was not being deleted"},
		"a node goes before the drain":   {[]Step{{Object: machine(true, nil, nil, "False")}, noNode}, "was not drained"},
		"a node goes before a hook":      {[]Step{{Object: machine(true, nil, hook, "True")}, noNode}, "had preTerminate"},
		"a machine goes before its node": {[]Step{{Object: last}, gone}, "before its node"},
		"a machine goes with a hook":     {[]Step{{Object: machine(true, hook, nil, "True"), Deleted: true}}, "had preDrain"},
	} {
		got := BrokenDeletions(c.steps)
		if c.want == "" && len(got) > 0 || c.want != "" &&
			!slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s: broken is %q, want %q", what, got, c.want)
		}
	}
}
