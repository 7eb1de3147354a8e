// Package plan decides where pods go, what admission makes of them, and why a pod stays where it is. It
// does no I/O and reads no clock: a Cluster that was filled in the same order places the same pods on the same nodes.
// The rules are those of the scheduler's policy document: predicates filter nodes, weighted priorities rank those that
// are left.
package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

func find[T any](rows []*T, is func(*T) bool) *T {
	if i := slices.IndexFunc(rows, is); i >= 0 {
		return rows[i]
	}
	return nil
}

// filterOf returns the predicate of a documented name; nil if there is none.
func filterOf(name string) *filter {
	return find(filters(), func(f *filter) bool { return slices.Contains(f.names, name) })
}

// filterBy returns the predicate that an argument of a policy defines.
func filterBy(argument string) *filter {
	return find(filters(), func(f *filter) bool { return f.argument == argument })
}

// rankOf returns the priority of a documented name; nil if there is none.
func rankOf(name string) *rank {
	return find(ranks(), func(r *rank) bool { return slices.Contains(r.names, name) })
}

// rankBy returns the priority that an argument of a policy defines.
func rankBy(argument string) *rank {
	return find(ranks(), func(r *rank) bool { return slices.Contains(r.arguments, argument) })
}

// knownPredicates lists the documented names, for errors about other ones.
func knownPredicates() string {
	var names []string
	for _, f := range filters() {
		names = append(names, f.names...)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// knownPriorities lists the documented names, for errors about other ones.
func knownPriorities() string {
	var names []string
	for _, r := range ranks() {
		names = append(names, r.names...)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Profile is a policy that is ready to be used. It is not changed by use and may be shared.
type Profile struct {
	predicates []predicate // in the order in which they run
	priorities []priority
	all        bool  // go on after the first predicate that a node fails
	hardWeight int64 // of required pod affinity, seen from the pods that run
	maxDisks   int64 // see Limited
	extenders  []*Extender
	ignored    map[string]bool // resources that extenders alone count

	reads  reads    // traits that the priorities compare
	places []string // labels that the priorities compare
	images bool     // whether a priority reads the images of a pod
}

type predicate struct {
	name     string
	filter   *filter
	labels   []string
	presence bool
}

type priority struct {
	name     string
	rank     *rank
	weight   int64
	label    string
	presence bool
}

// Policy makes a policy ready. nil, and a policy that lacks predicates or priorities, has the defaults of the document
// for them; a list that is empty on purpose has none. What CheckPolicy refuses is left out. Predicates that are always
// checked are added. Source: Kubernetes' scheduler, which reads its policy file so.
func Policy(policy *schedulingv1.Policy) *Profile {
	p := &Profile{
		all:        policy.GetAlwaysCheckAllPredicates(),
		hardWeight: int64(max(1, policy.GetHardPodAffinitySymmetricWeight())),
	}
	for _, in := range policy.GetPredicates() {
		if one, ok := newPredicate(in); ok {
			p.predicates = append(p.predicates, one)
		}
	}
	if len(policy.GetPredicates()) == 0 && !policy.GetNoPredicates() {
		p.predicates = defaultPredicates()
	}
	for _, f := range filters() {
		named := slices.ContainsFunc(p.predicates, func(o predicate) bool { return o.filter.order == f.order })
		if f.always && !named {
			p.predicates = append(p.predicates, predicate{name: f.names[0], filter: f})
		}
	}
	slices.SortStableFunc(p.predicates, func(a, b predicate) int { return cmp.Compare(a.filter.order, b.filter.order) })
	for _, in := range policy.GetPriorities() {
		if one, ok := newPriority(in); ok {
			p.priorities = append(p.priorities, one)
		}
	}
	if len(policy.GetPriorities()) == 0 && !policy.GetNoPriorities() {
		p.priorities = defaultPriorities()
	}
	for i := range p.priorities {
		one := &p.priorities[i]
		p.reads |= one.rank.reads
		if p.images = p.images || one.rank.images; one.rank.reads&readsFirst != 0 && !slices.Contains(p.places, one.label) {
			p.places = append(p.places, one.label)
		}
	}
	p.extend(policy)
	return p
}

// Limited returns p with another limit of how many disks of a kind a node can have attached: most, from 1, for each
// kind that is counted; 0 keeps the limits of the kinds. What a node states itself has precedence. Source: Kubernetes'
// scheduler, which takes it from KUBE_MAX_PD_VOLS.
func Limited(p *Profile, most int) *Profile {
	out := *p
	out.maxDisks = int64(most)
	return &out
}

// defaultPredicates are those of the document's default policy file, and the one for the condition that it does not
// know yet: PIDPressure.
func defaultPredicates() []predicate {
	var out []predicate
	for _, f := range filters() {
		if f.byDefault {
			out = append(out, predicate{name: f.names[0], filter: f})
		}
	}
	return append(out, predicate{name: "Region", filter: filterBy("serviceAffinity"), labels: []string{"region"}})
}

// defaultPriorities are those of the document's default policy file.
func defaultPriorities() []priority {
	var out []priority
	for _, r := range ranks() {
		if r.weight > 0 {
			out = append(out, priority{name: r.names[0], rank: r, weight: r.weight})
		}
	}
	return append(out, priority{name: "Zone", rank: rankBy("serviceAntiAffinity"), weight: 2, label: "zone"})
}

func newPredicate(in *schedulingv1.PredicatePolicy) (predicate, bool) {
	out := predicate{name: in.GetName()}
	switch a := in.GetArgument(); {
	case a.GetServiceAffinity() != nil:
		out.filter, out.labels = filterBy("serviceAffinity"), a.GetServiceAffinity().GetLabels()
	case a.GetLabelsPresence() != nil:
		out.filter, out.labels, out.presence = filterBy("labelsPresence"), a.GetLabelsPresence().GetLabels(),
			a.GetLabelsPresence().GetPresence()
	default:
		out.filter = filterOf(in.GetName())
	}
	return out, out.filter != nil
}

func newPriority(in *schedulingv1.PriorityPolicy) (priority, bool) {
	out := priority{name: in.GetName(), weight: int64(in.GetWeight())}
	first := func(label string, labels []string) string {
		if label == "" && len(labels) > 0 {
			return labels[0]
		}
		return label
	}
	switch a := in.GetArgument(); {
	case a.GetServiceAntiAffinity() != nil:
		out.rank, out.label = rankBy("serviceAntiAffinity"), first(a.GetServiceAntiAffinity().GetLabel(),
			a.GetServiceAntiAffinity().GetLabels())
	case a.GetServiceAffinity() != nil:
		out.rank, out.label = rankBy("serviceAffinity"), first("", a.GetServiceAffinity().GetLabels())
	case a.GetLabelPreference() != nil:
		out.rank, out.label, out.presence = rankBy("labelPreference"), a.GetLabelPreference().GetLabel(),
			a.GetLabelPreference().GetPresence()
	case a.GetLabelsPresence() != nil:
		out.rank, out.label, out.presence = rankBy("labelsPresence"), first("", a.GetLabelsPresence().GetLabels()),
			a.GetLabelsPresence().GetPresence()
	default:
		out.rank = rankOf(in.GetName())
	}
	return out, out.rank != nil && out.weight > 0
}

// maxWeights bounds the weights of a policy together, so that no node's total, of at most 10 times as much, is beyond
// an int32.
const maxWeights = math.MaxInt32 / best

// CheckPolicy returns the wrong fields of a policy.
func CheckPolicy(policy *schedulingv1.Policy) (fields []object.Fault) {
	bad := func(description, path string, a ...any) {
		fields = append(fields, object.Fault{Path: fmt.Sprintf(path, a...), Description: description})
	}
	seen := map[string]bool{}
	for i, in := range policy.GetPredicates() {
		checkPredicate(in, seen, func(field, description string) { bad(description, "predicates[%d].%s", i, field) })
	}
	clear(seen)
	sum := int64(0)
	for i, in := range policy.GetPriorities() {
		checkPriority(in, seen, func(field, description string) { bad(description, "priorities[%d].%s", i, field) })
		if sum += int64(max(0, in.GetWeight())); sum > maxWeights {
			bad(fmt.Sprintf("the weights together must not be more than %d, they are %d", maxWeights, sum),
				"priorities[%d].weight", i)
		}
	}
	if policy.GetNoPredicates() && len(policy.GetPredicates()) > 0 {
		bad("must not be true if there are predicates", "noPredicates")
	}
	if policy.GetNoPriorities() && len(policy.GetPriorities()) > 0 {
		bad("must not be true if there are priorities", "noPriorities")
	}
	if w := policy.HardPodAffinitySymmetricWeight; w != nil && (*w < 0 || *w > 100) {
		bad("must be 1 to 100", "hardPodAffinitySymmetricWeight")
	}
	return append(fields, checkExtenders(policy)...)
}

func checkPredicate(in *schedulingv1.PredicatePolicy, seen map[string]bool, bad func(field, description string)) {
	checkName(in.GetName(), seen, bad)
	service, presence := in.GetArgument().GetServiceAffinity(), in.GetArgument().GetLabelsPresence()
	switch {
	case in.GetArgument() == nil:
		if filterOf(in.GetName()) == nil && in.GetName() != "" {
			bad("name", fmt.Sprintf("there is no predicate %q; known are %s; a predicate of another name needs an argument",
				in.GetName(), knownPredicates()))
		}
	case service != nil && presence != nil:
		bad("argument", "must be one of serviceAffinity and labelsPresence, not both")
	case service != nil:
		checkLabels(service.GetLabels(), "argument.serviceAffinity.labels", bad)
	case presence != nil:
		checkLabels(presence.GetLabels(), "argument.labelsPresence.labels", bad)
	default:
		bad("argument", "must be serviceAffinity or labelsPresence")
	}
}

func checkPriority(in *schedulingv1.PriorityPolicy, seen map[string]bool, bad func(field, description string)) {
	checkName(in.GetName(), seen, bad)
	if w := in.Weight; w == nil || *w <= 0 {
		bad("weight", "must be given and be 1 or more")
	}
	a := in.GetArgument()
	var given []string
	if s := a.GetServiceAntiAffinity(); s != nil {
		given = append(given, "serviceAntiAffinity")
		if s.GetLabel() == "" {
			checkLabels(s.GetLabels(), "argument.serviceAntiAffinity.label", bad)
		}
	}
	if s := a.GetServiceAffinity(); s != nil {
		given = append(given, "serviceAffinity")
		checkLabels(s.GetLabels(), "argument.serviceAffinity.labels", bad)
	}
	if l := a.GetLabelPreference(); l != nil {
		given = append(given, "labelPreference")
		checkLabels([]string{l.GetLabel()}, "argument.labelPreference.label", bad)
	}
	if l := a.GetLabelsPresence(); l != nil {
		given = append(given, "labelsPresence")
		checkLabels(l.GetLabels(), "argument.labelsPresence.labels", bad)
	}
	switch {
	case len(given) > 1:
		bad("argument", "must be one thing, not "+strings.Join(given, " and "))
	case a != nil && len(given) == 0:
		bad("argument", "must be serviceAntiAffinity or labelPreference")
	case a == nil && rankOf(in.GetName()) == nil && in.GetName() != "":
		bad("name", fmt.Sprintf("there is no priority %q; known are %s; a priority of another name needs an argument",
			in.GetName(), knownPriorities()))
	}
}

func checkName(name string, seen map[string]bool, bad func(field, description string)) {
	if name == "" {
		bad("name", "must be given")
	} else if seen[name] {
		bad("name", fmt.Sprintf("%q is named twice", name))
	}
	seen[name] = true
}

func checkLabels(labels []string, path string, bad func(field, description string)) {
	if len(labels) == 0 || slices.Contains(labels, "") {
		bad(path, "must name a label")
	}
}
