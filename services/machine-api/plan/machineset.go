package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

// Priorities with which machines go when their set shrinks; the highest goes first. Source: OpenShift's machine sets.
const (
	mustDelete    = 100
	betterDelete  = 50
	couldDelete   = 20
	withoutNode   = 40
	ageScale      = 8640000.0 // seconds after which the priority of age has come about two thirds of its way: 100 days
	policyNewest  = "Newest"
	policyOldest  = "Oldest"
	defaultNumber = 1 // of replicas, where a set does not say

	// maxReplicas is the largest machine set: a larger number is more likely a typing error than intended.
	maxReplicas = 10_000
	// setBatch is how many machines a set creates or deletes before it is read again, so that a change of its replicas
	// also ends a scaling that is under way.
	setBatch = 50
)

// SetView is everything that a machine set's plan depends on.
type SetView struct {
	Now      time.Time
	Set      *machinev1.MachineSet
	Machines []*machinev1.Machine    // of the set's namespace: those of the set and those without an owner, at least
	Nodes    map[string]*nodev1.Node // of these machines, by name
	// Sets are the machine sets of the namespace, which may match the same machines without an owner; Set need not be
	// among them.
	Sets []*machinev1.MachineSet
}

// Deletion is a machine that is to go, and why it is the next one.
type Deletion struct {
	Machine  *machinev1.Machine
	Priority float64
	Reason   string
}

// SetPlan is what a set does. The controller creates and deletes only the first CreateNow and DeleteNow machines, and
// then asks again.
type SetPlan struct {
	Create    int // machines that are missing
	CreateNow int // how many of them are created now, at most 50
	Adopt     []*machinev1.Machine
	Delete    []Deletion // the machines that are too many, in the order in which they go
	DeleteNow int        // how many of them are deleted now, at most 50; 0 while there are machines to adopt
	Status    *machinev1.MachineSetStatus
	Held      []*metav1.HeldBack
	Events    []Event // to record with the status
	Wake      time.Time
}

// Scale returns what a machine set does now. It never deletes more machines than there are too many, and machines that
// are being deleted are no replicas, so that their replacements come at once. Machines are counted after adoption:
// while one is to be adopted, nothing is deleted. It does not modify v.
func Scale(v SetView) SetPlan {
	sel, fault := setFault(v.Set)
	owned, orphans := replicas(v, sel)
	p := SetPlan{Status: setStatus(v, append(slices.Clone(owned), orphans...))}
	p.Status.LabelSelector = sel.String()
	switch paused := OtherAPI(v.Set.GetSpec()); {
	case paused:
		p.hold(v.Set, "Scale", pausedMessage, "set spec.authoritativeAPI to MachineAPI")
	case fault != "":
		p.invalid(v.Set, "Scale", fault, "correct the set")
	case !object.Deleting(v.Set):
		p.scale(v, owned, orphans)
	}
	p.Events = setEvents(v.Set.GetStatus(), p.Status)
	return p
}

// scale decides for a set that may act.
func (p *SetPlan) scale(v SetView, owned, orphans []*machinev1.Machine) {
	p.Adopt = orphans
	p.Wake = availableAt(v, owned)
	have, want := len(owned)+len(orphans), wantedReplicas(v.Set)
	switch {
	case have < want:
		if reason := templateFault(v.Set); reason != "" {
			p.invalid(v.Set, actionCreate, reason, "give the template a providerSpec")
			return
		}
		p.Create = want - have
		p.CreateNow = min(p.Create, setBatch)
		if p.CreateNow < p.Create {
			p.Wake = v.Now
			p.hold(v.Set, actionCreate, inBatches(p.Create-p.CreateNow, "created"), "")
		}
	case have > want:
		p.Delete = rank(append(slices.Clone(owned), orphans...), v)[:have-want]
		if len(orphans) > 0 {
			p.hold(v.Set, actionDelete, fmt.Sprintf("%d machine(s) to be deleted are chosen once all that match are adopted",
				have-want), "")
			return
		}
		p.DeleteNow = min(len(p.Delete), setBatch)
		if p.DeleteNow < len(p.Delete) {
			p.Wake = v.Now
			p.hold(v.Set, actionDelete, inBatches(len(p.Delete)-p.DeleteNow, "deleted"), "")
		}
	}
}

// inBatches says what is left for later batches.
func inBatches(n int, done string) string {
	return fmt.Sprintf("%d more are %s in batches of %d; the set is read again before each", n, done, setBatch)
}

func (p *SetPlan) hold(s *machinev1.MachineSet, action, reason, unblock string) {
	p.Held = append(p.Held, &metav1.HeldBack{
		Action: action, Object: object.Reference(s), Reason: reason, Unblock: unblock,
	})
}

// invalid notes what is wrong with the set itself.
func (p *SetPlan) invalid(s *machinev1.MachineSet, action, reason, unblock string) {
	p.Status.ErrorReason, p.Status.ErrorMessage = proto.String(reasonInvalidConfiguration), proto.String(reason)
	p.hold(s, action, reason, unblock)
}

// setEvents returns the events of a change of status: a new error, and the beginning and end of a pause.
func setEvents(old, now *machinev1.MachineSetStatus) []Event {
	var out []Event
	if m := now.GetErrorMessage(); m != "" && m != old.GetErrorMessage() {
		out = append(out, Event{"Warning", now.GetErrorReason(), m})
	}
	was, is := object.IsTrue(old.GetConditions(), conditionPaused), object.IsTrue(now.GetConditions(), conditionPaused)
	switch {
	case is && !was:
		out = append(out, Event{"Normal", conditionPaused, pausedMessage})
	case was && !is:
		out = append(out, Event{"Normal", "Resumed", "spec.authoritativeAPI is MachineAPI again"})
	}
	return out
}

func wantedReplicas(s *machinev1.MachineSet) int {
	if s.GetSpec().Replicas == nil {
		return defaultNumber
	}
	return int(s.GetSpec().GetReplicas())
}

// setFault returns the selector of a set, and what makes it impossible to say which machines belong to it.
func setFault(s *machinev1.MachineSet) (labels.Selector, string) {
	sel, bad := object.LabelSelector(s.GetSpec().GetSelector(), "spec.selector")
	if len(bad) > 0 {
		return sel, bad[0].String()
	}
	if sel.Empty() || sel.String() == labels.Nothing().String() {
		return labels.Nothing(), "spec.selector: must be given: an empty selector matches no machine"
	}
	if n := wantedReplicas(s); n > maxReplicas {
		return sel, fmt.Sprintf("spec.replicas: is %d, must be at most %d", n, maxReplicas)
	}
	if !sel.Matches(labels.Set(s.GetSpec().GetTemplate().GetMetadata().GetLabels())) {
		return sel, "spec.template.metadata.labels: must match spec.selector"
	}
	return sel, ""
}

func templateFault(s *machinev1.MachineSet) string {
	if s.GetSpec().GetTemplate().GetSpec().GetProviderSpec().GetValue() == nil {
		return "spec.template.spec.providerSpec.value: must be given"
	}
	return ""
}

// replicas returns the machines that count for a set: its own, and those without an owner that it may adopt. A machine
// of another owner never counts.
func replicas(v SetView, sel labels.Selector) (owned, orphans []*machinev1.Machine) {
	var others []rival
	for _, m := range v.Machines {
		if object.Deleting(m) || !sel.Matches(labels.Set(m.GetMetadata().GetLabels())) ||
			m.GetMetadata().GetNamespace() != v.Set.GetMetadata().GetNamespace() {
			continue
		}
		switch owner := object.ControllerOf(m); {
		case owner != nil && owner.GetUid() == v.Set.GetMetadata().GetUid():
			owned = append(owned, m)
		case owner == nil:
			if others == nil {
				others = rivals(v)
			}
			if Adopts(v.Set, m) && !slices.ContainsFunc(others, func(r rival) bool { return r.adopts(m) }) {
				orphans = append(orphans, m)
			}
		}
	}
	return owned, orphans
}

// Adopts reports whether a set adopts machines such as m, which has no owner, unless another set does so first. The
// role must be that of the set's template: a machine's role is fixed, and a set of workers with a broad selector would
// otherwise delete masters.
func Adopts(s *machinev1.MachineSet, m *machinev1.Machine) bool {
	sel, fault := setFault(s)
	return fault == "" && adoptsBy(s, sel, m)
}

// Matches reports whether a set that is neither being deleted nor paused would adopt machines such as m.
func Matches(s *machinev1.MachineSet, m *machinev1.Machine) bool {
	sel, fault := setFault(s)
	return fault == "" && matchesBy(s, sel, m)
}

func adoptsBy(s *machinev1.MachineSet, sel labels.Selector, m *machinev1.Machine) bool {
	return !object.Deleting(s) && !OtherAPI(s.GetSpec()) && !object.Deleting(m) && matchesBy(s, sel, m)
}

func matchesBy(s *machinev1.MachineSet, sel labels.Selector, m *machinev1.Machine) bool {
	template := &machinev1.Machine{Metadata: s.GetSpec().GetTemplate().GetMetadata()}
	return Role(template) == Role(m) && sel.Matches(labels.Set(m.GetMetadata().GetLabels()))
}

// rival is a set that goes before the set of a view when a machine matches both.
type rival struct {
	set      *machinev1.MachineSet
	selector labels.Selector
}

func (r rival) adopts(m *machinev1.Machine) bool { return adoptsBy(r.set, r.selector, m) }

// rivals returns the sets that go before that of a view: the older, and of two of the same age the first by name. Each
// set decides so by itself, and so no two adopt the same machine.
func rivals(v SetView) []rival {
	out := []rival{}
	for _, s := range v.Sets {
		if s.GetMetadata().GetName() == v.Set.GetMetadata().GetName() || !before(s, v.Set) {
			continue
		}
		if sel, fault := setFault(s); fault == "" {
			out = append(out, rival{s, sel})
		}
	}
	return out
}

// before reports whether set a was created before set b; one that has yet to be created is the last.
func before(a, b *machinev1.MachineSet) bool {
	x, y := a.GetMetadata().GetCreationTimestamp(), b.GetMetadata().GetCreationTimestamp()
	if x == nil || y == nil {
		return x != nil
	}
	return cmp.Or(x.AsTime().Compare(y.AsTime()), cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())) < 0
}

// rank orders machines so that the first to go come first. Among equals the annotated goes first, then the one without
// a ready node, then the younger, then by name: the order is the same each time.
func rank(machines []*machinev1.Machine, v SetView) []Deletion {
	out := make([]Deletion, 0, len(machines))
	for _, m := range machines {
		p, why := priority(m, v.Set.GetSpec().GetDeletePolicy(), v.Now)
		out = append(out, Deletion{m, p, why})
	}
	slices.SortStableFunc(out, func(a, b Deletion) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority),
			later(isAnnotated(a.Machine), isAnnotated(b.Machine)),
			later(!nodeReady(v, a.Machine), !nodeReady(v, b.Machine)),
			b.Machine.GetMetadata().GetCreationTimestamp().AsTime().Compare(
				a.Machine.GetMetadata().GetCreationTimestamp().AsTime()),
			cmp.Compare(a.Machine.GetMetadata().GetName(), b.Machine.GetMetadata().GetName()),
		)
	})
	return out
}

// later sorts true before false.
func later(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func priority(m *machinev1.Machine, policy string, now time.Time) (float64, string) {
	failed := m.GetStatus().GetErrorReason() != "" || m.GetStatus().GetErrorMessage() != ""
	if policy == policyNewest || policy == policyOldest {
		switch {
		case object.Deleting(m):
			return mustDelete, "it is being deleted already"
		case isAnnotated(m):
			return mustDelete, "it is annotated to go first"
		case failed:
			return mustDelete, "it has failed"
		}
		old := agePriority(m, now)
		if policy == policyOldest {
			return old, "the oldest go first"
		}
		return mustDelete - old, "the newest go first"
	}
	switch {
	case object.Deleting(m):
		return mustDelete, "it is being deleted already"
	case isAnnotated(m):
		return betterDelete, "it is annotated to go first"
	case failed:
		return betterDelete, "it has failed"
	case m.GetStatus().GetNodeRef() == nil:
		return withoutNode, "it has no node yet"
	}
	return couldDelete, "any machine may go"
}

// agePriority grows with age, from 0 to 50.
func agePriority(m *machinev1.Machine, now time.Time) float64 {
	created := m.GetMetadata().GetCreationTimestamp()
	if created == nil || created.AsTime().After(now) {
		return 0
	}
	return betterDelete * (1 - math.Exp(-now.Sub(created.AsTime()).Seconds()/ageScale))
}

func nodeReady(v SetView, m *machinev1.Machine) bool {
	ready, _ := readySince(linkedNode(v.Nodes, m))
	return ready
}

func setStatus(v SetView, machines []*machinev1.Machine) *machinev1.MachineSetStatus {
	s := &machinev1.MachineSetStatus{}
	if old := v.Set.GetStatus(); old != nil {
		s = proto.Clone(old).(*machinev1.MachineSetStatus)
	}
	var labeled, ready, available int32
	want := labels.SelectorFromSet(v.Set.GetSpec().GetTemplate().GetMetadata().GetLabels())
	for _, m := range machines {
		if want.Matches(labels.Set(m.GetMetadata().GetLabels())) {
			labeled++
		}
		isReady, since := readySince(linkedNode(v.Nodes, m))
		if !isReady {
			continue
		}
		ready++
		if !since.Add(minReady(v.Set)).After(v.Now) {
			available++
		}
	}
	s.Replicas, s.FullyLabeledReplicas = proto.Int32(int32(len(machines))), proto.Int32(labeled)
	s.ReadyReplicas, s.AvailableReplicas = proto.Int32(ready), proto.Int32(available)
	s.ObservedGeneration = proto.Int32(v.Set.GetMetadata().GetGeneration())
	s.ErrorReason, s.ErrorMessage = nil, nil
	s.Conditions = pausedCondition(s.Conditions, OtherAPI(v.Set.GetSpec()), v.Now)
	return s
}

func minReady(s *machinev1.MachineSet) time.Duration {
	return time.Duration(s.GetSpec().GetMinReadySeconds()) * time.Second
}

// availableAt returns when the next ready machine becomes available; zero if none has to wait for that.
func availableAt(v SetView, machines []*machinev1.Machine) time.Time {
	var first time.Time
	for _, m := range machines {
		ready, since := readySince(linkedNode(v.Nodes, m))
		at := since.Add(minReady(v.Set))
		if ready && at.After(v.Now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// FromTemplate returns a machine as a set's template describes it, owned by the set; name and namespace are the
// caller's to set.
func FromTemplate(s *machinev1.MachineSet) *machinev1.Machine {
	t := proto.Clone(s.GetSpec().GetTemplate()).(*machinev1.MachineTemplateSpec)
	if t.GetSpec() != nil {
		t.Spec.ProviderId = "" // the provider gives it; sets that were stored before it was refused may have one
	}
	return &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Namespace: s.GetMetadata().GetNamespace(), Labels: t.GetMetadata().GetLabels(),
			Annotations:     t.GetMetadata().GetAnnotations(),
			OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(s)},
		},
		Spec: t.GetSpec(),
	}
}

// String says in one line what a deletion is for.
func (d Deletion) String() string {
	return fmt.Sprintf("%s (priority %.4g): %s", d.Machine.GetMetadata().GetName(), d.Priority, d.Reason)
}
