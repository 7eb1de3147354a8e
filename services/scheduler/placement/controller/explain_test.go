package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/servetest"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// explain has the leader explain a pod.
func (c creating) explain(t *testing.T, pod *schedulingv1.Pod) *schedulingv1.ExplainPodResponse {
	t.Helper()
	out, leads, err := c.Explain(t.Context(), nil, pod, nil)
	if err != nil || !leads {
		t.Fatalf("leads: %t, %v", leads, err)
	}
	return out
}

// TestTheLeaderKnowsWhyAPodIsWhereItIsOrWaits asks right after the call that made a pod has returned.
func TestTheLeaderKnowsWhyAPodIsWhereItIsOrWaits(t *testing.T) {
	c := newCreating(t, true)
	c.lead(t)
	bound := c.create(t, "p")
	if p := c.explain(t, bound).GetPlacement(); p.GetUnknown() != "" || p.GetChosen().GetNode() != "node-0" ||
		p.GetFittingCount() != 1 || len(p.GetChosen().GetScores()) == 0 {
		t.Errorf("%v", p)
	}
	waits := c.create(t, "q")
	for c.explain(t, waits).GetPending() == nil { // until it was tried
		if t.Context().Err() != nil {
			t.Fatal("it is not known that it waits")
		}
		waits, _ = c.tables.Pods.Get(t.Context(), "default", "q")
	}
	out := c.explain(t, waits)
	if p := out.GetPending(); p.GetTries() < 1 || p.GetSinceTime() == nil || len(p.GetObstacles()) != 2 {
		t.Errorf("%v", p)
	}
	if len(out.GetChanges()) != 2 || out.GetChanges()[0].GetNodeCount() != 1 {
		t.Errorf("what would have nodes fit: %v", out.GetChanges())
	}
}

// TestTheLeaderExplainsByWhatIsKnownOfOtherObjects asks right after the scheduler is notified of another policy.
func TestTheLeaderExplainsByWhatIsKnownOfOtherObjects(t *testing.T) {
	c := newCreating(t, true)
	c.lead(t)
	pod := asking("p")
	for i := range 20 {
		policy := &schedulingv1.Policy{Metadata: &metav1.ObjectMeta{Name: "default"}, NoPriorities: i%2 == 0}
		if i == 0 {
			if _, err := c.tables.Policies.Create(t.Context(), policy); err != nil {
				t.Fatal(err)
			}
		} else if _, err := c.tables.Policies.Update(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		if err := c.tables.Policies.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string { // the copy has it before the scheduler is notified
			if c.tables.Policies.Notified() < c.tables.Policies.Revision() {
				return "the scheduler is not notified"
			}
			return ""
		})
		if scores := c.explain(t, pod).GetNodes()[0].GetScores(); (len(scores) == 0) != (i%2 == 0) {
			t.Fatalf("after policy %d: %v", i, scores)
		}
	}
}

// TestExtendersAreAskedWhilePodsArePlaced has an extender that answers once another pod has a node, and another
// explanation be made in between.
func TestExtendersAreAskedWhilePodsArePlaced(t *testing.T) {
	c := newCreating(t, true)
	c.lead(t)
	extender, err := structpb.NewStruct(map[string]any{
		"urlPrefix": "https://one", "filterVerb": "filter", "nodeCacheCapable": true,
		"managedResources": []any{map[string]any{"name": "example.com/licence", "ignoredByScheduler": true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.tables.Policies.Create(t.Context(), &schedulingv1.Policy{
		Metadata: &metav1.ObjectMeta{Name: "default"}, Extenders: []*structpb.Struct{extender},
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.tables.Policies.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	pod := asking("p")
	pod.Spec.Containers[0].Resources.Requests = map[string]*structpb.Value{
		"example.com/licence": structpb.NewStringValue("1"),
	}
	out, leads, err := c.Explain(t.Context(), nil, pod, func(in *plan.Inquiry) {
		for _, q := range in.Ask() {
			if bound := c.create(t, "other"); bound.GetSpec().GetNodeName() == "" {
				t.Error("the other pod has no node")
			}
			c.explain(t, asking("another"))
			in.Take(plan.Answer{Question: q, Failed: map[string]string{"node-0": "no dongle"}})
		}
	})
	if err != nil || !leads || out.GetComputedFrom() != "Leader" || !out.GetExtenders()[0].GetAsked() ||
		out.GetBest() != "" {
		t.Errorf("%v, %t, %v", out, leads, err)
	}
}

// TestPodsAreExplainedWhileOthersArePlaced has the race detector see explanations beside the loop.
func TestPodsAreExplainedWhileOthersArePlaced(t *testing.T) {
	var s *Scheduler
	base := newCreating(t, true)
	tables := followedBy(t, base.store, func(pods []*schedulingv1.Pod) *resource.Creation[*schedulingv1.Pod] {
		return s.Creating(pods)
	})
	s = NewScheduler(tables, newFleet(12), noNodes{}, nil, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(base.ctx)
	var done sync.WaitGroup
	done.Go(func() { _ = s.Lead(ctx) })
	defer done.Wait()
	defer cancel()
	policy := plan.Policy(&schedulingv1.Policy{NoPriorities: true})
	var creators sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		creators.Go(func() {
			for i := range 20 {
				if _, err := tables.Pods.Create(t.Context(), asking(fmt.Sprint(name, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	made := make(chan struct{})
	go func() {
		creators.Wait()
		close(made)
	}()
	for ended := false; !ended; {
		select {
		case <-made:
			ended = true // and explain once more, when the process leads for certain
			if err := tables.Pods.CatchUp(t.Context()); err != nil {
				t.Fatal(err)
			}
		default:
		}
		for _, supposed := range []*plan.Profile{nil, policy} {
			pod := asking("other")
			if stored, ok := tables.Pods.Lookup("default", "a0"); ok {
				pod = stored
			}
			out, leads, err := s.Explain(t.Context(), supposed, pod, nil)
			if err != nil || leads && len(out.GetNodes()) != 12 {
				t.Fatalf("%v, %v", out, err)
			}
		}
	}
}
