package controller

import (
	"testing"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
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
