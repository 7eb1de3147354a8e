// Package service runs update-orchestrator: the version of a cluster, which updates there are, and how they are
// applied.
package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/pflag"
	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/controller"
	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/members"
	"github.com/windlass-dev/windlass/services/update-orchestrator/metrics"
	"github.com/windlass-dev/windlass/services/update-orchestrator/payloads"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
	"github.com/windlass-dev/windlass/services/update-orchestrator/promql"
	"github.com/windlass-dev/windlass/services/update-orchestrator/server"
	"github.com/windlass-dev/windlass/services/update-orchestrator/snapshots"
	"github.com/windlass-dev/windlass/services/update-orchestrator/upstream"
)

// Run serves until ctx ends.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, err := parse(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return cfg.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) { return build(p, p.Etcd, cfg) })
}

// build makes the parts and registers what they serve.
func build(p *serve.Process, etcd *clientv3.Client, cfg config) ([]serve.Part, error) {
	st := p.Store(etcd)
	tables := kinds.New(st, p.Validator, p.Log)
	recorder := events.New(cfg.Name, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder, metrics.Collector{Tables: tables})
	services := map[string]grpc.ClientConnInterface{}
	owners := apply.Owners{}
	for pkg, service := range apply.Packages() {
		if service == topology.UpdateOrchestrator && !cfg.Knows(service) {
			continue // programs are then of a kind without a service
		}
		conn, err := p.Dial(service)
		if err != nil {
			return nil, err
		}
		owners[pkg], services[service] = conn, conn
	}
	for _, service := range cfg.Callees() {
		if services[service] != nil {
			continue
		}
		conn, err := p.Dial(service)
		if err != nil {
			return nil, err
		}
		services[service] = conn
	}
	served := custom.New(st, p.Validator, tables.Definitions, p.Log)
	objects, err := server.NewCustom(served)
	if err != nil {
		return nil, err
	}
	if owners[apply.OwnKinds()], err = objects.Inside(tables.Definitions); err != nil {
		return nil, err
	}
	runs := topology.Names()
	if p.Directory != nil {
		runs = append(topology.NamesOnHosts(), topology.Host)
	}
	applier, err := apply.New(tables, owners, cfg.cluster, runs)
	if err != nil {
		return nil, err
	}
	var taker *snapshots.Taker
	if guardian := services[topology.EtcdGuardian]; guardian != nil {
		taker = snapshots.New(guardian)
	}
	var follower *members.Follower
	if guardian := services[topology.EtcdGuardian]; guardian != nil && p.Directory != nil {
		follower = members.New(guardian)
	}
	queries, err := evaluator(p, cfg)
	if err != nil {
		return nil, err
	}
	trials, err := evaluator(p, cfg)
	if err != nil {
		return nil, err
	}
	turns := promql.NewTurns(plan.BetweenQueries)
	if p.Directory != nil {
		cfg.images.Spool = filepath.Join(cfg.Dir, "releases")
		cfg.images.Elsewhere = func() []release.Peer { return elsewhere(p, cfg.Host) }
	}
	program := version.Number
	graphs := upstream.New("windlass/" + program)
	control := controller.New(controller.Config{
		Tables: tables, Custom: served, Applier: applier, Graphs: graphs, Images: cfg.images,
		Payloads: payloads.New(st, filepath.Join(cfg.Dir, "releases")),
		Keys:     cfg.keys,
		Stores:   cfg.stores,
		Initial:  cfg.initial, Capabilities: cfg.baseline, Queries: turns.Of(queries),
		Trials: turns.Of(trials), Snapshots: taker, Members: follower,
		Supervised: cfg.supervised, Hosts: hosts(p), Services: services, Self: cfg.Name, Program: program,
		Arch:      runtime.GOARCH,
		Poll:      cfg.poll + rand.N(cfg.poll),
		Reconcile: cfg.reconcile, Events: recorder, Log: p.Log,
	})
	p.Tables.Add(tables.Versions, &updatev1.ClusterVersionService_ServiceDesc,
		server.NewVersion(tables, graphs, runtime.GOARCH, control))
	p.Tables.Add(tables.Operators, &updatev1.ClusterOperatorService_ServiceDesc, nil)
	p.Tables.Add(tables.Releases, &updatev1.ReleaseService_ServiceDesc,
		server.NewRelease(tables, control.Verify, control, cfg.images, cfg.stores))
	p.Tables.Add(tables.Manifests, &updatev1.ManifestService_ServiceDesc, nil)
	p.Tables.Add(tables.Windows, &updatev1.MaintenanceWindowService_ServiceDesc, nil)
	p.Tables.Add(tables.Programs, &programv1.ProgramService_ServiceDesc, server.NewProgram(control))
	p.Tables.Add(tables.Definitions, &apiextensionsv1.CustomResourceDefinitionService_ServiceDesc, nil)
	apiextensionsv1.RegisterCustomObjectServiceServer(p.Services, objects)
	parts := []serve.Part{recorder.Run, served.Run, p.Lead(etcd, control.Lead)}
	for _, q := range []promql.Evaluator{queries, trials} {
		if engine, ok := q.(*promql.Engine); ok {
			parts = append(parts, engine.Run)
		}
	}
	return parts, recorder.Register(p.Services)
}

// freshness is how old the knowledge of the hosts may be from which it follows what is restarted.
const freshness = 15 * time.Second

// hosts returns what says which hosts the control plane is on; nil where it is on none.
func hosts(p *serve.Process) func() ([]plan.ProgramHost, bool) {
	if p.Directory == nil {
		return nil
	}
	return func() ([]plan.ProgramHost, bool) {
		v := p.Directory.View()
		return controller.ProgramHosts(v), time.Since(v.Confirmed) < freshness
	}
}

// evaluator returns what evaluates the queries of risks: a Prometheus server, or an engine over the metrics of this
// program and of those that it calls.
func evaluator(p *serve.Process, cfg config) (promql.Evaluator, error) {
	if cfg.prometheus.address != "" {
		transport, err := trusting(cfg.prometheus.ca)
		if err != nil {
			return nil, fmt.Errorf("--prometheus-ca: %w", err)
		}
		server, err := promql.NewServer(cfg.prometheus.address, cfg.prometheus.token, transport)
		if err != nil {
			return nil, fmt.Errorf("--prometheus: %w", err)
		}
		return server, nil
	}
	targets := []promql.Target{promql.Self(cfg.Name, p.MetricsAddress(), p.Metrics)}
	for _, name := range slices.Sorted(maps.Keys(cfg.Peers)) {
		t, err := promql.Service(name, cfg.Peers[name], p.Files())
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	engine := promql.NewEngine(targets, p.Log)
	if p.Directory != nil {
		engine.Find(func() []promql.Target { return announced(p) })
	}
	return engine, nil
}

// announced returns the other processes that are announced in etcd as ready now.
func announced(p *serve.Process) []promql.Target {
	var out []promql.Target
	for _, list := range p.Directory.View().Endpoints {
		for _, e := range list {
			if e.Address == p.Address() || !e.Ready {
				continue
			}
			t, err := promql.Service(e.Service, e.Address, p.Files())
			if err != nil {
				p.Log.Error("metrics of a service are not read", "service", e.Service, "error", err)
				continue
			}
			out = append(out, t)
		}
	}
	return out
}

// trusting returns an HTTP transport that trusts the authorities in a file; those of the machine if there is no file.
func trusting(file string) (*http.Transport, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is documented to be one
	if file == "" {
		return transport, nil
	}
	certificates, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(certificates) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}
	return transport, nil
}
