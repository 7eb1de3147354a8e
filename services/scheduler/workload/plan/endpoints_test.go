package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// webService selects the pods with the label app=web.
func webService(change ...func(*schedulingv1.ServiceSpec)) *schedulingv1.Service {
	s := &schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "s"},
		Spec: &schedulingv1.ServiceSpec{
			Type: "ClusterIP", ClusterIp: "127.224.0.5", Selector: web,
			Ports: []*schedulingv1.ServicePort{{
				Name: "http", Protocol: "TCP", Port: 80, TargetPort: structpb.NewNumberValue(8080),
			}},
		},
	}
	for _, f := range change {
		f(s.Spec)
	}
	return s
}

// endpointPod is a ready pod of webService.
func endpointPod(name string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			Name: name, Namespace: "default", Uid: "u-" + name, Labels: map[string]string{"app": "web", "tier": "front"},
		},
		Spec: &schedulingv1.PodSpec{NodeName: "n", Containers: []*schedulingv1.Container{{Name: "main"}}},
		Status: &schedulingv1.PodStatus{
			Phase: proto.String("Running"), PodIp: "127.240.0.7",
			Conditions: []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func containerPorts(ports ...*schedulingv1.ContainerPort) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Spec.Containers[0].Ports = ports }
}

func notReady(message string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		c := &schedulingv1.PodCondition{Type: "Ready", Status: "False"}
		if message != "" {
			c.Message = &message
		}
		p.Status.Conditions = []*schedulingv1.PodCondition{c}
	}
}

func goingAway(p *schedulingv1.Pod) { p.Metadata.DeletionTimestamp = at(start) }

func TestWhereTheConnectionsToAServiceAreLed(t *testing.T) {
	named := func(s *schedulingv1.ServiceSpec) {
		s.Ports = []*schedulingv1.ServicePort{
			{Name: "http", Protocol: "TCP", Port: 80, TargetPort: structpb.NewStringValue("web")},
			{Name: "dns", Protocol: "UDP", Port: 53, TargetPort: structpb.NewStringValue("dns")},
			{Name: "same", Protocol: "TCP", Port: 81},
		}
	}
	ports := []*schedulingv1.ServiceEndpointsPort{{Name: "http", Protocol: "TCP", Port: 80}}
	threePorts := append(ports[:1:1], &schedulingv1.ServiceEndpointsPort{Name: "dns", Protocol: "UDP", Port: 53},
		&schedulingv1.ServiceEndpointsPort{Name: "same", Protocol: "TCP", Port: 81})
	serving := func(name string, ports ...int32) *schedulingv1.ServiceEndpoint {
		return &schedulingv1.ServiceEndpoint{
			Pod: name, Uid: "u-" + name, Node: "n", Address: "127.240.0.7", Ports: ports, Serving: true,
		}
	}
	not := func(name, why string) *schedulingv1.ServiceEndpoint {
		e := serving(name, 8080)
		e.Serving, e.Why = false, why
		return e
	}
	of := func(ports []*schedulingv1.ServiceEndpointsPort, endpoints ...*schedulingv1.ServiceEndpoint,
	) *schedulingv1.ServiceEndpoints {
		return &schedulingv1.ServiceEndpoints{
			Namespace: "default", Name: "web", Uid: "s", ClusterIp: "127.224.0.5", Ports: ports, Endpoints: endpoints,
		}
	}
	publish := func(s *schedulingv1.ServiceSpec) { s.PublishNotReadyAddresses = proto.Bool(true) }
	for name, tt := range map[string]struct {
		service *schedulingv1.Service
		pods    []*schedulingv1.Pod
		want    *schedulingv1.ServiceEndpoints
	}{
		"ready pods serve, and are ordered by name": {
			webService(),
			[]*schedulingv1.Pod{endpointPod("b"), endpointPod("a")},
			of(ports, serving("a", 8080), serving("b", 8080)),
		},
		"pods without the labels, of another namespace, ended, or without an address are left out": {
			webService(), []*schedulingv1.Pod{
				endpointPod("a", func(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"app": "webs"} }),
				endpointPod("b", func(p *schedulingv1.Pod) { p.Metadata.Namespace = "other" }),
				endpointPod("c", func(p *schedulingv1.Pod) { p.Status.Phase = proto.String("Succeeded") }),
				endpointPod("d", func(p *schedulingv1.Pod) { p.Status.PodIp = "" }),
			}, of(ports),
		},
		"pods that are not ready or are being deleted do not serve": {
			webService(),
			[]*schedulingv1.Pod{
				endpointPod("a", notReady("")), endpointPod("b", notReady("Node is not ready")), endpointPod("c", goingAway),
				endpointPod("d", func(p *schedulingv1.Pod) { p.Status.Conditions = nil }),
			},
			of(ports, not("a", "it is not ready"), not("b", "it is not ready: Node is not ready"),
				not("c", "it is being deleted"), not("d", "it is not ready")),
		},
		"pods that are not ready, or are being deleted, serve if the service publishes them": {
			webService(publish),
			[]*schedulingv1.Pod{endpointPod("a", notReady("")), endpointPod("b", notReady(""), goingAway)},
			of(ports, serving("a", 8080), serving("b", 8080)),
		},
		"a pod without the named port serves nothing": {
			webService(func(s *schedulingv1.ServiceSpec) { s.Ports[0].TargetPort = structpb.NewStringValue("web") }),
			[]*schedulingv1.Pod{endpointPod("a")},
			of(ports, func() *schedulingv1.ServiceEndpoint {
				e := not("a", `it has no port named "web"`)
				e.Ports = []int32{0}
				return e
			}()),
		},
		"a named port is that of each pod, of the same protocol": {
			webService(named), []*schedulingv1.Pod{
				endpointPod("a", containerPorts(&schedulingv1.ContainerPort{Name: "web", ContainerPort: 8080},
					&schedulingv1.ContainerPort{Name: "dns", ContainerPort: 5353})),
				endpointPod("b", containerPorts(&schedulingv1.ContainerPort{Name: "web", ContainerPort: 9090, Protocol: "TCP"},
					&schedulingv1.ContainerPort{Name: "dns", ContainerPort: 5354, Protocol: "UDP"})),
			}, of(threePorts, serving("a", 8080, 0, 81), serving("b", 9090, 5354, 81)),
		},
		"a pod has a host name in the service that its subdomain names": {
			webService(), []*schedulingv1.Pod{
				endpointPod("a", func(p *schedulingv1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "web-0", "web" }),
				endpointPod("b", func(p *schedulingv1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "web-1", "other" }),
			}, func() *schedulingv1.ServiceEndpoints {
				out := of(ports, serving("a", 8080), serving("b", 8080))
				out.Endpoints[0].Hostname = "web-0"
				return out
			}(),
		},
		"a service without a selector has no endpoints": {
			webService(func(s *schedulingv1.ServiceSpec) { s.Selector = nil }),
			[]*schedulingv1.Pod{endpointPod("a")},
			of(ports),
		},
		"another name of a host has neither address nor endpoints": {
			webService(func(s *schedulingv1.ServiceSpec) { s.Type, s.ClusterIp, s.ExternalName = "ExternalName", "", "db" }),
			[]*schedulingv1.Pod{endpointPod("a")},
			&schedulingv1.ServiceEndpoints{
				Namespace: "default", Name: "web", Uid: "s", ExternalName: "db", Ports: ports,
			},
		},
		"affinity lasts as long as the service says": {
			webService(func(s *schedulingv1.ServiceSpec) {
				s.SessionAffinity = "ClientIP"
				s.SessionAffinityConfig = &schedulingv1.SessionAffinityConfig{
					ClientIp: &schedulingv1.ClientIPConfig{TimeoutSeconds: proto.Int32(60)},
				}
			}), nil, func() *schedulingv1.ServiceEndpoints {
				out := of(ports)
				out.AffinitySeconds = 60
				return out
			}(),
		},
		"affinity lasts three hours if the service does not say": {
			webService(func(s *schedulingv1.ServiceSpec) { s.SessionAffinity = "ClientIP" }), nil,
			func() *schedulingv1.ServiceEndpoints {
				out := of(ports)
				out.AffinitySeconds = 10_800
				return out
			}(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := plan.Endpoints(tt.service, tt.pods)
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("the endpoints are not those wanted (-want +got):\n%s", diff)
			}
		})
	}
}
