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
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

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
func meta(uid string, labels map[string]string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: "default", Name: "p", Uid: uid, Generation: 1, Labels: labels}
}

func waiting(uid string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	pod := &schedulingv1.Pod{
		Metadata: meta(uid, map[string]string{"app": "a"}), Spec: &schedulingv1.PodSpec{SchedulerName: plan.DefaultScheduler},
		Status: &schedulingv1.PodStatus{Phase: proto.String(placement.Pending)},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// termOf returns a scheduler that leads and has found no node for a pod.
func termOf(stuck *schedulingv1.Pod) *term {
	tables := kinds.New(kinds.Config{
		Validator: protovalidate.GlobalValidator, Nodes: noNodes{}, MayBind: mayBind,
		Log: slog.New(slog.DiscardHandler),
	})
	f := failureOf(stuck)
	t := &term{
		Scheduler: NewScheduler(tables, noNodes{}, noNodes{}, slog.New(slog.DiscardHandler)), cluster: plan.NewCluster(),
		profile: plan.Policy(nil),
		ready:   map[object.Key]struct{}{}, stuck: map[object.Key]failure{object.KeyOf(stuck): f},
	}
	if f.lonely {
		t.lonely = 1
	}
	return t
}

func TestAPodThatFitsNowhereIsTriedAgainWhenItAsksForSomethingElse(t *testing.T) {
	for what, tc := range map[string]struct {
		now  *schedulingv1.Pod
		want bool
	}{
		"what was said of it is no news": {waiting("1", func(p *schedulingv1.Pod) {
			p.Status.Conditions = []*schedulingv1.PodCondition{{Type: kinds.PodScheduled, Status: "False"}}
		}), false},
		"another pod of its name": {waiting("2"), true},
		"another spec":            {waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Generation = 2 }), true},
		"other labels, which keep others away": {
			waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"app": "b"} }), true,
		},
		"it is on its way out": {waiting("1", func(p *schedulingv1.Pod) {
			p.Metadata.Generation, p.Metadata.DeletionTimestamp = 2, &timestamppb.Timestamp{Seconds: 1}
		}), false},
	} {
		t.Run(what, func(t *testing.T) {
			s := termOf(waiting("1"))
			s.tables.Pods.Replace([]*schedulingv1.Pod{tc.now}, 1)
			k := object.KeyOf(tc.now)
			s.takePod(k)
			if _, got := s.ready[k]; got != tc.want {
				t.Errorf("it is to be placed: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAPodThatOthersKeepAwayIsTriedAgainWhenOneOfThemChanges(t *testing.T) {
	apart := []*schedulingv1.PodAffinityTerm{
		{TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{}},
	}
	for what, affinity := range map[string]*schedulingv1.Affinity{
		"it wants to be near them": {
			PodAffinity: &schedulingv1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: apart},
		},
		"it keeps away from them": {PodAntiAffinity: &schedulingv1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: apart,
		}},
	} {
		t.Run(what, func(t *testing.T) {
			s := termOf(waiting("1", func(p *schedulingv1.Pod) { p.Spec.Affinity = affinity }))
			other := waiting("2", func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.NodeName = "other", "node" })
			s.tables.Pods.Replace([]*schedulingv1.Pod{other}, 1)
			if s.takePod(object.KeyOf(other)); !s.helped {
				t.Error("nobody tries it again")
			}
		})
	}
}

func TestAPodThatCannotBeStoredKeepsNoOtherWaiting(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(kinds.Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{},
		MayBind: mayBind, Log: log,
	})
	broken := waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"no label!": ""} })
	tables.Pods.Replace([]*schedulingv1.Pod{broken}, 1)
	s := termOf(waiting("0"))
	s.tables = tables
	placed := proto.CloneOf(broken)
	placed.Spec.NodeName = "node"
	for _, first := range []bool{true, false} {
		s.cluster.AddPod(placed)
		s.helped = false
		if !s.bind(t.Context(), []plan.Decision{{Pod: broken, Node: "node"}}) {
			t.Error("bind waits for etcd, which is well")
		}
		if s.helped != first { // or it would be tried again and again for the room that it leaves itself
			t.Errorf("pods that found no room are tried again: %v, want %v", s.helped, first)
		}
	}
	if k := object.KeyOf(broken); !s.stuck[k].of(broken) || len(s.ready) > 0 {
		t.Errorf("stuck: %v, ready: %v", s.stuck, s.ready)
	}
	if !s.fail(t.Context(), []plan.Decision{{Pod: broken, Message: "no node fits"}}) {
		t.Error("fail waits for etcd, which is well")
	}
}

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

// leading returns a scheduler that leads over tables that are followed, and a pod that waits there.
func leading(t *testing.T) (*term, *schedulingv1.Pod) {
	t.Helper()
	tables := followed(t)
	pod, err := tables.Pods.Create(t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "a"}},
		Spec:     &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := termOf(waiting("0"))
	s.tables, s.stuck = tables, map[object.Key]failure{}
	return s, pod
}

func TestAPodThatChangedSinceItWasPlacedIsPlacedAnew(t *testing.T) {
	s, pod := leading(t)
	k := object.KeyOf(pod)
	if _, err := s.tables.Pods.Modify(t.Context(), k, func(p *schedulingv1.Pod) error {
		p.Metadata.Labels = map[string]string{"app": "b"} // which other pods may keep away from
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !s.bind(t.Context(), []plan.Decision{{Pod: pod, Node: "node"}}) {
		t.Error("bind waits for etcd, which is well")
	}
	now, err := s.tables.Pods.Get(t.Context(), k.Namespace, k.Name)
	if _, again := s.ready[k]; err != nil || now.GetSpec().GetNodeName() != "" || !again {
		t.Errorf("it is on node %q, to be placed anew: %v, %v", now.GetSpec().GetNodeName(), again, err)
	}
	if !s.bind(t.Context(), []plan.Decision{{Pod: now, Node: "node"}}) {
		t.Error("bind waits for etcd, which is well")
	}
	if now, err = s.tables.Pods.Get(t.Context(), k.Namespace, k.Name); err != nil ||
		now.GetSpec().GetNodeName() != "node" {
		t.Errorf("it is on node %q, %v", now.GetSpec().GetNodeName(), err)
	}
}

// TestWhatARefusedBindingLeavesFreeIsForOthers has somebody else bind a pod to another node than it was placed on.
func TestWhatARefusedBindingLeavesFreeIsForOthers(t *testing.T) {
	s, pod := leading(t)
	if _, err := s.tables.Pods.Modify(t.Context(), object.KeyOf(pod), func(p *schedulingv1.Pod) error {
		return s.tables.Bind(p, "", "elsewhere")
	}); err != nil {
		t.Fatal(err)
	}
	placed := proto.CloneOf(pod)
	placed.Spec.NodeName = "node"
	s.cluster.AddPod(placed)
	if s.bind(t.Context(), []plan.Decision{{Pod: pod, Node: "node"}}); !s.helped {
		t.Error("pods that found no room wait on")
	}
}

func TestWhatWasThereBeforeAPodWasPlacedHasItNotTriedAgain(t *testing.T) {
	s, pod := leading(t)
	k := object.KeyOf(pod)
	s.ready[k], s.helped = struct{}{}, true
	if !s.round(t.Context()) {
		t.Error("round waits for etcd, which is well")
	}
	if _, stuck := s.stuck[k]; !stuck || s.helped {
		t.Errorf("no node fits: %v, it is tried again: %v", stuck, s.helped)
	}
}

func TestOnlyWhatCanHelpHasPodsTriedAgain(t *testing.T) {
	bound := func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.NodeName = "other", "node" }
	apart := func(p *schedulingv1.Pod) {
		p.Spec.Affinity = &schedulingv1.Affinity{PodAntiAffinity: &schedulingv1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{
				{TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{}},
			},
		}}
	}
	status := func(p *schedulingv1.Pod) {
		p.Status.Conditions = []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}}
	}
	ended := func(p *schedulingv1.Pod) { p.Status.Phase = proto.String(placement.Failed) }
	other := func(f ...func(*schedulingv1.Pod)) *schedulingv1.Pod { return waiting("2", append(f, bound)...) }
	for what, tc := range map[string]struct {
		stuck       *schedulingv1.Pod
		before, now *schedulingv1.Pod // of another pod; nil if it is not there
		want        bool
	}{
		"a pod that ran is gone":        {waiting("1"), other(), nil, true},
		"a pod that ran has ended":      {waiting("1"), other(), other(ended), true},
		"it is gone after it had ended": {waiting("1"), other(ended), nil, false},
		"a pod that waited is gone": {
			waiting("1"), waiting("2", func(p *schedulingv1.Pod) { p.Metadata.Name = "other" }), nil, false,
		},
		"a pod that runs becomes ready":                   {waiting("1", apart), other(), other(status), false},
		"a pod that runs has other labels":                {waiting("1", apart), other(), other(carrying), true},
		"which is nothing to one that cares for none":     {waiting("1"), other(), other(carrying), false},
		"a pod that came may be company":                  {waiting("1", apart), nil, other(), true},
		"another pod of the name is on the node instead":  {waiting("1", apart), other(), waiting("3", bound), true},
		"and that one may leave more room than its elder": {waiting("1"), other(), waiting("3", bound), true},
	} {
		t.Run(what, func(t *testing.T) {
			s := termOf(tc.stuck)
			k := object.Key{Namespace: "default", Name: "other"}
			for i, pod := range []*schedulingv1.Pod{tc.before, tc.now} {
				s.helped = false
				var pods []*schedulingv1.Pod
				if pod != nil {
					pods = append(pods, pod)
				}
				s.tables.Pods.Replace(pods, int64(i+1))
				s.takePod(k)
			}
			if s.helped != tc.want {
				t.Errorf("it is tried again: %v, want %v", s.helped, tc.want)
			}
		})
	}
}

func carrying(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"app": "b"} }
