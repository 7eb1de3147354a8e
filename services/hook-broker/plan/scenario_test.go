package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestScenarios plays the files of testdata: each describes what happens to a cluster, what this service does about it
// and what it waits for. Run it with -rewrite to write the current results into the files. What happens is one of
// these, a line each:
//
//	machine m pre-drain=hook:owner pre-terminate=hook:owner    a machine with hooks; several are separated by commas
//	delete m, drained m, gone m                deletion is requested; the drain is over; the machine no longer exists
//	owner o [claim=10s] [overdue=5m]           the settings of an owner
//	hook h of=o [overdue=5m] [timeout=1h] [policy=Proceed] [after=a,b]     the settings of a hook of an owner
//	connects o, disconnects o                  a client of an owner opens and closes its stream
//	claim hook by=u, renew …, complete …, fail …       what user u does with the task of a hook
//	machine-api answers, machine-api away: …   whether machine-api answers
//	restarts                                   another process leads, which remembers no owner
//
// "pass 30s" lets time pass, and "held" shows what is held back, since when, and what resolves it. Times are minutes
// and seconds since the start.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{
			clock: start, machines: map[string]*machinev1.Machine{}, tasks: map[string]*hookv1.HookTask{},
			owners: map[string]*hookv1.HookOwner{}, connected: map[string]bool{}, seen: map[string]time.Time{},
			waits: map[string]string{},
		}
		datadriven.RunTest(t, path, s.run)
	})
}

// scenario plays all that is around the plans: the objects, the clients of owners, machine-api and the controller.
type scenario struct {
	clock     time.Time
	machines  map[string]*machinev1.Machine
	tasks     map[string]*hookv1.HookTask
	owners    map[string]*hookv1.HookOwner // by the owner as hooks name it
	connected map[string]bool
	seen      map[string]time.Time
	away      string            // why machine-api does not answer
	waits     map[string]string // what each machine was last said to wait for
	out       strings.Builder
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	for _, line := range strings.Split(d.Input, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			s.command(t, words)
			s.settle(t)
		}
	}
	switch d.Cmd {
	case "happens":
	case "pass":
		s.pass(t, length(t, d.CmdArgs[0].Key))
	case "held":
		s.held()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if s.out.Len() == 0 {
		return "nothing\n"
	}
	return s.out.String()
}

func (s *scenario) printf(format string, args ...any) {
	fmt.Fprintf(&s.out, "%s %s\n", clockText(s.clock), fmt.Sprintf(format, args...))
}

func clockText(at time.Time) string {
	d := at.Sub(start)
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func length(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// command carries out one line of what happens.
func (s *scenario) command(t *testing.T, words []string) {
	t.Helper()
	args := map[string]string{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
	}
	name, _, _ := strings.Cut(append(words, "")[1], ":")
	switch words[0] {
	case "machine":
		s.machines[name] = &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Namespace: "n", Name: name, Uid: "uid-" + name},
			Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
				PreDrain: hooksOf(args["pre-drain"]), PreTerminate: hooksOf(args["pre-terminate"]),
			}},
			Status: &machinev1.MachineStatus{},
		}
	case "delete":
		s.machines[name].Metadata.DeletionTimestamp = timestamppb.New(s.clock)
	case "drained":
		s.machines[name].Status.Conditions = []*metav1.Condition{{Type: drained, Status: "True"}}
	case "gone":
		delete(s.machines, name)
	case "owner":
		s.owners[name] = &hookv1.HookOwner{
			Metadata: &metav1.ObjectMeta{Name: OwnerName(name), CreationTimestamp: timestamppb.New(s.clock)},
			Spec:     &hookv1.HookOwnerSpec{Owner: name, ClaimDuration: args["claim"], OverdueAfter: args["overdue"]},
		}
	case "hook":
		o := s.owners[args["of"]]
		o.Spec.Hooks = append(o.Spec.Hooks, &hookv1.HookSettings{
			Name: name, OverdueAfter: args["overdue"], Timeout: args["timeout"], TimeoutPolicy: args["policy"],
			After: strings.FieldsFunc(args["after"], func(r rune) bool { return r == ',' }),
		})
		for _, f := range OwnerFaults(o) {
			s.printf("refused: %s", f)
		}
	case "connects", "disconnects":
		s.connected[name], s.seen[name] = words[0] == "connects", s.clock
	case "claim", "renew", "complete", "fail":
		s.change(t, words[0], name, args["by"])
	case "machine-api":
		s.away = map[bool]string{true: strings.Join(words[2:], " ")}[name == "away"]
	case "restarts":
		clear(s.connected)
		clear(s.seen)
	default:
		t.Fatalf("unknown: %v", words)
	}
}

func hooksOf(list string) []*machinev1.LifecycleHook {
	var out []*machinev1.LifecycleHook
	for _, text := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		name, owner, _ := strings.Cut(text, ":")
		out = append(out, &machinev1.LifecycleHook{Name: name, Owner: owner})
	}
	return out
}

// change does what a user asks for with the task of a hook. All users act for all owners.
func (s *scenario) change(t *testing.T, verb, hook, user string) {
	t.Helper()
	for _, task := range sorted(s.tasks) {
		if task.GetSpec().GetHookName() != hook {
			continue
		}
		var status *hookv1.HookTaskStatus
		var err error
		by, lasts := By{User: user, Answers: true}, s.facts(task.GetSpec().GetOwner()).ClaimDuration()
		switch verb {
		case "claim":
			status, err = Claim(task, by, s.clock, lasts)
		case "renew":
			status, err = Renew(task, by, s.clock, lasts, Progress{})
		case "complete":
			status, err = Complete(task, by, s.clock, "")
		case "fail":
			status, err = Fail(task, by, s.clock, "broken")
		}
		if err != nil {
			s.printf("%s may not %s it: %v", user, verb, err)
			return
		}
		next := object.Clone(task)
		next.Status = status
		s.tasks[task.GetMetadata().GetName()] = next
		s.seen[task.GetSpec().GetOwner()] = s.clock
		return
	}
	t.Fatalf("hook %s has no task", hook)
}

func sorted[T any](m map[string]T) []T {
	var out []T
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

func (s *scenario) facts(owner string) OwnerFacts {
	f := OwnerFacts{Settings: s.owners[owner].GetSpec(), Connected: s.connected[owner], LastSeen: s.seen[owner]}
	if at := s.owners[owner].GetStatus().GetLastSeenTime(); at != nil && at.AsTime().After(f.LastSeen) {
		f.LastSeen = at.AsTime()
	}
	return f
}

// names returns the machines that exist or have tasks, and the owners that are known or that hooks name.
func (s *scenario) names() (machines, owners []string) {
	m, o := maps.Clone(s.machines), map[string]bool{}
	for _, t := range s.tasks {
		if name := t.GetSpec().GetMachineRef().GetName(); m[name] == nil {
			m[name] = nil
		}
		o[t.GetSpec().GetOwner()] = true
	}
	for _, machine := range s.machines {
		for _, h := range Hooks(machine) {
			o[h.Owner] = true
		}
	}
	for name := range s.owners {
		o[name] = true
	}
	for name := range s.seen {
		o[name] = true
	}
	return slices.Sorted(maps.Keys(m)), slices.Sorted(maps.Keys(o))
}

func (s *scenario) machine(name string) Plan {
	v := View{Now: s.clock, Machine: object.Clone(s.machines[name]), Owners: map[string]OwnerFacts{}}
	for _, t := range sorted(s.tasks) {
		if t.GetSpec().GetMachineRef().GetName() == name {
			v.Tasks = append(v.Tasks, t)
		}
	}
	for _, h := range Holding(v.Machine) {
		v.Owners[h.Owner] = s.facts(h.Owner)
	}
	return Machine(v)
}

func (s *scenario) owner(name string) Plan {
	v := OwnerView{
		Now: s.clock, Owner: name, Object: s.owners[name], Connected: s.connected[name], LastSeen: s.seen[name],
	}
	for _, m := range s.machines {
		v.Named = v.Named || slices.ContainsFunc(Hooks(m), func(h Hook) bool { return h.Owner == name })
	}
	for _, t := range sorted(s.tasks) {
		if t.GetSpec().GetOwner() == name {
			v.Tasks = append(v.Tasks, t)
		}
	}
	return Owner(v)
}

// settle carries out all decisions until nothing is to be done, and returns when to decide again.
func (s *scenario) settle(t *testing.T) time.Time {
	t.Helper()
	for range 20 {
		machines, owners := s.names()
		busy, wakes := false, Plan{}
		decide := func(p Plan) {
			busy = s.do(p.Do) || busy
			if !p.Wake.IsZero() {
				wakes.wake(p.Wake)
			}
		}
		for _, name := range machines {
			p := s.machine(name)
			decide(p)
			s.say(name, p.WaitsFor)
		}
		for _, name := range owners {
			decide(s.owner(name))
		}
		if !busy {
			return wakes.Wake
		}
	}
	t.Fatalf("it does not settle:\n%s", s.out.String())
	return time.Time{}
}

// do carries out what a plan contains. It reports whether anything changed.
func (s *scenario) do(actions []Action) (changed bool) {
	for _, a := range actions {
		name, hook := a.Task.GetMetadata().GetName(), a.Task.GetSpec().GetHookName()
		switch a.Verb {
		case CreateTask:
			a.Task.Metadata.CreationTimestamp = timestamppb.New(s.clock)
			s.tasks[name] = a.Task
		case StoreTask:
			s.tasks[name] = a.Task
		case RemoveTask:
			s.printf("the task of %s is removed", hook)
			delete(s.tasks, name)
		case RemoveHook:
			if s.away != "" {
				s.printf("hook %s cannot be removed: %s", hook, s.away)
				continue
			}
			s.printf("hook %s is removed from machine %s", hook, a.Machine.GetMetadata().GetName())
			s.removeHook(a.Task.GetSpec())
		case CreateOwner:
			a.Owner.Metadata.CreationTimestamp = timestamppb.New(s.clock)
			s.owners[a.Owner.GetSpec().GetOwner()] = a.Owner
		case RemoveOwner:
			s.printf("owner %s is removed", a.Owner.GetSpec().GetOwner())
			delete(s.owners, a.Owner.GetSpec().GetOwner())
		case StoreOwner:
			s.sayOwner(s.owners[a.Owner.GetSpec().GetOwner()], a.Owner)
			s.owners[a.Owner.GetSpec().GetOwner()] = a.Owner
		}
		for _, e := range a.Events {
			s.printf("%s %s: %s", e.Type, e.Reason, e.Message)
		}
		changed = true
	}
	return changed
}

func (s *scenario) removeHook(spec *hookv1.HookTaskSpec) {
	m := object.Clone(s.machines[spec.GetMachineRef().GetName()])
	same := func(h *machinev1.LifecycleHook) bool {
		return h.GetName() == spec.GetHookName() && h.GetOwner() == spec.GetOwner()
	}
	if hooks := m.Spec.LifecycleHooks; spec.GetPoint() == PreDrain {
		hooks.PreDrain = slices.DeleteFunc(hooks.PreDrain, same)
	} else {
		hooks.PreTerminate = slices.DeleteFunc(hooks.PreTerminate, same)
	}
	s.machines[m.GetMetadata().GetName()] = m
}

// sayOwner prints what changed about an owner, but for when it was seen.
func (s *scenario) sayOwner(before, after *hookv1.HookOwner) {
	text := func(o *hookv1.HookOwner) string {
		seen := object.FindCondition(o.GetStatus().GetConditions(), Seen)
		late := object.FindCondition(o.GetStatus().GetConditions(), Overdue)
		return fmt.Sprintf("connected %v, %d tasks, Seen=%s Overdue=%s", o.GetStatus().GetConnected(),
			o.GetStatus().GetPendingTasks(), seen.GetReason(), late.GetReason())
	}
	if is := text(after); is != text(before) {
		s.printf("owner %s: %s", after.GetSpec().GetOwner(), is)
	} else if !proto.Equal(before.GetStatus().GetLastSeenTime(), after.GetStatus().GetLastSeenTime()) {
		s.printf("owner %s: seen last at %s", after.GetSpec().GetOwner(),
			clockText(after.GetStatus().GetLastSeenTime().AsTime()))
	}
}

// say prints what a machine waits for, if that changed.
func (s *scenario) say(machine, waitsFor string) {
	if s.waits[machine] != waitsFor && waitsFor != "" {
		s.printf("machine %s waits: %s", machine, waitsFor)
	}
	s.waits[machine] = waitsFor
}

// pass lets time pass, from one decision to the next.
func (s *scenario) pass(t *testing.T, d time.Duration) {
	t.Helper()
	end := s.clock.Add(d)
	for wake := s.settle(t); !wake.IsZero() && wake.Before(end); wake = s.settle(t) {
		s.clock = wake
	}
	s.clock = end
	s.settle(t)
}

// held prints what is held back.
func (s *scenario) held() {
	machines, _ := s.names()
	for _, name := range machines {
		for _, h := range s.machine(name).Held {
			s.printf("machine %s: %s is held back since %s: %s\n      until %s", name, h.Action,
				clockText(h.GetSinceTime().AsTime()), h.Reason,
				h.Unblock)
		}
	}
}
