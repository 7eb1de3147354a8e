package server

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/spans"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// maxSets bounds the replica sets that a request may bring.
const maxSets = 5000

// Workloads observes live objects, as the controllers do.
type Workloads interface {
	ViewReplicaSet(set *schedulingv1.ReplicaSet) plan.ReplicasView
	ViewReplicationController(rc *schedulingv1.ReplicationController) plan.ReplicasView
	ViewStatefulSet(set *schedulingv1.StatefulSet) plan.StatefulSetView
	ViewDaemonSet(set *schedulingv1.DaemonSet) plan.DaemonSetView
	ViewJob(job *schedulingv1.Job) plan.JobView
	ViewCronJob(c *schedulingv1.CronJob) plan.CronJobView
	ViewDeployment(d *schedulingv1.Deployment) plan.DeploymentView
	ViewBudget(b *schedulingv1.PodDisruptionBudget, pods []*schedulingv1.Pod) plan.BudgetView
}

// subject returns the object that a plan is asked for: the live one, or the given one as it would be stored, in the
// place of the live one of its name if there is one.
func subject[T object.Object](ctx context.Context, t *resource.Table[T], given T, namespace, name string) (T, error) {
	k := keyOf(namespace, name)
	if !given.ProtoReflect().IsValid() {
		if name == "" {
			return given,
				rpcerr.Invalid(object.Fault{Path: "name", Description: "must be given, or else the " + t.Type().GetSingular()})
		}
		return t.Get(ctx, k.Namespace, k.Name)
	}
	given = object.Clone(given)
	m := given.GetMetadata()
	field := strings.ToLower(t.Type().GetKind()[:1]) + t.Type().GetKind()[1:] // of the request
	if m.GetName() == "" {
		return given, rpcerr.Invalid(object.Fault{Path: field + ".metadata.name", Description: "must be given"})
	}
	k = keyOf(cmp.Or(m.GetNamespace(), namespace), m.GetName())
	m.Namespace = k.Namespace
	if live, ok := t.Lookup(k.Namespace, k.Name); ok {
		m.Uid, m.Generation = live.GetMetadata().GetUid(), live.GetMetadata().GetGeneration()
		is, status := given.ProtoReflect(), given.ProtoReflect().Descriptor().Fields().ByName("status")
		if was := live.ProtoReflect(); !is.Has(status) && was.Has(status) {
			is.Set(status, protoreflect.ValueOfMessage(proto.Clone(was.Get(status).Message().Interface()).ProtoReflect()))
		}
	}
	bad, err := t.Complete(given)
	if err != nil || len(bad) == 0 {
		return given, err
	}
	for i := range bad {
		bad[i].Path = field + "." + bad[i].Path
	}
	return given, rpcerr.Invalid(bad...)
}

// copied is a table of which this process has a copy.
type copied interface {
	CatchUp(ctx context.Context) error
}

// current waits until the copies of tables have everything that is stored now: a caller who has seen an object does not
// get an answer about the time before it.
func current(ctx context.Context, tables ...copied) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, t := range tables {
		all.Go(func() error { return t.CatchUp(ctx) })
	}
	return all.Wait()
}

// beside returns the objects of a request that are in the namespace of an owner; one that names no namespace does.
func beside[T object.Object](owner object.Object, items []T) []T {
	ns := owner.GetMetadata().GetNamespace()
	var out []T
	for _, o := range items {
		switch o.GetMetadata().GetNamespace() {
		case ns:
			out = append(out, o)
		case "":
			o = object.Clone(o)
			if m := o.GetMetadata(); m != nil {
				m.Namespace = ns
			}
			out = append(out, o)
		}
	}
	return out
}

func wakeTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// ReplicaSets serves what ReplicaSetService has beyond the standard methods; so do the others for their kinds.
type ReplicaSets struct {
	schedulingv1.UnimplementedReplicaSetServiceServer
	Config
}

// PlanReplicaSet says what a replica set would do.
func (s *ReplicaSets) PlanReplicaSet(ctx context.Context, r *schedulingv1.PlanReplicaSetRequest) (
	*schedulingv1.PlanReplicaSetResponse, error,
) {
	set, err := subject(ctx, s.Tables.ReplicaSets, r.GetReplicaSet(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods())); err != nil {
		return nil, err
	}
	if r.Replicas != nil {
		set.Spec.Replicas = r.Replicas
	}
	if r.GetPods() == nil {
		if err := current(ctx, s.Tables.Pods, s.Tables.ReplicaSets); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewReplicaSet(set)
	if r.GetReplicaSet() != nil || r.GetPods() != nil { // their times are of one clock
		v.Clock = spans.Clock{}
	}
	if r.GetPods() != nil {
		v.Pods, v.Related = beside(set, r.GetPods().GetItems()), nil
	}
	p := plan.Replicas(v)
	return &schedulingv1.PlanReplicaSetResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status,
		WakeTime: wakeTime(p.Wake),
	}, nil
}

// ReplicationControllers serves what ReplicationControllerService has beyond the standard methods.
type ReplicationControllers struct {
	schedulingv1.UnimplementedReplicationControllerServiceServer
	Config
}

// PlanReplicationController says what a replication controller would do.
func (s *ReplicationControllers) PlanReplicationController(ctx context.Context,
	r *schedulingv1.PlanReplicationControllerRequest,
) (*schedulingv1.PlanReplicationControllerResponse, error) {
	rc, err := subject(ctx, s.Tables.ReplicationControllers, r.GetReplicationController(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods())); err != nil {
		return nil, err
	}
	if r.Replicas != nil {
		rc.Spec.Replicas = r.Replicas
	}
	if r.GetPods() == nil {
		if err := current(ctx, s.Tables.Pods); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewReplicationController(rc)
	if r.GetReplicationController() != nil || r.GetPods() != nil { // their times are of one clock
		v.Clock = spans.Clock{}
	}
	if r.GetPods() != nil {
		v.Pods = beside(rc, r.GetPods().GetItems())
	}
	p := plan.Replicas(v)
	out := &schedulingv1.PlanReplicationControllerResponse{
		Actions: p.Actions(), HeldBack: p.Held,
		WakeTime: wakeTime(p.Wake),
	}
	if p.Status != nil {
		out.Status = plan.ReplicationControllerStatus(p.Status)
	}
	return out, nil
}

// Jobs serves what JobService has beyond the standard methods.
type Jobs struct {
	schedulingv1.UnimplementedJobServiceServer
	Config
}

// PlanJob says what a job would do.
func (s *Jobs) PlanJob(ctx context.Context, r *schedulingv1.PlanJobRequest) (*schedulingv1.PlanJobResponse, error) {
	job, err := subject(ctx, s.Tables.Jobs, r.GetJob(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods())); err != nil {
		return nil, err
	}
	if r.GetPods() == nil {
		if err := current(ctx, s.Tables.Pods); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewJob(job)
	if r.GetJob() != nil || r.GetPods() != nil { // their times are of one clock
		v.Clock = spans.Clock{}
	}
	if r.GetPods() != nil {
		v.Pods = beside(job, r.GetPods().GetItems())
	}
	p := plan.Job(v)
	return &schedulingv1.PlanJobResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status,
		WakeTime: wakeTime(p.Wake),
	}, nil
}

// Budgets serves what PodDisruptionBudgetService has beyond the standard methods.
type Budgets struct {
	schedulingv1.UnimplementedPodDisruptionBudgetServiceServer
	Config
}

// PlanPodDisruptionBudget says how many pods a disruption budget lets go.
func (s *Budgets) PlanPodDisruptionBudget(ctx context.Context, r *schedulingv1.PlanPodDisruptionBudgetRequest) (
	*schedulingv1.PlanPodDisruptionBudgetResponse, error,
) {
	b, err := subject(ctx, s.Tables.Budgets, r.GetPodDisruptionBudget(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods())); err != nil {
		return nil, err
	}
	var pods []*schedulingv1.Pod
	if r.GetPods() != nil {
		pods = append([]*schedulingv1.Pod{}, beside(b, r.GetPods().GetItems())...)
	} else if err := current(ctx, s.Tables.Pods, s.Tables.ReplicaSets, s.Tables.Deployments, s.Tables.DaemonSets,
		// they say how many there are to be
		s.Tables.ReplicationControllers, s.Tables.StatefulSets, s.Tables.Jobs); err != nil {
		return nil, err
	}
	p := plan.Budget(s.Workloads.ViewBudget(b, pods))
	return &schedulingv1.PlanPodDisruptionBudgetResponse{Status: p.Status, WakeTime: wakeTime(p.Wake)}, nil
}

// PlanDeployment says what a deployment would do.
func (s *Deployments) PlanDeployment(ctx context.Context, r *schedulingv1.PlanDeploymentRequest) (
	*schedulingv1.PlanDeploymentResponse, error,
) {
	d, err := subject(ctx, s.Tables.Deployments, r.GetDeployment(), r.GetNamespace(), r.GetName())
	if err != nil {
		return nil, err
	}
	if r.Replicas != nil {
		d.Spec.Replicas = r.Replicas
	}
	if r.GetReplicaSets() == nil {
		if err := current(ctx, s.Tables.ReplicaSets); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewDeployment(d)
	if r.GetDeployment() != nil || r.GetReplicaSets() != nil { // their times are of one clock
		v.Clock = spans.Clock{}
	}
	if r.GetReplicaSets() != nil {
		if fields := atMost("replicaSets.items", len(r.GetReplicaSets().GetItems()), maxSets); len(fields) > 0 {
			return nil, rpcerr.Invalid(fields...)
		}
		v.Sets = beside(d, r.GetReplicaSets().GetItems())
	}
	p := plan.Deployment(v)
	return &schedulingv1.PlanDeploymentResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status,
		WakeTime: wakeTime(p.Wake),
	}, nil
}

func bounded(l *schedulingv1.PodList) error {
	if fields := atMost("pods.items", len(l.GetItems()), maxPods); len(fields) > 0 {
		return rpcerr.Invalid(fields...)
	}
	return nil
}
