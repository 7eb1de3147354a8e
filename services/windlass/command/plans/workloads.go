package plans

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// workloadPlan is the common response of the plans of workload kinds.
type workloadPlan interface {
	proto.Message
	GetActions() []*metav1.PlannedAction
	GetHeldBack() []*metav1.HeldBack
	GetWakeTime() *timestamppb.Timestamp
}

// workloadQuestion holds the inputs of a workload plan.
type workloadQuestion struct {
	namespace, name string
	given           given
	replicas        *int32 // nil for the workload's own number
}

// pods returns the pods of the file for a request; nil if there are none, so that those in the cluster are used.
func (q workloadQuestion) pods() *schedulingv1.PodList {
	if pods := all[*schedulingv1.Pod](q.given); len(pods) > 0 {
		return &schedulingv1.PodList{Items: pods}
	}
	return nil
}

func (q workloadQuestion) sets() *schedulingv1.ReplicaSetList {
	if sets := all[*schedulingv1.ReplicaSet](q.given); len(sets) > 0 {
		return &schedulingv1.ReplicaSetList{Items: sets}
	}
	return nil
}

func (q workloadQuestion) revisions() *schedulingv1.ControllerRevisionList {
	if revisions := all[*schedulingv1.ControllerRevision](q.given); len(revisions) > 0 {
		return &schedulingv1.ControllerRevisionList{Items: revisions}
	}
	return nil
}

func (q workloadQuestion) claims() []*schedulingv1.PersistentVolumeClaim {
	return all[*schedulingv1.PersistentVolumeClaim](q.given)
}

// storage returns the volumes and classes of the file; nil if there are none, so that those in the cluster are used.
func (q workloadQuestion) storage() *schedulingv1.PlanPersistentVolumeClaimRequest_Storage {
	volumes, classes := all[*schedulingv1.PersistentVolume](q.given), all[*schedulingv1.StorageClass](q.given)
	if len(volumes)+len(classes) == 0 {
		return nil
	}
	return &schedulingv1.PlanPersistentVolumeClaimRequest_Storage{Volumes: volumes, Classes: classes}
}

func (q workloadQuestion) jobs() *schedulingv1.JobList {
	if jobs := all[*schedulingv1.Job](q.given); len(jobs) > 0 {
		return &schedulingv1.JobList{Items: jobs}
	}
	return nil
}

func (q workloadQuestion) nodes() *nodev1.NodeList {
	if nodes := all[*nodev1.Node](q.given); len(nodes) > 0 {
		return &nodev1.NodeList{Items: nodes}
	}
	return nil
}

func newWorkloads(e *session.Env) []*cobra.Command {
	return []*cobra.Command{
		newWorkload[*schedulingv1.Deployment](e, true, []string{"ReplicaSet"},
			func(ctx context.Context, c grpc.ClientConnInterface, d *schedulingv1.Deployment, q workloadQuestion) (workloadPlan,
				error,
			) {
				return schedulingv1.NewDeploymentServiceClient(c).PlanDeployment(ctx, &schedulingv1.PlanDeploymentRequest{
					Namespace: q.namespace, Name: q.name, Deployment: d, Replicas: q.replicas, ReplicaSets: q.sets(),
				})
			}),
		newWorkload[*schedulingv1.ReplicaSet](e, true, []string{"Pod"},
			func(ctx context.Context, c grpc.ClientConnInterface, s *schedulingv1.ReplicaSet, q workloadQuestion) (workloadPlan,
				error,
			) {
				return schedulingv1.NewReplicaSetServiceClient(c).PlanReplicaSet(ctx, &schedulingv1.PlanReplicaSetRequest{
					Namespace: q.namespace, Name: q.name, ReplicaSet: s, Replicas: q.replicas, Pods: q.pods(),
				})
			}),
		newWorkload[*schedulingv1.ReplicationController](e, true, []string{"Pod"},
			func(ctx context.Context, c grpc.ClientConnInterface, rc *schedulingv1.ReplicationController, q workloadQuestion) (
				workloadPlan, error,
			) {
				return schedulingv1.NewReplicationControllerServiceClient(c).PlanReplicationController(ctx,
					&schedulingv1.PlanReplicationControllerRequest{
						Namespace: q.namespace, Name: q.name, ReplicationController: rc, Replicas: q.replicas, Pods: q.pods(),
					})
			}),
		newWorkload[*schedulingv1.StatefulSet](e, true, []string{"Pod", "ControllerRevision", "PersistentVolumeClaim"},
			func(ctx context.Context, c grpc.ClientConnInterface, s *schedulingv1.StatefulSet, q workloadQuestion) (workloadPlan,
				error,
			) {
				return schedulingv1.NewStatefulSetServiceClient(c).PlanStatefulSet(ctx, &schedulingv1.PlanStatefulSetRequest{
					Namespace: q.namespace, Name: q.name, StatefulSet: s, Replicas: q.replicas, Pods: q.pods(),
					Revisions: q.revisions(), Claims: q.claims(),
				})
			}),
		newWorkload[*schedulingv1.DaemonSet](e, false, []string{"Pod", "Node", "ControllerRevision"},
			func(ctx context.Context, c grpc.ClientConnInterface, s *schedulingv1.DaemonSet, q workloadQuestion) (workloadPlan,
				error,
			) {
				return schedulingv1.NewDaemonSetServiceClient(c).PlanDaemonSet(ctx, &schedulingv1.PlanDaemonSetRequest{
					Namespace: q.namespace, Name: q.name, DaemonSet: s, Pods: q.pods(), Nodes: q.nodes(),
					Revisions: q.revisions(),
				})
			}),
		newWorkload[*schedulingv1.Job](e, false, []string{"Pod"}, func(ctx context.Context, c grpc.ClientConnInterface,
			j *schedulingv1.Job, q workloadQuestion,
		) (workloadPlan, error) {
			return schedulingv1.NewJobServiceClient(c).PlanJob(ctx, &schedulingv1.PlanJobRequest{
				Namespace: q.namespace,
				Name:      q.name, Job: j, Pods: q.pods(),
			})
		}),
		newWorkload[*schedulingv1.CronJob](e, false, []string{"Job"}, func(ctx context.Context, c grpc.ClientConnInterface,
			j *schedulingv1.CronJob, q workloadQuestion,
		) (workloadPlan, error) {
			return schedulingv1.NewCronJobServiceClient(c).PlanCronJob(ctx, &schedulingv1.PlanCronJobRequest{
				Namespace: q.namespace, Name: q.name, CronJob: j, Jobs: q.jobs(),
			})
		}),
		newWorkload[*schedulingv1.PersistentVolumeClaim](e, false, []string{"Pod", "PersistentVolume", "StorageClass"},
			func(ctx context.Context, c grpc.ClientConnInterface, claim *schedulingv1.PersistentVolumeClaim,
				q workloadQuestion,
			) (workloadPlan, error) {
				return schedulingv1.NewPersistentVolumeClaimServiceClient(c).PlanPersistentVolumeClaim(ctx,
					&schedulingv1.PlanPersistentVolumeClaimRequest{
						Namespace: q.namespace, Name: q.name, PersistentVolumeClaim: claim, Storage: q.storage(), Pods: q.pods(),
					})
			}),
		newBudget(e), newService(e),
	}
}

// newWorkload makes the plan command of one kind of workload. sized adds the flag --replicas; related are the other
// kinds that a file may contain.
func newWorkload[T object.Object](
	e *session.Env, sized bool, related []string, ask func(context.Context, grpc.ClientConnInterface, T,
		workloadQuestion) (workloadPlan, error),
) *cobra.Command {
	f := &flags{}
	replicas := int32(-1)
	t := typeOf[T]()
	cmd := command(e, t.GetSingular()+" (NAME | -f FILE)", "Show what a "+t.GetSingular()+
		" would create, update and delete, and why", f, 1, func(ctx context.Context, c *client.Client, args []string) error {
		q := workloadQuestion{namespace: e.NamespaceOf(client.Kind{ResourceType: t})}
		var owner T
		var err error
		if q.name, err = f.name(args, ""); err != nil {
			return err
		}
		if len(f.Names) > 0 {
			if q.given, err = readGiven(e, f, append([]string{t.GetKind()}, related...)...); err != nil {
				return err
			}
			if owner, err = one[T](q.given); err != nil {
				return err
			}
		}
		if replicas >= 0 {
			q.replicas = proto.Int32(replicas)
		}
		resp, err := ask(ctx, c.Conn(), owner, q)
		if err != nil {
			return err
		}
		return answer(e, f, resp, func(p *planText) {
			p.actions(resp.GetActions())
			p.end(resp.GetHeldBack(), "", resp.GetWakeTime())
		})
	})
	if sized {
		replicasFlag(cmd, &replicas, "pods to plan for, instead of its own")
	}
	cmd.ValidArgsFunction = target.CompleteNames(e, t.GetSingular())
	cmd.Aliases = append([]string{t.GetPlural()}, t.GetShortNames()...)
	return cmd
}

func newBudget(e *session.Env) *cobra.Command {
	f := &flags{}
	t := typeOf[*schedulingv1.PodDisruptionBudget]()
	cmd := command(e, t.GetSingular()+" (NAME | -f FILE)",
		"Show how many disruptions a budget allows now, and why", f, 1, func(ctx context.Context, c *client.Client,
			args []string,
		) error {
			req := &schedulingv1.PlanPodDisruptionBudgetRequest{Namespace: e.NamespaceOf(client.Kind{ResourceType: t})}
			var err error
			if req.Name, err = f.name(args, ""); err != nil {
				return err
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, t.GetKind(), "Pod")
				if err != nil {
					return err
				}
				if req.PodDisruptionBudget, err = one[*schedulingv1.PodDisruptionBudget](g); err != nil {
					return err
				}
				req.Pods = workloadQuestion{given: g}.pods()
			}
			resp, err := schedulingv1.NewPodDisruptionBudgetServiceClient(c.Conn()).PlanPodDisruptionBudget(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) {
				s := resp.GetStatus()
				p.printf("Pods: %d of %d healthy, %d required\nAllowed disruptions: %d\n", s.GetCurrentHealthy(),
					s.GetExpectedPods(),
					s.GetDesiredHealthy(), s.GetDisruptionsAllowed())
				p.conditions(conditionRows(s.GetConditions()))
			})
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, t.GetSingular())
	cmd.Aliases = append([]string{t.GetPlural()}, t.GetShortNames()...)
	return cmd
}

func newService(e *session.Env) *cobra.Command {
	f := &flags{}
	t := typeOf[*schedulingv1.Service]()
	cmd := command(e, t.GetSingular()+" (NAME | -f FILE)",
		"Show which pods the connections to a service are led to, and why not to others", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			req := &schedulingv1.PlanServiceEndpointsRequest{Namespace: e.NamespaceOf(client.Kind{ResourceType: t})}
			var err error
			if req.Name, err = f.name(args, ""); err != nil {
				return err
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, t.GetKind(), "Pod")
				if err != nil {
					return err
				}
				if req.Service, err = one[*schedulingv1.Service](g); err != nil {
					return err
				}
				req.Pods = workloadQuestion{given: g}.pods()
			}
			resp, err := schedulingv1.NewServiceServiceClient(c.Conn()).PlanServiceEndpoints(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.service(resp) })
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, t.GetSingular())
	cmd.Aliases = append([]string{t.GetPlural()}, t.GetShortNames()...)
	return cmd
}

// typeOf returns the client kind of a message type.
func typeOf[T object.Object]() *metav1.ResourceType {
	var none T
	return object.TypeOf(none.ProtoReflect().Descriptor())
}
