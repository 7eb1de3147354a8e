package service

import (
	"fmt"
	"strings"
	"testing"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAPortThatANodeCannotOpenIsAnEventOfItsService(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	c.addNode("node-2", "4")
	web, err := schedulingv1.NewServiceServiceClient(c.admin()).CreateService(t.Context(),
		&schedulingv1.CreateServiceRequest{Service: webService("web")})
	if err != nil {
		t.Fatal(err)
	}
	report := func(node string, ports ...*schedulingv1.ServicePortReport) codes.Code {
		_, err := c.agent(node).ReportServicePorts(t.Context(), &schedulingv1.ReportServicePortsRequest{
			NodeName: "node-1", Ports: ports,
		})
		return status.Code(err)
	}
	port := func(change func(*schedulingv1.ServicePortReport)) *schedulingv1.ServicePortReport {
		p := &schedulingv1.ServicePortReport{
			Namespace: "default", Name: "web", Uid: web.GetMetadata().GetUid(), Protocol: "TCP", Port: 80,
			Error: "address already in use",
		}
		change(p)
		return p
	}
	as := func(*schedulingv1.ServicePortReport) {}
	if code := report("node-2", port(as)); code != codes.PermissionDenied {
		t.Errorf("the agent of another node: %v", code)
	}
	if code := report("node-1",
		port(func(p *schedulingv1.ServicePortReport) { p.Name, p.Error = "kubernetes", "lie" }),
		port(func(p *schedulingv1.ServicePortReport) { p.Uid, p.Error = "another", "lie" }),
		port(func(p *schedulingv1.ServicePortReport) { p.Port, p.Error = 81, "lie" }),
		port(func(p *schedulingv1.ServicePortReport) { p.Protocol, p.Error = "UDP", "lie" }),
		port(as),
	); code != codes.OK {
		t.Errorf("a report: %v", code)
	}
	e := c.event("web", "PortNotOpened")
	address := web.GetSpec().GetClusterIp()
	if want := fmt.Sprintf("Port 80/TCP of %s cannot be opened on the host of node node-1: address already in use",
		address); e.GetMessage() != want || e.GetType() != "Warning" || e.GetInvolvedObject().GetKind() != "Service" ||
		e.GetInvolvedObject().GetUid() != web.GetMetadata().GetUid() ||
		e.GetSource().GetComponent() != "node-agent, node-1" {
		t.Errorf("the event is %v, want %q", e, want)
	}
	if code := report("node-1", port(func(p *schedulingv1.ServicePortReport) { p.Error = "" })); code != codes.OK {
		t.Errorf("a report of a port that is open: %v", code)
	}
	e = c.event("web", "PortOpened")
	if want := "Port 80/TCP of " + address + " is open on the host of node node-1"; e.GetMessage() != want ||
		e.GetType() != "Normal" {
		t.Errorf("the event is %v, want %q", e, want)
	}
	for what, text := range map[string]string{"long": strings.Repeat("x", 129), "lines": "a\nb"} {
		if code := report("node-1", port(func(p *schedulingv1.ServicePortReport) { p.Error = text })); code !=
			codes.InvalidArgument {
			t.Errorf("an error that is %s: %v", what, code)
		}
	}
	var many []*schedulingv1.ServicePortReport
	for i := range 64 {
		many = append(many, port(func(p *schedulingv1.ServicePortReport) { p.Error = fmt.Sprint("flood ", i) }))
	}
	if code := report("node-1", many...); code != codes.ResourceExhausted {
		t.Errorf("more reports than a node may send in a minute: %v", code)
	}
	list, err := eventv1.NewEventServiceClient(c.admin()).ListEvents(t.Context(), &eventv1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.GetItems() {
		if m := e.GetMessage(); strings.HasSuffix(m, "lie") || strings.Contains(m, "flood") {
			t.Errorf("there is an event %v", e)
		}
	}
}
