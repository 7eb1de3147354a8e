package trace_test

import (
	"testing"

	oteltrace "go.opentelemetry.io/otel/trace"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/trace"
)

func inTrace(t *testing.T, id string) oteltrace.SpanContext {
	t.Helper()
	traceID, err := oteltrace.TraceIDFromHex(id)
	if err != nil {
		t.Fatal(err)
	}
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: traceID, SpanID: oteltrace.SpanID{1},
		TraceFlags: oteltrace.FlagsSampled,
	})
}

const id = "0af7651916cd43dd8448eb211c80319c"

func TestADeletionStaysInItsTrace(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	machine, drain := &metav1.ObjectMeta{}, &metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}
	ctx := oteltrace.ContextWithSpanContext(t.Context(), inTrace(t, id))
	trace.Mark(ctx, machine)
	trace.Mark(oteltrace.ContextWithSpanContext(t.Context(), inTrace(t, "ffffffffffffffffffffffffffffffff")), machine)
	trace.Follow(drain, machine)
	if got := trace.ID(drain); got != id || drain.GetAnnotations()["a"] != "b" {
		t.Errorf("the drain is in trace %q, want %q; annotations %v", got, id, drain.GetAnnotations())
	}
	span := oteltrace.SpanContextFromContext(trace.Continue(t.Context(), drain))
	if span.TraceID().String() != id || !span.IsRemote() || !span.IsSampled() {
		t.Errorf("a controller goes on in %+v", span)
	}
}

func TestWithoutAnExporterNothingIsAnnotated(t *testing.T) {
	m := &metav1.ObjectMeta{}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	trace.Mark(t.Context(), m)
	trace.Follow(m, &metav1.ObjectMeta{})
	if len(m.GetAnnotations()) > 0 {
		t.Errorf("annotated with %v", m.GetAnnotations())
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
	trace.Mark(t.Context(), m)
	if len(trace.ID(m)) != len(id) {
		t.Errorf("a deletion by a controller is in trace %q, want a new one", trace.ID(m))
	}
}

func TestWhatIsNoTraceMeansNothing(t *testing.T) {
	for _, text := range []string{
		"", "x", "00-00000000000000000000000000000000-0000000000000000-01",
		"00-" + id + "-0100000000000000-01\n",
	} {
		m := &metav1.ObjectMeta{Annotations: map[string]string{trace.Annotation: text}}
		if got := trace.ID(m); got != "" {
			t.Errorf("%q is trace %q", text, got)
		}
		if ctx := trace.Continue(t.Context(), m); ctx != t.Context() {
			t.Errorf("%q leads into a trace", text)
		}
	}
}
