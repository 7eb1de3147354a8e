package custom

import (
	"log/slog"
	"reflect"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/servetest"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func TestOnlyAChangeOfTheSpecCompilesSchemasAgain(t *testing.T) {
	st, log := etcdtest.Store(t), slog.New(slog.DiscardHandler)
	definitions := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*Definition]{Log: log})
	kinds := New(st, protovalidate.GlobalValidator, definitions, log)
	go func() { _ = definitions.Run(t.Context()) }()
	go func() { _ = kinds.Run(t.Context()) }()
	key := object.Key{Name: "as.x.example"}
	d, err := definitions.Create(t.Context(), &Definition{
		Metadata: &metav1.ObjectMeta{Name: key.Name},
		Spec: &apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "x.example", Scope: "Cluster", Names: &apiextensionsv1.CustomResourceDefinitionNames{Plural: "as", Kind: "A"},
			Versions: []*apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: proto.Bool(true), Storage: proto.Bool(true),
				Schema: &apiextensionsv1.CustomResourceValidation{OpenApiv3Schema: &structpb.Struct{
					Fields: map[string]*structpb.Value{"type": structpb.NewStringValue("object")},
				}},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// change changes the definition, and returns the schemas by which it is then served.
	change := func(f func(d *Definition)) (schemas uintptr) {
		t.Helper()
		if d, err = definitions.Modify(t.Context(), key, func(d *Definition) error { f(d); return nil }); err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string {
			kinds.mu.Lock()
			kind := kinds.kinds[key.Name]
			kinds.mu.Unlock()
			if kind == nil {
				return "it is not served"
			}
			now := kind.state.Load()
			if now.definition.GetMetadata().GetResourceVersion() != d.GetMetadata().GetResourceVersion() {
				return "its present state is not served"
			}
			schemas = reflect.ValueOf(now.schemas).Pointer()
			return ""
		})
		return schemas
	}
	served := change(func(d *Definition) {
		d.Status = &apiextensionsv1.CustomResourceDefinitionStatus{
			Conditions: []*metav1.Condition{{Type: plan.NamesAccepted, Status: plan.True}},
		}
	})
	if now := change(func(d *Definition) {
		d.Status.Conditions = append(d.Status.Conditions, &metav1.Condition{Type: plan.Established, Status: plan.True})
	}); now != served {
		t.Error("a change of the status compiled the schemas")
	}
	if now := change(func(d *Definition) { d.Metadata.Labels = map[string]string{"a": "b"} }); now != served {
		t.Error("a label compiled the schemas")
	}
	if now := change(func(d *Definition) { d.Spec.Names.ShortNames = []string{"a"} }); now == served {
		t.Error("a change of the spec did not compile the schemas")
	}
}
