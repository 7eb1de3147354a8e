package serve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/store"
)

// metrics counts calls. Methods that this server does not have are never counted, so the number of series is bounded.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	streams *prometheus.GaugeVec
}

func newMetrics(registry *prometheus.Registry) *metrics {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_grpc_calls_total", Help: "Calls that ended, by method and code; streams count when they end.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_grpc_call_seconds", Help: "Time that unary calls took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"method"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_grpc_streams", Help: "Streams that are open.",
		}, []string{"method"}),
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.calls, m.seconds, m.streams)
	return m
}

func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	response, err := handler(ctx, req)
	m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
	m.seconds.WithLabelValues(info.FullMethod).Observe(time.Since(start).Seconds())
	return response, err
}

func (m *metrics) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	open := m.streams.WithLabelValues(info.FullMethod)
	open.Inc()
	defer open.Dec()
	err := handler(srv, ss)
	m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
	return err
}

// serveMetrics serves /metrics on l until ctx ends.
func serveMetrics(ctx context.Context, l net.Listener, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// storeMetrics counts what a service's store keeps to itself.
func storeMetrics(registry *prometheus.Registry, st *store.Store) {
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_store_unreadable_records", Help: "Records that cannot be read and are skipped.",
		}, func() float64 { return float64(len(st.Unreadable())) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "windlass_store_refused_watches_total", Help: "Watches that etcd refused or ended with an error.",
		}, func() float64 { return float64(st.RefusedWatches()) }))
}
