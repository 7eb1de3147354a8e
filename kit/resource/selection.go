package resource

import (
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selection selects objects of a kind by labels and by fields. The zero Selection selects all.
type Selection struct {
	labels labels.Selector
	fields []fieldTerm // all must hold
}

// fieldTerm is one condition of a field selector. Its path is parsed once: a watch checks it for each change.
type fieldTerm struct {
	fields.Requirement
	path  manifest.Path
	known bool // the path is well-formed; a malformed one matches nothing
}

// ParseSelection reads a label selector ("role=worker,zone in (a,b)") and a field selector ("status.phase!=Running");
// empty ones match all.
func ParseSelection(labelSelector, fieldSelector string) (Selection, error) {
	var s Selection
	if labelSelector != "" {
		l, err := labels.Parse(labelSelector)
		if err != nil {
			return s, rpcerr.Invalid(object.Fault{Path: "labelSelector", Description: err.Error()})
		}
		s.labels = l
	}
	if fieldSelector != "" {
		f, err := fields.ParseSelector(fieldSelector)
		if err != nil {
			return s, rpcerr.Invalid(object.Fault{Path: "fieldSelector", Description: err.Error()})
		}
		for _, r := range f.Requirements() {
			path, err := manifest.ParsePath(r.Field)
			s.fields = append(s.fields, fieldTerm{r, path, err == nil})
		}
	}
	return s, nil
}

// Everything reports whether all objects are selected.
func (s Selection) Everything() bool { return s.labels == nil && len(s.fields) == 0 }

// exactly returns the value that the selection requires of a field, if it requires exactly one.
func (s Selection) exactly(path string) (string, bool) {
	for _, t := range s.fields {
		if t.Field == path && t.Operator == selection.Equals {
			return t.Value, true
		}
	}
	return "", false
}

// Matches reports whether an object is selected.
func (s Selection) Matches(o object.Object) bool {
	if s.labels != nil && !s.labels.Matches(labels.Set(o.GetMetadata().GetLabels())) {
		return false
	}
	for _, t := range s.fields {
		if (t.text(o) == t.Value) != (t.Operator == selection.Equals) {
			return false
		}
	}
	return true
}

// text returns the field of an object as text; empty if the object does not have the field.
func (t fieldTerm) text(o object.Object) string {
	if !t.known {
		return ""
	}
	v, ok := t.path.Lookup(o)
	if !ok {
		return ""
	}
	return manifest.Format(v)
}
