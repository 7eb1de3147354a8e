// Package service runs node-configurator: the configuration of nodes, and its roll-out over their pools.
package service

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/pflag"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/serve"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/services/node-configurator/controller"
	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/metrics"
	"github.com/windlass-dev/windlass/services/node-configurator/server"
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

// build makes the parts and registers what they serve. The process is ready without its sibling: that one may be
// waiting for it.
func build(p *serve.Process, etcd *clientv3.Client, cfg config) ([]serve.Part, error) {
	conn, err := p.Dial(evictionController)
	if err != nil {
		return nil, err
	}
	nodes, err := informer.New[*nodev1.Node](conn, p.Log)
	if err != nil {
		return nil, err
	}
	drains, err := informer.New[*nodev1.Drain](conn, p.Log)
	if err != nil {
		return nil, err
	}
	guardian, err := p.Dial(etcdGuardian)
	if err != nil {
		return nil, err
	}
	orchestrator, err := p.Dial(updateOrchestrator)
	if err != nil {
		return nil, err
	}
	windows, err := informer.New[*updatev1.MaintenanceWindow](orchestrator, p.Log)
	if err != nil {
		return nil, err
	}
	st := p.Store(etcd)
	tables := kinds.New(st, p.Validator, nodes, p.Log)
	recorder := events.New(cfg.Name, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder, metrics.New(tables.Pools.Cache))
	peer := controller.NewPeer(conn, nodes, drains)
	views := controller.NewViews(tables, peer, windows, cfg.settle, time.Now)
	control := controller.New(controller.Config{
		Tables: tables, Peer: peer, Views: views, Events: recorder, Log: p.Log,
	})
	p.Operator = control.Operator

	configv1.RegisterConfigAgentServiceServer(p.Services, server.NewAgent(views, peer, nodes, drains, tables.Configs,
		tables.Pools, tables.Settings, server.NewGuardian(guardian), p.Log))
	p.Tables.Add(tables.Configs, &configv1.MachineConfigService_ServiceDesc, server.NewConfigs(tables, views))
	p.Tables.Add(tables.Settings, &configv1.MachineConfigurationService_ServiceDesc, nil)
	p.Tables.Add(tables.Pools, &configv1.MachineConfigPoolService_ServiceDesc, server.NewPools(tables, views))
	return []serve.Part{
		nodes.Run, drains.Run, windows.Run, recorder.Run,
		p.Lead(etcd, control.Lead),
	}, recorder.Register(p.Services)
}
