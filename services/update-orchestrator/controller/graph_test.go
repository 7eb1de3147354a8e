package controller

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

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
		{"releases for all processors", func(cv *updatev1.ClusterVersion) {
			cv.Spec.DesiredUpdate.Architecture = proto.String("Multi")
		}, false},
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

// A release says itself for which processors it is, also where no graph offered it.
func TestAReleaseForAllProcessorsIsNamedAsSuch(t *testing.T) {
	l := &loaded{payload: &release.Payload{Metadata: release.Metadata{Version: "1.0.0"}}}
	if a := l.reference(nil).GetArchitecture(); a != "" {
		t.Errorf("architecture is %q", a)
	}
	l.payload.Metadata.Metadata = map[string]string{"release.openshift.io/architecture": "multi"}
	for _, from := range []*updatev1.ReleaseReference{nil, {}} {
		if a := l.reference(from).GetArchitecture(); a != plan.Multi {
			t.Errorf("offered as %v: architecture is %q", from, a)
		}
	}
}

// An operator that objects now and then must not have the check of an update begin again and again.
func TestAnObjectionDoesNotEndTheCheckOfAnUpdate(t *testing.T) {
	target := &updatev1.ReleaseReference{Version: proto.String("1.1.0"), Image: proto.String("r@sha256:1")}
	cv := &updatev1.ClusterVersion{
		Spec:   &updatev1.ClusterVersionSpec{DesiredUpdate: &updatev1.DesiredUpdate{Version: target.Version}},
		Status: &updatev1.ClusterVersionStatus{},
	}
	before := inputsOf(cv, target)
	cv.Status.Conditions = []*metav1.Condition{{Type: plan.Upgradeable, Status: plan.False}}
	if upgradeable(cv) != plan.False || inputsOf(cv, target) != before {
		t.Errorf("the answer depends on %q, and on %q after an objection", before, inputsOf(cv, target))
	}
	cv.Spec.DesiredUpdate.Waive = []*updatev1.WaivedCheck{{Name: plan.VerifyPayload, Reason: "a test"}}
	if inputsOf(cv, target) == before {
		t.Error("the answer does not depend on what is waived")
	}
}
