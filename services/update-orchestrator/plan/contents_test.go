package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func TestTheContentsOfAReleaseAreCounted(t *testing.T) {
	all := []*updatev1.ReleaseManifest{
		{File: "a", Job: true}, {File: "b", Job: true, Excluded: "capability X is not enabled"}, {File: "c"},
	}
	out := ContentsOf(all, nil)
	if out.GetManifestCount() != 2 || out.GetExcludedCount() != 1 {
		t.Errorf("%v", out)
	}
	if diff := cmp.Diff(map[string]bool{"a": true}, JobFiles(all)); diff != "" {
		t.Error(diff)
	}
	if out := ContentsOf(nil, nil); out.ManifestCount == nil || out.ExcludedCount == nil || out.RemovalCount != nil {
		t.Errorf("what is known to be zero must be said, what is not known must not: %v", out)
	}
}

func TestRemovalsSayWhatStays(t *testing.T) {
	object := func(kind, name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{ApiVersion: "v1", Kind: kind, Name: name}
	}
	managed := true
	overrides := []*updatev1.ComponentOverride{{Kind: "Service", Name: "ours", Unmanaged: &managed}}
	inventory := []*metav1.ObjectReference{
		object("Service", "kept"), object("Service", "gone"), object("Service", "ours"), object("Namespace", "n"),
	}
	for name, tt := range map[string]struct {
		inventory []*metav1.ObjectReference
		count     int32
		want      []string
	}{
		"nothing was brought": {nil, 0, nil},
		"some objects are dropped": {inventory, 1, []string{
			"gone: ", "ours: spec.overrides leaves it alone", "n: its removal would take along everything in it",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out := &updatev1.PlanReleaseResponse{}
			AddRemovals(out, tt.inventory, inventory[:1], overrides, nil)
			var got []string
			for _, l := range out.GetRemovals() {
				got = append(got, l.GetObject().GetName()+": "+l.GetReason())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || out.RemovalCount == nil || out.GetRemovalCount() != tt.count {
				t.Errorf("%d are removed: %s", out.GetRemovalCount(), diff)
			}
		})
	}
}

func TestMissingCapabilities(t *testing.T) {
	for want, needs := range map[string][]string{
		"":                                  {"A"},
		"capability B is not enabled":       {"A", "B"},
		"capabilities B, C are not enabled": {"B", "C"},
	} {
		if got := MissingCapabilities(needs, []string{"A"}); got != want {
			t.Errorf("%v: %q, want %q", needs, got, want)
		}
	}
}
