package plans

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestWhatAReleaseIsPlannedForIsThatOfAFile(t *testing.T) {
	inventory := func(name string) []*metav1.ObjectReference {
		return []*metav1.ObjectReference{{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: name}}
	}
	release := func(image, brought string) *updatev1.Release {
		return &updatev1.Release{
			Spec: &updatev1.ReleaseSpec{Image: image}, Status: &updatev1.ReleaseStatus{Inventory: inventory(brought)},
		}
	}
	capabilities := &updatev1.Capabilities{BaselineCapabilitySet: "None"}
	overrides := []*updatev1.ComponentOverride{{Kind: "Node", Name: "x", Unmanaged: proto.Bool(true)}}
	version := func(image string) *updatev1.ClusterVersion {
		return &updatev1.ClusterVersion{
			Spec:   &updatev1.ClusterVersionSpec{Capabilities: capabilities, Overrides: overrides},
			Status: &updatev1.ClusterVersionStatus{Desired: &updatev1.ReleaseReference{Image: proto.String(image)}},
		}
	}
	for name, tt := range map[string]struct {
		of       given
		removals bool
		want     *updatev1.PlanReleaseRequest // nil for an error
	}{
		"a version": {
			of:   given{version("i")},
			want: &updatev1.PlanReleaseRequest{Capabilities: capabilities, Overrides: overrides},
		},
		"the present release of several": {
			of: given{release("h", "old"), version("i"), release("i", "present")}, removals: true,
			want: &updatev1.PlanReleaseRequest{
				Removals: true, Capabilities: capabilities, Overrides: overrides, Inventory: inventory("present"),
			},
		},
		"a release without a version": {
			of: given{release("i", "present")}, removals: true,
			want: &updatev1.PlanReleaseRequest{Removals: true, Inventory: inventory("present")},
		},
		"several releases without a version":           {of: given{release("h", "a"), release("i", "b")}, removals: true},
		"no release":                                   {of: given{version("i")}, removals: true},
		"a version that is at no release":              {of: given{version(""), release("", "a")}, removals: true},
		"another release than that of the version":     {of: given{version("i"), release("h", "a")}, removals: true},
		"two versions":                                 {of: given{version("i"), version("i")}},
		"removals are not shown and count for nothing": {of: given{release("i", "a")}, want: &updatev1.PlanReleaseRequest{}},
	} {
		req := &updatev1.PlanReleaseRequest{Removals: tt.removals}
		err := tt.of.release(req)
		if (err != nil) != (tt.want == nil) {
			t.Errorf("%s: error %v", name, err)
		}
		if tt.want == nil {
			continue
		}
		if diff := cmp.Diff(tt.want, req, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFlagsReplaceWhatAReleaseIsPlannedFor(t *testing.T) {
	before := func() *updatev1.PlanReleaseRequest {
		return &updatev1.PlanReleaseRequest{
			Capabilities: &updatev1.Capabilities{BaselineCapabilitySet: "None", AdditionalEnabledCapabilities: []string{"A"}},
			Overrides:    []*updatev1.ComponentOverride{{Kind: "Node", Name: "x", Unmanaged: proto.Bool(true)}},
		}
	}
	for name, tt := range map[string]struct {
		question releaseQuestion
		change   func(*updatev1.PlanReleaseRequest)
	}{
		"nothing": {change: func(*updatev1.PlanReleaseRequest) {}},
		"the baseline": {
			releaseQuestion{baseline: "vCurrent"},
			func(r *updatev1.PlanReleaseRequest) { r.Capabilities.BaselineCapabilitySet = "vCurrent" },
		},
		"capabilities": {
			releaseQuestion{additional: []string{"B", "C"}},
			func(r *updatev1.PlanReleaseRequest) {
				r.Capabilities.AdditionalEnabledCapabilities = []string{"B", "C"}
			},
		},
		"objects that are left alone": {
			releaseQuestion{overrides: []string{"deployment/beacon", "nodes/y"}},
			func(r *updatev1.PlanReleaseRequest) {
				r.Overrides = []*updatev1.ComponentOverride{
					{Group: "apps", Kind: "Deployment", Namespace: "lights", Name: "beacon", Unmanaged: proto.Bool(true)},
					{Kind: "Node", Name: "y", Unmanaged: proto.Bool(true)},
				}
			},
		},
	} {
		live, got, want := before(), before(), before()
		got.Capabilities = live.GetCapabilities()
		tt.change(want)
		if err := tt.question.replace(t.Context(), &session.Env{Namespace: "lights"}, got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before().GetCapabilities(), live.GetCapabilities(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: the ClusterVersion is changed (-want +got):\n%s", name, diff)
		}
	}
}

func TestThePoolToRenderIsThatOfAFile(t *testing.T) {
	pool := &configv1.MachineConfigPool{Metadata: &metav1.ObjectMeta{Name: "storage"}}
	for name, tt := range map[string]struct {
		of    given
		named string
		want  *configv1.RenderMachineConfigRequest // nil for an error
	}{
		"of the cluster":     {given{}, "worker", &configv1.RenderMachineConfigRequest{PoolName: "worker"}},
		"given":              {given{pool}, "", &configv1.RenderMachineConfigRequest{Pool: pool}},
		"given and named":    {given{pool}, "storage", &configv1.RenderMachineConfigRequest{Pool: pool}},
		"another than named": {given{pool}, "worker", nil},
		"two":                {given{pool, pool}, "storage", nil},
	} {
		req := &configv1.RenderMachineConfigRequest{PoolName: tt.named}
		err := tt.of.configs(t.Context(), nil, req)
		if (err != nil) != (tt.want == nil) {
			t.Errorf("%s: error %v", name, err)
		}
		if tt.want == nil {
			continue
		}
		if diff := cmp.Diff(tt.want, req, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
