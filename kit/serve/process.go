// Package serve is the framework of a service process: a gRPC server over mutual TLS with the interceptors of all
// calls, health, reflection, metrics and traces, a client of etcd, and connections to other services. Services register
// their gRPC services on Process.GRPC and pass their long-lived parts to Process.Run.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/gcpace"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/kms"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
)

// Process is one service process. Register services on GRPC before Run; the other fields may be used after New.
type Process struct {
	GRPC *grpc.Server
	// Services registers services on GRPC. The memory of their calls' messages is counted, and their plan methods accept
	// requests of up to large.MaxMessage bytes, the methods of services that are registered on GRPC itself only those of
	// dial.MaxMessage.
	Services grpc.ServiceRegistrar
	// add the service's tables before Run, which runs them; the process is ready once all are synced
	Tables *resource.Group
	Etcd   *clientv3.Client // nil if no etcd was configured
	Log    *slog.Logger
	Policy *identity.Policy
	// Validity refuses expired and revoked certificates, also on open connections.
	Validity *identity.Validity
	Audit    *audit.Trail
	// Directory is where the services of the cluster run; nil unless Config.Host is set.
	Directory *discovery.Directory
	Metrics   *prometheus.Registry
	// Validator is shared by the process: compiled rules take memory.
	Validator protovalidate.Validator

	// Operator returns the state of the service for its ClusterOperator; nil means Available while ready. Set it before
	// Run.
	Operator func(context.Context) clusteroperator.State

	// Leads reports whether this process is the leader of its service; nil if there is no election. Only a leader reports
	// the service's ClusterOperator. Lead sets it.
	Leads func() bool
	// WithoutEtcd means that the service's calls also work without etcd, and are not refused while it is unavailable. Set
	// it before Run.
	WithoutEtcd bool

	cfg      Config
	away     atomic.Pointer[string] // why the process is no longer ready; nil otherwise
	listener net.Listener
	metrics  net.Listener
	health   *health.Server
	streams  *streams
	traces   *Traces
	large    *large.Budget // of the requests of plan methods

	endpoints *store.Endpoints     // nil if no etcd was configured
	announcer *discovery.Announcer // nil unless Config.Host is set

	mu      sync.Mutex
	ready   []func(context.Context) error
	closers []func() error
	store   *store.Store
	sealer  store.Sealer // of secret records; nil: there are no keys
	kms     *kms.Plugin  // nil: there is none
}

// Files returns the certificate of the service, its key and the authorities that it trusts.
func (p *Process) Files() identity.Files { return p.cfg.files() }

// Logger returns a logger of JSON lines at the configured level, with the service's name on each.
func (c Config) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if c.LogLevel != "" {
		if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
			return nil, fmt.Errorf("log level: %w", err)
		}
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})).With("service", c.Name), nil
}

// New opens everything that the process needs, its addresses included; clients can connect from now on and are served
// once Run is called. It does not wait for etcd or other services. Call Run or Close afterwards.
func New(cfg Config, log *slog.Logger) (*Process, error) {
	gcpace.Follow(50)
	p := &Process{
		Log: log, Metrics: prometheus.NewRegistry(), Validator: protovalidate.GlobalValidator,
		cfg: cfg, streams: newStreams(), large: large.NewBudget(0),
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", cfg.Name, err), p.Close())
	}
	return p, nil
}

func (p *Process) open() (err error) {
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return err
	}
	if p.Audit, err = p.cfg.OpenAudit(p.Log); err != nil {
		return err
	}
	p.onClose(p.Audit.Close)
	if p.Policy, err = p.cfg.OpenPolicy(p.Audit, p.Log); err != nil {
		return err
	}
	p.Metrics.MustRegister(p.Audit, p.Policy)
	if p.Validity, err = identity.OpenValidity(filepath.Join(p.cfg.Dir, "revocations.json")); err != nil {
		p.Log.Error("users and agents are refused until the revocations are received from machine-api", "error", err)
	}
	p.Validity.Trust(p.cfg.files().CA)
	if p.traces, err = OpenTraces(context.Background(), p.cfg.Name); err != nil {
		return err
	}
	p.onClose(p.traces.Close)
	if err := p.openKeys(); err != nil {
		return err
	}
	if err := p.openEtcd(); err != nil {
		return err
	}
	return p.openServer()
}

// openKeys opens the sealer of records, if the service has one: the key ring, a KMS plugin, or both.
func (p *Process) openKeys() error {
	ring, err := store.OpenKeyRing(p.cfg.recordKeys())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		ring = nil // records that it sealed are then reported as unreadable
	case err != nil:
		return err
	default:
		p.sealer = ring
	}
	if p.cfg.RecordKMS == "" {
		return nil
	}
	if p.kms, err = kms.New(p.cfg.RecordKMS, p.Log); err != nil {
		return err
	}
	p.onClose(p.kms.Close)
	both := kms.Beside{Sealer: p.kms, Plugin: p.kms, Ring: ring}
	switch by := p.cfg.RecordSealer; {
	case by == SealByFile && ring != nil:
		both.Sealer = ring
	case by == SealByFile:
		return fmt.Errorf("record sealer %q: there is no %s", by, p.cfg.recordKeys())
	case by != "" && by != SealByKMS:
		return fmt.Errorf("record sealer %q: want %s or %s", by, SealByKMS, SealByFile)
	}
	p.sealer = both
	return nil
}

func (p *Process) openEtcd() error {
	if len(p.cfg.EtcdEndpoints) == 0 {
		if _, err := os.Stat(p.cfg.endpointsFile()); errors.Is(err, fs.ErrNotExist) {
			if p.cfg.Host != "" {
				return fmt.Errorf("--host: %w", errNoEtcd)
			}
			return nil
		}
	}
	creds, err := p.cfg.etcdFiles().ClientCredentials()
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	p.Etcd, err = store.Dial(store.ClientConfig{
		Endpoints: p.cfg.EtcdEndpoints, EndpointsFile: p.cfg.endpointsFile(), Credentials: creds, Log: p.Log,
	})
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	p.onClose(p.Etcd.Close)
	p.endpoints = store.NewEndpoints(p.Etcd, p.cfg.endpointsFile(), p.Log)
	if p.cfg.Host != "" {
		p.Directory = discovery.Open(p.cfg.ServicesFile(), p.Log)
	}
	return nil
}

func (p *Process) openServer() error {
	creds, err := p.serverCredentials()
	if err != nil {
		return err
	}
	guard := identity.Guard{Service: p.cfg.Name, Policy: p.Policy, Audit: p.Audit, Validity: p.Validity, Log: p.Log}
	m := newMetrics(p.Metrics)
	// The outermost interceptor is first. The guard maps errors, so that its record has the code that the caller gets;
	// recovery is inside the guard for the handlers, and outside for the guard itself.
	options := append(serverOptions(p.cfg.ConnectionAge), grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}),
		grpc.Creds(p.Validity.Credentials(creds)),
		grpc.ChainUnaryInterceptor(m.unary, recoverUnary(p.Log), identity.UnaryInterceptor(guard),
			recoverUnary(p.Log), p.refuseUnary, limitUnary, validateUnary(p.Validator)),
		grpc.ChainStreamInterceptor(m.stream, p.receiveLarge, p.streams.intercept, p.refuseStream, recoverStream(p.Log),
			identity.StreamInterceptor(guard),
			recoverStream(p.Log), validateStream(p.Validator)))
	p.GRPC = grpc.NewServer(append(options, p.traces.Server()...)...)
	p.Services = registrar{p.GRPC, p}
	p.Tables = resource.NewGroup(p.Services)
	p.onClose(func() error { p.GRPC.Stop(); return nil })
	p.health = health.NewServer()
	p.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(p.GRPC, healthServer{p.health, p.Audit, p.Policy})
	reflection.Register(p.GRPC)

	if p.listener, err = net.Listen("tcp", p.cfg.Listen); err != nil {
		return err
	}
	p.onClose(closeOnce(p.listener))
	if err := CheckAdvertised(p.Address()); err != nil {
		return fmt.Errorf("--advertise: %w", err)
	}
	if p.cfg.Host != "" {
		p.announcer = discovery.NewAnnouncer(p.Etcd, discovery.Endpoint{
			Service: p.cfg.Name, Address: p.Address(), Host: p.cfg.Host, Version: version.Number,
		}, p.Log)
	}
	if p.cfg.MetricsListen == "" {
		return nil
	}
	if p.metrics, err = net.Listen("tcp", p.cfg.MetricsListen); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	p.onClose(closeOnce(p.metrics))
	return nil
}

// Address returns the address at which other services reach the process: the advertised one, else the one that it
// listens on, with the actual port.
func (p *Process) Address() string { return cmp.Or(p.cfg.Advertise, p.listener.Addr().String()) }

// MetricsAddress returns the address of /metrics; empty if there is none.
func (p *Process) MetricsAddress() string {
	if p.metrics == nil {
		return ""
	}
	return p.metrics.Addr().String()
}

// Store returns the store of the service's own records, under the prefix of its name. It registers the store's metrics,
// and the service's ClusterOperator is Degraded while records cannot be read. Secret records are sealed by the
// configured KMS plugin or by the key ring beside the certificates, if there is one. Call it once.
func (p *Process) Store(etcd *clientv3.Client) *store.Store {
	options := []store.Option{store.WithLog(p.Log)}
	if p.sealer != nil {
		options = append(options, store.WithSealer(p.sealer))
	}
	st := store.New(etcd, topology.Prefix(p.cfg.Name), options...)
	storeMetrics(p.Metrics, st)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store = st
	return st
}

// ReadyWhen adds a condition: the process reports ready only while f returns nil. f has a timeout of two seconds.
func (p *Process) ReadyWhen(f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, f)
}

// Lead returns the part that runs lead while the process is the leader of its service. It sets Leads.
func (p *Process) Lead(etcd *clientv3.Client, lead Part) Part {
	e := controller.NewElector(etcd, p.cfg.Name, p.Address(), p.Log)
	p.Leads = e.Leads
	p.Metrics.MustRegister(e)
	return func(ctx context.Context) error { return e.Run(ctx, lead) }
}

// Run serves and runs the parts until ctx ends or one of them fails, and closes the process. It returns nil if ctx
// ended. If a part returns nil, the others continue. At the end calls get two seconds to finish; streams end
// immediately with UNAVAILABLE, since they would not finish by themselves.
func (p *Process) Run(ctx context.Context, parts ...func(context.Context) error) error {
	report, err := p.report()
	if err != nil {
		return errors.Join(err, p.Close())
	}
	revocations, err := p.followRevocations()
	if err != nil {
		return errors.Join(err, p.Close())
	}
	roles, err := p.followRoles()
	if err != nil {
		return errors.Join(err, p.Close())
	}
	parts = append(slices.Clone(parts), p.Tables.Run, report, revocations, roles)
	if p.kms != nil {
		parts = append(parts, p.kms.Run)
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := p.GRPC.Serve(p.listener); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	group.Go(func() error { <-running.Done(); p.stop(); return nil })
	group.Go(func() error { p.watchReadiness(running); return nil })
	if p.metrics != nil {
		scraped := MetricsServer{
			Service: p.cfg.Name, Files: p.cfg.files(), Policy: p.Policy, Login: certificateLogin(p.Validity), Audit: p.Audit,
			Registry: p.Metrics, Log: p.Log,
		}
		group.Go(func() error { return scraped.Serve(running, p.metrics) })
	}
	if p.Etcd != nil {
		parts = append(slices.Clone(parts), p.endpoints.Save)
	}
	if p.cfg.Host != "" {
		parts = append(parts, p.announcer.Run, func(ctx context.Context) error {
			return p.Directory.Run(ctx, p.Etcd, topology.EndpointsPrefix, topology.ElectionsPrefix)
		})
	}
	for _, part := range parts {
		group.Go(func() error { return part(running) })
	}
	p.Log.InfoContext(ctx, "serving", "address", p.Address())
	err = group.Wait()
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	return errors.Join(err, p.Close())
}

func (p *Process) stop() {
	p.health.Shutdown()
	p.streams.end()
	timer := time.AfterFunc(stopGrace, p.GRPC.Stop)
	defer timer.Stop()
	p.GRPC.GracefulStop()
}

// Close releases all resources. Run calls it; it may be called twice.
func (p *Process) Close() error {
	p.mu.Lock()
	closers := p.closers
	p.closers = nil
	p.mu.Unlock()
	var errs []error
	for _, c := range slices.Backward(closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

func (p *Process) onClose(f func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closers = append(p.closers, f)
}

// closeOnce closes a listener that its server may have closed already.
func closeOnce(l net.Listener) func() error {
	return func() error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}
