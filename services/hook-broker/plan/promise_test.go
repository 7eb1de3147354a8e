package plan

import (
	"slices"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

// world is a machine, its tasks and people who try things, as the controller and the server would have it.
type world struct {
	now     time.Time
	machine *machinev1.Machine
	tasks   map[string]*hookv1.HookTask
	done    map[Hook]string // by whom each hook was completed, with the right to
	owners  map[string]OwnerFacts
}

// answers says for whom each user answers.
var answers = map[string][]string{
	"backup-1": {"backup"}, "backup-2": {"backup"}, "storage": {"storage"},
	"admin": {"backup", "storage"}, "mallory": nil,
}

func newWorld(t *rapid.T) *world {
	hooks := func(label string) []*machinev1.LifecycleHook {
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"One", "Two", "Three"}), 0, 3, rapid.ID[string]).Draw(t,
			label)
		var out []*machinev1.LifecycleHook
		for _, n := range names {
			out = append(out, &machinev1.LifecycleHook{Name: n, Owner: rapid.SampledFrom([]string{"backup", "storage"}).Draw(t,
				"owner of "+n)})
		}
		return out
	}
	owners := map[string]OwnerFacts{}
	for _, name := range []string{"backup", "storage"} {
		o := &hookv1.HookOwnerSpec{Owner: name}
		for _, h := range []string{"One", "Two", "Three"} {
			o.Hooks = append(o.Hooks, &hookv1.HookSettings{
				Name: h, Timeout: rapid.SampledFrom([]string{"", "2m"}).Draw(t, "timeout of "+h),
				TimeoutPolicy: rapid.SampledFrom([]string{"", "Wait", proceed}).Draw(t, "policy of "+h),
				After: rapid.SliceOfDistinct(rapid.SampledFrom([]string{"One", "Two", "Three", "None"}), rapid.ID[string]).Draw(t,
					"after of "+h),
			})
		}
		owners[name] = OwnerFacts{Settings: o}
	}
	return &world{
		owners: owners,
		now:    start, tasks: map[string]*hookv1.HookTask{}, done: map[Hook]string{},
		machine: &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Namespace: "n", Name: "m", Uid: uid},
			Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
				PreDrain:     hooks("preDrain"),
				PreTerminate: hooks("preTerminate"),
			}},
			Status: &machinev1.MachineStatus{},
		},
	}
}

// settle is one decision of the controller. It may be cut short after any step, as by a crash.
func (w *world) settle(t *rapid.T, steps int) {
	var tasks []*hookv1.HookTask
	for _, task := range w.tasks {
		tasks = append(tasks, task)
	}
	p := Machine(View{Now: w.now, Machine: w.machine, Tasks: tasks, Owners: w.owners})
	for _, a := range p.Do[:min(steps, len(p.Do))] {
		name := a.Task.GetMetadata().GetName()
		switch a.Verb {
		case RemoveTask:
			delete(w.tasks, name)
		case CreateTask:
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				t.Fatalf("name %q", name)
			}
			a.Task.Metadata.CreationTimestamp = floor(w.now)
			w.tasks[name] = a.Task
		case StoreTask:
			w.tasks[name] = a.Task
		case RemoveHook:
			w.removeHook(t, a.Task)
		}
	}
}

func (w *world) removeHook(t *rapid.T, task *hookv1.HookTask) {
	h := Hook{task.GetSpec().GetPoint(), task.GetSpec().GetHookName(), task.GetSpec().GetOwner()}
	by, completed := w.done[h]
	proceeded := object.FindCondition(task.GetStatus().GetConditions(), TimedOut)
	settings := w.owners[h.Owner].hook(h.Name)
	if proceeded.GetReason() == "Proceeded" && settings.GetTimeout() != "" && settings.GetTimeoutPolicy() == proceed &&
		!w.now.Before(started(task, task.GetMetadata().GetCreationTimestamp().AsTime()).Add(2*time.Minute)) {
		completed = true
		by = map[string]string{"backup": "backup-1", "storage": "storage"}[h.Owner]
	}
	if !completed || !slices.Contains(answers[by], h.Owner) {
		t.Fatalf("hook %v is removed, completed by %q", h, by)
	}
	same := func(have *machinev1.LifecycleHook) bool {
		return have.GetName() == h.Name && have.GetOwner() == h.Owner
	}
	hooks := w.machine.Spec.LifecycleHooks
	if h.Point == PreDrain {
		hooks.PreDrain = slices.DeleteFunc(slices.Clone(hooks.PreDrain), same)
	} else {
		hooks.PreTerminate = slices.DeleteFunc(slices.Clone(hooks.PreTerminate), same)
	}
}

// try has some user do something to some task.
func (w *world) try(t *rapid.T) {
	var names []string
	for n := range w.tasks {
		names = append(names, n)
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	task := w.tasks[rapid.SampledFrom(names).Draw(t, "task")]
	user := rapid.SampledFrom([]string{"backup-1", "backup-2", "storage", "admin", "mallory"}).Draw(t, "user")
	by := By{User: user, Answers: slices.Contains(answers[user], task.GetSpec().GetOwner())}
	before := proto.Clone(task.GetStatus()).(*hookv1.HookTaskStatus)
	var s *hookv1.HookTaskStatus
	var err error
	switch what := rapid.SampledFrom([]string{"claim", "renew", "complete", "fail"}).Draw(t, "what"); what {
	case "claim":
		s, err = Claim(task, by, w.now, time.Minute)
	case "renew":
		s, err = Renew(task, by, w.now, time.Minute, Progress{})
	case "fail":
		s, err = Fail(task, by, w.now, "broken")
	case "complete":
		if s, err = Complete(task, by, w.now, ""); err == nil && before.GetPhase() != Completed {
			w.done[Hook{task.GetSpec().GetPoint(), task.GetSpec().GetHookName(), task.GetSpec().GetOwner()}] = user
		}
	}
	if err != nil {
		return
	}
	if before.GetPhase() == Claimed && before.GetClaimedBy() != user &&
		w.now.Before(before.GetClaimExpiryTime().AsTime()) {
		t.Fatalf("%s changed a task that %s holds", user, before.GetClaimedBy())
	}
	next := proto.Clone(task).(*hookv1.HookTask)
	next.Status = s
	w.tasks[task.GetMetadata().GetName()] = next
}

// check checks what is true after a complete decision: exactly the hooks that hold the machine have a task.
func (w *world) check(t *rapid.T) {
	want := map[string]bool{}
	for _, h := range Holding(w.machine) {
		want[taskName(uid, h)] = true
	}
	for n, task := range w.tasks {
		if !want[n] {
			t.Fatalf("task %s (%v) of a hook that does not hold", n, task.GetSpec())
		}
	}
	waiting := 0
	for _, task := range w.tasks {
		if task.GetStatus().GetPhase() == Waiting {
			waiting++
		}
	}
	if waiting > 0 && waiting == len(w.tasks) {
		t.Fatalf("all %d tasks wait for each other", waiting)
	}
	if len(want) != len(w.tasks) {
		t.Fatalf("%d tasks for %d hooks", len(w.tasks), len(want))
	}
	for _, task := range w.tasks {
		if s := task.GetStatus(); s.GetPhase() == Claimed && !w.now.Before(s.GetClaimExpiryTime().AsTime()) {
			t.Fatalf("a claim that ran out still holds: %v", s)
		}
	}
}

func TestAHookIsRemovedOnlyWhenItsOwnerCompletedItAndTasksAreExactlyTheHooksThatHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"request deletion": func(*rapid.T) { w.machine.Metadata.DeletionTimestamp = timestamppb.New(w.now) },
			"drain": func(t *rapid.T) {
				if w.machine.Metadata.DeletionTimestamp == nil || len(w.machine.GetSpec().GetLifecycleHooks().GetPreDrain()) > 0 {
					t.Skip("machine-api does not drain yet")
				}
				w.machine.Status.Conditions = []*metav1.Condition{{Type: "Drained", Status: "True"}}
			},
			"try": w.try,
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			},
			"decide, cut short": func(t *rapid.T) { w.settle(t, rapid.IntRange(0, 3).Draw(t, "steps")) },
			"decide until all is done": func(t *rapid.T) {
				for range 3 { // remove a hook, see that it is gone, be done
					w.settle(t, 100)
				}
				w.check(t)
			},
		})
	})
}
