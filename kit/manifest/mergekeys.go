package manifest

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// PatchMeta describes the fields of a message to a strategic merge: which lists are merged, by which key. It
// implements strategicpatch.LookupPatchMeta over descriptors. The zero value describes free form, where every list is
// replaced as a whole; so do fields that the message does not have, which are left for Decode to name.
type PatchMeta struct {
	message protoreflect.MessageDescriptor // nil: free form, or no object at all
	values  protoreflect.FieldDescriptor   // of a map, instead of message
}

var _ strategicpatch.LookupPatchMeta = PatchMeta{}

// NewPatchMeta returns the PatchMeta of messages of type d; d may be nil for free form.
func NewPatchMeta(d protoreflect.MessageDescriptor) PatchMeta {
	if d == nil || isFree(d) {
		return PatchMeta{}
	}
	return PatchMeta{message: d}
}

func isFree(d protoreflect.MessageDescriptor) bool {
	switch d.FullName() {
	case wellKnownPrefix + "Struct", wellKnownPrefix + "Value", wellKnownPrefix + "ListValue", wellKnownPrefix + "Any":
		return true
	}
	return false
}

// field returns the field or map value that key means, nil if there is none.
func (p PatchMeta) field(key string) protoreflect.FieldDescriptor {
	switch {
	case p.values != nil:
		return p.values
	case p.message != nil:
		if fd := p.message.Fields().ByJSONName(key); fd == nil || !isInline(fd) {
			return fd
		}
	}
	return nil
}

// LookupPatchMetadataForStruct returns what is known of the object at key.
func (p PatchMeta) LookupPatchMetadataForStruct(key string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta,
	error,
) {
	fd := p.field(key)
	var meta strategicpatch.PatchMeta
	switch {
	case fd == nil:
		return PatchMeta{}, meta, nil
	case fd.IsMap():
		return PatchMeta{values: fd.MapValue()}, meta, nil
	case fd.Message() == nil || fd.IsList():
		return PatchMeta{}, meta, nil
	}
	return NewPatchMeta(fd.Message()), meta, nil
}

// LookupPatchMetadataForSlice returns what is known of the elements of the list at key, and how the list is merged.
func (p PatchMeta) LookupPatchMetadataForSlice(key string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta,
	error,
) {
	fd := p.field(key)
	var meta strategicpatch.PatchMeta
	if fd == nil || !fd.IsList() {
		return PatchMeta{}, meta, nil
	}
	if fd.Message() == nil {
		if fd.JSONName() == "finalizers" {
			meta.SetPatchStrategies([]string{"merge"})
		}
		return PatchMeta{}, meta, nil
	}
	if mergeKey := mergeKey(fd); mergeKey != "" {
		meta.SetPatchMergeKey(mergeKey)
		meta.SetPatchStrategies([]string{"merge"})
		if fd.JSONName() == "volumes" { // one source of a volume drives out another
			meta.SetPatchStrategies([]string{"merge", "retainKeys"})
		}
	}
	return NewPatchMeta(fd.Message()), meta, nil
}

// Name returns the type's name, for errors.
func (p PatchMeta) Name() string {
	switch {
	case p.message != nil:
		return string(p.message.FullName())
	case p.values != nil:
		return fmt.Sprintf("map of %s", p.values.Kind())
	}
	return "free form"
}

// mergeKey returns the field by which Kubernetes merges the elements of a list of messages; "" if it replaces the list.
// Lists of a name serve several kinds, so the key must be a field that the elements have.
func mergeKey(fd protoreflect.FieldDescriptor) string {
	has := func(key string) bool { return fd.Message().Fields().ByJSONName(key) != nil }
	for _, key := range candidates(fd.JSONName()) {
		if has(key) {
			return key
		}
	}
	return ""
}

// candidates are the merge keys of k8s.io/api/core/v1, by name of the list, and one that it does not have: lifecycle
// hooks by name. Taints have none: Kubernetes replaces the list, and kubectl removes a taint by sending the others.
func candidates(list string) []string {
	switch list {
	case "conditions", "addresses":
		return []string{"type"}
	case "preDrain", "preTerminate", "containers", "initContainers", "ephemeralContainers", "env", "volumes",
		"imagePullSecrets":
		return []string{"name"}
	case "ownerReferences":
		return []string{"uid"}
	case "ports":
		return []string{"containerPort", "port"}
	case "volumeMounts":
		return []string{"mountPath"}
	case "volumeDevices":
		return []string{"devicePath"}
	case "hostAliases":
		return []string{"ip"}
	case "topologySpreadConstraints":
		return []string{"topologyKey"}
	}
	return nil
}
