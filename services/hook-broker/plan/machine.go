package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// Conditions of a task.
const (
	Overdue   = "Overdue"   // it was not completed in time
	TimedOut  = "TimedOut"  // the timeout of its hook has passed; absent without one
	OwnerSeen = "OwnerSeen" // its owner has been connected; Unknown while that is not unusual yet
)

// unseenAfter is how long the owner of a new task may be missing before that is reported: it may be starting.
const unseenAfter = 30 * time.Second

// View is everything that the tasks of one machine depend on.
type View struct {
	Now     time.Time             // UTC
	Machine *machinev1.Machine    // nil if it is gone
	Tasks   []*hookv1.HookTask    // those that name the machine, in any order
	Owners  map[string]OwnerFacts // by the owner; one that is missing has default settings and was never seen
	// Seen says for how long this process has seen each task as it is, by the task's name. What ends with time ends only
	// after that time too, so that a clock that is ahead of the others ends nothing early; a task that is missing was not
	// seen before. Nil: only the times of day decide.
	Seen map[string]Sight
}

// Sight is for how long a process has seen a task, by a monotonic clock.
type Sight struct {
	Begun   time.Duration // since its owner could begin
	Claimed time.Duration // with its present claim, without a renewal
}

// Types of events.
const (
	normal  = "Normal"
	warning = "Warning"
)

// Machine decides about the tasks of a machine: exactly one for each hook that holds it now. A hook is removed only for
// a completed task of this very machine, hook and owner. The task of a removed hook stays until the machine is seen
// without the hook, so that an old view of the machine leads to no second task.
func Machine(v View) Plan {
	p := newPlanner(v)
	have := map[string]*hookv1.HookTask{}
	for _, t := range v.Tasks {
		have[t.GetMetadata().GetName()] = t
	}
	var wanted []*hookv1.HookTask
	for _, h := range Holding(v.Machine) {
		wanted = append(wanted, p.task(h))
	}
	needed := map[string]bool{}
	for _, w := range wanted {
		needed[w.GetMetadata().GetName()] = true
	}
	for _, t := range v.Tasks {
		if !needed[t.GetMetadata().GetName()] {
			p.plan.Do = append(p.plan.Do, Action{Verb: RemoveTask, Task: t, Reason: p.unneeded()})
		}
	}
	for _, t := range wanted {
		if stored, ok := have[t.GetMetadata().GetName()]; ok {
			p.keep(stored, t.GetSpec())
		} else {
			p.create(t)
		}
	}
	return p.plan
}

// unneeded says why a task has no hook.
func (p *planner) unneeded() string {
	if p.Machine == nil {
		return "the machine no longer exists"
	}
	return "no hook of the machine needs it now"
}

type planner struct {
	View
	plan Plan
	// holding are the hooks that hold the machine now, by name, and reached the names of those that each waits for,
	// possibly by way of others.
	holding map[string]Hook
	reached map[string]map[string]bool
}

func newPlanner(v View) *planner {
	p := &planner{View: v, holding: map[string]Hook{}, reached: map[string]map[string]bool{}}
	for _, h := range Holding(v.Machine) {
		if _, twice := p.holding[h.Name]; !twice {
			p.holding[h.Name] = h
		}
	}
	return p
}

// task returns the task of a hook without a status.
func (p *planner) task(h Hook) *hookv1.HookTask {
	spec := &hookv1.HookTaskSpec{
		MachineRef: object.Reference(p.Machine), Point: h.Point, HookName: h.Name, Owner: h.Owner,
		NodeName: p.Machine.GetStatus().GetNodeRef().GetName(),
	}
	for _, a := range p.Machine.GetStatus().GetAddresses() {
		if !slices.Contains(spec.Addresses, a.GetAddress()) { // a name may be there as host name and as DNS name
			spec.Addresses = append(spec.Addresses, a.GetAddress())
		}
	}
	return &hookv1.HookTask{
		Metadata: &metav1.ObjectMeta{Name: taskName(p.Machine.GetMetadata().GetUid(), h)},
		Spec:     spec,
	}
}

func (p *planner) create(t *hookv1.HookTask) {
	owner := t.GetSpec().GetOwner()
	t.Status = &hookv1.HookTaskStatus{
		Phase: proto.String(Pending), Attempts: proto.Int32(0), Message: proto.String("waiting for " + owner),
	}
	reason, event := p.pending(t), "HookPending"
	if first := p.first(t.GetSpec()); len(first) > 0 {
		t.Status.Phase, t.Status.Message = proto.String(Waiting), proto.String(waitsFor(first))
		reason, event = fmt.Sprintf("%s hook %s %s", t.GetSpec().GetPoint(), t.GetSpec().GetHookName(), waitsFor(first)),
			"HookWaiting"
	}
	events := append([]Event{{normal, event, reason}}, p.unordered(t)...)
	events = append(events, p.judge(t, p.Now, p.Owners[owner])...)
	p.plan.Do = append(p.plan.Do, Action{Verb: CreateTask, Task: t, Reason: reason, Events: events})
	p.hold(t, p.Now)
}

func (p *planner) pending(t *hookv1.HookTask) string {
	s := t.GetSpec()
	return fmt.Sprintf("%s hook %s waits for its owner %s", s.GetPoint(), s.GetHookName(), s.GetOwner())
}

func waitsFor(first []string) string {
	return "waits for " + strings.Join(first, ", ") + ", which must be removed first"
}

// first returns the hooks that hold the machine and must be removed before a task begins. Hooks that wait for each
// other have no order.
func (p *planner) first(of *hookv1.HookTaskSpec) []string {
	var out []string
	for _, name := range p.after(of.GetHookName(), of.GetOwner()) {
		if h, ok := p.holding[name]; ok && !p.reaches(h, of.GetHookName()) {
			out = append(out, fmt.Sprintf("hook %s of %s", h.Name, h.Owner))
		}
	}
	return out
}

// unordered reports the hooks that a task would wait for if they did not wait for it.
func (p *planner) unordered(t *hookv1.HookTask) []Event {
	var out []Event
	for _, name := range p.after(t.GetSpec().GetHookName(), t.GetSpec().GetOwner()) {
		if h, ok := p.holding[name]; ok && p.reaches(h, t.GetSpec().GetHookName()) {
			out = append(out, About(t, warning, "HookOrderIgnored", fmt.Sprintf(
				"it should wait for hook %s of %s, which waits for it: neither waits; change spec.hooks of their hook owners", name,
				h.Owner)))
		}
	}
	return out
}

// after returns what the settings of a hook say must be removed before it.
func (p *planner) after(hook, owner string) []string { return p.Owners[owner].hook(hook).GetAfter() }

// reaches reports whether a hook is the one of a name or waits for it, possibly by way of others.
func (p *planner) reaches(h Hook, name string) bool {
	reached, known := p.reached[h.Name]
	if !known {
		reached = map[string]bool{h.Name: true}
		for next := []Hook{h}; len(next) > 0; next = next[1:] {
			for _, n := range p.after(next[0].Name, next[0].Owner) {
				if further, ok := p.holding[n]; ok && !reached[n] {
					reached[n] = true
					next = append(next, further)
				}
			}
		}
		p.reached[h.Name] = reached
	}
	return reached[name]
}

// keep updates an existing task. spec is as the machine has it now.
func (p *planner) keep(have *hookv1.HookTask, spec *hookv1.HookTaskSpec) {
	next := object.Clone(have)
	next.Spec, next.Status = spec, statusOf(have)
	if next.Status.GetPhase() == Completed {
		p.plan.Do = append(p.plan.Do, Action{
			Verb: RemoveHook, Task: have, Machine: p.Machine, Reason: "its task is completed",
		})
		return
	}
	created := have.GetMetadata().GetCreationTimestamp().AsTime()
	events := append(p.begin(next), p.expire(next)...)
	events = append(events, p.judge(next, created, p.Owners[spec.GetOwner()])...)
	events = append(events, p.timeOut(next, created)...)
	if !proto.Equal(have, next) {
		p.plan.Do = append(p.plan.Do, Action{
			Verb: StoreTask, Task: next, Reason: changed(have, next, events),
			Events: events,
		})
	}
	if next.Status.GetPhase() != Completed {
		p.call(next, p.Owners[spec.GetOwner()])
		p.hold(next, created)
	}
}

// begin lets a task begin that no other hook comes before any more.
func (p *planner) begin(t *hookv1.HookTask) []Event {
	if t.Status.GetPhase() != Waiting {
		return nil
	}
	if first := p.first(t.GetSpec()); len(first) > 0 {
		t.Status.Message = proto.String(waitsFor(first))
		return nil
	}
	t.Status.Phase, t.Status.StartTime = proto.String(Pending), floor(p.Now)
	t.Status.Message = proto.String("waiting for " + t.GetSpec().GetOwner())
	return []Event{{normal, "HookPending", p.pending(t)}}
}

// changed says why a task is written.
func changed(before, after *hookv1.HookTask, events []Event) string {
	switch {
	case len(events) > 0:
		return events[0].Message
	case !proto.Equal(before.GetSpec(), after.GetSpec()):
		return "the node or the addresses of the machine changed"
	}
	return object.FindCondition(after.GetStatus().GetConditions(), OwnerSeen).GetMessage()
}

// hold notes that a hook is not removed before its task is completed.
func (p *planner) hold(t *hookv1.HookTask, since time.Time) {
	s := t.GetSpec()
	p.plan.hold(&metav1.HeldBack{
		Action: RemoveHook, Object: s.GetMachineRef(), SinceTime: object.Timestamp(since),
		Reason:  fmt.Sprintf("%s hook %s: %s", s.GetPoint(), s.GetHookName(), t.GetStatus().GetMessage()),
		Unblock: p.unblock(t, since),
	})
}

// unblock says what removes the hook of a task.
func (p *planner) unblock(t *hookv1.HookTask, since time.Time) string {
	s := t.GetSpec()
	out := fmt.Sprintf("%s completes task %s", s.GetOwner(), t.GetMetadata().GetName())
	if t.GetStatus().GetPhase() == Waiting {
		out = "the hooks before it are removed, and then " + out
	}
	if at, proceeds, ok := p.Owners[s.GetOwner()].timeout(t, since); ok && proceeds {
		out += fmt.Sprintf(", or its timeout passes at %s", clock(at))
	}
	return out
}

// early reports whether less than after has passed since a task was in a state, as this process saw it, and decides
// again when it has.
func (p *planner) early(t *hookv1.HookTask, after time.Duration, of func(Sight) time.Duration) bool {
	if p.Seen == nil {
		return false
	}
	left := after - of(p.Seen[t.GetMetadata().GetName()])
	if left <= 0 {
		return false
	}
	p.plan.wake(p.Now.Add(left))
	return true
}

func sinceBegun(s Sight) time.Duration   { return s.Begun }
func sinceClaimed(s Sight) time.Duration { return s.Claimed }

// timeOut notes that the timeout of a task's hook has passed, and completes the task where the settings say so.
func (p *planner) timeOut(t *hookv1.HookTask, created time.Time) []Event {
	s := t.Status
	at, proceeds, ok := p.Owners[t.GetSpec().GetOwner()].timeout(t, created)
	if !ok || p.Now.Before(at) {
		if ok {
			p.plan.wake(at)
		}
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c *metav1.Condition) bool { return c.GetType() == TimedOut })
		return nil
	}
	was := object.FindCondition(s.GetConditions(), TimedOut)
	if was == nil && p.early(t, at.Sub(started(t, created)), sinceBegun) {
		return nil
	}
	reason, text := "Waiting", fmt.Sprintf("not completed by %s; the machine waits%s", clock(at), overrideHint(t))
	if proceeds {
		reason, text = "Proceeded", fmt.Sprintf(
			"not completed by %s; hook-broker removes the hook, as timeoutPolicy Proceed of hook owner %s requires", clock(at),
			OwnerName(t.GetSpec().GetOwner()))
		s.Phase, s.CompletionTime, s.Message = proto.String(Completed), floor(p.Now), proto.String(text)
		s.ClaimExpiryTime, s.RenewTime = nil, nil
	}
	s.Conditions = object.SetCondition(s.GetConditions(), condition(TimedOut, "True", reason, text), p.Now)
	if was.GetReason() == reason {
		return nil
	}
	return []Event{About(t, warning, "HookTimedOut", text)}
}

// overrideHint names the command that completes a task in place of its owner. There is none for the quorum's hook.
func overrideHint(t *hookv1.HookTask) string {
	s := t.GetSpec()
	if s.GetOwner() == quorumOwner {
		return "; `windlass quorum` shows what it waits for"
	}
	return fmt.Sprintf("; if its work is done or not needed: windlass hooks override %s %s --reason TEXT",
		s.GetMachineRef().GetName(), s.GetHookName())
}

// expire frees a task whose claim ran out.
func (p *planner) expire(t *hookv1.HookTask) []Event {
	s := t.Status
	if s.GetPhase() != Claimed {
		return nil
	}
	if !expired(s, p.Now) {
		p.plan.wake(s.GetClaimExpiryTime().AsTime())
		return nil
	}
	if p.early(t, lasts(s), sinceClaimed) {
		return nil
	}
	message := fmt.Sprintf("the claim of %s ran out at %s", s.GetClaimedBy(), clock(s.GetClaimExpiryTime().AsTime()))
	s.Phase, s.Message = proto.String(Pending), proto.String(message)
	s.ClaimedBy, s.ClaimTime, s.ClaimExpiryTime, s.RenewTime = nil, nil, nil, nil
	return []Event{About(t, warning, "HookClaimExpired", message)}
}

// judge sets the conditions of a task that was created then.
func (p *planner) judge(t *hookv1.HookTask, created time.Time, owner OwnerFacts) []Event {
	var events []Event
	set := func(c *metav1.Condition, reason string) {
		was := object.FindCondition(t.Status.GetConditions(), c.GetType())
		t.Status.Conditions = object.SetCondition(t.Status.GetConditions(), c, p.Now)
		if reason != "" && was.GetStatus() != c.GetStatus() {
			events = append(events, About(t, warning, reason, c.GetMessage()))
		}
	}
	c, reason := p.seen(t, created, owner)
	set(c, reason)
	c, reason = p.overdue(t, created, owner)
	set(c, reason)
	return events
}

// seen returns the condition that says whether the owner is connected; reason is that of an event, empty for none.
func (p *planner) seen(t *hookv1.HookTask, created time.Time, owner OwnerFacts) (c *metav1.Condition, reason string) {
	name, last := t.GetSpec().GetOwner(), owner.LastSeen
	if last.IsZero() && t.Status.GetAttempts() > 0 { // its object was deleted
		last = created
	}
	reported := object.FindCondition(t.Status.GetConditions(), OwnerSeen).GetStatus() == "False"
	switch unseen := created.Add(unseenAfter); {
	case owner.Connected:
		return condition(OwnerSeen, "True", "Connected", fmt.Sprintf("%s is connected", name)), ""
	case !last.IsZero() && p.Now.Before(last.Add(awayAfter)):
		p.plan.wake(last.Add(awayAfter))
		return condition(OwnerSeen, "True", "Disconnected", fmt.Sprintf("%s was seen before and is not connected now", name)),
			""
	case !last.IsZero() && !reported && p.early(t, unseenAfter, sinceBegun): // to connect to a new leader
		return condition(OwnerSeen, "True", "Disconnected", fmt.Sprintf("%s was seen before and is not connected now", name)),
			""
	case !last.IsZero():
		return condition(OwnerSeen, "False", "Away", fmt.Sprintf(
				"no client of %s was seen since %s; the machine waits until its hook is completed", name, clock(last))),
			"HookOwnerNotSeen"
	case p.Now.Before(unseen):
		p.plan.wake(unseen)
		return condition(OwnerSeen, "Unknown", "NotSeenYet", fmt.Sprintf("%s has not been seen yet", name)), ""
	case !reported && p.early(t, unseenAfter, sinceBegun):
		return condition(OwnerSeen, "Unknown", "NotSeenYet", fmt.Sprintf("%s has not been seen yet", name)), ""
	}
	return condition(OwnerSeen, "False", "NeverSeen", fmt.Sprintf(
			"no client of %s has ever been seen; the machine waits until its hook is completed", name)),
		"HookOwnerNotSeen"
}

func (p *planner) overdue(t *hookv1.HookTask, created time.Time, owner OwnerFacts) (c *metav1.Condition,
	reason string,
) {
	if t.Status.GetPhase() == Waiting {
		return condition(Overdue, "False", "NotBegun", ""), ""
	}
	after := owner.overdueAfter(t.GetSpec().GetHookName())
	due := started(t, created).Add(after)
	if p.Now.Before(due) {
		p.plan.wake(due)
		return condition(Overdue, "False", "InTime", ""), ""
	}
	if !object.IsTrue(t.Status.GetConditions(), Overdue) && p.early(t, after, sinceBegun) {
		return condition(Overdue, "False", "InTime", ""), ""
	}
	return condition(Overdue, "True", "NotCompletedInTime", fmt.Sprintf(
		"%s has not completed it within %v, by %s%s", t.GetSpec().GetOwner(), after,
		clock(due), overrideHint(t))), "HookOverdue"
}

// started returns when the owner of a task could begin.
func started(t *hookv1.HookTask, created time.Time) time.Time {
	if at := t.GetStatus().GetStartTime(); at != nil {
		return at.AsTime()
	}
	return created
}

// About returns an event about a task's hook.
func About(t *hookv1.HookTask, typ, reason, message string) Event {
	return Event{typ, reason, fmt.Sprintf("%s hook %s: %s", t.GetSpec().GetPoint(), t.GetSpec().GetHookName(), message)}
}

func condition(typ, status, reason, message string) *metav1.Condition {
	c := &metav1.Condition{Type: typ, Status: status, Reason: proto.String(reason)}
	if message != "" {
		c.Message = proto.String(message)
	}
	if status == "False" && (reason == "NeverSeen" || reason == "Away") {
		c.Severity = "Warning"
	}
	return c
}
