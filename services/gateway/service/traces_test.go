package service

import (
	"encoding/json"
	"net/http"
	"regexp"
	"testing"

	"google.golang.org/grpc/metadata"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

var traceparent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-01$`)

// TestACallIsASpanOfTheGateway has callers name a trace or none: the backend gets a span of the gateway as its parent,
// in the caller's trace if there is one.
func TestACallIsASpanOfTheGateway(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // a collector that is away delays no call
	const parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	w := newWorld(t)
	calls := map[string]func(t *testing.T, parent string) string{
		"REST": func(t *testing.T, parent string) string {
			header := http.Header{}
			if parent != "" {
				header.Set("Traceparent", parent)
			}
			got := w.do("GET", "/v1/namespaces/ns/machines/a", header, "", nil)
			var m struct {
				Metadata struct{ Annotations map[string]string }
			}
			if err := json.Unmarshal([]byte(got.body), &m); err != nil {
				t.Fatalf("%v in %s", err, got.body)
			}
			return m.Metadata.Annotations["traceparent"]
		},
	}
	for _, l := range lanes {
		calls["gRPC over "+l.name] = func(t *testing.T, parent string) string {
			ctx := within(t)
			if parent != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", parent)
			}
			got, err := machinev1.NewMachineServiceClient(w.grpc("alice", l)).GetMachine(ctx, &machinev1.GetMachineRequest{
				Namespace: "ns", Name: "a",
			})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetMetadata().GetAnnotations()["traceparent"]
		}
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			of := traceparent.FindStringSubmatch(parent)
			root, continued := traceparent.FindStringSubmatch(call(t, "")), traceparent.FindStringSubmatch(call(t, parent))
			if root == nil || root[1] == of[1] {
				t.Errorf("without a trace of the caller the backend sees %q", root)
			}
			if continued == nil || continued[1] != of[1] || continued[2] == of[2] {
				t.Errorf("in the trace %s the backend sees %q", parent, continued)
			}
		})
	}
}
