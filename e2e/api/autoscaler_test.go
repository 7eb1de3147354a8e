package api

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// A given cluster of one empty set and one pod that waits is planned by the scheduler's own predicates.
func TestThePlanOfAutoscalersUsesTheGivenObjects(t *testing.T) {
	c := shared.Cluster(t)
	autoscalers := machinev1.NewClusterAutoscalerServiceClient(c.Conn())
	labels := map[string]string{"set": "given"}
	pod := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "waits"},
		Spec: &schedulingv1.PodSpec{
			NodeSelector: map[string]string{"disk": "fast"}, SchedulerName: "default-scheduler",
			Containers: []*schedulingv1.Container{{Name: "a", Image: "a", Resources: &schedulingv1.ResourceRequirements{
				Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("1")},
			}}},
		},
		Status: &schedulingv1.PodStatus{Conditions: []*schedulingv1.PodCondition{{
			Type: "PodScheduled", Status: "False", Reason: proto.String("Unschedulable"),
		}}},
	}
	set := &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: "given", Annotations: map[string]string{
			"machine.openshift.io/vCPU": "2", "machine.openshift.io/memoryMb": "4096",
		}},
		Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: &machinev1.MachineTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: labels}, Spec: &machinev1.MachineSpec{
					Metadata: &metav1.ObjectMeta{Labels: map[string]string{"disk": "slow"}},
				},
			},
		},
	}
	req := &machinev1.PlanClusterAutoscalerRequest{
		ClusterAutoscaler: &machinev1.ClusterAutoscaler{Spec: &machinev1.ClusterAutoscalerSpec{}},
		MachineAutoscalers: &machinev1.MachineAutoscalerList{Items: []*machinev1.MachineAutoscaler{{
			Metadata: &metav1.ObjectMeta{Name: "given"},
			Spec: &machinev1.MachineAutoscalerSpec{
				MaxReplicas: 3, ScaleTargetRef: &machinev1.MachineAutoscalerTarget{Kind: "MachineSet", Name: "given"},
			},
		}}},
		MachineSets: &machinev1.MachineSetList{Items: []*machinev1.MachineSet{set}},
		Pods:        &schedulingv1.PodList{Items: []*schedulingv1.Pod{pod}},
	}
	p, err := autoscalers.PlanClusterAutoscaler(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.GetSets()) != 1 || p.GetSets()[0].GetDesiredReplicas() != 0 || p.GetStatus().GetUnhelpedPodCount() != 1 {
		t.Errorf("nodes of the set lack the label: %v", p)
	}
	set.Spec.Template.Spec.Metadata.Labels["disk"] = "fast"
	if p, err = autoscalers.PlanClusterAutoscaler(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if s := p.GetSets(); len(s) != 1 || s[0].GetDesiredReplicas() != 1 || !slices.Equal(s[0].GetPods(),
		[]string{"default/waits"}) || len(p.GetActions()) != 1 {
		t.Errorf("nodes of the set have the label: %v", p)
	}
}

// The rules of a cluster autoscaler can be tried on the live cluster before it exists.
func TestAClusterAutoscalerCanBePlannedBeforeItExists(t *testing.T) {
	c := shared.Cluster(t)
	const path = "/v1/clusterautoscalers:plan"
	for body, active := range map[string]string{`{}`: "False", `{"clusterAutoscaler":{"spec":{}}}`: "True"} {
		resp, err := c.Admin().REST(t.Context(), "POST", path, "application/json", []byte(body))
		if err != nil || resp.Code != 200 {
			t.Fatalf("%d: %v\n%s", resp.Code, err, resp.Body)
		}
		var p machinev1.PlanClusterAutoscalerResponse
		if err := protojson.Unmarshal(resp.Body, &p); err != nil {
			t.Fatal(err)
		}
		if l := p.GetStatus().GetConditions(); len(l) != 1 || l[0].GetStatus() != active {
			t.Errorf("%s: conditions %v, want %s", body, l, active)
		}
	}
}

func TestAutoscalersThatCannotBeInForceAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	for doc, want := range map[string]wants{
		`{"apiVersion":"autoscaling.openshift.io/v1beta1","kind":"MachineAutoscaler","metadata":{"name":"a"},"spec":
		{"minReplicas":3,"maxReplicas":2,"scaleTargetRef":{"kind":"MachineSet","name":"a"}}}`: {
			code: codes.InvalidArgument, fields: []string{"spec.minReplicas"},
		},
		`{"apiVersion":"autoscaling.openshift.io/v1beta1","kind":"MachineAutoscaler","metadata":{"name":"a"},"spec":
		{"minReplicas":1,"maxReplicas":2,"scaleTargetRef":{"kind":"Deployment","name":"a"}}}`: {
			code: codes.InvalidArgument, fields: []string{"spec.scaleTargetRef.kind"},
		},
		`{"apiVersion":"autoscaling.openshift.io/v1","kind":"ClusterAutoscaler","metadata":{"name":"default"},"spec":
		{"expanders":["Priority"],"maxPodGracePeriod":5,"resourceLimits":{"gpus":[{"type":"a","max":1}]}}}`: {
			code:   codes.InvalidArgument,
			fields: []string{"spec.expanders[0]", "spec.maxPodGracePeriod", "spec.resourceLimits.gpus"},
		},
		`{"apiVersion":"autoscaling.openshift.io/v1","kind":"ClusterAutoscaler","metadata":{"name":"other"}}`: {
			code: codes.InvalidArgument, fields: []string{"metadata.name"},
		},
	} {
		path := "/v1/machineautoscalers"
		if strings.Contains(doc, "ClusterAutoscaler") {
			path = "/v1/clusterautoscalers"
		}
		resp, err := c.Admin().REST(t.Context(), "POST", path, "application/json", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		want.check(t, path, ofResponse(t, resp))
	}
}

func TestOnlyAMachineOfASetIsDeletedWithItsReplica(t *testing.T) {
	c := shared.Cluster(t)
	machines := machinev1.NewMachineServiceClient(c.Conn())
	list, err := machines.ListMachines(t.Context(), &machinev1.ListMachinesRequest{
		LabelSelector: "machine.openshift.io/cluster-api-machine-role=master",
	})
	if err != nil || len(list.GetItems()) == 0 {
		t.Fatalf("%d masters: %v", len(list.GetItems()), err)
	}
	for name, want := range map[string]codes.Code{
		list.GetItems()[0].GetMetadata().GetName(): codes.FailedPrecondition, "none": codes.NotFound,
		"": codes.InvalidArgument,
	} {
		if _, err := machines.DeleteAndShrink(t.Context(), &machinev1.DeleteAndShrinkRequest{
			Name: name, DryRun: "All",
		}); status.Code(err) != want {
			t.Errorf("machine %q: %v, want %v", name, err, want)
		}
	}
}
