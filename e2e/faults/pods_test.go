package faults

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

func TestFaultsPodsOutliveTheirAgentAndComeBackWithTheirMachine(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	apply(t, c, guests(worker, "example.com/faults", 2))
	t.Cleanup(func() { sendHome(t, c) })
	c.SettleAll(patience)

	before, processes := restarts(podsOn(t, c, worker)), containers(t, c, worker)
	was := process(t, c, harness.Agent(worker))
	if err := c.Kill(harness.Agent(worker)); err != nil {
		t.Fatal(err)
	}
	c.Wait(patience, "another agent", func(context.Context) (bool, string, error) {
		list, err := c.Processes()
		return err == nil && slices.ContainsFunc(list, func(p harness.Process) bool {
			return p.Name == was.Name &&
				p.PID != was.PID
		}), "", err
	})
	// It is at work when it starts what is new.
	apply(t, c, fmt.Sprintf(onePod, "faults-later", worker))
	c.SettleAll(patience)
	late := func(p *schedulingv1.Pod) bool { return p.GetMetadata().GetName() == "faults-later" }
	now := slices.DeleteFunc(podsOn(t, c, worker), late)
	if got := restarts(now); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("after the end of their agent the pods and their restarts are %v, they were %v", got, before)
	}
	for _, p := range processes {
		if !slices.Contains(containers(t, c, worker), p) {
			t.Errorf("%s did not outlive its agent", p)
		}
	}

	before = restarts(podsOn(t, c, worker))
	boot := bootOf(t, c, worker)
	c.MustCLI("adm", "reboot", worker, "--reason", "to see pods come back", "--wait=false")
	c.Wait(patience, "another boot of "+worker, func(ctx context.Context) (bool, string, error) {
		n, err := node(ctx, c, worker)
		return err == nil && n.GetStatus().GetNodeInfo().GetBootId() != boot && harness.Ready(n), "", err
	})
	for name := range before {
		before[name]++
	}
	c.Wait(patience, "the pods to come back with one restart more", func(ctx context.Context) (bool, string, error) {
		list, err := c.Pods(ctx, "app=faults")
		got := restarts(list)
		for name, n := range got {
			if n != before[name] {
				return false, fmt.Sprintf("%v of %v", got, before), err
			}
		}
		return err == nil && len(got) == 4, fmt.Sprintf("%v of %v", got, before), err
	})
	c.SettleAll(patience)
	for _, p := range processes {
		if slices.Contains(containers(t, c, worker), p) {
			t.Errorf("%s outlived its machine", p)
		}
	}
}

const onePod = `apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {app: faults}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: hello-pod
    image: docker.io/ocpqe/hello-pod
`

// sendHome deletes the test's own pods.
func sendHome(t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.Wait(patience, "the test's pods to go", func(ctx context.Context) (bool, string, error) {
		list, err := c.Pods(ctx, "app=faults")
		for _, p := range list {
			if _, e := schedulingv1.NewPodServiceClient(c.Conn()).DeletePod(ctx, &schedulingv1.DeletePodRequest{
				Namespace: "default", Name: p.GetMetadata().GetName(),
			}); e != nil && !isGone(e) {
				err = e
			}
		}
		return err == nil && len(list) == 0, fmt.Sprintf("%d are there", len(list)), err
	})
}

// restarts returns how often each pod's containers were started again, by the pod's name and uid.
func restarts(pods []*schedulingv1.Pod) map[string]int {
	out := map[string]int{}
	for _, p := range pods {
		n := 0
		for _, s := range p.GetStatus().GetContainerStatuses() {
			n += int(s.GetRestartCount())
		}
		out[p.GetMetadata().GetName()+" "+p.GetMetadata().GetUid()] = n
	}
	return out
}

func containers(t *testing.T, c *harness.Cluster, machine string) []harness.Process {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	return harness.Containers(list, machine)
}

func process(t *testing.T, c *harness.Cluster, name string) harness.Process {
	t.Helper()
	var found harness.Process
	// A machine that is just being restarted has no agent for a moment.
	c.Wait(10*time.Second, "process "+name, func(context.Context) (bool, string, error) {
		list, err := c.Processes()
		i := slices.IndexFunc(list, func(p harness.Process) bool { return p.Name == name })
		if i >= 0 {
			found = list[i]
		}
		return i >= 0, "none", err
	})
	return found
}

func node(ctx context.Context, c *harness.Cluster, name string) (*nodev1.Node, error) {
	return nodev1.NewNodeServiceClient(c.Conn()).GetNode(ctx, &nodev1.GetNodeRequest{Name: name})
}

func bootOf(t *testing.T, c *harness.Cluster, name string) string {
	t.Helper()
	n, err := node(t.Context(), c, name)
	if err != nil {
		t.Fatal(err)
	}
	return n.GetStatus().GetNodeInfo().GetBootId()
}
