package controller

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// someNodes are nodes and the events about pods.
type someNodes struct {
	*cluster
	list []*nodev1.Node
	mu   sync.Mutex
	told []string
}

func (n *someNodes) All() []*nodev1.Node { return n.list }

func (n *someNodes) Event(obj object.Object, _, reason, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, obj.GetMetadata().GetName()+" "+reason)
}

func TestPodsOfANodeThatIsNotReadyAreNotReadyEither(t *testing.T) {
	nodes := &someNodes{cluster: clusterOf()}
	tables := followed(t, nodes.cluster, etcdtest.Store(t))
	start := time.Unix(1_700_000_000, 0)
	node := func(name, ready string, since time.Duration) *nodev1.Node {
		return &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name}, Status: &nodev1.NodeStatus{
			Conditions: []*nodev1.NodeCondition{
				{Type: "Ready", Status: ready, LastTransitionTime: timestamppb.New(start.Add(since))},
			},
		}}
	}
	ready := func(name string) {
		t.Helper()
		if _, err := tables.Pods.Modify(t.Context(), object.Key{Namespace: "default", Name: name},
			func(p *schedulingv1.Pod) error {
				p.Status.Phase = proto.String(placement.Running)
				tables.SetPodCondition(p, &schedulingv1.PodCondition{Type: "Ready", Status: "True"})
				return nil
			}); err != nil {
			t.Fatal(err)
		}
	}
	for name, on := range map[string]string{"here": "well", "there": "lost", "new": "silent"} {
		p := &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: name},
			Spec:     &schedulingv1.PodSpec{NodeName: on, Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}}},
		}
		if _, err := tables.Pods.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		ready(name)
	}
	l := NewLost(tables, nodes, nodes, slog.New(slog.DiscardHandler))
	look := func(what string, want map[string]bool, told int, list ...*nodev1.Node) {
		t.Helper()
		nodes.list = append(list, node("well", "True", 0), &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "silent"}})
		if wake, err := l.reconcile(t.Context(), lostKey); err != nil || !wake.IsZero() {
			t.Fatal(wake, err)
		}
		for name, want := range want {
			p, err := tables.Pods.Get(t.Context(), "default", name)
			if err != nil {
				t.Fatal(err)
			}
			if c := placement.PodCondition(p, "Ready"); (c.GetStatus() == "True") != want || !want &&
				c.GetReason() != placement.NodeNotReady {
				t.Errorf("%s: pod %q: %v", what, name, c)
			}
		}
		if len(nodes.told) != told {
			t.Errorf("%s: events %q", what, nodes.told)
		}
	}
	all := map[string]bool{"here": true, "there": true, "new": true}
	without := map[string]bool{"here": true, "there": false, "new": true}
	look("all is well", all, 0, node("lost", "True", 0))
	look("it is lost", without, 1, node("lost", "Unknown", time.Minute))
	ready("there")
	look("its agent is connected here all the same", all, 1, node("lost", "Unknown", time.Minute))
	look("it is back", all, 1, node("lost", "True", 2*time.Minute))
	look("it is lost again", without, 2, node("lost", "False", 3*time.Minute))
}

// TestAPodThatChangedSinceItWasPlannedIsNotRecorded has pods end, and another of a pod's name on the same node, between
// the decision and the write: neither has a condition or an event of it.
func TestAPodThatChangedSinceItWasPlannedIsNotRecorded(t *testing.T) {
	nodes := &someNodes{cluster: clusterOf()}
	tables := followed(t, nodes.cluster, etcdtest.Store(t))
	var planned []*schedulingv1.Pod
	for _, name := range []string{"ends", "replaced"} {
		p, err := tables.Pods.Create(t.Context(), pod(name, "lost"))
		if err != nil {
			t.Fatal(err)
		}
		planned = append(planned, p)
	}
	planned[1].Metadata.Uid = "of-the-former"
	for i, phase := range []string{"Succeeded", placement.Running} {
		if _, err := tables.Pods.Modify(t.Context(), object.KeyOf(planned[i]), func(p *schedulingv1.Pod) error {
			p.Status.Phase = proto.String(phase)
			tables.SetPodCondition(p, &schedulingv1.PodCondition{Type: "Ready", Status: "True"})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l := NewLost(tables, nodes, nodes, slog.New(slog.DiscardHandler))
	if failed, err := l.record(t.Context(), planned); err != nil || len(failed) > 0 {
		t.Fatal(failed, err)
	}
	for _, was := range planned {
		p, err := tables.Pods.Get(t.Context(), "default", was.GetMetadata().GetName())
		if err != nil {
			t.Fatal(err)
		}
		if c := placement.PodCondition(p, "Ready"); c.GetStatus() != "True" {
			t.Errorf("pod %q: %v", was.GetMetadata().GetName(), c)
		}
	}
	if len(nodes.told) > 0 {
		t.Errorf("events %q", nodes.told)
	}
}
