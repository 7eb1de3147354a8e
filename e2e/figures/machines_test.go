package figures

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// machineSetOf is a set of machines of the simulated provider, with a hook each.
const machineSetOf = `
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata: {name: fleet, namespace: openshift-machine-api}
spec:
  replicas: %d
  selector: {matchLabels: {set: fleet}}
  template:
    metadata: {labels: {set: fleet}}
    spec:
      lifecycleHooks: {preTerminate: [{name: Figure, owner: figure-owner}]}
      providerSpec: {value: {apiVersion: windlass.dev/v1, kind: SimulatedMachineProviderSpec}}
`

const fleetPatience = 15 * time.Minute

// TestMachines measures machines whose nodes never join, and TestMachinesWithNodes those whose nodes all do.
func TestMachines(t *testing.T)          { growAndShrink(t, "1", "Provisioned", 500, 1000, 5000) }
func TestMachinesWithNodes(t *testing.T) { growAndShrink(t, "0", "Running", 500, 1000) }

// growAndShrink has a set of the simulated provider grow to these sizes and deletes a fifth of its machines each time,
// each with a hook that is completed. It measures the processor time of machine-api for each, and its memory.
func growAndShrink(t *testing.T, absent, phase string, sizes ...int) {
	t.Helper()
	rounds(t)
	c := harness.Up(t)
	c.Settle(time.Minute)
	p := c.Provide("provider-simulated", "--create-time", "100ms-1s", "--delete-time", "100ms", "--absent", absent)
	c.Up("--set", "machine-api.peer=provider-simulated="+p.Address())
	c.Settle(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	var owner sync.WaitGroup
	owner.Go(func() { complete(ctx, c) })
	defer owner.Wait()
	defer cancel()
	have := 0
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			pid := processOf(t, c, "machine-api")
			before, began := seconds(t, pid), time.Now()
			cli(t, c, fmt.Sprintf(machineSetOf, n))
			waitFleet(t, c, n, phase)
			made := seconds(t, pid)
			t.Logf("| %d to %d machines in %.0f s: processor time of machine-api for each | %.1f ms |", have, n,
				time.Since(began).Seconds(), 1000*(made-before)/float64(n-have))
			began = time.Now()
			cli(t, c, fmt.Sprintf(machineSetOf, n-n/5))
			waitFleet(t, c, n-n/5, phase)
			t.Logf("| %d of them deleted in %.0f s: for each | %.1f ms |", n/5, time.Since(began).Seconds(),
				1000*(seconds(t, pid)-made)/float64(n/5))
			t.Logf("| memory of machine-api with %d machines: most | %.0f MB |", n, statusMB(t, pid, "VmHWM:"))
			have = n - n/5
		})
	}
}

func seconds(t *testing.T, pid int) float64 {
	t.Helper()
	s, err := cpuSeconds(pid)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// processOf returns the number of a service's process.
func processOf(t *testing.T, c *harness.Cluster, name string) int {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == name || strings.HasSuffix(p.Name, "/"+name) {
			return p.PID
		}
	}
	t.Fatalf("no process of %s among %v", name, list)
	return 0
}

func cli(t *testing.T, c *harness.Cluster, doc string) {
	t.Helper()
	c.Wait(time.Minute, "the set to be applied", func(context.Context) (bool, string, error) {
		r, err := c.Admin().CLI(doc, "apply", "-f", "-")
		return err == nil && r.Code == 0, r.Stderr, err
	})
}

// waitFleet waits until there are n machines with an instance that runs, and no others. It reads the set, not all
// machines, so that it costs machine-api little.
func waitFleet(t *testing.T, c *harness.Cluster, n int, phase string) {
	t.Helper()
	machines := machinev1.NewMachineServiceClient(c.Conn())
	c.Wait(fleetPatience, fmt.Sprintf("%d machines", n), func(ctx context.Context) (bool, string, error) {
		set, err := machinev1.NewMachineSetServiceClient(c.Conn()).GetMachineSet(ctx, &machinev1.GetMachineSetRequest{
			Namespace: harness.Namespace, Name: "fleet",
		})
		if err != nil || int(set.GetStatus().GetReplicas()) != n {
			return false, fmt.Sprint(set.GetStatus().GetReplicas()), err
		}
		list, err := machines.ListMachines(ctx, &machinev1.ListMachinesRequest{
			Namespace: harness.Namespace, LabelSelector: "set=fleet",
		})
		have := 0
		for _, m := range list.GetItems() {
			if m.GetStatus().GetPhase() == phase {
				have++
			}
		}
		time.Sleep(3 * time.Second) // each look costs machine-api some processor time, which is not to be measured
		return have == n && len(list.GetItems()) == n, fmt.Sprintf("%d of %d", have, len(list.GetItems())), err
	})
}

// complete completes the hooks of the fleet until ctx ends.
func complete(ctx context.Context, c *harness.Cluster) {
	tasks := hookv1.NewHookTaskServiceClient(c.Conn())
	for ctx.Err() == nil {
		stream, err := tasks.StreamHookTasks(ctx, &hookv1.StreamHookTasksRequest{Owners: []string{"figure-owner"}})
		for err == nil {
			var r *hookv1.StreamHookTasksResponse
			if r, err = stream.Recv(); err == nil && r.GetTask() != nil && !r.GetGone() &&
				r.GetTask().GetStatus().GetPhase() == "Pending" {
				_, err = tasks.CompleteHookTask(ctx, &hookv1.CompleteHookTaskRequest{Name: r.GetTask().GetMetadata().GetName()})
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}
