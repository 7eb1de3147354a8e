package plan

import (
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
				cv.Status.History[1] = entry(stateCompleted, "0.9.0", "r@sha256:9")
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
			target: release("1.0.3", "r@sha256:b"),
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
					entry(stateCompleted, "1.1.0", "r@sha256:9"),
				}
				cv.Status.Conditions = []*metav1.Condition{UpgradeableCondition(cv, nil)}
			},
		},
		"a patch on the way to another major version": {
			target: release("1.0.3", "r@sha256:b"), warnings: "MajorVersionClusterUpdateInProgress",
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.History = []*updatev1.UpdateHistory{
					entry(statePartial, "1.0.1", "r@sha256:1"),
					entry(stateCompleted, "0.9.0", "r@sha256:9"),
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
	a, b := Finding{"A", "RA", "ma"}, Finding{"B", "RB", "mb"}
	const textA, both = `Precondition "A" failed because of "RA": ma`, "Multiple precondition checks failed:\n* " +
		`Precondition "A" failed because of "RA": ma` + "\n* " + `Precondition "B" failed because of "RB": mb`
	tests := map[string]struct {
		verdict           Verdict
		force             bool
		blocked, accepted string
	}{
		"nothing":               {},
		"nothing, with force":   {force: true},
		"a warning":             {verdict: Verdict{Warnings: []Finding{a}}, accepted: textA},
		"a warning, with force": {verdict: Verdict{Warnings: []Finding{a}}, force: true, accepted: textA},
		"a block":               {verdict: Verdict{Blocking: []Finding{a}}, blocked: textA},
		"a block and a warning": {verdict: Verdict{Blocking: []Finding{a}, Warnings: []Finding{b}}, blocked: both},
		"both, and force": {
			verdict: Verdict{Blocking: []Finding{a}, Warnings: []Finding{b}}, force: true,
			accepted: "Forced through blocking failures: " + both,
		},
		"a block alone by force": {
			verdict: Verdict{Blocking: []Finding{a}}, force: true,
			accepted: "Forced through blocking failures: " + textA,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			blocked, accepted := tt.verdict.Decide(tt.force)
			if diff := cmp.Diff([]string{tt.blocked, tt.accepted}, []string{blocked, accepted}); diff != "" {
				t.Errorf("blocked, accepted (-want +got):\n%s", diff)
			}
		})
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
