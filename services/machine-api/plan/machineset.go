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
)

// SetView is everything that a machine set's plan depends on.
type SetView struct {
	Now      time.Time
	Set      *machinev1.MachineSet
	Machines []*machinev1.Machine    // of the set's namespace, ordered by name
	Nodes    map[string]*nodev1.Node // by name
}

// Deletion is a machine that is to go, and why it is the next one.
type Deletion struct {
	Machine  *machinev1.Machine
	Priority float64
	Reason   string
}

// SetPlan is what a set does now.
type SetPlan struct {
	Create int
	Adopt  []*machinev1.Machine
	Delete []Deletion // in the order in which they go
	Status *machinev1.MachineSetStatus
	Held   []*metav1.HeldBack
	Wake   time.Time
}

// Scale returns what a machine set does now. It never deletes more machines than there are too many, and machines that
// are being deleted are no replicas, so that their replacements come at once. It does not modify v.
func Scale(v SetView) SetPlan {
	sel, fault := setFault(v.Set)
	owned, orphans := replicas(v, sel)
	p := SetPlan{Status: setStatus(v, append(slices.Clone(owned), orphans...))}
	p.Status.LabelSelector = sel.String()
	if fault != "" {
		p.Status.ErrorReason, p.Status.ErrorMessage = proto.String(reasonInvalidConfiguration), proto.String(fault)
		p.Held = []*metav1.HeldBack{{
			Action: "Scale", Object: object.Reference(v.Set), Reason: fault,
			Unblock: "correct the set",
		}}
		return p
	}
	if object.Deleting(v.Set) {
		return p
	}
	p.Adopt = orphans
	have, want := len(owned)+len(orphans), wantedReplicas(v.Set)
	switch {
	case have < want:
		p.Create = want - have
		if reason := templateFault(v.Set); reason != "" {
			p.Create = 0
			p.Status.ErrorReason, p.Status.ErrorMessage = proto.String(reasonInvalidConfiguration), proto.String(reason)
			p.Held = append(p.Held, &metav1.HeldBack{
				Action: "CreateMachine", Object: object.Reference(v.Set), Reason: reason,
				Unblock: "give the template a providerSpec",
			})
		}
	case have > want:
		p.Delete = rank(append(slices.Clone(owned), orphans...), v)[:have-want]
	}
	p.Wake = availableAt(v, owned)
	return p
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

// replicas returns the machines that count for a set: its own, and those without an owner that it may adopt.
func replicas(v SetView, sel labels.Selector) (owned, orphans []*machinev1.Machine) {
	for _, m := range v.Machines {
		if object.Deleting(m) || !sel.Matches(labels.Set(m.GetMetadata().GetLabels())) ||
			m.GetMetadata().GetNamespace() != v.Set.GetMetadata().GetNamespace() {
			continue
		}
		switch owner := object.ControllerOf(m); {
		case owner == nil:
			orphans = append(orphans, m)
		case owner.GetUid() == v.Set.GetMetadata().GetUid():
			owned = append(owned, m)
		}
	}
	return owned, orphans
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
