// Package service runs hook-broker: the tasks of lifecycle hooks, and their owners.
package service

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/pflag"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/serve"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/services/hook-broker/controller"
	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/metrics"
	"github.com/windlass-dev/windlass/services/hook-broker/presence"
	"github.com/windlass-dev/windlass/services/hook-broker/server"
	"github.com/windlass-dev/windlass/services/hook-broker/webhook"
)

// Run serves until ctx ends.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, opts, err := parse(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return cfg.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) {
		return build(p, p.Etcd, cfg.Name, opts)
	})
}

// build makes the parts and registers what they serve.
func build(p *serve.Process, etcd *clientv3.Client, name string, opts options) ([]serve.Part, error) {
	conn, err := p.Dial(machineAPI)
	if err != nil {
		return nil, err
	}
	machines, err := informer.New[*machinev1.Machine](conn, p.Log)
	if err != nil {
		return nil, err
	}
	st := p.Store(etcd)
	tables := kinds.New(st, p.Validator, opts.webhooks, p.Log)
	recorder := events.New(name, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder, metrics.New(tables.Tasks.Cache))
	there := presence.New(time.Now)
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start) } // by the monotonic clock
	views := controller.NewViews(tables, machines, there, time.Now, elapsed)
	control := controller.New(controller.Config{
		Tables: tables, Machines: machines, Hooks: controller.NewMachines(machinev1.NewMachineServiceClient(conn)),
		Webhooks: &webhook.Caller{Keys: opts.keys, Allowed: opts.webhooks, Now: time.Now},
		Presence: there, Views: views, Events: recorder, Log: p.Log,
	})

	tasks := server.New(server.Config{
		Tables: tables, Views: views, Policy: p.Policy, Presence: there, Events: recorder, Now: time.Now, Log: p.Log,
	})
	p.Tables.Add(tables.Tasks, &hookv1.HookTaskService_ServiceDesc, tasks)
	p.Tables.Add(tables.Owners, &hookv1.HookOwnerService_ServiceDesc, nil)
	p.ReadyWhen(machines.WaitSynced)
	return []serve.Part{
		machines.Run, recorder.Run,
		p.Lead(etcd, control.Lead),
	}, recorder.Register(p.Services)
}
