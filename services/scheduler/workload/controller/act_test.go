package controller

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
)

// TestAPodThatReplacedAnotherOfItsNameIsNotAdopted has a pod deleted and created again, with other labels, after its
// adoption was decided.
func TestAPodThatReplacedAnotherOfItsNameIsNotAdopted(t *testing.T) {
	tables := followed(t, clusterOf(), etcdtest.Store(t))
	template := &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}}}
	web := map[string]string{"app": "web"}
	rc, err := tables.ReplicationControllers.Create(t.Context(), &schedulingv1.ReplicationController{
		Metadata: &metav1.ObjectMeta{Name: "web"},
		Spec: &schedulingv1.ReplicationControllerSpec{Selector: web, Template: &schedulingv1.PodTemplateSpec{
			Metadata: &metav1.ObjectMeta{Labels: web}, Spec: template,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	create := func(labels map[string]string) *schedulingv1.Pod {
		t.Helper()
		pod, err := tables.Pods.Create(t.Context(), &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: "p", Labels: labels}, Spec: template,
		})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	decided := create(web)
	if _, err := tables.Pods.Delete(t.Context(), "default", "p", nil); err != nil {
		t.Fatal(err)
	}
	create(map[string]string{"app": "other"})
	if err := tables.Pods.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := transfer(t.Context(), tables.ReplicationControllers, rc, tables.Pods, []*schedulingv1.Pod{decided},
		nil); err != nil {
		t.Fatal(err)
	}
	now, err := tables.Pods.Get(t.Context(), "default", "p")
	if err != nil || len(now.GetMetadata().GetOwnerReferences()) > 0 {
		t.Errorf("the pod has owners %v, %v", now.GetMetadata().GetOwnerReferences(), err)
	}
}
