package rollout

import (
	"encoding/json"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// A restart marks the template of a kind at the path that its controller compares.
func TestARestartMarksTheTemplate(t *testing.T) {
	deployment, set := &schedulingv1.Deployment{}, &machinev1.ControlPlaneMachineSet{}
	for kind, obj := range map[string]object.Object{"Deployment": deployment, controlPlane: set} {
		doc, err := json.Marshal(restartPatch(kind, time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)))
		if err != nil {
			t.Fatal(err)
		}
		if err := manifest.Decode(doc, obj); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	for kind, annotations := range map[string]map[string]string{
		"Deployment": deployment.GetSpec().GetTemplate().GetMetadata().GetAnnotations(),
		controlPlane: set.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo().GetMetadata().GetAnnotations(),
	} {
		if got := annotations["kubectl.kubernetes.io/restartedAt"]; got != "2026-01-01T12:00:00Z" {
			t.Errorf("%s: annotations %v", kind, annotations)
		}
	}
}

func TestTheRolloutOfAPoolIsWhatItsStatusSays(t *testing.T) {
	pool := func(change func(*configv1.MachineConfigPool)) *configv1.MachineConfigPool {
		p := &configv1.MachineConfigPool{
			Metadata: &metav1.ObjectMeta{Name: "worker", Generation: 2},
			Spec: &configv1.MachineConfigPoolSpec{
				Configuration: &configv1.MachineConfigPoolConfiguration{Name: "rendered-worker-2"},
			},
			Status: &configv1.MachineConfigPoolStatus{
				ObservedGeneration: proto.Int32(2), Conditions: []*metav1.Condition{
					{Type: "Updated", Status: "False", Message: proto.String("1 of 2 nodes are updated")},
				},
			},
		}
		change(p)
		return p
	}
	updated := func(p *configv1.MachineConfigPool) { p.Status.Conditions[0].Status = "True" }
	for _, tc := range []struct {
		name   string
		change func(*configv1.MachineConfigPool)
		want   string // what its configurations make
		text   string
		done   bool
		err    string
	}{
		{
			"under way", func(*configv1.MachineConfigPool) {}, "rendered-worker-2",
			`Waiting for machine config pool "worker" rollout to finish: 1 of 2 nodes are updated`, false, "",
		},
		{"done", updated, "rendered-worker-2", `machine config pool "worker" successfully rolled out`, true, ""},
		{
			"done with what was before", updated, "rendered-worker-3",
			`Waiting for machine config pool "worker" rollout to finish: it has not taken up rendered-worker-3 yet`, false, "",
		},
		{
			"held at what it has", func(p *configv1.MachineConfigPool) {
				updated(p)
				p.Spec.Pin = &configv1.MachineConfigPoolPin{Configuration: "rendered-worker-2"}
			}, "", `machine config pool "worker" successfully rolled out`, true, "",
		},
		{
			"held at another", func(p *configv1.MachineConfigPool) {
				updated(p)
				p.Spec.Pin = &configv1.MachineConfigPoolPin{Configuration: "rendered-worker-1"}
			}, "", `Waiting for machine config pool "worker" rollout to finish: it has not taken up rendered-worker-1 yet`,
			false,
			"",
		},
		{
			"changed a moment ago", func(p *configv1.MachineConfigPool) { p.Metadata.Generation = 3 }, "rendered-worker-2",
			"Waiting for machine config pool spec update to be observed...", false, "",
		},
		{
			"paused", func(p *configv1.MachineConfigPool) {
				p.Status.Conditions = append(p.Status.Conditions, &metav1.Condition{
					Type: "Paused", Status: "True", Message: proto.String("pool worker is paused by alice until resumed"),
				})
			}, "rendered-worker-2", "", false, `machine config pool worker is paused by alice until resumed`,
		},
		{
			"degraded", func(p *configv1.MachineConfigPool) {
				p.Status.Conditions = append(p.Status.Conditions, &metav1.Condition{
					Type: "Degraded", Status: "True", Message: proto.String("node n cannot"),
				})
			}, "rendered-worker-2", "", false, `machine config pool "worker" is degraded: node n cannot`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, done, err := statusText(pool(tc.change), tc.want)
			said := ""
			if err != nil {
				said = err.Error()
			}
			if text != tc.text || done != tc.done || said != tc.err {
				t.Errorf("%q, %v, %q; want %q, %v, %q", text, done, said, tc.text, tc.done, tc.err)
			}
		})
	}
}
