package controller

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// world is the nodes, the placement and the events of a test: there are none.
type world struct{ *resource.Cache[*nodev1.Node] }

func (world) HasNode(string) bool                           { return true }
func (world) Exists(context.Context, string) (bool, error)  { return true, nil }
func (world) SettleClaim(context.Context, object.Key) error { return nil }
func (world) Event(object.Object, string, string, string)   {}

// A copy of volumes that is behind says nothing of a claim: it is not lost while its volume is stored.
func TestAClaimIsNotLostBecauseTheCopyIsBehind(t *testing.T) {
	v, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	w := world{resource.NewCache[*nodev1.Node]()}
	client, prefix := etcdtest.Client(t), etcdtest.Prefix(t)
	tables := func() *kinds.Tables {
		return kinds.New(kinds.Config{
			Store: store.New(client, prefix), Validator: v, Nodes: w,
			Log: slog.New(slog.DiscardHandler), MayBind: func(identity.Caller, string, string) bool { return true },
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	defer func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}()
	ahead := tables()
	group.Go(func() error { return ahead.Claims.Run(ctx) })
	group.Go(func() error { return ahead.Volumes.Run(ctx) })
	size := structpb.NewStringValue("1Gi")
	resources, err := structpb.NewStruct(map[string]any{"requests": map[string]any{"storage": "1Gi"}})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := ahead.Claims.Create(t.Context(), &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "c"},
		Spec:     &schedulingv1.PersistentVolumeClaimSpec{AccessModes: []string{"ReadWriteOnce"}, Resources: resources},
	})
	if err != nil {
		t.Fatal(err)
	}
	volume, err := ahead.Volumes.Create(t.Context(), &schedulingv1.PersistentVolume{
		Metadata: &metav1.ObjectMeta{Name: "v"},
		Spec: &schedulingv1.PersistentVolumeSpec{
			AccessModes: []string{"ReadWriteOnce"}, Capacity: map[string]*structpb.Value{"storage": size},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := plan.Bind(claim, volume)
	if _, _, err = resource.ReplaceBoth(t.Context(), ahead.Volumes, b.Volume, ahead.Claims, b.Claim); err != nil {
		t.Fatal(err)
	}

	behind := tables() // it knows no volume
	c := New(behind, w, w, w, slog.New(slog.DiscardHandler))
	group.Go(func() error { return behind.Claims.Run(ctx) })
	if err := behind.Claims.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reconcileClaim(t.Context(), "default/c"); err != nil {
		t.Fatal(err)
	}
	now, err := ahead.Claims.Get(t.Context(), "default", "c")
	if err != nil || now.GetStatus().GetPhase() != "Bound" {
		t.Errorf("the claim is %v, %v", now.GetStatus(), err)
	}
}
