package plan

import (
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
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

func TestWhatIsPutBackIsKnownAlsoIfItIsSeenFirst(t *testing.T) {
	for name, live := range map[string]*schedulingv1.Deployment{
		"put back": noted("1", 3),
		"put back, with another change by a user": noted("2", 3),
	} {
		t.Run(name, func(t *testing.T) {
			var d Drift
			d.Applied("m", noted("1", 3), 5)
			d.Saw("m", noted("1", 8), 6)
			d.Saw("m", live, 7)
			if back := d.Applied("m", live, 7); !slices.Equal(back, []string{"spec.replicas"}) || d.Drifted("m") {
				t.Errorf("%q was put back, drifted is %v", back, d.Drifted("m"))
			}
			if back := d.Applied("m", live, 7); len(back) != 0 {
				t.Errorf("%q was put back once more", back)
			}
		})
	}
}
