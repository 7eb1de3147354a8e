package service

import (
	"fmt"
	"sync"
	"testing"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// TestNoPodIsBoundToACordonedNodeOnceItsBindingsAreSettled cordons one node after the other while pods are placed.
func TestNoPodIsBoundToACordonedNodeOnceItsBindingsAreSettled(t *testing.T) {
	c := start(t)
	const nodes, batches, each = 6, 40, 50
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		c.addNode(name, "1000")
		if _, err := c.nodes.Modify(t.Context(), object.Key{Name: name}, func(n *nodev1.Node) error {
			n.Status.Allocatable = amounts("1000", "4000Gi", "10000")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	c.create(c.pods(), newPod("first", "1m"))
	c.awaitPod(c.pods(), "first", bound)
	var burst sync.WaitGroup
	burst.Go(func() {
		client := c.batches()
		for i := range batches {
			r := &schedulingv1.BatchCreatePodsRequest{}
			for j := range each {
				r.Pods = append(r.Pods, newPod(fmt.Sprintf("p-%d-%d", i, j), "1m"))
			}
			if _, err := client.BatchCreatePods(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
	})
	pods := c.pods()
	on := func(node string) map[string]bool {
		list, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, p := range list.GetItems() {
			out[p.GetMetadata().GetName()] = true
		}
		return out
	}
	settled := map[string]map[string]bool{}
	for i := range nodes - 1 {
		name := fmt.Sprintf("node-%d", i)
		n, err := c.nodes.Modify(t.Context(), object.Key{Name: name}, func(n *nodev1.Node) error {
			n.Spec = &nodev1.NodeSpec{Unschedulable: proto.Bool(true)}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string {
			_, err := pods.SettleBindings(t.Context(), &schedulingv1.SettleBindingsRequest{
				NodeName: name, ResourceVersion: n.GetMetadata().GetResourceVersion(),
			})
			if err != nil {
				return err.Error()
			}
			return ""
		})
		settled[name] = on(name)
	}
	burst.Wait()
	last := c.create(pods, newPod("last", "1m"))
	c.awaitPod(pods, last.GetMetadata().GetName(), bound)
	for name, before := range settled {
		for pod := range on(name) {
			if !before[pod] {
				t.Errorf("pod %s was bound to %s after its bindings were settled", pod, name)
			}
		}
	}
}

// TestAnEvictionWithoutGraceKeepsTheObjectUntilTheAgentConfirms evicts one pod with force and one without.
func TestAnEvictionWithoutGraceKeepsTheObjectUntilTheAgentConfirms(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "8")
	pods, agent := c.pods(), c.agent("node-1")
	get := func(name string) (*schedulingv1.Pod, error) {
		return pods.GetPod(t.Context(), &schedulingv1.GetPodRequest{Namespace: "default", Name: name})
	}
	for name, force := range map[string]bool{"kept": false, "forced": true} {
		c.create(pods, newPod(name, "100m"))
		pod := c.awaitPod(pods, name, bound)
		if err := report(t, agent, pod, "Running", "True"); err != nil {
			t.Fatal(err)
		}
		if _, err := pods.EvictPod(t.Context(), &schedulingv1.EvictPodRequest{
			Namespace: "default", Name: name, GracePeriodSeconds: proto.Int32(0), Force: force,
		}); err != nil {
			t.Fatal(err)
		}
		after, err := get(name)
		if force {
			if status.Code(err) != codes.NotFound {
				t.Errorf("a pod that is evicted with force: %v, %v", after, err)
			}
			continue
		}
		if !object.Deleting(after) || after.GetMetadata().GetDeletionGracePeriodSeconds() != 1 {
			t.Errorf("a pod that runs: %v, %v", after.GetMetadata(), err)
		}
		if _, err := agent.ConfirmPodGone(t.Context(), &schedulingv1.ConfirmPodGoneRequest{
			NodeName: "node-1", Namespace: "default", Name: name, Uid: pod.GetMetadata().GetUid(),
		}); err != nil {
			t.Fatal(err)
		}
		if after, err := get(name); status.Code(err) != codes.NotFound {
			t.Errorf("a pod whose agent confirmed its end: %v, %v", after, err)
		}
	}
}
