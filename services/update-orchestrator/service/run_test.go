package service

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// runs asks how far the live run is until it is as want says: it returns what is missing.
func (c *cluster) runs(
	want func(*updatev1.PlanClusterVersionRunResponse) string,
) *updatev1.PlanClusterVersionRunResponse {
	c.t.Helper()
	var out *updatev1.PlanClusterVersionRunResponse
	servetest.Await(c.t, func() string {
		var err error
		out, err = updatev1.NewClusterVersionServiceClient(c.admin).PlanClusterVersionRun(c.t.Context(),
			&updatev1.PlanClusterVersionRunRequest{})
		if err != nil {
			return err.Error()
		}
		if missing := want(out); missing != "" {
			return missing + ": " + out.String()
		}
		return ""
	})
	return out
}

// inState returns the files of a run's manifests in a state.
func inState(r *updatev1.PlanClusterVersionRunResponse, state string) (files []string) {
	for _, s := range r.GetSteps() {
		for _, c := range s.GetChains() {
			for _, m := range c.GetManifests() {
				if m.GetState() == state {
					files = append(files, m.GetFile())
				}
			}
		}
	}
	return files
}

// What the live run says is what its pass does: at run level 20 two operators are waited for, and what comes after has
// not begun. A held and a completed update are said, too.
func TestARunIsShownStepByStep(t *testing.T) {
	c, _ := installed(t)
	c.runs(func(r *updatev1.PlanClusterVersionRunResponse) string {
		if !r.GetEnded() || !r.GetCompleted() || r.GetNextPassTime() == nil || len(inState(r, plan.StateDone)) != 10 {
			return "the installed release is not completed"
		}
		return ""
	})
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.Pause = &updatev1.UpdatePause{Reason: "trade fair"} })
	c.desire("1.1.0", "")
	c.runs(func(r *updatev1.PlanClusterVersionRunResponse) string {
		if held := r.GetHeldBack(); len(held) != 1 || !strings.Contains(held[0].GetReason(), "trade fair") {
			return "the update is not held back"
		}
		return ""
	})
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.Pause = nil })
	c.version(waitsFor("archive", "ledger"))
	waiting := []string{"0000_20_archive_01_clusteroperator.yaml", "0000_20_ledger_01_clusteroperator.yaml"}
	r := c.runs(func(r *updatev1.PlanClusterVersionRunResponse) string {
		if !slices.Equal(inState(r, plan.StateWaiting), waiting) {
			return "it does not wait for two operators"
		}
		return ""
	})
	if r.GetMode() != "Updating" || r.GetVersion() != "1.1.0" || r.GetEnded() || len(r.GetHeldBack()) > 0 ||
		len(inState(r, plan.StateDone)) != 4 || len(inState(r, plan.StateNotBegun)) != 5 {
		t.Errorf("%v", r)
	}
	step := r.GetSteps()[r.GetCurrentStep()-1]
	if step.GetRunLevel() != "20" || step.GetState() != plan.StateWaiting {
		t.Errorf("the step is %v", step)
	}
	cv := c.version(waitsFor("archive", "ledger"))
	wait := step.GetChains()[0].GetManifests()[1]
	if !proto.Equal(wait.GetWait().GetSince(), cv.GetStatus().GetProgress().GetWaits()[0].GetSince()) ||
		!strings.Contains(wait.GetResolution(), "windlass describe clusteroperator archive") {
		t.Errorf("it waits for %v, the status for %v", wait, cv.GetStatus().GetProgress().GetWaits())
	}
	if next := r.GetNext(); len(next) != 1 || next[0].GetName() != "beacon" {
		t.Errorf("next are %v", next)
	}
	c.follower(t)
	c.ready(operators...)
	c.version(completed("1.1.0"))
	c.runs(func(r *updatev1.PlanClusterVersionRunResponse) string {
		if !r.GetCompleted() || r.GetVersion() != "1.1.0" || r.GetCurrentStep() != 0 {
			return "the update is not completed"
		}
		return ""
	})
}

// follower runs a second process, which does not lead: it neither knows how far a pass is nor evaluates queries.
func (c *cluster) follower(t *testing.T) {
	t.Helper()
	p := c.ground.Process(serve.Config{
		Name: "update-orchestrator", Dir: t.TempDir(), Policy: c.policy, Peers: maps.Clone(c.peers),
	})
	parts, err := build(p, etcdtest.Client(t), c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := servetest.Run(t, p, parts...)
	defer stop()
	client := updatev1.NewClusterVersionServiceClient(c.ground.Dial(p.Address(), servetest.Admin()))
	_, err = client.PlanClusterVersionRun(t.Context(), &updatev1.PlanClusterVersionRunRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "does not lead") {
		t.Errorf("a process that does not lead: %v", err)
	}
	_, err = client.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{Query: "up"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "does not lead") {
		t.Errorf("a query in a process that does not lead: %v", err)
	}
	_, err = client.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{})
	if err != nil {
		t.Errorf("updates in a process that does not lead: %v", err)
	}
}

// A run of given objects does not depend on the live ones.
func TestARunOfGivenObjects(t *testing.T) {
	c, _ := installed(t)
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	req := &updatev1.PlanClusterVersionRunRequest{
		ClusterVersion: &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{
			Desired: &updatev1.ReleaseReference{Version: proto.String("7.1.0"), Image: proto.String("x@sha256:71")},
			History: []*updatev1.UpdateHistory{
				{State: "Partial", Version: proto.String("7.1.0"), Image: proto.String("x@sha256:71")},
				{State: "Completed", Version: proto.String("7.0.0"), Image: proto.String("x@sha256:70")},
			},
		}},
		Manifests: []*updatev1.ReleaseManifest{{
			File: "0000_20_archive_01_clusteroperator.yaml", ClusterOperator: true,
			Object:   &metav1.ObjectReference{ApiVersion: "config.openshift.io/v1", Kind: "ClusterOperator", Name: "archive"},
			Versions: []*updatev1.OperandVersion{{Name: "operator", Version: "1.0.0"}},
		}},
		Now: timestamppb.New(time.Unix(1_000_000, 0)),
	}
	r, err := client.PlanClusterVersionRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	wait := r.GetSteps()[0].GetChains()[0].GetManifests()[0].GetWait()
	if r.GetVersion() != "7.1.0" || wait.GetObserved() != "there is no such cluster operator" ||
		!wait.GetSince().AsTime().Equal(req.GetNow().AsTime()) {
		t.Errorf("the live operator counts, or the time of the request does not: %v", r)
	}
	if progressing := plan.Find(r.GetConditions(), plan.Progressing); !strings.Contains(progressing.GetMessage(),
		"cluster operator archive is not available") {
		t.Errorf("Progressing is %v", progressing)
	}
	req.ClusterVersion = nil
	if _, err := client.PlanClusterVersionRun(t.Context(), req); status.Code(err) != codes.InvalidArgument {
		t.Errorf("manifests without a cluster version: %v", err)
	}
}

// The history names the way back, and that way is one: an update that is not completed goes back by --abort.
func TestTheHistoryNamesTheWayBack(t *testing.T) {
	c, _ := installed(t)
	history := func(req *updatev1.PlanClusterVersionHistoryRequest) *updatev1.PlanClusterVersionHistoryResponse {
		t.Helper()
		r, err := updatev1.NewClusterVersionServiceClient(c.admin).PlanClusterVersionHistory(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := history(&updatev1.PlanClusterVersionHistoryRequest{}); len(r.GetEntries()) != 1 ||
		!r.GetEntries()[0].GetCurrent() || r.GetPrevious() != "" || r.GetEntries()[0].GetDuration() == nil {
		t.Errorf("a new cluster: %v", r)
	}
	c.desire("1.1.0", "")
	c.version(waitsFor("archive", "ledger"))
	r := history(&updatev1.PlanClusterVersionHistoryRequest{})
	if len(r.GetEntries()) != 2 || r.GetPrevious() != "1.0.0" || !r.GetEntries()[0].GetEntry().GetVerified() ||
		r.GetEntries()[0].GetEntry().GetSnapshot() == "" ||
		r.GetEntries()[1].GetCommand() != "windlass adm upgrade --abort" {
		t.Errorf("an update: %v", r)
	}
	given := history(&updatev1.PlanClusterVersionHistoryRequest{ClusterVersion: &updatev1.ClusterVersion{}})
	if len(given.GetEntries()) > 0 {
		t.Errorf("the live history counts for a given cluster version: %v", given)
	}
	c.desire("1.0.0", r.GetEntries()[1].GetEntry().GetImage())
	c.ready(operators...)
	c.version(completed("1.0.0"))
}
