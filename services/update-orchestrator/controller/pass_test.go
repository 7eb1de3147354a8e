package controller

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/release"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// owner is a service that refuses the first calls, and every watch.
type owner struct{ refusals int }

func (o *owner) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	if o.refusals == 0 {
		return nil
	}
	o.refusals--
	return status.Error(codes.Unavailable, "starting")
}

func (*owner) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.PermissionDenied, "no such right")
}

// passOf is a pass over one deployment that belongs to an owner.
func passOf(t *testing.T, o *owner, mode plan.Mode) (*pass, apply.Task) {
	t.Helper()
	owners := apply.Owners{}
	for pkg := range apply.Packages() {
		owners[pkg] = o
	}
	applier, err := apply.New(nil, owners)
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := applier.Prepare(&release.Payload{Manifests: []release.Manifest{{
		File: "0000_50_beacon_00_deployment.yaml", APIVersion: "apps/v1", Kind: "Deployment", Namespace: "beacon",
		Name:        "beacon",
		Annotations: map[string]string{"include.release.openshift.io/self-managed-high-availability": "true"},
		Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{
			"name": "beacon", "namespace": "beacon",
		}},
	}}})
	if err != nil || len(tasks) != 1 {
		t.Fatalf("tasks are %v, %v", tasks, err)
	}
	c := &Controller{
		Config: Config{Applier: applier, Log: slog.New(slog.DiscardHandler)},
		term:   term{seen: newSightings()},
	}
	return &pass{
		c: c, release: &loaded{payload: &release.Payload{}}, mode: mode, track: newTracker(plan.Run{Mode: mode, Total: 1},
			nil),
	}, tasks[0]
}

func TestAWaitThatIsOverIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, task := passOf(t, &owner{refusals: 2}, plan.Reconciling)
		if _, err := p.try(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		if r := p.track.run(); len(r.Gates) > 0 {
			t.Errorf("what was applied is waited for all the same: %v", r.Gates)
		}
		time.Sleep(24 * time.Hour)
		if since := p.c.term.seen.of(task, now()); !since.Equal(now()) {
			t.Errorf("the next wait counts from %v, that of the one before", since)
		}
	})
}

func TestWhyAWorkloadIsNotShownIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, task := passOf(t, &owner{}, plan.Updating)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.rollOut(ctx, task) }()
		time.Sleep(10 * time.Second)
		w := p.track.progress().GetWaits()
		if len(w) != 1 || w[0].GetObserved() != "no such right" || w[0].GetObject().GetName() != "beacon" ||
			now().Sub(w[0].GetSince().AsTime()) != 10*time.Second {
			t.Errorf("waits are %v", w)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("a roll-out that was not observed has succeeded")
		}
	})
}

func TestWhichQuestionsAreAboutTheSameUpdates(t *testing.T) {
	base := func() *updatev1.ClusterVersion {
		return &updatev1.ClusterVersion{
			Spec: &updatev1.ClusterVersionSpec{
				Upstream: "https://graphs.example.com", Channel: "stable",
				DesiredUpdate: &updatev1.DesiredUpdate{},
			},
			Status: &updatev1.ClusterVersionStatus{Desired: &updatev1.ReleaseReference{Version: proto.String("1.0.0")}},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*updatev1.ClusterVersion)
		same   bool
	}{
		{"another risk is accepted", func(cv *updatev1.ClusterVersion) {
			cv.Spec.DesiredUpdate.AcceptRisks = []*updatev1.AcceptedRisk{{Name: "R"}}
		}, true},
		{"another channel", func(cv *updatev1.ClusterVersion) { cv.Spec.Channel = "fast" }, false},
		{"another upstream", func(cv *updatev1.ClusterVersion) { cv.Spec.Upstream = "https://other.example.com" }, false},
		{"another version", func(cv *updatev1.ClusterVersion) { cv.Status.Desired.Version = proto.String("1.1.0") }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := base()
			tt.change(changed)
			if q, other := questionOf(base()), questionOf(changed); q == other || q.same(other) != tt.same {
				t.Errorf("same is %v, equal %v", q.same(other), q == other)
			}
		})
	}
}
