package faults

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/identity"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// fleetDocument is a set of simulated machines with a hook at each point, and a pod for each.
const fleetDocument = `
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata: {name: fleet, namespace: openshift-machine-api}
spec:
  replicas: %[1]d
  selector: {matchLabels: {set: fleet}}
  template:
    metadata: {labels: {set: fleet}}
    spec:
      metadata: {labels: {set: fleet}}
      lifecycleHooks:
        preDrain: [{name: CheckWork, owner: my-backup-controller}]
        preTerminate: [{name: BackupFileSystem, owner: my-backup-controller}]
      providerSpec: {value: {apiVersion: windlass.dev/v1, kind: SimulatedMachineProviderSpec}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: fleet, namespace: default}
spec:
  replicas: %[1]d
  selector: {matchLabels: {app: fleet}}
  template:
    metadata: {labels: {app: fleet}}
    spec:
      nodeSelector: {set: fleet}
      terminationGracePeriodSeconds: 1
      containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
`

const (
	preDrain     = "PreDrain" // as tasks have it
	preTerminate = "PreTerminate"
)

// fleetPatience is for one step of a deletion of all machines: a program that was killed several times in a row is
// started later each time.
const fleetPatience = 3 * time.Minute

// stages are the steps of a machine's deletion, each with the programs that are killed in an ordinary run.
var stages = []struct {
	name   string
	killed []string
}{
	{"preDrain hooks", []string{"machine-api", "hook-broker"}},
	{"drain", []string{"machine-api"}},
	{"between drain and instance deletion", []string{"machine-api", "hook-broker"}},
	{"preTerminate hooks", []string{"hook-broker"}},
	{"instance deletion", []string{"machine-api"}},
	{"node removal", []string{"machine-api", "hook-broker"}},
}

// Machines of a fleet are deleted and replaced while machine-api and hook-broker are killed at each step of the
// deletions.
func TestFaultsKillsDuringTheDeletionOfAFleet(t *testing.T) {
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p := c.Provide("provider-simulated", "--call-time", "1ms-20ms", "--create-time", "10ms-500ms", "--delete-time",
		"500ms-3s")
	c.Up("--set", "machine-api.peer=provider-simulated="+p.Address())
	if os.Getenv("WINDLASS_FAULTS") != "all" {
		replaceFleet(t, c, p, 30, nil)
		return
	}
	for _, only := range [][]string{nil, {"machine-api"}, {"hook-broker"}, {"machine-api", "hook-broker"}} {
		t.Run(fmt.Sprintf("%v", only), func(t *testing.T) { replaceFleet(t, c, p, 400, only) })
	}
}

// replaceFleet deletes n machines, which their set replaces, and kills these programs at each stage; nil means those of
// the stages.
func replaceFleet(t *testing.T, c *harness.Cluster, p *harness.Provider, n int, only []string) {
	t.Helper()
	for _, program := range []string{"machine-api", "hook-broker"} {
		process(t, c, program) // a wrong name would kill no program
	}
	f := newFleet(t, c, p, n)
	record := c.Record()
	c.MustCLI("delete", "machines", "-l", "set=fleet", "--wait=false")
	for _, s := range stages {
		f.reach(s.name)
		for _, program := range s.killed {
			if only != nil && !slices.Contains(only, program) {
				continue
			}
			t.Logf("%s: %s: kill -9 %s", time.Now().Format("15:04:05.000"), s.name, program)
			if err := c.Kill(program); err != nil {
				t.Error(err)
			}
		}
	}
	f.settle()
	for _, fault := range harness.BrokenDeletions(record.Steps()) {
		t.Error(fault)
	}
	f.check()
}

// fleet is n machines of the simulated provider whose hooks the test completes.
type fleet struct {
	t         *testing.T
	c         *harness.Cluster
	n         int
	tasks     hookv1.HookTaskServiceClient
	instances providerv1.ProviderServiceClient
	old       map[string]string // name by uid, of the machines that are deleted

	mu        sync.Mutex
	released  map[string]bool            // points whose tasks are completed
	seen      map[string]map[string]bool // points that had a task, by uid of the machine
	completed map[string]map[string]bool // points whose task the owner has completed, by uid
	faults    []string
}

// newFleet returns when all machines of a fleet run and all its pods do.
func newFleet(t *testing.T, c *harness.Cluster, p *harness.Provider, n int) *fleet {
	t.Helper()
	cfg, err := c.Admin().Files().ClientTLS("")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+p.Address(), grpc.WithTransportCredentials(credentials.NewTLS(
		identity.WithURI(cfg, identity.ServiceURI("provider-simulated")))))
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{
		t: t, c: c, n: n, tasks: hookv1.NewHookTaskServiceClient(c.As(ownerName).Conn()),
		instances: providerv1.NewProviderServiceClient(conn), old: map[string]string{}, released: map[string]bool{},
		seen: map[string]map[string]bool{}, completed: map[string]map[string]bool{},
	}
	c.Wait(fleetPatience, "the provider to be known", func(context.Context) (bool, string, error) {
		r, err := c.Admin().CLI(fmt.Sprintf(fleetDocument, n), "apply", "-f", "-")
		return err == nil && r.Code == 0, r.Stderr, err
	})
	f.settle()
	for _, m := range f.machines() {
		f.old[m.GetMetadata().GetUid()] = m.GetMetadata().GetName()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			f.answer(ctx)
			pause(ctx, 100*time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		conn.Close()
	})
	return f
}

// machines returns the fleet as the API shows it.
func (f *fleet) machines() []*machinev1.Machine {
	f.t.Helper()
	var all []*machinev1.Machine
	f.c.Wait(fleetPatience, "a list of the machines", func(ctx context.Context) (bool, string, error) {
		list, err := machinev1.NewMachineServiceClient(f.c.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{
			Namespace: harness.Namespace, LabelSelector: "set=fleet",
		})
		all = list.GetItems()
		return err == nil, "", err
	})
	return all
}

// settle returns when there are n machines that run, with an instance and a ready node each, and nothing else.
func (f *fleet) settle() {
	f.t.Helper()
	f.c.Wait(fleetPatience, "the fleet to settle", func(ctx context.Context) (bool, string, error) {
		running := 0
		all := f.machines()
		for _, m := range all {
			if m.GetStatus().GetPhase() == "Running" && m.GetMetadata().GetDeletionTimestamp() == nil {
				running++
			}
		}
		instances, err := f.instances.ListInstances(ctx, &providerv1.ListInstancesRequest{})
		if err != nil {
			return false, "", err
		}
		nodes, err := nodev1.NewNodeServiceClient(f.c.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{
			LabelSelector: "set=fleet",
		})
		if err != nil {
			return false, "", err
		}
		drains, err := nodev1.NewDrainServiceClient(f.c.Conn()).ListDrains(ctx, &nodev1.ListDrainsRequest{})
		n := f.n
		return err == nil && running == n && len(all) == n && len(instances.GetInstances()) == n &&
				len(nodes.GetItems()) == n && len(drains.GetItems()) == 0,
			fmt.Sprintf("%d machines, %d Running, %d instances, %d nodes, %d drains", len(all), running,
				len(instances.GetInstances()), len(nodes.GetItems()), len(drains.GetItems())), err
	})
}

// reach returns when the deletions are at a stage.
func (f *fleet) reach(stage string) {
	f.t.Helper()
	f.c.Wait(fleetPatience, "the stage "+stage, func(ctx context.Context) (bool, string, error) {
		gone, drained, undrained := len(f.old), 0, 0
		for _, m := range f.machines() {
			if f.old[m.GetMetadata().GetUid()] == "" {
				continue
			}
			gone--
			for _, c := range m.GetStatus().GetConditions() {
				if c.GetType() == "Drained" && c.GetStatus() == "True" {
					drained++
				} else if c.GetType() == "Drained" {
					undrained++
				}
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		saw := fmt.Sprintf("%d of %d gone, %d drained, %d to be drained; tasks %d and %d, completed %d and %d", gone,
			len(f.old), drained, undrained, count(f.seen, preDrain), count(f.seen, preTerminate), count(f.completed, preDrain),
			count(f.completed, preTerminate))
		switch stage {
		case "preDrain hooks":
			f.released[preDrain] = count(f.seen, preDrain) == len(f.old)
			return count(f.completed, preDrain) > len(f.old)/4, saw, nil
		case "drain":
			return drained > 0, saw, nil
		case "between drain and instance deletion":
			return drained == len(f.old), saw, nil
		case "preTerminate hooks":
			f.released[preTerminate] = count(f.seen, preTerminate) == len(f.old)
			return count(f.completed, preTerminate) > len(f.old)/4, saw, nil
		case "instance deletion":
			list, err := f.instances.ListInstances(ctx, &providerv1.ListInstancesRequest{})
			return slices.ContainsFunc(list.GetInstances(), func(i *providerv1.Instance) bool {
				return i.GetState() == "Deleting"
			}), saw, err
		case "node removal":
			return gone > 0, saw, nil
		}
		return false, "", fmt.Errorf("no stage %q", stage)
	})
}

// count returns how many machines are at a point.
func count(points map[string]map[string]bool, point string) int {
	n := 0
	for _, of := range points {
		if of[point] {
			n++
		}
	}
	return n
}

// answer notes all tasks of the fleet and completes those of released points.
func (f *fleet) answer(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := hookv1.NewHookTaskServiceClient(f.c.Conn()).ListHookTasks(limited, &hookv1.ListHookTasksRequest{})
	if err != nil {
		return // hook-broker was killed
	}
	var group errgroup.Group
	group.SetLimit(8)
	for _, task := range list.GetItems() {
		uid, point := task.GetSpec().GetMachineRef().GetUid(), task.GetSpec().GetPoint()
		f.mu.Lock()
		if f.seen[uid] == nil {
			f.seen[uid], f.completed[uid] = map[string]bool{}, map[string]bool{}
		}
		f.seen[uid][point] = true
		due := f.released[point] && task.GetStatus().GetPhase() != "Completed"
		f.mu.Unlock()
		if due {
			group.Go(func() error { f.complete(limited, task); return nil })
		}
	}
	_ = group.Wait() // it returns no error
}

// complete completes a task. The instance must exist until then.
func (f *fleet) complete(ctx context.Context, task *hookv1.HookTask) {
	uid, point := task.GetSpec().GetMachineRef().GetUid(), task.GetSpec().GetPoint()
	f.mu.Lock()
	again := f.completed[uid][point]
	f.mu.Unlock()
	_, err := f.instances.GetInstance(ctx, &providerv1.GetInstanceRequest{RequestToken: uid})
	if status.Code(err) == codes.NotFound && !again {
		f.mu.Lock()
		f.faults = append(f.faults, fmt.Sprintf("machine %s had no instance before its %s hook was completed",
			task.GetSpec().GetMachineRef().GetName(), point))
		f.mu.Unlock()
	}
	if err != nil {
		return
	}
	// Before the call: its answer may be lost.
	f.mu.Lock()
	f.completed[uid][point] = true
	f.mu.Unlock()
	// again later
	_, _ = f.tasks.CompleteHookTask(ctx, &hookv1.CompleteHookTaskRequest{Name: task.GetMetadata().GetName()})
}

// check fails the test if a hook was skipped, or an instance deleted before its hooks were completed.
func (f *fleet) check() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.faults {
		f.t.Error(fault)
	}
	for uid, name := range f.old {
		for _, point := range []string{preDrain, preTerminate} {
			if !f.completed[uid][point] {
				f.t.Errorf("machine %s is gone, and its owner never completed its %s hook", name, point)
			}
		}
	}
	f.t.Logf("%d machines were replaced", len(f.old))
}
