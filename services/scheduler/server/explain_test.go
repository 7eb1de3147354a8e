package server

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

func (everyNode) All() []*nodev1.Node                         { return nil }
func (everyNode) IsSynced() bool                              { return false }
func (everyNode) Event(object.Object, string, string, string) {}

// follower is a process that does not lead.
type follower struct{ Placer }

func (follower) Explain(context.Context, *plan.Profile, *schedulingv1.Pod, func(*plan.Inquiry)) (
	*schedulingv1.ExplainPodResponse, bool, error,
) {
	return nil, false, nil
}

func follow(t *testing.T) Config {
	t.Helper()
	return followStore(t, etcdtest.Store(t))
}

func followStore(t *testing.T, st *store.Store) Config {
	t.Helper()
	tables := kinds.New(kinds.Config{
		Store: st, Validator: protovalidate.GlobalValidator, Nodes: everyNode{},
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
		Tables: tables, Nodes: everyNode{}, Events: everyNode{}, Placer: follower{}, Now: time.Now,
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
		"pods.items":  {Pod: pod, Pods: pods, Nodes: nodes(1)},
		"nodes":       {Pod: pod, Services: []*schedulingv1.Service{{}}},
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

// oneNode is a cluster of one node.
type oneNode struct{ everyNode }

func (oneNode) IsSynced() bool { return true }

func (oneNode) All() []*nodev1.Node {
	return []*nodev1.Node{{
		Metadata: &metav1.ObjectMeta{Name: "a"},
		Status:   &nodev1.NodeStatus{Allocatable: map[string]*structpb.Value{"pods": structpb.NewStringValue("100")}},
	}}
}

// TestAnExplanationKnowsWhatWasStoredBeforeIt has another replica store pods that have a port of the node.
func TestAnExplanationKnowsWhatWasStoredBeforeIt(t *testing.T) {
	st := etcdtest.Store(t)
	cfg := followStore(t, st)
	cfg.Nodes = oneNode{}
	s, other := NewPods(cfg), followStore(t, st).Tables.Pods
	for i := range 20 {
		pod := func(name, node string) *schedulingv1.Pod {
			return &schedulingv1.Pod{
				Metadata: &metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(name, i)},
				Spec: &schedulingv1.PodSpec{
					NodeName: node, Containers: []*schedulingv1.Container{{
						Name: "c", Image: "pause", Ports: []*schedulingv1.ContainerPort{{
							ContainerPort: 80, HostPort: int32(1000 + i),
						}},
					}},
				},
			}
		}
		if _, err := other.Create(t.Context(), pod("bound", "a")); err != nil {
			t.Fatal(err)
		}
		got, err := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Pod: pod("next", "")})
		if err != nil || got.GetBest() != "" {
			t.Fatalf("the port of pod %d is taken, and the explanation is %v, %v", i, got, err)
		}
		if _, err := other.Create(t.Context(), pod("waiting", "")); err != nil {
			t.Fatal(err)
		}
		where, err := s.PlanPlacement(t.Context(), &schedulingv1.PlanPlacementRequest{
			Variations: []*schedulingv1.PlanPlacementRequest_Variation{{
				Place: []*schedulingv1.PlanPlacementRequest_PodName{{Namespace: "default", Name: fmt.Sprint("waiting", i)}},
			}},
		})
		if err != nil || len(where.GetResults()[0].GetPlacements()) != 1 {
			t.Fatalf("waiting pod %d is placed by %v, %v", i, where, err)
		}
	}
}

func TestAPodIsNotBothNamedAndGivenUnlessItIsTheSame(t *testing.T) {
	s := NewPods(follow(t))
	nodes := &nodev1.NodeList{Items: []*nodev1.Node{{Metadata: &metav1.ObjectMeta{Name: "a"}}}}
	pod := func(namespace, name string) *schedulingv1.Pod {
		return &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for _, tc := range []struct {
		name           string
		namespace, pod string
		given          *schedulingv1.Pod
		want           []string
	}{
		{"the same pod", "x", "p", pod("x", "p"), nil},
		{"the same pod, in the default namespace", "", "p", pod("default", "p"), nil},
		{"a given pod without a namespace", "x", "p", pod("", "p"), nil},
		{"a given pod, with the namespace of those without one", "x", "", pod("y", "p"), nil},
		{"another name", "x", "q", pod("x", "p"), []string{"name"}},
		{"a given pod without a name", "x", "q", &schedulingv1.Pod{}, []string{"name"}},
		{"another namespace", "x", "p", pod("y", "p"), []string{"namespace"}},
		{"another namespace than the default", "", "p", pod("y", "p"), []string{"namespace"}},
		{"another pod altogether", "x", "q", pod("y", "p"), []string{"name", "namespace"}},
	} {
		_, explained := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{
			Namespace: tc.namespace, Name: tc.pod, Pod: tc.given, Nodes: nodes,
		})
		_, preempts := s.PlanPreemption(t.Context(), &schedulingv1.PlanPreemptionRequest{
			Namespace: tc.namespace, Name: tc.pod, Pod: tc.given, Nodes: nodes,
		})
		for _, err := range []error{explained, preempts} {
			fields, _ := rpcerr.Fields(err)
			var got []string
			for _, f := range fields {
				got = append(got, f.Path)
			}
			if !slices.Equal(got, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("%s: %v, want faults %v", tc.name, err, tc.want)
			}
		}
	}
}

// TestAGivenClusterIsNotMixedWithTheLiveOne explains a pod with what a request gives while live objects would say
// otherwise.
func TestAGivenClusterIsNotMixedWithTheLiveOne(t *testing.T) {
	s := NewPods(follow(t))
	app := map[string]string{"app": "web"}
	live := &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{{Name: "HostName"}}}
	if _, err := s.Tables.Policies.Create(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	pod := func(name, node string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Labels: app},
			Spec: &schedulingv1.PodSpec{
				NodeName: node, NodeSelector: map[string]string{"disk": "ssd"},
				Containers: []*schedulingv1.Container{
					{Name: "c", Image: "pause"},
				},
			},
		}
	}
	if _, err := s.Tables.Pods.Create(t.Context(), pod("live", "")); err != nil {
		t.Fatal(err)
	}
	nodes := &nodev1.NodeList{}
	for _, name := range []string{"a", "b"} {
		nodes.Items = append(nodes.Items, &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status:   &nodev1.NodeStatus{Allocatable: map[string]*structpb.Value{"pods": structpb.NewStringValue("9")}},
		})
	}
	ssd := []*schedulingv1.ExplainPodRequest_NodeLabels{
		{Node: "a", Labels: map[string]string{"disk": "ssd"}}, {Node: "b", Labels: map[string]string{"disk": "ssd"}},
	}
	spread := &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
		{Name: "ServiceSpreadingPriority", Weight: proto.Int32(1)},
	}}
	web := []*schedulingv1.Service{{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: &schedulingv1.ServiceSpec{Selector: app},
	}}
	others := &schedulingv1.PodList{Items: []*schedulingv1.Pod{pod("other", "a")}}
	for name, tc := range map[string]struct {
		request *schedulingv1.ExplainPodRequest
		best    string
		fields  []string
	}{
		"the live policy does not count": {request: &schedulingv1.ExplainPodRequest{Pod: pod("p", ""), Nodes: nodes}},
		"labels are supposed": {request: &schedulingv1.ExplainPodRequest{
			Pod: pod("p", ""), Nodes: nodes,
			NodeLabels: ssd[1:],
		}, best: "b"},
		"a node is gone": {request: &schedulingv1.ExplainPodRequest{
			Pod: pod("p", ""), Nodes: nodes, NodeLabels: ssd, WithoutNodes: []string{"a"},
		}, best: "b"},
		"a given service spreads its pods": {request: &schedulingv1.ExplainPodRequest{
			Pod: pod("p", ""), Nodes: nodes, NodeLabels: ssd, Policy: spread, Services: web, Pods: others,
		}, best: "b"},
		"a given pod by its name": {request: &schedulingv1.ExplainPodRequest{
			Name: "other", Nodes: nodes, NodeLabels: ssd,
			Pods: others,
		}, best: "a"},
		"nodes that are not there": {request: &schedulingv1.ExplainPodRequest{
			Pod: pod("p", ""), Nodes: nodes, WithoutNodes: []string{"c"},
			NodeLabels: []*schedulingv1.ExplainPodRequest_NodeLabels{{Node: "d", Labels: map[string]string{"k": "v"}}},
		}, fields: []string{"nodeLabels[0].node", "withoutNodes[0]"}},
	} {
		out, err := s.ExplainPod(t.Context(), tc.request)
		var got []string
		fields, _ := rpcerr.Fields(err)
		for _, f := range fields {
			got = append(got, f.Path)
		}
		if out.GetBest() != tc.best || !slices.Equal(got, tc.fields) || (err != nil) != (len(tc.fields) > 0) {
			t.Errorf("%s: best %q of %v, %v; want %q, faults %q", name, out.GetBest(), out.GetNodes(), err, tc.best, tc.fields)
		}
	}
	if out, err := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Name: "live", Nodes: nodes}); status.Code(
		err) != codes.NotFound {
		t.Errorf("a live pod in a given cluster: %v, %v", out, err)
	}
	if len(nodes.GetItems()[0].GetMetadata().GetLabels()) > 0 {
		t.Error("the request's nodes were changed")
	}
}

func TestAdmissionCanBeAskedWithAnotherConfiguration(t *testing.T) {
	cfg := follow(t)
	s := NewPods(cfg)
	pod := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p"},
		Spec: &schedulingv1.PodSpec{
			NodeSelector: map[string]string{"region": "east"}, Containers: []*schedulingv1.Container{
				{Name: "c", Image: "pause"},
			},
		},
	}
	namespace := &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: "default", Annotations: map[string]string{
		"scheduler.alpha.kubernetes.io/node-selector": "region=west",
	}}}
	plugins := func(name string) *schedulingv1.AdmissionConfig {
		return &schedulingv1.AdmissionConfig{AdmissionConfig: &schedulingv1.AdmissionPlugins{
			PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{name: {}},
		}}
	}
	broken := proto.CloneOf(pod)
	broken.Spec.Containers[0].Name = "Not_A_Name"
	for name, tc := range map[string]struct {
		request *schedulingv1.AdmitPodRequest
		reason  string // part of it
	}{
		"without a plugin": {&schedulingv1.AdmitPodRequest{Pod: pod, NamespaceObject: namespace}, ""},
		"with PodNodeSelector": {&schedulingv1.AdmitPodRequest{
			Pod: pod, NamespaceObject: namespace,
			AdmissionConfig: plugins("PodNodeSelector"),
		}, "region"},
		"without the namespace": {&schedulingv1.AdmitPodRequest{Pod: pod, AdmissionConfig: plugins("PodNodeSelector")}, ""},
		"a pod that is not valid": {
			&schedulingv1.AdmitPodRequest{Pod: broken, NamespaceObject: namespace},
			"spec.containers[0].name",
		},
	} {
		out, err := s.AdmitPod(t.Context(), tc.request)
		if err != nil || out.GetAllowed() != (tc.reason == "") || !strings.Contains(out.GetReason(), tc.reason) {
			t.Errorf("%s: %v, %v; want %q", name, out, err, tc.reason)
		}
	}
	if _, err := s.AdmitPod(t.Context(), &schedulingv1.AdmitPodRequest{Pod: pod, Groups: []string{"g"}}); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("groups without a user: %v", err)
	}
}

func TestEachOperationIsAdmittedWithGivenObjectsAlone(t *testing.T) {
	s := NewPods(follow(t))
	pod := func(change func(*schedulingv1.Pod)) *schedulingv1.Pod {
		out := &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: "p"},
			Spec: &schedulingv1.PodSpec{
				Containers: []*schedulingv1.Container{{Name: "c", Image: "pause"}}, PriorityClassName: "high",
				Tolerations: []*schedulingv1.Toleration{{Key: "k", Operator: "Exists"}},
			},
		}
		if change != nil {
			change(out)
		}
		return out
	}
	high := []*schedulingv1.PriorityClass{{Metadata: &metav1.ObjectMeta{Name: "high"}, Value: 7}}
	for name, tc := range map[string]struct {
		request *schedulingv1.AdmitPodRequest
		reason  string // part of it
		field   string // that is wrong with the request
	}{
		"a creation with a given class": {&schedulingv1.AdmitPodRequest{Pod: pod(nil), PriorityClasses: high}, "", ""},
		"a creation without it": {
			&schedulingv1.AdmitPodRequest{Pod: pod(nil), NamespaceObject: &schedulingv1.Namespace{}},
			`there is no PriorityClass "high"`, "",
		},
		"an update of an image": {&schedulingv1.AdmitPodRequest{
			Operation: "UPDATE", OldPod: pod(nil), Pod: pod(func(p *schedulingv1.Pod) { p.Spec.Containers[0].Image = "other" }),
		}, "", ""},
		"an update without a toleration": {&schedulingv1.AdmitPodRequest{
			Operation: "UPDATE", OldPod: pod(nil), Pod: pod(func(p *schedulingv1.Pod) { p.Spec.Tolerations = nil }),
		}, "", ""},
		"an update of a container's name": {&schedulingv1.AdmitPodRequest{
			Operation: "UPDATE", OldPod: pod(nil), Pod: pod(func(p *schedulingv1.Pod) { p.Spec.Containers[0].Name = "d" }),
		}, "spec", ""},
		"an update of the node": {&schedulingv1.AdmitPodRequest{
			Operation: "UPDATE", OldPod: pod(nil), Pod: pod(func(p *schedulingv1.Pod) { p.Spec.NodeName = "a" }),
		}, "spec.nodeName", ""},
		"an update of the status": {&schedulingv1.AdmitPodRequest{
			Operation: "UPDATE", OldPod: pod(nil), Pod: pod(func(p *schedulingv1.Pod) {
				p.Status = &schedulingv1.PodStatus{Phase: proto.String("Running")}
			}),
		}, "status", ""},
		"an update of a live pod among given objects": {&schedulingv1.AdmitPodRequest{
			Operation: "UPDATE", Pod: pod(nil), PriorityClasses: high,
		}, "", "oldPod"},
		"a creation in place of a pod": {&schedulingv1.AdmitPodRequest{Pod: pod(nil), OldPod: pod(nil)}, "", "oldPod"},
		"a deletion": {&schedulingv1.AdmitPodRequest{
			Operation: "DELETE", Pod: pod(nil),
			PriorityClasses: high,
		}, "", ""},
	} {
		out, err := s.AdmitPod(t.Context(), tc.request)
		if tc.field != "" {
			if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != tc.field {
				t.Errorf("%s: %v, want a fault of %s", name, err, tc.field)
			}
			continue
		}
		if err != nil || out.GetAllowed() != (tc.reason == "") || !strings.Contains(out.GetReason(), tc.reason) {
			t.Errorf("%s: %v, %v; want %q", name, out, err, tc.reason)
		}
	}
}

func TestExplainSaysThatAnotherSchedulerPlacesAPod(t *testing.T) {
	s := NewPods(follow(t))
	nodes := &nodev1.NodeList{Items: []*nodev1.Node{{Metadata: &metav1.ObjectMeta{Name: "a"}}}}
	of := func(scheduler, node string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: scheduler + node, Namespace: "default"},
			Spec:     &schedulingv1.PodSpec{SchedulerName: scheduler, NodeName: node},
			Status:   &schedulingv1.PodStatus{Conditions: []*schedulingv1.PodCondition{{Type: "PodScheduled", Status: "True"}}},
		}
	}
	others := &schedulingv1.PodList{Items: []*schedulingv1.Pod{of("mine", "a")}}
	for scheduler, want := range map[string]string{
		"mine": `waits for the scheduler "mine", which has bound other pods; there is no Policy of that name`,
		"none": `waits for the scheduler "none", and no scheduler of that name has been seen: it has bound no pod, and there is no Policy of that name`,
		"":     "",
	} {
		pod := of(scheduler, "")
		pod.Status = nil
		out, err := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Pod: pod, Nodes: nodes, Pods: others})
		if err != nil || out.GetRefused() != want || len(out.GetNodes()) != 1 || want != "" && out.GetMessage() != want {
			t.Errorf("a pod of %q: %v, %v", scheduler, out, err)
		}
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
