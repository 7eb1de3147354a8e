package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// foreseen is a run of a given cluster version in short: a line for each manifest.
func foreseen(r *updatev1.PlanClusterVersionRunRequest, now time.Time) []string {
	operators := map[string]*updatev1.ClusterOperator{}
	for _, o := range r.GetClusterOperators() {
		operators[o.GetMetadata().GetName()] = o
	}
	cv := r.GetClusterVersion()
	p := Foresee(GivenPass(r, GivenMode(cv.GetStatus())), cv.GetStatus().GetProgress().GetWaits(),
		func(name string) *updatev1.ClusterOperator { return operators[name] }, Paused(cv, now), now)
	out := &updatev1.PlanClusterVersionRunResponse{}
	p.Describe(out)
	lines := []string{fmt.Sprintf("%s step %d", out.GetMode(), out.GetCurrentStep())}
	for _, s := range out.GetSteps() {
		for _, c := range s.GetChains() {
			for _, m := range c.GetManifests() {
				line := m.GetObject().GetName() + " " + m.GetState()
				if m.GetWait() != nil {
					line += fmt.Sprintf(": %s (%s) for %s", m.GetWait().GetFact(), m.GetReason(),
						now.Sub(m.GetWait().GetSince().AsTime()))
				}
				lines = append(lines, line)
			}
		}
	}
	for _, o := range out.GetNext() {
		lines = append(lines, "next "+o.GetName())
	}
	return lines
}

func TestARunOfGivenObjects(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	object := func(kind, name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{ApiVersion: "v1", Kind: kind, Name: name}
	}
	request := func() *updatev1.PlanClusterVersionRunRequest {
		return &updatev1.PlanClusterVersionRunRequest{
			ClusterVersion: &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{
				Desired: &updatev1.ReleaseReference{Version: proto.String("1.1.0"), Image: proto.String("r@sha256:11")},
				History: []*updatev1.UpdateHistory{
					{State: statePartial, Version: proto.String("1.1.0"), Image: proto.String("r@sha256:11")},
					{State: StateCompleted, Version: proto.String("1.0.0"), Image: proto.String("r@sha256:10")},
				},
				Progress: &updatev1.UpdateProgress{},
			}},
			Manifests: []*updatev1.ReleaseManifest{
				{File: "0000_10_a_00_x.yaml", Object: object("ConfigMap", "a")},
				{File: "0000_10_b_00_x.yaml", Object: object("ConfigMap", "left-out"), Excluded: "feature gate X is off"},
				{
					File: "0000_20_b_00_x.yaml", Object: object("ClusterOperator", "b"), ClusterOperator: true,
					Versions: []*updatev1.OperandVersion{{Name: "operator", Version: "1.1.0"}},
				},
				{File: "0000_30_c_00_x.yaml", Object: object("Deployment", "c")},
				{File: "0000_40_d_00_x.yaml", Object: object("Job", "d"), Job: true},
				{File: "0000_50_e_00_x.yaml", Object: object("ConfigMap", "e")},
			},
			ClusterOperators: []*updatev1.ClusterOperator{
				operatorAt("b", "1.1.0"), operatorAt(NodeOperator, "1.1.0"),
			},
		}
	}
	for name, tt := range map[string]struct {
		change func(*updatev1.PlanClusterVersionRunRequest)
		want   []string
	}{
		"nothing is waited for": {
			func(*updatev1.PlanClusterVersionRunRequest) {},
			[]string{"Updating step 0", "a Done", "b Done", "c Done", "d Done", "e Done", "machine-config Done"},
		},
		"an operator is at another version": {
			func(r *updatev1.PlanClusterVersionRunRequest) { r.ClusterOperators[0] = operatorAt("b", "1.0.0") },
			[]string{
				"Updating step 1", "a Done",
				"b Waiting: ClusterOperator b must report versions operator 1.1.0. (ClusterOperatorUpdating) for 0s",
				"c NotBegun", "d NotBegun", "e NotBegun", "machine-config NotBegun", "next c",
			},
		},
		"the status waits for a workload, and for an operator that is ready by now": {
			func(r *updatev1.PlanClusterVersionRunRequest) {
				since := timestamppb.New(now.Add(-time.Minute))
				r.ClusterVersion.Status.Progress.Waits = []*updatev1.UpdateWait{
					{
						Object: object("ClusterOperator", "b"), Manifest: "0000_20_b_00_x.yaml", Since: since,
						Fact: "ClusterOperator b must report Available=True.",
					},
					{
						Object: object("Deployment", "c"), Manifest: "0000_30_c_00_x.yaml", Since: since,
						Fact: "Deployment \"c\": all pods are of the new template and available.",
					},
				}
			},
			[]string{
				"Updating step 1", "a Done", "b Done",
				"c Waiting: Deployment \"c\": all pods are of the new template and available. (WorkloadNotAvailable) for 1m0s",
				"d NotBegun", "e NotBegun", "machine-config NotBegun", "next d",
			},
		},
		"a removal is waited for": {
			func(r *updatev1.PlanClusterVersionRunRequest) {
				r.Removed = []*metav1.ObjectReference{object("Service", "old")}
				r.ClusterVersion.Status.Progress.Waits = []*updatev1.UpdateWait{{
					Object: object("Service", "old"), Since: timestamppb.New(now), Fact: "Service \"old\" must be gone.",
				}}
			},
			[]string{
				"Updating step 4", "a Done", "b Done", "c Done", "d Done", "e Done",
				"old Waiting: Service \"old\" must be gone. (UpdatePayloadFailed) for 0s", "machine-config NotBegun",
				"next machine-config",
			},
		},
		"updates are paused": {
			func(r *updatev1.PlanClusterVersionRunRequest) {
				r.ClusterVersion.Spec = &updatev1.ClusterVersionSpec{Pause: &updatev1.UpdatePause{Reason: "fair"}}
			},
			[]string{
				"Updating step 1", "a NotBegun", "b NotBegun", "c NotBegun", "d NotBegun", "e NotBegun",
				"machine-config NotBegun", "next a",
			},
		},
		"the cluster is at the release: no job runs, and an object of the overrides is left alone": {
			func(r *updatev1.PlanClusterVersionRunRequest) {
				st := r.GetClusterVersion().GetStatus()
				st.History, st.Progress = []*updatev1.UpdateHistory{
					{State: StateCompleted, Version: proto.String("1.1.0"), Image: proto.String("r@sha256:11")},
				}, nil
				r.ClusterVersion.Spec = &updatev1.ClusterVersionSpec{Overrides: []*updatev1.ComponentOverride{
					{Kind: "ConfigMap", Name: "a", Unmanaged: proto.Bool(true)},
				}}
			},
			[]string{"Reconciling step 0", "a Skipped", "b Done", "c Done", "d Skipped", "e Done"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			tt.change(r)
			if diff := cmp.Diff(tt.want, foreseen(r, now)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func operatorAt(name, version string) *updatev1.ClusterOperator {
	return &updatev1.ClusterOperator{
		Metadata: &metav1.ObjectMeta{Name: name},
		Status: &updatev1.ClusterOperatorStatus{
			Conditions: []*metav1.Condition{condition(Available, True, "", ""), condition(Degraded, False, "", "")},
			Versions:   []*updatev1.OperandVersion{{Name: "operator", Version: version}},
		},
	}
}

func TestAGivenRunWaitsForPrograms(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &updatev1.PlanClusterVersionRunRequest{
		ClusterVersion: &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{
			Desired: &updatev1.ReleaseReference{Version: proto.String("1.1.0"), Image: proto.String("r@sha256:11")},
			History: []*updatev1.UpdateHistory{
				{State: statePartial, Version: proto.String("1.1.0"), Image: proto.String("r@sha256:11")},
				{State: StateCompleted, Version: proto.String("1.0.0"), Image: proto.String("r@sha256:10")},
			},
			Progress: &updatev1.UpdateProgress{},
		}},
		Manifests: []*updatev1.ReleaseManifest{{
			File:     "0000_00_windlass-machine-api_00_program.yaml",
			Object:   &metav1.ObjectReference{ApiVersion: "windlass.dev/v1", Kind: "Program", Name: "machine-api"},
			Versions: []*updatev1.OperandVersion{{Name: "windlass", Version: "0.2.0"}},
		}},
	}
	operator := operatorAt("machine-api", "0.1.0")
	operator.Status.Versions[0].Name = "windlass"
	r.ClusterOperators = []*updatev1.ClusterOperator{operator, operatorAt(NodeOperator, "1.1.0")}
	want := []string{
		"Updating step 1", "machine-api Waiting: ClusterOperator machine-api must report versions windlass 0.2.0. " +
			"(ClusterOperatorUpdating) for 1m0s", "machine-config NotBegun", "next machine-config",
	}
	r.ClusterVersion.Status.Progress.Waits = []*updatev1.UpdateWait{{
		Object: r.Manifests[0].Object, Manifest: r.Manifests[0].File, Since: timestamppb.New(now.Add(-time.Minute)),
		Fact: operatorFact("machine-api") + "versions windlass 0.2.0.",
	}}
	if diff := cmp.Diff(want, foreseen(r, now)); diff != "" {
		t.Errorf("while the program is at another version: %s", diff)
	}
	operator.Status.Versions[0].Version = "0.2.0"
	if got := foreseen(r, now); !slices.Contains(got, "machine-api Done") {
		t.Errorf("once it is there: %q", got)
	}
}

func requesting(cv *updatev1.ClusterVersion, version string) *updatev1.ClusterVersion {
	cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{
		Image: proto.String("r@sha256:" + version), Version: proto.String(version),
	}
	return cv
}

func TestARequestedUpdateSaysWhatHoldsItBack(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	version := func(image string, pause *Pause, accepted *metav1.Condition) *updatev1.ClusterVersion {
		cv := &updatev1.ClusterVersion{
			Spec: &updatev1.ClusterVersionSpec{Pause: pause},
			Status: &updatev1.ClusterVersionStatus{
				Desired: &updatev1.ReleaseReference{Version: proto.String("1.0.0"), Image: proto.String("r@sha256:10")},
			},
		}
		switch image {
		case "":
		case "invalid":
			cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{Version: proto.String("1.x")}
		default:
			cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{Image: proto.String(image), Version: proto.String("1.1.0")}
		}
		if accepted != nil {
			cv.Status.Conditions = []*metav1.Condition{accepted}
		}
		return cv
	}
	for name, tt := range map[string]struct {
		of            *updatev1.ClusterVersion
		windows       []*updatev1.MaintenanceWindow
		none          bool
		says, unblock string
	}{
		"nothing is requested": {of: version("", nil, nil), none: true},
		"it has begun":         {of: version("mirror@sha256:10", nil, nil), none: true},
		"updates are paused": {
			of:   version("r@sha256:11", &Pause{Reason: "fair"}, nil),
			says: "the update to 1.1.0 waits: updates are paused", unblock: "windlass adm upgrade resume",
		},
		"it is refused": {
			of:   version("r@sha256:11", nil, condition(ReleaseAccepted, False, "X", "no signature")),
			says: "the update to 1.1.0 is refused: no signature", unblock: "--dry-run",
		},
		"it is verified": {
			of:   version("r@sha256:11", nil, condition(ReleaseAccepted, Unknown, "X", "Retrieving")),
			says: "Retrieving",
		},
		"it was accepted before": {
			of:   version("r@sha256:11", nil, condition(ReleaseAccepted, True, "X", "Payload loaded")),
			says: "the update to 1.1.0 has not been considered yet",
		},
		"no maintenance window is open": {
			of: requesting(before(true, "1.0.0"), "1.1.0"), windows: nights,
			says:    "the update to 1.1.0 waits for maintenance window nights, which opens at 2026-01-01T22:00:00Z",
			unblock: "--waive MaintenanceWindow=REASON",
		},
		"it is invalid": {
			of:   version("invalid", nil, condition(Invalid, True, "X", "spec.desiredUpdate.image is wrong")),
			says: "spec.desiredUpdate.image is wrong", unblock: "a valid spec",
		},
	} {
		got := requested(tt.of, tt.windows, now)
		if (got == nil) != tt.none || !strings.Contains(got.GetReason(), tt.says) ||
			!strings.Contains(got.GetUnblock(), tt.unblock) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhatIsWrongWithTheObjectsOfARun(t *testing.T) {
	cv := &updatev1.ClusterVersion{}
	manifest := func(file, kind, name string) *updatev1.ReleaseManifest {
		return &updatev1.ReleaseManifest{File: file, Object: &metav1.ObjectReference{Kind: kind, Name: name}}
	}
	for name, tt := range map[string]struct {
		of   *updatev1.PlanClusterVersionRunRequest
		want []string
	}{
		"the live objects": {&updatev1.PlanClusterVersionRunRequest{}, nil},
		"manifests for the live cluster version": {
			&updatev1.PlanClusterVersionRunRequest{Manifests: []*updatev1.ReleaseManifest{manifest("f", "A", "a")}},
			[]string{"manifests"},
		},
		"operators for the live cluster version": {
			&updatev1.PlanClusterVersionRunRequest{ClusterOperators: []*updatev1.ClusterOperator{{}}},
			[]string{"clusterOperators"},
		},
		"removals for the live cluster version": {
			&updatev1.PlanClusterVersionRunRequest{Removed: []*metav1.ObjectReference{{}}}, []string{"removed"},
		},
		"a time for the live cluster version": {
			&updatev1.PlanClusterVersionRunRequest{Now: timestamppb.New(time.Unix(0, 0))}, []string{"now"},
		},
		"manifests": {
			&updatev1.PlanClusterVersionRunRequest{ClusterVersion: cv, Manifests: []*updatev1.ReleaseManifest{
				manifest("f", "A", "a"), manifest("", "A", "b"), manifest("f", "", "c"), manifest("g", "A", "a"),
				{Excluded: "anything"},
			}},
			[]string{"manifests[1].file", "manifests[2].object", "manifests[3].object"},
		},
	} {
		var paths []string
		for _, f := range RunFaults(tt.of) {
			paths = append(paths, f.Path)
		}
		if diff := cmp.Diff(tt.want, paths); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestPlansOfWhatIsGivenHaveLimits(t *testing.T) {
	entries := make([]*updatev1.UpdateHistory, 101)
	for i := range entries {
		entries[i] = &updatev1.UpdateHistory{}
	}
	operator := &updatev1.ClusterOperator{Metadata: &metav1.ObjectMeta{Name: "dns"}}
	config := &metav1.ObjectReference{ApiVersion: "v1", Kind: "ConfigMap", Name: "a"}
	for path, r := range map[string]*updatev1.PlanClusterVersionRunRequest{
		"": {ClusterVersion: &updatev1.ClusterVersion{}},
		"clusterVersion.status.history": {
			ClusterVersion: &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{History: entries}},
		},
		"clusterVersion.spec.pause.by": {
			ClusterVersion: &updatev1.ClusterVersion{Spec: &updatev1.ClusterVersionSpec{
				Pause: &updatev1.UpdatePause{By: strings.Repeat("x", 1025)},
			}},
		},
		"clusterOperators[1].metadata.name": {
			ClusterVersion: &updatev1.ClusterVersion{}, ClusterOperators: []*updatev1.ClusterOperator{operator, operator},
		},
		"removed[1]": {
			ClusterVersion: &updatev1.ClusterVersion{}, Removed: []*metav1.ObjectReference{config, config},
		},
	} {
		faults := RunFaults(r)
		if (len(faults) == 0) != (path == "") || path != "" && faults[0].Path != path {
			t.Errorf("%q: %v", path, faults)
		}
	}
}
