package controller

import (
	"log/slog"
	"slices"
	"sync"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// eventLog keeps the reasons of events.
type eventLog struct {
	mu      sync.Mutex
	reasons []string
}

func (e *eventLog) Event(_ object.Object, _, reason, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reasons = append(e.reasons, reason)
}

// The controller of claims sees a volume that was made, too, and may bind the claim first.
func TestAVolumeThatWasMadeIsToldOfWhoeverBindsTheClaim(t *testing.T) {
	tables := followed(t, etcdtest.Store(t))
	events := &eventLog{}
	s := NewScheduler(tables, noNodes{}, events, nil, slog.New(slog.DiscardHandler))
	claim, err := tables.Claims.Create(t.Context(), &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{Name: "c"},
		Spec: &schedulingv1.PersistentVolumeClaimSpec{
			AccessModes: []string{"ReadWriteOnce"}, StorageClassName: new("local"),
			Resources: &structpb.Struct{Fields: map[string]*structpb.Value{"requests": structpb.NewStructValue(
				&structpb.Struct{Fields: map[string]*structpb.Value{"storage": structpb.NewStringValue("1Gi")}},
			)}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	class := &schedulingv1.StorageClass{Metadata: &metav1.ObjectMeta{Name: "local"}, Provisioner: volumes.LocalProvisioner}
	made := volumes.Local(claim, class, "node-1")
	choices := []plan.ClaimChoice{{Claim: claim, Volume: made, Made: true}}

	stored, err := tables.Volumes.Create(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	b := volumes.Bind(claim, stored)
	if _, _, err := resource.ReplaceBoth(t.Context(), tables.Volumes, b.Volume, tables.Claims, b.Claim); err != nil {
		t.Fatal(err)
	}
	if err := s.bindClaimsOf(t.Context(), choices); err != nil {
		t.Fatal(err)
	}
	if want := []string{"ProvisioningSucceeded"}; !slices.Equal(events.reasons, want) {
		t.Errorf("events %v, want %v", events.reasons, want)
	}
}
