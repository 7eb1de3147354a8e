package adm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestAPreflightIsShown(t *testing.T) {
	ref := func(kind, namespace, name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}
	}
	r := &updatev1.PreflightClusterVersionResponse{
		Release: &updatev1.ReleaseReference{Version: proto.String("1.1.0"), Image: proto.String("r@sha256:1")},
		Checks: []*updatev1.ReleaseCheck{
			{Name: "VerifyPayload", Result: "Passed"},
			{Name: "ClusterVersionUpgradeable", Result: "Failed", Reason: "PoolDegraded", Message: "pool worker"},
		},
		ManifestCount: proto.Int32(12), Added: []*metav1.ObjectReference{ref("Service", "n", "a"), ref("Namespace", "", "n")},
		Jobs:                []*updatev1.ReleaseJob{{Object: ref("Job", "n", "migrate")}},
		Unserved:            []*updatev1.ReleaseKind{{Kind: "LimitRange", ApiVersion: "v1", Count: 3}},
		EnabledCapabilities: []string{"Build", "Console"},
	}
	for i := range mostListed + 2 {
		r.Removed = append(r.Removed, ref("Service", "old", fmt.Sprintf("s%02d", i)))
	}
	var out strings.Builder
	if err := showPreflight(&out, r); err != nil {
		t.Fatal(err)
	}
	const want = `Update to 1.1.0 (dry run: nothing is changed)

CHECK                       RESULT   REASON
VerifyPayload               Passed   <none>
ClusterVersionUpgradeable   Failed   PoolDegraded

ClusterVersionUpgradeable: pool worker

Manifests: 12
Objects that no release has brought yet (2):
  Service n/a
  Namespace n
Objects that the release lacks: removed at the end, unless something keeps them (22):
  Service old/s00
`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("shown is\n%s\nwant it to begin with\n%s", out.String(), want)
	}
	const end = `  Service old/s19
  and 2 more
Jobs (1):
  Job n/migrate
3 manifests of kind LimitRange (v1) are kept, and no service acts on them.
Enabled capabilities: Build, Console
`
	if !strings.HasSuffix(out.String(), end) {
		t.Errorf("shown is\n%s\nwant it to end with\n%s", out.String(), end)
	}
}

func TestWhatCountsAgainstAnUpdate(t *testing.T) {
	risk := func(name, applies string) *updatev1.ConditionalUpdateRisk {
		return &updatev1.ConditionalUpdateRisk{Name: name, Conditions: []*metav1.Condition{
			{Type: "Applies", Status: applies},
		}}
	}
	update := func(version, recommended, reason string,
		risks ...*updatev1.ConditionalUpdateRisk,
	) *updatev1.ConditionalUpdate {
		return &updatev1.ConditionalUpdate{
			Release: &updatev1.ReleaseReference{Version: proto.String(version)}, Risks: risks,
			Conditions: []*metav1.Condition{{Type: "Recommended", Status: recommended, Reason: proto.String(reason)}},
		}
	}
	cv := &updatev1.ClusterVersion{
		Spec: &updatev1.ClusterVersionSpec{DesiredUpdate: &updatev1.DesiredUpdate{
			AcceptRisks: []*updatev1.AcceptedRisk{{Name: "Accepted"}},
		}},
		Status: &updatev1.ClusterVersionStatus{
			AvailableUpdates: []*updatev1.ReleaseReference{
				{Version: proto.String("1.2.0")}, {Version: proto.String("1.10.0")}, {Version: proto.String("1.9.0")},
			},
			ConditionalUpdates: []*updatev1.ConditionalUpdate{
				update("1.3.0", "False", "MultipleReasons", risk("A", "True"), risk("B", "Unknown"), risk("Accepted", "True"),
					risk("C", "False")),
				update("1.4.0", "True", "NotExposedToRisks", risk("A", "False")),
				update("1.5.0", "True", "AllExposedRisksAccepted", risk("Accepted", "True"), risk("C", "False")),
				update("1.6.0", "Unknown", "NotEvaluated"),
				update("1.2.0", "True", "NotExposedToRisks", risk("A", "False")),
			},
		},
	}
	var got []string
	for _, o := range offers(cv) {
		got = append(got, o.release.GetVersion()+" "+o.text())
	}
	const fine = " no known issues relevant to this cluster"
	want := []string{
		"1.10.0" + fine, "1.9.0" + fine, "1.6.0 NotEvaluated", "1.5.0 accepted: Accepted", "1.4.0" + fine,
		"1.3.0 A, B; accepted: Accepted", "1.2.0" + fine,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("offers (-want +got):\n%s", diff)
	}
}

func TestOlderReleasesOfAMinorVersionAreCounted(t *testing.T) {
	var list []offer
	for i, issues := range [][]string{{"A"}, {"B"}, {"A", "B"}, nil, nil, {"A"}} {
		list = append(list, offer{
			release: &updatev1.ReleaseReference{Version: proto.String(fmt.Sprintf("1.2.%d", 9-i))}, issues: issues,
		})
	}
	var out bytes.Buffer
	e := &session.Env{Out: &out}
	if err := recommendMinor(e, "1.2", list, false); err != nil {
		t.Fatal(err)
	}
	const want = `
Updates to 1.2:

  VERSION   ISSUES
  1.2.9     A
  1.2.8     B
  1.2.7     A, B
  1.2.6     no known issues relevant to this cluster
And 2 older 1.2 updates you can see with '--show-outdated-releases' or '--version VERSION'.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out.Reset()
	if err := recommendMinor(e, "1.2", list, true); err != nil || strings.Count(out.String(), "1.2.") != len(list) {
		t.Errorf("all of them: %v\n%s", err, out.String())
	}
}
