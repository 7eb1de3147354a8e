// Package service runs scheduler: pods and their owners, their placement on nodes, their admission and their
// eviction.
package service

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/pflag"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/nodes"
	placement "github.com/windlass-dev/windlass/services/scheduler/placement/controller"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
	"github.com/windlass-dev/windlass/services/scheduler/server"
	workload "github.com/windlass-dev/windlass/services/scheduler/workload/controller"
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
	return cfg.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) { return build(p, p.Etcd, cfg.Name) })
}

// build makes the parts and registers what they serve.
func build(p *serve.Process, etcd *clientv3.Client, name string) ([]serve.Part, error) {
	conn, err := p.Dial(nodeOwner)
	if err != nil {
		return nil, err
	}
	known, err := nodes.New(conn, p.Log)
	if err != nil {
		return nil, err
	}
	st := p.Store(etcd)
	recorder := events.New(name, st, p.Validator, p.Log)
	tables := kinds.New(kinds.Config{
		Store: st, Validator: p.Validator, Nodes: known, MayBind: mayBind(p.Policy),
		Policy: p.Policy, Now: time.Now, Log: p.Log,
	})
	control := workloads(tables, known, recorder, p)
	leading := []serve.Part{
		placement.NewScheduler(tables, known, recorder, p.Log).Lead,
		workload.NewGarbage(tables, known, p.Log).Lead,
		workload.NewLost(tables, known, recorder, p.Log).Lead,
		control.Lead,
	}
	register(p, server.Config{
		Tables: tables, Nodes: known, Policy: p.Policy, Relay: relay.New(), Events: recorder, Workloads: control,
		Now: time.Now, Log: p.Log,
	})
	return []serve.Part{
		known.Run, recorder.Run,
		serve.EnforceRoles(serve.Roles{
			ClusterRoles: tables.ClusterRoles.Cache, Roles: tables.Roles.Cache,
			ClusterRoleBindings: tables.ClusterRoleBindings.Cache, RoleBindings: tables.RoleBindings.Cache,
		}, p.Policy),
		p.Lead(etcd,
			func(ctx context.Context) error { return together(ctx, leading) }),
	}, recorder.Register(p.GRPC)
}

// workloads returns the controllers of the kinds that own pods.
func workloads(t *kinds.Tables, known *nodes.Nodes, recorder *events.Recorder, p *serve.Process) *workload.Controllers {
	return workload.New(workload.Config{
		Tables: workload.Tables{
			Pods: t.Pods, ReplicaSets: t.ReplicaSets, ReplicationControllers: t.ReplicationControllers,
			Deployments: t.Deployments,
			DaemonSets:  t.DaemonSets, Jobs: t.Jobs, Budgets: t.Budgets,
		},
		Nodes: known, Events: recorder, Log: p.Log, Now: time.Now,
	})
}

// register serves all kinds.
func register(p *serve.Process, cfg server.Config) {
	t, g := cfg.Tables, p.Tables
	schedulingv1.RegisterPodAgentServiceServer(p.GRPC, server.NewAgents(cfg))
	g.Add(t.Namespaces, &schedulingv1.NamespaceService_ServiceDesc, nil)
	g.Add(t.Pods, &schedulingv1.PodService_ServiceDesc, server.NewPods(cfg))
	g.Add(t.ReplicaSets, &schedulingv1.ReplicaSetService_ServiceDesc, &server.ReplicaSets{Config: cfg})
	g.Add(t.ReplicationControllers, &schedulingv1.ReplicationControllerService_ServiceDesc, &server.ReplicationControllers{
		Config: cfg,
	})
	g.Add(t.Deployments, &schedulingv1.DeploymentService_ServiceDesc, server.NewDeployments(cfg))
	g.Add(t.DaemonSets, &schedulingv1.DaemonSetService_ServiceDesc, &server.DaemonSets{Config: cfg})
	g.Add(t.StatefulSets, &schedulingv1.StatefulSetService_ServiceDesc, nil)
	g.Add(t.Jobs, &schedulingv1.JobService_ServiceDesc, &server.Jobs{Config: cfg})
	g.Add(t.Services, &schedulingv1.ServiceService_ServiceDesc, nil)
	g.Add(t.Budgets, &schedulingv1.PodDisruptionBudgetService_ServiceDesc, &server.Budgets{Config: cfg})
	g.Add(t.Volumes, &schedulingv1.PersistentVolumeService_ServiceDesc, nil)
	g.Add(t.Claims, &schedulingv1.PersistentVolumeClaimService_ServiceDesc, nil)
	g.Add(t.Policies, &schedulingv1.PolicyService_ServiceDesc, nil)
	g.Add(t.AdmissionConfigs, &schedulingv1.AdmissionConfigService_ServiceDesc, nil)
	g.Add(t.MasterConfigs, &schedulingv1.KubernetesMasterConfigService_ServiceDesc, nil)
	g.Add(t.ClusterRoles, &rbacv1.ClusterRoleService_ServiceDesc, nil)
	g.Add(t.Roles, &rbacv1.RoleService_ServiceDesc, nil)
	g.Add(t.ClusterRoleBindings, &rbacv1.ClusterRoleBindingService_ServiceDesc, nil)
	g.Add(t.RoleBindings, &rbacv1.RoleBindingService_ServiceDesc, nil)
}

// together runs parts until ctx ends or one of them fails.
func together(ctx context.Context, parts []serve.Part) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// mayBind reports whether a caller may choose the node of a pod.
func mayBind(policy *identity.Policy) func(by identity.Caller, namespace, pod string) bool {
	return func(by identity.Caller, namespace, pod string) bool {
		ok, _ := policy.Allowed(by, identity.Attributes{
			Verb: "create", Resource: "pods/binding", Namespace: namespace,
			Name: pod,
		})
		return ok
	}
}
