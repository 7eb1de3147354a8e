package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	burst        = 2000 // pods, of which the workers have room for a few
	burstCallers = 16
	burstKills   = 3
)

// TestFaultsTheSchedulerIsKilledInABurst creates many pods and kills the scheduler on the way.
func TestFaultsTheSchedulerIsKilledInABurst(t *testing.T) {
	shared.Cluster(t)      // no cluster of another package runs at the same time
	c := harness.Second(t) // so that no later test has a database with all these pods and their events
	c.SettleAll(patience)
	record := c.Record()
	var next, made atomic.Int64
	var callers sync.WaitGroup
	for range burstCallers {
		callers.Go(func() {
			for n := next.Add(1); n <= burst; n = next.Add(1) {
				createUntilItIsThere(t, c, fmt.Sprintf("burst-%04d", n))
				made.Add(1)
			}
		})
	}
	for k := range burstKills {
		c.Wait(patience, "a part of the burst", func(context.Context) (bool, string, error) {
			n := made.Load()
			return n >= int64((k+1)*burst/(burstKills+1)), fmt.Sprintf("%d pods are made", n), nil
		})
		if err := c.Kill("scheduler"); err != nil {
			t.Fatal(err)
		}
	}
	callers.Wait()
	c.Wait(patience, "a decision about each pod", func(ctx context.Context) (bool, string, error) {
		list, err := c.Pods(ctx, "app=faults")
		decided, bound := 0, 0
		for _, p := range list {
			if placement.PodCondition(p, placement.PodScheduled) != nil {
				decided++
			}
			if p.GetSpec().GetNodeName() != "" {
				bound++
			}
		}
		return decided == burst && bound > 0, fmt.Sprintf("%d pods, %d decided, %d bound", len(list), decided, bound), err
	})
	for _, fault := range overcommitted(record.Steps()) {
		t.Error(fault)
	}
	record.Check(hello)
}

// createUntilItIsThere creates a pod, again if its scheduler dies during the call.
func createUntilItIsThere(t *testing.T, c *harness.Cluster, name string) {
	for began := time.Now(); ; {
		_, err := schedulingv1.NewPodServiceClient(c.Conn()).CreatePod(t.Context(), &schedulingv1.CreatePodRequest{
			Pod: &schedulingv1.Pod{
				Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "faults"}},
				Spec: &schedulingv1.PodSpec{
					TerminationGracePeriodSeconds: proto.Int32(1),
					Containers: []*schedulingv1.Container{{
						Name: "hello", Image: "docker.io/ocpqe/hello-pod", Resources: &schedulingv1.ResourceRequirements{
							Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("300m")},
						},
					}},
				},
			},
		})
		switch status.Code(err) {
		case codes.OK, codes.AlreadyExists:
			return
		}
		if time.Since(began) > patience {
			t.Errorf("%s: %v", name, err)
			return
		}
		pause(t.Context(), 20*time.Millisecond)
	}
}

// overcommitted says when the pods of a node asked for more than it has.
func overcommitted(steps []harness.Step) (faults []string) {
	has, pods := map[string]int64{}, map[string]map[string]int64{} // processor time, in thousandths
	for _, step := range steps {
		switch o := step.Object.(type) {
		case *nodev1.Node:
			amount, _ := placement.Allocatable(o)
			has[o.GetMetadata().GetName()] = amount.MilliCPU
		case *schedulingv1.Pod:
			name := o.GetSpec().GetNodeName()
			if pods[name] == nil {
				pods[name] = map[string]int64{}
			}
			uid := o.GetMetadata().GetUid()
			delete(pods[name], uid)
			if !step.Deleted && placement.Assigned(o) {
				pods[name][uid] = placement.RequestsOf(o.GetSpec()).MilliCPU
			}
			var sum int64
			for _, n := range pods[name] {
				sum += n
			}
			if most, ok := has[name]; ok && sum > most {
				faults = append(faults, fmt.Sprintf("revision %d: the pods of %s ask for %dm of %dm processors", step.Revision,
					name, sum, most))
			}
		}
	}
	return faults
}

func TestAnOvercommittedNodeIsSeen(t *testing.T) {
	pod := func(uid, node string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: uid, Namespace: "default", Uid: uid},
			Spec: &schedulingv1.PodSpec{NodeName: node, Containers: []*schedulingv1.Container{{
				Resources: &schedulingv1.ResourceRequirements{
					Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("300m")},
				},
			}}},
		}
	}
	has := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "n"}, Status: &nodev1.NodeStatus{
		Allocatable: map[string]*structpb.Value{"cpu": structpb.NewStringValue("600m")},
	}}
	steps := []harness.Step{
		{Revision: 1, Object: has},
		{Revision: 2, Object: pod("a", "n")},
		{Revision: 3, Object: pod("b", "n")},
		{Revision: 4, Object: pod("b", "n"), Deleted: true},
		{Revision: 5, Object: pod("c", "n")},
		{Revision: 6, Object: pod("d", "other")},
	}
	if got := overcommitted(steps); len(got) != 0 {
		t.Errorf("of nodes that are full it is said: %q", got)
	}
	steps = append(steps, harness.Step{Revision: 7, Object: pod("e", "n")})
	if got := overcommitted(steps); len(got) != 1 || !strings.Contains(got[0], "revision 7") ||
		!strings.Contains(got[0], "900m of 600m") {
		t.Errorf("of 900m on 600m it is said: %q", got)
	}
}
