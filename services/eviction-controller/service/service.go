// Package service runs eviction-controller: nodes, the heartbeats of their agents, drains, and evictions.
package service

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/pflag"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/serve"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/services/eviction-controller/controller"
	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/metrics"
	"github.com/windlass-dev/windlass/services/eviction-controller/server"
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
	tables := kinds.New(st, p.Validator, p.Policy, p.Log)
	recorder := events.New(cfg.Name, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder, metrics.New(tables.Nodes.Cache, tables.Drains.Cache))
	conn, err := p.Dial(guardian)
	if err != nil {
		return nil, err
	}
	machineAPI, err := p.Dial(machines)
	if err != nil {
		return nil, err
	}
	pods, budgets, evictor, err := owners(p)
	if err != nil {
		return nil, err
	}
	permits := controller.NewGuardian(etcdv1.NewQuorumServiceClient(conn))
	awake := liveness.NewAwake()
	tracker := liveness.New(awake, cfg.grace)
	views := controller.NewViews(tables, tracker, pods, budgets, cfg.pause())
	control := controller.New(controller.Config{
		Tables: tables, Tracker: tracker, Views: views, Permits: permits, Pods: pods, Budgets: budgets, Evictor: evictor,
		Events: recorder, Retry: cfg.retry, Log: p.Log,
	})

	schedulingv1.RegisterEvictionServiceServer(p.Services, server.NewEviction(tables, views, evictor))
	nodev1.RegisterNodeAgentServiceServer(p.Services, server.NewAgent(tables, tracker, permits,
		machinev1.NewMachineServiceClient(machineAPI), p.Log))
	p.Tables.Add(tables.Nodes, &nodev1.NodeService_ServiceDesc, server.NewNode(tables, views, permits))
	p.Tables.Add(tables.Drains, &nodev1.DrainService_ServiceDesc, nil)
	return []serve.Part{
		recorder.Run, awake.Run, pods.Run, budgets.Run,
		p.Lead(etcd, control.Lead),
	}, recorder.Register(p.Services)
}

// owners returns the watches of pods and budgets and the client of their owner, the scheduler.
func owners(p *serve.Process) (*controller.Pods, *informer.Informer[*schedulingv1.PodDisruptionBudget],
	controller.Scheduler, error,
) {
	conn, err := p.Dial(scheduler)
	if err != nil {
		return nil, nil, controller.Scheduler{}, err
	}
	pods, err := controller.NewPods(conn, p.Log)
	if err != nil {
		return nil, nil, controller.Scheduler{}, err
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](conn, p.Log)
	return pods, budgets, controller.NewScheduler(conn), err
}
