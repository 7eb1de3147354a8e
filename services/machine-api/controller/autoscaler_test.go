package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// cpuScheduler is used as the scheduler: its pods are real, and its answers consider CPU alone.
type cpuScheduler struct {
	schedulingv1.UnimplementedPodServiceServer
	w    *world
	pods *resource.Table[*schedulingv1.Pod]
}

// PlanPlacement places pods on the first node that has enough CPU.
func (s *cpuScheduler) PlanPlacement(_ context.Context, r *schedulingv1.PlanPlacementRequest) (
	*schedulingv1.PlanPlacementResponse, error,
) {
	out := &schedulingv1.PlanPlacementResponse{}
	for _, v := range r.GetVariations() {
		var names []string
		left := map[string]int64{}
		add := func(name string, n *nodev1.Node) {
			has, _ := placement.Allocatable(n)
			names, left[name] = append(names, name), has.MilliCPU
		}
		for n := range s.w.nodes.Objects() {
			if !slices.Contains(v.GetRemove(), n.GetMetadata().GetName()) {
				add(n.GetMetadata().GetName(), n)
			}
		}
		for _, f := range v.GetAdd() {
			for i := range f.GetCount() {
				add(fmt.Sprintf("~%s-%d", f.GetNode().GetMetadata().GetName(), i), f.GetNode())
			}
		}
		result := &schedulingv1.PlanPlacementResponse_Result{}
		for _, p := range v.GetPlace() {
			pod, _ := s.pods.Lookup(p.GetNamespace(), p.GetName())
			asks := placement.RequestsOf(pod.GetSpec()).MilliCPU
			at := &schedulingv1.PlanPlacementResponse_Placement{Namespace: p.GetNamespace(), Name: p.GetName()}
			for _, name := range names {
				if left[name] >= asks && at.Node == "" {
					left[name] -= asks
					at.Node = name
				}
			}
			result.Placements = append(result.Placements, at)
		}
		out.Results = append(out.Results, result)
	}
	return out, nil
}

// scheduled adds a scheduler to a world, and starts controllers that know it.
func (w *world) scheduled() *cpuScheduler {
	w.t.Helper()
	s, _ := w.scheduledBy()
	return s
}

// scheduledBy is scheduled, and returns the controllers too.
func (w *world) scheduledBy() (*cpuScheduler, *Controller) {
	w.t.Helper()
	s := &cpuScheduler{w: w, pods: resource.NewTable(w.store, protovalidate.GlobalValidator,
		resource.Config[*schedulingv1.Pod]{KeepStatus: true, Log: quiet()})}
	budgets := resource.NewTable(w.store, protovalidate.GlobalValidator,
		resource.Config[*schedulingv1.PodDisruptionBudget]{Log: quiet()})
	background(w.t, s.pods.Run, budgets.Run)
	w.serve("scheduler", func(g *grpc.Server) {
		must(w.t, resource.Register(g, &schedulingv1.PodService_ServiceDesc, s, s.pods))
		must(w.t, resource.Register(g, &schedulingv1.PodDisruptionBudgetService_ServiceDesc, nil, budgets))
	})
	pods, err := informer.New[*schedulingv1.Pod](w.conns["scheduler"], quiet())
	must(w.t, err)
	copies, err := informer.New[*schedulingv1.PodDisruptionBudget](w.conns["scheduler"], quiet())
	must(w.t, err)
	c := w.start(func(cfg *Config) { cfg.Scheduler, cfg.Pods, cfg.Budgets = w.conns["scheduler"], pods, copies })
	background(w.t, c.FollowPods)
	return s, c
}

// pending creates a pod that no node fits.
func (s *cpuScheduler) pending(name string) {
	s.w.t.Helper()
	_, err := s.pods.Create(s.w.t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{
			Name: "a", Image: "a", Resources: &schedulingv1.ResourceRequirements{
				Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("1500m")},
			},
		}}},
		Status: &schedulingv1.PodStatus{Conditions: []*schedulingv1.PodCondition{{
			Type: "PodScheduled", Status: "False", Reason: proto.String("Unschedulable"),
		}}},
	})
	must(s.w.t, err)
}

// joined gives every node two CPUs and makes it ready.
func (w *world) joined() {
	for n := range w.nodes.Objects() {
		_, err := w.nodes.Modify(w.t.Context(), object.KeyOf(n), func(n *nodev1.Node) error {
			n.Status.Capacity = map[string]*structpb.Value{
				"cpu": structpb.NewStringValue("2"), "memory": structpb.NewStringValue("4Gi"),
			}
			n.Status.Conditions = []*nodev1.NodeCondition{{
				Type: "Ready", Status: "True", LastTransitionTime: timestamppb.New(time.Now().Add(-time.Hour)),
			}}
			return nil
		})
		must(w.t, err)
	}
}

// going waits until one machine is being deleted, and returns it.
func (w *world) going() *machinev1.Machine {
	w.t.Helper()
	var out *machinev1.Machine
	eventually(w.t, func() error {
		for m := range w.tables.Machines.Objects() {
			if object.Deleting(m) {
				out = m
				return nil
			}
		}
		return errors.New("no machine is being deleted")
	})
	return out
}

func TestASetFollowsThePods(t *testing.T) {
	w := newWorld(t)
	s := w.scheduled()
	set := newSet(1)
	set.Metadata.Annotations = map[string]string{"machine.openshift.io/vCPU": "2", "machine.openshift.io/memoryMb": "4096"}
	set.Spec.Template.Spec.LifecycleHooks = &machinev1.LifecycleHooks{
		PreDrain: []*machinev1.LifecycleHook{{Name: "Witness", Owner: "the-test"}},
	}
	w.createSet(set)
	first := w.runningNames(1)
	w.joined()
	_, err := w.tables.Autoscalers.Create(t.Context(), &machinev1.MachineAutoscaler{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "workers"},
		Spec: &machinev1.MachineAutoscalerSpec{
			MinReplicas: 1, MaxReplicas: 3, ScaleTargetRef: &machinev1.MachineAutoscalerTarget{
				Kind: "MachineSet", Name: "workers",
			},
		},
	})
	must(t, err)
	able := func(status string) *machinev1.MachineAutoscaler {
		t.Helper()
		var a *machinev1.MachineAutoscaler
		eventually(t, func() error {
			a, _ = w.tables.Autoscalers.Lookup("openshift-machine-api", "workers")
			if c := object.FindCondition(a.GetStatus().GetConditions(), "AbleToScale"); c.GetStatus() != status {
				return fmt.Errorf("the autoscaler is %v", a.GetStatus())
			}
			return nil
		})
		return a
	}
	able("False")
	_, err = w.tables.ClusterAutoscalers.Create(t.Context(), &machinev1.ClusterAutoscaler{
		Metadata: &metav1.ObjectMeta{Name: "default"},
		Spec: &machinev1.ClusterAutoscalerSpec{ScaleDown: &machinev1.ClusterAutoscalerScaleDown{
			Enabled: true, DelayAfterAdd: "0s", DelayAfterDelete: "0s", UnneededTime: "1s",
		}},
	})
	must(t, err)
	able("True")
	for _, name := range []string{"a", "b", "c"} {
		s.pending(name)
	}
	w.runningNames(3)
	w.joined()
	a := able("True")
	if a.GetStatus().GetLastScaleUpTime() == nil {
		t.Errorf("the autoscaler is %v", a.GetStatus())
	}
	for _, name := range []string{"a", "b", "c"} {
		_, err := s.pods.Delete(t.Context(), "default", name, nil)
		must(t, err)
	}
	for range 2 {
		going := w.going()
		if d := going.GetStatus().GetDeletion(); d.GetTrigger() != "ClusterAutoscaler" || d.GetRequestedBy() != "default" ||
			d.GetReason() == "" {
			t.Errorf("machine %s goes by %v", going.GetMetadata().GetName(), d)
		}
		w.change(going.GetMetadata().GetName(), func(m *machinev1.Machine) { m.Spec.LifecycleHooks = nil })
		w.gone(going.GetMetadata().GetName())
	}
	left := w.runningNames(1)
	eventually(t, func() error {
		if a := able("True"); a.GetStatus().GetLastScaleDownTime() == nil || a.GetStatus().GetDesiredReplicas() != 1 {
			return errors.New(a.GetStatus().String())
		}
		return nil
	})
	if n := w.cloud.creations(); n != 3 {
		t.Errorf("%d instances were made for at most 3 machines; before there was %v, now %v", n, first, left)
	}
}

// Machines under way count for the pods that wait: the decisions between the growth of a set and the first of its nodes
// add no further machine, though the set has room for many.
func TestASetDoesNotGrowAgainWhileItsMachinesAreUnderWay(t *testing.T) {
	w := newWorld(t)
	s := w.scheduled()
	set := newSet(1)
	set.Metadata.Annotations = map[string]string{"machine.openshift.io/vCPU": "2", "machine.openshift.io/memoryMb": "4096"}
	w.createSet(set)
	w.runningNames(1)
	w.joined()
	w.cloud.set(func(c *cloud) { c.silent = true }) // no node joins from here on
	_, err := w.tables.Autoscalers.Create(t.Context(), &machinev1.MachineAutoscaler{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "workers"},
		Spec: &machinev1.MachineAutoscalerSpec{
			MinReplicas: 1, MaxReplicas: 100, ScaleTargetRef: &machinev1.MachineAutoscalerTarget{
				Kind: "MachineSet", Name: "workers",
			},
		},
	})
	must(t, err)
	_, err = w.tables.ClusterAutoscalers.Create(t.Context(), &machinev1.ClusterAutoscaler{
		Metadata: &metav1.ObjectMeta{Name: "default"},
	})
	must(t, err)
	for _, name := range []string{"a", "b", "c"} {
		s.pending(name)
	}
	// A pod on the node and two on further ones. Pods may come in one decision or in several.
	for decided := 0; decided < 3; decided++ {
		var last *machinev1.MachineAutoscalerStatus
		eventually(t, func() error {
			a, _ := w.tables.Autoscalers.Lookup("openshift-machine-api", "workers")
			if last = a.GetStatus(); last.GetDesiredReplicas() > 3 {
				return nil
			}
			if last.GetCurrentReplicas() != 3 || last.GetUnderwayMachines() != 2 {
				return fmt.Errorf("no decision with two machines under way yet: %v", last)
			}
			return nil
		})
		if last.GetDesiredReplicas() != 3 {
			t.Fatalf("with two machines under way for the two pods that wait, the set is to have %d replicas: %v",
				last.GetDesiredReplicas(), last)
		}
		// Another decision, whose status differs from this one.
		_, err := w.tables.Autoscalers.Modify(t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "workers"},
			func(a *machinev1.MachineAutoscaler) error { a.Status = nil; return nil })
		must(t, err)
	}
	if set, _ := w.tables.Sets.Lookup("openshift-machine-api", "workers"); set.GetSpec().GetReplicas() != 3 {
		t.Errorf("the set has %d replicas, want 3", set.GetSpec().GetReplicas())
	}
}

// A status does not keep what it says of a change that failed.
func TestAChangeOfSizeThatFailsIsTakenBack(t *testing.T) {
	w := newWorld(t)
	c, parts := w.controllers()
	background(t, parts...)
	set := w.createSet(newSet(2))
	m := w.create(newMachine("m", func(m *machinev1.Machine) {
		m.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(set)}
	}))
	a, err := w.tables.Autoscalers.Create(t.Context(), &machinev1.MachineAutoscaler{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "workers"},
		Spec: &machinev1.MachineAutoscalerSpec{MaxReplicas: 3, ScaleTargetRef: &machinev1.MachineAutoscalerTarget{
			Kind: "MachineSet", Name: "workers",
		}},
	})
	must(t, err)
	w.changeSet("workers", func(s *machinev1.MachineSet) { s.Spec.MinReadySeconds = proto.Int32(1) })
	for _, desired := range []int{1, 3} {
		d := plan.AutoscaledSet{
			Autoscaler: a, Set: set, Current: 2, Desired: desired,
			Status: &machinev1.MachineAutoscalerStatus{
				CurrentReplicas: 2, DesiredReplicas: int32(desired), LastScaleUpTime: timestamppb.Now(),
				LastScaleDownTime: timestamppb.Now(), LastScaleReason: "for the test",
			},
		}
		if desired == 1 {
			d.Remove = []plan.ScaleDown{{Machine: m, Reason: "for the test"}}
		}
		must(t, c.storeSizes(t.Context(), plan.AutoscalerPlan{Sets: []plan.AutoscaledSet{d}}))
		err := c.resize(t.Context(), d)
		if !isConflict(err) {
			t.Errorf("to %d: %v, want a conflict: the set has changed", desired, err)
		}
		must(t, c.unscaled(t.Context(), d, err))
		a, err = w.tables.Autoscalers.Get(t.Context(), "openshift-machine-api", "workers")
		must(t, err)
		if s := a.GetStatus(); s.GetDesiredReplicas() != 2 || s.GetLastScaleUpTime() != nil ||
			s.GetLastScaleDownTime() != nil || s.GetLastScaleReason() != "" || s.GetLastScaleDownFailureTime() != nil {
			t.Errorf("to %d: the status is %v", desired, s)
		}
	}
	must(t, c.unscaled(t.Context(), plan.AutoscaledSet{Autoscaler: a, Current: 2, Desired: 1}, errors.New("refused")))
	a, err = w.tables.Autoscalers.Get(t.Context(), "openshift-machine-api", "workers")
	must(t, err)
	if a.GetStatus().GetLastScaleDownFailureTime() == nil {
		t.Errorf("the status is %v", a.GetStatus())
	}
}

// A policy that is older than the autoscaler lacks rules for it. The statuses say so until it has them.
func TestMissingRightsAreInTheStatus(t *testing.T) {
	w := newWorld(t)
	for _, method := range []string{"WatchPods", "WatchPodDisruptionBudgets", "PlanPlacement"} {
		w.refuse(method, status.Error(codes.PermissionDenied, method+" is not allowed"))
	}
	s, c := w.scheduledBy()
	set := newSet(1)
	set.Metadata.Annotations = map[string]string{"machine.openshift.io/vCPU": "2", "machine.openshift.io/memoryMb": "4096"}
	w.createSet(set)
	w.runningNames(1)
	w.joined()
	_, err := w.tables.Autoscalers.Create(t.Context(), &machinev1.MachineAutoscaler{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "workers"},
		Spec: &machinev1.MachineAutoscalerSpec{MaxReplicas: 3, ScaleTargetRef: &machinev1.MachineAutoscalerTarget{
			Kind: "MachineSet", Name: "workers",
		}},
	})
	must(t, err)
	if got := c.Refused(); got != "" {
		t.Errorf("without a cluster autoscaler %q is reported, want nothing: no right is needed", got)
	}
	_, err = w.tables.ClusterAutoscalers.Create(t.Context(), &machinev1.ClusterAutoscaler{
		Metadata: &metav1.ObjectMeta{Name: "default"},
	})
	must(t, err)
	s.pending("a")
	says := func(refused string) {
		t.Helper()
		eventually(t, func() error {
			a, _ := w.tables.ClusterAutoscalers.Lookup("", "default")
			active := object.FindCondition(a.GetStatus().GetConditions(), "Active")
			if c.Refused() != refused || active.GetMessage() != refused {
				return fmt.Errorf("reported is %q, the autoscaler is %v", c.Refused(), active)
			}
			return nil
		})
	}
	const lacks = "the policy lacks rights that the autoscaler needs: "
	says(lacks + "WatchPods is not allowed")
	w.refuse("WatchPods", nil)
	says(lacks + "WatchPodDisruptionBudgets is not allowed")
	w.refuse("WatchPodDisruptionBudgets", nil)
	says(lacks + "PlanPlacement is not allowed")
	w.refuse("PlanPlacement", nil)
	says("")
}
