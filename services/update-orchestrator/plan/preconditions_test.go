package plan

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// reasons is a verdict in short.
func reasons(list []Finding) string {
	var out []string
	for _, f := range list {
		out = append(out, f.Reason)
	}
	return strings.Join(out, " ")
}

func TestPreconditions(t *testing.T) {
	notUpgradeable := condition(Upgradeable, False, "ClusterOperatorUpgradeable-dns", "dns says no")
	tests := map[string]struct {
		target           *updatev1.ReleaseReference
		change           func(*updatev1.ClusterVersion)
		blocks, warnings string
	}{
		"an available update": {target: release("1.1.0", "r@sha256:a")},
		"a target that is not recommended": {
			target: release("1.1.1", "r@sha256:d"), warnings: "Hurts",
		},
		"an unknown target": {target: release("1.0.9", "r@sha256:z"), warnings: "UnknownUpdate"},
		"no channel": {
			target: release("1.0.9", "r@sha256:z"), warnings: noChannel,
			change: func(cv *updatev1.ClusterVersion) { cv.Spec.Channel = "" },
		},
		"updates could not be retrieved": {
			target: release("1.0.9", "r@sha256:z"), warnings: remoteFailed,
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.Conditions = []*metav1.Condition{condition(RetrievedUpdates, False, remoteFailed, "")}
			},
		},
		"the same image again": {target: release("1.0.1", "r@sha256:1")},
		"a target that is no version": {
			target: release("new", "r@sha256:a"), blocks: "InvalidDesiredVersion",
		},
		"a current version that is none": {
			target: release("1.1.0", "r@sha256:a"), warnings: invalidCurrentVersion,
			change: func(cv *updatev1.ClusterVersion) { cv.Status.Desired.Version = proto.String("") },
		},
		"back to the previous patch": {target: release("1.0.0", "r@sha256:0"), warnings: "UnknownUpdate"},
		"back to a previous patch that was only begun": {
			target: release("1.0.0", "r@sha256:0"), warnings: "UnknownUpdate",
			change: func(cv *updatev1.ClusterVersion) { cv.Status.History[1].State = statePartial },
		},
		"back beyond the previous patch": {
			target: release("1.0.0-rc.1", "r@sha256:9"), blocks: "LowDesiredVersion", warnings: "UnknownUpdate",
		},
		"back to another minor version, although it was the previous one": {
			target: release("0.9.0", "r@sha256:9"), blocks: "LowDesiredVersion", warnings: "UnknownUpdate",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.History[1] = entry(StateCompleted, "0.9.0", "r@sha256:9")
			},
		},
		"back to the previous patch by its version, but another image": {
			target: release("1.0.0", "r@sha256:9"), blocks: "LowDesiredVersion", warnings: "UnknownUpdate",
		},
		"back to another minor version, from an update that was not completed": {
			target: release("0.9.0", "r@sha256:9"), warnings: "UpdateAborted UnknownUpdate",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.History[0].State = statePartial
				cv.Status.History[1] = entry(StateCompleted, "0.9.0", "r@sha256:9")
			},
		},
		"back beyond the release that was completed last": {
			target: release("0.9.0", "r@sha256:8"), blocks: "LowDesiredVersion", warnings: "UnknownUpdate",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.History[0].State = statePartial
				cv.Status.History = append(cv.Status.History, entry(StateCompleted, "0.9.0", "r@sha256:8"))
			},
		},
		"two minor versions at once": {
			target: release("1.2.0", "r@sha256:z"), blocks: "MultipleMinorVersionsUpdate",
			warnings: "UnknownUpdate",
		},
		"another major version": {
			target: release("2.0.0", "r@sha256:z"), blocks: "MajorVersionUpdate",
			warnings: "UnknownUpdate",
		},
		"the bridge from four to five": {
			target: release("5.0.0", "r@sha256:z"), warnings: "UnknownUpdate",
			change: func(cv *updatev1.ClusterVersion) { cv.Status.Desired.Version = proto.String("4.22.0") },
		},
		"over the bridge and one beyond": {
			target: release("5.1.0", "r@sha256:z"), blocks: "MajorVersionUpdate",
			warnings: "UnknownUpdate", change: func(cv *updatev1.ClusterVersion) {
				cv.Status.Desired.Version = proto.String("4.22.0")
			},
		},
		"a minor update while an operator objects": {
			target: release("1.1.0", "r@sha256:a"), blocks: "ClusterOperatorUpgradeable-dns",
			change: func(cv *updatev1.ClusterVersion) { cv.Status.Conditions = []*metav1.Condition{notUpgradeable} },
		},
		"a patch while an operator objects": {
			target: release("1.0.3", "r@sha256:b"), warnings: "ClusterOperatorUpgradeable-dns",
			change: func(cv *updatev1.ClusterVersion) { cv.Status.Conditions = []*metav1.Condition{notUpgradeable} },
		},
		"a patch while an object is unmanaged": {
			target: release("1.0.3", "r@sha256:b"), warnings: "ClusterVersionOverridesSet",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Spec.Overrides = []*updatev1.ComponentOverride{{Name: "x", Unmanaged: proto.Bool(true)}}
				cv.Status.Conditions = []*metav1.Condition{UpgradeableCondition(cv, nil)}
			},
		},
		"a patch on the way to another minor version": {
			target: release("1.2.1", "r@sha256:z"), warnings: "MinorVersionClusterUpdateInProgress UnknownUpdate",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.Desired = release("1.2.0", "r@sha256:2")
				cv.Status.History = []*updatev1.UpdateHistory{
					entry(statePartial, "1.2.0", "r@sha256:2"),
					entry(StateCompleted, "1.1.0", "r@sha256:9"),
				}
				cv.Status.Conditions = []*metav1.Condition{UpgradeableCondition(cv, nil)}
			},
		},
		"a patch on the way to another major version": {
			target: release("1.0.3", "r@sha256:b"), warnings: "MajorVersionClusterUpdateInProgress",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.History = []*updatev1.UpdateHistory{
					entry(statePartial, "1.0.1", "r@sha256:1"),
					entry(StateCompleted, "0.9.0", "r@sha256:9"),
				}
				cv.Status.Conditions = []*metav1.Condition{UpgradeableCondition(cv, nil)}
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cv := desiring(nil)
			if tt.change != nil {
				tt.change(cv)
			}
			v := Preconditions(cv, tt.target)
			if got := reasons(v.Blocking); got != tt.blocks {
				t.Errorf("blocked by %q, want %q", got, tt.blocks)
			}
			if got := reasons(v.Warnings); got != tt.warnings {
				t.Errorf("warned of %q, want %q", got, tt.warnings)
			}
		})
	}
}

func TestDecide(t *testing.T) {
	hop, old := Finding{preconditionGiantHop, "RA", "ma"}, Finding{preconditionRollback, "RB", "mb"}
	warning := Finding{"A", "RC", "mc"}
	const (
		hopText     = `Precondition "ClusterVersionGiantHop" failed because of "RA": ma`
		oldText     = `Precondition "ClusterVersionRollback" failed because of "RB": mb`
		warningText = `Precondition "A" failed because of "RC": mc`
		both        = "Multiple precondition checks failed:\n* " + hopText + "\n* " + oldText
		warned      = "Multiple precondition checks failed:\n* " + hopText + "\n* " + warningText
		trust       = `Precondition "ClusterVersionVerificationKeys" failed because of "UnusableTrust": bad. ` +
			"No later update could be verified, so this cannot be waived."
		way = "\nTo update all the same: "
	)
	force := &updatev1.DesiredUpdate{Force: proto.Bool(true)}
	by := func(names ...string) *updatev1.DesiredUpdate {
		d := &updatev1.DesiredUpdate{}
		for _, n := range names {
			d.Waive = append(d.Waive, &updatev1.WaivedCheck{Name: n, Reason: "for " + n[:1]})
		}
		return d
	}
	tests := map[string]struct {
		verdict           Verdict
		waive             *updatev1.DesiredUpdate
		blocked, accepted string
	}{
		"nothing":               {},
		"nothing, with force":   {waive: force},
		"a warning":             {verdict: Verdict{Warnings: []Finding{warning}}, accepted: warningText},
		"a warning, with force": {verdict: Verdict{Warnings: []Finding{warning}}, waive: force, accepted: warningText},
		"a block": {
			verdict: Verdict{Blocking: []Finding{hop}},
			blocked: hopText + way + "--waive ClusterVersionGiantHop=REASON",
		},
		"a block and a warning": {
			verdict: Verdict{Blocking: []Finding{hop}, Warnings: []Finding{warning}},
			blocked: warned + way + "--waive ClusterVersionGiantHop=REASON",
		},
		"both, and force": {
			verdict: Verdict{Blocking: []Finding{hop}, Warnings: []Finding{warning}}, waive: force,
			accepted: "Forced through blocking failures (the update is forced): " + warned,
		},
		"force does not lead to an older release": {
			verdict: Verdict{Blocking: []Finding{hop, old}}, waive: force,
			blocked: both + way + "--waive ClusterVersionRollback=REASON",
		},
		"one of two by name": {
			verdict: Verdict{Blocking: []Finding{hop, old}}, waive: by(preconditionRollback),
			blocked: both + way + "--waive ClusterVersionGiantHop=REASON",
		},
		"each by name": {
			verdict: Verdict{Blocking: []Finding{hop, old}}, waive: by(preconditionRollback, preconditionGiantHop),
			accepted: `Forced through blocking failures (ClusterVersionGiantHop is waived: "for C", ` +
				`ClusterVersionRollback is waived: "for C"): ` + both,
		},
		"the signature is another check": {
			verdict: Verdict{Blocking: []Finding{old}}, waive: by(VerifyPayload),
			blocked: oldText + way + "--waive ClusterVersionRollback=REASON",
		},
		"a check twice": {
			verdict: Verdict{Blocking: []Finding{old, old}},
			blocked: "Multiple precondition checks failed:\n* " + oldText + "\n* " + oldText + way +
				"--waive ClusterVersionRollback=REASON",
		},
		"no trust":           {verdict: Verdict{}.WithTrust(nil)},
		"bad trust":          {verdict: Verdict{}.WithTrust(errors.New("bad")), blocked: trust},
		"bad trust by force": {verdict: Verdict{}.WithTrust(errors.New("bad")), waive: force, blocked: trust},
		"bad trust by name": {
			verdict: Verdict{}.WithTrust(errors.New("bad")), waive: by(preconditionTrust), blocked: trust,
		},
		"bad trust and a block by force": {
			verdict: Verdict{Blocking: []Finding{hop}}.WithTrust(errors.New("bad")), waive: force,
			blocked: "Multiple precondition checks failed:\n* " + trust + "\n* " + hopText,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			blocked, accepted := tt.verdict.Decide(WaiversOf(tt.waive))
			if diff := cmp.Diff([]string{tt.blocked, tt.accepted}, []string{blocked, accepted}); diff != "" {
				t.Errorf("blocked, accepted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCarried(t *testing.T) {
	waived := func(version, reason string, force bool) *updatev1.DesiredUpdate {
		return &updatev1.DesiredUpdate{
			Version: &version, Force: &force, Waive: []*updatev1.WaivedCheck{{Name: VerifyPayload, Reason: reason}},
			AcceptRisks: []*updatev1.AcceptedRisk{{Name: "R" + reason}},
		}
	}
	tests := map[string]struct {
		before, now *updatev1.DesiredUpdate
		want        string
	}{
		"none":            {},
		"the first":       {nil, waived("1", "r", true), ""},
		"the same update": {waived("1", "r", true), waived("1", "r", true), ""},
		"another update": {
			waived("1", "r", true), waived("2", "r", true),
			"VerifyPayload, the risk Rr, what force waives",
		},
		"with a reason of its own": {waived("1", "r", false), waived("2", "s", true), ""},
		"accepted before it was asked for": {
			&updatev1.DesiredUpdate{AcceptRisks: waived("1", "r", false).GetAcceptRisks()}, waived("1", "r", false), "",
		},
		"none any more": {waived("1", "r", true), nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, got, _ := strings.Cut(Carried(tt.before, tt.now), "before: "); got != tt.want {
				t.Errorf("Carried = %q, want %q", got, tt.want)
			}
		})
	}
}

// What was accepted for an update that is completed is not accepted for the next one.
func TestAccepted(t *testing.T) {
	risks := []*updatev1.AcceptedRisk{{Name: "R"}, {Name: "S"}}
	version, image := proto.String("1.1.0"), proto.String("r@sha256:1")
	at := func(state string) []*updatev1.UpdateHistory {
		return []*updatev1.UpdateHistory{{Version: version, Image: image, State: state}}
	}
	tests := map[string]struct {
		desired *updatev1.DesiredUpdate
		history []*updatev1.UpdateHistory
		want    []string
	}{
		"nothing is desired": {},
		"before an update is asked for": {
			&updatev1.DesiredUpdate{AcceptRisks: risks}, at("Completed"),
			[]string{"R", "S"},
		},
		"for an update that is asked for": {
			&updatev1.DesiredUpdate{AcceptRisks: risks, Version: proto.String("1.2.0")},
			at("Completed"),
			[]string{"R", "S"},
		},
		"for one that has begun": {
			&updatev1.DesiredUpdate{AcceptRisks: risks, Version: version}, at("Partial"),
			[]string{"R", "S"},
		},
		"for one that is completed": {
			&updatev1.DesiredUpdate{AcceptRisks: risks, Version: version}, at("Completed"),
			nil,
		},
		"for an image that is completed": {&updatev1.DesiredUpdate{AcceptRisks: risks, Image: image}, at("Completed"), nil},
		"for another image of the version": {&updatev1.DesiredUpdate{
			AcceptRisks: risks, Version: version,
			Image: proto.String("r@sha256:2"),
		}, at("Completed"), []string{"R", "S"}},
		"for a move to all architectures at that version": {
			&updatev1.DesiredUpdate{AcceptRisks: risks, Version: version, Architecture: proto.String(Multi)}, at("Completed"),
			[]string{"R", "S"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Accepted(&updatev1.ClusterVersion{
				Spec:   &updatev1.ClusterVersionSpec{DesiredUpdate: tt.desired},
				Status: &updatev1.ClusterVersionStatus{History: tt.history},
			})
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestUnverified(t *testing.T) {
	fault := errors.New("no signature")
	for _, d := range []*updatev1.DesiredUpdate{nil, {Force: proto.Bool(true)}, {Waive: []*updatev1.WaivedCheck{
		{Name: preconditionRollback, Reason: "r"},
	}}} {
		if blocked, accepted := WaiversOf(d).Unverified("1.0", fault); accepted != "" ||
			blocked != "no signature. To update all the same: --waive VerifyPayload=REASON" {
			t.Errorf("%v: %q, %q", d, blocked, accepted)
		}
	}
	d := &updatev1.DesiredUpdate{Waive: []*updatev1.WaivedCheck{{Name: VerifyPayload, Reason: "built here"}}}
	if blocked, accepted := WaiversOf(d).Unverified("1.0", fault); blocked != "" ||
		accepted != `Target release 1.0 cannot be verified, but VerifyPayload is waived: "built here": no signature` {
		t.Errorf("%q, %q", blocked, accepted)
	}
}

func TestUpgradeableCondition(t *testing.T) {
	operator := func(name, status string) *updatev1.ClusterOperator {
		return &updatev1.ClusterOperator{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status: &updatev1.ClusterOperatorStatus{
				Conditions: []*metav1.Condition{condition(Upgradeable, status, "Old", "too old")},
			},
		}
	}
	cv := desiring(nil)
	if c := UpgradeableCondition(cv, []*updatev1.ClusterOperator{
		operator("dns", True),
		operator("etcd", Unknown),
	}); c != nil {
		t.Errorf("without objections: %v", c)
	}
	c := UpgradeableCondition(cv, []*updatev1.ClusterOperator{operator("dns", False)})
	if c.GetReason() != "ClusterOperatorUpgradeable-dns" ||
		c.GetMessage() != "Cluster operator dns should not be upgraded between minor or major versions: Old: too old" {
		t.Errorf("one objects: %v", c)
	}
	cv.Spec.Overrides = []*updatev1.ComponentOverride{{Unmanaged: proto.Bool(true)}}
	if c = UpgradeableCondition(cv, []*updatev1.ClusterOperator{
		operator("dns", False),
	}); c.GetReason() != multipleReasons || strings.Count(c.GetMessage(), "\n* ") != 2 {
		t.Errorf("two object: %v", c)
	}
}
