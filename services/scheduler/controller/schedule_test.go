package controller

import (
	"context"
	"log/slog"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/plan"
)

type noNodes struct{}

func (noNodes) Lookup(string, string) (*nodev1.Node, bool)    { return nil, false }
func (noNodes) All() []*nodev1.Node                           { return nil }
func (noNodes) Subscribe(func(resource.Key))                  {}
func (noNodes) WaitSynced(context.Context) error              { return nil }
func (noNodes) HasNode(string) bool                           { return false }
func (noNodes) Exists(context.Context, string) (bool, error)  { return false, nil }
func (noNodes) Event(resource.Object, string, string, string) {}
func mayBind(context.Context, string, string) bool            { return true }
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
	tables := kinds.New(kinds.Config{Validator: protovalidate.GlobalValidator, Nodes: noNodes{}, MayBind: mayBind, Log: slog.New(slog.DiscardHandler)})
	f := failureOf(stuck)
	t := &term{
		Scheduler: NewScheduler(tables, noNodes{}, noNodes{}, slog.New(slog.DiscardHandler)), cluster: plan.NewCluster(), profile: plan.Policy(nil),
		ready: map[resource.Key]struct{}{}, stuck: map[resource.Key]failure{resource.KeyOf(stuck): f},
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
		"another pod of its name":              {waiting("2"), true},
		"another spec":                         {waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Generation = 2 }), true},
		"other labels, which keep others away": {waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"app": "b"} }), true},
		"it is on its way out": {waiting("1", func(p *schedulingv1.Pod) {
			p.Metadata.Generation, p.Metadata.DeletionTimestamp = 2, &timestamppb.Timestamp{Seconds: 1}
		}), false},
	} {
		t.Run(what, func(t *testing.T) {
			s := termOf(waiting("1"))
			s.tables.Pods.Replace([]*schedulingv1.Pod{tc.now}, 1)
			k := resource.KeyOf(tc.now)
			s.takePod(k)
			if _, got := s.ready[k]; got != tc.want {
				t.Errorf("it is to be placed: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAPodThatOthersKeepAwayIsTriedAgainWhenOneOfThemChanges(t *testing.T) {
	apart := []*schedulingv1.PodAffinityTerm{{TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{}}}
	for what, affinity := range map[string]*schedulingv1.Affinity{
		"it wants to be near them": {PodAffinity: &schedulingv1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: apart}},
		"it keeps away from them":  {PodAntiAffinity: &schedulingv1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: apart}},
	} {
		t.Run(what, func(t *testing.T) {
			s := termOf(waiting("1", func(p *schedulingv1.Pod) { p.Spec.Affinity = affinity }))
			other := waiting("2", func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.NodeName = "other", "node" })
			s.tables.Pods.Replace([]*schedulingv1.Pod{other}, 1)
			if s.takePod(resource.KeyOf(other)); !s.helped {
				t.Error("nobody tries it again")
			}
		})
	}
}

func TestAPodThatCannotBeStoredKeepsNoOtherWaiting(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(kinds.Config{Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{}, MayBind: mayBind, Log: log})
	broken := waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"no label!": ""} })
	tables.Pods.Replace([]*schedulingv1.Pod{broken}, 1)
	s := termOf(waiting("0"))
	s.tables = tables
	if !s.bind(t.Context(), []plan.Decision{{Pod: broken, Node: "node"}}) {
		t.Error("bind waits for etcd, which is well")
	}
	if k := resource.KeyOf(broken); !s.stuck[k].of(broken) || len(s.ready) > 0 {
		t.Errorf("stuck: %v, ready: %v", s.stuck, s.ready)
	}
	if !s.fail(t.Context(), []plan.Decision{{Pod: broken, Message: "no node fits"}}) {
		t.Error("fail waits for etcd, which is well")
	}
}
