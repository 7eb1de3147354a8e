package plan

import (
	"slices"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestDrift(t *testing.T) {
	deployment := func(changes ...func(*schedulingv1.Deployment)) *schedulingv1.Deployment {
		d := &schedulingv1.Deployment{
			Metadata: &metav1.ObjectMeta{
				Name: "d", Namespace: "n", Uid: "u", ResourceVersion: "1", Generation: 1,
				Labels: map[string]string{"a": "1", "b": "1"},
			},
			Spec: &schedulingv1.DeploymentSpec{Replicas: proto.Int32(3)},
		}
		for _, f := range changes {
			f(d)
		}
		return d
	}
	scaled := func(d *schedulingv1.Deployment) {
		d.Spec.Replicas, d.Metadata.Generation, d.Metadata.ResourceVersion = proto.Int32(5), 2, "7"
	}
	labeled := func(d *schedulingv1.Deployment) {
		delete(d.Metadata.Labels, "a")
		d.Metadata.Labels["b"], d.Metadata.Labels["x/c"] = "2", "3"
	}
	rolledOut := func(d *schedulingv1.Deployment) {
		d.Status, d.Metadata.ResourceVersion = &schedulingv1.DeploymentStatus{Replicas: proto.Int32(3)}, "9"
	}
	leaving := func(d *schedulingv1.Deployment) { d.Metadata.DeletionTimestamp = timestamppb.Now() }
	for name, tt := range map[string]struct {
		applied, live *schedulingv1.Deployment
		appliedAt, at int64
		created, want bool
		back          []string // once it is applied again
	}{
		"it was never applied": {live: deployment(scaled), at: 7},
		"it was never seen":    {applied: deployment(), appliedAt: 5},
		"only its status changed": {
			applied: deployment(), appliedAt: 5, live: deployment(rolledOut),
			at: 9,
		},
		"an older state is seen late": {applied: deployment(), appliedAt: 8, live: deployment(scaled), at: 7},
		"its spec was changed": {
			deployment(), deployment(scaled), 5, 7, false, true,
			[]string{"spec.replicas"},
		},
		"labels were changed": {
			deployment(), deployment(labeled), 5, 7, false, true,
			[]string{"metadata.labels[a]", "metadata.labels[b]", "metadata.labels[x/c]"},
		},
		"it is gone": {
			applied: deployment(), appliedAt: 5, at: 7, want: true,
			back: []string{"the object"},
		},
		"it was gone before it was applied": {applied: deployment(), appliedAt: 9, at: 7},
		"it is about to go": {
			applied: deployment(), appliedAt: 5,
			live: deployment(scaled, leaving), at: 7,
		},
		"only that it is there counts, and it is":     {created: true, live: deployment(scaled), at: 7},
		"only that it is there counts, and it is not": {created: true, at: 7, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, first := range []string{"applied", "seen"} {
				var d Drift
				know := func() {
					if tt.created {
						d.Created("m")
					} else if tt.applied != nil {
						d.Applied("m", tt.applied, tt.appliedAt)
					}
				}
				see := func() {
					if tt.at > 0 && d.Saw("m", objectOrNil(tt.live), tt.at) != d.Drifted("m") {
						t.Error("two answers")
					}
				}
				if first == "applied" {
					know()
					see()
				} else {
					see()
					know()
				}
				if d.Drifted("m") != tt.want || d.Drifted("other") {
					t.Errorf("%s first: drifted is %v", first, d.Drifted("m"))
				}
				if tt.created {
					continue
				}
				d.Applying("m")
				if back := d.Applied("m", deployment(), 20); !slices.Equal(back, tt.back) || d.Drifted("m") {
					t.Errorf("%s first: %q is put back, want %q", first, back, tt.back)
				}
			}
		})
	}
}

func objectOrNil(d *schedulingv1.Deployment) object.Object {
	if d == nil {
		return nil
	}
	return d
}

func TestAnObjectOfWhichTheManifestDoesNotSpeakIsAppliedOnce(t *testing.T) {
	var d Drift
	d.Applied("m", noted("1", 3), 5)
	d.Saw("m", noted("2", 3), 6)
	if !d.Drifted("m") {
		t.Error("its owner is not asked whether it drifted")
	}
	if back := d.Applied("m", noted("2", 3), 6); len(back) != 0 || d.Drifted("m") { // the application has changed nothing
		t.Errorf("%q was put back", back)
	}
}

// noted is an object with something of which its manifest does not speak, and something of which it does.
func noted(note string, replicas int32) *schedulingv1.Deployment {
	return &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Annotations: map[string]string{"note": note}},
		Spec:     &schedulingv1.DeploymentSpec{Replicas: proto.Int32(replicas)},
	}
}

func TestWhatIsPutBackIsSaid(t *testing.T) {
	type step = func(d *Drift)
	saw := func(note string, replicas int32, at int64) step {
		return func(d *Drift) { d.Saw("m", noted(note, replicas), at) }
	}
	gone := func(at int64) step { return func(d *Drift) { d.Saw("m", nil, at) } }
	for name, tt := range map[string]struct {
		before, during []step // the application
		left           *schedulingv1.Deployment
		want           []string
	}{
		"it is seen before the application is noted": {
			[]step{saw("1", 8, 6)}, []step{saw("1", 3, 7)}, noted("1", 3), []string{"spec.replicas"},
		},
		"with another change by a user": {
			[]step{saw("1", 8, 6)}, []step{saw("2", 3, 7)}, noted("2", 3), []string{"spec.replicas"},
		},
		"a user has put it back": {[]step{saw("1", 8, 6), saw("1", 3, 7)}, nil, noted("1", 3), nil},
		"first what does not count, then what does": {
			[]step{saw("2", 3, 6), saw("2", 8, 7)}, nil, noted("2", 3), []string{"spec.replicas"},
		},
		"what does not count changes all the time": {[]step{saw("2", 3, 6)}, []step{saw("3", 3, 7)}, noted("3", 3), nil},
		"it was gone": {[]step{gone(6)}, []step{saw("1", 3, 7)}, noted("1", 3), []string{TheObject}},
	} {
		t.Run(name, func(t *testing.T) {
			var d Drift
			d.Applied("m", noted("1", 3), 5)
			for _, f := range tt.before {
				f(&d)
			}
			d.Applying("m")
			for _, f := range tt.during {
				f(&d)
			}
			if back := d.Applied("m", tt.left, 7); !slices.Equal(back, tt.want) || d.Drifted("m") {
				t.Errorf("%q was put back, drifted is %v", back, d.Drifted("m"))
			}
			d.Applying("m")
			if back := d.Applied("m", tt.left, 7); len(back) != 0 {
				t.Errorf("%q was put back once more", back)
			}
		})
	}
}

func TestADocumentWithoutASchemaIsOnePath(t *testing.T) {
	pool := func(most *structpb.Value) *configv1.MachineConfigPool {
		return &configv1.MachineConfigPool{Spec: &configv1.MachineConfigPoolSpec{MaxUnavailable: most}}
	}
	if got := differences(pool(structpb.NewNumberValue(1)), pool(structpb.NewStringValue("50%"))); !slices.Equal(got,
		[]string{"spec.maxUnavailable"}) {
		t.Errorf("%q", got)
	}
	config := func(version string) *configv1.MachineConfig {
		s := &structpb.Struct{Fields: map[string]*structpb.Value{"version": structpb.NewStringValue(version)}}
		return &configv1.MachineConfig{Spec: &configv1.MachineConfigSpec{Config: s}}
	}
	if got := differences(config("3.2.0"), config("3.5.0")); !slices.Equal(got, []string{"spec.config"}) {
		t.Errorf("%q", got)
	}
}
