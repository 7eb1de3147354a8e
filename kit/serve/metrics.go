package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// metrics counts calls. Calls of unknown methods are not counted, so the number of series is bounded.
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

func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error,
) {
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

const (
	// scrapers is how many connections may be open; others wait until one of them ends.
	scrapers = 32
	// scrapeRead and scrapeWrite are the timeouts for a slow client: of its handshake and request, and of the response.
	scrapeRead  = 5 * time.Second
	scrapeWrite = 30 * time.Second
)

// MetricsServer serves the metrics of a program over TLS to authorized callers. All fields must be set.
type MetricsServer struct {
	Service  string           // the program's name, for records of refusals
	Files    identity.Files   // the program's certificate, and the authorities of its clients
	Policy   *identity.Policy // must allow the verb get on metrics in the group windlass.dev
	Login    Login            // authenticates a request
	Audit    *audit.Trail     // of refusals
	Registry prometheus.Gatherer
	Log      *slog.Logger
}

// Login returns the caller of a request, with an empty User if the request has no credentials, or an error with the
// gRPC code UNAUTHENTICATED or UNAVAILABLE.
type Login func(*http.Request) (identity.Caller, error)

// certificateLogin authenticates callers by their client certificate.
func certificateLogin(v *identity.Validity) Login {
	return func(r *http.Request) (identity.Caller, error) {
		caller := identity.Caller{Source: r.RemoteAddr, RequestID: uuid.NewString()}
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return caller, nil
		}
		cert := r.TLS.PeerCertificates[0]
		c, err := identity.FromCertificate(cert)
		c.Source, c.RequestID = caller.Source, caller.RequestID
		if err == nil {
			err = v.Check(identity.CertificateCredential(cert))
		}
		if err != nil {
			return c, rpcerr.Unauthenticated(err.Error())
		}
		return c, v.Unknown(c, "")
	}
}

// Serve serves /metrics on l until ctx ends, and closes l.
func (m MetricsServer) Serve(ctx context.Context, l net.Listener) error {
	defer l.Close() //nolint:errcheck // its server closes it, too
	settings, err := m.Files.ServerTLS(tls.VerifyClientCertIfGiven, "http/1.1")
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	own := prometheus.NewRegistry()
	own.MustRegister(certificateTimes{m.Files.Follow()})
	metrics := promhttp.HandlerFor(prometheus.Gatherers{m.Registry, own}, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if err := m.admit(r); err != nil {
			refuseScrape(w, err)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	server := &http.Server{
		Handler: mux, TLSConfig: settings, ReadTimeout: scrapeRead, WriteTimeout: scrapeWrite, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(m.Log.Handler(), slog.LevelDebug),
	}
	// Each scrape has a handshake of its own, so that none uses an expired certificate or a removed authority.
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(netutil.LimitListener(l, scrapers), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

var (
	certificateNotBefore = prometheus.NewDesc("windlass_certificate_not_before_timestamp_seconds",
		"When the validity of the program's certificate begins, in seconds since 1970.", nil, nil)
	certificateNotAfter = prometheus.NewDesc("windlass_certificate_not_after_timestamp_seconds",
		"When the program's certificate expires, in seconds since 1970.", nil, nil)
)

// certificateTimes are the metrics of the certificate that the program uses now.
type certificateTimes struct {
	read func() (*tls.Certificate, *x509.CertPool, error)
}

// Describe is part of prometheus.Collector.
func (certificateTimes) Describe(out chan<- *prometheus.Desc) {
	out <- certificateNotBefore
	out <- certificateNotAfter
}

// Collect is part of prometheus.Collector. A certificate that cannot be read has no metrics, and no scrape either.
func (c certificateTimes) Collect(out chan<- prometheus.Metric) {
	leaf, _, err := c.read()
	if err != nil {
		return
	}
	out <- prometheus.MustNewConstMetric(certificateNotBefore, prometheus.GaugeValue, float64(leaf.Leaf.NotBefore.Unix()))
	out <- prometheus.MustNewConstMetric(certificateNotAfter, prometheus.GaugeValue, float64(leaf.Leaf.NotAfter.Unix()))
}

// admit returns why a request is refused; nil if it is accepted.
func (m MetricsServer) admit(r *http.Request) error {
	caller, err := m.Login(r)
	wanted := identity.Attributes{Verb: "get", Group: "windlass.dev", Resource: "metrics"}
	if err == nil && caller.User == "" {
		err = rpcerr.Unauthenticated(
			"the caller is not known: a client certificate is required, or a token at the gateway")
	}
	if err == nil {
		if _, err = m.Policy.Require(caller, wanted); err == nil {
			return nil
		}
	}
	m.Audit.Refused(audit.Record{
		Time: time.Now().UTC(), RequestID: caller.RequestID, User: caller.User, Groups: caller.Groups, Source: caller.Source,
		Service: m.Service,
		Verb:    wanted.Verb, Group: wanted.Group, Resource: wanted.Resource, Reason: status.Convert(err).Message(),
		Code: status.Code(err).String(),
	})
	return err
}

func refuseScrape(w http.ResponseWriter, err error) {
	code := http.StatusUnauthorized
	switch status.Code(err) {
	case codes.PermissionDenied:
		code = http.StatusForbidden
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	}
	http.Error(w, status.Convert(err).Message(), code)
}

// storeMetrics registers the metrics of a service's store.
func storeMetrics(registry *prometheus.Registry, st *store.Store) {
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_store_unreadable_records", Help: "Records that cannot be read and are skipped.",
		}, func() float64 { return float64(len(st.Unreadable())) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "windlass_store_refused_watches_total", Help: "Watches that etcd refused or ended with an error.",
		}, func() float64 { return float64(st.RefusedWatches()) }))
}
