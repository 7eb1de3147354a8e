package adm

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
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
