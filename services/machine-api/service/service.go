// Package service runs machine-api: which machines exist, where, and each one's next step from creation to the end.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	kitcontroller "github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/machine-api/controller"
	"github.com/windlass-dev/windlass/services/machine-api/join"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/metrics"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"github.com/windlass-dev/windlass/services/machine-api/server"
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
	signer, err := join.LoadSigner(cfg.pki, cfg.lifetime)
	if err != nil {
		return err
	}
	return cfg.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) { return build(p, cfg, signer) })
}

// build makes the parts and registers what they serve.
func build(p *serve.Process, cfg config, signer *join.Signer) ([]serve.Part, error) {
	st := p.Store(p.Etcd)
	tables := kinds.New(st, p.Validator, p.Policy, p.Log)
	tables.NodeLifetime = cfg.lifetime
	recorder := events.New(name, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder, metrics.New(tables.Machines.Cache))
	providers, err := plugins(p, cfg.Callees(), provider.Claims(st, cfg.providerFor))
	if err != nil {
		return nil, err
	}
	tables.DomainFields = providers.DomainFields
	tables.CheckSpec = providers.Validate
	p.ReadyWhen(func(context.Context) error {
		if !providers.Connected() {
			return errors.New(providers.Fault())
		}
		return nil
	})
	eviction, err := p.Dial(evictionPeer)
	if err != nil {
		return nil, err
	}
	nodes, err := informer.New[*nodev1.Node](eviction, p.Log)
	if err != nil {
		return nil, err
	}
	drains, err := informer.New[*nodev1.Drain](eviction, p.Log)
	if err != nil {
		return nil, err
	}
	var guardian grpc.ClientConnInterface // without it no control-plane machine is remediated
	if cfg.Knows(topology.EtcdGuardian) {
		if guardian, err = p.Dial(topology.EtcdGuardian); err != nil {
			return nil, err
		}
	}
	endpoints := func() []string { return gateways(cfg, p.Directory) }
	tokens := join.NewTokens(st, tables.Machines, signer.AuthorityHash, endpoints)
	inventory, err := hosts(p, cfg.Config)
	if err != nil {
		return nil, err
	}
	config := controller.Config{
		Tables: tables, Providers: providers, Nodes: nodes, Drains: drains, Eviction: eviction, Guardian: guardian,
		CatchUpNodes: nodes.CatchUp,
		OrphanPolicy: map[string]string{orphansReport: plan.ReportOrphans, orphansDelete: plan.DeleteOrphans}[cfg.orphans],
		OrphanGrace:  cfg.orphanGrace,
		Bootstrap:    tokens, Events: recorder, Reserved: cfg.addresses(), Log: p.Log,
	}
	if err := pods(p, cfg.Config, &config); err != nil {
		return nil, err
	}
	control := controller.New(config)
	machinev1.RegisterJoinServiceServer(p.Services, join.NewService(tokens, signer, tables.Machines))
	joining := join.NewHosts(st, signer, inventory, cfg.infrastructureName, endpoints, p.Etcd.Endpoints, time.Now, p.Log)
	machinev1.RegisterHostJoinServiceServer(p.Services, joining)
	machinev1.RegisterInstanceServiceServer(p.Services, server.NewInstances(control))
	p.Operator = func(ctx context.Context) clusteroperator.State {
		return operatorState(p.Readiness(ctx), providers, control.OrphanCondition(), control.Refused())
	}
	server.Add(p.Tables, tables, control, time.Now)
	return []serve.Part{
		func(ctx context.Context) error { return tokens.Run(ctx, p.Log) }, joining.Run,
		func(ctx context.Context) error {
			return serve.EnforceRevocations(ctx, tables.Revocations.Cache, p.Validity, p.Log)
		},
		recorder.Run, providers.Run, nodes.Run, drains.Run, control.FollowPods,
		p.Lead(p.Etcd, func(ctx context.Context) error {
			if p.Tables.WaitSynced(ctx) != nil {
				return nil // ctx ended
			}
			return lead(ctx, tables, control, tokens, cfg)
		}),
	}, recorder.Register(p.Services)
}

// gateways returns where machines join: at the gateways that are announced on the cluster's hosts, those that serve
// first, at those of hosts that are away, and at the configured ones. An agent keeps the list for long.
func gateways(cfg config, hosts *discovery.Directory) []string {
	var out []string
	if hosts != nil {
		out = hosts.View().Addresses(topology.Gateway, cfg.Host)
	}
	for _, g := range cfg.gateways {
		if !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out[:min(len(out), maxGateways)]
}

// operatorState returns the state of machine-api for its ClusterOperator, ready being that without regard to providers:
// it is not available without a provider, and degraded while one does not answer or is not in force. orphans says
// whether there are instances without a machine; refused is what the autoscaler lacks rights for, which degrades it
// too.
func operatorState(ready clusteroperator.State, providers *provider.Set, orphans clusteroperator.Condition,
	refused string,
) clusteroperator.State {
	ready.Further = orphans
	if refused != "" && !ready.Degraded {
		ready.Degraded, ready.Reason, ready.Message = true, "RightsMissing", refused
	}
	if fault := providers.Fault(); fault != "" {
		ready.Available = ready.Available && providers.Connected()
		ready.Degraded, ready.Reason, ready.Message = true, "ProviderUnavailable", fault
	}
	return ready
}

// pods connects the autoscaler to scheduler, if that can be found: without it nothing is scaled.
func pods(p *serve.Process, cfg serve.Config, c *controller.Config) error {
	if !cfg.Knows(topology.Scheduler) {
		return nil
	}
	conn, err := p.Dial(topology.Scheduler)
	if err != nil {
		return err
	}
	pods, err := informer.New[*schedulingv1.Pod](conn, p.Log)
	if err != nil {
		return err
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](conn, p.Log)
	if err != nil {
		return err
	}
	c.Scheduler, c.Pods, c.Budgets = conn, pods, budgets
	return nil
}

// hosts connects to the inventory of hosts; nil if there is none.
func hosts(p *serve.Process, cfg serve.Config) (hostv1.HostServiceClient, error) {
	if !cfg.Knows(topology.ProviderInventory) {
		return nil, nil
	}
	conn, err := p.Dial(topology.ProviderInventory)
	if err != nil {
		return nil, err
	}
	return hostv1.NewHostServiceClient(conn), nil
}

// plugins connects to every provider among the services that are called.
func plugins(p *serve.Process, callees []string, claim provider.Claim) (*provider.Set, error) {
	conns := map[string]grpc.ClientConnInterface{}
	for _, peer := range callees {
		if !strings.HasPrefix(peer, providerPrefix) {
			continue
		}
		conn, err := p.Dial(peer)
		if err != nil {
			return nil, err
		}
		conns[peer] = conn
	}
	return provider.New(conns, claim, p.Log), nil
}

// lead does what only the leader does.
func lead(ctx context.Context, tables *kinds.Tables, control *controller.Controller, tokens *join.Tokens, cfg config,
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	tried := make(chan struct{})
	group.Go(func() error {
		tables.Machines.HoldClaims(ctx, control.Log, func() { close(tried) })
		return nil
	})
	group.Go(func() error {
		defer stop()
		select {
		case <-tried: // before any is given to a new machine
			return begin(ctx, tables, control, tokens, cfg)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// begin works, and begins again if it could not.
func begin(ctx context.Context, tables *kinds.Tables, control *controller.Controller, tokens *join.Tokens, cfg config,
) error {
	for ctx.Err() == nil {
		err := ensureInfrastructure(ctx, tables.Infrastructure, cfg)
		if err == nil {
			err = work(ctx, tables, control, tokens)
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, store.ErrFenced) {
			return nil
		}
		control.Log.WarnContext(ctx, "begin to lead", "error", err)
		backoff.Sleep(ctx, retryLead)
	}
	return nil
}

// work runs the controllers, and removes the revocations that have had their time and the join records of machines that
// are gone.
func work(ctx context.Context, tables *kinds.Tables, control *controller.Controller, tokens *join.Tokens) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return control.Lead(ctx) })
	revocations := kitcontroller.NewLoop("revocations", 1, func(ctx context.Context, _ string) (time.Time, error) {
		return tables.CollectRevocations(ctx, time.Now())
	}, control.Log)
	revocations.Begin(func() []string { return []string{"expired"} })
	group.Go(func() error { return revocations.Run(ctx) })
	records := kitcontroller.NewLoop("join records", 1, func(ctx context.Context, _ string) (time.Time, error) {
		return tokens.Sweep(ctx, time.Now(), control.Log)
	}, control.Log)
	records.Begin(func() []string { return []string{"gone"} })
	group.Go(func() error { return records.Run(ctx) })
	return group.Wait()
}

// retryLead is how soon a leader begins again that could not: etcd answers again within about that.
const retryLead = 200 * time.Millisecond

// ensureInfrastructure makes the one Infrastructure at the first start, and completes it if a crash came in between.
func ensureInfrastructure(ctx context.Context, t *resource.Table[*machinev1.Infrastructure], cfg config) error {
	have, err := t.Get(ctx, "", kinds.ClusterName)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		have, err = t.Create(ctx, &machinev1.Infrastructure{Metadata: &metav1.ObjectMeta{Name: kinds.ClusterName}})
	}
	if err != nil {
		return fmt.Errorf("infrastructure: %w", err)
	}
	if have.GetStatus().GetInfrastructureName() != "" {
		return nil
	}
	_, err = t.Modify(ctx, object.KeyOf(have), func(i *machinev1.Infrastructure) error {
		infrastructure := cfg.infrastructureName
		if infrastructure == "" {
			infrastructure = resource.GenerateName("windlass-")
		}
		i.Status = &machinev1.InfrastructureStatus{
			InfrastructureName: infrastructure, Platform: cfg.platform,
			ApiServerUrl: "https://" + cfg.gateways[0], ApiServerInternalUri: "https://" + cfg.gateways[0],
			ControlPlaneTopology: "HighlyAvailable", InfrastructureTopology: "HighlyAvailable",
		}
		return nil
	})
	return err
}
