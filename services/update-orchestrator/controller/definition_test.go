package controller

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// Another leader accepted the names of a definition, which the cache does not show yet.
func TestNamesAreNotAcceptedByAnOldCache(t *testing.T) {
	st := etcdtest.Store(t)
	client, hold := etcdtest.LateClient(t)
	log := slog.New(slog.DiscardHandler)
	late := store.New(client, st.Prefix())
	tables, away := kinds.New(late, protovalidate.GlobalValidator, log), kinds.New(st, protovalidate.GlobalValidator, log)
	go func() { _ = tables.Definitions.Run(t.Context()) }()
	go func() { _ = away.Definitions.Run(t.Context()) }()
	define := func(plural, kind string) *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		d, err := away.Definitions.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
			Metadata: &metav1.ObjectMeta{Name: plural + ".x.example"},
			Spec: &apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "x.example", Scope: "Cluster",
				Names: &apiextensionsv1.CustomResourceDefinitionNames{
					Plural: plural, Kind: kind, ShortNames: []string{"short"},
				},
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
		return d
	}
	first, second := define("as", "A"), define("bs", "B")
	if err := tables.Definitions.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	release := hold()
	first.Status.AcceptedNames = first.GetSpec().GetNames()
	if _, err := away.Definitions.UpdateStatus(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	c := &Controller{Config: Config{
		Tables: tables, Custom: custom.New(late, protovalidate.GlobalValidator, tables.Definitions, log),
	}}
	name := second.GetMetadata().GetName()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.define(short, name); err == nil {
		t.Error("it was decided on though the cache is behind")
	}
	release()
	if _, err := c.define(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	d, err := away.Definitions.Get(t.Context(), "", name)
	if err != nil {
		t.Fatal(err)
	}
	accepted := object.FindCondition(d.GetStatus().GetConditions(), plan.NamesAccepted)
	if accepted.GetReason() != "ShortNamesConflict" || d.GetStatus().GetAcceptedNames() != nil {
		t.Errorf("%v", d.GetStatus())
	}
}
