package resource

import (
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	kmeta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Selection says which objects of a kind are wanted, by labels and by fields. The zero Selection wants all.
type Selection struct {
	labels labels.Selector
	fields fields.Selector
}

// ParseSelection reads a label selector ("role=worker,zone in (a,b)") and a field selector ("status.phase!=Running"); empty ones match all.
func ParseSelection(labelSelector, fieldSelector string) (Selection, error) {
	var s Selection
	if labelSelector != "" {
		l, err := labels.Parse(labelSelector)
		if err != nil {
			return s, rpcerr.Invalid(rpcerr.Field{Path: "labelSelector", Description: err.Error()})
		}
		s.labels = l
	}
	if fieldSelector != "" {
		f, err := fields.ParseSelector(fieldSelector)
		if err != nil {
			return s, rpcerr.Invalid(rpcerr.Field{Path: "fieldSelector", Description: err.Error()})
		}
		s.fields = f
	}
	return s, nil
}

// Everything reports whether all objects are wanted.
func (s Selection) Everything() bool { return s.labels == nil && s.fields == nil }

// exactly returns the one value that a field of the wanted objects has, if the selection says so.
func (s Selection) exactly(path string) (string, bool) {
	if s.fields == nil {
		return "", false
	}
	return s.fields.RequiresExactMatch(path)
}

// Matches reports whether an object is wanted.
func (s Selection) Matches(o Object) bool {
	if s.labels != nil && !s.labels.Matches(labels.Set(o.GetMetadata().GetLabels())) {
		return false
	}
	return s.fields == nil || s.fields.Matches(fieldsOf{o})
}

// fieldsOf lets a field selector look at any field of an object by its path; a field that is not there is empty.
type fieldsOf struct{ o Object }

func (f fieldsOf) Has(path string) bool {
	_, ok := manifest.Lookup(f.o, path)
	return ok
}

func (f fieldsOf) Get(path string) string {
	v, ok := manifest.Lookup(f.o, path)
	if !ok {
		return ""
	}
	return manifest.Format(v)
}

// LabelSelector returns a selector of labels as a matcher. An empty or missing one matches nothing: that is the rule for sets of machines.
// Errors are wrong fields below path.
func LabelSelector(s *metav1.LabelSelector, path string) (labels.Selector, []rpcerr.Field) {
	if len(s.GetMatchLabels()) == 0 && len(s.GetMatchExpressions()) == 0 {
		return labels.Nothing(), nil
	}
	k := &kmeta.LabelSelector{MatchLabels: s.GetMatchLabels()}
	for _, e := range s.GetMatchExpressions() {
		k.MatchExpressions = append(k.MatchExpressions, kmeta.LabelSelectorRequirement{Key: e.GetKey(), Operator: kmeta.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues()})
	}
	sel, err := kmeta.LabelSelectorAsSelector(k)
	if err != nil {
		return labels.Nothing(), []rpcerr.Field{{Path: path, Description: err.Error()}}
	}
	return sel, nil
}
