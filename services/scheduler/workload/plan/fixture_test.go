package plan_test

import (
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	web   = map[string]string{"app": "web"}
)

func at(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

func template(image string) *schedulingv1.PodTemplateSpec {
	return &schedulingv1.PodTemplateSpec{
		Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:     &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "web", Image: image}}},
	}
}

func selector() *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: web} }

func replicaSet(replicas int) *schedulingv1.ReplicaSet {
	return &schedulingv1.ReplicaSet{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "rs", Generation: 1},
		Spec: &schedulingv1.ReplicaSetSpec{
			Replicas: proto.Int32(int32(replicas)), Selector: selector(),
			Template: template("v1"),
		},
	}
}

// change changes a pod of a test.
type change func(*schedulingv1.Pod)

func pod(name string, owner object.Object, changes ...change) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			Name: name, Namespace: "default", Uid: name,
			CreationTimestamp: at(start.Add(-time.Hour)), Labels: map[string]string{"app": "web"},
		},
		Spec:   &schedulingv1.PodSpec{NodeName: "a"},
		Status: &schedulingv1.PodStatus{Phase: proto.String("Running")},
	}
	if owner != nil {
		p.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(owner)}
	}
	ready(start.Add(-time.Hour))(p)
	for _, f := range changes {
		f(p)
	}
	return p
}

func ready(since time.Time) change {
	return func(p *schedulingv1.Pod) {
		p.Status.Conditions = []*schedulingv1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: at(since)}}
	}
}

func unready(p *schedulingv1.Pod) { p.Status.Conditions = nil }

func phase(s string) change {
	return func(p *schedulingv1.Pod) {
		p.Status.Phase = proto.String(s)
		unready(p)
	}
}

func on(node string) change { return func(p *schedulingv1.Pod) { p.Spec.NodeName = node } }

func born(t time.Time) change {
	return func(p *schedulingv1.Pod) { p.Metadata.CreationTimestamp = at(t) }
}

func leaving(p *schedulingv1.Pod) { p.Metadata.DeletionTimestamp = at(start) }

func labelled(key, value string) change {
	return func(p *schedulingv1.Pod) { p.Metadata.Labels[key] = value }
}

func names(pods []*schedulingv1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.GetMetadata().GetName())
	}
	return out
}

func node(name string, changes ...func(*nodev1.Node)) *nodev1.Node {
	n := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": "worker"}},
		Spec:     &nodev1.NodeSpec{},
	}
	for _, f := range changes {
		f(n)
	}
	return n
}

func taint(key, effect string) func(*nodev1.Node) {
	return func(n *nodev1.Node) { n.Spec.Taints = append(n.Spec.Taints, &nodev1.Taint{Key: key, Effect: effect}) }
}

func amount(v any) *structpb.Value {
	out, err := structpb.NewValue(v)
	if err != nil {
		panic(fmt.Sprintf("%v is no value: %v", v, err))
	}
	return out
}
