package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/scheduler/kinds"
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
	p := plan.DaemonSet(c.ViewDaemonSet(set))
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.DaemonSets, set, c.Pods, p.Adopt, p.Release)
	}
	c.tell(set, p.Tell...)
	_, err := c.carryOut(ctx, set, p.Create, p.Delete)
	return p.Wake,
		errors.Join(err, writeStatus(ctx, c.DaemonSets, set, func(next *schedulingv1.DaemonSet) { next.Status = p.Status }))
}

func (c *Controllers) reconcileJob(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	job, ok := c.Jobs.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	p := plan.Job(c.ViewJob(job))
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.Jobs, job, c.Pods, p.Adopt, p.Release)
	}
	if _, err := c.carryOut(ctx, job, p.Create, p.Delete); err != nil {
		return time.Time{}, err
	}
	if p.Remove {
		_, err := c.Jobs.Delete(ctx, k.Namespace, k.Name, &metav1.Preconditions{Uid: job.GetMetadata().GetUid()})
		return time.Time{}, rpcerr.IgnoreChanged(err)
	}
	err := write(ctx, c.Jobs, job, plan.JobAfter(job, p))
	if err == nil {
		c.tell(job, p.Tell...)
	}
	return p.Wake, err
}

func (c *Controllers) reconcileDeployment(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	d, ok := c.Deployments.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	p := plan.Deployment(c.ViewDeployment(d))
	if len(p.Adopt)+len(p.Release) > 0 {
		return c.now(), transfer(ctx, c.Deployments, d, c.ReplicaSets, p.Adopt, p.Release)
	}
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
		c.tell(d, plan.SetFailed(name, status.Convert(err).Message()))
		return false, fmt.Errorf("create replica set %q: %w", name, err)
	}
	c.tellScaled(ctx, d, ch)
	return false, nil
}

// changeSets changes and removes the replica sets of a deployment. It is not done if one of them changed since:
// that brings the deployment back.
func (c *Controllers) changeSets(ctx context.Context, d *schedulingv1.Deployment, p plan.DeploymentPlan) (done bool,
	err error,
) {
	for _, ch := range p.Update {
		if _, err := c.ReplicaSets.Update(ctx, ch.Set); err != nil {
			return false, rpcerr.IgnoreChanged(err)
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
