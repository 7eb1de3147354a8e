package manifest

import (
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Apply returns current, the JSON of a message of type d, as an application of the document given leaves it: what given
// has is set, what it lacks of applied is removed, and everything else stays. applied is the Fields of the document
// that was applied before; empty if there was none, and one that is no such document counts as none. Lists are merged
// as by a strategic Patch. Errors wrap ErrPatchSyntax. Source: the three-way merge of kubectl apply.
func Apply(current, applied, given []byte, d protoreflect.MessageDescriptor) ([]byte, error) {
	meta := NewPatchMeta(d)
	patch, err := strategicpatch.CreateThreeWayMergePatch(applied, given, current, meta, true)
	if err != nil && len(applied) > 0 {
		patch, err = strategicpatch.CreateThreeWayMergePatch(nil, given, current, meta, true)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPatchSyntax, err)
	}
	return limited(strategicpatch.StrategicMergePatchUsingLookupPatchMeta(current, patch, meta))
}

// Fields returns which fields a document of type d has, as JSON: its values are null, but for those that identify
// elements of a list. That is all that a later Apply needs to know of it; it is short, and holds no secrets.
func Fields(document []byte, d protoreflect.MessageDescriptor) ([]byte, error) {
	var doc map[string]any
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, err
	}
	fields, err := fieldsOf(doc, NewPatchMeta(d))
	if err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

func fieldsOf(doc map[string]any, meta strategicpatch.LookupPatchMeta) (map[string]any, error) {
	out := make(map[string]any, len(doc))
	for name, v := range doc {
		out[name] = nil
		switch v := v.(type) {
		case map[string]any:
			part, _, err := meta.LookupPatchMetadataForStruct(name)
			if err != nil {
				return nil, err
			}
			if out[name], err = fieldsOf(v, part); err != nil {
				return nil, err
			}
		case []any:
			part, how, err := meta.LookupPatchMetadataForSlice(name)
			switch {
			case err != nil:
				return nil, err
			case !slices.Contains(how.GetPatchStrategies(), "merge"): // replaced as a whole
			case how.GetPatchMergeKey() == "":
				out[name] = v
			default:
				if out[name], err = elementsOf(v, part, how.GetPatchMergeKey()); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
}

// elementsOf returns the fields of the elements of a list that is merged by a key, which keeps its values.
func elementsOf(list []any, meta strategicpatch.LookupPatchMeta, key string) ([]any, error) {
	out := make([]any, 0, len(list))
	for _, v := range list {
		element, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%w: an element of a list that is merged by %q is no object", ErrPatchSyntax, key)
		}
		fields, err := fieldsOf(element, meta)
		if err != nil {
			return nil, err
		}
		fields[key] = element[key]
		out = append(out, fields)
	}
	return out, nil
}
