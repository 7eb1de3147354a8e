package service

import (
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestADaemonSetIsRolledBack(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	labels := map[string]string{"app": "eye"}
	sets := schedulingv1.NewDaemonSetServiceClient(c.admin())
	set, err := sets.CreateDaemonSet(t.Context(), &schedulingv1.CreateDaemonSetRequest{DaemonSet: &schedulingv1.DaemonSet{
		Metadata: &metav1.ObjectMeta{Name: "eye"},
		Spec: &schedulingv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: &schedulingv1.PodTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: labels}, Spec: newPod("x", "1m").GetSpec(),
			},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	rollback := func() (*schedulingv1.DaemonSet, error) {
		return sets.RollbackDaemonSet(t.Context(), &schedulingv1.RollbackDaemonSetRequest{Name: "eye"})
	}
	recorded := func(n int) {
		t.Helper()
		servetest.Await(t, func() string {
			list, err := schedulingv1.NewControllerRevisionServiceClient(c.admin()).ListControllerRevisions(t.Context(),
				&schedulingv1.ListControllerRevisionsRequest{})
			if err != nil || len(list.GetItems()) != n {
				return "revisions are not recorded yet"
			}
			return ""
		})
	}
	recorded(1)
	if _, err := rollback(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("back from the first revision: %v", err)
	}
	changed := proto.CloneOf(set)
	changed.Spec.Template.Spec.Containers[0].Image = "other"
	changed.Metadata.ResourceVersion = ""
	if _, err := sets.UpdateDaemonSet(t.Context(), &schedulingv1.UpdateDaemonSetRequest{
		Name: "eye", DaemonSet: changed,
	}); err != nil {
		t.Fatal(err)
	}
	recorded(2)
	back, err := rollback()
	if err != nil || !proto.Equal(back.GetSpec().GetTemplate(), set.GetSpec().GetTemplate()) {
		t.Errorf("back to the first: %v, %v", back.GetSpec().GetTemplate(), err)
	}

	_, err = sets.PlanDaemonSet(t.Context(), &schedulingv1.PlanDaemonSetRequest{
		Name: "eye", Revisions: &schedulingv1.ControllerRevisionList{},
	})
	if fields, _ := rpcerr.Fields(err); !slices.ContainsFunc(fields, func(f object.Fault) bool {
		return f.Path == "revisions"
	}) {
		t.Errorf("given revisions beside live pods: %v", err)
	}
	p, err := sets.PlanDaemonSet(t.Context(), &schedulingv1.PlanDaemonSetRequest{
		Name: "eye", Pods: &schedulingv1.PodList{}, Nodes: &nodev1.NodeList{Items: []*nodev1.Node{
			{Metadata: &metav1.ObjectMeta{Name: "given"}, Spec: &nodev1.NodeSpec{}},
		}},
	})
	var got []string
	for _, a := range p.GetActions() {
		got = append(got, a.GetAction())
	}
	if err != nil || !slices.Equal(got, []string{"CreateControllerRevision", "CreatePod"}) {
		t.Errorf("with a node and nothing else it would do %q, %v", got, err)
	}
}
