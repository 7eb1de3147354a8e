package controller

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
	"github.com/windlass-dev/windlass/services/hook-broker/presence"
	"github.com/windlass-dev/windlass/services/hook-broker/server"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// noEvents drops events.
type noEvents struct{}

func (noEvents) Event(object.Object, string, string, string) {}

// removals are the hooks that machine-api was asked to remove.
type removals struct{ hooks []plan.Hook }

func (r *removals) RemoveHook(_ context.Context, _ *machinev1.Machine, h plan.Hook) error {
	r.hooks = append(r.hooks, h)
	return nil
}

// bench is a controller and the server of its Plan RPC over the same views. The controller decides only when a test
// calls it.
type bench struct {
	*testing.T
	now      time.Time
	ran      time.Duration // since the process started
	tables   *kinds.Tables
	machines *informer.Informer[*machinev1.Machine]
	removed  *removals
	c        *Controller
	tasks    *server.Tasks
}

func newBench(t *testing.T) *bench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	machines, err := informer.New[*machinev1.Machine](nil, log)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, now: time.Now().UTC().Truncate(time.Second), machines: machines, removed: &removals{}}
	clock := func() time.Time { return b.now }
	b.tables = kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, nil, log)
	for _, run := range []func(context.Context) error{b.tables.Tasks.Run, b.tables.Owners.Run} {
		go func() { _ = run(t.Context()) }()
	}
	for _, wait := range []func(context.Context) error{b.tables.Tasks.WaitSynced, b.tables.Owners.WaitSynced} {
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	there := presence.New(clock)
	t.Cleanup(there.Lead(func(string) {}))
	views := NewViews(b.tables, machines, there, clock, func() time.Duration { return b.ran })
	b.c = New(Config{
		Tables: b.tables, Machines: machines, Hooks: b.removed, Presence: there, Views: views, Events: noEvents{}, Log: log,
	})
	b.tasks = server.New(server.Config{Tables: b.tables, Views: views, Presence: there, Now: clock, Log: log})
	return b
}

// machine has machine-api report the machine with these hooks before its drain.
func (b *bench) machine(revision int64, hooks ...*machinev1.LifecycleHook) *machinev1.Machine {
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: "n", Name: "m", Uid: "u", DeletionTimestamp: timestamppb.New(b.now)},
		Spec:     &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{PreDrain: hooks}},
	}
	b.machines.Replace([]*machinev1.Machine{m}, revision)
	return m
}

func (b *bench) plan(r *hookv1.PlanHookTasksRequest) *hookv1.PlanHookTasksResponse {
	b.Helper()
	resp, err := b.tasks.PlanHookTasks(b.Context(), r)
	if err != nil {
		b.Fatal(err)
	}
	return resp
}

// stored returns the live tasks as a request has them.
func (b *bench) stored() *hookv1.HookTaskList {
	return &hookv1.HookTaskList{Items: b.tables.Tasks.All()}
}

// did names how the tasks differ from before, and the hooks that were removed.
func (b *bench) did(before *hookv1.HookTaskList) []string {
	var out []string
	was := map[string]*hookv1.HookTask{}
	for _, t := range before.GetItems() {
		was[t.GetMetadata().GetName()] = t
	}
	for _, t := range b.stored().GetItems() {
		switch old := was[t.GetMetadata().GetName()]; {
		case old == nil:
			out = append(out, plan.CreateTask+" "+t.GetSpec().GetHookName())
		case !proto.Equal(old, t):
			out = append(out, plan.StoreTask+" "+t.GetSpec().GetHookName())
		}
		delete(was, t.GetMetadata().GetName())
	}
	for _, t := range was {
		out = append(out, plan.RemoveTask+" "+t.GetSpec().GetHookName())
	}
	for _, h := range b.removed.hooks {
		out = append(out, plan.RemoveHook+" "+h.Name)
	}
	b.removed.hooks = nil
	slices.Sort(out)
	return out
}

func steps(r *hookv1.PlanHookTasksResponse) []string {
	var out []string
	for _, a := range r.GetActions() {
		out = append(out, a.GetAction()+" "+a.GetDetails()["hook"][len(plan.PreDrain+" "):])
	}
	slices.Sort(out)
	return out
}

// compare asks for the plan of the machine, has the controller decide, and compares what it did with the plan from
// before, and when it decides again with the plan from after. It returns both plans.
func (b *bench) compare() (before, after *hookv1.PlanHookTasksResponse) {
	b.Helper()
	before = b.plan(&hookv1.PlanHookTasksRequest{Namespace: "n", Name: "m"})
	had := b.stored()
	if _, err := b.c.ReconcileMachine(b.Context(), "n/m"); err != nil {
		b.Fatal(err)
	}
	if did := b.did(had); !slices.Equal(steps(before), did) {
		b.Errorf("the plan is %v, done is %v", steps(before), did)
	}
	for _, a := range before.GetActions() {
		if a.GetReason() == "" {
			b.Errorf("no reason for %v", a)
		}
	}
	after = b.plan(&hookv1.PlanHookTasksRequest{Namespace: "n", Name: "m"})
	wake, err := b.c.ReconcileMachine(b.Context(), "n/m")
	if err != nil || (after.GetWakeTime() == nil) != wake.IsZero() || !wake.IsZero() &&
		!after.GetWakeTime().AsTime().Equal(wake) {
		b.Errorf("the controller waits until %v, %v, the plan is %v", wake, err, after)
	}
	b.removed.hooks = nil
	return before, after
}

// TestThePlanIsWhatIsDone asks for plans of a machine, has the controller decide about the same state, and asks again:
// each plan names the steps that the controller takes, and then what it waits for and until when.
func TestThePlanIsWhatIsDone(t *testing.T) {
	b := newBench(t)
	const owner = "my-backup-controller"
	backup := &machinev1.LifecycleHook{Name: "Backup", Owner: owner}
	m := b.machine(1, backup, &machinev1.LifecycleHook{Name: "Detach", Owner: "my-storage-controller"})
	started := b.now

	_, after := b.compare()
	if len(after.GetActions()) > 0 || after.GetWaitsFor() != "PreDrain hook Backup: waiting for "+owner {
		t.Errorf("a new machine: the plan is then %v", after)
	}
	task := b.stored().GetItems()[slices.IndexFunc(b.stored().GetItems(), func(t *hookv1.HookTask) bool {
		return t.GetSpec().GetOwner() == owner
	})]
	want := &metav1.HeldBack{
		Action: plan.RemoveHook, Object: object.Reference(m), Reason: "PreDrain hook Backup: waiting for " + owner,
		Unblock:   owner + " completes task " + task.GetMetadata().GetName(),
		SinceTime: task.GetMetadata().GetCreationTimestamp(),
	}
	if diff := cmp.Diff(want, after.GetHeldBack()[0], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}

	b.c.Presence.Seen(owner)
	visit, _ := b.c.Presence.Join([]string{owner})
	if before, _ := b.compare(); len(before.GetActions()) != 1 ||
		before.GetActions()[0].GetReason() != owner+" is connected" {
		t.Errorf("an owner that connects: the plan is %v", before)
	}
	visit.Leave()

	b.now = started.Add(time.Hour)
	if before, _ := b.compare(); len(before.GetActions()) != 1 ||
		before.GetActions()[0].GetReason() != owner+" was seen before and is not connected now" {
		t.Errorf("a clock that was set forward: the plan is %v", before)
	}
	b.ran = time.Hour
	if before, _ := b.compare(); len(before.GetActions()) != 2 {
		t.Errorf("tasks that are overdue: the plan is %v", before)
	}
	if _, err := b.tables.Tasks.Modify(t.Context(), object.KeyOf(task), func(t *hookv1.HookTask) error {
		t.Status.Phase = proto.String(plan.Completed)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if before, _ := b.compare(); !slices.Equal(steps(before), []string{"RemoveHook Backup"}) {
		t.Errorf("a completed task: the plan is %v", before)
	}
	b.machine(2)
	if before, _ := b.compare(); !slices.Equal(steps(before), []string{"RemoveTask Backup", "RemoveTask Detach"}) {
		t.Errorf("hooks that are gone: the plan is %v", before)
	}
	b.machines.Replace(nil, 3)
	if r, err := b.tasks.PlanHookTasks(t.Context(), &hookv1.PlanHookTasksRequest{Namespace: "n", Name: "m"}); err == nil {
		t.Errorf("a machine that is gone has the plan %v", r)
	}
}

// TestThePlanOfARequestIsThatOfTheSameLiveObjects gives a plan in a request what is live, and each part changed.
func TestThePlanOfARequestIsThatOfTheSameLiveObjects(t *testing.T) {
	b := newBench(t)
	const owner = "my-backup-controller"
	m := b.machine(1, &machinev1.LifecycleHook{Name: "Backup", Owner: owner})
	b.compare()
	live := b.plan(&hookv1.PlanHookTasksRequest{Namespace: "n", Name: "m"})
	none, started := &hookv1.HookOwnerList{}, timestamppb.New(b.now)
	b.now = b.now.Add(time.Hour)
	if diff := cmp.Diff(live, b.plan(&hookv1.PlanHookTasksRequest{
		Machine: m, Tasks: b.stored(), Owners: none, Now: started,
	}), protocmp.Transform()); diff != "" {
		t.Errorf("(-live +given):\n%s", diff)
	}
	for name, c := range map[string]struct {
		request *hookv1.PlanHookTasksRequest
		want    []string
	}{
		"live tasks do not count": {&hookv1.PlanHookTasksRequest{Machine: m}, []string{"CreateTask Backup"}},
		"no hooks": {
			&hookv1.PlanHookTasksRequest{Machine: &machinev1.Machine{Metadata: m.Metadata}, Tasks: b.stored()},
			[]string{"RemoveTask Backup"},
		},
		"a patient owner, seen before": {&hookv1.PlanHookTasksRequest{
			Machine: m, Tasks: b.stored(), Now: started,
			Owners: &hookv1.HookOwnerList{Items: []*hookv1.HookOwner{{
				Spec:   &hookv1.HookOwnerSpec{Owner: owner, OverdueAfter: "24h"},
				Status: &hookv1.HookOwnerStatus{Connected: proto.Bool(true)},
			}}},
		}, []string{"StoreTask Backup"}},
		"a task without a creation time is new": {&hookv1.PlanHookTasksRequest{
			Machine: m, Owners: none, Tasks: func() *hookv1.HookTaskList {
				list := proto.Clone(b.stored()).(*hookv1.HookTaskList)
				list.Items[0].Metadata.CreationTimestamp = nil
				return list
			}(),
		}, nil},
	} {
		if got := steps(b.plan(c.request)); !slices.Equal(got, c.want) {
			t.Errorf("%s: the plan is %v, want %v", name, got, c.want)
		}
	}
	if _, err := b.tables.Owners.Create(t.Context(), &hookv1.HookOwner{
		Metadata: &metav1.ObjectMeta{Name: owner}, Spec: &hookv1.HookOwnerSpec{Owner: owner, OverdueAfter: "24h"},
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.plan(&hookv1.PlanHookTasksRequest{Machine: m, Tasks: b.stored(), Owners: none}),
		b.plan(&hookv1.PlanHookTasksRequest{Machine: m, Tasks: b.stored()}), protocmp.Transform()); diff != "" {
		t.Errorf("a live owner counts for a given machine (-want +got):\n%s", diff)
	}
	nowhere := proto.CloneOf(m)
	nowhere.Metadata.Namespace = ""
	if diff := cmp.Diff(b.plan(&hookv1.PlanHookTasksRequest{Namespace: "n", Machine: m}),
		b.plan(&hookv1.PlanHookTasksRequest{Namespace: "n", Machine: nowhere}), protocmp.Transform()); diff != "" {
		t.Errorf("a machine without a namespace is not in that of the request (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		request *hookv1.PlanHookTasksRequest
		path    string
	}{
		"no machine":               {&hookv1.PlanHookTasksRequest{}, "name"},
		"a live and a given one":   {&hookv1.PlanHookTasksRequest{Name: "m", Namespace: "n", Machine: m}, "name"},
		"tasks of a live machine":  {&hookv1.PlanHookTasksRequest{Name: "m", Namespace: "n", Tasks: b.stored()}, "machine"},
		"owners of a live machine": {&hookv1.PlanHookTasksRequest{Name: "m", Namespace: "n", Owners: none}, "machine"},
	} {
		_, err := b.tasks.PlanHookTasks(t.Context(), c.request)
		if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != c.path {
			t.Errorf("%s: %v, want field %s refused", name, err, c.path)
		}
	}
}

// Before the machines are known, none is reported as not found, and a caller who no longer waits ends the call.
func TestThePlanWaitsForTheMachinesOrItsCaller(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := b.tasks.PlanHookTasks(ctx, &hookv1.PlanHookTasksRequest{Namespace: "n", Name: "m"})
		answered <- err
	}()
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("the plan of an unknown machine: %v, want %v", err, context.Canceled)
	}
}
