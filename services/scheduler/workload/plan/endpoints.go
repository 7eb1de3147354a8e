package plan

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// ClientIP is the session affinity by which connections from one address are led to the same pod.
	ClientIP = "ClientIP"
	// AffinitySeconds is how long that lasts by default, as in Kubernetes.
	AffinitySeconds = 10_800
)

// Selects reports whether a service selects a pod, which is of its namespace. A service without a selector, and one
// that is another name of a host, select none.
func Selects(s *schedulingv1.Service, pod *schedulingv1.Pod) bool {
	selector := s.GetSpec().GetSelector()
	if len(selector) == 0 || !HasAddress(s) {
		return false
	}
	has := pod.GetMetadata().GetLabels()
	for k, v := range selector {
		if have, ok := has[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// Endpoints returns where the connections to a service are led. pods are those of its namespace, or more; the others
// are left out.
func Endpoints(s *schedulingv1.Service, pods []*schedulingv1.Pod) *schedulingv1.ServiceEndpoints {
	out := EndpointsOf(s)
	for _, pod := range pods {
		if pod.GetMetadata().GetNamespace() != s.GetMetadata().GetNamespace() || !Selects(s, pod) {
			continue
		}
		if e := Endpoint(s, pod); e != nil {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	slices.SortFunc(out.GetEndpoints(), func(a, b *schedulingv1.ServiceEndpoint) int {
		return strings.Compare(a.GetPod(), b.GetPod())
	})
	return out
}

// EndpointsOf returns what Endpoints returns for a service without pods.
func EndpointsOf(s *schedulingv1.Service) *schedulingv1.ServiceEndpoints {
	m, spec := s.GetMetadata(), s.GetSpec()
	out := &schedulingv1.ServiceEndpoints{Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid()}
	if HasAddress(s) {
		out.ClusterIp = spec.GetClusterIp()
	} else {
		out.ExternalName = spec.GetExternalName()
	}
	if spec.GetSessionAffinity() == ClientIP {
		out.AffinitySeconds = AffinitySeconds // of a service that was stored without it
		if seconds := spec.GetSessionAffinityConfig().GetClientIp().GetTimeoutSeconds(); seconds > 0 {
			out.AffinitySeconds = seconds
		}
	}
	for _, p := range spec.GetPorts() {
		out.Ports = append(out.Ports, &schedulingv1.ServiceEndpointsPort{
			Name: p.GetName(), Protocol: protocolOf(p.GetProtocol()), Port: p.GetPort(),
		})
	}
	return out
}

// Endpoint returns what a pod that a service selects is for its connections; nil if it is left out.
func Endpoint(s *schedulingv1.Service, pod *schedulingv1.Pod) *schedulingv1.ServiceEndpoint {
	m, spec := pod.GetMetadata(), pod.GetSpec()
	if placement.Terminated(pod) || pod.GetStatus().GetPodIp() == "" {
		return nil
	}
	out := &schedulingv1.ServiceEndpoint{
		Pod: m.GetName(), Uid: m.GetUid(), Node: spec.GetNodeName(), Address: pod.GetStatus().GetPodIp(),
	}
	if spec.GetSubdomain() == s.GetMetadata().GetName() {
		out.Hostname = spec.GetHostname()
	}
	for _, p := range s.GetSpec().GetPorts() {
		out.Ports = append(out.Ports, targetPort(p, pod))
	}
	if out.Why = whyNotServing(s, pod); out.GetWhy() == "" && s.GetSpec().GetClusterIp() != Headless {
		out.Why = whyNoPort(s, out.GetPorts())
	}
	out.Serving = out.GetWhy() == ""
	return out
}

// longestWhy is how many bytes of a pod's own explanation are repeated.
const longestWhy = 256

// whyNotServing returns why no connections are led to a pod; empty if they are.
func whyNotServing(s *schedulingv1.Service, pod *schedulingv1.Pod) string {
	if s.GetSpec().GetPublishNotReadyAddresses() {
		return ""
	}
	if object.Deleting(pod) {
		return "it is being deleted"
	}
	ready := placement.PodCondition(pod, "Ready")
	switch {
	case ready.GetStatus() == "True":
		return ""
	case ready.GetMessage() != "":
		text := ready.GetMessage()
		if len(text) > longestWhy {
			text = strings.ToValidUTF8(text[:longestWhy], "") + "…"
		}
		return "it is not ready: " + text
	}
	return "it is not ready"
}

// whyNoPort returns why no port of a service leads to a pod; empty if one does, or if the service has none.
func whyNoPort(s *schedulingv1.Service, of []int32) string {
	if len(of) == 0 || slices.ContainsFunc(of, func(port int32) bool { return port > 0 }) {
		return ""
	}
	return fmt.Sprintf("it has no port named %q", s.GetSpec().GetPorts()[0].GetTargetPort().GetStringValue())
}

// targetPort returns the port of a pod that a port of a service leads to; 0 if the pod does not have it.
func targetPort(p *schedulingv1.ServicePort, pod *schedulingv1.Pod) int32 {
	switch target := p.GetTargetPort().GetKind().(type) {
	case *structpb.Value_NumberValue:
		return int32(target.NumberValue)
	case *structpb.Value_StringValue:
		for _, c := range pod.GetSpec().GetContainers() {
			for _, own := range c.GetPorts() {
				if own.GetName() == target.StringValue && protocolOf(own.GetProtocol()) == protocolOf(p.GetProtocol()) {
					return own.GetContainerPort()
				}
			}
		}
		return 0
	}
	return p.GetPort()
}

func protocolOf(p string) string {
	if p == "" {
		return "TCP"
	}
	return p
}
