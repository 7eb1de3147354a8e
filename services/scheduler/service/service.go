// Package service runs scheduler: pods and their owners, their placement on nodes, their admission and their
// eviction.
package service

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"
	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	admission "github.com/windlass-dev/windlass/services/scheduler/admission/controller"
	"github.com/windlass-dev/windlass/services/scheduler/admission/webhook"
	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/metrics"
	"github.com/windlass-dev/windlass/services/scheduler/nodes"
	placement "github.com/windlass-dev/windlass/services/scheduler/placement/controller"
	"github.com/windlass-dev/windlass/services/scheduler/placement/extender"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
	"github.com/windlass-dev/windlass/services/scheduler/server"
	"github.com/windlass-dev/windlass/services/scheduler/traffic"
	volume "github.com/windlass-dev/windlass/services/scheduler/volume/controller"
	workload "github.com/windlass-dev/windlass/services/scheduler/workload/controller"
)

// Run serves until ctx ends.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, own, err := parse(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return cfg.Run(ctx, stderr, true, func(p *serve.Process) ([]serve.Part, error) {
		return build(p, p.Etcd, cfg.Name, own)
	})
}

// build makes the parts and registers what they serve.
func build(p *serve.Process, etcd *clientv3.Client, name string, own options) ([]serve.Part, error) {
	conn, err := p.Dial(nodeOwner)
	if err != nil {
		return nil, err
	}
	known, err := nodes.New(conn, p.Log)
	if err != nil {
		return nil, err
	}
	maxDisks, err := parseMaxDisks(os.Getenv(maxDisksVariable))
	if err != nil {
		return nil, err
	}
	st := p.Store(etcd)
	recorder := events.New(name, st, p.Validator, p.Log)
	var placer *placement.Scheduler // which needs the tables; no pod is created before the parts run
	tables := kinds.New(kinds.Config{
		Store: st, Validator: p.Validator, Nodes: known, MayBind: mayBind(p.Policy),
		MayUseClass: mayUseClass(p.Policy),
		Creating: func(pods []*schedulingv1.Pod) *resource.Creation[*schedulingv1.Pod] {
			return placer.Creating(pods)
		},
		Webhooks:        &webhook.Caller{Allowed: own.webhooks, Now: time.Now, Log: p.Log},
		WebhooksAllowed: own.webhooks, AdmissionFiles: own.files,
		ServiceRange: own.services,
		Policy:       p.Policy, MaxDisks: maxDisks, Now: time.Now, Log: p.Log,
	})
	p.Metrics.MustRegister(recorder, metrics.New(tables.Pods.Cache))
	control := workloads(tables, known, recorder, p)
	placer = placement.NewScheduler(tables, known, recorder,
		&extender.Asker{Allowed: own.webhooks, Now: time.Now, Log: p.Log}, p.Log)
	storage := volume.New(tables, known, placer, recorder, p.Log)
	leading := []serve.Part{
		placer.Lead,
		workload.NewGarbage(tables, known, recorder, p.Log).Lead,
		workload.NewLost(tables, known, recorder, p.Log).Lead,
		workload.NewAddresses(tables, p.Log).Lead,
		control.Lead, storage.Lead,
		tables.Secrets.Reseal,
		admission.NewSettings(tables, time.Now, p.Log).Lead,
	}
	connections := traffic.New(tables.Services, tables.Pods)
	register(p, server.Config{
		Tables: tables, Nodes: known, Policy: p.Policy, Relay: relay.New(), Traffic: connections, Events: recorder,
		Workloads: control, Placer: placer, Storage: storage,
		// Its own: users who ask for explanations do not use up the calls of placement.
		Extenders: &extender.Asker{Allowed: own.webhooks, Now: time.Now, Log: p.Log},
		Signer:    accounttoken.NewSigner(p.Files()),
		Now:       time.Now, Log: p.Log,
	})
	return []serve.Part{
		known.Run, recorder.Run, connections.Run,
		serve.EnforceRoles(serve.Roles{
			ClusterRoles: tables.ClusterRoles.Cache, Roles: tables.Roles.Cache,
			ClusterRoleBindings: tables.ClusterRoleBindings.Cache, RoleBindings: tables.RoleBindings.Cache,
		}, p.Policy),
		p.Lead(etcd,
			func(ctx context.Context) error { return together(ctx, leading) }),
	}, recorder.Register(p.Services)
}

// workloads returns the controllers of the kinds that own pods.
func workloads(t *kinds.Tables, known *nodes.Nodes, recorder *events.Recorder, p *serve.Process) *workload.Controllers {
	return workload.New(workload.Config{
		Tables: workload.Tables{
			Pods: t.Pods, ReplicaSets: t.ReplicaSets, ReplicationControllers: t.ReplicationControllers,
			Deployments:  t.Deployments,
			StatefulSets: t.StatefulSets, Revisions: t.Revisions, Claims: t.Claims,
			DaemonSets: t.DaemonSets, Jobs: t.Jobs, CronJobs: t.CronJobs, Budgets: t.Budgets,
		},
		Nodes: known, Events: recorder, Log: p.Log, Now: time.Now,
	})
}

// register serves all kinds.
func register(p *serve.Process, cfg server.Config) {
	t, g := cfg.Tables, p.Tables
	schedulingv1.RegisterPodAgentServiceServer(p.Services, server.NewAgents(cfg))
	g.Add(t.Namespaces, &schedulingv1.NamespaceService_ServiceDesc, nil)
	g.Add(t.Pods, &schedulingv1.PodService_ServiceDesc, server.NewPods(cfg))
	g.Add(t.ReplicaSets, &schedulingv1.ReplicaSetService_ServiceDesc, &server.ReplicaSets{Config: cfg})
	g.Add(t.ReplicationControllers, &schedulingv1.ReplicationControllerService_ServiceDesc, &server.ReplicationControllers{
		Config: cfg,
	})
	g.Add(t.Deployments, &schedulingv1.DeploymentService_ServiceDesc, server.NewDeployments(cfg))
	g.Add(t.DaemonSets, &schedulingv1.DaemonSetService_ServiceDesc, &server.DaemonSets{Config: cfg})
	g.Add(t.StatefulSets, &schedulingv1.StatefulSetService_ServiceDesc, &server.StatefulSets{Config: cfg})
	g.Add(t.Revisions, &schedulingv1.ControllerRevisionService_ServiceDesc, nil)
	g.Add(t.Jobs, &schedulingv1.JobService_ServiceDesc, &server.Jobs{Config: cfg})
	g.Add(t.CronJobs, &schedulingv1.CronJobService_ServiceDesc, &server.CronJobs{Config: cfg})
	g.Add(t.Services, &schedulingv1.ServiceService_ServiceDesc, &server.Services{Config: cfg})
	g.Add(t.Budgets, &schedulingv1.PodDisruptionBudgetService_ServiceDesc, &server.Budgets{Config: cfg})
	g.Add(t.PriorityClasses, &schedulingv1.PriorityClassService_ServiceDesc, nil)
	g.Add(t.Volumes, &schedulingv1.PersistentVolumeService_ServiceDesc, nil)
	g.Add(t.Claims, &schedulingv1.PersistentVolumeClaimService_ServiceDesc, &server.Claims{Config: cfg})
	g.Add(t.StorageClasses, &schedulingv1.StorageClassService_ServiceDesc, nil)
	g.Add(t.ConfigMaps, &schedulingv1.ConfigMapService_ServiceDesc, nil)
	g.Add(t.Secrets, &schedulingv1.SecretService_ServiceDesc, nil)
	g.Add(t.ServiceAccounts, &schedulingv1.ServiceAccountService_ServiceDesc, nil)
	schedulingv1.RegisterServiceAccountTokenServiceServer(p.Services, &server.Tokens{Config: cfg})
	g.Add(t.Policies, &schedulingv1.PolicyService_ServiceDesc, nil)
	g.Add(t.AdmissionConfigs, &schedulingv1.AdmissionConfigService_ServiceDesc, nil)
	g.Add(t.MasterConfigs, &schedulingv1.KubernetesMasterConfigService_ServiceDesc, nil)
	g.Add(t.MutatingWebhooks, &admissionregistrationv1.MutatingWebhookConfigurationService_ServiceDesc, nil)
	g.Add(t.ValidatingWebhooks, &admissionregistrationv1.ValidatingWebhookConfigurationService_ServiceDesc, nil)
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

// mayUseClass reports whether a caller may create pods of a priority class of the system.
func mayUseClass(policy *identity.Policy) func(by identity.Caller, namespace, class string) bool {
	return func(by identity.Caller, namespace, class string) bool {
		ok, _ := policy.Allowed(by, identity.Attributes{
			Verb: "use", Group: "scheduling.k8s.io", Resource: "priorityclasses", Namespace: namespace, Name: class,
		})
		return ok
	}
}
