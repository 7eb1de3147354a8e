// Package service builds the etcd-guardian from its parts and runs it.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/etcd-guardian/controller"
	"github.com/windlass-dev/windlass/services/etcd-guardian/kinds"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/metrics"
	"github.com/windlass-dev/windlass/services/etcd-guardian/owner"
	"github.com/windlass-dev/windlass/services/etcd-guardian/peers"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/server"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// Run runs the guardian until ctx ends. It serves before etcd is up: it is the one that starts it.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, err := parse(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return cfg.serve.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) { return build(cfg, p) })
}

// build makes the parts in the order in which they need each other.
func build(cfg config, p *serve.Process) ([]serve.Part, error) {
	if err := os.MkdirAll(filepath.Dir(cfg.usersFile()), 0o700); err != nil {
		return nil, err
	}
	if err := writeUsers(cfg.usersFile(), cfg.serve.Host != ""); err != nil {
		return nil, err
	}
	note, err := store.OpenNote(cfg.in(noteFile))
	if err != nil {
		return nil, err
	}
	signer, err := peers.New(cfg.pki, cfg.lifetime)
	if err != nil {
		return nil, err
	}
	token, err := cfg.token()
	if err != nil {
		return nil, fmt.Errorf("token of the cluster: %w", err)
	}
	first, err := peers.First(plan.BootstrapName, cfg.bootstrapPeer, token)
	if err != nil {
		return nil, err
	}
	var parts []serve.Part
	if !note.Get().BootstrapRetired && !cfg.elsewhere() {
		if err := signer.Ensure(first, cfg.bootstrapTLS()); err != nil {
			return nil, fmt.Errorf("certificates of the bootstrap member: %w", err)
		}
		parts = append(parts, func(ctx context.Context) error {
			return signer.Keep(ctx, first, cfg.bootstrapTLS(), func() bool { return note.Get().BootstrapRetired },
				func(err error) {
					p.Log.WarnContext(ctx, "certificates of the bootstrap member are not renewed", "error", err)
				})
		})
	}
	root, err := cfg.root().ClientCredentials()
	if err != nil {
		return nil, err
	}
	conn, err := p.Dial("machine-api")
	if err != nil {
		return nil, err
	}
	machines, err := informer.New[*machinev1.Machine](conn, p.Log)
	if err != nil {
		return nil, err
	}
	sets, err := informer.New[*machinev1.ControlPlaneMachineSet](conn, p.Log)
	if err != nil {
		return nil, err
	}
	nodes, err := nodesOf(cfg, p)
	if err != nil {
		return nil, err
	}
	if nodes != nil {
		parts = append(parts, nodes.Run)
	}
	st := p.Store(p.Etcd)
	recorder := events.New(name, st, p.Validator, p.Log)
	p.Metrics.MustRegister(recorder)
	if err := recorder.Register(p.Services); err != nil {
		return nil, err
	}
	supervisor := process.NewSupervisor(cfg.in("run"), p.Log)
	records, client := store.NewRecords(st), members.New(root)
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start) } // by the monotonic clock
	c := controller.New(controller.Config{
		Members: client, Records: records, Trust: signer.Trust, Note: note, BootstrapURL: cfg.bootstrapClient,
		Endpoints: p.Etcd.Endpoints,
		Led:       func() bool { return p.Directory != nil && p.Directory.View().Leaders[name] != "" },
		Bootstrap: controller.NewBootstrap(controller.BootstrapConfig{
			Supervisor: supervisor, Spec: cfg.memberSpec(token), DataDir: cfg.dataDir(),
			Allowed: cfg.in(bootstrapDir, "allowed"), Known: []string{cfg.in(endpointsFile)}, Note: note,
			Elsewhere: cfg.elsewhere(), Log: p.Log,
		}),
		Machines: machines, Sets: sets, Nodes: nodes, MachineAPI: machinev1.NewMachineServiceClient(conn),
		Reach: func(urls []string) { p.Etcd.SetEndpoints(urls...) }, Events: recorder, Settings: cfg.settings,
		Quota: cfg.quota, Recovered: cfg.recovered, Now: time.Now, Elapsed: elapsed, Log: p.Log,
	})
	tables := kinds.New(st, p.Validator, cfg.hostDir != "", p.Policy, p.Log)
	p.Metrics.MustRegister(metrics.New(func() *etcdv1.Quorum {
		o, _ := c.Last()
		return o.Quorum
	}, tables.Snapshots.Cache, tables.Schedules.Cache))
	snapshots, err := snapshotsOf(cfg, p, c, tables, client, recorder)
	if err != nil {
		return nil, err
	}
	etcdv1.RegisterQuorumServiceServer(p.Services, &server.Server{
		Controller: c, Records: records, Signer: signer, Snapshots: snapshots,
		Now: time.Now,
	})
	owned, err := ownerParts(cfg, p, c)
	if err != nil {
		return nil, err
	}
	p.Operator = func(ctx context.Context) clusteroperator.State {
		s := p.Readiness(ctx)
		if o, _ := c.Last(); s.Available && !s.Degraded {
			s.Objection.Reason, s.Objection.Message = plan.Objection(o.Quorum)
		}
		return s
	}
	p.WithoutEtcd = true // it helps etcd back
	return append(parts,
		supervisor.Run, machines.Run, sets.Run, recorder.Run,
		p.Lead(p.Etcd, func(ctx context.Context) error {
			group, ctx := errgroup.WithContext(ctx)
			group.Go(func() error { return c.Lead(ctx) })
			group.Go(func() error { return snapshots.Lead(ctx) })
			for _, part := range owned { // a guardian that does not lead knows no offers, and would report what is not so
				group.Go(func() error { return part(ctx) })
			}
			return group.Wait()
		}),
		func(ctx context.Context) error {
			defer client.Close()
			return c.Run(ctx)
		}), nil
}

// snapshotsOf serves snapshots and their schedules, and returns what carries them out.
func snapshotsOf(cfg config, p *serve.Process, c *controller.Controller, tables *kinds.Tables, client *members.Client,
	recorder *events.Recorder,
) (*controller.Snapshots, error) {
	out := controller.SnapshotsConfig{
		Tables: tables, Quorum: c, Members: client, Directory: snapshot.NewDirectory(cfg.snapshotDir),
		Work: snapshot.NewDirectory(cfg.in("snapshots-upload")), Events: recorder, Now: time.Now, Log: p.Log,
	}
	if cfg.bucket.Endpoint != "" {
		// On a host this is no reason not to run: the file may not be there yet when the host joins or is restored, and
		// without a guardian there is no etcd. Each snapshot says what is wrong.
		if file := cfg.bucket.CredentialsFile; file != "" && cfg.hostDir == "" {
			if _, err := os.Stat(file); err != nil {
				return nil, fmt.Errorf("--s3-credentials: %w", err)
			}
		}
		bucket, err := snapshot.NewS3(cfg.bucket)
		if err != nil {
			return nil, fmt.Errorf("--s3-endpoint, --s3-bucket and --s3-credentials: %w", err)
		}
		out.Bucket = bucket
	}
	if cfg.hostDir != "" {
		out.Bundle = func() ([]byte, error) { return hostbundle.Pack(cfg.hostDir, hostbundle.ForBackup) }
	}
	p.Tables.Add(tables.Snapshots, &etcdv1.SnapshotService_ServiceDesc, nil)
	p.Tables.Add(tables.Schedules, &etcdv1.SnapshotScheduleService_ServiceDesc, nil)
	return controller.NewSnapshots(out), nil
}

// nodesOf returns a copy of the nodes, or nil where it is not known who has them.
func nodesOf(cfg config, p *serve.Process) (*informer.Informer[*nodev1.Node], error) {
	if !cfg.serve.Knows(topology.EvictionController) {
		return nil, nil
	}
	conn, err := p.Dial(topology.EvictionController)
	if err != nil {
		return nil, err
	}
	return informer.New[*nodev1.Node](conn, p.Log)
}

// ownerParts attends the tasks of our hook, where it is known who keeps them.
func ownerParts(cfg config, p *serve.Process, c *controller.Controller) ([]func(context.Context) error, error) {
	if !cfg.serve.Knows("hook-broker") {
		return nil, nil
	}
	conn, err := p.Dial("hook-broker")
	if err != nil {
		return nil, err
	}
	o := &owner.Owner{
		Tasks: hookv1.NewHookTaskServiceClient(conn), Log: p.Log,
		Progress: func() (string, <-chan struct{}) {
			last, changed := c.Last()
			return owner.Describe(last.Plan), changed
		},
	}
	return []func(context.Context) error{o.Run}, nil
}
