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
	for _, pod := range pods {
		c.AddPod(pod)
	}
	return c
}

// Profile returns the policy in force.
func Profile(t *kinds.Tables) *plan.Profile {
	policy, _ := t.Policies.Lookup("", t.Policies.Type().GetSingleton())
	return plan.Policy(policy)
}
