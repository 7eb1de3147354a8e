package figures

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// full is how many pods a node takes.
const full = 110

// crowd has as many pods run on a node as are left of full.
const crowd = `apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: %d
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %s}
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        command: [/bin/sleep, "100000"]
`

// TestFullNode measures the agent of a node with 110 pods: what it needs while nothing happens, and how soon its
// successor has taken all of them over.
func TestFullNode(t *testing.T) {
	n := min(rounds(t), 5)
	c := harness.Up(t)
	c.Settle(time.Minute)
	withoutWorkloads(t, c)
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	there := ofNode(t, c, worker)
	cli(t, c, fmt.Sprintf(crowd, full-len(there), worker))
	c.Wait(3*time.Minute, fmt.Sprintf("%d pods on %s", full, worker), func(context.Context) (bool, string, error) {
		list := ofNode(t, c, worker)
		ready := 0
		for _, p := range list {
			if readyPod(p) {
				ready++
			}
		}
		return ready == full, fmt.Sprintf("%d of %d are ready", ready, len(list)), nil
	})
	memory := figure{what: "agent of a node with 110 pods: memory (proportional set size)", unit: "MB"}
	cpu := figure{what: "the same: part of one core while nothing happens", unit: "%"}
	taken := figure{
		what: "the same: killed → all pods taken over (one of them runs a command), none restarted",
		unit: "ms",
	}
	before := restartsOf(ofNode(t, c, worker))
	pod := ofNode(t, c, worker)
	i := slices.IndexFunc(pod, func(p *schedulingv1.Pod) bool { return p.GetMetadata().GetLabels()["app"] == "crowd" })
	name := pod[i].GetMetadata().GetName()
	time.Sleep(10 * time.Second) // an idle agent is one that has been idle
	for range n {
		agent := processOf(t, c, harness.Agent(worker))
		spent, start := seconds(t, agent), time.Now()
		time.Sleep(idleSpan) // the measurement is what happens in this time
		cpu.add(100 * (seconds(t, agent) - spent) / time.Since(start).Seconds())
		mb, err := pssMB(agent)
		if err != nil {
			t.Fatal(err)
		}
		memory.add(mb)
		if err := c.Kill(harness.Agent(worker)); err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		for c.CLI("exec", name, "--", "/bin/true").Code != 0 {
			if time.Since(start) > time.Minute {
				t.Fatal("no command runs in a pod of the next agent")
			}
		}
		taken.addTime(time.Since(start))
		if now := restartsOf(ofNode(t, c, worker)); now != before {
			t.Errorf("%d restarts, %d before", now, before)
		}
	}
	memory.print()
	cpu.print()
	taken.print()
}

func ofNode(t *testing.T, c *harness.Cluster, node string) []*schedulingv1.Pod {
	t.Helper()
	list, err := schedulingv1.NewPodServiceClient(c.Conn()).ListPods(t.Context(), &schedulingv1.ListPodsRequest{
		FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.GetItems()
}

func readyPod(p *schedulingv1.Pod) bool {
	return slices.ContainsFunc(p.GetStatus().GetConditions(), func(c *schedulingv1.PodCondition) bool {
		return c.GetType() == "Ready" && c.GetStatus() == "True"
	})
}

func restartsOf(pods []*schedulingv1.Pod) (n int32) {
	for _, p := range pods {
		for _, s := range p.GetStatus().GetContainerStatuses() {
			n += s.GetRestartCount()
		}
	}
	return n
}
