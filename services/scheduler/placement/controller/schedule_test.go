package controller

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
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

// followed returns tables over a store, whose caches are kept up to date.
func followed(t *testing.T, st *store.Store) *kinds.Tables {
	t.Helper()
	return followedBy(t, st, nil)
}

// followedBy is followed with a rule for new pods.
func followedBy(t *testing.T, st *store.Store,
	creating func([]*schedulingv1.Pod) *resource.Creation[*schedulingv1.Pod],
) *kinds.Tables {
	t.Helper()
	tables := kinds.New(kinds.Config{
		Store: st, Validator: protovalidate.GlobalValidator, Nodes: noNodes{}, MayBind: mayBind,
		Creating: creating, Log: slog.New(slog.DiscardHandler),
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
	tables := followed(t, etcdtest.Store(t))
	s := NewScheduler(tables, noNodes{}, noNodes{}, nil, slog.New(slog.DiscardHandler))
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

// A cache that is behind would show the same old pod again and again.
func TestAPodThatChangedIsPlacedAgainOnceTheCacheHasTheChange(t *testing.T) {
	st := etcdtest.Store(t)
	client, hold := etcdtest.LateClient(t)
	tables, away := followed(t, store.New(client, st.Prefix())), followed(t, st)
	s := NewScheduler(tables, noNodes{}, noNodes{}, nil, slog.New(slog.DiscardHandler))
	pod := newPod(t, tables, "p")
	s.observe()
	release := hold()
	changed, err := away.Pods.Modify(t.Context(), object.KeyOf(pod), func(p *schedulingv1.Pod) error {
		p.Metadata.Labels = map[string]string{"app": "b"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s.queue.Next(start)
	s.carryOut(short, binding(pod))
	if p := s.queue.Next(time.Now()); len(p.Do) > 0 || p.Wake.IsZero() {
		t.Errorf("the plan is %v, want to wait for the cache", p)
	}
	release()
	if err := tables.Pods.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.observe()
	s.carryOut(t.Context(), binding(changed))
	if nodeOf(t, s, pod) != "node" {
		t.Errorf("it is on node %q", nodeOf(t, s, pod))
	}
}

func TestAPodOfASchedulerThatWasNotSeenGetsACondition(t *testing.T) {
	s, own := leading(t)
	pod, err := s.tables.Pods.Create(t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "foreign"},
		Spec: &schedulingv1.PodSpec{
			SchedulerName: "custom-scheduler", Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var p plan.Plan
	for _, of := range []*schedulingv1.Pod{pod, own} {
		p.Do = append(p.Do, plan.Action{Verb: plan.StoreUnseen, Decision: plan.Decision{Pod: of, Message: "not seen"}})
	}
	s.carryOut(t.Context(), p)
	for of, want := range map[*schedulingv1.Pod]string{pod: plan.NotSeen, own: ""} {
		now, err := s.tables.Pods.Get(t.Context(), "default", of.GetMetadata().GetName())
		if c := placement.PodCondition(now, plan.PodScheduled); err != nil || c.GetReason() != want {
			t.Errorf("%s: %v, %v", of.GetMetadata().GetName(), c, err)
		}
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
