package controller

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

type noNodes struct{}

func (noNodes) Lookup(string, string) (*nodev1.Node, bool)    { return nil, false }
func (noNodes) All() []*nodev1.Node                           { return nil }
func (noNodes) Subscribe(func(resource.Change[*nodev1.Node])) {}
func (noNodes) WaitSynced(context.Context) error              { return nil }
func (noNodes) HasNode(string) bool                           { return false }
func (noNodes) Exists(context.Context, string) (bool, error)  { return false, nil }
func (noNodes) Event(object.Object, string, string, string)   {}
func mayBind(identity.Caller, string, string) bool            { return true }

// followed returns tables over a store of their own.
func followed(t *testing.T) *kinds.Tables {
	t.Helper()
	tables := kinds.New(kinds.Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{}, MayBind: mayBind,
		Log: slog.New(slog.DiscardHandler),
	})
	for _, k := range tables.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return tables
}

// leading returns a scheduler that knows all objects, and a pod that needs a node there.
func leading(t *testing.T) (*Scheduler, *schedulingv1.Pod) {
	t.Helper()
	tables := followed(t)
	s := NewScheduler(tables, noNodes{}, noNodes{}, slog.New(slog.DiscardHandler))
	s.observe()
	return s, newPod(t, tables, "p")
}

func newPod(t *testing.T, tables *kinds.Tables, name string) *schedulingv1.Pod {
	t.Helper()
	pod, err := tables.Pods.Create(t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "a"}},
		Spec:     &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// binding returns the plan to bind a pod.
func binding(pod *schedulingv1.Pod) plan.Plan {
	return plan.Plan{Do: []plan.Action{{Verb: plan.BindPod, Decision: plan.Decision{Pod: pod, Node: "node"}}}}
}

func nodeOf(t *testing.T, s *Scheduler, pod *schedulingv1.Pod) string {
	t.Helper()
	m := pod.GetMetadata()
	now, err := s.tables.Pods.Get(t.Context(), m.GetNamespace(), m.GetName())
	if err != nil {
		t.Fatal(err)
	}
	return now.GetSpec().GetNodeName()
}

func TestAPodThatChangedSinceItWasPlacedIsPlacedAgain(t *testing.T) {
	s, pod := leading(t)
	now, err := s.tables.Pods.Modify(t.Context(), object.KeyOf(pod), func(p *schedulingv1.Pod) error {
		p.Metadata.Labels = map[string]string{"app": "b"} // which other pods may keep away from
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.carryOut(t.Context(), binding(pod)); nodeOf(t, s, pod) != "" {
		t.Errorf("it is on node %q", nodeOf(t, s, pod))
	}
	if p := s.queue.Next(start); len(p.Held) != 1 {
		t.Errorf("it is not placed again: %v", p)
	}
	if s.carryOut(t.Context(), binding(now)); nodeOf(t, s, pod) != "node" {
		t.Errorf("it is on node %q", nodeOf(t, s, pod))
	}
}

// TestAPodThatCannotBeStoredKeepsNoOtherWaiting has etcd work and a pod break the rules that are in force now.
func TestAPodThatCannotBeStoredKeepsNoOtherWaiting(t *testing.T) {
	s, pod := leading(t)
	broken := object.Clone(pod)
	broken.Metadata.Labels = map[string]string{"no label!": ""}
	s.tables.Pods.Replace([]*schedulingv1.Pod{broken}, 1<<40) // as a stored pod that was valid when it was written
	s.carryOut(t.Context(), binding(broken))
	pending := binding(broken)
	pending.Do[0].Verb = plan.StorePending
	s.carryOut(t.Context(), pending)
	if p := s.queue.Next(start); len(p.Do) > 0 || !p.Wake.IsZero() {
		t.Errorf("the plan is %v, want to wait for a change", p)
	}
}
