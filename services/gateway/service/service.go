// Package service runs the gateway: it builds its parts in order and stops them together.
package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoregistry"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/gateway/access"
	"github.com/windlass-dev/windlass/services/gateway/auditlog"
	"github.com/windlass-dev/windlass/services/gateway/authn"
	"github.com/windlass-dev/windlass/services/gateway/backend"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
	"github.com/windlass-dev/windlass/services/gateway/describe"
	"github.com/windlass-dev/windlass/services/gateway/events"
	"github.com/windlass-dev/windlass/services/gateway/proxy"
	"github.com/windlass-dev/windlass/services/gateway/rest"
	"github.com/windlass-dev/windlass/services/gateway/share"
	"github.com/windlass-dev/windlass/services/gateway/split"
)

// memoryLimit is when the collector begins to work harder. The executable, of which some 60 MB are resident, is not in
// it: together they stay below 256 MB with every connection taken.
const memoryLimit = 168 << 20

// largeBytes is the memory for large requests unless GOMEMLIMIT is set: one over REST takes several times its size,
// since it is decoded here.
const largeBytes = 768 << 20

// largeMemory returns the memory for large requests. What they use at a time is added to the limit of the process,
// unless the operator has set that.
func largeMemory() *large.Budget {
	if os.Getenv("GOMEMLIMIT") != "" {
		return large.NewBudget(0)
	}
	b, base := large.NewBudget(largeBytes), debug.SetMemoryLimit(-1)
	if base != math.MaxInt64 {
		b.Follow(func(used int) { debug.SetMemoryLimit(base + int64(used)) })
	}
	return b
}

// Run runs the gateway with command line args until ctx ends. It logs to stderr.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	config, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	log, err := config.Logger(stderr)
	if err != nil {
		return err
	}
	inner, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return err
	}
	return run(ctx, config, inner, log)
}

// run runs the gateway on inner, which it closes.
func run(ctx context.Context, config Config, inner net.Listener, log *slog.Logger) error {
	defer inner.Close()
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return err
	}
	trail, err := config.OpenAudit(log)
	if err != nil {
		return err
	}
	defer trail.Close()
	tokens, err := authn.OpenTokens(config.TokensFile, log)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	tokens.Changed = tokensChanged(trail, config.TokensFile)
	policy, err := config.OpenPolicy(trail, log)
	if err != nil {
		return err
	}
	rights := access.New(policy)
	methods, err := catalog.New(protoregistry.GlobalFiles)
	if err != nil {
		return err
	}
	traces, err := serve.OpenTraces(ctx, topology.Gateway)
	if err != nil {
		return err
	}
	defer traces.Close() //nolint:errcheck // the collector may be gone
	etcd, err := dialEtcd(config, log)
	if err != nil {
		return err
	}
	if etcd != nil {
		defer etcd.Close()
	}
	// On one host only who leads is followed, on several also where each program runs.
	directory, prefixes, options := discovery.Open("", log), []string{topology.ElectionsPrefix}, traces.Client()
	if config.Host != "" {
		directory = discovery.Open(config.ServicesFile(), log)
		prefixes = append(prefixes, topology.EndpointsPrefix)
		options = append(slices.Clone(options), directory.Resolve(config.Host)...)
	}
	pool, err := backend.NewPool(config.programs(), config.files().ServiceCredentials, log, options...)
	if err != nil {
		return err
	}
	defer pool.Close()
	settings, err := config.files().ServerTLS(tls.VerifyClientCertIfGiven, "h2", "http/1.1")
	if err != nil {
		return err
	}

	validity, err := identity.OpenValidity(filepath.Join(config.Dir, "revocations.json"))
	if err != nil {
		log.ErrorContext(ctx, "users and agents are refused until the revocations are received from machine-api", "error",
			err)
	}
	validity.Trust(config.files().CA)
	revocations, closeRevocations, err := follow(config, topology.MachineAPI, options,
		func(conn grpc.ClientConnInterface) (serve.Part, error) {
			return serve.FollowRevocations(conn, validity, log)
		})
	if err != nil {
		return err
	}
	defer closeRevocations()
	roles, closeRoles, err := follow(config, topology.Scheduler, options,
		func(conn grpc.ClientConnInterface) (serve.Part, error) { return serve.FollowRoles(conn, policy, log) })
	if err != nil {
		return err
	}
	defer closeRoles()

	accounts, closeAccounts, err := config.accounts(validity, options, log)
	if err != nil {
		return err
	}
	defer closeAccounts()

	refused := refusals{audit: trail, log: log}
	issuer, err := config.issuer(log)
	if err != nil {
		return err
	}
	auth := authn.New(tokens, issuer, accounts, methods, refused, validity)
	router := backend.NewRouter(methods, pool)
	merged := events.New(pool.Programs(), router.To)
	counts := newMetrics(methods)
	counts.registry.MustRegister(trail, policy)
	if issuer != nil {
		counts.registry.MustRegister(issuer)
	}
	lanes := split.New(inner, split.Config{
		TLS: settings, Limits: split.Limits{Anonymous: config.Anonymous}, User: certified, Valid: validity,
		Failed: refused.handshake, Closed: counts.closed, Log: log,
	})
	counts.connections(lanes)
	room := rooms{catalog: methods, shares: share.New(share.Defaults()), door: lanes, memory: largeMemory()}
	here, err := newPresence(config, etcd, directory, cmp.Or(config.Advertise, inner.Addr().String()), log)
	if err != nil {
		return err
	}
	alive := programs{
		Server: health.NewServer(), pool: pool, validity: validity, policy: policy, tokens: tokens, audit: trail, here: here,
	}
	if etcd != nil { // until the first read from it
		alive.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		alive.SetServingStatus(topology.HealthForAgents, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	mine := own{}
	grpc_health_v1.RegisterHealthServer(mine, alive)
	eventv1.RegisterEventServiceServer(mine, merged)
	metav1.RegisterAccessServiceServer(mine, rights)
	auditv1.RegisterAuditServiceServer(mine, auditlog.New(auditlog.Config{
		Policy: policy, Trail: trail, Host: config.Host, Dirs: config.auditDirs(), Programs: config.auditedPrograms(),
		View: directory.View, Dial: config.dialGateway,
	}))
	if err := describe.Register(mine, methods.Services()); err != nil {
		return err
	}
	server := newGRPC(mine.or(proxy.Handler(router, room)), auth, room, counts, config.ConnectionAge, log,
		traces.Server()...)
	handler, err := rest.New(ctx, rest.Config{
		Catalog:  methods,
		Login:    auth,
		Register: register(router, merged.Client(), rights.Client()),
		GRPC:     server,
		Room:     room,
		Span:     traces.Begin,
		Named:    named(settings),
		Open:     open(methods, alive, router),
	})
	if err != nil {
		return err
	}
	scrapes, err := config.metrics(serve.MetricsServer{
		Service: topology.Gateway, Files: config.files(), Policy: policy, Login: auth.Request, Audit: trail,
		Registry: counts.registry, Log: log,
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "serving", "address", inner.Addr().String())

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return lanes.Run(ctx) })
	if issuer != nil {
		group.Go(func() error { return issuer.Run(ctx) })
	}
	group.Go(func() error { return serveGRPC(ctx, server, lanes.GRPC()) })
	group.Go(func() error {
		return serveHTTP(ctx, aging(newHTTP(counts.counted(handler, room), log), config.ConnectionAge), lanes.HTTP())
	})
	group.Go(func() error { return alive.report(ctx, log) })
	group.Go(func() error { return scrapes(ctx) })
	if etcd != nil {
		endpoints := store.NewEndpoints(etcd, config.endpoints(), log)
		group.Go(func() error {
			followReads(ctx, endpoints, router, alive, log)
			return nil
		})
		group.Go(func() error { return followLeaders(ctx, alive, log) })
		stop := directory.Subscribe(func(v discovery.View) { pool.SetLeaders(v.Leaders) })
		defer stop()
		group.Go(func() error { return directory.Run(ctx, etcd, prefixes...) })
		group.Go(func() error { return endpoints.Save(ctx) })
	}
	for _, part := range here.run(ctx) {
		group.Go(part)
	}
	group.Go(func() error { return revocations(ctx) })
	group.Go(func() error { return roles(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		alive.Shutdown()
		return nil
	})
	return group.Wait()
}

// followReads has the gateway serve while it can read from etcd. It needs that for nothing but to know who leads; but a
// gateway that is cut off sends agents to services that are cut off with it, and another gateway would not.
func followReads(ctx context.Context, etcd *store.Endpoints, router *backend.Router, alive programs,
	log *slog.Logger,
) {
	serve.WatchReady(ctx, etcd.Ready, func(err error) {
		if err == nil {
			router.SetServing(nil)
			alive.here.set(nil)
			alive.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
			alive.SetServingStatus(topology.HealthForAgents, grpc_health_v1.HealthCheckResponse_SERVING)
			log.InfoContext(ctx, "ready")
			return
		}
		log.InfoContext(ctx, "not ready", "error", err)
		alive.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		alive.SetServingStatus(topology.HealthForAgents, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		alive.here.set(err)
		router.SetServing(fmt.Errorf("this gateway is not serving: %w", err))
	})
}

const (
	// leaderPatience is how long a leader may be away before agents are sent to other gateways: longer than the lease of
	// one that is gone, and than an election of etcd.
	leaderPatience = 12 * time.Second
	leadersEvery   = time.Second
)

// followLeaders has agents take another gateway while this one does not reach a process that leads, until ctx ends. For
// all else the gateway serves: if no gateway reaches that process, agents stay where they are.
func followLeaders(ctx context.Context, alive programs, log *slog.Logger) error {
	tick := time.NewTicker(leadersEvery)
	defer tick.Stop()
	said, last := "", time.Time{} // when one was away last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		away := strings.Join(alive.pool.LeadersAway(leaderPatience), ", ")
		switch {
		case away != "" && away != said:
			log.WarnContext(ctx, "leaders that this gateway does not reach, so that agents take another one", "programs", away)
		case away == "" && said != "":
			log.InfoContext(ctx, "all leaders are reached again", "programs", said)
		}
		if said = away; away != "" {
			last = time.Now()
		}
		// A connection that comes and goes must not have all agents come and go with it.
		is := grpc_health_v1.HealthCheckResponse_SERVING
		if !alive.serving(ctx) || away != "" || !last.IsZero() && time.Since(last) < leaderPatience {
			is = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		alive.SetServingStatus(topology.HealthForAgents, is)
	}
}

// certified returns the user that a client's certificate names; the handshake has verified it.
func certified(state tls.ConnectionState) string {
	if len(state.VerifiedChains) == 0 {
		return ""
	}
	caller, err := identity.FromCertificate(state.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return caller.User
}

// follow returns the part that of makes from a connection to a program, which is the part's own: the pool's are for
// callers. The part does nothing if the program's address is not known.
func follow(config Config, program string, options []grpc.DialOption, of func(grpc.ClientConnInterface) (serve.Part,
	error)) (
	part serve.Part, stop func(), err error,
) {
	conn, err := connect(config, program, options)
	if err != nil {
		return nil, nil, err
	}
	if conn == nil {
		return func(context.Context) error { return nil }, func() {}, nil
	}
	part, err = of(conn)
	return part, func() { _ = conn.Close() }, err
}

// connect returns a connection to a program for the gateway's own calls; nil if it cannot be found. options resolve
// discovery.Target.
func connect(config Config, program string, options []grpc.DialOption) (*grpc.ClientConn, error) {
	if !config.Knows(program) {
		return nil, nil
	}
	creds, err := config.files().ServiceCredentials(program)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(cmp.Or(config.Peers[program], discovery.Target(program)),
		append(slices.Clone(options), grpc.WithTransportCredentials(creds),
			dial.KeepAlive(dial.PingTimeout), dial.Reconnect(50*time.Millisecond, time.Second, 5*time.Second))...)
}

// dialGateway returns a connection to the gateway of another host.
func (c Config) dialGateway(address string) (*grpc.ClientConn, error) {
	creds, err := c.files().ServiceCredentials(topology.Gateway)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(address, grpc.WithTransportCredentials(creds), dial.KeepAlive(dial.PingTimeout),
		grpc.WithNoProxy())
}

// accounts returns what knows the tokens of service accounts; nil if scheduler's address is not known.
func (c Config) accounts(validity *identity.Validity, options []grpc.DialOption, log *slog.Logger) (a *authn.Accounts,
	stop func(), err error,
) {
	conn, err := connect(c, topology.Scheduler, options)
	if err != nil || conn == nil {
		return nil, func() {}, err
	}
	return authn.NewAccounts(c.files(), validity, conn, log), func() { _ = conn.Close() }, nil
}

// dialEtcd returns nil if no address of etcd is known: then calls go to the programs' own addresses alone.
func dialEtcd(config Config, log *slog.Logger) (*clientv3.Client, error) {
	if _, err := os.Stat(config.endpoints()); len(config.EtcdEndpoints) == 0 && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	creds, err := config.etcdFiles().ClientCredentials()
	if err != nil {
		return nil, err
	}
	return store.Dial(store.ClientConfig{
		Endpoints:     config.EtcdEndpoints,
		EndpointsFile: config.endpoints(),
		Credentials:   creds,
		Log:           log,
	})
}

// metrics opens the address for metrics and returns the part that serves it.
func (c Config) metrics(server serve.MetricsServer) (serve.Part, error) {
	if c.MetricsListen == "" {
		return func(context.Context) error { return nil }, nil
	}
	l, err := net.Listen("tcp", c.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return func(ctx context.Context) error { return server.Serve(ctx, l) }, nil
}
