package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestAMachineLivesAndDies(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("m", func(m *machinev1.Machine) {
		m.Spec.Metadata = &metav1.ObjectMeta{
			Labels:      map[string]string{"node-role.kubernetes.io/worker": ""},
			Annotations: map[string]string{"note": "x"},
		}
		m.Spec.Taints = []*nodev1.Taint{{Key: "key1", Value: proto.String("value1"), Effect: "NoExecute"}}
	}))
	m := w.phase("m", plan.PhaseRunning)
	if m.Spec.ProviderId != "test://c/m" || m.Status.NodeRef.GetName() != "m" || m.Status.Addresses[0].GetAddress() == "" {
		t.Errorf("machine = %v", m)
	}
	for key, want := range map[string]string{
		plan.LabelInstanceType: "small", plan.LabelRegion: "here",
		plan.LabelZone: "a", plan.LabelCluster: "test-x7k2p",
	} {
		if got := m.Metadata.Labels[key]; got != want {
			t.Errorf("label %s = %q, want %q", key, got, want)
		}
	}
	if m.Metadata.Annotations[plan.AnnotationInstanceState] != "Running" {
		t.Errorf("annotations = %v", m.Metadata.Annotations)
	}
	eventually(t, func() error {
		n, _ := w.nodes.Lookup("", "m")
		if !plan.InStep(m, n) {
			return fmt.Errorf("node is not up to date: %v", n)
		}
		return nil
	})
	w.delete("m")
	w.gone("m")
	if _, ok := w.nodes.Lookup("", "m"); ok {
		t.Error("the node is still there")
	}
	if n := len(w.drains.All()); n != 0 || w.cloud.count() != 0 {
		t.Errorf("%d drains and %d instances are left", n, w.cloud.count())
	}
	if w.cloud.creations() != 1 {
		t.Errorf("%d instances were made for one machine", w.cloud.creations())
	}
	if list := w.tables.Revocations.All(); len(list) != 1 ||
		list[0].GetSpec().GetMachineUid() != m.GetMetadata().GetUid() {
		t.Errorf("revocations %v, want that of the machine", list)
	}
}

func TestAForgottenMachineGoesWithoutItsProviderButNotPastItsHooks(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("m", func(m *machinev1.Machine) {
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{PreTerminate: []*machinev1.LifecycleHook{
			{Name: "hold", Owner: "a-test"},
		}}
	}))
	w.phase("m", plan.PhaseRunning)
	w.cloud.set(func(c *cloud) { c.away = status.Error(codes.Unavailable, "the account was closed") })
	w.delete("m")
	w.phase("m", plan.PhaseDeleting)
	w.change("m", func(m *machinev1.Machine) { plan.Forget(m, "ada", "closed", time.Now()) })
	eventually(t, func() error {
		if c := object.FindCondition(w.machine("m").GetStatus().GetConditions(),
			plan.InstanceExists); c.GetReason() != plan.Forgotten {
			return fmt.Errorf("condition %v", c)
		}
		return nil
	})
	if w.machine("m") == nil {
		t.Fatal("it went past its hook")
	}
	w.change("m", func(m *machinev1.Machine) { m.Spec.LifecycleHooks = nil })
	w.gone("m")
	if _, err := w.nodes.Get(t.Context(), "", "m"); status.Code(err) != codes.NotFound {
		t.Errorf("its node: %v", err)
	}
	if w.cloud.count() != 1 || len(w.tables.Revocations.All()) != 1 {
		t.Errorf("%d instances, %d revocations; want what the provider has left, and the machine's certificates refused",
			w.cloud.count(), len(w.tables.Revocations.All()))
	}
}

// A node of the machine's name that another machine registered, or an administrator made, is not the machine's: it
// stays when the machine goes.
func TestADeletionLeavesANodeThatOnlyHasTheName(t *testing.T) {
	w := newWorld(t)
	w.cloud.set(func(c *cloud) { c.silent = true })
	for name, node := range map[string]*nodev1.Node{
		"made": {Metadata: &metav1.ObjectMeta{Name: "made"}},
		"other": {
			Metadata: &metav1.ObjectMeta{Name: "other", Annotations: map[string]string{nodeid.MachineUID: "of-another"}},
			Spec:     &nodev1.NodeSpec{ProviderId: "test://c/other"},
		},
	} {
		if _, err := w.nodes.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		w.create(newMachine(name))
	}
	w.start()
	for _, name := range []string{"made", "other"} {
		if m := w.phase(name, plan.PhaseProvisioned); m.GetStatus().GetNodeRef() != nil {
			t.Errorf("machine %s is linked to node %v", name, m.GetStatus().GetNodeRef())
		}
		w.delete(name)
		w.gone(name)
		if _, err := w.nodes.Get(t.Context(), "", name); err != nil {
			t.Errorf("node %s: %v", name, err)
		}
	}
	if n := len(w.drains.All()); n != 0 {
		t.Errorf("%d drains of nodes that are not theirs", n)
	}
}

func TestAProvidersWordIsDoubted(t *testing.T) {
	w := newWorld(t)
	w.start()
	first := w.create(newMachine("first"))
	first = w.phase("first", plan.PhaseRunning)
	w.cloud.set(func(c *cloud) { c.address, c.silent = first.GetStatus().GetAddresses()[0].GetAddress(), true })
	w.create(newMachine("second"))
	eventually(t, func() error {
		m := w.machine("second")
		c := object.FindCondition(m.GetStatus().GetConditions(), plan.InstanceExists)
		if !strings.Contains(c.GetMessage(), "is that of machine openshift-machine-api/first") ||
			len(m.GetStatus().GetAddresses()) > 0 || m.GetSpec().GetProviderId() != "" {
			return fmt.Errorf("machine = %v", m)
		}
		return nil
	})
	if n := w.cloud.creations(); n != 2 {
		t.Errorf("%d instances were made for two machines", n)
	}
	// It can be deleted all the same, and takes nothing of the first one's along.
	w.delete("second")
	w.gone("second")
	if w.cloud.count() != 1 || w.machine("first").GetStatus().GetPhase() != plan.PhaseRunning {
		t.Errorf("%d instances are left, and the first machine is %v", w.cloud.count(), w.machine("first").GetStatus())
	}
	// Once the address is free, another machine may have it.
	w.delete("first")
	w.gone("first")
	w.create(newMachine("third"))
	w.phase("third", plan.PhaseProvisioned)
}

func TestHooksHoldADeletion(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("m", func(m *machinev1.Machine) {
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{
			PreDrain:     []*machinev1.LifecycleHook{{Name: "MigrateImportantApp", Owner: "my-app-migration-controller"}},
			PreTerminate: []*machinev1.LifecycleHook{{Name: "BackupFileSystem", Owner: "my-backup-controller"}},
		}
	}))
	w.phase("m", plan.PhaseRunning)
	w.delete("m")
	w.phase("m", plan.PhaseDeleting)
	if len(w.drains.All()) != 0 {
		t.Fatal("the drain slipped past its hook")
	}
	w.change("m", func(m *machinev1.Machine) { m.Spec.LifecycleHooks.PreDrain = nil })
	eventually(t, func() error {
		if !object.IsTrue(w.machine("m").GetStatus().GetConditions(), plan.Drained) {
			return errors.New("not drained")
		}
		return nil
	})
	if _, asked := w.cloud.firstDeletion(); asked {
		t.Fatal("the instance slipped past its hook")
	}
	freed := time.Now()
	w.change("m", func(m *machinev1.Machine) { m.Spec.LifecycleHooks.PreTerminate = nil })
	w.gone("m")
	asked, _ := w.cloud.firstDeletion()
	t.Logf("last hook removed → provider asked: %v (the write of the removal included)", asked.Sub(freed))
}

func TestAFailedDrainIsShownAndHolds(t *testing.T) {
	w := newWorld(t)
	w.cloud.set(func(c *cloud) { c.stuck = "budget web" })
	w.start()
	w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.delete("m")
	eventually(t, func() error {
		c := object.FindCondition(w.machine("m").GetStatus().GetConditions(), plan.Drained)
		if c.GetStatus() != "False" || c.GetMessage() != "could not drain machine: budget web" {
			return fmt.Errorf("condition = %v", c)
		}
		return nil
	})
	w.cloud.set(func(c *cloud) { c.stuck = "" })
	for _, d := range w.drains.All() { // what eviction-controller does when it tries again
		_, err := w.drains.Modify(t.Context(), object.KeyOf(d), func(d *nodev1.Drain) error {
			d.Status.Phase = proto.String("Succeeded")
			return nil
		})
		must(t, err)
	}
	w.gone("m")
}

func TestErrorsOfCreation(t *testing.T) {
	w := newWorld(t)
	w.cloud.set(func(c *cloud) { c.fault = status.Error(codes.ResourceExhausted, "no room") })
	w.start()
	w.create(newMachine("waits"))
	eventually(t, func() error {
		c := object.FindCondition(w.machine("waits").GetStatus().GetConditions(), plan.InstanceExists)
		if c.GetMessage() != "Instance has not been created: no room" ||
			w.machine("waits").GetStatus().GetPhase() != plan.PhaseProvisioning {
			return fmt.Errorf("machine = %v", w.machine("waits"))
		}
		return nil
	})
	w.cloud.set(func(c *cloud) { c.fault = nil })
	w.phase("waits", plan.PhaseRunning)

	w.cloud.set(func(c *cloud) { c.fault = status.Error(codes.InvalidArgument, "zone: unknown") })
	w.create(newMachine("refused"))
	if m := w.phase("refused", plan.PhaseFailed); m.Status.GetErrorReason() != "InvalidConfiguration" ||
		m.Status.GetErrorMessage() != "zone: unknown" {
		t.Errorf("status = %v", m.Status)
	}
	w.create(newMachine("empty", func(m *machinev1.Machine) { m.Spec = nil }))
	for _, name := range []string{"empty", "refused"} {
		w.phase(name, plan.PhaseFailed)
		w.delete(name)
		w.gone(name)
	}
}

func TestAnInstanceThatVanishesFailsItsMachine(t *testing.T) {
	w := newWorld(t)
	w.start()
	m := w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.cloud.set(func(c *cloud) { c.vanish(m.Metadata.Uid) })
	w.phase("m", plan.PhaseFailed)
	w.delete("m")
	w.gone("m")
}

func newSet(replicas int32) *machinev1.MachineSet {
	return &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: "workers", Namespace: "openshift-machine-api"},
		Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(replicas), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"set": "workers"}},
			Template: &machinev1.MachineTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: map[string]string{"set": "workers"}},
				Spec:     &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: settings("a")}},
			},
		},
	}
}

func (w *world) running(n int) {
	w.t.Helper()
	eventually(w.t, func() error {
		have, all := 0, w.tables.Machines.All()
		for _, m := range all {
			if m.GetStatus().GetPhase() == plan.PhaseRunning {
				have++
			}
		}
		if have != n || len(all) != n {
			return fmt.Errorf("%d of %d machines run, want %d", have, len(all), n)
		}
		return nil
	})
}

func (w *world) scale(replicas int32) {
	w.t.Helper()
	_, err := w.tables.Sets.Modify(w.t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "workers"},
		func(s *machinev1.MachineSet) error {
			s.Spec.Replicas = proto.Int32(replicas)
			return nil
		})
	must(w.t, err)
}

func TestASetScales(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("free", labelled(map[string]string{"set": "workers"})))
	_, err := w.tables.Sets.Create(t.Context(), newSet(2))
	must(t, err)
	w.running(2)
	eventually(t, func() error {
		if o := object.ControllerOf(w.machine("free")); o.GetName() != "workers" {
			return fmt.Errorf("the free machine is not adopted: %v", w.machine("free"))
		}
		return nil
	})
	w.scale(4)
	w.running(4)
	w.change("free", func(m *machinev1.Machine) {
		m.Metadata.Annotations = map[string]string{
			plan.AnnotationDelete: "true",
		}
	})
	w.scale(3)
	w.running(3)
	if w.machine("free") != nil {
		t.Errorf("the annotated machine is still there; left are %v", names(w.tables.Machines.All()))
	}
	eventually(t, func() error {
		s, _ := w.tables.Sets.Lookup("openshift-machine-api", "workers")
		if st := s.GetStatus(); st.GetReplicas() != 3 || st.GetReadyReplicas() != 3 || st.GetAvailableReplicas() != 3 {
			return fmt.Errorf("status = %v", st)
		}
		return nil
	})
	if _, err := w.tables.Sets.Delete(t.Context(), "openshift-machine-api", "workers", nil); err != nil {
		t.Fatal(err)
	}
	w.running(0)
}

func TestACrashAnywhereIsTakenUpAgain(t *testing.T) {
	w := newWorld(t)
	w.start()
	_, err := w.tables.Sets.Create(t.Context(), newSet(4))
	must(t, err)
	for i := range 4 {
		eventually(t, func() error {
			if n := w.cloud.creations(); n < i {
				return fmt.Errorf("%d instances made", n)
			}
			return nil
		})
		w.stop() // whatever was under way ends where it was
		w.start()
	}
	w.running(4)
	if w.cloud.creations() != 4 {
		t.Errorf("%d instances were made for 4 machines", w.cloud.creations())
	}
	w.scale(0)
	for left := 4; left > 0; left-- {
		eventually(t, func() error {
			if n := w.cloud.count(); n > left {
				return fmt.Errorf("%d instances left", n)
			}
			return nil
		})
		w.stop()
		w.start()
	}
	w.running(0)
	if w.cloud.count() != 0 || len(w.drains.All()) != 0 || len(w.nodes.All()) != 0 {
		t.Errorf("left: %d instances, %d drains, %d nodes", w.cloud.count(), len(w.drains.All()), len(w.nodes.All()))
	}
}

func newControlPlane() *machinev1.ControlPlaneMachineSet {
	role := map[string]string{plan.LabelRole: plan.RoleMaster, plan.LabelType: plan.RoleMaster}
	zones := &structpb.Struct{}
	if err := zones.UnmarshalJSON(
		[]byte(`{"platform":"Local","local":[{"zone":"a"},{"zone":"b"},{"zone":"c"}]}`)); err != nil {
		panic(err)
	}
	return &machinev1.ControlPlaneMachineSet{
		Metadata: &metav1.ObjectMeta{Name: "cluster", Namespace: "openshift-machine-api"},
		Spec: &machinev1.ControlPlaneMachineSetSpec{
			State: "Active", Replicas: proto.Int32(3), Selector: &metav1.LabelSelector{MatchLabels: role},
			Template: &machinev1.ControlPlaneMachineSetTemplate{
				MachinesV1Beta1MachineOpenshiftIo: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
					FailureDomains: zones, Metadata: &metav1.ObjectMeta{Labels: role},
					Spec: &machinev1.MachineSpec{
						ProviderSpec: &machinev1.ProviderSpec{Value: settings("")},
						LifecycleHooks: &machinev1.LifecycleHooks{
							PreDrain: []*machinev1.LifecycleHook{{Name: "EtcdQuorumOperator", Owner: "clusteroperator/etcd"}},
						},
						Metadata: &metav1.ObjectMeta{Labels: map[string]string{"node-role.kubernetes.io/master": ""}},
					},
				},
			},
		},
	}
}

func TestAControlPlaneReplacesAMachine(t *testing.T) {
	w := newWorld(t)
	w.start()
	_, err := w.tables.ControlPlanes.Create(t.Context(), newControlPlane())
	must(t, err)
	w.running(3)
	zone := map[string]bool{}
	var victim *machinev1.Machine
	for _, m := range w.tables.Machines.All() {
		zone[m.Metadata.Labels[plan.LabelZone]] = true
		victim = m
	}
	if len(zone) != 3 {
		t.Errorf("zones = %v, want three", zone)
	}
	w.delete(victim.Metadata.Name)
	eventually(t, func() error {
		if n := len(w.tables.Machines.All()); n != 4 {
			return fmt.Errorf("%d machines, want 4 for a while", n)
		}
		return nil
	})
	w.phase(victim.Metadata.Name, plan.PhaseDeleting) // its hook holds it
	w.change(victim.Metadata.Name, func(m *machinev1.Machine) { m.Spec.LifecycleHooks = nil })
	w.gone(victim.Metadata.Name)
	w.running(3)
	for _, m := range w.tables.Machines.All() {
		delete(zone, m.Metadata.Labels[plan.LabelZone])
	}
	if len(zone) != 0 {
		t.Errorf("no index is left in %v", zone)
	}
	w.deleteControlPlane(3)
}

// deleteControlPlane deletes the set and sees that its machines stay.
func (w *world) deleteControlPlane(machines int) {
	w.t.Helper()
	_, err := w.tables.ControlPlanes.Delete(w.t.Context(), "openshift-machine-api", "cluster", nil)
	must(w.t, err)
	eventually(w.t, func() error {
		if _, there := w.tables.ControlPlanes.Lookup("openshift-machine-api", "cluster"); there {
			return errors.New("the set is still there")
		}
		return nil
	})
	for _, m := range w.tables.Machines.All() {
		if object.Deleting(m) || len(m.Metadata.OwnerReferences) > 0 {
			w.t.Errorf("machine %s goes, or still belongs to the set", m.Metadata.Name)
		}
	}
	if n := len(w.tables.Machines.All()); n != machines {
		w.t.Errorf("%d machines, want %d", n, machines)
	}
}

func TestAControlPlaneRollsOverToANewTemplate(t *testing.T) {
	w := newWorld(t)
	w.start()
	set := newControlPlane()
	set.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec.LifecycleHooks = nil
	_, err := w.tables.ControlPlanes.Create(t.Context(), set)
	must(t, err)
	w.running(3)
	_, err = w.tables.ControlPlanes.Modify(t.Context(), object.KeyOf(set),
		func(s *machinev1.ControlPlaneMachineSet) error {
			s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec.ProviderSpec.Value.Fields["size"] = structpb.NewStringValue(
				"large")
			return nil
		})
	must(t, err)
	eventually(t, func() error {
		s, _ := w.tables.ControlPlanes.Lookup("openshift-machine-api", "cluster")
		if n := len(w.tables.Machines.All()); n > 4 {
			return fmt.Errorf("%d machines at once", n)
		}
		if st := s.GetStatus(); st.GetUpdatedReplicas() != 3 || st.GetReplicas() != 3 || w.cloud.creations() != 6 {
			return fmt.Errorf("status = %v, %d made", st, w.cloud.creations())
		}
		return nil
	})
}

// The copy of the nodes keeps its last state while eviction-controller does not answer: it does not show whether a
// replacement is still ready. No machine is deleted for it.
func TestAControlPlaneDoesNotTrustACopy(t *testing.T) {
	w := newWorld(t)
	var away atomic.Bool
	var asked atomic.Int64
	c := w.start(func(c *Config) {
		catchUp := c.CatchUpNodes
		c.CatchUpNodes = func(ctx context.Context) error {
			if away.Load() {
				asked.Add(1)
				return errors.New("no answer")
			}
			return catchUp(ctx)
		}
	})
	set := newControlPlane()
	set.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec.LifecycleHooks = nil
	_, err := w.tables.ControlPlanes.Create(t.Context(), set)
	must(t, err)
	w.running(3)
	original := w.tables.Machines.Keys()
	away.Store(true)
	_, err = w.tables.ControlPlanes.Modify(t.Context(), object.KeyOf(set),
		func(s *machinev1.ControlPlaneMachineSet) error {
			s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec.ProviderSpec.Value.Fields["size"] = structpb.NewStringValue(
				"large")
			return nil
		})
	must(t, err)
	eventually(t, func() error {
		s, _ := w.tables.ControlPlanes.Lookup("openshift-machine-api", "cluster")
		if s.GetStatus().GetReadyReplicas() != 4 || s.GetStatus().GetUpdatedReplicas() != 1 {
			return fmt.Errorf("status %v", s.GetStatus())
		}
		return nil
	})
	before := asked.Load()
	eventually(t, func() error {
		c.controlPlanes.Add(object.KeyOf(set).String())
		if asked.Load() <= before+1 { // the first call may have been made for the decision before
			return errors.New("the replacement is ready, and the nodes are not read again")
		}
		return nil
	})
	for _, m := range w.tables.Machines.All() {
		if object.Deleting(m) {
			t.Errorf("machine %s is deleted: %v", m.GetMetadata().GetName(), m.GetStatus().GetDeletion())
		}
	}
	for _, key := range original {
		if !slices.Contains(w.tables.Machines.Keys(), key) {
			t.Errorf("machine %s is gone", key)
		}
	}
	away.Store(false)
	c.controlPlanes.Add(object.KeyOf(set).String())
	eventually(t, func() error {
		s, _ := w.tables.ControlPlanes.Lookup("openshift-machine-api", "cluster")
		if st := s.GetStatus(); st.GetUpdatedReplicas() != 3 || st.GetReplicas() != 3 {
			return fmt.Errorf("status %v", st)
		}
		return nil
	})
}

func TestDeletionOfAWorkerIsQuick(t *testing.T) {
	w := newWorld(t)
	w.start()
	var took []time.Duration
	for n := range 11 {
		name := fmt.Sprintf("m%d", n)
		w.create(newMachine(name))
		w.phase(name, plan.PhaseRunning)
		began := time.Now()
		w.delete(name)
		w.gone(name)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("deletion of a worker without hooks and pods, instant provider: median %v, worst %v of %d",
		took[len(took)/2], took[len(took)-1], len(took))
}
