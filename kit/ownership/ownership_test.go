package ownership_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestCollect(t *testing.T) {
	there, gone := ownership.Owner{UID: "there"}, ownership.Owner{UID: "gone", Gone: true}
	left := ownership.Owner{UID: "left", Gone: true, Keeps: true}
	for name, c := range map[string]struct {
		owners []ownership.Owner
		want   ownership.Decision
	}{
		"nobody owns it":     {},
		"its owner is there": {owners: []ownership.Owner{there}},
		"its owner is gone":  {[]ownership.Owner{gone}, ownership.Decision{Remove: true}},
		"one of two is gone": {
			[]ownership.Owner{gone, there},
			ownership.Decision{Disown: []string{"gone"}},
		},
		"an owner that keeps its objects is gone": {[]ownership.Owner{left}, ownership.Decision{Disown: []string{"left"}}},
		"two are gone, and one takes it along":    {[]ownership.Owner{left, gone}, ownership.Decision{Remove: true}},
		"what keeps its objects is still there":   {owners: []ownership.Owner{{UID: "kept", Keeps: true}}},
		"two are gone, and neither takes it along": {
			[]ownership.Owner{left, left},
			ownership.Decision{Disown: []string{"left", "left"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, ownership.Collect(c.owners)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnOwnerThatOrphansIsLetGoOfAndLetsGo(t *testing.T) {
	m := &metav1.ObjectMeta{
		Finalizers: []string{"other", object.OrphanFinalizer}, OwnerReferences: []*metav1.OwnerReference{
			{Uid: "a"}, {Uid: "b"},
		},
	}
	set := &machinev1.MachineSet{Metadata: m}
	if ownership.Orphans(set) {
		t.Error("it is not being deleted")
	}
	m.DeletionTimestamp = timestamppb.Now()
	if !ownership.Orphans(set) {
		t.Error("it is deleted and leaves alone what belongs to it")
	}
	ownership.LetGo(m)
	if ownership.Orphans(set) || !slices.Equal(m.Finalizers, []string{"other"}) {
		t.Errorf("finalizers %v", m.Finalizers)
	}
	if !ownership.Owned(set, "a") || ownership.Owned(set, "c") {
		t.Error("it belongs to a and b")
	}
	ownership.Disown(m, []string{"a", "c"})
	if ownership.Owned(set, "a") || !ownership.Owned(set, "b") {
		t.Errorf("owners %v", m.OwnerReferences)
	}
}
