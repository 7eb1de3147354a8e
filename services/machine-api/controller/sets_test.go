package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
)

const otherAPI = "ClusterAPI"

func (w *world) createSet(s *machinev1.MachineSet) *machinev1.MachineSet {
	w.t.Helper()
	out, err := w.tables.Sets.Create(w.t.Context(), s)
	must(w.t, err)
	return out
}

func (w *world) changeSet(name string, f func(*machinev1.MachineSet)) {
	w.t.Helper()
	_, err := w.tables.Sets.Modify(w.t.Context(), object.Key{Namespace: "openshift-machine-api", Name: name},
		func(s *machinev1.MachineSet) error { f(s); return nil })
	must(w.t, err)
}

func namedSet(name string, replicas int32) *machinev1.MachineSet {
	s := newSet(replicas)
	s.Metadata.Name = name
	return s
}

// A scale-up by 5,000 that is called off when there are 200 machines stops there: the set is read before each batch.
func TestAScaleUpCanBeCalledOff(t *testing.T) {
	w := newWorld(t)
	c, parts := w.controllers()
	background(t, parts...)
	s := w.createSet(newSet(5000))
	eventually(t, func() error {
		if _, ok := c.ViewSet(s); !ok {
			return errors.New("the nodes are not known yet")
		}
		return nil
	})
	key := object.KeyOf(s).String()
	for batch := 1; len(w.tables.Machines.All()) < 200; batch++ {
		wake, err := c.reconcileSet(t.Context(), key)
		must(t, err)
		if n := len(w.tables.Machines.All()); n != 50*batch || wake.After(time.Now()) || wake.IsZero() {
			t.Fatalf("%d machines after %d batches, and the next at %v", n, batch, wake)
		}
	}
	w.scale(200)
	wake, err := c.reconcileSet(t.Context(), key)
	must(t, err)
	if n := len(w.tables.Machines.All()); n != 200 || !wake.IsZero() {
		t.Errorf("%d machines, and looks again at %v; want the 200 that there were, and nothing more to do", n, wake)
	}
	w.scale(20)
	_, err = c.reconcileSet(t.Context(), key)
	must(t, err)
	going := 0
	for _, m := range w.tables.Machines.All() {
		if object.Deleting(m) {
			going++
		}
	}
	if going != 50 {
		t.Errorf("%d machines are deleted in one batch, want 50", going)
	}
}

// Two sets that match the same machines share them once: the older one adopts, and no machine goes for the other.
func TestTwoSetsThatMatchTheSameMachinesComeToRest(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"one", "two"} {
		s := namedSet(name, 2)
		s.Spec.DeletePolicy = "Oldest"
		w.createSet(s)
	}
	w.start()
	w.running(4)
	own := w.tables.Machines.All()
	w.stop()
	for i := range 6 {
		w.create(newMachine(fmt.Sprintf("free-%d", i), labelled(map[string]string{"set": "workers"})))
	}
	w.start()
	w.running(4)
	for _, name := range []string{"one", "two"} {
		s, _ := w.tables.Sets.Lookup("openshift-machine-api", name)
		if n := len(w.tables.Machines.ByIndex(resource.ByOwner, s.Metadata.Uid)); n != 2 {
			t.Errorf("set %s has %d machines, want 2", name, n)
		}
	}
	for _, m := range own {
		if object.ControllerOf(m).GetName() == "two" && w.machine(m.Metadata.Name) == nil {
			t.Errorf("machine %s of set two went for machines that set one adopted", m.Metadata.Name)
		}
	}
	// One that is deleted before its provider was called needs none.
	if n := w.cloud.creations(); n > 10 {
		t.Errorf("%d instances were made for 10 machines", n)
	}
}

// The younger set adopts what matches both once the older one no longer does.
func TestTheNextSetAdoptsWhenOneGoes(t *testing.T) {
	w := newWorld(t)
	one := w.createSet(namedSet("one", 1))
	w.createSet(namedSet("two", 1))
	w.start()
	w.running(2)
	_, err := w.tables.Sets.Delete(t.Context(), one.Metadata.Namespace, "one", nil,
		resource.WriteOptions{Propagation: resource.Orphan})
	must(t, err)
	w.running(1)
	if o := object.ControllerOf(w.tables.Machines.All()[0]); o.GetName() != "two" {
		t.Errorf("the machine that is left belongs to %v", o)
	}
}

func TestASetOfNoReplicasRemovesAnOrphanAtOnce(t *testing.T) {
	w := newWorld(t)
	w.createSet(newSet(0))
	w.start()
	eventually(t, func() error {
		if s, _ := w.tables.Sets.Lookup("openshift-machine-api", "workers"); s.GetStatus().GetObservedGeneration() != 1 {
			return errors.New("the set was not seen yet")
		}
		return nil
	})
	w.create(newMachine("master", labelled(map[string]string{"set": "workers", plan.LabelRole: plan.RoleMaster})))
	w.create(newMachine("free", labelled(map[string]string{"set": "workers"})))
	w.gone("free")
	if m := w.machine("master"); m == nil || object.Deleting(m) || len(m.Metadata.OwnerReferences) > 0 {
		t.Errorf("a set of workers took a master: %v", m.GetMetadata())
	}
}

func TestAPausedSetWaitsAlsoWithItsDeletion(t *testing.T) {
	for name, propagation := range map[string]string{"with its machines": "", "without them": resource.Orphan} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.createSet(newSet(2))
			w.start()
			w.running(2)
			w.changeSet("workers", func(s *machinev1.MachineSet) { s.Spec.AuthoritativeApi = otherAPI })
			eventually(t, func() error {
				s, _ := w.tables.Sets.Lookup("openshift-machine-api", "workers")
				if !object.IsTrue(s.GetStatus().GetConditions(), "Paused") {
					return fmt.Errorf("status = %v", s.GetStatus())
				}
				return nil
			})
			w.scale(5)
			_, err := w.tables.Sets.Delete(t.Context(), "openshift-machine-api", "workers", nil,
				resource.WriteOptions{Propagation: propagation})
			must(t, err)
			w.stop() // another process leads, which reconciles everything once
			w.start()
			w.create(newMachine("later")) // works off its machines after the sets
			w.phase("later", plan.PhaseRunning)
			if n := len(w.tables.Machines.All()); n != 3 {
				t.Errorf("%d machines, want the two of the set and the later one", n)
			}
			s, there := w.tables.Sets.Lookup("openshift-machine-api", "workers")
			if !there || !object.Deleting(s) {
				t.Fatalf("the paused set did not wait with its deletion: %v", s)
			}
			if n := len(w.tables.Machines.ByIndex(resource.ByOwner, s.Metadata.Uid)); n != 2 {
				t.Errorf("the paused set has %d machines, want 2", n)
			}
			w.changeSet("workers", func(s *machinev1.MachineSet) { s.Spec.AuthoritativeApi = "MachineAPI" })
			if propagation == "" {
				w.running(1)
				return
			}
			eventually(t, func() error {
				if _, there := w.tables.Sets.Lookup("openshift-machine-api", "workers"); there {
					return errors.New("the set is still there")
				}
				return nil
			})
			w.running(3)
		})
	}
}

func TestAPausedMachineWaitsAlsoWithItsDeletion(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.change("m", func(m *machinev1.Machine) { m.Spec.AuthoritativeApi = otherAPI })
	w.delete("m")
	paused := func(want bool) func() error {
		return func() error {
			if is := object.IsTrue(w.machine("m").GetStatus().GetConditions(), "Paused"); is != want {
				return fmt.Errorf("Paused is %v: %v", is, w.machine("m").GetStatus())
			}
			return nil
		}
	}
	eventually(t, paused(true))
	if m := w.machine("m"); m.GetStatus().GetPhase() != plan.PhaseRunning || w.cloud.count() != 1 {
		t.Errorf("a paused machine is %s", m.GetStatus().GetPhase())
	}
	w.change("m", func(m *machinev1.Machine) {
		m.Spec.AuthoritativeApi = ""
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{}
	})
	w.gone("m")
	w.create(newMachine("n", func(m *machinev1.Machine) { m.Spec.AuthoritativeApi = otherAPI }))
	eventually(t, func() error {
		if w.machine("n").GetStatus() == nil {
			return errors.New("not seen yet")
		}
		return nil
	})
	w.change("n", func(m *machinev1.Machine) { m.Spec.AuthoritativeApi = "" })
	if m := w.phase("n", plan.PhaseRunning); slices.ContainsFunc(m.GetStatus().GetConditions(),
		func(c *metav1.Condition) bool { return c.GetType() == "Paused" }) {
		t.Errorf("the condition stays: %v", m.GetStatus().GetConditions())
	}
}

func TestASetHasAtMostTenThousandReplicas(t *testing.T) {
	w := newWorld(t)
	w.createSet(newSet(10_000))
	_, err := w.tables.Sets.Create(t.Context(), namedSet("more", 10_001))
	if field(err) != "spec.replicas" {
		t.Errorf("error %v, want one at spec.replicas", err)
	}
	_, err = w.tables.Sets.Modify(t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "workers"},
		func(s *machinev1.MachineSet) error { s.Spec.Replicas = proto.Int32(2_000_000_000); return nil })
	if field(err) != "spec.replicas" {
		t.Errorf("error %v, want one at spec.replicas", err)
	}
}

// field returns the one field that an error names.
func field(err error) string {
	if list, _ := rpcerr.Fields(err); len(list) == 1 {
		return list[0].Path
	}
	return ""
}
