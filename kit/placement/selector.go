package placement

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// MatchesNode reports whether a node is one that a pod asks for: every pair of nodeSelector is there, and one term of
// the required node affinity matches. To ask for many nodes, make a NodeMatcher once.
func MatchesNode(spec *schedulingv1.PodSpec, node *nodev1.Node) bool {
	return NewNodeMatcher(spec).Matches(node)
}

// NodeMatcher is what a pod asks of nodes, ready to be compared with many of them. The zero NodeMatcher matches every
// node. It is not changed by use.
type NodeMatcher struct {
	pairs    map[string]string
	required bool // terms decide; without any nothing matches
	terms    []Term
}

// NewNodeMatcher reads nodeSelector and required node affinity of a pod. A term that cannot be read is left out: the
// others still count.
func NewNodeMatcher(spec *schedulingv1.PodSpec) NodeMatcher {
	m := NodeMatcher{pairs: spec.GetNodeSelector()}
	required := spec.GetAffinity().GetNodeAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()
	if required == nil {
		return m
	}
	m.required = true
	for _, t := range required.GetNodeSelectorTerms() {
		if term := NewTerm(t); !term.never {
			m.terms = append(m.terms, term)
		}
	}
	return m
}

// Matches reports whether a node is one that the pod asks for.
func (m NodeMatcher) Matches(node *nodev1.Node) bool {
	if len(m.pairs) > 0 {
		have := node.GetMetadata().GetLabels()
		for k, v := range m.pairs {
			if got, ok := have[k]; !ok || got != v {
				return false
			}
		}
	}
	if !m.required {
		return true
	}
	return slices.ContainsFunc(m.terms, func(t Term) bool { return t.Matches(node) })
}

// Term is a term of a node selector, ready to be compared with many nodes. It is not changed by use.
type Term struct {
	never  bool
	labels []labels.Requirement
	names  []*schedulingv1.NodeSelectorRequirement
}

// NewTerm reads a term. One that is empty or cannot be read matches nothing.
func NewTerm(t *schedulingv1.NodeSelectorTerm) Term {
	if len(validateTerm("", t)) > 0 || len(t.GetMatchExpressions()) == 0 && len(t.GetMatchFields()) == 0 {
		return Term{never: true}
	}
	out := Term{names: t.GetMatchFields()}
	for _, e := range t.GetMatchExpressions() {
		r, err := requirement(e)
		if err != nil {
			return Term{never: true}
		}
		out.labels = append(out.labels, *r)
	}
	return out
}

// Matches reports whether a node meets all requirements of the term.
func (t Term) Matches(node *nodev1.Node) bool {
	if t.never {
		return false
	}
	have := labels.Set(node.GetMetadata().GetLabels())
	for i := range t.labels {
		if !t.labels[i].Matches(have) {
			return false
		}
	}
	for _, f := range t.names {
		if (f.GetValues()[0] == node.GetMetadata().GetName()) != (f.GetOperator() == "In") {
			return false
		}
	}
	return true
}

func requirement(e *schedulingv1.NodeSelectorRequirement) (*labels.Requirement, error) {
	var op selection.Operator
	switch e.GetOperator() {
	case "In":
		op = selection.In
	case "NotIn":
		op = selection.NotIn
	case "Exists":
		op = selection.Exists
	case "DoesNotExist":
		op = selection.DoesNotExist
	case "Gt":
		op = selection.GreaterThan
	case "Lt":
		op = selection.LessThan
	default:
		return nil, fmt.Errorf("%q is no operator: In, NotIn, Exists, DoesNotExist, Gt and Lt are", e.GetOperator())
	}
	return labels.NewRequirement(e.GetKey(), op, e.GetValues())
}

// validateTerm returns the wrong fields of a term below path.
func validateTerm(path string, t *schedulingv1.NodeSelectorTerm) (fields []object.Fault) {
	for i, e := range t.GetMatchExpressions() {
		if _, err := requirement(e); err != nil {
			fields = append(fields, object.Fault{
				Path:        fmt.Sprintf("%s.matchExpressions[%d]", path, i),
				Description: err.Error(),
			})
		}
	}
	for i, f := range t.GetMatchFields() {
		at := fmt.Sprintf("%s.matchFields[%d]", path, i)
		if f.GetKey() != "metadata.name" {
			fields = append(fields,
				object.Fault{Path: at + ".key", Description: "must be metadata.name, the only field that is known"})
		}
		if op := f.GetOperator(); op != "In" && op != "NotIn" {
			fields = append(fields, object.Fault{Path: at + ".operator", Description: "must be In or NotIn"})
		}
		if len(f.GetValues()) != 1 {
			fields = append(fields, object.Fault{Path: at + ".values", Description: "must be one name"})
		}
	}
	return fields
}

// ValidateNodeAffinity returns the wrong fields of the affinity to nodes below path.
func ValidateNodeAffinity(path string, a *schedulingv1.NodeAffinity) (fields []object.Fault) {
	if r := a.GetRequiredDuringSchedulingIgnoredDuringExecution(); r != nil {
		at := path + ".requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
		if len(r.GetNodeSelectorTerms()) == 0 {
			fields = append(fields, object.Fault{Path: at, Description: "must have a term: without any no node matches"})
		}
		for i, t := range r.GetNodeSelectorTerms() {
			fields = append(fields, validateTerm(fmt.Sprintf("%s[%d]", at, i), t)...)
		}
	}
	for i, p := range a.GetPreferredDuringSchedulingIgnoredDuringExecution() {
		at := fmt.Sprintf("%s.preferredDuringSchedulingIgnoredDuringExecution[%d]", path, i)
		if w := p.GetWeight(); w < 1 || w > 100 {
			fields = append(fields, object.Fault{Path: at + ".weight", Description: "must be 1 to 100"})
		}
		fields = append(fields, validateTerm(at+".preference", p.GetPreference())...)
	}
	return fields
}
