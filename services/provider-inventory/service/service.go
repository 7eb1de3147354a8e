// Package service runs provider-inventory: the hosts of the inventory, and the machines that have them.
package service

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"

	"github.com/windlass-dev/windlass/services/provider-inventory/attend"
	"github.com/windlass-dev/windlass/services/provider-inventory/controller"
	"github.com/windlass-dev/windlass/services/provider-inventory/kinds"
	"github.com/windlass-dev/windlass/services/provider-inventory/metrics"
	"github.com/windlass-dev/windlass/services/provider-inventory/records"
	"github.com/windlass-dev/windlass/services/provider-inventory/server"
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
	return cfg.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) { return Build(p, p.Etcd, opts) })
}

// Build makes the parts of a process and registers what they serve.
func Build(p *serve.Process, etcd *clientv3.Client, opts Options) ([]serve.Part, error) {
	st := p.Store(etcd)
	all := records.New(st, kinds.New(st, p.Validator, p.Log))
	recorder := events.New(topology.ProviderInventory, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder, metrics.New(all.Hosts.Cache))
	agents := attend.New(time.Now)
	control := controller.New(controller.Config{
		Records: all, Agents: agents, Silence: opts.Silence, Events: recorder, Host: opts.Host,
		Now: time.Now, Log: p.Log,
	})
	p.Operator = control.Operator(p.Readiness)
	cfg := server.Config{
		Cluster: opts.Cluster, Host: opts.Host, Log: p.Log, Records: all, Agents: agents, Silence: opts.Silence,
		Events: recorder, Now: time.Now,
		Gateways: func() []string { return gateways(p, opts.Host) },
		Forget:   func(ctx context.Context, host string) error { return discovery.Forget(ctx, etcd, host) },
		Expect:   func(ctx context.Context, host string) error { return discovery.Expect(ctx, etcd, host) },
	}
	p.Tables.Add(all.Hosts, &hostv1.HostService_ServiceDesc, server.NewHosts(cfg))
	providerv1.RegisterProviderServiceServer(p.Services, server.NewProvider(cfg))
	return []serve.Part{recorder.Run, p.Lead(etcd, control.Lead)}, recorder.Register(p.Services)
}

// mostGateways is how many gateways an agent takes.
const mostGateways = 16

// gateways returns where the agents of hosts reach the cluster, as seen from host; none where services do not find each
// other in etcd.
func gateways(p *serve.Process, host string) []string {
	if p.Directory == nil {
		return nil
	}
	out := p.Directory.View().Addresses(topology.Gateway, host)
	return out[:min(len(out), mostGateways)]
}
