package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

const (
	// nodeReports is how many ports a node may report in nodeReportsFor: an agent may be hostile, and each report is an
	// event. An honest agent sends fewer.
	nodeReports, nodeReportsFor = 64, time.Minute
)

// ReportServicePorts records events of services about ports that the agent's node cannot listen on, or does again. The
// agent chooses neither the reasons nor the objects beyond services that have such a port.
func (s *Agents) ReportServicePorts(ctx context.Context, r *schedulingv1.ReportServicePortsRequest) (
	*schedulingv1.ReportServicePortsResponse, error,
) {
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return nil, err
	}
	if !s.reports.take(r.GetNodeName(), len(r.GetPorts()), s.Now()) {
		return nil, rpcerr.TooMany(fmt.Sprintf("node %q may report %d ports of services in %v", r.GetNodeName(),
			nodeReports, nodeReportsFor), nodeReportsFor)
	}
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	told := events.From(s.Events, "node-agent, "+r.GetNodeName())
	for _, p := range r.GetPorts() {
		of, ok := s.Tables.Services.Lookup(p.GetNamespace(), p.GetName())
		if !ok || of.GetMetadata().GetUid() != p.GetUid() || plan.AddressOf(of) == "" || !hasPort(of, p) {
			continue
		}
		at := fmt.Sprintf("%d/%s of %s", p.GetPort(), p.GetProtocol(), plan.AddressOf(of))
		if p.GetError() == "" {
			told.Event(of, events.Normal, "PortOpened", "Port "+at+" is open on the host of node "+r.GetNodeName())
			continue
		}
		told.Event(of, events.Warning, "PortNotOpened", fmt.Sprintf("Port %s cannot be opened on the host of node %s: %s",
			at, r.GetNodeName(), p.GetError()))
	}
	return &schedulingv1.ReportServicePortsResponse{}, nil
}

func hasPort(s *schedulingv1.Service, r *schedulingv1.ServicePortReport) bool {
	return slices.ContainsFunc(s.GetSpec().GetPorts(), func(p *schedulingv1.ServicePort) bool {
		return p.GetPort() == r.GetPort() && p.GetProtocol() == r.GetProtocol()
	})
}

// reports counts what each node reports. It is safe for concurrent use.
type reports struct {
	mu sync.Mutex
	of map[string]span // by node; those that are over are dropped now and then
}

// span is nodeReportsFor of a node.
type span struct {
	since time.Time
	used  int
}

// take reports whether a node may report n ports more at a time. If it may not, they do not count.
func (r *reports) take(node string, n int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.of[node]
	if !ok || now.Sub(at.since) >= nodeReportsFor {
		maps.DeleteFunc(r.of, func(_ string, at span) bool { return now.Sub(at.since) >= nodeReportsFor })
		at = span{since: now}
	}
	if at.used+n > nodeReports {
		return false
	}
	at.used += n
	r.of[node] = at
	return true
}
