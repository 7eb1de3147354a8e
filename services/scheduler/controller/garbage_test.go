package controller

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestWhatItsOwnerLeftAloneMeanwhileStays(t *testing.T) {
	tables := followed(t)
	g := NewGarbage(tables, noNodes{}, slog.New(slog.DiscardHandler))
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
			if _, err := tables.Budgets.Modify(t.Context(), object.KeyOf(seen),
				func(b *schedulingv1.PodDisruptionBudget) error {
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

// served is a service whose methods are called directly.
type served struct {
	desc *grpc.ServiceDesc
	impl any
}

func (s *served) RegisterService(desc *grpc.ServiceDesc, impl any) { s.desc, s.impl = desc, impl }

func (s *served) call(ctx context.Context, name string, r proto.Message) error {
	i := slices.IndexFunc(s.desc.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
	_, err := s.desc.Methods[i].Handler(s.impl, ctx, func(m any) error {
		proto.Merge(m.(proto.Message), r)
		return nil
	}, nil)
	return err
}

// TestANamespaceGoesHoweverItsDeletionWasAskedFor has what is in a namespace left alone: there it can belong to nobody
// and goes all the same.
func TestANamespaceGoesHoweverItsDeletionWasAskedFor(t *testing.T) {
	tables := followed(t)
	var s served
	if err := resource.Register(&s, &schedulingv1.NamespaceService_ServiceDesc, nil, tables.Namespaces); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{}, 1)
	tables.Namespaces.Subscribe(func(ch resource.Change[*schedulingv1.Namespace]) {
		if ch.Deleted && ch.Key.Name == "mine" {
			gone <- struct{}{}
		}
	})
	go func() { _ = NewGarbage(tables, noNodes{}, slog.New(slog.DiscardHandler)).Lead(t.Context()) }()
	if _, err := tables.Namespaces.Create(t.Context(), &schedulingv1.Namespace{
		Metadata: &metav1.ObjectMeta{Name: "mine"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.call(t.Context(), "DeleteNamespace", &schedulingv1.DeleteNamespaceRequest{
		Name: "mine", PropagationPolicy: "Orphan",
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		ns, _ := tables.Namespaces.Lookup("", "mine")
		t.Errorf("it is still there: %v", ns)
	}
}
