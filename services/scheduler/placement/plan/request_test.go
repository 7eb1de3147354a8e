package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// ofOther returns a pod of another scheduler.
func ofOther(name string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	return newPod(name, append([]func(*schedulingv1.Pod){func(p *schedulingv1.Pod) {
		p.Metadata.Uid, p.Spec.SchedulerName = "uid-"+name, "mine"
	}}, change...)...)
}

// boundAt returns a pod as it is stored with a node.
func boundAt(pod *schedulingv1.Pod, node, revision string) *schedulingv1.Pod {
	pod = proto.CloneOf(pod)
	pod.Spec.NodeName, pod.Metadata.ResourceVersion = node, revision
	return pod
}

func onPort(port int32) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{HostPort: port, ContainerPort: port, Protocol: "TCP"}}
	}
}

func TestARequestedBindingIsRefusedWhereTheAgentWouldRefuseThePod(t *testing.T) {
	small := newNode("a", having("cpu", "1"), having("pods", "2"), labelled("zone", "z1"))
	for name, tc := range map[string]struct {
		node  *nodev1.Node
		pod   *schedulingv1.Pod
		known int64
		want  string // part of the refusal
	}{
		"it fits": {small, ofOther("p", asking("cpu", "500m")), 0, ""},
		"it asks for more than is free": {
			small, ofOther("p", asking("cpu", "600m")), 0,
			"Insufficient cpu: asked 600m, free 500m of 1",
		},
		"its port is taken": {small, ofOther("p", onPort(80)), 0, "port"},
		"it asks for another label": {
			small, ofOther("p", func(p *schedulingv1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "z2"} }), 0,
			"it lacks zone=z2",
		},
		"the node is cordoned":           {newNode("a", cordoned), ofOther("p"), 0, "cordoned"},
		"there is no such node":          {newNode("b"), ofOther("p"), 0, "no node"},
		"a pod came after the revision":  {small, ofOther("p"), 6, `at revision 7, after allocationRevision 6`},
		"no pod came after the revision": {small, ofOther("p"), 7, ""},
		"it is bound already":            {small, ofOther("old"), 0, `it is bound to node "a"`},
		"the taint is not its matter":    {newNode("a", tainted("k", "v", "NoSchedule")), ofOther("p"), 0, ""},
	} {
		q := NewQueue(NewCluster(), only(nil))
		q.AddNode(tc.node)
		q.AddPod(boundAt(ofOther("old", asking("cpu", "500m"), onPort(80)), "a", "7"))
		r := q.Grant([]Request{{Pod: tc.pod, Node: "a", Known: tc.known}})[0]
		got := r.Stale + r.Unfit
		if r.NoNode {
			got = "no node"
		}
		if (tc.want == "") != r.Granted() || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %+v, want %q", name, r, tc.want)
		}
	}
}

// TestRequestsAndOwnDecisionsNeverOvercommit fills one node by requests and by the queue's own pods.
func TestRequestsAndOwnDecisionsNeverOvercommit(t *testing.T) {
	q := NewQueue(NewCluster(), only(nil))
	q.AddNode(newNode("a", func(n *nodev1.Node) { n.Status.Allocatable["cpu"] = structpb.NewStringValue("1") }))
	revision, placed := 0, 0
	for i := range 30 {
		pod := ofOther(fmt.Sprint("r", i), asking("cpu", "100m"))
		if q.Grant([]Request{{Pod: pod, Node: "a"}})[0].Granted() {
			revision++
			placed++
			o := Outcome{Action: Action{BindPod, Decision{Pod: pod, Node: "a"}}, Now: boundAt(pod, "a", fmt.Sprint(revision))}
			if i%5 == 0 { // etcd did not take it
				o.Result, o.Now = Unwritten, pod
				placed--
			}
			q.Bound(start, []Outcome{o})
		}
		own := waiting(fmt.Sprint("o", i), asking("cpu", "100m"), func(p *schedulingv1.Pod) {
			p.Metadata.Name = fmt.Sprint("o", i)
		})
		q.AddPod(own)
		for _, a := range q.Next(start.Add(time.Duration(i+1) * time.Second)).Do {
			if a.Verb == BindPod {
				revision++
				placed++
				q.Done(start, []Outcome{{Action: a, Now: boundAt(a.Pod, a.Node, fmt.Sprint(revision))}})
			}
		}
		if used := q.byName["a"].used.MilliCPU; used > 1000 || used != int64(100*placed) {
			t.Fatalf("after %d: %dm used by %d pods", i, used, placed)
		}
	}
	if placed != 10 {
		t.Errorf("%d pods are placed, 10 fit", placed)
	}
}

func TestOfRequestsWithOneRevisionOneIsGrantedForANode(t *testing.T) {
	q := NewQueue(NewCluster(), only(nil))
	q.AddNode(newNode("a"))
	q.AddNode(newNode("b"))
	p := []*schedulingv1.Pod{ofOther("p0"), ofOther("p1"), ofOther("p2"), ofOther("p0")}
	var got []bool
	for _, r := range q.Grant([]Request{
		{Pod: p[0], Node: "a", Known: 5},
		{Pod: p[1], Node: "a", Known: 5},
		{Pod: p[2], Node: "b", Known: 5},
		{Pod: p[3], Node: "b", Known: 0},
	}) {
		got = append(got, r.Granted())
	}
	if fmt.Sprint(got) != "[true false true false]" {
		t.Fatalf("granted %v", got)
	}
	q.Bound(start, []Outcome{
		{Action: Action{BindPod, Decision{Pod: p[0], Node: "a"}}, Now: boundAt(p[0], "a", "6")},
		{Action: Action{BindPod, Decision{Pod: p[2], Node: "b"}}, Result: Changed}, // it is gone
	})
	for node, want := range map[string]bool{"a": false, "b": true} {
		if r := q.Grant([]Request{{Pod: p[1], Node: node, Known: 5}})[0]; r.Granted() != want {
			t.Errorf("on %s: %+v", node, r)
		}
	}
}

// TestAPodOfThisSchedulerThatIsBoundOnRequestIsNotPlaced has a user bind a pod that waits.
func TestAPodOfThisSchedulerThatIsBoundOnRequestIsNotPlaced(t *testing.T) {
	q := NewQueue(NewCluster(), only(nil))
	q.AddNode(newNode("a"))
	pod := waiting("u")
	q.AddPod(pod)
	if r := q.Grant([]Request{{Pod: pod, Node: "a"}})[0]; !r.Granted() {
		t.Fatal(r)
	}
	if p := q.Next(start); len(p.Do) > 0 {
		t.Errorf("Next = %v", p.Do)
	}
	q.Bound(start, []Outcome{{Action: Action{BindPod, Decision{Pod: pod, Node: "a"}}, Result: Changed, Now: pod}})
	if p := q.Next(start); len(p.Do) != 1 || p.Do[0].Node != "a" {
		t.Errorf("after the binding was not stored: %v", p.Do)
	}
}

func TestAReservationIsForThePodThatItIsFor(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	nominated := ofOther("p", asking("cpu", "3"), ranking(10))
	nominated.Status = &schedulingv1.PodStatus{NominatedNodeName: "a"}
	q.AddPod(nominated)
	if r := q.Grant([]Request{{Pod: ofOther("q", asking("cpu", "2")), Node: "a"}})[0]; !strings.Contains(r.Unfit, "cpu") {
		t.Errorf("another pod gets the room: %+v", r)
	}
	if r := q.Grant([]Request{{Pod: ofOther("p", asking("cpu", "3")), Node: "a"}})[0]; !r.Granted() {
		t.Errorf("the pod itself does not get the room: %+v", r)
	}
}
