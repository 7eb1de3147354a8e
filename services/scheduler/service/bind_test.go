package service

import (
	"fmt"
	"sync"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// custom returns a pod of another scheduler.
func custom(name, cpu string) *schedulingv1.Pod {
	pod := newPod(name, cpu)
	pod.Spec.SchedulerName = "custom-scheduler"
	return pod
}

// settled waits until the scheduler knows a node.
func (c *cluster) settled(node string) {
	c.t.Helper()
	n, err := c.nodes.Get(c.t.Context(), "", node)
	if err != nil {
		c.t.Fatal(err)
	}
	servetest.Await(c.t, func() string {
		if _, err := c.pods().SettleBindings(c.t.Context(), &schedulingv1.SettleBindingsRequest{
			NodeName: node, ResourceVersion: n.GetMetadata().GetResourceVersion(),
		}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestHundredsOfBindingsAtOnceNeverOvercommitANode has other schedulers bind each pod to both nodes at once, while the
// default scheduler places pods on the same nodes.
func TestHundredsOfBindingsAtOnceNeverOvercommitANode(t *testing.T) {
	c := start(t)
	nodes := []string{"node-1", "node-2"}
	for _, n := range nodes {
		c.addNode(n, "4") // 40 pods each
		c.settled(n)
	}
	pods, batches := c.pods(), c.batches()
	r, own := &schedulingv1.BatchCreatePodsRequest{}, &schedulingv1.BatchCreatePodsRequest{}
	for i := range 200 {
		r.Pods = append(r.Pods, custom(fmt.Sprintf("custom-%d", i), "100m"))
		if i < 30 {
			own.Pods = append(own.Pods, newPod(fmt.Sprintf("own-%d", i), "100m"))
		}
	}
	if _, err := batches.BatchCreatePods(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	var mu sync.Mutex
	bound, answers := map[string]string{}, map[codes.Code]int{}
	for _, node := range nodes {
		for _, p := range r.GetPods() {
			calls.Go(func() {
				_, err := pods.BindPod(t.Context(), &schedulingv1.BindPodRequest{Name: p.GetMetadata().GetName(), NodeName: node})
				mu.Lock()
				defer mu.Unlock()
				answers[status.Code(err)]++
				if err != nil {
					return
				}
				if other := bound[p.GetMetadata().GetName()]; other != "" {
					t.Errorf("%s is bound to %s and to %s", p.GetMetadata().GetName(), other, node)
				}
				bound[p.GetMetadata().GetName()] = node
			})
		}
	}
	calls.Go(func() {
		if _, err := batches.BatchCreatePods(t.Context(), own); err != nil {
			t.Error(err)
		}
	})
	calls.Wait()
	if answers[codes.OK]+answers[codes.Aborted]+answers[codes.FailedPrecondition] != 400 {
		t.Errorf("answers: %v", answers)
	}
	list, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for _, p := range list.GetItems() {
		node, name := p.GetSpec().GetNodeName(), p.GetMetadata().GetName()
		on[node]++
		if p.GetSpec().GetSchedulerName() == "custom-scheduler" && bound[name] != node {
			t.Errorf("%s is on %q, the answer was %q", name, node, bound[name])
		}
	}
	if on["node-1"] > 40 || on["node-2"] > 40 || len(bound) < 50 {
		t.Errorf("pods by node: %v, %d of them by the other schedulers; 40 fit on each", on, len(bound))
	}
}

// TestABindingWithAStaleAllocationRevisionLosesAndIsRetried has a scheduler decide with what it read before another
// pod came.
func TestABindingWithAStaleAllocationRevisionLosesAndIsRetried(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	c.settled("node-1")
	pods := c.pods()
	c.create(pods, custom("a", "100m"))
	c.create(pods, custom("b", "100m"))
	read := func() string {
		list, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{
			FieldSelector: "spec.schedulerName=custom-scheduler,spec.nodeName=",
		})
		if err != nil {
			t.Fatal(err)
		}
		return list.GetMetadata().GetResourceVersion()
	}
	bind := func(name, revision string) error {
		_, err := pods.BindPod(t.Context(), &schedulingv1.BindPodRequest{
			Name: name, NodeName: "node-1", AllocationRevision: revision,
		})
		return err
	}
	known := read()
	if err := bind("a", known); err != nil {
		t.Fatal(err)
	}
	if err := bind("b", known); status.Code(err) != codes.Aborted ||
		rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT {
		t.Fatalf("the loser gets %v", err)
	}
	if err := bind("b", read()); err != nil {
		t.Errorf("the retry: %v", err)
	}
	if err := bind("b", "-1"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a revision that is none: %v", err)
	}
}

// TestABindingDocumentBindsAPod sends Kubernetes' document, and such that contradict themselves.
func TestABindingDocumentBindsAPod(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	c.settled("node-1")
	pods := c.pods()
	made := c.create(pods, custom("a", "100m"))
	document := func(namespace, name, uid, node string) *schedulingv1.BindPodRequest {
		return &schedulingv1.BindPodRequest{
			Namespace: "default", Name: "a", ApiVersion: "v1", Kind: "Binding",
			Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name, Uid: uid},
			Target:   &schedulingv1.BindPodRequest_Target{ApiVersion: "v1", Kind: "Node", Name: node},
		}
	}
	wrongKind := document("", "", "", "node-1")
	wrongKind.Target.Kind = "Machine"
	for path, r := range map[string]*schedulingv1.BindPodRequest{
		"metadata.namespace": document("other", "a", "", "node-1"),
		"metadata.name":      document("default", "b", "", "node-1"),
		"nodeName":           document("default", "a", "", ""),
		"target.kind":        wrongKind,
	} {
		_, err := pods.BindPod(t.Context(), r)
		if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != path {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := pods.BindPod(t.Context(), document("", "", "another", "node-1")); status.Code(err) != codes.Aborted {
		t.Errorf("of another uid: %v", err)
	}
	out, err := pods.BindPod(t.Context(), document("default", "a", made.GetMetadata().GetUid(), "node-1"))
	if err != nil || out.GetSpec().GetNodeName() != "node-1" {
		t.Errorf("BindPod = %v, %v", out, err)
	}
}

// TestACordonedNodeTakesNoBinding keeps other schedulers from a node that is drained.
func TestACordonedNodeTakesNoBinding(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	if _, err := c.nodes.Modify(t.Context(), object.Key{Name: "node-1"}, func(n *nodev1.Node) error {
		yes := true
		n.Spec = &nodev1.NodeSpec{Unschedulable: &yes}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.settled("node-1")
	c.create(c.pods(), custom("a", "100m"))
	if _, err := c.pods().BindPod(t.Context(), &schedulingv1.BindPodRequest{
		Name: "a", NodeName: "node-1",
	}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("BindPod = %v", err)
	}
}
