package describe

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type service = *schedulingv1.Service

// service prints a service with the pods that connections to it are led to, and why not to its other pods.
func (d *describer) service() {
	s := d.Object.(service).GetSpec()
	d.line("Selector", mapLines(s.GetSelector()))
	d.line("Type", cmp.Or(s.GetType(), "ClusterIP"))
	d.line("IP", table.OrNone(s.GetClusterIp()))
	d.optional("External Name", s.GetExternalName())
	var ports []string
	for _, p := range s.GetPorts() {
		text := fmt.Sprintf("%d/%s to %s", p.GetPort(), cmp.Or(p.GetProtocol(), "TCP"), targetPort(p))
		ports = append(ports, strings.TrimSpace(p.GetName()+" "+text))
	}
	d.line("Ports", table.OrNone(strings.Join(ports, "\n")))
	affinity := cmp.Or(s.GetSessionAffinity(), table.None)
	if seconds := s.GetSessionAffinityConfig().GetClientIp().GetTimeoutSeconds(); seconds > 0 {
		affinity += fmt.Sprintf(" for %d seconds after the last connection", seconds)
	}
	d.line("Session Affinity", affinity)
	if s.GetPublishNotReadyAddresses() {
		d.line("Not-Ready Pods", "serve too")
	}
	e, err := schedulingv1.NewServiceServiceClient(d.client.Conn()).PlanServiceEndpoints(d.ctx,
		&schedulingv1.PlanServiceEndpointsRequest{Namespace: d.Namespace(), Name: d.Name()})
	if err != nil {
		d.line("Endpoints", "<"+shortError(err)+">")
		return
	}
	d.rows("Endpoints", table.Endpoints(e))
}

// targetPort returns the port of pods that a port of a service leads to.
func targetPort(p *schedulingv1.ServicePort) string {
	switch v := p.GetTargetPort().GetKind().(type) {
	case *structpb.Value_NumberValue:
		return fmt.Sprint(int32(v.NumberValue))
	case *structpb.Value_StringValue:
		return v.StringValue
	}
	return fmt.Sprint(p.GetPort())
}
