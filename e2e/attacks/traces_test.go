package attacks

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/e2e/harness"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

// otlp is a collector of traces: it keeps which services took part in which trace, and by which calls.
type otlp struct {
	collector.UnimplementedTraceServiceServer

	mu     sync.Mutex
	traces map[string]map[string][]string // spans by trace and service
}

func (o *otlp) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse,
	error,
) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		service := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range rs.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				id := hex.EncodeToString(span.GetTraceId())
				if o.traces[id] == nil {
					o.traces[id] = map[string][]string{}
				}
				o.traces[id][service] = append(o.traces[id][service], span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// of returns the services that took part in a trace, with their calls.
func (o *otlp) of(trace string) map[string][]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.traces[trace])
}

func collect(t *testing.T) (*otlp, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &otlp{traces: map[string]map[string][]string{}}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, o)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return o, "http://" + l.Addr().String()
}

// TestTheDeletionOfAMachineIsOneTrace has a cluster export its spans to a collector, deletes a worker that runs pods,
// and looks for one trace with the services that take part: its id is in the machine's events.
func TestTheDeletionOfAMachineIsOneTrace(t *testing.T) {
	o, address := collect(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "200") // milliseconds
	c := harness.Second(t)
	machines, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(t.Context(), &machinev1.ListMachinesRequest{
		LabelSelector: "machine.openshift.io/cluster-api-machine-role=worker",
	})
	if err != nil || len(machines.GetItems()) == 0 {
		t.Fatalf("%d workers, %v", len(machines.GetItems()), err)
	}
	name := machines.GetItems()[0].GetMetadata().GetName()
	c.MustCLI("delete", "machine", name, "--wait=false")

	ids := map[string]bool{}
	wanted := []string{"eviction-controller", "gateway", "machine-api", "provider-local", "scheduler"}
	c.Wait(2*time.Minute, "a trace across services", func(context.Context) (bool, string, error) {
		r := c.CLI("events", "--for", "machine/"+name, "--no-headers", "-o",
			"jsonpath={range .items[*]}{.metadata.annotations.windlass\\.dev/trace-id}{\"\\n\"}{end}")
		for _, id := range strings.Fields(r.Stdout) {
			ids[id] = true
		}
		for id := range ids {
			services := slices.Sorted(maps.Keys(o.of(id)))
			if !slices.ContainsFunc(wanted, func(s string) bool { return !slices.Contains(services, s) }) {
				return true, "", nil
			}
		}
		saw := r.Stdout + r.Stderr
		for id := range ids {
			saw += fmt.Sprintf(" %s: %v", id, o.of(id))
		}
		return false, saw, nil
	})
	if len(ids) != 1 {
		t.Errorf("the events of one deletion name the traces %v", ids)
	}
	for id := range ids {
		if text := c.MustCLI("events", "-o", "wide"); !strings.Contains(text, id) {
			t.Errorf("events -o wide does not show the trace %s:\n%s", id, text)
		}
		calls := o.of(id)
		if !slices.ContainsFunc(calls["provider-local"], func(span string) bool {
			return strings.Contains(span, "DeleteInstance")
		}) {
			t.Errorf("the provider's part of the trace is %v", calls["provider-local"])
		}
	}
}
