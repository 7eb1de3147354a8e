package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	uid    = "3f2a9c41-0000-4000-8000-000000000001"
	backup = "my-backup-controller"
	etcd   = "clusteroperator/etcd"
)

var (
	start     = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	quorum    = Hook{PreDrain, "EtcdQuorumOperator", etcd}
	backupEnd = Hook{PreTerminate, "BackupFileSystem", backup}
)

// machine returns a machine with the quorum hook before the drain and the backup hook before the end.
func machine(change ...func(*machinev1.Machine)) *machinev1.Machine {
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "master-0", Uid: uid},
		Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
			PreDrain:     []*machinev1.LifecycleHook{{Name: quorum.Name, Owner: quorum.Owner}},
			PreTerminate: []*machinev1.LifecycleHook{{Name: backupEnd.Name, Owner: backupEnd.Owner}},
		}},
		Status: &machinev1.MachineStatus{NodeRef: &metav1.ObjectReference{Name: "master-0"}},
	}
	for _, f := range change {
		f(m)
	}
	return m
}

func deleting(m *machinev1.Machine) { m.Metadata.DeletionTimestamp = timestamppb.New(start) }

func afterDrain(m *machinev1.Machine) {
	deleting(m)
	m.Spec.LifecycleHooks.PreDrain = nil
	m.Status.Conditions = []*metav1.Condition{{Type: "Drained", Status: "True"}}
}

// stored returns the task that the plan makes for a hook, as the store would have it, in the given status.
func stored(m *machinev1.Machine, h Hook, status *hookv1.HookTaskStatus) *hookv1.HookTask {
	p := &planner{View: View{Now: start, Machine: m}}
	t := p.task(h)
	t.Metadata.CreationTimestamp = timestamppb.New(start)
	t.Status = status
	t.Status.Conditions = []*metav1.Condition{
		{
			Type: OwnerSeen, Status: "True", Reason: proto.String("Connected"), Message: proto.String(h.Owner + " is connected"),
			LastTransitionTime: floor(start),
		},
		{Type: Overdue, Status: "False", Reason: proto.String("InTime"), LastTransitionTime: floor(start)},
	}
	return t
}

func status(phase string) *hookv1.HookTaskStatus {
	return &hookv1.HookTaskStatus{Phase: &phase, Attempts: proto.Int32(0)}
}

func claimed(until time.Time) *hookv1.HookTaskStatus {
	return &hookv1.HookTaskStatus{
		Phase: proto.String(Claimed), ClaimedBy: proto.String("backup-1"), Attempts: proto.Int32(1),
		ClaimTime: floor(start), ClaimExpiryTime: timestamppb.New(until),
	}
}

// outcome is a plan in short: what happens to which hook.
type outcome struct {
	Create, Update, Remove, RemoveHooks []string
	Events                              []string
	Wake                                time.Duration // after start; 0 means never
}

func short(p Plan) outcome {
	var o outcome
	for _, a := range p.Do {
		switch hook := a.Task.GetSpec().GetHookName(); a.Verb {
		case CreateTask:
			o.Create = append(o.Create, hook)
		case StoreTask:
			o.Update = append(o.Update, hook+" "+a.Task.GetStatus().GetPhase())
		case RemoveTask:
			o.Remove = append(o.Remove, hook)
		case RemoveHook:
			o.RemoveHooks = append(o.RemoveHooks, hook)
		}
		for _, e := range a.Events {
			o.Events = append(o.Events, e.Reason)
		}
	}
	if !p.Wake.IsZero() {
		o.Wake = p.Wake.Sub(start)
	}
	return o
}

func TestTasksOfAMachine(t *testing.T) {
	gone, end := machine(deleting), machine(afterDrain)
	there := map[string]OwnerFacts{backup: {Connected: true}, etcd: {Connected: true}}
	other := stored(end, backupEnd, status(Completed))
	other.Spec.Owner, other.Metadata.Name = "another-owner",
		taskName(uid, Hook{PreTerminate, backupEnd.Name, "another-owner"})
	for name, c := range map[string]struct {
		view View
		want outcome
	}{
		"a machine that stays has no tasks": {View{Now: start, Machine: machine()}, outcome{}},
		"deletion makes a task of each hook before the drain": {
			View{Now: start, Machine: gone, Owners: there},
			outcome{Create: []string{"EtcdQuorumOperator"}, Events: []string{"HookPending"}, Wake: defaultOverdue},
		},
		"hooks before the end wait for the drain": {
			View{Now: start, Machine: machine(deleting, func(m *machinev1.Machine) { m.Spec.LifecycleHooks.PreDrain = nil })},
			outcome{},
		},
		"the end of the drain makes a task of each hook before the end": {
			View{Now: start, Machine: end, Owners: there},
			outcome{Create: []string{"BackupFileSystem"}, Events: []string{"HookPending"}, Wake: defaultOverdue},
		},
		"a new task of an owner who was never seen is decided about again soon": {
			View{Now: start, Machine: end},
			outcome{Create: []string{"BackupFileSystem"}, Events: []string{"HookPending"}, Wake: unseenAfter},
		},
		"a task that is as it should be stays": {
			View{Now: start, Machine: end, Owners: there, Tasks: []*hookv1.HookTask{stored(end, backupEnd, status(Pending))}},
			outcome{Wake: defaultOverdue},
		},
		"a claim that holds is decided about when it ends": {
			View{Now: start, Machine: end, Owners: there, Tasks: []*hookv1.HookTask{
				stored(end, backupEnd, claimed(start.Add(time.Minute))),
			}},
			outcome{Wake: time.Minute},
		},
		"a claim that ran out frees the task": {
			View{
				Now: start.Add(time.Minute), Machine: end, Owners: there,
				Tasks: []*hookv1.HookTask{stored(end, backupEnd, claimed(start.Add(time.Minute)))},
			},
			outcome{Update: []string{"BackupFileSystem Pending"}, Events: []string{"HookClaimExpired"}, Wake: defaultOverdue},
		},
		"a completed task has its hook removed and stays until the hook is gone": {
			View{Now: start, Machine: end, Owners: there, Tasks: []*hookv1.HookTask{stored(end, backupEnd, status(Completed))}},
			outcome{RemoveHooks: []string{"BackupFileSystem"}},
		},
		"a completed task of another owner removes nothing": {
			View{Now: start, Machine: end, Owners: there, Tasks: []*hookv1.HookTask{other}},
			outcome{
				Create: []string{"BackupFileSystem"}, Remove: []string{"BackupFileSystem"}, Events: []string{"HookPending"},
				Wake: defaultOverdue,
			},
		},
		"a task whose hook is gone goes": {
			View{Now: start, Machine: end, Tasks: []*hookv1.HookTask{stored(end, quorum, status(Pending))}, Owners: there},
			outcome{
				Create: []string{"BackupFileSystem"}, Remove: []string{"EtcdQuorumOperator"}, Events: []string{"HookPending"},
				Wake: defaultOverdue,
			},
		},
		"the tasks of a machine that is gone go": {
			View{Now: start, Tasks: []*hookv1.HookTask{stored(end, backupEnd, status(Completed))}},
			outcome{Remove: []string{"BackupFileSystem"}},
		},
		"a failed task that is not claimed becomes overdue": {
			View{
				Now: start.Add(defaultOverdue), Machine: end, Owners: there,
				Tasks: []*hookv1.HookTask{stored(end, backupEnd, status(Failed))},
			},
			outcome{Update: []string{"BackupFileSystem Failed"}, Events: []string{"HookOverdue"}},
		},
		"an owner may ask for more patience": {
			View{
				Now: start.Add(defaultOverdue), Machine: end, Tasks: []*hookv1.HookTask{stored(end, backupEnd, status(Pending))},
				Owners: map[string]OwnerFacts{backup: {Connected: true, Settings: &hookv1.HookOwnerSpec{OverdueAfter: "1h"}}},
			},
			outcome{Wake: time.Hour},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := proto.Clone(c.view.Machine)
			if diff := cmp.Diff(c.want, short(Machine(c.view))); diff != "" {
				t.Error(diff)
			}
			if !proto.Equal(before, c.view.Machine) {
				t.Error("the view was modified")
			}
		})
	}
}

func TestAnOwnerWhoNeverComesIsSeenToBeMissing(t *testing.T) {
	m := machine(afterDrain)
	first := Machine(View{Now: start, Machine: m}).Do[0].Task
	first.Metadata.CreationTimestamp = floor(start)
	if c := object.FindCondition(first.GetStatus().GetConditions(), OwnerSeen); c.GetStatus() != "Unknown" {
		t.Errorf("at first OwnerSeen = %v, want Unknown", c)
	}
	late := Machine(View{Now: start.Add(unseenAfter), Machine: m, Tasks: []*hookv1.HookTask{first}})
	want := &metav1.Condition{
		Type: OwnerSeen, Status: "False", Severity: "Warning", Reason: proto.String("NeverSeen"),
		Message: proto.String(
			"no client of my-backup-controller has ever been seen; the machine waits until its hook is completed"),
		LastTransitionTime: floor(start.Add(unseenAfter)),
	}
	next := late.Do[0].Task
	if diff := cmp.Diff(want, object.FindCondition(next.GetStatus().GetConditions(), OwnerSeen),
		protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if events := late.Do[0].Events; len(events) != 1 || events[0].Reason != "HookOwnerNotSeen" {
		t.Errorf("events %v", events)
	}
	again := Machine(View{Now: start.Add(2 * unseenAfter), Machine: m, Tasks: []*hookv1.HookTask{next}})
	if len(again.Do) != 0 {
		t.Errorf("reported twice: %v", again.Do)
	}
}

func TestNames(t *testing.T) {
	for owner, want := range map[string]string{
		backup:                      backup,
		etcd:                        "clusteroperator.etcd-" + hash(8, etcd),
		"clusteroperator.etcd":      "clusteroperator.etcd",
		"My Controller":             "my-controller-" + hash(8, "My Controller"),
		"///":                       "owner-" + hash(8, "///"),
		"looks-hashed-0123abcd":     "looks-hashed-0123abcd-" + hash(8, "looks-hashed-0123abcd"),
		"备份":                        "owner-" + hash(8, "备份"),
		"a_b.example.com/-c-/Thing": "a-b.example.com.c.thing-" + hash(8, "a_b.example.com/-c-/Thing"),
	} {
		if got := OwnerName(owner); got != want {
			t.Errorf("OwnerName(%q) = %q, want %q", owner, got, want)
		}
	}
	if got, want := taskName(uid, quorum), "3f2a9c41-predrain-"+hash(10, uid, PreDrain, quorum.Name,
		quorum.Owner); got != want {
		t.Errorf("TaskName = %q, want %q", got, want)
	}
}

// TestHooksThatWaitForEachOtherArePlannedQuickly has as many hooks as a machine may have, of which each waits for as
// many others as settings may name: all wait for each other, so none waits.
func TestHooksThatWaitForEachOtherArePlannedQuickly(t *testing.T) {
	const hooks, waits = 64, 16
	v := View{Now: start, Machine: machine(), Owners: map[string]OwnerFacts{}}
	v.Machine.Metadata.DeletionTimestamp = timestamppb.New(start)
	v.Machine.Spec.LifecycleHooks = &machinev1.LifecycleHooks{}
	settings := &hookv1.HookOwnerSpec{Owner: backup}
	name := func(i int) string { return fmt.Sprint("hook", i%hooks) }
	for i := range hooks {
		s := &hookv1.HookSettings{Name: name(i)}
		for j := range waits {
			s.After = append(s.After, name(i+j+1))
		}
		settings.Hooks = append(settings.Hooks, s)
		v.Machine.Spec.LifecycleHooks.PreDrain = append(v.Machine.Spec.LifecycleHooks.PreDrain,
			&machinev1.LifecycleHook{Name: name(i), Owner: backup})
	}
	v.Owners[backup] = OwnerFacts{Settings: settings}
	begin := time.Now()
	for range 100 {
		for _, a := range Machine(v).Do {
			if a.Task.GetStatus().GetPhase() != Pending {
				t.Fatalf("%s is %s, want Pending", a.Task.GetSpec().GetHookName(), a.Task.GetStatus().GetPhase())
			}
		}
	}
	if took := time.Since(begin) / 100; took > 500*time.Millisecond { // some 50 times what it takes
		t.Errorf("took %v", took)
	}
}
