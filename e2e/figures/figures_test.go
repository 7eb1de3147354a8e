// Package figures measures what docs/figures.md states: `make figures`. Nothing here is an assertion about time: hosts
// are noisy.
package figures

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// rounds is how often each thing is measured.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WINDLASS_FIGURES")
	if text == "" {
		t.Skip("measures and does not test: run `make figures`")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("WINDLASS_FIGURES=%q: must be a number of rounds", text)
	}
	return n
}

// figure is one thing measured several times.
type figure struct {
	what   string
	unit   string
	values []float64
}

func (f *figure) add(v float64) { f.values = append(f.values, v) }

func (f *figure) addTime(d time.Duration) {
	scale := map[string]time.Duration{"s": time.Second, "ms": time.Millisecond}[f.unit]
	f.add(float64(d) / float64(scale))
}

// quantile returns the value below which a part of the values are.
func (f *figure) quantile(part float64) float64 {
	s := slices.Sorted(slices.Values(f.values))
	return s[min(int(part*float64(len(s))), len(s)-1)]
}

// print writes the figure as a row of a table.
func (f *figure) print() {
	s := slices.Sorted(slices.Values(f.values))
	fmt.Printf("| %s | %.3g %s | %.3g %s | %d |\n", f.what, s[len(s)/2], f.unit, s[len(s)-1], f.unit, len(s))
}

func TestUp(t *testing.T) {
	first := figure{what: "`windlass up`, new cluster, to ready (five machines, pivot done, pods running)", unit: "s"}
	second := figure{what: "`windlass up`, second start", unit: "s"}
	for i := range rounds(t) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			start := time.Now()
			c := harness.Up(t)
			first.addTime(time.Since(start))
			c.Down()
			start = time.Now()
			c.Up()
			second.addTime(time.Since(start))
		})
	}
	first.print()
	second.print()
}

const (
	calm     = 70 * time.Second // after a minute without change clients ask etcd for its members less often
	idleSpan = 30 * time.Second // long beside every ticker of the programs
)

func TestIdle(t *testing.T) {
	n := rounds(t)
	c := harness.Up(t)
	c.Settle(time.Minute)
	time.Sleep(calm) // an idle cluster is one that has been idle
	memory := figure{what: "idle cluster, memory (proportional set size of all processes)", unit: "MB"}
	cpu := figure{what: "idle cluster, part of one core", unit: "%"}
	for range min(n, 3) {
		before := sum(t, c, cpuSeconds)
		start := time.Now()
		time.Sleep(idleSpan) // the measurement is what happens in this time
		cpu.add(100 * (sum(t, c, cpuSeconds) - before) / time.Since(start).Seconds())
		memory.add(sum(t, c, pssMB))
	}
	memory.print()
	cpu.print()
}

func sum(t *testing.T, c *harness.Cluster, f func(pid int) (float64, error)) float64 {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, p := range list {
		v, err := f(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		total += v
	}
	return total
}

func pssMB(pid int) (float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "Pss:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d: no proportional set size", pid)
}

func cpuSeconds(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, err // in ticks of 10 ms
}

func TestReplacement(t *testing.T) {
	n := rounds(t)
	c := harness.Up(t)
	total := figure{what: "control-plane machine deleted → gone, its replacement voting", unit: "s"}
	gap := figure{what: "longest gap of a guarded writer over REST during a replacement", unit: "ms"}
	for range n {
		c.Settle(time.Minute)
		victim := leader(t, c)
		w := startWriter(t, c)
		start := time.Now()
		c.DeleteMachine(victim)
		waitGone(t, c, victim)
		total.addTime(time.Since(start))
		gap.addTime(w.stop())
	}
	total.print()
	gap.print()
}

// TestReplacementUnderWrites replaces the leading control-plane machine while four clients create up to 200 sets a
// second, with a small database and with one of 180 MB.
func TestReplacementUnderWrites(t *testing.T) {
	n := rounds(t)
	for _, megabytes := range []int{0, 180} {
		t.Run(fmt.Sprintf("%dMB", megabytes), func(t *testing.T) {
			c := harness.Up(t)
			fill(t, c, megabytes)
			under := fmt.Sprintf("200 writes a second, %d MB more in the database: ", megabytes)
			total := figure{what: under + "control-plane machine deleted → gone", unit: "s"}
			gap := figure{what: under + "longest gap of a writer", unit: "ms"}
			for range n {
				c.Settle(2 * time.Minute)
				victim := leader(t, c)
				w := c.Write()
				start := time.Now()
				c.DeleteMachine(victim)
				waitGone(t, c, victim)
				total.addTime(time.Since(start))
				gap.addTime(w.LongestGap())
				w.Check()
			}
			total.print()
			gap.print()
		})
	}
}

// fill makes the database larger by keys that no service reads.
func fill(t *testing.T, c *harness.Cluster, megabytes int) {
	t.Helper()
	root, err := c.Root()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	q, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := root.Only(q.GetEndpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 1<<20)
	for i := range megabytes {
		if _, err := rand.Read(value); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), fmt.Sprintf("/figures/%d", i), string(value)); err != nil {
			t.Fatal(err)
		}
	}
}

// leader returns the machine of the member that leads: the harder case.
func leader(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	q, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range q.GetMembers() {
		if m.GetLeader() {
			return m.GetMachine().GetName()
		}
	}
	t.Fatal("no member leads")
	return ""
}

// waitGone waits until a watch says that a machine is gone.
func waitGone(t *testing.T, c *harness.Cluster, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		w, err := machinev1.NewMachineServiceClient(c.Conn()).WatchMachines(ctx, &machinev1.WatchMachinesRequest{
			FieldSelector: "metadata.name=" + name,
		})
		if err != nil {
			t.Fatal(err)
		}
		seen := false
		for {
			m, err := w.Recv()
			if err != nil {
				break // a stream may break while the quorum moves: watch again
			}
			for _, e := range m.GetEvents() {
				if e.GetType() == "DELETED" {
					return
				}
				seen = true
			}
			if m.GetBookmark() && !seen {
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("machine %s is still there", name)
		}
	}
}

func TestLatencies(t *testing.T) {
	n := 10 * rounds(t)
	c := harness.Up(t)
	c.Settle(time.Minute)
	measureWatch(t, c, n)
	withoutWorkloads(t, c)
	c.MustCLI("scale", "machineset", "workers", "--replicas=0")
	waitNoWorkers(t, c)
	measureDeletion(t, c, n/5)
}

func measureWatch(t *testing.T, c *harness.Cluster, n int) {
	f := figure{what: "Create returned → watch event at a client", unit: "ms"}
	sets := machinev1.NewMachineSetServiceClient(c.Conn())
	w, err := sets.WatchMachineSets(t.Context(), &machinev1.WatchMachineSetsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	arrived := make(chan time.Time, 16)
	go func() {
		for {
			m, err := w.Recv()
			if err != nil {
				return
			}
			for _, e := range m.GetEvents() {
				if e.GetType() == "ADDED" && strings.HasPrefix(e.GetObject().GetMetadata().GetName(), "figure-") {
					arrived <- time.Now()
				}
			}
		}
	}()
	for i := range n {
		set := &machinev1.MachineSet{
			Metadata: &metav1.ObjectMeta{Name: fmt.Sprintf("figure-%d", i)},
			Spec:     &machinev1.MachineSetSpec{Replicas: proto.Int32(0)},
		}
		if _, err := sets.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{MachineSet: set}); err != nil {
			t.Fatal(err)
		}
		returned := time.Now()
		f.addTime(max(0, (<-arrived).Sub(returned)))
	}
	f.print()
}

// withoutWorkloads removes the pods of the example, so that what is measured is not theirs.
func withoutWorkloads(t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.MustCLI("delete", "deployment/hello", "daemonset/watch")
	c.MustCLI("delete", "deployment", "beacon", "-n", "windlass-beacon")
	c.Wait(time.Minute, "the pods to go", func(ctx context.Context) (bool, string, error) {
		list, err := schedulingv1.NewPodServiceClient(c.Conn()).ListPods(ctx, &schedulingv1.ListPodsRequest{})
		return err == nil && len(list.GetItems()) == 0, fmt.Sprint(len(list.GetItems())), err
	})
}

func waitNoWorkers(t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.Wait(time.Minute, "the workers to go", func(ctx context.Context) (bool, string, error) {
		list, err := c.Machines(ctx, "worker")
		return len(list) == 0, fmt.Sprint(len(list)), err
	})
}

// measureDeletion deletes single machines: without a hook from the call to the end, and with one from its removal to
// the provider's order.
func measureDeletion(t *testing.T, c *harness.Cluster, n int) {
	gone := figure{what: "worker without hooks and pods: Delete called → Machine gone", unit: "ms"}
	asked := figure{what: "last hook removed → provider asked to delete", unit: "ms"}
	deleting := watchProvider(t, c)
	machines := machinev1.NewMachineServiceClient(c.Conn())
	for i := range n {
		plain := fmt.Sprintf("plain-%d", i)
		create(t, c, plain, false)
		start := time.Now()
		c.DeleteMachine(plain)
		waitGone(t, c, plain)
		gone.addTime(time.Since(start))
		<-deleting

		held := fmt.Sprintf("held-%d", i)
		create(t, c, held, true)
		c.DeleteMachine(held)
		c.Wait(time.Minute, held+" to wait for its hook", func(ctx context.Context) (bool, string, error) {
			m, err := c.Machine(ctx, held)
			for _, cond := range m.GetStatus().GetConditions() {
				if cond.GetType() == "Drained" && cond.GetStatus() == "True" {
					return true, "", err
				}
			}
			return false, "not drained", err
		})
		_, err := machines.PatchMachine(t.Context(), &machinev1.PatchMachineRequest{
			Namespace: harness.Namespace, Name: held,
			Patch: &httpbody.HttpBody{
				ContentType: "application/merge-patch+json", Data: []byte(`{"spec":{"lifecycleHooks":null}}`),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		returned := time.Now()
		asked.addTime(max(0, (<-deleting).Sub(returned)))
		waitGone(t, c, held)
	}
	asked.print()
	gone.print()
}

// create makes a single worker and waits until it runs.
func create(t *testing.T, c *harness.Cluster, name string, hook bool) {
	t.Helper()
	value, err := structpb.NewStruct(map[string]any{
		"apiVersion": "windlass.dev/v1", "kind": "LocalMachineProviderSpec",
		"zone": "rack-a",
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"machine.openshift.io/cluster-api-machine-role": "worker"},
		},
		Spec: &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: value}},
	}
	if hook {
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{PreTerminate: []*machinev1.LifecycleHook{
			{Name: "Figure", Owner: "figures"},
		}}
	}
	if _, err := machinev1.NewMachineServiceClient(c.Conn()).CreateMachine(t.Context(), &machinev1.CreateMachineRequest{
		Machine: m,
	}); err != nil {
		t.Fatal(err)
	}
	c.Wait(time.Minute, name+" to run", func(ctx context.Context) (bool, string, error) {
		m, err := c.Machine(ctx, name)
		return m.GetStatus().GetPhase() == "Running", m.GetStatus().GetPhase(), err
	})
}

// watchProvider returns when the provider was asked to delete an instance, one time for each.
func watchProvider(t *testing.T, c *harness.Cluster) <-chan time.Time {
	t.Helper()
	conn, err := c.Admin().Direct(topology.Port(topology.ProviderLocal))
	if err != nil {
		t.Fatal(err)
	}
	w, err := providerv1.NewProviderServiceClient(conn).WatchInstances(t.Context(), &providerv1.WatchInstancesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan time.Time, 64)
	go func() {
		for {
			m, err := w.Recv()
			if err != nil {
				return
			}
			if m.GetInstance().GetState() == "Deleting" && !m.GetDeleted() {
				out <- time.Now()
			}
		}
	}()
	return out
}
