package custom_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"buf.build/go/protovalidate"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const (
	name   = "as.x.example"
	schema = `{"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}`
)

// definition returns the definition of the kind A with a schema.
func definition(t testing.TB, schema string) *custom.Definition {
	t.Helper()
	d := &custom.Definition{}
	if err := manifest.Decode([]byte(`{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "as.x.example"},
		"spec": {
			"group": "x.example", "scope": "Namespaced", "names": {"kind": "A", "plural": "as"},
			"versions": [{
				"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
				"schema": {"openAPIV3Schema": `+schema+`}
			}]
		}
	}`), d); err != nil {
		t.Fatal(err)
	}
	custom.Default(d)
	return d
}

// world is kinds over definitions whose names the tests accept.
type world struct {
	*testing.T
	definitions *resource.Table[*custom.Definition]
	kinds       *custom.Kinds
}

func newWorld(t *testing.T, st *store.Store) world {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(st, protovalidate.GlobalValidator, log)
	w := world{t, tables.Definitions, custom.New(st, protovalidate.GlobalValidator, tables.Definitions, log)}
	go func() { _ = w.definitions.Run(t.Context()) }()
	go func() { _ = w.kinds.Run(t.Context()) }()
	return w
}

// define stores a definition and returns its kind once that is served.
func (w world) define(d *custom.Definition) (v custom.View) {
	w.Helper()
	d, err := w.definitions.Create(w.Context(), d)
	if err != nil {
		w.Fatal(err)
	}
	d.Status = &apiextensionsv1.CustomResourceDefinitionStatus{
		StoredVersions: []string{"v1"}, AcceptedNames: d.GetSpec().GetNames(),
		Conditions: []*metav1.Condition{{Type: plan.NamesAccepted, Status: plan.True}},
	}
	if _, err := w.definitions.UpdateStatus(w.Context(), d); err != nil {
		w.Fatal(err)
	}
	servetest.Await(w, func() string {
		if v, err = w.kinds.Find(w.Context(), "x.example", "v1", "as"); err != nil {
			return err.Error()
		}
		return ""
	})
	return v
}

// delete begins the deletion of the definition, and ends it if ends is set.
func (w world) delete(ends bool) {
	w.Helper()
	if _, err := w.definitions.Delete(w.Context(), "", name, nil); err != nil {
		w.Fatal(err)
	}
	if !ends {
		return
	}
	if _, err := w.definitions.Modify(w.Context(), object.Key{Name: name}, func(d *custom.Definition) error {
		d.Metadata.Finalizers = nil
		return nil
	}); err != nil {
		w.Fatal(err)
	}
}

// an returns an object of the kind A, with an unknown field.
func an(t testing.TB, name string) *custom.Object {
	t.Helper()
	o := &custom.Object{}
	if err := manifest.Decode([]byte(`{"apiVersion": "x.example/v1", "kind": "A", "metadata": {"name": "`+name+
		`"}, "spec": {"n": 1, "unknown": 2}}`), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// The definition is deleted after the object was completed and before it is stored.
func TestAnObjectIsNotCreatedOnceItsDefinitionIsBeingDeleted(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprint("gone: ", ends), func(t *testing.T) {
			st := etcdtest.Store(t)
			w := newWorld(t, st)
			v := w.define(definition(t, schema))
			deletes := resource.WriteOptions{Warn: func(string) { w.delete(ends) }}
			_, err := v.Kind.Table.Create(t.Context(), an(t, "late"), deletes)
			if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION {
				t.Errorf("it was created: %v", err)
			}
			if left, err := st.List(t.Context(), "custom/", store.ListOptions{}); err != nil || len(left.Records) > 0 {
				t.Errorf("%v, %v", left.Records, err)
			}
			for what, change := range map[string]func(*custom.Object) error{
				"update": func(o *custom.Object) error { _, err := v.Kind.Table.Update(t.Context(), o); return err },
				"status": func(o *custom.Object) error { _, err := v.Kind.Table.UpdateStatus(t.Context(), o); return err },
			} {
				late := an(t, "late")
				late.Metadata.Namespace = "default"
				if err := change(late); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// The group metrics.k8s.io has rights and no kinds.
func TestGroupsThatExistOnlyInRightsCannotBeDefined(t *testing.T) {
	for group, served := range map[string]bool{
		"metrics.k8s.io": true, "apps": true, "windlass.dev": true, "x.example": false, "k8s.io": false,
	} {
		if custom.Served(group) != served {
			t.Errorf("%s: %v", group, !served)
		}
	}
}
