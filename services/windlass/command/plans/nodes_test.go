package plans

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Plans of nodes say all that they answer, in lines of at most 120 columns.
func TestPlansOfNodesFitATerminal(t *testing.T) {
	now := &timestamppb.Timestamp{Seconds: 1_000_000_000}
	var nodes []*schedulingv1.PlanEvictionsResponse_Node
	for i := range 30 {
		nodes = append(nodes, &schedulingv1.PlanEvictionsResponse_Node{
			Name: fmt.Sprint("worker-of-some-cluster-", i), WaitsFor: "most nodes of its zone are lost",
			Evictions: &nodev1.NodeEvictions{
				Zone: "eu-central-1/eu-central-1a", ZoneState: "PartialDisruption",
				QueuePosition: 3,
			},
		})
	}
	for _, tc := range []struct {
		name  string
		print func(*planText)
		want  []string // in this order
	}{
		{"zones", func(p *planText) {
			p.zones(&nodev1.PlanZonesResponse{
				Zones: []*nodev1.PlanZonesResponse_Zone{{
					Zone: "eu-central-1/eu-central-1a", State: "PartialDisruption", PreviousState: "Normal", Nodes: 60, Lost: 40,
					NodesPerSecond: 0.01,
					Reason:         `zone "eu-central-1/eu-central-1a" is in state PartialDisruption: 40 of its 60 nodes are lost; one node in 1m40s has to be left`,
					NextNode:       "worker-a", NextReason: "it is not ready for longest; node worker-b of its zone comes first",
					WaitingCount: 12,
				}, {State: "Normal", PreviousState: "Normal", Nodes: 3, NodesPerSecond: 0.1}},
			})
		}, []string{
			"ZONE", "eu-central-1/eu-central-1a", "60", "40", "0.01", "12", "worker-a", "<none>", "Normal", "0.1",
			"The zone ", "Node worker-a", "node worker-b", "of its zone comes first.",
		}},
		{
			"all zones disrupted",
			func(p *planText) { p.zones(&nodev1.PlanZonesResponse{Disrupted: true, Reason: "no heartbeats"}) },
			[]string{"Evictions are stopped in all zones: no heartbeats"},
		},
		{"taints", func(p *planText) {
			p.taints(&nodev1.PlanTaintsResponse{Changes: []*nodev1.PlanTaintsResponse_Change{
				{
					Change: "Hold", Taint: &nodev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"},
					Reason: "no node's agent sends heartbeats, so it is more likely that this service is disconnected",
				},
			}})
		}, []string{"CHANGE", "Hold", "node.kubernetes.io/unreachable:NoExecute", "no node's agent"}},
		{"no taints", func(p *planText) { p.taints(&nodev1.PlanTaintsResponse{}) }, []string{"no taints"}},
		{"evictions over time", func(p *planText) {
			p.evictions(&schedulingv1.PlanEvictionsResponse{
				Steps: []*schedulingv1.PlanEvictionsResponse_Step{
					{After: durationpb.New(5e9), Action: "AddTaint", Node: "a", Value: "k:NoExecute", Reason: "x"},
					{
						After: durationpb.New(65e9), Action: "DeletePod", Node: "a",
						Pod:    &metav1.ObjectReference{Namespace: "shop", Name: "web"},
						Reason: "it tolerates the taint node.kubernetes.io/unreachable:NoExecute for 60 s from its binding",
					},
					{Action: "ChangeZone", Value: "FullDisruption"},
					{Action: "BeginDisruption"},
				},
				PlannedUntil: now, Nodes: nodes,
				Evictions: []*schedulingv1.PlanEvictionsResponse_Eviction{
					{
						Namespace: "shop", Name: "db", Node: "a", Verdict: "Wait", Time: now,
						Reason: strings.Repeat("for a reason ", 12),
					},
				},
			})
		}, []string{
			"AFTER", "5s", "node a: k:NoExecute", "1m5s", "DeletePod", "pod shop/web on a", "FullDisruption", "all zones",
			"State at 2001-09-09T01:46:40Z:", "shop/db", "Wait", "NEXT AT", "Nodes that get no NoExecute taint now:",
			"worker-of-some-cluster-9 and 20", "more:", "most nodes of its zone are lost",
		}},
		{
			"no evictions", func(p *planText) { p.evictions(&schedulingv1.PlanEvictionsResponse{}) },
			[]string{"No pods on nodes with a NoExecute taint."},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			p := &planText{out: &out}
			if tc.print(p); p.err != nil {
				t.Fatal(p.err)
			}
			for _, line := range strings.Split(out.String(), "\n") {
				if n := utf8.RuneCountInString(line); n > columns {
					t.Errorf("a line of %d columns: %s", n, line)
				}
			}
			rest := out.String()
			for _, word := range tc.want {
				_, after, ok := strings.Cut(rest, word)
				if !ok {
					t.Fatalf("no %q in the rest of\n%s", word, out.String())
				}
				rest = after
			}
		})
	}
}
