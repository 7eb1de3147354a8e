package service

import (
	"fmt"
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestAStatefulSetIsPlannedAndRolledBack(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	labels := map[string]string{"app": "db"}
	db := &schedulingv1.StatefulSet{
		Metadata: &metav1.ObjectMeta{Name: "db"},
		Spec: &schedulingv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: "db",
			Template: &schedulingv1.PodTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: labels}, Spec: newPod("x", "1m").GetSpec(),
			},
		},
	}
	sets := schedulingv1.NewStatefulSetServiceClient(c.admin())
	ask := func(r *schedulingv1.PlanStatefulSetRequest) (out []string) {
		t.Helper()
		p, err := sets.PlanStatefulSet(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range p.GetActions() {
			out = append(out, a.GetAction()+" "+a.GetObject().GetName())
		}
		return out
	}
	if got := ask(&schedulingv1.PlanStatefulSetRequest{StatefulSet: db}); len(got) != 2 || got[1] != "CreatePod db-0" {
		t.Errorf("a stateful set that is not there would do %q", got)
	}
	if _, err := sets.CreateStatefulSet(t.Context(), &schedulingv1.CreateStatefulSetRequest{StatefulSet: db}); err != nil {
		t.Fatal(err)
	}
	pod := c.awaitPod(c.pods(), "db-0", bound)
	if pod.GetSpec().GetHostname() != "db-0" || pod.GetSpec().GetSubdomain() != "db" {
		t.Errorf("the pod is %v", pod.GetSpec())
	}
	if got := ask(&schedulingv1.PlanStatefulSetRequest{Name: "db", Replicas: proto.Int32(0)}); !slices.Equal(got,
		[]string{"DeletePod db-0"}) {
		t.Errorf("with no pods it would do %q", got)
	}
	if got := ask(&schedulingv1.PlanStatefulSetRequest{Name: "db", Pods: &schedulingv1.PodList{}}); len(got) != 2 {
		t.Errorf("beside given pods, the live revisions are used: it would do %q", got)
	}
	_, err := sets.PlanStatefulSet(t.Context(), &schedulingv1.PlanStatefulSetRequest{
		Name: "db", Revisions: &schedulingv1.ControllerRevisionList{},
	})
	if fields, _ := rpcerr.Fields(err); !slices.ContainsFunc(fields, func(f object.Fault) bool {
		return f.Path == "revisions"
	}) {
		t.Errorf("given revisions beside live pods: %v", err)
	}

	rollback := func(to int32) (*schedulingv1.StatefulSet, error) {
		return sets.RollbackStatefulSet(t.Context(), &schedulingv1.RollbackStatefulSetRequest{Name: "db", Revision: to})
	}
	if _, err := rollback(0); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("back from the first revision: %v", err)
	}
	numbers := func(want ...int32) {
		t.Helper()
		servetest.Await(t, func() string {
			list, err := schedulingv1.NewControllerRevisionServiceClient(c.admin()).ListControllerRevisions(t.Context(),
				&schedulingv1.ListControllerRevisionsRequest{})
			var got []int32
			for _, r := range list.GetItems() {
				got = append(got, r.GetRevision())
			}
			if slices.Sort(got); err != nil || !slices.Equal(got, want) {
				return fmt.Sprintf("revisions %v, %v, want %v", got, err, want)
			}
			return ""
		})
	}
	numbers(1)
	live, err := sets.GetStatefulSet(t.Context(), &schedulingv1.GetStatefulSetRequest{Name: "db"})
	if err != nil {
		t.Fatal(err)
	}
	first := live.GetSpec().GetTemplate()
	changed := proto.CloneOf(live)
	changed.Spec.Template.Spec.Containers[0].Image = "other"
	changed.Metadata.ResourceVersion = ""
	if _, err := sets.UpdateStatefulSet(t.Context(), &schedulingv1.UpdateStatefulSetRequest{
		Name: "db", StatefulSet: changed,
	}); err != nil {
		t.Fatal(err)
	}
	numbers(1, 2)
	back, err := rollback(0)
	if err != nil || !proto.Equal(back.GetSpec().GetTemplate(), first) {
		t.Errorf("back to the first: %v, %v", back.GetSpec().GetTemplate(), err)
	}
	numbers(2, 3)
	if _, err := rollback(1); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("back to revision 1, which is number 3 now: %v", err)
	}
}
