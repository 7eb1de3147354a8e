package server

import (
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
)

func TestMetricsComeFromTheAgentsThatAnswer(t *testing.T) {
	cfg := follow(t)
	cfg.Relay = relay.New()
	uids := map[string]string{}
	for name, node := range map[string]string{"a": "one", "b": "one", "elsewhere": "two"} {
		p, err := cfg.Tables.Pods.Create(t.Context(), &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Spec: &schedulingv1.PodSpec{
				NodeName: node, Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		uids[name] = p.GetMetadata().GetUid()
	}
	if err := cfg.Tables.Pods.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	pods := NewPods(cfg)
	if _, err := pods.ListPodMetrics(t.Context(), &schedulingv1.ListPodMetricsRequest{}); status.Code(err) !=
		codes.Unavailable {
		t.Errorf("without any agent: %v", err)
	}
	if _, err := pods.ListPodMetrics(t.Context(), &schedulingv1.ListPodMetricsRequest{Name: "none"}); status.Code(err) !=
		codes.NotFound {
		t.Errorf("of a pod that does not exist: %v", err)
	}
	there, leave := cfg.Relay.Attend("one")
	defer leave()
	agent := identity.WithCaller(t.Context(), identity.Caller{
		User: "system:node:one", Groups: []string{identity.GroupNodes},
	})
	go func() { // an agent that also reports a pod of another node, and one that is gone
		for request := range there.Requests {
			if !request.GetMetrics() {
				t.Errorf("asked for %v", request)
			}
			var list []*schedulingv1.PodMetrics
			for name, uid := range uids {
				list = append(list, &schedulingv1.PodMetrics{
					Namespace: "default", Name: name, Uid: uid, Use: &schedulingv1.ResourceUse{MilliCpu: 5},
				})
			}
			list = append(list, &schedulingv1.PodMetrics{Namespace: "default", Name: "a", Uid: "gone"})
			list = append(list, list...) // and everything twice
			_ = NewAgents(cfg).Deliver(&agentStream{ctx: agent, end: io.EOF, says: []*schedulingv1.DeliverRequest{
				{NodeName: "one", Id: request.GetId()},
				{Metrics: &schedulingv1.NodeMetrics{Name: "two", Pods: list}},
			}})
		}
	}()
	all, err := pods.ListPodMetrics(t.Context(), &schedulingv1.ListPodMetricsRequest{})
	if err != nil || len(all.GetItems()) != 2 || all.GetItems()[0].GetName() != "a" ||
		all.GetItems()[1].GetName() != "b" ||
		all.GetItems()[0].GetNodeName() != "one" {
		t.Errorf("metrics %v, %v", all, err)
	}
	if m := all.GetMissing(); len(m) != 1 || m[0].GetNodeName() != "two" || m[0].GetReason() !=
		relay.ErrNobodyAttends.Error() {
		t.Errorf("missing %v", m)
	}
	nodes, _, err := pods.nodeMetrics(t.Context(), map[string]bool{"one": true})
	if len(nodes) != 1 || len(nodes[0].GetPods()) != 2 {
		t.Errorf("metrics of nodes %v, %v", nodes, err)
	}
	if all.GetUnmeasured() != 0 {
		t.Errorf("%d pods of a node that does not answer count as not measured", all.GetUnmeasured())
	}
	some, err := pods.ListPodMetrics(t.Context(), &schedulingv1.ListPodMetricsRequest{
		Namespace: "default", LabelSelector: "app=b",
	})
	if err != nil || len(some.GetItems()) != 1 || some.GetItems()[0].GetName() != "b" || len(some.GetMissing()) > 0 {
		t.Errorf("of one label %v, %v", some, err)
	}
}
