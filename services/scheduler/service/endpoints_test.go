package service

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// reportAt has the agent of a pod's node report it with an address.
func reportAt(t *testing.T, agent schedulingv1.PodAgentServiceClient, pod *schedulingv1.Pod, address, ready string) {
	t.Helper()
	m := pod.GetMetadata()
	if _, err := agent.ReportPod(t.Context(), &schedulingv1.ReportPodRequest{
		NodeName: pod.GetSpec().GetNodeName(), Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
		Status: &schedulingv1.PodStatus{
			Phase: proto.String("Running"), PodIp: address, Conditions: []*schedulingv1.PodCondition{
				{Type: "Ready", Status: ready},
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
}

func webService(name string) *schedulingv1.Service {
	return &schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: &schedulingv1.ServiceSpec{
			Selector: map[string]string{"app": "test"},
			Ports:    []*schedulingv1.ServicePort{{Port: 80, TargetPort: structpb.NewNumberValue(8080)}},
		},
	}
}

// endpointsOf returns the endpoints of a service in words.
func endpointsOf(e *schedulingv1.ServiceEndpoints) (out []string) {
	for _, p := range e.GetEndpoints() {
		out = append(out, fmt.Sprintf("%s %s:%d %t", p.GetPod(), p.GetAddress(), p.GetPorts()[0], p.GetServing()))
	}
	return out
}

func TestAnAgentFollowsWhereTheConnectionsToServicesAreLed(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	c.addNode("node-2", "4")
	services, pods, agent := schedulingv1.NewServiceServiceClient(c.admin()), c.pods(), c.agent("node-1")
	web, err := services.CreateService(t.Context(), &schedulingv1.CreateServiceRequest{Service: webService("web")})
	if err != nil || web.GetSpec().GetClusterIp() == "" {
		t.Fatalf("created %v, %v", web, err)
	}
	pod := newPod("p", "100m")
	pod.Spec.NodeName = "node-1"
	pod = c.create(pods, pod)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stream, err := agent.WatchServiceEndpoints(ctx, &schedulingv1.WatchServiceEndpointsRequest{NodeName: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string][]string{}
	address := map[string]string{}
	receive := func() *schedulingv1.WatchServiceEndpointsResponse {
		t.Helper()
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetChanged() {
			k := e.GetNamespace() + "/" + e.GetName()
			has[k], address[k] = endpointsOf(e), e.GetClusterIp()
		}
		for _, k := range m.GetRemoved() {
			delete(has, k)
		}
		return m
	}
	for !receive().GetComplete() {
	}
	if address["default/web"] != web.GetSpec().GetClusterIp() || len(has) != 1 || len(has["default/web"]) != 0 {
		t.Errorf("the stream begins with %v at %v", has, address)
	}
	await := func(service string, want ...string) {
		t.Helper()
		for !slices.Equal(has[service], want) {
			receive() // a wrong one never comes: the deadline of the test reports it
		}
		got, err := services.PlanServiceEndpoints(t.Context(), &schedulingv1.PlanServiceEndpointsRequest{
			Namespace: "default", Name: "web",
		})
		if service == "default/web" && (err != nil || !slices.Equal(endpointsOf(got), want)) {
			t.Errorf("the plan says %v, %v, want %q", got, err, want)
		}
	}
	reportAt(t, agent, pod, "127.240.0.9", "False")
	await("default/web", "p 127.240.0.9:8080 false")
	reportAt(t, agent, pod, "127.240.0.9", "True")
	await("default/web", "p 127.240.0.9:8080 true")
	if _, err := services.CreateService(t.Context(), &schedulingv1.CreateServiceRequest{
		Service: webService("second"),
	}); err != nil {
		t.Fatal(err)
	}
	await("default/second", "p 127.240.0.9:8080 true")
	if address["default/second"] == address["default/web"] {
		t.Errorf("both services have the address %s", address["default/web"])
	}
	if _, err := services.DeleteService(t.Context(), &schedulingv1.DeleteServiceRequest{
		Namespace: "default", Name: "second",
	}); err != nil {
		t.Fatal(err)
	}
	for has["default/second"] != nil {
		receive()
	}
	if _, err := pods.DeletePod(t.Context(), &schedulingv1.DeletePodRequest{Namespace: "default", Name: "p"}); err != nil {
		t.Fatal(err)
	}
	await("default/web", "p 127.240.0.9:8080 false")
	if _, err := agent.ConfirmPodGone(t.Context(), &schedulingv1.ConfirmPodGoneRequest{
		NodeName: "node-1", Namespace: "default", Name: "p", Uid: pod.GetMetadata().GetUid(),
	}); err != nil {
		t.Fatal(err)
	}
	await("default/web")

	other, err := c.agent("node-2").WatchServiceEndpoints(t.Context(), &schedulingv1.WatchServiceEndpointsRequest{
		NodeName: "node-1",
	})
	if err == nil {
		_, err = other.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("the agent of another node: %v", err)
	}
}

func TestThePlanOfAServiceIsForGivenObjectsToo(t *testing.T) {
	c := start(t)
	viewer := schedulingv1.NewServiceServiceClient(c.as(servetest.User("vera", "windlass:viewers")))
	ready := newPod("p", "100m")
	ready.Metadata.Namespace = ""
	ready.Status = &schedulingv1.PodStatus{
		PodIp: "127.240.0.1", Conditions: []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}},
	}
	got, err := viewer.PlanServiceEndpoints(t.Context(), &schedulingv1.PlanServiceEndpointsRequest{
		Service: webService("new"), Pods: &schedulingv1.PodList{Items: []*schedulingv1.Pod{ready}},
	})
	if want := []string{"p 127.240.0.1:8080 true"}; err != nil || !slices.Equal(endpointsOf(got), want) {
		t.Errorf("of given objects: %v, %v, want %q", got, err, want)
	}
	if _, err := viewer.PlanServiceEndpoints(t.Context(), &schedulingv1.PlanServiceEndpointsRequest{Name: "none"}); rpcerr.
		Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		t.Errorf("of a service that does not exist: %v", err)
	}
	guest := schedulingv1.NewServiceServiceClient(c.as(servetest.User("bob")))
	servetest.Await(t, func() string { // until the scheduler knows the stored roles
		_, err := guest.PlanServiceEndpoints(t.Context(), &schedulingv1.PlanServiceEndpointsRequest{Name: "none"})
		switch status.Code(err) {
		case codes.PermissionDenied:
			return ""
		case codes.Unavailable:
			return err.Error()
		}
		t.Fatalf("for a user without rights: %v", err)
		return ""
	})
	_, err = schedulingv1.NewServiceServiceClient(c.admin()).CreateService(t.Context(), &schedulingv1.CreateServiceRequest{
		Service: func() *schedulingv1.Service {
			s := webService("far")
			s.Spec.ClusterIp = "127.225.0.1"
			return s
		}(),
	})
	if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != "spec.clusterIP" {
		t.Errorf("an address of another cluster's range: %v", err)
	}
}
