// Package trace carries the trace of a deletion from service to service. A controller does not run inside the call that
// asked for the deletion, so the object itself says, in an annotation, which trace it belongs to, and every controller
// that works on the object continues that trace. Without an exporter nothing is annotated, and an object without the
// annotation costs one map lookup.
package trace

import (
	"context"
	"crypto/rand"
	"os"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Annotation of an object that is being deleted, and of what is made for its deletion, in the form of the W3C's
// traceparent.
const Annotation = "windlass.dev/traceparent"

// EventAnnotation is the id of the trace that an event belongs to: 32 hexadecimal digits.
const EventAnnotation = "windlass.dev/trace-id"

// header is the name under which the propagator reads and writes.
const header = "traceparent"

// Enabled reports whether spans of this process are exported: OTEL_EXPORTER_OTLP_ENDPOINT names a collector.
func Enabled() bool { return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" }

// Mark writes the trace of ctx to an object whose deletion begins. Where ctx is in no trace, as in a controller that
// deletes by itself, a new one begins, unless nothing is exported. An object that is in a trace already stays in it.
func Mark(ctx context.Context, m *metav1.ObjectMeta) {
	if m.GetAnnotations()[Annotation] != "" {
		return
	}
	span := trace.SpanContextFromContext(ctx)
	switch {
	case span.IsValid():
	case Enabled():
		span = begin()
	default:
		return
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(ctx, span), carrier)
	m.Annotations[Annotation] = carrier[header]
}

func begin() trace.SpanContext {
	var id trace.TraceID
	var parent trace.SpanID
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(parent[:])
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: parent, TraceFlags: trace.FlagsSampled})
}

// Follow puts what is made for an object's deletion into the object's trace.
func Follow(m, of *metav1.ObjectMeta) {
	if parent := of.GetAnnotations()[Annotation]; parent != "" {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[Annotation] = parent
	}
}

// Continue returns ctx inside the trace of an object; ctx itself if the object is in none.
func Continue(ctx context.Context, m *metav1.ObjectMeta) context.Context {
	if span := of(m); span.IsValid() {
		return trace.ContextWithRemoteSpanContext(ctx, span)
	}
	return ctx
}

// ID returns the id of the trace that an object is in, "" if it is in none.
func ID(m *metav1.ObjectMeta) string {
	if span := of(m); span.IsValid() {
		return span.TraceID().String()
	}
	return ""
}

// of reads the annotation, which users may write too: what is no traceparent means nothing.
func of(m *metav1.ObjectMeta) trace.SpanContext {
	parent := m.GetAnnotations()[Annotation]
	if parent == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{header: parent})
	return trace.SpanContextFromContext(ctx)
}
