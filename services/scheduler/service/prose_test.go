package service

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// TestTheSchedulerChangesNothingOfAPodButItsNode compares a bound pod with what admission alone makes of it.
func TestTheSchedulerChangesNothingOfAPodButItsNode(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "1")
	pods := c.pods()
	admitted, err := pods.AdmitPod(t.Context(), &schedulingv1.AdmitPodRequest{Pod: newPod("web", "100m")})
	if err != nil || !admitted.GetAllowed() {
		t.Fatalf("admission: %v, %v", admitted, err)
	}
	c.create(pods, newPod("web", "100m"))
	want := admitted.GetPod().GetSpec()
	want.NodeName = "node-1"
	if diff := cmp.Diff(want, c.awaitPod(pods, "web", bound).GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
