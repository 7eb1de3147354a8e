package plan_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func deployment(replicas int, image string, surge, unavailable any) *schedulingv1.Deployment {
	return &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "d", Generation: 1},
		Spec: &schedulingv1.DeploymentSpec{
			Replicas: proto.Int32(int32(replicas)), Selector: selector(), Template: template(image),
			Strategy: &schedulingv1.DeploymentStrategy{
				Type: "RollingUpdate",
				RollingUpdate: &schedulingv1.RollingUpdateDeployment{
					MaxSurge: amount(surge), MaxUnavailable: amount(unavailable),
				},
			},
		},
	}
}

// world is a deployment with its sets, which a test moves on as their controllers would.
type world struct {
	d    *schedulingv1.Deployment
	sets []*schedulingv1.ReplicaSet
	now  time.Time
}

// step carries out one plan.
func (w *world) step() plan.DeploymentPlan {
	p := plan.Deployment(plan.DeploymentView{Now: w.now, Deployment: w.d, Sets: w.sets})
	if p.Create != nil {
		s := proto.CloneOf(p.Create.Set)
		s.Metadata.Uid, s.Metadata.Generation, s.Metadata.CreationTimestamp = s.Metadata.Name, 1, at(w.now)
		w.sets = append(w.sets, s)
	}
	for _, ch := range p.Update {
		for i, s := range w.sets {
			if s.GetMetadata().GetUid() == ch.Set.GetMetadata().GetUid() {
				next := proto.CloneOf(ch.Set)
				if !proto.Equal(next.Spec, s.Spec) {
					next.Metadata.Generation++
				}
				w.sets[i] = next
			}
		}
	}
	w.sets = without(w.sets, p.Delete)
	w.d = plan.DeploymentAfter(w.d, p)
	w.now = w.now.Add(time.Second)
	return p
}

func without(sets, gone []*schedulingv1.ReplicaSet) (out []*schedulingv1.ReplicaSet) {
	for _, s := range sets {
		keep := true
		for _, g := range gone {
			keep = keep && g.GetMetadata().GetUid() != s.GetMetadata().GetUid()
		}
		if keep {
			out = append(out, s)
		}
	}
	return out
}

// settle has a set's pods follow its spec; at most up of them are available.
func settle(s *schedulingv1.ReplicaSet, up int) *schedulingv1.ReplicaSet {
	s = proto.CloneOf(s)
	n := s.GetSpec().GetReplicas()
	up32 := min(int32(up), n)
	s.Status = &schedulingv1.ReplicaSetStatus{
		Replicas: proto.Int32(n), ReadyReplicas: proto.Int32(up32), AvailableReplicas: proto.Int32(up32),
		ObservedGeneration: proto.Int32(s.Metadata.Generation),
	}
	return s
}

func (w *world) settle() {
	for i, s := range w.sets {
		w.sets[i] = settle(s, 1000)
	}
}

// run steps until nothing changes any more.
func (w *world) run(t interface{ Fatal(...any) }) {
	for range 100 {
		p := w.step()
		w.settle()
		if p.Create == nil && len(p.Update) == 0 && len(p.Delete) == 0 {
			w.step()
			return
		}
	}
	t.Fatal("does not come to rest")
}

func (w *world) sizes() []int {
	var out []int
	for _, s := range w.sets {
		out = append(out, int(s.GetSpec().GetReplicas()))
	}
	return out
}

func (w *world) condition(typ string) string {
	c := object.FindCondition(w.d.GetStatus().GetConditions(), typ)
	return c.GetStatus() + " " + c.GetReason()
}

func TestDeploymentMakesASetAndCompletes(t *testing.T) {
	w := &world{d: deployment(3, "v1", "25%", "25%"), now: start}
	p := w.step()
	if p.Create == nil || p.Create.Tell.Message != "Scaled up replica set "+p.Create.Set.Metadata.Name+" from 0 to 3" {
		t.Fatalf("creates %v", p.Create)
	}
	s := p.Create.Set
	hash := s.GetMetadata().GetLabels()[plan.HashLabel]
	if hash == "" || s.GetMetadata().GetName() != "web-"+hash || s.Spec.Selector.MatchLabels[plan.HashLabel] != hash ||
		s.Spec.Template.Metadata.Labels[plan.HashLabel] != hash {
		t.Errorf("the hash is not in name, labels, selector and template: %v", s)
	}
	if got := w.condition("Available"); got != "False MinimumReplicasUnavailable" {
		t.Errorf("Available = %s", got)
	}
	if got := w.condition("Progressing"); got != "True NewReplicaSetCreated" {
		t.Errorf("Progressing = %s", got)
	}
	w.settle()
	w.run(t)
	if got := w.condition("Available") + ", " +
		w.condition("Progressing"); got != "True MinimumReplicasAvailable, True NewReplicaSetAvailable" {
		t.Errorf("conditions %s", got)
	}
	if w.d.Metadata.Annotations[plan.RevisionAnnotation] != "1" {
		t.Errorf("annotations %v", w.d.Metadata.Annotations)
	}
	if p := w.step(); p.Create != nil || len(p.Update) > 0 ||
		!proto.Equal(p.Status, plan.Deployment(plan.DeploymentView{Now: w.now, Deployment: w.d, Sets: w.sets}).Status) {
		t.Errorf("does not come to rest: %v", p)
	}
}

func TestDeploymentRollsInSteps(t *testing.T) {
	w := &world{d: deployment(4, "v1", 1, 1), now: start}
	w.run(t)
	w.d.Spec.Template = template("v2")
	w.d.Metadata.Generation++
	var steps [][]int
	for range 12 {
		w.step()
		steps = append(steps, w.sizes())
		w.settle()
	}
	want := [][]int{{3, 1}, {3, 2}, {1, 2}, {1, 4}, {0, 4}, {0, 4}}
	if d := cmp.Diff(want, steps[:6]); d != "" {
		t.Errorf("sizes of the old and the new set: %s", d)
	}
	if w.d.Metadata.Annotations[plan.RevisionAnnotation] != "2" ||
		w.condition("Progressing") != "True NewReplicaSetAvailable" {
		t.Errorf("%v, %s", w.d.Metadata.Annotations, w.condition("Progressing"))
	}
}

func TestDeploymentWithBothLimitsZeroMovesOneByOne(t *testing.T) {
	w := &world{d: deployment(3, "v1", 0, "0%"), now: start}
	w.run(t)
	w.d.Spec.Template = template("v2")
	w.step()
	if d := cmp.Diff([]int{2, 0}, w.sizes()); d != "" {
		t.Error(d)
	}
}

func TestDeploymentRecreateWaitsUntilOldPodsAreGone(t *testing.T) {
	w := &world{d: deployment(2, "v1", 1, 1), now: start}
	w.d.Spec.Strategy = &schedulingv1.DeploymentStrategy{Type: "Recreate"}
	w.run(t)
	w.d.Spec.Template = template("v2")
	w.step()
	w.settle()
	w.sets[0].Status.TerminatingReplicas = proto.Int32(1)
	w.step()
	if d := cmp.Diff([]int{0}, w.sizes()); d != "" {
		t.Fatalf("while a pod is on its way out: %s", d)
	}
	w.settle()
	w.step()
	if d := cmp.Diff([]int{0, 2}, w.sizes()); d != "" {
		t.Error(d)
	}
}

func TestDeploymentRecreateIsAvailableOnlyWithAllItsPods(t *testing.T) {
	w := &world{d: deployment(2, "v1", 1, 1), now: start}
	w.d.Spec.Strategy = &schedulingv1.DeploymentStrategy{Type: "Recreate"}
	for up, want := range []string{
		"False MinimumReplicasUnavailable", "False MinimumReplicasUnavailable",
		"True MinimumReplicasAvailable",
	} {
		w.step()
		w.sets[0] = settle(w.sets[0], up)
		w.step()
		if got := w.condition("Available"); got != want {
			t.Errorf("with %d of 2 pods: Available = %s, want %s", up, got, want)
		}
	}
}

func TestDeploymentPausedScalesAndRollsNothing(t *testing.T) {
	w := &world{d: deployment(2, "v1", 1, 1), now: start}
	w.run(t)
	w.d.Spec.Paused, w.d.Spec.Template, w.d.Spec.Replicas = proto.Bool(true), template("v2"), proto.Int32(5)
	w.run(t)
	if d := cmp.Diff([]int{5}, w.sizes()); d != "" {
		t.Error(d)
	}
	if got := w.condition("Progressing"); got != "Unknown DeploymentPaused" {
		t.Errorf("Progressing = %s", got)
	}
	w.d.Spec.Paused = nil
	w.run(t)
	if d := cmp.Diff([]int{0, 5}, w.sizes()); d != "" {
		t.Error(d)
	}
}

func TestDeploymentScalesInProportionDuringARollout(t *testing.T) {
	w := &world{d: deployment(10, "v1", 3, 2), now: start}
	w.run(t)
	w.d.Spec.Template = template("v2")
	w.step() // 10 and 3
	w.sets[0], w.sets[1] = settle(w.sets[0], 1000), settle(w.sets[1], 0)
	w.step() // 8 and 3
	w.sets[0] = settle(w.sets[0], 1000)
	w.step() // 8 and 5
	if d := cmp.Diff([]int{8, 5}, w.sizes()); d != "" {
		t.Fatalf("before: %s", d)
	}
	w.d.Spec.Replicas = proto.Int32(15)
	w.step()
	if d := cmp.Diff([]int{11, 7}, w.sizes()); d != "" {
		t.Errorf("after: %s", d)
	}
}

func TestDeploymentWithoutProgressMissesItsDeadline(t *testing.T) {
	w := &world{d: deployment(1, "v1", 1, 1), now: start}
	w.d.Spec.Strategy.RollingUpdate.MaxUnavailable = amount(0)
	w.d.Spec.ProgressDeadlineSeconds = proto.Int32(60)
	w.step()
	w.sets[0] = settle(w.sets[0], 0)
	p := w.step()
	if p.Wake.IsZero() {
		t.Fatal("does not look again")
	}
	w.now = p.Wake
	p = w.step()
	if got := w.condition("Progressing"); got != "False ProgressDeadlineExceeded" {
		t.Errorf("Progressing = %s", got)
	}
	if c := object.FindCondition(p.Status.GetConditions(), "Progressing"); !strings.HasSuffix(c.GetMessage(),
		"has timed out progressing.") {
		t.Errorf("message %q", c.GetMessage())
	}
}

func TestDeploymentKeepsHistoryAndGoesBack(t *testing.T) {
	w := &world{d: deployment(1, "v1", 1, 1), now: start}
	w.d.Spec.RevisionHistoryLimit = proto.Int32(2)
	for _, image := range []string{"v1", "v2", "v3", "v4", "v5"} {
		w.d.Spec.Template = template(image)
		w.run(t)
	}
	if len(w.sets) != 3 {
		t.Fatalf("%d sets are kept, want the present and 2 old ones", len(w.sets))
	}
	back, err := plan.Rollback(w.d, w.sets, 0)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(template("v4"), back, protocmp.Transform()); d != "" {
		t.Errorf("the revision before: %s", d)
	}
	if back, err = plan.Rollback(w.d, w.sets, 3); err != nil || back.Spec.Containers[0].Image != "v3" {
		t.Errorf("revision 3: %v, %v", back, err)
	}
	if _, err = plan.Rollback(w.d, w.sets, 1); !errors.Is(err, plan.ErrNoRevision) {
		t.Errorf("revision 1: %v, want ErrNoRevision", err)
	}
	w.d.Spec.Template = back
	w.run(t)
	if got := w.d.Metadata.Annotations[plan.RevisionAnnotation]; got != "6" {
		t.Errorf("revision %s after going back, want 6", got)
	}
	for _, s := range w.sets {
		if plan.Revision(s) == 6 && s.Metadata.Annotations["deployment.kubernetes.io/revision-history"] != "3" {
			t.Errorf("history %v", s.Metadata.Annotations)
		}
	}
}

func TestHistoryOfRevisionsHasAnEnd(t *testing.T) {
	const history = "deployment.kubernetes.io/revision-history"
	w := &world{d: deployment(1, "v1", 1, 1), now: start}
	w.run(t)
	w.d.Spec.Template = template("v2")
	w.run(t)
	first := w.sets[0].GetMetadata().GetAnnotations()
	first[plan.RevisionAnnotation], first[history] = "1001", strings.Repeat("1000,", 399)+"1000"
	w.d.Spec.Template = template("v3")
	w.run(t)
	w.d.Spec.Template = template("v1")
	w.run(t)
	want := strings.Repeat("1000,", 399) + "1001" // 1999 characters; with one revision more it would be 2004
	if got := w.sets[0].GetMetadata().GetAnnotations()[history]; got != want {
		t.Errorf("%d characters: %s", len(got), got)
	}
}

func TestDeploymentRolloutKeepsItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.IntRange(1, 12).Draw(t, "want")
		surge, missing := rapid.IntRange(0, 5).Draw(t, "surge"), rapid.IntRange(0, 5).Draw(t, "missing")
		w := &world{d: deployment(want, "v1", surge, missing), now: start}
		if surge == 0 && missing == 0 {
			missing = 1
		}
		w.run(t)
		w.d.Spec.Template = template("v2")
		for range 60 {
			before := availableAfter(w.sets)
			w.step()
			total := 0
			for _, n := range w.sizes() {
				total += n
			}
			if total > want+surge {
				t.Fatalf("%v are more than %d and %d", w.sizes(), want, surge)
			}
			if after := availableAfter(w.sets); after < min(before, want-min(missing, want)) {
				t.Fatalf("%d pods stay available of %d, want %d at least", after, before, want-missing)
			}
			// Statuses follow late, and pods come up in any order.
			for i, s := range w.sets {
				if rapid.Bool().Draw(t, "follows") {
					w.sets[i] = settle(s, rapid.IntRange(0, want+surge).Draw(t, "up"))
				}
			}
		}
		w.settle()
		w.run(t)
		if got := w.sizes(); got[len(got)-1] != want || got[0] != 0 {
			t.Fatalf("ends with %v", got)
		}
	})
}

// availableAfter counts the pods that are available and stay.
func availableAfter(sets []*schedulingv1.ReplicaSet) (n int) {
	for _, s := range sets {
		n += int(min(s.GetStatus().GetAvailableReplicas(), s.GetSpec().GetReplicas()))
	}
	return n
}
