package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

func backupHook() *machinev1.LifecycleHook {
	return &machinev1.LifecycleHook{Name: "BackupFileSystem", Owner: backup}
}

func inPhase(phase string) func(*hookv1.HookTask) bool {
	return func(t *hookv1.HookTask) bool { return t.GetStatus().GetPhase() == phase }
}

func (c *cluster) hooksOf(machine string) []*machinev1.LifecycleHook {
	m, _ := c.machines.Lookup(namespace, machine)
	return m.GetSpec().GetLifecycleHooks().GetPreTerminate()
}

func (c *cluster) awaitNoTasks() {
	c.t.Helper()
	client := hookv1.NewHookTaskServiceClient(c.admin())
	servetest.Await(c.t, func() string {
		list, err := client.ListHookTasks(c.t.Context(), &hookv1.ListHookTasksRequest{})
		if err != nil {
			return err.Error()
		}
		if len(list.GetItems()) > 0 {
			return "there are tasks: " + list.String()
		}
		return ""
	})
}

// awaitEvent waits for an event about a machine.
func (c *cluster) awaitEvent(reason string) {
	c.t.Helper()
	client := eventv1.NewEventServiceClient(c.admin())
	servetest.Await(c.t, func() string {
		list, err := client.ListEvents(c.t.Context(), &eventv1.ListEventsRequest{})
		if err != nil {
			return err.Error()
		}
		for _, e := range list.GetItems() {
			if e.GetReason() == reason && e.GetInvolvedObject().GetKind() == "Machine" {
				return ""
			}
		}
		return "no event " + reason
	})
}

func (c *cluster) awaitOwner(want func(*hookv1.HookOwner) bool) {
	c.t.Helper()
	client := hookv1.NewHookOwnerServiceClient(c.admin())
	servetest.Await(c.t, func() string {
		o, err := client.GetHookOwner(c.t.Context(), &hookv1.GetHookOwnerRequest{Name: backup})
		if err != nil {
			return err.Error()
		}
		if !want(o) {
			return "owner is " + o.String()
		}
		return ""
	})
}

func TestAnOwnerIsToldDoesItsWorkAndTheHookGoes(t *testing.T) {
	c := start(t)
	client := c.tasks(backup)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, first := c.stream(ctx, client)
	if first != nil {
		t.Fatalf("the stream begins with %v, want the word that there is nothing", first)
	}
	c.awaitOwner(func(o *hookv1.HookOwner) bool { return o.GetStatus().GetConnected() })

	c.deleteMachine("m", &machinev1.LifecycleHook{Name: "DetachStorage", Owner: "my-storage-controller"}, backupHook())
	task := next(t, stream, func(*hookv1.StreamHookTasksResponse) bool { return true }).GetTask()
	if s := task.GetSpec(); s.GetMachineRef().GetName() != "m" || s.GetPoint() != plan.PreTerminate ||
		s.GetOwner() != backup {
		t.Fatalf("the stream sends %v", task)
	}
	name := task.GetMetadata().GetName()
	claimed, err := client.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.RenewHookTask(t.Context(), &hookv1.RenewHookTaskRequest{
		Name: name, Message: "half way",
	}); err != nil {
		t.Fatal(err)
	}
	if m := next(t, stream, func(m *hookv1.StreamHookTasksResponse) bool {
		return m.GetTask().GetStatus().GetMessage() == "half way"
	}); m.GetGone() ||
		m.GetTask().GetStatus().GetClaimedBy() != claimed.GetStatus().GetClaimedBy() {
		t.Errorf("the stream sends %v", m)
	}
	if _, err := client.CompleteHookTask(t.Context(), &hookv1.CompleteHookTaskRequest{
		Name: name, Message: "saved",
	}); err != nil {
		t.Fatal(err)
	}
	next(t, stream, (*hookv1.StreamHookTasksResponse).GetGone)
	if hooks := c.hooksOf("m"); len(hooks) != 1 || hooks[0].GetName() != "DetachStorage" {
		t.Errorf("hooks left = %v, want the storage's alone", hooks)
	}
	c.theTask("m", func(t *hookv1.HookTask) bool { return t.GetSpec().GetHookName() == "DetachStorage" })
	for _, reason := range []string{"HookPending", "HookClaimed", "HookCompleted"} {
		c.awaitEvent(reason)
	}
	leave()
	c.awaitOwner(func(o *hookv1.HookOwner) bool {
		return !o.GetStatus().GetConnected() && o.GetStatus().GetLastSeenTime() != nil
	})
}

func TestOnlyWhoAnswersForTheOwnerTouchesATask(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	stranger := c.tasks("my-storage-controller")
	calls := map[string]func() error{
		"ClaimHookTask": func() error {
			_, err := stranger.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name})
			return err
		},
		"RenewHookTask": func() error {
			_, err := stranger.RenewHookTask(t.Context(), &hookv1.RenewHookTaskRequest{Name: name})
			return err
		},
		"CompleteHookTask": func() error {
			_, err := stranger.CompleteHookTask(t.Context(), &hookv1.CompleteHookTaskRequest{Name: name})
			return err
		},
		"FailHookTask": func() error {
			_, err := stranger.FailHookTask(t.Context(), &hookv1.FailHookTaskRequest{Name: name, Reason: "x"})
			return err
		},
		"StreamHookTasks": func() error {
			s, err := stranger.StreamHookTasks(t.Context(), &hookv1.StreamHookTasksRequest{
				Owners: []string{"my-storage-controller", backup},
			})
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
	}
	for method, call := range calls {
		if err := call(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s by a stranger = %v, want PERMISSION_DENIED", method, err)
		}
	}
	for method := range calls {
		for deadline := time.Now().Add(2 * time.Minute); !c.inRefusals(method, "my-storage-controller"); time.Sleep(
			time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("the refusal of %s is not in the audit log", method)
				break
			}
		}
	}
	if task := c.theTask("m", anyTask); task.GetStatus().GetPhase() != plan.Pending || len(c.hooksOf("m")) != 1 {
		t.Errorf("a stranger changed %v, hooks %v", task, c.hooksOf("m"))
	}
}

// inRefusals reports whether the audit log has a refusal. It is written a moment after the answer.
func (c *cluster) inRefusals(method, user string) bool {
	log, err := os.ReadFile(filepath.Join(c.dir, audit.RefusalsFile))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, method) && strings.Contains(line, `"`+user+`"`) &&
			strings.Contains(line, "PermissionDenied") {
			return true
		}
	}
	return false
}

func TestOfManyWhoClaimAtOnceOneHasIt(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	users := []string{backup, "backup-2"}
	clients := map[string]hookv1.HookTaskServiceClient{users[0]: c.tasks(users[0]), users[1]: c.tasks(users[1])}
	type result struct {
		user string
		err  error
	}
	results := make(chan result, 20)
	var group sync.WaitGroup
	for i := range cap(results) {
		user := users[i%2]
		group.Go(func() {
			_, err := clients[user].ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name})
			results <- result{user, err}
		})
	}
	group.Wait()
	close(results)
	holder := c.theTask("m", inPhase(plan.Claimed)).GetStatus()
	for r := range results {
		if won := r.user == holder.GetClaimedBy(); won != (r.err == nil) || !won &&
			rpcerr.Reason(r.err) != metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER {
			t.Errorf("%s got %v while %s has it", r.user, r.err, holder.GetClaimedBy())
		}
	}
	if holder.GetAttempts() != 1 {
		t.Errorf("claimed %d times, want once", holder.GetAttempts())
	}
}

func TestAnOwnerThatDiesAfterItsClaimLosesIt(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	other := c.tasks("backup-2")
	stream, first := c.stream(t.Context(), other)
	if first.GetMetadata().GetName() != name {
		t.Fatalf("the stream begins with %v, want the task that is there", first)
	}
	if _, err := c.tasks(backup).ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{
		Name: name, Duration: durationpb.New(time.Second),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name}); rpcerr.Reason(
		err) != metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER {
		t.Fatalf("claim of a claimed task = %v, want HELD_BY_OTHER", err)
	}
	next(t, stream, func(m *hookv1.StreamHookTasksResponse) bool { return inPhase(plan.Claimed)(m.GetTask()) })
	next(t, stream, func(m *hookv1.StreamHookTasksResponse) bool { return inPhase(plan.Pending)(m.GetTask()) })
	task, err := other.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name})
	if err != nil || task.GetStatus().GetClaimedBy() != "backup-2" || task.GetStatus().GetAttempts() != 2 {
		t.Errorf("claim after the first one died = %v, %v", task, err)
	}
	c.awaitEvent("HookClaimExpired")
}

func TestAFailureSaysWhyAndTheTaskMayBeClaimedAgain(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	client := c.tasks(backup)
	if _, err := client.FailHookTask(t.Context(), &hookv1.FailHookTaskRequest{
		Name: name, Reason: "disk full",
	}); err != nil {
		t.Fatal(err)
	}
	if task := c.theTask("m", inPhase(plan.Failed)); task.GetStatus().GetMessage() != "disk full" ||
		len(c.hooksOf("m")) != 1 {
		t.Errorf("task = %v", task)
	}
	c.awaitEvent("HookFailed")
	if _, err := client.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name}); err != nil {
		t.Error(err)
	}
}

func TestATaskThatNobodyCompletesIsSeenToBeLate(t *testing.T) {
	c := start(t)
	owners := hookv1.NewHookOwnerServiceClient(c.admin())
	if _, err := owners.CreateHookOwner(t.Context(), &hookv1.CreateHookOwnerRequest{HookOwner: &hookv1.HookOwner{
		Metadata: &metav1.ObjectMeta{Name: backup}, Spec: &hookv1.HookOwnerSpec{Owner: backup, OverdueAfter: "1s"},
	}}); err != nil {
		t.Fatal(err)
	}
	c.deleteMachine("m", backupHook())
	c.theTask("m", func(t *hookv1.HookTask) bool { return object.IsTrue(t.GetStatus().GetConditions(), plan.Overdue) })
	c.awaitOwner(func(o *hookv1.HookOwner) bool {
		seen := object.FindCondition(o.GetStatus().GetConditions(), plan.Seen)
		return object.IsTrue(o.GetStatus().GetConditions(), plan.Overdue) && o.GetStatus().GetPendingTasks() == 1 &&
			seen.GetReason() == "NeverSeen"
	})
	c.awaitEvent("HookOverdue")
}

func TestACompletionIsCarriedOutThoughEverythingIsAwayMeanwhile(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	c.closed.Store(true)
	if _, err := c.tasks(backup).CompleteHookTask(t.Context(), &hookv1.CompleteHookTaskRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if c.refused.Load() == 0 {
			return "the removal was not tried"
		}
		return ""
	})
	c.stop()
	c.startBroker()
	task := c.theTask("m", anyTask)
	if task.GetStatus().GetPhase() != plan.Completed || len(c.hooksOf("m")) != 1 {
		t.Errorf("task = %v, hooks = %v", task, c.hooksOf("m"))
	}
	if _, err := c.tasks("backup-2").ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: name}); status.Code(
		err) != codes.FailedPrecondition {
		t.Errorf("claim of a completed task = %v, want FAILED_PRECONDITION", err)
	}
	c.closed.Store(false)
	c.awaitNoTasks()
	if hooks := c.hooksOf("m"); len(hooks) != 0 {
		t.Errorf("hooks left = %v", hooks)
	}
}

// The owner claims its task and then fails.
func TestAnAdministratorOverridesAClaimedTask(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	owner := c.tasks(backup)
	if _, err := owner.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{
		Name: name, Duration: durationpb.New(24 * time.Hour),
	}); err != nil {
		t.Fatal(err)
	}
	// Completing its own tasks gives the owner no right to override.
	request := &hookv1.OverrideHookTaskRequest{Name: name, Reason: "its host is lost"}
	if _, err := owner.OverrideHookTask(t.Context(), request); rpcerr.Reason(err) !=
		metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("the owner overrides: %v, want FORBIDDEN", err)
	}
	task, err := hookv1.NewHookTaskServiceClient(c.admin()).OverrideHookTask(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if m := task.GetStatus().GetMessage(); !strings.Contains(m, "overridden by ") ||
		!strings.Contains(m, "its host is lost") {
		t.Errorf("message = %q", m)
	}
	c.awaitEvent("HookOverridden")
	servetest.Await(t, func() string {
		if left := c.hooksOf("m"); len(left) > 0 {
			return fmt.Sprintf("the machine has hooks %v", left)
		}
		return ""
	})
}

func TestAHookThatSomebodyElseRemovedLeavesNoTask(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	c.theTask("m", anyTask)
	if _, err := c.machines.Modify(t.Context(), object.Key{Namespace: namespace, Name: "m"},
		func(m *machinev1.Machine) error {
			m.Spec.LifecycleHooks = nil
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	c.awaitNoTasks()
}

func TestThePlanOfAMachineNeedsTheRightToPlan(t *testing.T) {
	c := start(t)
	c.deleteMachine("m", backupHook())
	name := c.theTask("m", anyTask).GetMetadata().GetName()
	ask := &hookv1.PlanHookTasksRequest{Namespace: namespace, Name: "m"}
	p, err := hookv1.NewHookTaskServiceClient(c.admin()).PlanHookTasks(t.Context(), ask)
	if held := p.GetHeldBack(); err != nil || len(held) != 1 || held[0].GetObject().GetName() != "m" ||
		held[0].GetUnblock() != backup+" completes task "+name {
		t.Errorf("the plan is %v, %v", p, err)
	}
	many := &machinev1.Machine{Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{}}}
	for i := range 129 {
		many.Spec.LifecycleHooks.PreDrain = append(many.Spec.LifecycleHooks.PreDrain,
			&machinev1.LifecycleHook{Name: fmt.Sprint("hook", i), Owner: "owner"})
	}
	for path, r := range map[string]*hookv1.PlanHookTasksRequest{
		"machine.spec.lifecycleHooks: has 129": {Machine: many},
		"tasks.items: has 1001": {Name: "m", Namespace: namespace, Tasks: &hookv1.HookTaskList{
			Items: make([]*hookv1.HookTask, 1001),
		}},
	} {
		_, err := hookv1.NewHookTaskServiceClient(c.admin()).PlanHookTasks(t.Context(), r)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := c.tasks(backup).PlanHookTasks(t.Context(), ask); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the plan for an owner of hooks = %v, want PERMISSION_DENIED", err)
	}
}

func TestWhatIsWrongWithAHookOwnerIsSaid(t *testing.T) {
	c := start(t)
	owners := hookv1.NewHookOwnerServiceClient(c.admin())
	_, err := owners.CreateHookOwner(t.Context(), &hookv1.CreateHookOwnerRequest{HookOwner: &hookv1.HookOwner{
		Metadata: &metav1.ObjectMeta{Name: "other"}, Spec: &hookv1.HookOwnerSpec{Owner: backup, ClaimDuration: "1ms"},
	}})
	if fields, _ := rpcerr.Fields(err); len(fields) != 2 || fields[0].Path != "metadata.name" ||
		fields[1].Path != "spec.claimDuration" {
		t.Errorf("Create = %v", err)
	}
	_, err = owners.CreateHookOwner(t.Context(), &hookv1.CreateHookOwnerRequest{HookOwner: &hookv1.HookOwner{
		Metadata: &metav1.ObjectMeta{Name: backup}, Spec: &hookv1.HookOwnerSpec{Owner: backup},
	}})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	_, err = owners.UpdateHookOwnerStatus(t.Context(), &hookv1.UpdateHookOwnerStatusRequest{
		Name: backup, HookOwner: &hookv1.HookOwner{
			Metadata: &metav1.ObjectMeta{Name: backup}, Status: &hookv1.HookOwnerStatus{Connected: &yes},
		},
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a foreign status = %v, want PERMISSION_DENIED", err)
	}
}
