package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func (c *Controllers) reconcileReplicaSet(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	set, ok := c.ReplicaSets.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewReplicaSet(set)
	p := plan.Replicas(v)
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.ReplicaSets, set, c.Pods, p.Adopt, p.Release)
	}
	c.keep(v.Owner, p.States, v.Now)
	failure, err := c.carryOut(ctx, set, p.Create, p.Delete)
	return p.Wake, errors.Join(err, writeStatus(ctx, c.ReplicaSets, set, func(next *schedulingv1.ReplicaSet) {
		next.Status = plan.WithFailure(p.Status, failure.Reason, failure.Message, v.Now)
	}))
}

// related returns the pods of the other replica sets of the same deployment.
func (c *Controllers) related(set *schedulingv1.ReplicaSet) (out []*schedulingv1.Pod) {
	owner := object.ControllerOf(set)
	if owner == nil {
		return nil
	}
	ns := set.GetMetadata().GetNamespace()
	for _, s := range kinds.ManagedBy(c.ReplicaSets, ns, owner.GetUid()) {
		if s.GetMetadata().GetUid() != set.GetMetadata().GetUid() {
			out = append(out, kinds.ManagedBy(c.Pods, ns, s.GetMetadata().GetUid())...)
		}
	}
	return out
}

func (c *Controllers) reconcileReplicationController(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	rc, ok := c.ReplicationControllers.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewReplicationController(rc)
	p := plan.Replicas(v)
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.ReplicationControllers, rc, c.Pods, p.Adopt, p.Release)
	}
	c.keep(v.Owner, p.States, v.Now)
	failure, err := c.carryOut(ctx, rc, p.Create, p.Delete)
	return p.Wake,
		errors.Join(err, writeStatus(ctx, c.ReplicationControllers, rc, func(next *schedulingv1.ReplicationController) {
			next.Status = plan.ReplicationControllerStatus(plan.WithFailure(p.Status, failure.Reason, failure.Message, v.Now))
		}))
}

func (c *Controllers) reconcileDaemonSet(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	set, ok := c.DaemonSets.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewDaemonSet(set)
	p := plan.DaemonSet(v)
	if !p.Settled() {
		return c.now(), errors.Join(transfer(ctx, c.DaemonSets, set, c.Pods, p.Adopt, p.Release),
			transfer(ctx, c.DaemonSets, set, c.Revisions, p.History.Adopt, p.History.Release))
	}
	c.keep(set, p.States, v.Now)
	taken, err := c.record(ctx, set, p.History)
	switch {
	case err != nil:
		return time.Time{}, err
	case taken:
		return time.Time{}, writeStatus(ctx, c.DaemonSets, set, func(next *schedulingv1.DaemonSet) {
			next.Status = plan.DaemonRevisionCollided(set.GetStatus())
		})
	}
	c.tell(set, p.Tell...)
	_, err = c.carryOut(ctx, set, p.Create, p.Delete)
	err = errors.Join(err, c.forget(ctx, p.History.Forget))
	return p.Wake,
		errors.Join(err, writeStatus(ctx, c.DaemonSets, set, func(next *schedulingv1.DaemonSet) { next.Status = p.Status }))
}

func (c *Controllers) reconcileStatefulSet(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	set, ok := c.StatefulSets.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewStatefulSet(set)
	p := plan.StatefulSet(v)
	if !p.Settled() {
		return c.now(), errors.Join(transfer(ctx, c.StatefulSets, set, c.Pods, p.Adopt, p.Release),
			transfer(ctx, c.StatefulSets, set, c.Revisions, p.History.Adopt, p.History.Release))
	}
	c.keep(set, p.States, v.Now)
	taken, err := c.record(ctx, set, p.History)
	switch {
	case err != nil:
		return time.Time{}, err
	case taken:
		return time.Time{}, writeStatus(ctx, c.StatefulSets, set, func(next *schedulingv1.StatefulSet) {
			next.Status = plan.RevisionCollided(set.GetStatus())
		})
	case plan.Turns(set, p.Status): // which revision pods are of depends on it: it is stored before they change
		return c.now(), writeStatus(ctx, c.StatefulSets, set, func(next *schedulingv1.StatefulSet) { next.Status = p.Status })
	}
	if err := c.createClaims(ctx, set, p.CreateClaims); err != nil {
		return time.Time{}, err
	}
	_, err = c.carryOut(ctx, set, p.Create, p.Delete)
	err = errors.Join(err, c.forget(ctx, p.History.Forget), c.deleteClaims(ctx, set, p.DeleteClaims),
		transfer(ctx, c.StatefulSets, set, c.Claims, p.OwnClaims, p.DisownClaims))
	return p.Wake,
		errors.Join(err, writeStatus(ctx, c.StatefulSets, set, func(next *schedulingv1.StatefulSet) {
			next.Status = p.Status
		}))
}

// createClaims creates the claims of pods. One that exists by now is used.
func (c *Controllers) createClaims(ctx context.Context, set *schedulingv1.StatefulSet,
	claims []*schedulingv1.PersistentVolumeClaim,
) error {
	for _, claim := range claims {
		name := claim.GetMetadata().GetName()
		_, err := c.Claims.Create(ctx, claim)
		switch {
		case err == nil:
			c.tell(set, plan.Event{
				Type: "Normal", Reason: "SuccessfulCreate", Message: fmt.Sprintf("Created claim: %s", name),
			})
		case rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS:
			c.tell(set, plan.CreateFailed(status.Convert(err).Message()))
			return fmt.Errorf("create claim %q: %w", name, err)
		}
	}
	return nil
}

// deleteClaims removes the claims of pods that a set does not want any more.
func (c *Controllers) deleteClaims(ctx context.Context, set *schedulingv1.StatefulSet,
	claims []*schedulingv1.PersistentVolumeClaim,
) error {
	for _, claim := range claims {
		m := claim.GetMetadata()
		_, err := c.Claims.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{Uid: m.GetUid()})
		if rpcerr.IgnoreChanged(err) != nil {
			c.tell(set, plan.DeleteFailed(status.Convert(err).Message()))
			return fmt.Errorf("delete claim %q: %w", m.GetName(), err)
		}
	}
	return nil
}

// record stores a new revision of a set, or the new number of one, if there is any. It reports whether the name of a
// new one is taken by another.
func (c *Controllers) record(ctx context.Context, owner object.Object, p plan.HistoryPlan) (taken bool, err error) {
	if p.Renumber != nil {
		_, err := c.Revisions.Update(ctx, p.Renumber)
		return false, err
	}
	create := p.Record
	if create == nil {
		return false, nil
	}
	name := create.GetMetadata().GetName()
	_, err = c.Revisions.Create(ctx, create)
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return false, err
	}
	found, err := c.Revisions.Get(ctx, create.GetMetadata().GetNamespace(), name)
	if err != nil {
		return false, rpcerr.IgnoreChanged(err)
	}
	if plan.RevisionTaken(owner, create, found) {
		return true, nil
	}
	return false, rpcerr.Conflict("ControllerRevision", name, "it is not observed here yet, or is on its way out")
}

// forget removes revisions that are not needed any more.
func (c *Controllers) forget(ctx context.Context, revisions []*schedulingv1.ControllerRevision) error {
	for _, r := range revisions {
		m := r.GetMetadata()
		if _, err := c.Revisions.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{
			Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
		}); rpcerr.IgnoreChanged(err) != nil {
			return err
		}
	}
	return nil
}

func (c *Controllers) reconcileJob(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	job, ok := c.Jobs.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewJob(job)
	p := plan.Job(v)
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.Jobs, job, c.Pods, p.Adopt, p.Release)
	}
	c.keep(job, p.States, v.Now)
	_, failed := c.carryOut(ctx, job, p.Create, p.Delete)
	if p.Remove && failed == nil {
		_, err := c.Jobs.Delete(ctx, k.Namespace, k.Name, &metav1.Preconditions{Uid: job.GetMetadata().GetUid()})
		return time.Time{}, rpcerr.IgnoreChanged(err)
	}
	// Also if pods could not be made or removed: what is counted, and when the job began, is as decided.
	counted, err := stored(ctx, c.Jobs, job, plan.JobAfter(job, p))
	if counted {
		c.departed.count(job.GetMetadata().GetUid(), p.Counted)
		c.tell(job, p.Tell...)
	}
	return p.Wake, errors.Join(failed, err)
}

// clockCheck is the longest time between two decisions about a cron job: its times are those of the wall clock, which
// may be set forward.
const clockCheck = time.Minute

func (c *Controllers) reconcileCronJob(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	cron, ok := c.CronJobs.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewCronJob(cron)
	p := plan.CronJob(v)
	if err := c.removeJobs(ctx, cron, p.Delete); err != nil {
		return time.Time{}, err
	}
	if p.Create != nil {
		if err := c.createJob(ctx, cron, p.Create); err != nil {
			return time.Time{}, err
		}
	}
	err := write(ctx, c.CronJobs, cron, plan.CronJobAfter(cron, p))
	if err == nil {
		c.tell(cron, p.Tell...)
	}
	return controller.Earliest(p.Wake, v.Now.Add(clockCheck)), err
}

func (c *Controllers) removeJobs(ctx context.Context, cron *schedulingv1.CronJob, jobs []*schedulingv1.Job) error {
	for _, j := range jobs {
		m := j.GetMetadata()
		_, err := c.Jobs.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{Uid: m.GetUid()})
		if rpcerr.IgnoreChanged(err) != nil {
			c.tell(cron, plan.DeleteFailed(status.Convert(err).Message()))
			return fmt.Errorf("delete job %q: %w", m.GetName(), err)
		}
		c.tell(cron, plan.JobDeleted(m.GetName()))
	}
	return nil
}

// createJob creates the job of a time. If its name is taken, it is decided again once that job is seen here.
func (c *Controllers) createJob(ctx context.Context, cron *schedulingv1.CronJob, job *schedulingv1.Job) error {
	name := job.GetMetadata().GetName()
	_, err := c.Jobs.Create(ctx, job)
	switch {
	case err == nil:
		c.tell(cron, plan.JobCreated(name))
		c.log.InfoContext(ctx, "job created", "cronjob", object.KeyOf(cron).String(), "job", name)
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS:
		return rpcerr.Conflict("Job", name, "it is not observed here yet")
	default:
		c.tell(cron, plan.CreateFailed(status.Convert(err).Message()))
		return fmt.Errorf("create job %q: %w", name, err)
	}
	return nil
}

func (c *Controllers) reconcileDeployment(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	d, ok := c.Deployments.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewDeployment(d)
	p := plan.Deployment(v)
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.Deployments, d, c.ReplicaSets, p.Adopt, p.Release)
	}
	c.keep(d, p.States, v.Now)
	if p.Create != nil {
		taken, err := c.createSet(ctx, d, *p.Create)
		if err != nil {
			return time.Time{}, err
		}
		if taken {
			return c.settleName(ctx, d, object.KeyOf(p.Create.Set))
		}
	}
	done, err := c.changeSets(ctx, d, p)
	if err != nil || !done {
		return time.Time{}, err
	}
	return p.Wake, write(ctx, c.Deployments, d, plan.DeploymentAfter(d, p))
}

// createSet makes a replica set of a deployment, unless its name is taken.
func (c *Controllers) createSet(ctx context.Context, d *schedulingv1.Deployment, ch plan.SetChange) (taken bool,
	err error,
) {
	_, err = c.ReplicaSets.Create(ctx, ch.Set)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return true, nil
	}
	if err != nil {
		name := ch.Set.GetMetadata().GetName()
		err = c.refused(ctx, d, plan.SetFailed(name, status.Convert(err).Message()), err)
		return false, fmt.Errorf("create replica set %q: %w", name, err)
	}
	c.tellScaled(ctx, d, ch)
	return false, nil
}

// refused records that a replica set of a deployment could not be written, and as a condition that it was refused: what
// may pass by itself, such as an etcd without a leader, is no refusal.
func (c *Controllers) refused(ctx context.Context, d *schedulingv1.Deployment, e plan.Event, err error) error {
	c.tell(d, e)
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.ResourceExhausted:
		return errors.Join(err, write(ctx, c.Deployments, d, plan.Refused(d, e, c.now())))
	}
	return err
}

// changeSets changes and removes the replica sets of a deployment. It is not done if one of them changed since:
// that brings the deployment back.
func (c *Controllers) changeSets(ctx context.Context, d *schedulingv1.Deployment, p plan.DeploymentPlan) (done bool,
	err error,
) {
	for _, ch := range p.Update {
		if _, err := c.ReplicaSets.Update(ctx, ch.Set); rpcerr.IgnoreChanged(err) != nil {
			name := ch.Set.GetMetadata().GetName()
			err = c.refused(ctx, d, plan.SetNotChanged(name, status.Convert(err).Message()), err)
			return false, fmt.Errorf("update replica set %q: %w", name, err)
		} else if err != nil {
			return false, nil
		}
		c.tellScaled(ctx, d, ch)
	}
	for _, s := range p.Delete {
		m := s.GetMetadata()
		_, err := c.ReplicaSets.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{
			Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
		})
		if err != nil {
			return false, rpcerr.IgnoreChanged(err)
		}
	}
	return true, nil
}

func (c *Controllers) tellScaled(ctx context.Context, d *schedulingv1.Deployment, ch plan.SetChange) {
	if ch.Tell == nil {
		return
	}
	c.tell(d, *ch.Tell)
	c.log.InfoContext(ctx, "replica set scaled", "deployment", object.KeyOf(d).String(),
		"set", ch.Set.GetMetadata().GetName(), "replicas", ch.Set.GetSpec().GetReplicas())
}

// settleName says what happens to a deployment whose new replica set has a name that is taken, and when to check again.
// Another set makes it count a collision, so that the next try has another name. Its own is only not seen here yet, or
// is on its way out: its going brings the deployment back.
func (c *Controllers) settleName(ctx context.Context, d *schedulingv1.Deployment, k object.Key) (time.Time, error) {
	found, err := c.ReplicaSets.Get(ctx, k.Namespace, k.Name)
	switch {
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		return c.now(), nil
	case err != nil:
		return time.Time{}, err
	case plan.Collides(d, found):
		return time.Time{}, writeStatus(ctx, c.Deployments, d, func(next *schedulingv1.Deployment) {
			next.Status = plan.Collided(d.GetStatus())
		})
	case object.Deleting(found):
		return time.Time{}, nil
	}
	return c.now(), nil
}

func (c *Controllers) reconcileBudget(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	b, ok := c.Budgets.Lookup(k.Namespace, k.Name)
	if !ok || object.Deleting(b) {
		return time.Time{}, nil
	}
	p := plan.Budget(c.ViewBudget(b, nil))
	err := writeStatus(ctx, c.Budgets, b, func(next *schedulingv1.PodDisruptionBudget) { next.Status = p.Status })
	if err == nil {
		c.tell(b, p.Tell...)
	}
	return p.Wake, err
}

// addScale notes how many pods an owner wants, if it is one that says so.
func (c *Controllers) addScale(scales map[string]plan.Scale, namespace string, owner *metav1.OwnerReference) {
	uid := owner.GetUid()
	switch owner.GetKind() {
	case "ReplicaSet":
		s, ok := c.ReplicaSets.Lookup(namespace, owner.GetName())
		if !ok || s.GetMetadata().GetUid() != uid {
			return
		}
		scales[uid] = plan.ScaleOfSet(s)
		if up := object.ControllerOf(s); up.GetKind() == "Deployment" {
			if d, ok := c.Deployments.Lookup(namespace, up.GetName()); ok && d.GetMetadata().GetUid() == up.GetUid() {
				scales[uid] = plan.ScaleOfDeployment(d)
			}
		}
	case "ReplicationController":
		if rc, ok := c.ReplicationControllers.Lookup(namespace, owner.GetName()); ok && rc.GetMetadata().GetUid() == uid {
			scales[uid] = plan.ScaleOfReplicationController(rc)
		}
	case "StatefulSet":
		if s, ok := c.StatefulSets.Lookup(namespace, owner.GetName()); ok && s.GetMetadata().GetUid() == uid {
			scales[uid] = plan.ScaleOfStatefulSet(s)
		}
	case "DaemonSet":
		if s, ok := c.DaemonSets.Lookup(namespace, owner.GetName()); ok && s.GetMetadata().GetUid() == uid {
			scales[uid] = plan.ScaleOfDaemonSet(s)
		}
	case "Job":
		if j, ok := c.Jobs.Lookup(namespace, owner.GetName()); ok && j.GetMetadata().GetUid() == uid {
			scales[uid] = plan.ScaleOfJob(j)
		}
	}
}
