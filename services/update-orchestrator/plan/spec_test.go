package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

const clusterID = "3fdbd1bd-5a46-4e2b-8d9a-1a4f6a3c2b1d"

func release(version, image string) *updatev1.ReleaseReference {
	return &updatev1.ReleaseReference{Version: proto.String(version), Image: proto.String(image)}
}

func entry(state, version, image string) *updatev1.UpdateHistory {
	return &updatev1.UpdateHistory{State: state, Version: proto.String(version), Image: proto.String(image)}
}

func desiring(d *updatev1.DesiredUpdate) *updatev1.ClusterVersion {
	return &updatev1.ClusterVersion{
		Spec: &updatev1.ClusterVersionSpec{ClusterId: clusterID, Channel: "stable-1.1", DesiredUpdate: d},
		Status: &updatev1.ClusterVersionStatus{
			Desired: release("1.0.1", "r@sha256:1"),
			AvailableUpdates: []*updatev1.ReleaseReference{
				release("1.1.0", "r@sha256:a"), release("1.0.3", "r@sha256:b"),
				release("1.0.3", "r@sha256:c"),
			},
			ConditionalUpdates: []*updatev1.ConditionalUpdate{{
				Release: release("1.1.1", "r@sha256:d"), Conditions: []*metav1.Condition{
					condition(Recommended, False, "Hurts", "It hurts."),
				},
			}},
			History: []*updatev1.UpdateHistory{
				entry(StateCompleted, "1.0.1", "r@sha256:1"),
				entry(StateCompleted, "1.0.0", "r@sha256:0"),
			},
		},
	}
}

func TestValidateSpec(t *testing.T) {
	tests := map[string]struct {
		change func(*updatev1.ClusterVersion)
		want   []Problem
		image  string // of Desired
	}{
		"no desired update": {change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate = nil }},
		"an available update": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Version = proto.String("1.1.0") },
			image:  "r@sha256:a",
		},
		"a version that is not on offer": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Version = proto.String("1.9.0") },
			want: []Problem{
				{"spec.desiredUpdate.version", "when image is empty the update must be an available update or in the history"},
			},
		},
		"a version that is not recommended": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Version = proto.String("1.1.1") },
			want: []Problem{
				{"spec.desiredUpdate.version", "when image is empty the update must be an available update or in the history"},
			},
		},
		"a version that the cluster has been at": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Version = proto.String("1.0.0") },
			image:  "r@sha256:0",
		},
		"a version that it has been at twice": {
			change: func(cv *updatev1.ClusterVersion) {
				cv.Spec.DesiredUpdate.Version = proto.String("1.0.0")
				cv.Status.History = append(cv.Status.History, entry(StateCompleted, "1.0.0", "r@sha256:9"))
			},
			image: "r@sha256:0",
		},
		"a version with two images": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Version = proto.String("1.0.3") },
			want: []Problem{
				{"spec.desiredUpdate.version", "there are multiple possible payloads for this version, specify the exact image"},
			},
		},
		"a version and its image": {
			change: func(cv *updatev1.ClusterVersion) {
				cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{Version: proto.String("1.0.3"), Image: proto.String("r@sha256:c")}
			},
			image: "r@sha256:c",
		},
		"an image that is not offered": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Image = proto.String("x@sha256:f") },
			image:  "x@sha256:f",
		},
		"a version that is none": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Version = proto.String("next") },
			want:   []Problem{{"spec.desiredUpdate.version", `"next" is no semantic version`}},
		},
		"an architecture and an image": {
			change: func(cv *updatev1.ClusterVersion) {
				cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{
					Architecture: proto.String("Multi"),
					Image:        proto.String("x@sha256:f"),
				}
			},
			want: []Problem{{"spec.desiredUpdate.architecture", "must not be given together with an image"}},
		},
		"an architecture without a version": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.DesiredUpdate.Architecture = proto.String("Multi") },
			want:   []Problem{{"spec.desiredUpdate.version", "must be given with an architecture"}},
		},
		"no identity": {
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.ClusterId = "3fdbd1bd-5a46-1e2b-8d9a-1a4f6a3c2b1d" },
			want:   []Problem{{"spec.clusterID", `"3fdbd1bd-5a46-1e2b-8d9a-1a4f6a3c2b1d" must be a random (version 4) UUID`}},
		},
		"addresses that are none": {
			change: func(cv *updatev1.ClusterVersion) {
				cv.Spec.Upstream = "graph.example.com"
				cv.Spec.SignatureStores = []*updatev1.SignatureStore{{Url: "https://example.com"}, {Url: "/srv"}}
			},
			want: []Problem{
				{"spec.upstream", `"graph.example.com" must be an http, https or file address`},
				{"spec.signatureStores[1].url", `"/srv" must be an http, https or file address`},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cv := desiring(&updatev1.DesiredUpdate{})
			tt.change(cv)
			got := ValidateSpec(cv)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if image := Desired(cv).GetImage(); image != tt.image {
				t.Errorf("Desired has image %q, want %q", image, tt.image)
			}
			if c := InvalidCondition(got); (c != nil) != (len(tt.want) > 0) {
				t.Errorf("InvalidCondition = %v", c)
			}
		})
	}
}

func TestSameImage(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"r@sha256:1", "r@sha256:1", true},
		{"mirror/r@sha256:1", "r@sha256:1", true},
		{"r@sha256:1", "r@sha256:2", false},
		{"r:tag", "r:tag@sha256:1", true}, // what the tag was resolved to
		{"r:tag@sha256:1", "r:tag@sha256:2", false},
		{"r:tag", "r:other@sha256:1", false},
		{"r:tag", "r@sha256:1", false},
		{"", "", false},
	} {
		if SameImage(test.a, test.b) != test.want || SameImage(test.b, test.a) != test.want {
			t.Errorf("SameImage(%q, %q) is not %v", test.a, test.b, test.want)
		}
	}
}

func TestDesiredKnowsTheVersionOfAnImageOnOffer(t *testing.T) {
	cv := desiring(&updatev1.DesiredUpdate{Image: proto.String("r@sha256:d")})
	if got := Desired(cv).GetVersion(); got != "1.1.1" {
		t.Errorf("version %q", got)
	}
}
