package controller_test

import (
	"fmt"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func (c *cluster) statefulSet() *schedulingv1.StatefulSet {
	s, _ := c.StatefulSets.Lookup("default", "web")
	return s
}

func (c *cluster) createStatefulSet(replicas int32, policy string) {
	c.t.Helper()
	must[*schedulingv1.StatefulSet](c)(c.StatefulSets.Create(c.ctx, &schedulingv1.StatefulSet{
		Metadata: meta(), Spec: &schedulingv1.StatefulSetSpec{
			Replicas: &replicas, Selector: selector(), Template: template("v1"), PodManagementPolicy: policy,
		},
	}))
}

func (c *cluster) changeStatefulSet(f func(*schedulingv1.StatefulSetSpec)) {
	c.t.Helper()
	must[*schedulingv1.StatefulSet](c)(c.StatefulSets.Modify(c.ctx, web, func(s *schedulingv1.StatefulSet) error {
		f(s.Spec)
		return nil
	}))
}

// rolledOut reports whether all pods of the stateful set are of an image, and its status says so.
func (c *cluster) rolledOut(of string, replicas int32) bool {
	st := c.statefulSet().GetStatus()
	return c.count(image(of)) == int(replicas) && len(c.Pods.All()) == int(replicas) &&
		st.GetReadyReplicas() == replicas && st.GetUpdatedReplicas() == replicas && st.GetReplicas() == replicas &&
		st.GetObservedGeneration() == c.statefulSet().GetMetadata().GetGeneration() &&
		st.GetCurrentRevision() == st.GetUpdateRevision()
}

func TestStatefulSetRollsScalesAndAdopts(t *testing.T) {
	c := start(t)
	c.createStatefulSet(3, "OrderedReady")
	c.until("three pods", func() bool { return c.rolledOut("v1", 3) })
	for n := range 3 {
		if _, ok := c.Pods.Lookup("default", fmt.Sprintf("web-%d", n)); !ok {
			t.Errorf("there is no pod web-%d", n)
		}
	}
	c.watchReady()
	c.changeStatefulSet(func(s *schedulingv1.StatefulSetSpec) { s.Template = template("v2") })
	c.until("three new pods", func() bool { return c.rolledOut("v2", 3) })
	c.mu.Lock()
	if c.lowest < 2 {
		t.Errorf("only %d pods were ready during the update, want 2", c.lowest)
	}
	c.mu.Unlock()
	if n := len(c.Revisions.All()); n != 2 {
		t.Errorf("%d revisions, want 2", n)
	}

	// Its pods and revisions are left behind, and a set of the same name takes them over.
	before, _ := c.Pods.Lookup("default", "web-0")
	if _, err := c.StatefulSets.Delete(c.ctx, "default", "web", nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Pods.All() {
		must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, object.KeyOf(p), func(p *schedulingv1.Pod) error {
			p.Metadata.OwnerReferences = nil
			return nil
		}))
	}
	for _, r := range c.Revisions.All() {
		must[*schedulingv1.ControllerRevision](c)(c.Revisions.Modify(c.ctx, object.KeyOf(r),
			func(r *schedulingv1.ControllerRevision) error {
				r.Metadata.OwnerReferences = nil
				return nil
			}))
	}
	must[*schedulingv1.StatefulSet](c)(c.StatefulSets.Create(c.ctx, &schedulingv1.StatefulSet{
		Metadata: meta(), Spec: &schedulingv1.StatefulSetSpec{
			Replicas: proto.Int32(2), Selector: selector(), Template: template("v2"),
		},
	}))
	c.until("two adopted pods", func() bool { return c.rolledOut("v2", 2) })
	if after, _ := c.Pods.Lookup("default", "web-0"); after.GetMetadata().GetUid() != before.GetMetadata().GetUid() {
		t.Error("the adopted pod was replaced")
	}
	for _, r := range c.Revisions.All() {
		if object.ControllerOf(r).GetUid() != c.statefulSet().GetMetadata().GetUid() {
			t.Errorf("revision %s has the owner %v", r.Metadata.Name, object.ControllerOf(r))
		}
	}
}

// TestAStatefulSetSurvivesItsLeader has the leader stop again and again while a stateful set is rolled out: the next
// one goes on, no pod is created twice, and no more than one is missing at a time.
func TestAStatefulSetSurvivesItsLeader(t *testing.T) {
	c := start(t)
	c.createStatefulSet(6, "OrderedReady")
	c.until("six pods", func() bool { return c.rolledOut("v1", 6) })
	c.watchReady()
	c.changeStatefulSet(func(s *schedulingv1.StatefulSetSpec) { s.Template = template("v2") })
	leader := c
	for n := 1; n <= 3; n++ {
		next := join(t, c.client, c.prefix, fmt.Sprintf("leader-%d", n))
		next.agent.setIdle(true) // one agent is enough
		c.until("another pod is updated", func() bool { return c.count(image("v2")) >= n })
		leader.resign()
		leader = next
	}
	c.until("six new pods", func() bool { return c.rolledOut("v2", 6) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lowest < 5 {
		t.Errorf("only %d pods were ready during the update, want 5", c.lowest)
	}
}

func TestAStatefulSetOfManyPods(t *testing.T) {
	c := start(t)
	c.createStatefulSet(1000, "Parallel")
	c.until("a thousand pods", func() bool { return c.rolledOut("v1", 1000) })
	c.changeStatefulSet(func(s *schedulingv1.StatefulSetSpec) { s.Replicas = proto.Int32(0) })
	c.until("no pods", func() bool { return c.rolledOut("v1", 0) })
	if n := c.told("SuccessfulCreate"); n != 1000 {
		t.Errorf("%d pods were created, want 1000", n)
	}
}

func TestAStatefulSetCountsForItsBudget(t *testing.T) {
	c := start(t)
	c.createStatefulSet(3, "Parallel")
	must[*schedulingv1.PodDisruptionBudget](c)(c.Budgets.Create(c.ctx, &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:     &schedulingv1.PodDisruptionBudgetSpec{Selector: selector(), MaxUnavailable: structpb.NewNumberValue(1)},
	}))
	allowed := func(expected, n int32) func() bool {
		return func() bool {
			b, _ := c.Budgets.Lookup("default", "web")
			return b.GetStatus().GetDisruptionsAllowed() == n && b.GetStatus().GetExpectedPods() == expected
		}
	}
	c.until("one may go", allowed(3, 1))
	c.agent.setIdle(true)
	c.changeStatefulSet(func(s *schedulingv1.StatefulSetSpec) { s.Replicas = proto.Int32(5) })
	c.until("none may go", allowed(5, 0))
}
