package api

import (
	"context"
	"fmt"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const simulatedNodes = 16

// simulatedWork is a set whose machines have a label, and pods that only their nodes can take.
const simulatedWork = `
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata: {name: simulated, namespace: openshift-machine-api}
spec:
  replicas: 16
  selector: {matchLabels: {set: simulated}}
  template:
    metadata: {labels: {set: simulated}}
    spec:
      metadata: {labels: {set: simulated}}
      providerSpec:
        value: {apiVersion: windlass.dev/v1, kind: SimulatedMachineProviderSpec, capacity: {cpu: 2, memory: 1Gi}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: simulated, namespace: default}
spec:
  replicas: 32
  selector: {matchLabels: {app: simulated}}
  template:
    metadata: {labels: {app: simulated}}
    spec:
      nodeSelector: {set: simulated}
      terminationGracePeriodSeconds: 1
      containers: [{name: hello, image: docker.io/ocpqe/hello-pod, resources: {requests: {cpu: 500m}}}]
`

// Machines of the simulated provider become nodes that run pods; some fall silent later, and all go with their set.
func TestSimulatedMachinesAreNodes(t *testing.T) {
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p := c.Provide("provider-simulated", "--create-time", "10ms-1s", "--silent", "0.5", "--silent-after", "30s-60s")
	c.Up("--set", "machine-api.peer=provider-simulated="+p.Address())
	c.Wait(time.Minute, "the provider to be known", func(context.Context) (bool, string, error) {
		r, err := c.Admin().CLI(simulatedWork, "apply", "-f", "-")
		return err == nil && r.Code == 0, r.Stderr, err
	})
	nodes := nodev1.NewNodeServiceClient(c.Conn())
	ready := func(ctx context.Context) (map[string]int, error) {
		list, err := nodes.ListNodes(ctx, &nodev1.ListNodesRequest{LabelSelector: "set=simulated"})
		states := map[string]int{}
		for _, n := range list.GetItems() {
			for _, condition := range n.GetStatus().GetConditions() {
				if condition.GetType() == "Ready" {
					states[condition.GetStatus()]++
				}
			}
		}
		return states, err
	}
	once := map[string]bool{} // the first may be silent before the last is ready
	c.Wait(time.Minute, "all nodes to be ready once", func(ctx context.Context) (bool, string, error) {
		list, err := nodes.ListNodes(ctx, &nodev1.ListNodesRequest{LabelSelector: "set=simulated"})
		for _, n := range list.GetItems() {
			if harness.Ready(n) {
				once[n.GetMetadata().GetName()] = true
			}
		}
		return len(once) == simulatedNodes, fmt.Sprintf("%d were", len(once)), err
	})
	c.Wait(time.Minute, "all pods to run", func(ctx context.Context) (bool, string, error) {
		list, err := schedulingv1.NewPodServiceClient(c.Conn()).ListPods(ctx, &schedulingv1.ListPodsRequest{
			Namespace: "default", LabelSelector: "app=simulated", FieldSelector: "status.phase=Running",
		})
		return len(list.GetItems()) == 2*simulatedNodes, fmt.Sprint(len(list.GetItems())), err
	})
	c.Wait(2*time.Minute, "about half of the nodes to be silent", func(ctx context.Context) (bool, string, error) {
		states, err := ready(ctx)
		return states["Unknown"] > 0 && states["True"] > 0, fmt.Sprint(states), err
	})
	c.MustCLI("delete", "deployment", "simulated")
	c.MustCLI("delete", "machineset", "simulated")
	c.Wait(3*time.Minute, "no machine, instance or node", func(ctx context.Context) (bool, string, error) {
		all, err := simulated(ctx, c)
		if err != nil {
			return false, "", err
		}
		n, _, err := instances(ctx, c)
		if err != nil {
			return false, "", err
		}
		states, err := ready(ctx)
		return len(all)+n+len(states) == 0, fmt.Sprintf("%d machines, %d instances, nodes %v", len(all), n, states), err
	})
}
