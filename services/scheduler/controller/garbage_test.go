package controller

import (
	"log/slog"
	"os"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestWhatItsOwnerLeftAloneMeanwhileStays(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(kinds.Config{Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{}, MayBind: mayBind, Log: log})
	for _, k := range tables.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	g := NewGarbage(tables, noNodes{}, log)
	budgets := g.byName["poddisruptionbudgets"]
	for _, name := range []string{"stays", "goes"} {
		seen, err := tables.Budgets.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: []*metav1.OwnerReference{
				{ApiVersion: "apps/v1", Kind: "Deployment", Name: "web", Uid: "gone"},
			}},
			Spec: &schedulingv1.PodDisruptionBudgetSpec{MinAvailable: structpb.NewNumberValue(1)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if name == "stays" {
			if _, err := tables.Budgets.Modify(t.Context(), resource.KeyOf(seen), func(b *schedulingv1.PodDisruptionBudget) error {
				b.Metadata.OwnerReferences = nil
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		wake, err := g.checkOwners(t.Context(), budgets, seen)
		if again := !wake.IsZero(); err != nil || again != (name == "stays") {
			t.Errorf("%s: looked at again: %v, %v", name, again, err)
		}
		_, err = tables.Budgets.Get(t.Context(), "default", name)
		if there := rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND; there != (name == "stays") {
			t.Errorf("%s: it is there: %v", name, there)
		}
	}
}
