package ownership_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
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
		"it has no owner":    {},
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

func TestAnOwnerThatOrphansIsHeldUntilItsDependentsAreReleased(t *testing.T) {
	m := &metav1.ObjectMeta{
		Finalizers: []string{"other", "keeps", object.OrphanFinalizer}, OwnerReferences: []*metav1.OwnerReference{
			{Uid: "a"}, {Uid: "b"},
		},
	}
	set := &machinev1.MachineSet{Metadata: m}
	if ownership.Orphans(set, "keeps") {
		t.Error("it orphans, but is not being deleted")
	}
	m.DeletionTimestamp = timestamppb.Now()
	if !ownership.Orphans(set, "") || !ownership.Orphans(set, "keeps") {
		t.Error("it is being deleted, but does not orphan")
	}
	ownership.Release(m, "")
	if ownership.Orphans(set, "") || !ownership.Orphans(set, "keeps") {
		t.Errorf("finalizers %v, want that of the kind to hold it", m.Finalizers)
	}
	ownership.Release(m, "keeps")
	if ownership.Orphans(set, "keeps") || !slices.Equal(m.Finalizers, []string{"other"}) {
		t.Errorf("finalizers %v", m.Finalizers)
	}
	ownership.Disown(m, []string{"a", "c"})
	if got := ownership.Owners(set); !slices.Equal(got, []string{"b"}) {
		t.Errorf("owners %v", got)
	}
}

func TestAReferenceNamesAKindInAnyVersion(t *testing.T) {
	deployments := object.TypeOf((&schedulingv1.Deployment{}).ProtoReflect().Descriptor())
	namespaces := object.TypeOf((&schedulingv1.Namespace{}).ProtoReflect().Descriptor())
	var got []string
	for _, r := range []*metav1.OwnerReference{
		{ApiVersion: "apps/v1", Kind: "Deployment"},
		{ApiVersion: "apps/v1beta2", Kind: "Deployment"},
		{ApiVersion: "example.com/v1", Kind: "Deployment"},
		{ApiVersion: "v1", Kind: "Deployment"},
		{ApiVersion: "v1", Kind: "Namespace"},
		{ApiVersion: "apps/v1", Kind: "Namespace"},
	} {
		for _, namespace := range []string{"default", ""} {
			o := &machinev1.MachineSet{Metadata: &metav1.ObjectMeta{
				Namespace: namespace, OwnerReferences: []*metav1.OwnerReference{{Kind: "Other"}, r},
			}}
			for _, t := range []*metav1.ResourceType{deployments, namespaces} {
				if ownership.RefersTo(o, t) {
					got = append(got, namespace+" "+r.GetApiVersion()+" "+r.GetKind())
				}
			}
		}
	}
	want := []string{
		"default apps/v1 Deployment", "default apps/v1beta2 Deployment", "default v1 Namespace", " v1 Namespace",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("known are (-want +got):\n%s", diff)
	}
}
