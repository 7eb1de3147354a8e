package custom

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
)

// Kind is a kind that is served. It lasts as long as its definition.
type Kind struct {
	Table *resource.Table[*Object]

	uid   string // of the definition
	state atomic.Pointer[state]
	ended context.Context
	stop  context.CancelFunc
}

// state is what a kind knows of one generation of its definition.
type state struct {
	definition *Definition
	generation int32
	schemas    map[string]*versionSchema // by version
	types      []*metav1.ResourceType
}

// compile returns the state of a definition.
func compile(d *Definition) (*state, error) {
	in, err := internal(d)
	if err != nil {
		return nil, err
	}
	st := &state{definition: d, generation: d.GetMetadata().GetGeneration(), schemas: map[string]*versionSchema{}}
	for _, v := range d.GetSpec().GetVersions() {
		if st.schemas[v.GetName()], err = newSchema(in, v.GetName()); err != nil {
			return nil, err
		}
	}
	st.types = Types(d)
	return st, nil
}

// Types returns the kind of a definition in each version that is served, the storage version first.
func Types(d *Definition) []*metav1.ResourceType {
	names, spec := d.GetSpec().GetNames(), d.GetSpec()
	var out []*metav1.ResourceType
	for _, v := range spec.GetVersions() {
		if !v.GetServed() {
			continue
		}
		t := &metav1.ResourceType{
			Group: spec.GetGroup(), Version: v.GetName(), Kind: names.GetKind(), Plural: names.GetPlural(),
			Singular: names.GetSingular(), ShortNames: names.GetShortNames(), Namespaced: spec.GetScope() == "Namespaced",
		}
		if t.Namespaced {
			t.DefaultNamespace = "default"
		}
		for _, c := range v.GetAdditionalPrinterColumns() {
			t.Columns = append(t.Columns, &metav1.Column{
				Name: strings.ToUpper(c.GetName()), Path: path(c.GetJsonPath()), Wide: c.GetPriority() > 0,
			})
		}
		if len(t.Columns) == 0 {
			t.Columns = []*metav1.Column{{Name: "AGE"}}
		}
		if v.GetStorage() {
			out = slices.Insert(out, 0, t)
		} else {
			out = append(out, t)
		}
	}
	return out
}

// filter is how JSON paths of Kubernetes choose the element of a list with a type or a name.
var filter = regexp.MustCompile(`\[\?\(\s*@\.(?:type|name)\s*==\s*["']([^"']+)["']\s*\)\]`)

// path returns a JSON path of Kubernetes as the path of a column.
func path(jsonPath string) string {
	return filter.ReplaceAllString(strings.TrimPrefix(jsonPath, "."), "[$1]")
}

// apiVersion returns a version of the kind as objects have it.
func (st *state) apiVersion(version string) string {
	return st.definition.GetSpec().GetGroup() + "/" + version
}

// schema returns the schema of an object's version; that of the storage version if the definition no longer has it.
func (st *state) schema(o *Object) *versionSchema {
	_, version, _ := strings.Cut(o.GetApiVersion(), "/")
	if s, ok := st.schemas[version]; ok {
		return s
	}
	return st.schemas[storageVersion(st.definition)]
}

// serves reports whether a version is served.
func (st *state) serves(version string) bool {
	return slices.ContainsFunc(st.types, func(t *metav1.ResourceType) bool { return t.GetVersion() == version })
}

// as returns an object in a version. Versions differ in the apiVersion and in what their schemas have.
func (st *state) as(o *Object, version string) *Object {
	if o.GetApiVersion() == st.apiVersion(version) {
		return o
	}
	out := proto.CloneOf(o)
	out.ApiVersion = st.apiVersion(version)
	if _, err := st.schema(out).Complete(out); err != nil {
		return o // it is shown as it is stored, with the apiVersion that says so
	}
	return out
}

// hasStatus reports whether the status is a part of its own.
func (st *state) hasStatus() bool {
	for _, v := range st.definition.GetSpec().GetVersions() {
		return v.GetSubresources().GetStatus() != nil
	}
	return false
}

// config is what is specific to the kind. Its functions follow the definition.
func (k *Kind) config(c config, d *Definition) resource.Config[*Object] {
	typ := proto.CloneOf(k.state.Load().types[0])
	typ.Columns = nil
	return resource.Config[*Object]{
		Type: typ, Log: c.log,
		// The uid is in the key, so that the objects of a definition never appear in a later one of the same name.
		Prefix: "custom/" + d.GetMetadata().GetName() + "/" + d.GetMetadata().GetUid() + "/",
		APIVersions: func() []string {
			st := k.state.Load()
			out := make([]string, len(st.types))
			for i, t := range st.types {
				out[i] = object.APIVersion(t)
			}
			return out
		},
		NoStatus: func() bool { return !k.state.Load().hasStatus() },
		Validate: func(o *Object) []object.Fault { return k.state.Load().schema(o).Faults(o) },
		ValidateUpdate: func(old, o *Object) []object.Fault {
			st := k.state.Load()
			_, version, _ := strings.Cut(o.GetApiVersion(), "/")
			return st.schema(o).Transition(st.as(old, version), o)
		},
		Remote: &resource.Remote[*Object]{
			Active: func() bool { return true },
			Mutate: k.complete,
			Review: func(context.Context, *resource.Write[*Object]) error { return nil },
		},
		Admit: k.admit,
	}
}

// complete prunes and defaults the object of a write, and warns of the fields that it removes.
func (k *Kind) complete(_ context.Context, w *resource.Write[*Object]) error {
	removed, err := k.state.Load().schema(w.New).Complete(w.New)
	if wrong, ok := err.(*faultsError); ok { //nolint:errorlint // Complete does not wrap it
		return rpcerr.Invalid(wrong.Faults...)
	}
	if err != nil {
		return err
	}
	for _, path := range removed {
		w.Warn(fmt.Sprintf("unknown field %q", path))
	}
	return nil
}

// admit refuses new objects of a definition that is being deleted, and stores all objects in the storage version.
func (k *Kind) admit(w *resource.Write[*Object]) error {
	st := k.state.Load()
	switch {
	case w.Deletes():
		return nil
	case w.Creates() && object.Deleting(st.definition):
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, st.definition.GetMetadata().GetName(),
			"objects cannot be created while the CustomResourceDefinition is being deleted")
	}
	w.New.ApiVersion = st.apiVersion(storageVersion(st.definition))
	return nil
}
