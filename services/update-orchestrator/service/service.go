// Package service runs update-orchestrator: the version of a cluster, which updates there are, and how they are
// applied.
package service

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"

	"github.com/spf13/pflag"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/controller"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/server"
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
	p.Metrics.MustRegister(recorder)
	services := map[string]grpc.ClientConnInterface{}
	owners := apply.Owners{}
	for pkg, service := range apply.Packages() {
		conn, err := p.Dial(service)
		if err != nil {
			return nil, err
		}
		owners[pkg], services[service] = conn, conn
	}
	for service := range cfg.Peers {
		if services[service] != nil {
			continue
		}
		conn, err := p.Dial(service)
		if err != nil {
			return nil, err
		}
		services[service] = conn
	}
	applier, err := apply.New(tables, owners)
	if err != nil {
		return nil, err
	}
	program := version.Number
	graphs := upstream.New("windlass/" + program)
	control := controller.New(controller.Config{
		Tables: tables, Applier: applier, Graphs: graphs, Images: cfg.images, Keys: cfg.keys, Stores: cfg.stores,
		Initial:  cfg.initial,
		Services: services, Self: cfg.Name, Program: program, Arch: runtime.GOARCH, Poll: cfg.poll + rand.N(cfg.poll),
		Reconcile: cfg.reconcile, Events: recorder, Log: p.Log,
	})
	p.Tables.Add(tables.Versions, &updatev1.ClusterVersionService_ServiceDesc,
		server.NewVersion(tables, graphs, runtime.GOARCH))
	p.Tables.Add(tables.Operators, &updatev1.ClusterOperatorService_ServiceDesc, nil)
	p.Tables.Add(tables.Releases, &updatev1.ReleaseService_ServiceDesc, server.NewRelease(tables))
	p.Tables.Add(tables.Manifests, &updatev1.ManifestService_ServiceDesc, nil)
	return []serve.Part{
		recorder.Run, p.Lead(etcd, control.Lead),
	}, recorder.Register(p.Services)
}
