package serve

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/trace"
)

// Traces sends spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names. Nil means that there is none; then calls
// are not instrumented, which would cost 14 µs each even without a collector.
type Traces struct{ provider *sdktrace.TracerProvider }

// OpenTraces returns the Traces of a service; nil if there is no collector. Close must be called.
func OpenTraces(ctx context.Context, service string) (*Traces, error) {
	if !trace.Enabled() {
		return nil, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", service))
	return &Traces{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))}, nil
}

func (t *Traces) options() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.Not(filters.HealthCheck())), // services ask each other every few seconds
	}
}

// Server returns the options of a server whose calls are spans, in the caller's trace if there is one.
func (t *Traces) Server() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.options()...))}
}

// Client returns the options of a connection whose calls are spans, which the server continues.
func (t *Traces) Client() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(t.options()...))}
}

// Begin begins the span of an HTTP request, in the trace of its header if there is one. spanned is the context for
// handling the request; end must be called once.
func (t *Traces) Begin(ctx context.Context, header http.Header, name string) (spanned context.Context, end func()) {
	if t == nil {
		return ctx, func() {}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
	ctx, span := t.provider.Tracer("github.com/windlass-dev/windlass/kit/serve").Start(ctx, name,
		oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	return ctx, func() { span.End() }
}

// Close sends the remaining spans, for at most two seconds: the collector may be unavailable.
func (t *Traces) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	return t.provider.Shutdown(ctx)
}
