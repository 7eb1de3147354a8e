package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func view(set *schedulingv1.ReplicaSet, pods ...*schedulingv1.Pod) plan.ReplicasView {
	v := plan.ReplicaSetView(set, start)
	v.Pods = pods
	return v
}

func TestReplicas(t *testing.T) {
	set := replicaSet(2)
	going := replicaSet(2)
	going.Metadata.DeletionTimestamp = at(start)
	for _, c := range []struct {
		name           string
		view           plan.ReplicasView
		create         int
		remove         []string
		adopt, release []string
		wake           time.Duration
	}{
		{name: "a new set gets all its pods", view: view(set), create: 2},
		{name: "enough pods are left alone", view: view(set, pod("a", set), pod("b", set))},
		{name: "a pod on its way out is replaced at once", view: view(set, pod("a", set), pod("b", set, leaving)), create: 1},
		{
			name: "a pod that ended is replaced",
			view: view(set, pod("a", set), pod("b", set, phase("Failed"), func(p *schedulingv1.Pod) {
				p.Status.ContainerStatuses = []*schedulingv1.ContainerStatus{{Name: "web"}}
			})), create: 1,
		},
		{
			name: "a pod that its node has just refused slows the next one down",
			view: view(set, pod("a", set), pod("b", set, phase("Failed"), born(start))), wake: time.Second,
		},
		{
			name: "many refused pods slow it down more",
			view: view(set, pod("a", set), pod("b", set, phase("Failed"), born(start)),
				pod("c", set, phase("Failed"), born(start)), pod("d", set, phase("Failed"), born(start))),
			wake: 4 * time.Second,
		},
		{
			name: "a pod without a controller is adopted before anything else", view: view(set, pod("a", nil)),
			adopt: []string{"a"},
		},
		{
			name: "a pod whose labels changed is released", view: view(set, pod("a", set, labelled("app", "debug"))),
			release: []string{"a"},
		},
		{name: "a pod of another owner is not touched", view: view(set, pod("a", replicaSetNamed("other"))), create: 2},
		{name: "a pod without a controller that is going is not adopted", view: view(set, pod("a", nil, leaving)), create: 2},
		{name: "a set that goes makes and adopts nothing", view: view(going, pod("a", going), pod("b", nil))},
		{name: "the order of removal", remove: []string{"loose", "pending", "unready"}, view: view(set,
			pod("good", set), pod("older", set, born(start.Add(-2*time.Hour))), pod("unready", set, unready),
			pod("pending", set, phase("Pending")),
			pod("loose", set, phase("Pending"), on("")))},
		{
			name: "of equal pods one of two on a node goes", remove: []string{"y"},
			view: view(set, pod("x", set, on("a")), pod("y", set, on("b")), pod("z", set, on("b"), func(p *schedulingv1.Pod) {
				p.Metadata.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": "5"}
			})),
		},
		{
			name: "of equal pods the one with the container that was started again most often goes", remove: []string{"b"},
			view: view(set, pod("a", set, on("a"), restarted(2), func(p *schedulingv1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, p.Status.ContainerStatuses[0])
			}), pod("b", set, on("b"), restarted(3)), pod("c", set, on("c"))),
		},
		{
			name: "of equal pods the younger goes", remove: []string{"young"},
			view: view(set, pod("a", set, on("a")), pod("young", set, on("b"), born(start.Add(-time.Minute))),
				pod("c", set, on("c"))),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan.Replicas(c.view)
			if len(p.Create) != c.create {
				t.Errorf("creates %d, want %d", len(p.Create), c.create)
			}
			if d := cmp.Diff([][]string{c.remove, c.adopt, c.release}, [][]string{
				names(p.Delete), names(p.Adopt),
				names(p.Release),
			}); d != "" {
				t.Errorf("removes, adopts, releases: %s", d)
			}
			if c.wake > 0 && !p.Wake.Equal(start.Add(c.wake)) {
				t.Errorf("wakes at %v, want after %v", p.Wake, c.wake)
			}
		})
	}
}

func replicaSetNamed(name string) *schedulingv1.ReplicaSet {
	s := replicaSet(1)
	s.Metadata.Name, s.Metadata.Uid = name, name
	return s
}

func TestReplicasBesideRelatedOnesGoFirst(t *testing.T) {
	set := replicaSet(1)
	v := view(set, pod("a", set, on("a")), pod("b", set, on("b")))
	v.Related = []*schedulingv1.Pod{pod("new", replicaSetNamed("next"), on("a"))}
	if got := names(plan.Replicas(v).Delete); !slices.Equal(got, []string{"a"}) {
		t.Errorf("removes %v, want the one beside the related pod", got)
	}
}

func TestReplicasStatusCounts(t *testing.T) {
	set := replicaSet(4)
	set.Spec.MinReadySeconds = proto.Int32(30)
	set.Spec.Template.Metadata.Labels["track"] = "stable"
	p := plan.Replicas(view(set,
		pod("a", set, labelled("track", "stable")), pod("b", set, ready(start.Add(-10*time.Second))), pod("c", set, unready),
		pod("d", set, leaving)))
	want := &schedulingv1.ReplicaSetStatus{
		Replicas: proto.Int32(3), FullyLabeledReplicas: proto.Int32(1), ReadyReplicas: proto.Int32(2),
		AvailableReplicas:   proto.Int32(1),
		TerminatingReplicas: proto.Int32(1), ObservedGeneration: proto.Int32(1),
	}
	if d := cmp.Diff(want, p.Status, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if !p.Wake.Equal(start.Add(20 * time.Second)) {
		t.Errorf("wakes at %v, want when b becomes available", p.Wake)
	}
}

func TestNewPodIsMadeOfTheTemplate(t *testing.T) {
	set := replicaSet(1)
	got := plan.Replicas(view(set)).Create[0]
	if got.GetMetadata().GetGenerateName() != "web-" || got.GetMetadata().GetName() != "" {
		t.Errorf("name %q of %q", got.GetMetadata().GetName(), got.GetMetadata().GetGenerateName())
	}
	if o := object.ControllerOf(got); o.GetKind() != "ReplicaSet" || o.GetUid() != "rs" {
		t.Errorf("owner %v", o)
	}
	if d := cmp.Diff(template("v1").GetSpec(), got.GetSpec(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestReplicationControllerSelectsByItsTemplateWithoutSelector(t *testing.T) {
	rc := &schedulingv1.ReplicationController{
		Metadata: replicaSet(1).Metadata, Spec: &schedulingv1.ReplicationControllerSpec{
			Replicas: proto.Int32(2),
			Template: template("v1"),
		},
	}
	v := plan.ReplicationControllerView(rc, start)
	v.Pods = []*schedulingv1.Pod{pod("a", rc)}
	p := plan.Replicas(v)
	if len(p.Create) != 1 || object.ControllerOf(p.Create[0]).GetKind() != "ReplicationController" {
		t.Errorf("creates %v", p.Create)
	}
	if got := plan.ReplicationControllerStatus(p.Status).GetReplicas(); got != 1 {
		t.Errorf("status counts %d, want 1", got)
	}
}

// drawPod draws a pod of a set in any state.
func drawPod(t *rapid.T, i int, owner object.Object) *schedulingv1.Pod {
	p := pod(fmt.Sprintf("p%d", i), owner, on(rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "node")))
	phase(rapid.SampledFrom([]string{"Pending", "Running", "Succeeded", "Failed"}).Draw(t, "phase"))(p)
	if p.Status.GetPhase() == "Running" && rapid.Bool().Draw(t, "ready") {
		ready(start.Add(-time.Duration(rapid.IntRange(0, 60).Draw(t, "since")) * time.Second))(p)
	}
	if rapid.Bool().Draw(t, "leaving") {
		leaving(p)
	}
	return p
}

func TestReplicasPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := replicaSet(rapid.IntRange(0, 6).Draw(t, "want"))
		var pods []*schedulingv1.Pod
		active := 0
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			p := drawPod(t, i, set)
			pods = append(pods, p)
			if placement.Active(p) {
				active++
			}
		}
		p := plan.Replicas(view(set, pods...))
		if after := active + len(p.Create) - len(p.Delete); after != int(set.Spec.GetReplicas()) {
			t.Fatalf("%d pods afterwards, want %d", after, set.Spec.GetReplicas())
		}
		for _, gone := range p.Delete {
			if !placement.Active(gone) {
				t.Fatalf("removes %s, which does not count", gone.GetMetadata().GetName())
			}
			for _, kept := range pods {
				if placement.Active(kept) && !slices.Contains(p.Delete, kept) && placement.IsReady(gone) &&
					gone.Spec.NodeName != "" && !placement.IsReady(kept) {
					t.Fatalf("removes %s, which is ready, and keeps %s, which is not", gone.GetMetadata().GetName(),
						kept.GetMetadata().GetName())
				}
			}
		}
	})
}

func TestAlike(t *testing.T) {
	set := replicaSet(1)
	was := pod("a", set, phase("Pending"), on(""))
	for name, c := range map[string]struct {
		is   *schedulingv1.Pod
		want bool
	}{
		"bound":           {pod("a", set, phase("Pending")), true},
		"ready":           {pod("a", set, phase("Pending"), ready(start)), false},
		"running":         {pod("a", set, phase("Running")), false},
		"on its way out":  {pod("a", set, phase("Pending"), leaving), false},
		"gone":            {nil, false},
		"of other labels": {pod("a", set, phase("Pending"), labelled("x", "y")), false},
		"of no owner":     {pod("a", nil, phase("Pending")), false},
		"restarted":       {pod("a", set, phase("Pending"), restarted(1)), false},
	} {
		if got := plan.Alike(was, c.is); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
