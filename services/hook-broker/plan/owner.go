package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// Settings of an owner that sets nothing else.
const (
	defaultClaim   = time.Minute      // an owner that dies is noticed within this
	defaultOverdue = 10 * time.Minute // longer than a drain mostly takes
)

// Bounds of an owner's settings.
const (
	shortestClaim = time.Second // claims are kept in whole seconds
	longestClaim  = 24 * time.Hour
	longestWait   = 365 * 24 * time.Hour
)

// proceed is the policy of a timeout after which a hook is removed.
const proceed = "Proceed"

// Seen is the condition of an owner that says whether a client that acts for it is connected, or was within awayAfter.
const Seen = "Seen"

// awayAfter is how long an owner that was seen before may be missing before that is reported: a client that starts
// again, or that asks for its tasks now and then, is back sooner.
const awayAfter = 5 * time.Minute

// storeSeen is how often the time at which an owner was seen last is stored while it changes all the time.
const storeSeen = 30 * time.Second

// OwnerFacts is what a task depends on of its owner: what is stored of it and what is remembered, taken together.
type OwnerFacts struct {
	Settings  *hookv1.HookOwnerSpec // nil for the defaults
	Connected bool
	LastSeen  time.Time // zero if never
}

// StoredFacts returns what the object of an owner says about it; nil if there is none.
func StoredFacts(o *hookv1.HookOwner) OwnerFacts {
	f := OwnerFacts{Settings: o.GetSpec(), Connected: o.GetStatus().GetConnected()}
	if at := o.GetStatus().GetLastSeenTime(); at != nil {
		f.LastSeen = at.AsTime()
	}
	return f
}

// hook returns the settings of a hook of the owner; nil for those of the owner itself.
func (o OwnerFacts) hook(name string) *hookv1.HookSettings {
	for _, h := range o.Settings.GetHooks() {
		if h.GetName() == name {
			return h
		}
	}
	return nil
}

// overdueAfter returns after how long a task of a hook is overdue.
func (o OwnerFacts) overdueAfter(hook string) time.Duration {
	return setting(o.hook(hook).GetOverdueAfter(), setting(o.Settings.GetOverdueAfter(), defaultOverdue))
}

// timeout returns when a task that was created at a time times out, and whether its hook is removed then; ok is false
// if it never does, and while it is Waiting.
func (o OwnerFacts) timeout(t *hookv1.HookTask, created time.Time) (at time.Time, proceeds, ok bool) {
	h := o.hook(t.GetSpec().GetHookName())
	after := setting(h.GetTimeout(), 0)
	if after == 0 || t.GetStatus().GetPhase() == Waiting {
		return time.Time{}, false, false
	}
	return started(t, created).Add(after), h.GetTimeoutPolicy() == proceed && t.GetSpec().GetOwner() != quorumOwner, true
}

// ClaimDuration returns how long a claim of the owner's lasts.
func (o OwnerFacts) ClaimDuration() time.Duration {
	return setting(o.Settings.GetClaimDuration(), defaultClaim)
}

// setting reads a length of time that was checked when it was stored.
func setting(text string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return otherwise
	}
	return d
}

// OwnerFaults returns what is wrong with a HookOwner beyond the rules of its message: there is one for each owner,
// under the name that is made from it.
func OwnerFaults(o *hookv1.HookOwner) []object.Fault {
	var bad []object.Fault
	if want := OwnerName(o.GetSpec().GetOwner()); o.GetSpec().GetOwner() != "" && o.GetMetadata().GetName() != want {
		bad = append(bad,
			object.Faultf("metadata.name", "must be %q, the name for owner %q", want, o.GetSpec().GetOwner()))
	}
	bad = append(bad, lengthFault("spec.claimDuration", o.GetSpec().GetClaimDuration(), shortestClaim, longestClaim)...)
	bad = append(bad, lengthFault("spec.overdueAfter", o.GetSpec().GetOverdueAfter(), time.Second, longestWait)...)
	for i, h := range o.GetSpec().GetHooks() {
		bad = append(bad, hookFaults(o.GetSpec(), i, h)...)
	}
	return bad
}

// hookFaults returns what is wrong with the settings of a hook of an owner.
func hookFaults(o *hookv1.HookOwnerSpec, i int, h *hookv1.HookSettings) []object.Fault {
	path := fmt.Sprintf("spec.hooks[%d].", i)
	bad := append(lengthFault(path+"overdueAfter", h.GetOverdueAfter(), time.Second, longestWait),
		lengthFault(path+"timeout", h.GetTimeout(), time.Second, longestWait)...)
	if slices.ContainsFunc(o.GetHooks()[:i], func(b *hookv1.HookSettings) bool { return b.GetName() == h.GetName() }) {
		bad = append(bad, object.Faultf(path+"name", "%q has settings already", h.GetName()))
	}
	switch {
	case h.GetTimeoutPolicy() == proceed && o.GetOwner() == quorumOwner:
		bad = append(bad, object.Faultf(path+"timeoutPolicy", "must be Wait: the hook of %s protects the quorum",
			quorumOwner))
	case h.GetTimeoutPolicy() != "" && h.GetTimeout() == "":
		bad = append(bad, object.Faultf(path+"timeoutPolicy", "has no effect without %stimeout", path))
	}
	for j, name := range h.GetAfter() {
		f := OwnerFacts{Settings: o}
		if f.leads(name, h.GetName(), map[string]bool{}) {
			bad = append(bad, object.Faultf(fmt.Sprintf("%safter[%d]", path, j), "%q waits for %q itself", name, h.GetName()))
		}
	}
	return bad
}

// leads reports whether a hook waits for another one by the settings of this owner alone.
func (o OwnerFacts) leads(from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(o.hook(from).GetAfter(), func(n string) bool { return o.leads(n, to, seen) })
}

func lengthFault(path, text string, least, most time.Duration) []object.Fault {
	if text == "" {
		return nil
	}
	if d, err := time.ParseDuration(text); err != nil || d < least || d > most {
		return []object.Fault{object.Faultf(path, "%q must be a length of time from %v to %v", text, least, most)}
	}
	return nil
}

// OwnerView is everything that the object of one owner depends on.
type OwnerView struct {
	Now       time.Time          // UTC
	Owner     string             // as hooks name it
	Object    *hookv1.HookOwner  // nil if there is none
	Tasks     []*hookv1.HookTask // of this owner, in any order
	Named     bool               // whether a hook of any machine names it
	Connected bool               // whether a client streams its tasks
	LastSeen  time.Time          // last call or end of a stream that this process remembers; zero if none
}

// unnamedFor is how old the object of an owner must be before it is removed because no hook names the owner.
const unnamedFor = time.Minute

// forgets reports whether nothing is lost without the object of an owner: no hook names the owner, it was never seen,
// and no user wrote anything into the object. Machines may name any number of owners, one after the other.
func (v OwnerView) forgets() bool {
	m := v.Object.GetMetadata()
	return !v.Named && !v.Connected && v.LastSeen.IsZero() && v.Object.GetStatus().GetLastSeenTime() == nil &&
		len(v.Tasks) == 0 && len(m.GetLabels())+len(m.GetAnnotations())+len(m.GetOwnerReferences()) == 0 &&
		proto.Equal(v.Object.GetSpec(), &hookv1.HookOwnerSpec{Owner: v.Owner})
}

// Owner decides about the object of an owner, which exists from the moment that a hook names the owner or that it
// connects. It ends a while after the last hook that names the owner, unless there is something to remember.
func Owner(v OwnerView) Plan {
	if v.Object == nil {
		if !v.Named && !v.Connected && v.LastSeen.IsZero() && len(v.Tasks) == 0 {
			return Plan{}
		}
		return Plan{Do: []Action{{Verb: CreateOwner, Owner: &hookv1.HookOwner{
			Metadata: &metav1.ObjectMeta{Name: OwnerName(v.Owner)},
			Spec:     &hookv1.HookOwnerSpec{Owner: v.Owner},
		}}}}
	}
	next := object.Clone(v.Object)
	if next.Status == nil {
		next.Status = &hookv1.HookOwnerStatus{}
	}
	p := Plan{Wake: v.seen(next.Status)}
	if v.forgets() {
		if at := v.Object.GetMetadata().GetCreationTimestamp().AsTime().Add(unnamedFor); v.Now.Before(at) {
			p.wake(at)
		} else {
			return Plan{Do: []Action{{Verb: RemoveOwner, Owner: v.Object, Reason: "no hook names it, and it was never seen"}}}
		}
	}
	v.count(next.Status)
	if !proto.Equal(v.Object.GetStatus(), next.GetStatus()) {
		p.Do = append(p.Do, Action{Verb: StoreOwner, Owner: next})
	}
	return p
}

// seen notes whether the owner is connected and when it was seen last, and returns when to do so again.
func (v OwnerView) seen(s *hookv1.HookOwnerStatus) (wake time.Time) {
	left := s.GetConnected() && !v.Connected
	last := v.LastSeen
	if v.Connected {
		last = v.Now
	}
	stored := s.GetLastSeenTime().AsTime()
	if !last.IsZero() && (s.LastSeenTime == nil || last.Sub(stored) >= storeSeen || left && last.After(stored)) {
		s.LastSeenTime = floor(last)
	}
	s.Connected = proto.Bool(v.Connected)
	if v.Connected {
		wake = s.GetLastSeenTime().AsTime().Add(storeSeen)
	}
	c := condition(Seen, "False", "NeverSeen", "no client of "+v.Owner+" has ever been seen")
	switch {
	case v.Connected:
		c = condition(Seen, "True", "Connected", "")
	case s.LastSeenTime != nil:
		at := s.GetLastSeenTime().AsTime()
		c = condition(Seen, "True", "Disconnected", "")
		if wake = at.Add(awayAfter); !v.Now.Before(wake) {
			c, wake = condition(Seen, "False", "Away", "no client of "+v.Owner+" was seen since "+clock(at)), time.Time{}
		}
	}
	s.Conditions = object.SetCondition(s.GetConditions(), c, v.Now)
	return wake
}

// count notes what the owner still has to do.
func (v OwnerView) count(s *hookv1.HookOwnerStatus) {
	pending := 0
	var late []string
	for _, t := range v.Tasks {
		if t.GetStatus().GetPhase() == Completed {
			continue
		}
		pending++
		if object.IsTrue(t.GetStatus().GetConditions(), Overdue) {
			late = append(late, fmt.Sprintf("%s of machine %s", t.GetSpec().GetHookName(),
				t.GetSpec().GetMachineRef().GetName()))
		}
	}
	s.PendingTasks = proto.Int32(int32(pending))
	c := condition(Overdue, "False", "InTime", "")
	if len(late) > 0 {
		slices.Sort(late)
		c = condition(Overdue, "True", "TasksOverdue", fmt.Sprintf("%d of %d tasks: %s", len(late), pending,
			strings.Join(few(late), ", ")))
	}
	s.Conditions = object.SetCondition(s.GetConditions(), c, v.Now)
}

// few returns the first of many, so that a message stays readable.
func few(list []string) []string {
	const most = 5
	if len(list) <= most {
		return list
	}
	return append(list[:most:most], fmt.Sprintf("and %d more", len(list)-most))
}
