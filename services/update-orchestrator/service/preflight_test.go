package service

import (
	"context"
	"strings"
	"testing"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// A preflight says what the update says then, and changes nothing.
func TestAPreflight(t *testing.T) {
	c, _ := installed(t)
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	run := func(d *updatev1.DesiredUpdate) (*updatev1.PreflightClusterVersionResponse, error) {
		return client.PreflightClusterVersion(t.Context(), &updatev1.PreflightClusterVersionRequest{DesiredUpdate: d})
	}
	files := example("1.0.1")
	delete(files, "0000_10_beacon_00_service.yaml")
	files["0000_10_more_00_service.yaml"] = service("more")
	files[jobFile] = job()
	next := c.image("1.0.1", files, "1.0.0")
	older := c.image("0.9.0", example("0.9.0"))
	results := func(r *updatev1.PreflightClusterVersionResponse) string {
		var out []string
		for _, check := range r.GetChecks() {
			if check.GetName() == "ClusterVersionSnapshot" && check.GetResult() == plan.CheckNotChecked {
				continue // it changes something, so an update alone makes it
			}
			if check.GetResult() != plan.CheckPassed {
				out = append(out, check.GetName()+"="+check.GetResult())
			}
		}
		return strings.Join(out, " ")
	}
	const unchecked = "ClusterVersionRollback=NotChecked ClusterVersionGiantHop=NotChecked " +
		"ClusterVersionUpgradeable=NotChecked ClusterVersionRecommendedUpdate=NotChecked ClusterVersionVerificationKeys=NotChecked"
	before := c.version(has("Available", "True", ""))
	c.forget()
	waived := []*updatev1.WaivedCheck{{Name: "VerifyPayload", Reason: "built here"}}
	tests := map[string]struct {
		update   *updatev1.DesiredUpdate
		accepted bool
		results  string
		message  string
	}{
		"an image that is nowhere": {
			update: &updatev1.DesiredUpdate{Image: proto.String(repository + "@sha256:" + strings.Repeat("0", 64))},
			results: "RetrievePayload=Failed VerifyPayload=NotChecked LoadPayload=NotChecked VerifyPayloadVersion=NotChecked " +
				unchecked,
			message: "releases.example.com",
		},
		"a release that is not signed": {
			update:  &updatev1.DesiredUpdate{Image: &next},
			results: "VerifyPayload=Failed LoadPayload=NotChecked VerifyPayloadVersion=NotChecked " + unchecked,
			message: "--waive VerifyPayload=REASON",
		},
		"another version than it has": {
			update:  &updatev1.DesiredUpdate{Image: &next, Version: proto.String("1.0.2"), Waive: waived},
			results: "VerifyPayload=Waived VerifyPayloadVersion=Failed " + unchecked,
			message: "does not match the expected upstream version 1.0.2",
		},
		"an older release": {
			update:  &updatev1.DesiredUpdate{Image: &older, Waive: waived},
			results: "VerifyPayload=Waived ClusterVersionRollback=Failed ClusterVersionRecommendedUpdate=Warned",
			message: "To update all the same: --waive ClusterVersionRollback=REASON",
		},
		"an older release by name": {
			update: &updatev1.DesiredUpdate{Image: &older, Waive: append([]*updatev1.WaivedCheck{
				{Name: "ClusterVersionRollback", Reason: "loses data"},
			}, waived...)},
			accepted: true,
			results:  "VerifyPayload=Waived ClusterVersionRollback=Waived ClusterVersionRecommendedUpdate=Warned",
		},
		"a release that is not signed, which is waived": {
			update: &updatev1.DesiredUpdate{Image: &next, Waive: waived}, accepted: true,
			results: "VerifyPayload=Waived ClusterVersionRecommendedUpdate=Warned",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := run(tt.update)
			if err != nil {
				t.Fatal(err)
			}
			if r.GetAccepted() != tt.accepted || results(r) != tt.results {
				t.Errorf("accepted %v, %s; want %v, %s", r.GetAccepted(), results(r), tt.accepted, tt.results)
			}
			said := ""
			for _, check := range r.GetChecks() {
				said += check.GetMessage() + "\n"
			}
			if !strings.Contains(said, tt.message) {
				t.Errorf("says %q, want %q in it", said, tt.message)
			}
		})
	}
	c.sign(next, c.key)
	r, err := run(&updatev1.DesiredUpdate{Image: &next})
	if err != nil {
		t.Fatal(err)
	}
	if !r.GetAccepted() || r.GetRelease().GetVersion() != "1.0.1" || r.GetManifestCount() != int32(len(files)) ||
		len(r.GetJobs()) != 1 || len(r.GetUnserved()) != 1 {
		t.Errorf("%v", r)
	}
	if a, d := r.GetAdded(), r.GetRemoved(); len(a) != 2 || a[0].GetName() != "more" || len(d) != 1 ||
		d[0].GetName() != "beacon" {
		t.Errorf("added %v, removed %v", a, d)
	}
	if after := c.version(has("Available", "True", "")); !proto.Equal(before.GetSpec(), after.GetSpec()) ||
		len(after.GetStatus().GetHistory()) != 1 || len(c.applied) > 0 {
		t.Errorf("it changed %v, %v", after, c.applied)
	}
	if taken := c.snapshots.Keys(); len(taken) > 0 {
		t.Errorf("snapshots %v were taken", taken)
	}
	for what, d := range map[string]*updatev1.DesiredUpdate{
		"desiredUpdate: must have":  {},
		"desiredUpdate.version":     {Version: proto.String("7.0.0")},
		"desiredUpdate: value is r": nil,
	} {
		if _, err := run(d); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.PreflightClusterVersion(ctx, &updatev1.PreflightClusterVersionRequest{
		DesiredUpdate: &updatev1.DesiredUpdate{Image: &next},
	}); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that has gone: %v", err)
	}
}

// What a verification says is what an update would find, and it changes nothing.
func TestAReleaseIsVerifiedWithoutAnUpdate(t *testing.T) {
	c, _ := installed(t)
	verify := func(image string) *updatev1.VerifyReleaseResponse {
		t.Helper()
		r, err := updatev1.NewReleaseServiceClient(c.admin).VerifyRelease(t.Context(),
			&updatev1.VerifyReleaseRequest{Image: image})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	next := c.image("1.0.1", example("1.0.1"), "1.0.0")
	if r := verify(next); r.GetVerified() || len(r.GetProofs()) > 0 ||
		!strings.Contains(r.GetMessage(), "cannot be verified") {
		t.Errorf("not signed: %v", r)
	}
	c.sign(next, c.key)
	if r := verify(next); !r.GetVerified() || len(r.GetProofs()) != 1 || r.GetImage() != next || r.GetMessage() != "" ||
		r.GetProofs()[0].GetSignature() != "signature-1" || len(r.GetProofs()[0].GetKeyId()) != 16 {
		t.Errorf("signed: %v", r)
	}
	if r := verify(repository + "@sha256:" + strings.Repeat("0", 64)); r.GetVerified() ||
		!strings.Contains(r.GetMessage(), "cannot be retrieved") {
		t.Errorf("nowhere: %v", r)
	}
	_, err := updatev1.NewReleaseServiceClient(c.admin).VerifyRelease(t.Context(), &updatev1.VerifyReleaseRequest{})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("no image: %v", err)
	}
}
