// Package view brings what is stored into the form that placing works on.
package view

import (
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// Cluster returns some nodes and pods together with all stored selectors.
func Cluster(t *kinds.Tables, nodes []*nodev1.Node, pods []*schedulingv1.Pod) *plan.Cluster {
	c := plan.NewCluster()
	for _, n := range nodes {
		c.AddNode(n)
	}
	for o := range t.Services.Objects() {
		c.AddService(o)
	}
	for o := range t.ReplicationControllers.Objects() {
		c.AddReplicationController(o)
	}
	for o := range t.ReplicaSets.Objects() {
		c.AddReplicaSet(o)
	}
	for o := range t.StatefulSets.Objects() {
		c.AddStatefulSet(o)
	}
	for o := range t.Budgets.Objects() {
		c.AddBudget(o)
	}
	for o := range t.StorageClasses.Objects() {
		c.AddStorageClass(o)
	}
	for o := range t.Volumes.Objects() {
		c.AddVolume(o)
	}
	for o := range t.Claims.Objects() {
		c.AddClaim(o)
	}
	for _, pod := range pods {
		c.AddPod(pod)
	}
	return c
}

// Given returns nodes and pods together with the selectors of a request.
func Given(nodes []*nodev1.Node, pods []*schedulingv1.Pod, r *schedulingv1.ExplainPodRequest) *plan.Cluster {
	c := plan.NewCluster()
	for _, n := range nodes {
		c.AddNode(n)
	}
	for _, o := range r.GetServices() {
		c.AddService(o)
	}
	for _, o := range r.GetReplicationControllers() {
		c.AddReplicationController(o)
	}
	for _, o := range r.GetReplicaSets() {
		c.AddReplicaSet(o)
	}
	for _, o := range r.GetStatefulSets() {
		c.AddStatefulSet(o)
	}
	for _, o := range r.GetStorageClasses() {
		c.AddStorageClass(o)
	}
	for _, o := range r.GetVolumes() {
		c.AddVolume(o)
	}
	for _, o := range r.GetClaims() {
		c.AddClaim(o)
	}
	for _, o := range r.GetBudgets() {
		c.AddBudget(o)
	}
	for _, pod := range pods {
		c.AddPod(pod)
	}
	return c
}

// Profiles returns the policies in force, with the operator's limit of disks.
func Profiles(t *kinds.Tables) plan.Profiles {
	out := plan.Policies(t.Policies.All())
	for name, p := range out {
		out[name] = plan.Limited(p, t.MaxDisks())
	}
	return out
}
