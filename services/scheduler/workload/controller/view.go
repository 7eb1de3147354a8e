package controller

import (
	"slices"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/spans"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// ViewReplicaSet returns everything that a replica set is decided on, as it is known here now. So do the others for
// their kinds.
func (c *Controllers) ViewReplicaSet(set *schedulingv1.ReplicaSet) plan.ReplicasView {
	v := plan.ReplicaSetView(set, c.now())
	v.Clock = c.clockOf(set, v.Now)
	v.Pods, v.Related, v.Deaths = claimable(c.Pods, set), c.related(set), c.deaths.of(set, v.Now)
	return v
}

// ViewReplicationController is what a replication controller is decided on.
func (c *Controllers) ViewReplicationController(rc *schedulingv1.ReplicationController) plan.ReplicasView {
	v := plan.ReplicationControllerView(rc, c.now())
	v.Clock = c.clockOf(rc, v.Now)
	v.Pods, v.Deaths = claimable(c.Pods, rc), c.deaths.of(rc, v.Now)
	return v
}

// ViewStatefulSet is what a stateful set is decided on.
func (c *Controllers) ViewStatefulSet(set *schedulingv1.StatefulSet) plan.StatefulSetView {
	v := plan.StatefulSetView{Now: c.now(), Set: set, Pods: claimable(c.Pods, set), Revisions: claimable(c.Revisions, set)}
	for _, t := range set.GetSpec().GetVolumeClaimTemplates() {
		k := object.KeyOf(set)
		k.Name = t.GetMetadata().GetName() + "-" + k.Name
		v.Claims = append(v.Claims, c.Claims.ByIndex(kinds.NumberedAs, k.String())...)
	}
	v.Clock, v.Deaths = c.clockOf(set, v.Now), c.deaths.of(set, v.Now)
	return v
}

// ViewDaemonSet is what a daemon set is decided on.
func (c *Controllers) ViewDaemonSet(set *schedulingv1.DaemonSet) plan.DaemonSetView {
	v := plan.DaemonSetView{Now: c.now(), Set: set, Nodes: c.nodes.All(), Pods: claimable(c.Pods, set)}
	v.Revisions = claimable(c.Revisions, set)
	v.Clock, v.Deaths = c.clockOf(set, v.Now), c.deaths.byNode(set, v.Now)
	return v
}

// ViewJob is what a job is decided on.
func (c *Controllers) ViewJob(job *schedulingv1.Job) plan.JobView {
	v := plan.JobView{Now: c.now(), Job: job, Pods: claimable(c.Pods, job)}
	for _, pod := range c.departed.of(job.GetMetadata().GetUid()) {
		if plan.SelectorMatches(plan.JobSelector(job), pod.GetMetadata().GetLabels()) { // else it would be released
			v.Pods = append(v.Pods, pod)
		}
	}
	v.Clock, v.Deaths = c.clockOf(job, v.Now), c.deaths.of(job, v.Now)
	return v
}

// ViewCronJob is what a cron job is decided on.
func (c *Controllers) ViewCronJob(cron *schedulingv1.CronJob) plan.CronJobView {
	m := cron.GetMetadata()
	return plan.CronJobView{
		Now: c.now(), CronJob: cron, Jobs: kinds.ManagedBy(c.Jobs, m.GetNamespace(), m.GetUid()),
		Named: func(name string) *schedulingv1.Job {
			job, _ := c.Jobs.Lookup(m.GetNamespace(), name)
			return job
		},
	}
}

// ViewDeployment is what a deployment is decided on.
func (c *Controllers) ViewDeployment(d *schedulingv1.Deployment) plan.DeploymentView {
	v := plan.DeploymentView{Now: c.now(), Deployment: d, Sets: claimable(c.ReplicaSets, d)}
	v.Clock = c.clockOf(d, v.Now)
	return v
}

// ViewBudget is what a disruption budget is decided on. pods are those of its namespace; nil means those that are known
// here.
func (c *Controllers) ViewBudget(b *schedulingv1.PodDisruptionBudget, pods []*schedulingv1.Pod) plan.BudgetView {
	ns := b.GetMetadata().GetNamespace()
	if pods == nil {
		pods = slices.Collect(c.Pods.In(ns))
	}
	v := plan.BudgetView{Now: c.now(), Budget: b, Pods: pods, Scales: map[string]plan.Scale{}}
	for _, pod := range v.Pods {
		if owner := placement.ControllerOf(pod); owner != nil {
			if _, known := v.Scales[owner.GetUid()]; !known {
				c.addScale(v.Scales, ns, owner)
			}
		}
	}
	return v
}

// clockOf measures the waits of an owner.
func (c *Controllers) clockOf(owner object.Object, now time.Time) spans.Clock {
	return c.spans.Clock(spansOf(owner), now)
}

// keep notes what an owner waits for; see controller.Spans.
func (c *Controllers) keep(owner object.Object, states spans.Seen, now time.Time) {
	c.spans.Keep(spansOf(owner), states, now)
}

// spansOf names an owner: another one of its name has another uid.
func spansOf(owner object.Object) string { return owner.GetMetadata().GetUid() }

// claimable returns the objects that an owner manages, and those of its namespace that nothing manages.
func claimable[T object.Object](t *resource.Table[T], owner object.Object) []T {
	m := owner.GetMetadata()
	return append(kinds.ManagedBy(t, m.GetNamespace(), m.GetUid()), kinds.Unmanaged(t, m.GetNamespace())...)
}
