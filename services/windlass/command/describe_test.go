package command_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/trace"
	"github.com/windlass-dev/windlass/services/windlass/command"
)

const namespace = "openshift-machine-api"

// leaving puts a machine into the world that is being deleted and waits for its two hooks, one of which has a task that
// its owner has claimed.
func (w *world) leaving(t *testing.T) *machinev1.Machine {
	t.Helper()
	_, err := w.machines.Create(t.Context(), &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Name: "a", Namespace: namespace, Finalizers: []string{"example.com/hold"},
			Labels: map[string]string{"team": "web"},
		},
		Spec: &machinev1.MachineSpec{
			LifecycleHooks: &machinev1.LifecycleHooks{
				PreDrain:     []*machinev1.LifecycleHook{{Name: "MigrateApp", Owner: "my-app"}},
				PreTerminate: []*machinev1.LifecycleHook{{Name: "Backup", Owner: "my-backup"}},
			},
			Taints: []*nodev1.Taint{{Key: "dedicated", Value: proto.String("db"), Effect: "NoSchedule"}},
		},
	})
	check(t, err)
	m, err := w.machines.Modify(t.Context(), object.Key{Namespace: namespace, Name: "a"},
		func(m *machinev1.Machine) error {
			m.Status = &machinev1.MachineStatus{
				Phase: proto.String("Deleting"), NodeRef: &metav1.ObjectReference{Kind: "Node", Name: "node-a"},
				Deletion: &machinev1.MachineDeletion{Trigger: "User", RequestedBy: "ada", Reason: "its disk is slow"},
				Conditions: []*metav1.Condition{
					{
						Type: "Drainable", Status: "False", Severity: "Warning", Reason: proto.String("HookPresent"),
						Message: proto.String("held"), LastTransitionTime: timestamppb.Now(),
					},
				},
			}
			return nil
		})
	check(t, err)
	_, err = w.machines.Delete(t.Context(), namespace, "a", nil)
	check(t, err)
	_, err = w.tasks.Create(t.Context(), &hookv1.HookTask{
		Metadata: &metav1.ObjectMeta{Name: "task-1"},
		Spec: &hookv1.HookTaskSpec{
			MachineRef: object.Reference(m), Point: "PreDrain", HookName: "MigrateApp",
			Owner: "my-app",
		},
	})
	check(t, err)
	_, err = w.tasks.Modify(t.Context(), object.Key{Name: "task-1"}, func(task *hookv1.HookTask) error {
		task.Status = &hookv1.HookTaskStatus{
			Phase: proto.String("Claimed"), ClaimedBy: proto.String("alice"),
			ClaimTime: timestamppb.New(time.Now().Add(-5 * time.Minute)), Message: proto.String("half done"),
			Conditions: []*metav1.Condition{{Type: "Overdue", Status: "True"}},
		}
		return nil
	})
	check(t, err)
	return m
}

func wantLines(t *testing.T, text string, want ...string) {
	t.Helper()
	rest := text
	for _, line := range want {
		_, after, ok := strings.Cut(rest, line)
		if !ok {
			t.Fatalf("%q is missing, or not in this place, in\n%s", line, text)
		}
		rest = after
	}
}

func TestDescribeTellsEverythingAboutAMachine(t *testing.T) {
	w := newWorld(t)
	m := w.leaving(t)
	w.recorder.Event(m, "Warning", "HookWaits", "my-app has not answered yet")
	w.recorder.Event(m, "Normal", "Deleting", "a user requested it")
	w.awaitEvents(t, 2)
	code, out, stderr := w.run(t, "", "describe", "machine", "a")
	if code != 0 {
		t.Fatal(stderr)
	}
	wantLines(t, out,
		"Name:               a\n", "Namespace:          "+namespace, "Labels:             team=web\n",
		"Annotations:        <none>\n", "Created:            20", "Deleting since:     20",
		"Finalizers:         example.com/hold\n", "Phase:              Deleting\n", "Waiting for:",
		"Deletion:           requested by User ada, <none>: its disk is slow\n",
		"Node:               node-a\n", "Node taints:        dedicated=db:NoSchedule\n",
		"Lifecycle Hooks:\n", "  POINT          NAME         OWNER\n", "  PreDrain       MigrateApp   my-app\n",
		"  PreTerminate   Backup       my-backup\n",
		"Hook Tasks:\n", "task-1   MigrateApp   Claimed (overdue)   alice        half done\n",
		"Conditions:\n", "  Drainable   False    Warning    HookPresent", "Events:\n", "Warning   HookWaits",
		"my-app has not answered yet\n",
	)
	if code, prefix, _ := w.run(t, "", "describe", "machines"); code != 0 ||
		!strings.Contains(prefix, "Name:               a\n") {
		t.Errorf("all machines: %d\n%s", code, prefix)
	}
	if code, _, stderr := w.run(t, "", "describe", "machine", "b"); code != 1 ||
		!strings.Contains(stderr, `Machine "b" not found`) {
		t.Errorf("another machine: %d\n%s", code, stderr)
	}
}

func TestDescribeShowsTheTraceOfEachEvent(t *testing.T) {
	w := newWorld(t)
	m := w.leaving(t)
	w.recorder.Event(m, "Normal", "Waiting", "before the deletion")
	w.awaitEvents(t, 1)
	if _, out, _ := w.run(t, "", "describe", "machine", "a"); strings.Contains(out, "TRACE") {
		t.Errorf("a column of traces where there is none:\n%s", out)
	}
	m.Metadata.Annotations = map[string]string{trace.Annotation: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}
	w.recorder.Event(m, "Normal", "Deleting", "a user asked for it")
	w.awaitEvents(t, 2)
	_, out, _ := w.run(t, "", "describe", "machine", "a")
	wantLines(t, out, "  TYPE     REASON     AGE", "   TRACE\n", "before the deletion\n",
		"a user asked for it   0123456789abcdef0123456789abcdef\n")
}

// awaitEvents waits until the world has so many events.
func (w *world) awaitEvents(t *testing.T, count int) {
	t.Helper()
	for {
		_, out, _ := w.run(t, "", "events", "--no-headers")
		if strings.Count(out, "\n") >= count {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("no events")
		}
	}
}

func TestEventsAreShownWithTheNewestLast(t *testing.T) {
	w := newWorld(t)
	m := w.leaving(t)
	w.recorder.Event(m, "Warning", "HookWaits", "my-app has not answered yet")
	w.recorder.Event(m, "Normal", "Deleting", "a user requested it")
	w.awaitEvents(t, 2)
	_, out, _ := w.run(t, "", "events")
	wantLines(t, out, "LAST SEEN   TYPE      REASON      OBJECT      MESSAGE\n",
		"Warning   HookWaits   machine/a   my-app has not answered yet\n",
		"Normal    Deleting    machine/a   a user requested it\n")
	_, out, _ = w.run(t, "", "events", "--types=Normal", "--for", "machine/a", "--no-headers")
	if strings.Contains(out, "HookWaits") || !strings.Contains(out, "Deleting") {
		t.Errorf("normal events are\n%s", out)
	}
	if _, _, stderr := w.run(t, "", "events", "--for", "machine/b"); stderr != "No events found\n" {
		t.Errorf("events of another machine: %s", stderr)
	}
}

func TestHooksAreShownWithTheirTasks(t *testing.T) {
	w := newWorld(t)
	w.leaving(t)
	_, out, _ := w.run(t, "", "hooks")
	want := `MACHINE   POINT          HOOK         OWNER       STATE               CLAIMED-BY   SINCE   MESSAGE
a         PreDrain       MigrateApp   my-app      Claimed (overdue)   alice        5m      half done
a         PreTerminate   Backup       my-backup   Later`
	if !strings.HasPrefix(out, want) {
		t.Errorf("hooks are\n%swant\n%s", out, want)
	}
	if code, _, stderr := w.run(t, "", "hooks", "complete", "a", "Backup"); code != 1 ||
		!strings.Contains(stderr, `hook "Backup" has no task yet: it is created when the deletion of machine "a" reaches `+
			"PreTerminate") {
		t.Errorf("complete: %d %s", code, stderr)
	}
	if code, _, stderr := w.run(t, "", "hooks", "complete", "a", "Migrate"); code != 1 ||
		!strings.Contains(stderr, `machine "a" has no hook "Migrate"; its hooks: MigrateApp, Backup`) {
		t.Errorf("complete a hook that the machine does not have: %d %s", code, stderr)
	}
	if code, _, stderr := w.run(t, "", "hooks", "complete", "b", "Backup"); code != 1 ||
		!strings.Contains(stderr, `(NotFound): Machine "b" not found`) {
		t.Errorf("complete a hook of a machine that does not exist: %d %s", code, stderr)
	}
	if code, _, stderr := w.run(t, "", "hooks", "complete"); code != 1 ||
		!strings.Contains(stderr, "\nUsage: windlass hooks complete (TASK | MACHINE HOOK)") {
		t.Errorf("complete without arguments: %d %s", code, stderr)
	}
	// This world does not implement the methods of tasks, but the call reaches it.
	if code, _, stderr := w.run(t, "", "hooks", "complete", "a", "MigrateApp"); code != 1 ||
		!strings.Contains(stderr, "NotImplemented") {
		t.Errorf("complete: %d %s", code, stderr)
	}
}

// An interrupt ends the wait, not the deletion, and has the exit code that shells expect.
func TestAnInterruptedWaitSaysWhatContinues(t *testing.T) {
	w := newWorld(t)
	w.leaving(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var errs notifying
	errs.wrote = interrupt // once it prints what it waits for
	code := command.Run(ctx, append(w.flags(), "delete", "machine", "a"), strings.NewReader(""), io.Discard, &errs)
	if want := "error: interrupted while waiting for the deletion on machines/a; what was requested is not undone\n"; code !=
		130 || !strings.HasSuffix(errs.String(), want) {
		t.Errorf("delete: %d %s, want 130 %s", code, errs.String(), want)
	}
	ctx, interrupt = context.WithCancel(t.Context())
	interrupt()
	errs = notifying{wrote: func() {}}
	if code := command.Run(ctx, append(w.flags(), "get", "machines"), strings.NewReader(""), io.Discard, &errs); code !=
		130 || errs.String() != "error: interrupted\n" {
		t.Errorf("get: %d %s", code, errs.String())
	}
}

// A provider that does not answer has broken no rule.
func TestAProviderThatDoesNotAnswerIsNotVerified(t *testing.T) {
	w := newWorld(t)
	code, out, stderr := w.run(t, "kind: X", "provider", "verify", "127.0.0.1:1", "--plaintext", "--spec", "-")
	if code != 1 || out != "" || !strings.HasPrefix(stderr, "error: the provider does not answer: ") {
		t.Errorf("verify: %d %s %s", code, out, stderr)
	}
}

// notifying is a buffer that reports each write.
type notifying struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote func()
}

func (n *notifying) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wrote()
	return n.text.Write(p)
}

func (n *notifying) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

func TestDescribeKnowsNodesAndSets(t *testing.T) {
	w := newWorld(t)
	_, err := w.nodes.Create(t.Context(), &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "one", Labels: map[string]string{"node-role.kubernetes.io/worker": ""}},
		Spec:     &nodev1.NodeSpec{Unschedulable: proto.Bool(true), Taints: []*nodev1.Taint{{Key: "k", Effect: "NoExecute"}}},
	})
	check(t, err)
	turn := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, err = w.nodes.Modify(t.Context(), object.Key{Name: "one"}, func(n *nodev1.Node) error {
		n.Status = &nodev1.NodeStatus{Evictions: &nodev1.NodeEvictions{
			Zone: "east/a", ZoneState: "PartialDisruption", NodesPerSecond: 0.01, QueuePosition: 3,
			TurnTime: timestamppb.New(turn), NextDeadline: timestamppb.New(turn.Add(time.Minute)),
		}}
		return nil
	})
	check(t, err)
	w.create(t, set("web", 2))
	_, out, _ := w.run(t, "", "describe", "node/one", "machineset/web")
	wantLines(t, out, "Name:               one\n", "Status:             Unknown,SchedulingDisabled\n",
		"Roles:              worker\n", "Taints:             k:NoExecute\n", "Conditions:         <none>\n",
		"zone east/a is in state PartialDisruption: 0.01 nodes per second get a NoExecute taint\n",
		"place 3 of the nodes that wait for the taint, which is set at 2026-01-02T03:04:05Z\n",
		"the next pod is evicted at 2026-01-02T03:05:05Z\n", "Events:             <none>\n",
		"\n\nName:               web\n", "Replicas:           0 current / 2 desired, 0 ready, 0 available\n",
		"Machine Template:\n", "Machines:           <none>\n")
}
