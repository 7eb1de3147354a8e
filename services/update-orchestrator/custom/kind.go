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
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
)

// Kind is a kind that is served. It lasts as long as its definition.
type Kind struct {
	Table *resource.Table[*Object]

	definitions *resource.Table[*Definition]
	uid         string // of the definition

	state atomic.Pointer[state]
	ended context.Context
	stop  context.CancelFunc
}

// All returns all objects as they are at the time of the call or later.
func (k *Kind) All(ctx context.Context) ([]*Object, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ended, cancel)() // the cache of a kind that ended never catches up
	if err := k.Table.CatchUp(ctx); err != nil {
		return nil, err
	}
	return k.Table.All(), nil
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

// typeOf returns the kind of a definition in a version, without columns.
func typeOf(d *Definition, version string) *metav1.ResourceType {
	names, spec := d.GetSpec().GetNames(), d.GetSpec()
	t := &metav1.ResourceType{
		Group: spec.GetGroup(), Version: version, Kind: names.GetKind(), Plural: names.GetPlural(),
		Singular: names.GetSingular(), ShortNames: names.GetShortNames(), Namespaced: spec.GetScope() == "Namespaced",
	}
	if t.Namespaced {
		t.DefaultNamespace = "default"
	}
	return t
}

// of returns the state for another revision of the same generation of the definition.
func (st *state) of(d *Definition) *state {
	out := *st
	out.definition = d
	return &out
}

// Types returns the kind of a definition in each version that is served, the storage version first.
func Types(d *Definition) []*metav1.ResourceType {
	var out []*metav1.ResourceType
	for _, v := range d.GetSpec().GetVersions() {
		if !v.GetServed() {
			continue
		}
		t := typeOf(d, v.GetName())
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

// as returns an object in a version, as the present schema of the version has it: with its defaults and without fields
// that it does not have, as in Kubernetes.
func (st *state) as(o *Object, version string) *Object {
	if o.GetApiVersion() == st.apiVersion(version) && st.generation == 1 {
		return o // the schema is the one by which the object was completed when it was written
	}
	out := proto.CloneOf(o)
	out.ApiVersion = st.apiVersion(version)
	if _, faults := st.schema(out).Complete(out); len(faults) > 0 || proto.Equal(out, o) {
		return o // if it cannot be completed, it is shown as it is stored, with the apiVersion that says so
	}
	return out
}

// faults returns what is wrong with an object by the schema of its version. old is the object before a change, and nil
// for a creation: what was wrong before and is unchanged is tolerated, or an object that a new schema refuses could not
// even get a label.
func (st *state) faults(old, o *Object) []object.Fault {
	if old == nil {
		return st.schema(o).Faults(nil, o)
	}
	if unchanged(old, o) {
		return nil
	}
	_, version, _ := strings.Cut(o.GetApiVersion(), "/")
	return st.schema(o).Faults(st.as(old, version), o)
}

// unchanged reports whether a write of an object changes nothing that a schema is about.
func unchanged(old, o *Object) bool {
	return old != nil && old.GetApiVersion() == o.GetApiVersion() && proto.Equal(old.GetContent(), o.GetContent()) &&
		proto.Equal(old.GetStatus(), o.GetStatus())
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
	return resource.Config[*Object]{
		Type: typeOf(d, storageVersion(d)), Log: c.log, Owns: true,
		// The uid is in the key, so that the objects of a definition never appear in a later one of the same name.
		Prefix: "custom/" + d.GetMetadata().GetName() + "/" + d.GetMetadata().GetUid() + "/",
		// Versions that are not served are among them: stored objects have them. Callers cannot name them.
		APIVersions: func() []string {
			st := k.state.Load()
			var out []string
			for _, v := range st.definition.GetSpec().GetVersions() {
				out = append(out, st.apiVersion(v.GetName()))
			}
			return out
		},
		NoStatus: func() bool { return !k.state.Load().hasStatus() },
		Remote: &resource.Remote[*Object]{
			Active: func() bool { return true },
			Mutate: k.complete,
			Review: func(context.Context, *resource.Write[*Object]) error { return nil },
		},
		Admit: k.admit,
		Guard: k.open,
	}
}

// complete prunes and defaults the object of a write, and warns of the fields that it removes.
func (k *Kind) complete(_ context.Context, w *resource.Write[*Object]) error {
	if unchanged(w.Old, w.New) {
		return nil
	}
	removed, faults := k.state.Load().schema(w.New).Complete(w.New)
	if len(faults) > 0 {
		return rpcerr.Invalid(faults...)
	}
	for _, path := range removed[:min(len(removed), most)] {
		w.Warn(fmt.Sprintf("unknown field %+q", path))
	}
	if n := len(removed) - most; n > 0 {
		w.Warn(fmt.Sprintf("%d more unknown fields", n))
	}
	return nil
}

// open refuses new objects of a definition that is being deleted or gone, and returns the check that it is unchanged.
// An object that is stored later would be overlooked by the deletion, and never be served. Changes need no check: a
// definition remains while it has an object.
func (k *Kind) open(ctx context.Context) (store.Op, error) {
	name := k.state.Load().definition.GetMetadata().GetName()
	d, err := k.definitions.Get(ctx, "", name)
	switch {
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
	case err != nil:
		return store.Op{}, err
	case d.GetMetadata().GetUid() == k.uid && !object.Deleting(d):
		return k.definitions.Unchanged(d), nil
	}
	return store.Op{}, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, name,
		"objects cannot be created while the CustomResourceDefinition is being deleted")
}

// admit checks an object by its schema, and stores it in the storage version.
func (k *Kind) admit(w *resource.Write[*Object]) error {
	if w.Deletes() {
		return nil
	}
	st := k.state.Load()
	if faults := st.faults(w.Old, w.New); len(faults) > 0 {
		return rpcerr.Invalid(faults...)
	}
	w.New.ApiVersion = st.apiVersion(storageVersion(st.definition))
	return nil
}
