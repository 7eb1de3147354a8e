package adm

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func TestTheHistoryShowsTheWaysBack(t *testing.T) {
	start := timestamppb.New(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	entry := func(version string) *updatev1.UpdateHistory {
		return &updatev1.UpdateHistory{
			Version: proto.String(version), State: "Completed", StartedTime: start, CompletionTime: start,
			Image: proto.String("r@sha256:" + version),
		}
	}
	var out bytes.Buffer
	err := showHistory(&out, &updatev1.PlanClusterVersionHistoryResponse{
		Entries: []*updatev1.PlanClusterVersionHistoryResponse_Entry{
			{
				Entry: entry("3"), Current: true, Duration: durationpb.New(90 * time.Second),
				Accepted: []string{"no snapshot", "several:\n* one"},
			},
			{Entry: entry("2"), CanGoBack: true, Command: "windlass adm upgrade --to 2", Reason: "what it changed stays"},
			{Entry: entry("1"), Command: "windlass adm upgrade --to 1 --waive X=REASON", Reason: "it is older"},
			{Entry: entry("0"), Reason: "its image is not known"},
		},
	})
	const want = `VERSION   STATE       STARTED                COMPLETED              DURATION   VERIFIED   SNAPSHOT   IMAGE
3         Completed   2026-01-01T00:00:00Z   2026-01-01T00:00:00Z   1m30s      false      <none>     r@sha256:3
2         Completed   2026-01-01T00:00:00Z   2026-01-01T00:00:00Z   <none>     false      <none>     r@sha256:2
1         Completed   2026-01-01T00:00:00Z   2026-01-01T00:00:00Z   <none>     false      <none>     r@sha256:1
0         Completed   2026-01-01T00:00:00Z   2026-01-01T00:00:00Z   <none>     false      <none>     r@sha256:0

Accepted for 3:
  no snapshot
  several:
    * one

To go back to 2: windlass adm upgrade --to 2
    what it changed stays

To go back to 1, checks must be waived: windlass adm upgrade --to 1 --waive X=REASON
    it is older
`
	if diff := cmp.Diff(want, out.String()); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
}
