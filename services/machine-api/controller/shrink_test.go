package controller

import (
	"slices"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func (w *world) shrink(name string, pre *metav1.Preconditions) error {
	_, _, err := w.tables.DeleteAndShrink(w.t.Context(), object.Key{Namespace: "openshift-machine-api", Name: name}, pre,
		"",
		resource.WriteOptions{Reason: "it is not needed"})
	return err
}

// A set that loses three machines of six at the same time loses these three and no others, and makes none.
func TestAMachineIsDeletedTogetherWithItsReplica(t *testing.T) {
	w := newWorld(t)
	w.createSet(newSet(6))
	w.start()
	all := w.runningNames(6)
	var group errgroup.Group
	for _, name := range all[:3] {
		group.Go(func() error { return w.shrink(name, nil) })
	}
	must(t, group.Wait())
	if left := w.runningNames(3); !slices.Equal(left, all[3:]) {
		t.Errorf("left are %v, want %v", left, all[3:])
	}
	if s, _ := w.tables.Sets.Lookup("openshift-machine-api", "workers"); s.GetSpec().GetReplicas() != 3 {
		t.Errorf("the set has %d replicas, want 3", s.GetSpec().GetReplicas())
	}
	if n := w.cloud.creations(); n != 6 {
		t.Errorf("%d instances were made, want 6", n)
	}
}

func TestADeletionWithAReplicaIsRecordedOrRefused(t *testing.T) {
	w := newWorld(t)
	s := w.createSet(newSet(2))
	owned := func(name string) *machinev1.Machine {
		return w.create(newMachine(name, func(m *machinev1.Machine) {
			m.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(s)}
		}))
	}
	first := owned("first")
	owned("second")
	owned("third")
	w.create(newMachine("free"))
	replicas := func(want int32) {
		t.Helper()
		now, err := w.tables.Sets.Get(t.Context(), "openshift-machine-api", "workers")
		must(t, err)
		if got := now.GetSpec().GetReplicas(); got != want {
			t.Errorf("the set has %d replicas, want %d", got, want)
		}
	}
	refused := func(name string, pre *metav1.Preconditions, code codes.Code, text string) {
		t.Helper()
		if err := w.shrink(name, pre); status.Code(err) != code || status.Convert(err).Message() != text {
			t.Errorf("machine %s: %v, want %v: %s", name, err, code, text)
		}
	}
	refused("free", nil, codes.FailedPrecondition, "machine/free: it belongs to no machine set")
	if err := w.shrink("first", &metav1.Preconditions{ResourceVersion: "1"}); status.Code(err) != codes.Aborted {
		t.Errorf("a stale revision: %v", err)
	}
	w.changeSet("workers", func(s *machinev1.MachineSet) { s.Spec.AuthoritativeApi = otherAPI })
	refused("first", nil, codes.FailedPrecondition,
		"machineset/workers: it is paused: spec.authoritativeAPI is ClusterAPI")
	w.changeSet("workers", func(s *machinev1.MachineSet) { s.Spec.AuthoritativeApi = "" })
	replicas(2)
	must(t, w.shrink("first", &metav1.Preconditions{ResourceVersion: first.Metadata.ResourceVersion}))
	replicas(1)
	got, err := w.tables.Machines.Get(t.Context(), "openshift-machine-api", "first")
	must(t, err)
	if !object.Deleting(got) || got.GetStatus().GetDeletion().GetReason() != "it is not needed" {
		t.Errorf("the machine is %v", got)
	}
	set, err := w.tables.Sets.Get(t.Context(), "openshift-machine-api", "workers")
	must(t, err)
	if got.Metadata.ResourceVersion != set.Metadata.ResourceVersion {
		t.Errorf("machine at revision %s, set at %s: not one write", got.Metadata.ResourceVersion,
			set.Metadata.ResourceVersion)
	}
	refused("first", nil, codes.FailedPrecondition,
		"machine/first: it is already being deleted, and no longer counts for its set")
	_, _, err = w.tables.DeleteAndShrink(t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "second"}, nil,
		"",
		resource.WriteOptions{DryRun: true})
	must(t, err)
	replicas(1)
	w.changeSet("workers", func(s *machinev1.MachineSet) { s.Spec.Replicas = proto.Int32(0) })
	refused("second", nil, codes.FailedPrecondition,
		"machineset/workers: it has no replicas, so it already deletes its machines")
	must(t, func() error {
		_, err := w.tables.Sets.Delete(t.Context(), "openshift-machine-api", "workers", nil)
		return err
	}())
	w.createSet(newSet(3))
	refused("third", nil, codes.FailedPrecondition,
		"machineset/workers: it is not the set that the machine belongs to: that one is gone")
}
