package service

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/gateway/catalog"
	"github.com/windlass-dev/windlass/services/gateway/split"
)

// metrics counts what goes through the gateway. Methods that do not exist share one label, so that callers cannot
// create labels.
type metrics struct {
	catalog  *catalog.Catalog
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	ends     *prometheus.CounterVec
}

func newMetrics(c *catalog.Catalog) *metrics {
	m := &metrics{
		catalog:  c,
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_grpc_calls_total", Help: "gRPC calls that ended, by method and code.",
		}, []string{"method", "code"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_http_requests_total", Help: "HTTP requests that ended, by verb and status.",
		}, []string{"verb", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_seconds", Help: "Time of gRPC calls and HTTP requests, streams left out.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"lane"}),
	}
	m.ends = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_gateway_connections_closed_total",
		Help: "Connections that limits ended: full, user (too many), handshake (too slow), unknown (no credentials in time), strikes.",
	}, []string{"reason"})
	m.registry.MustRegister(m.calls, m.requests, m.seconds, m.ends,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) closed(reason string) { m.ends.WithLabelValues(reason).Inc() }

// connections adds the numbers of open connections.
func (m *metrics) connections(lanes *split.Splitter) {
	for i, kind := range []string{"handshake", "anonymous", "known"} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_gateway_connections", Help: "Open connections, by whether their caller is known.",
			ConstLabels: prometheus.Labels{"caller": kind},
		}, func() float64 {
			shaking, anonymous, known := lanes.Counts()
			return float64([]int{shaking, anonymous, known}[i])
		}))
	}
}

func (m *metrics) ended(method string, begun time.Time, err error) {
	known := m.catalog.Method(method)
	if known == nil {
		method = "other"
	}
	m.calls.WithLabelValues(method, status.Code(err).String()).Inc()
	if known != nil && !known.Streaming {
		m.seconds.WithLabelValues("grpc").Observe(time.Since(begun).Seconds())
	}
}

func (m *metrics) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler,
) error {
	begun := time.Now()
	err := next(srv, stream)
	m.ended(info.FullMethod, begun, err)
	return err
}

// counted counts requests; gRPC that comes this way is counted as both.
func (m *metrics) counted(next http.Handler, rooms rooms) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		seen := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			m.requests.WithLabelValues(verb(r.Method), strconv.Itoa(seen.status)).Inc()
			rooms.ended(r.Context(), r.RemoteAddr, begun, seen.status == http.StatusUnauthorized)
			if !seen.flushed {
				m.seconds.WithLabelValues("http").Observe(time.Since(begun).Seconds())
			}
		}()
		next.ServeHTTP(seen, r)
	})
}

func verb(method string) string {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead:
		return method
	}
	return "other"
}

// statusWriter remembers the status, and whether the answer is a stream.
type statusWriter struct {
	http.ResponseWriter
	status  int
	flushed bool
}

func (w *statusWriter) WriteHeader(code int) {
	w.status = code
	w.ResponseWriter.WriteHeader(code)
}

// Flush is what gRPC's own handler and the streams ask for.
func (w *statusWriter) Flush() {
	w.flushed = true
	http.NewResponseController(w.ResponseWriter).Flush() //nolint:errcheck // net/http's writers can
}

// Unwrap lets http.ResponseController reach the deadlines.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
