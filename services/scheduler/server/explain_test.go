package server

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

func (everyNode) All() []*nodev1.Node                         { return nil }
func (everyNode) IsSynced() bool                              { return false }
func (everyNode) Event(object.Object, string, string, string) {}

func follow(t *testing.T) Config {
	t.Helper()
	tables := kinds.New(kinds.Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: everyNode{},
		Log:     slog.New(slog.DiscardHandler),
		MayBind: func(identity.Caller, string, string) bool { return true },
	})
	for _, k := range tables.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return Config{
		Tables: tables, Nodes: everyNode{}, Events: everyNode{}, Now: time.Now,
		Log: slog.New(slog.DiscardHandler),
	}
}

func TestExplainNeedsNodesAndBoundsWhatItIsGiven(t *testing.T) {
	s := NewPods(follow(t))
	pod := &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: "p"}}
	nodes := func(n int) *nodev1.NodeList {
		out := &nodev1.NodeList{}
		for i := range n {
			out.Items = append(out.Items, &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: fmt.Sprint(i)}})
		}
		return out
	}
	pods := &schedulingv1.PodList{}
	for i := range maxPods + 1 {
		pods.Items = append(pods.Items, &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	for path, r := range map[string]*schedulingv1.ExplainPodRequest{
		"nodes.items": {Pod: pod, Nodes: nodes(maxNodes + 1)},
		"pods.items":  {Pod: pod, Pods: pods},
	} {
		_, err := s.ExplainPod(t.Context(), r)
		if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != path {
			t.Errorf("want %s wrong, got %v", path, err)
		}
	}
	if out, err := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Pod: pod}); status.Code(
		err) != codes.Unavailable {
		t.Errorf("ExplainPod before any node is known = %v, %v", out, err)
	}
	if out, err := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Pod: pod, Nodes: nodes(2)}); err != nil ||
		len(out.GetNodes()) != 2 {
		t.Errorf("ExplainPod = %v, %v", out, err)
	}
}

// TestNothingIsBoundBeforeTheNodesAreKnown keeps a pod from a node that may not be there: it would go as one whose node
// is gone.
func TestNothingIsBoundBeforeTheNodesAreKnown(t *testing.T) {
	s := NewPods(follow(t))
	pod, err := s.Tables.Pods.Create(t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p"}, Spec: &schedulingv1.PodSpec{
			Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.BindPod(t.Context(), &schedulingv1.BindPodRequest{Name: "p", NodeName: "node"}); status.Code(
		err) != codes.Unavailable {
		t.Errorf("BindPod = %v", err)
	}
	if now, err := s.Tables.Pods.Get(t.Context(), "default", "p"); err != nil || !proto.Equal(now, pod) {
		t.Errorf("the pod is %v, %v", now, err)
	}
}

func TestAPausedDeploymentDoesNotGoBack(t *testing.T) {
	cfg := follow(t)
	web := map[string]string{"app": "web"}
	if _, err := cfg.Tables.Deployments.Create(t.Context(), &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: &schedulingv1.DeploymentSpec{
			Paused: proto.Bool(true), Selector: &metav1.LabelSelector{MatchLabels: web},
			Template: &schedulingv1.PodTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: web}, Spec: &schedulingv1.PodSpec{
					Containers: []*schedulingv1.Container{{Name: "web", Image: "v1"}},
				},
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
	d := cfg.Tables.Deployments.All()[0]
	for i, image := range []string{"v0", "v1"} {
		template := proto.CloneOf(d.GetSpec().GetTemplate())
		template.Spec.Containers[0].Image = image
		if _, err := cfg.Tables.ReplicaSets.Create(t.Context(), &schedulingv1.ReplicaSet{
			Metadata: &metav1.ObjectMeta{
				Name: image, Namespace: "default", OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(d)},
				Annotations: map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(i + 1)},
			},
			Spec: &schedulingv1.ReplicaSetSpec{Selector: d.GetSpec().GetSelector(), Template: template},
		}); err != nil {
			t.Fatal(err)
		}
	}
	back := func() (*schedulingv1.Deployment, error) {
		return NewDeployments(cfg).RollbackDeployment(t.Context(), &schedulingv1.RollbackDeploymentRequest{Name: "web"})
	}
	if out, err := back(); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION {
		t.Errorf("RollbackDeployment of a paused deployment = %v, %v", out, err)
	}
	if _, err := cfg.Tables.Deployments.Modify(t.Context(), object.KeyOf(d), func(d *schedulingv1.Deployment) error {
		d.Spec.Paused = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if out, err := back(); err != nil || out.GetSpec().GetTemplate().GetSpec().GetContainers()[0].GetImage() != "v0" {
		t.Errorf("RollbackDeployment = %v, %v", out, err)
	}
}
