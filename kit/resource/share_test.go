package resource_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestObjectsOfACacheShareTheirEqualPartsAndNoOthers(t *testing.T) {
	cache := resource.NewCache[*schedulingv1.Pod]()
	pods := []*schedulingv1.Pod{sharingPod("a", "1"), sharingPod("b", "1"), sharingPod("c", "2")}
	want := []*schedulingv1.Pod{sharingPod("a", "1"), sharingPod("b", "1"), sharingPod("c", "2")}
	cache.Share(pods[:2]...)
	cache.Replace(pods[:2], 1)
	cache.Step(2, []resource.Change[*schedulingv1.Pod]{{Key: object.KeyOf(pods[2]), Object: pods[2]}})
	if diff := cmp.Diff(want, cache.All(), protocmp.Transform()); diff != "" {
		t.Errorf("objects differ after they were shared (-want +got):\n%s", diff)
	}
	a, b, c := pods[0].GetSpec(), pods[1].GetSpec(), pods[2].GetSpec()
	if a.Containers[0] != b.Containers[0] || a.Tolerations[0] != c.Tolerations[0] {
		t.Error("equal containers or tolerations are kept twice")
	}
	if a.Containers[0] == c.Containers[0] || a.Containers[0].Resources == c.Containers[0].Resources {
		t.Error("containers with other requests are shared")
	}
	pods[0].Metadata.Labels["probe"] = "" // this test alone may: it shows that the map is one
	if _, same := pods[1].Metadata.Labels["probe"]; !same {
		t.Error("equal labels are kept twice")
	}
}

func TestWhatACacheSharesIsForgottenInTime(t *testing.T) {
	cache := resource.NewCache[*schedulingv1.Pod]()
	first := sharingPod("first", "1")
	pods := []*schedulingv1.Pod{first}
	for i := range 5000 {
		pods = append(pods, sharingPod(fmt.Sprintf("p%04d", i), fmt.Sprint(i+2)))
	}
	last := sharingPod("z", "1")
	cache.Share(append(pods, last)...)
	if first.GetSpec().GetContainers()[0] == last.GetSpec().GetContainers()[0] {
		t.Error("a part of an object that may be long gone is still kept")
	}
}

func sharingPod(name, cpu string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec: &schedulingv1.PodSpec{
			NodeName: "node-" + name,
			Containers: []*schedulingv1.Container{{
				Name: "web",
				Resources: &schedulingv1.ResourceRequirements{
					Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue(cpu)},
				},
			}},
			Tolerations: []*schedulingv1.Toleration{{Key: "slow", Operator: "Exists"}},
		},
	}
}
