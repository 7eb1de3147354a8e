package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

var now = time.Unix(1_700_000_000, 0)

func printed(t *testing.T, r *schedulingv1.ExplainPodResponse, supposed ...string) string {
	t.Helper()
	var out strings.Builder
	if err := printExplanation(&out, explained{
		pod: "default/p", supposed: supposed, now: now,
		ExplainPodResponse: r,
	}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
	return out.String()
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func scored(node string, total int32) *schedulingv1.ExplainPodResponse_NodeVerdict {
	v := &schedulingv1.ExplainPodResponse_NodeVerdict{Node: node, Fits: true, Total: total}
	for i := range 9 {
		v.Scores = append(v.Scores, &schedulingv1.ExplainPodResponse_Score{
			Priority: fmt.Sprintf("AVeryLongNameOfAPriority%d", i), Score: total, Weight: 2,
		})
	}
	return v
}

func TestAPendingPodIsExplainedWithin120Columns(t *testing.T) {
	long := strings.Repeat("ip-10-0-131-", 3) + "compute.internal"
	r := &schedulingv1.ExplainPodResponse{
		SchedulerName: "default-scheduler", ComputedFrom: "Leader", ResourceVersion: "712", NodeCount: 2,
		Message: "0/2 nodes are available: " + strings.Repeat("2 Insufficient cpu, ", 12) + "1 more.",
		Changes: []*schedulingv1.ExplainPodResponse_Change{
			{Change: "free 500m cpu on " + long + ", which lacks the least", NodeCount: 5, Examples: []string{long, long, long}},
			{Change: "tolerate the taint a=b:NoSchedule", NodeCount: 1, Examples: []string{"b"}},
		},
		Extenders: []*schedulingv1.ExplainPodResponse_ExtenderVerdict{
			{Url: "https://x", Message: "it leaves 2 of 3 nodes: " + strings.Repeat("so it is, ", 12)},
		},
		Pending: &schedulingv1.ExplainPodResponse_Pending{
			SinceTime: timestamppb.New(now.Add(-time.Hour)), LastTryTime: timestamppb.New(now.Add(-5 * time.Second)), Tries: 7,
			NextTryTime: timestamppb.New(now.Add(1500 * time.Millisecond)), WaitsFor: "a node comes; a pod leaves a node",
		},
		Nodes: []*schedulingv1.ExplainPodResponse_NodeVerdict{{
			Node: long, Failures: []*schedulingv1.ExplainPodResponse_Failure{
				{
					Predicate: "GeneralPredicates", Part: "PodFitsResources", Reason: strings.Repeat("a long reason ", 12),
					Unblock: "y",
				},
				{Predicate: "PodToleratesNodeTaints", Part: "PodToleratesNodeTaints", Reason: "x"},
			},
		}},
	}
	contains(t, printed(t, r), "revision 712, computed by the leader", "Would help: free 500m cpu",
		"Extender: https://x: it leaves 2 of 3 nodes",
		"(5 nodes lack only resources:", "tolerate the taint a=b:NoSchedule (1 node would fit: b)",
		"for 60m; tried 7 times in a row, last 5s ago, again in 1.5 s", "Until: a node comes; a pod leaves a node",
		"PodFitsResources", "unless the policy has alwaysCheckAllPredicates")
	r.ComputedFrom = "Copy"
	contains(t, printed(t, r, "node a were gone", "node b had the label x=y"), "computed from a copy of the objects",
		"What if: node a were gone, and node b had the label x=y")
}

func TestAPlacementIsShownAsItWasOrAsNotKnown(t *testing.T) {
	r := &schedulingv1.ExplainPodResponse{
		SchedulerName: "default-scheduler", BoundTo: "a", Best: "a", NodeCount: 1, ComputedFrom: "Leader",
		Nodes: []*schedulingv1.ExplainPodResponse_NodeVerdict{scored("a", 1)},
		Placement: &schedulingv1.ExplainPodResponse_Placement{
			PlaceTime: timestamppb.New(now.Add(-time.Hour)), FittingCount: 12, BestCount: 3, Chosen: scored("a", 9),
			Next: scored("b", 8),
		},
	}
	text := printed(t, r)
	contains(t, text, "Placed: 60m ago; 12 nodes fitted, 3 had the highest total", "As it was when the pod was placed",
		"As of now, if the pod were not bound")
	if then, at := strings.Index(text, "As it was"), strings.Index(text, "As of now"); then > at {
		t.Errorf("the scores of now come first:\n%s", text)
	}
	r.Placement = &schedulingv1.ExplainPodResponse_Placement{Unknown: "another process leads now"}
	text = printed(t, r)
	contains(t, text, "not known: another process leads now. The scores below are those of now.")
	if strings.Contains(text, "As it was") {
		t.Errorf("scores of the past that are not known:\n%s", text)
	}
}
