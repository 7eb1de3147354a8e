package controller

import (
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// ViewReplicaSet returns everything that a replica set is decided on, as it is known here now. So do the others for
// their kinds.
func (c *Controllers) ViewReplicaSet(set *schedulingv1.ReplicaSet) plan.ReplicasView {
	v := plan.ReplicaSetView(set, c.now())
	v.Pods, v.Related = claimable(c.Pods, set), c.related(set)
	return v
}

// ViewReplicationController is what a replication controller is decided on.
func (c *Controllers) ViewReplicationController(rc *schedulingv1.ReplicationController) plan.ReplicasView {
	v := plan.ReplicationControllerView(rc, c.now())
	v.Pods = claimable(c.Pods, rc)
	return v
}

// ViewDaemonSet is what a daemon set is decided on.
func (c *Controllers) ViewDaemonSet(set *schedulingv1.DaemonSet) plan.DaemonSetView {
	return plan.DaemonSetView{Now: c.now(), Set: set, Nodes: c.nodes.All(), Pods: claimable(c.Pods, set)}
}

// ViewJob is what a job is decided on.
func (c *Controllers) ViewJob(job *schedulingv1.Job) plan.JobView {
	return plan.JobView{Now: c.now(), Job: job, Pods: claimable(c.Pods, job)}
}

// ViewDeployment is what a deployment is decided on.
func (c *Controllers) ViewDeployment(d *schedulingv1.Deployment) plan.DeploymentView {
	return plan.DeploymentView{Now: c.now(), Deployment: d, Sets: claimable(c.ReplicaSets, d)}
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

// claimable returns the objects that an owner manages, and those of its namespace that nothing manages.
func claimable[T object.Object](t *resource.Table[T], owner object.Object) []T {
	m := owner.GetMetadata()
	return append(kinds.ManagedBy(t, m.GetNamespace(), m.GetUid()), kinds.Unmanaged(t, m.GetNamespace())...)
}
