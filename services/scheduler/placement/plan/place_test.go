package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

func text(s string) *structpb.Value { return structpb.NewStringValue(s) }

// newNode returns a node with 4 cores, 8Gi and room for 110 pods.
func newNode(name string, change ...func(*nodev1.Node)) *nodev1.Node {
	n := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Spec:     &nodev1.NodeSpec{},
		Status: &nodev1.NodeStatus{
			Allocatable: map[string]*structpb.Value{"cpu": text("4"), "memory": text("8Gi"), "pods": text("110")},
			Conditions:  []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}},
		},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func labelled(key, value string) func(*nodev1.Node) {
	return func(n *nodev1.Node) { n.Metadata.Labels[key] = value }
}

func tainted(key, value, effect string) func(*nodev1.Node) {
	return func(n *nodev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, &nodev1.Taint{Key: key, Value: proto.String(value), Effect: effect})
	}
}

func having(resource, quantity string) func(*nodev1.Node) {
	return func(n *nodev1.Node) { n.Status.Allocatable[resource] = text(quantity) }
}

func condition(typ, status string) func(*nodev1.Node) {
	return func(n *nodev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, &nodev1.NodeCondition{Type: typ, Status: status})
	}
}

func cordoned(n *nodev1.Node) { n.Spec.Unschedulable = proto.Bool(true) }

// newPod returns a pod that asks for nothing.
func newPod(name string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{}},
		Spec: &schedulingv1.PodSpec{
			Containers: []*schedulingv1.Container{
				{Name: "c", Image: "docker.io/ocpqe/hello-pod", Resources: &schedulingv1.ResourceRequirements{}},
			},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func asking(resource, quantity string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		r := p.Spec.Containers[0].Resources
		if r.Requests == nil {
			r.Requests = map[string]*structpb.Value{}
		}
		r.Requests[resource] = text(quantity)
	}
}

func carrying(key, value string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Metadata.Labels[key] = value }
}

func on(node string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Spec.NodeName = node }
}

func selecting(key, value string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func bearing(key, effect string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, &schedulingv1.Toleration{
			Key: key, Operator: "Exists",
			Effect: effect,
		})
	}
}

func taking(port int32) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{HostPort: port, ContainerPort: port}}
	}
}

func listening(port int32) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{ContainerPort: port}}
	}
}

func clusterOf(nodes ...*nodev1.Node) *Cluster {
	c := NewCluster()
	for _, n := range nodes {
		c.AddNode(n)
	}
	return c
}

func (c *Cluster) with(pods ...*schedulingv1.Pod) *Cluster {
	for _, p := range pods {
		c.AddPod(p)
	}
	return c
}

func (c *Cluster) withService(selector map[string]string) *Cluster {
	c.AddService(&schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:     &schedulingv1.ServiceSpec{Selector: selector},
	})
	return c
}

// place places one pod under the defaults.
func place(c *Cluster, pod *schedulingv1.Pod) Decision {
	var turn uint64
	return placeAll(c, Policy(nil), []*schedulingv1.Pod{pod}, &turn)[0]
}

func TestWhereAPodGoes(t *testing.T) {
	tests := []struct {
		name    string
		cluster *Cluster
		pod     *schedulingv1.Pod
		want    string // node; empty means that it stays pending
		says    string // part of the message
	}{
		{"without nodes nowhere", NewCluster(), newPod("p"), "", "no nodes available"},
		{
			"to a node with room", clusterOf(newNode("a", having("cpu", "1")), newNode("b")), newPod("p", asking("cpu", "2")),
			"b", "",
		},
		{"an equal amount fits", clusterOf(newNode("a")), newPod("p", asking("cpu", "4")), "a", ""},
		{
			"a thousandth more does not", clusterOf(newNode("a")), newPod("p", asking("cpu", "4001m")), "",
			"1 Insufficient cpu",
		},
		{
			"what pods that run have is gone", clusterOf(newNode("a")).with(newPod("q", asking("cpu", "3"), on("a"))),
			newPod("p", asking("cpu", "2")), "", "1 Insufficient cpu",
		},
		{
			"what pods that have ended had is free",
			clusterOf(newNode("a")).with(newPod("q", asking("cpu", "3"), on("a"), func(p *schedulingv1.Pod) {
				p.Status = &schedulingv1.PodStatus{Phase: proto.String("Succeeded")}
			})), newPod("p", asking("cpu", "2")), "a", "",
		},
		{"all shortages are reported", clusterOf(newNode("a")), newPod("p", asking("cpu", "9"), asking("memory", "9Gi"),
			asking("nvidia.com/gpu", "1")), "", "1 Insufficient cpu, 1 Insufficient memory, 1 Insufficient nvidia.com/gpu"},
		{
			"a node takes no more pods than it says", clusterOf(newNode("a", having("pods", "1"))).with(newPod("q", on("a"))),
			newPod("p"), "", "1 Insufficient pods",
		},
		{
			"who asks for nothing goes to an overcommitted node",
			clusterOf(newNode("a", having("cpu", "1"))).with(newPod("q", asking("cpu", "2"), on("a"))), newPod("p"), "a", "",
		},
		{
			"who asks for memory does not go to a node without cpu left",
			clusterOf(newNode("a", having("cpu", "1"))).with(newPod("q", asking("cpu", "2"), on("a"))),
			newPod("p", asking("memory", "1")), "", "Insufficient cpu",
		},
		{
			"a port that is taken", clusterOf(newNode("a")).with(newPod("q", taking(80), on("a"))), newPod("p", taking(80)), "",
			"free ports",
		},
		{
			"a container port that another pod has at the address of their node",
			clusterOf(newNode("a", labelled(placement.PodAddressLabel, placement.NodeAddress))).with(
				newPod("q", listening(80), on("a"))), newPod("p", listening(80)), "", "free ports",
		},
		{
			"a container port that another pod has as a host port",
			clusterOf(newNode("a", labelled(placement.PodAddressLabel, placement.NodeAddress))).with(
				newPod("q", taking(80), on("a"))), newPod("p", listening(80)), "", "free ports",
		},
		{
			"a container port that another pod has at an address of its own",
			clusterOf(newNode("a")).with(newPod("q", listening(80), on("a"))), newPod("p", listening(80)), "a", "",
		},
		{
			"the same container port on the other node",
			clusterOf(newNode("a", labelled(placement.PodAddressLabel, placement.NodeAddress)),
				newNode("b", labelled(placement.PodAddressLabel, placement.NodeAddress))).with(
				newPod("q", listening(80), on("a"))), newPod("p", listening(80)), "b", "",
		},
		{
			"a node by its label", clusterOf(newNode("a"), newNode("b", labelled("disk", "ssd"))),
			newPod("p", selecting("disk", "ssd")), "b", "",
		},
		{
			"a taint that no pod bears", clusterOf(newNode("a", tainted("key2", "value2", "NoSchedule"))), newPod("p"), "",
			"1 node(s) had taint {key2: value2}, that the pod didn't tolerate.",
		},
		{
			"a taint that the pod bears", clusterOf(newNode("a", tainted("key2", "value2", "NoSchedule"))),
			newPod("p", bearing("key2", "NoSchedule")), "a", "",
		},
		{
			"a mild taint only makes a node worse", clusterOf(newNode("a", tainted("k", "", "PreferNoSchedule")), newNode("b")),
			newPod("p"), "b", "",
		},
		{
			"a mild taint alone is no obstacle", clusterOf(newNode("a", tainted("k", "", "PreferNoSchedule"))), newPod("p"), "a",
			"",
		},
		{
			"a node that is not ready",
			clusterOf(newNode("a", func(n *nodev1.Node) { n.Status.Conditions[0].Status = "Unknown" })), newPod("p"), "",
			"1 node(s) were not ready",
		},
		{
			"a node without network", clusterOf(newNode("a", condition("NetworkUnavailable", "True"))), newPod("p"), "",
			"1 node(s) had unavailable network",
		},
		{"a node that is cordoned", clusterOf(newNode("a", cordoned)), newPod("p"), "", "1 node(s) were unschedulable"},
		{
			"a cordoned node takes who bears its taint", clusterOf(newNode("a", cordoned)),
			newPod("p", bearing("node.kubernetes.io/unschedulable", "NoSchedule")), "a", "",
		},
		{
			"short memory keeps away who is promised nothing", clusterOf(newNode("a", condition("MemoryPressure", "True"))),
			newPod("p"), "", "1 node(s) had memory pressure",
		},
		{
			"short memory lets in who asks for some", clusterOf(newNode("a", condition("MemoryPressure", "True"))),
			newPod("p", asking("memory", "1Mi")), "a", "",
		},
		{
			"a full disk keeps all away", clusterOf(newNode("a", condition("DiskPressure", "True"))),
			newPod("p", asking("memory", "1Mi")), "", "1 node(s) had disk pressure",
		},
		{"pods of a service stay in one region", clusterOf(newNode("a", labelled("region", "r1")),
			newNode("b", labelled("region", "r2"))).withService(map[string]string{"app": "web"}).with(
			newPod("q", carrying("app", "web"), on("b"))), newPod("p", carrying("app", "web")), "b", ""},
		{
			"a claim that does not exist", clusterOf(newNode("a")), newPod("p", claiming("data")), "",
			`persistentvolumeclaim "data" not found`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := place(tt.cluster, tt.pod)
			if got.Node != tt.want || !strings.Contains(got.Message, tt.says) || (got.Message == "") != (tt.want != "") {
				t.Errorf("node %q, message %q; want %q, %q", got.Node, got.Message, tt.want, tt.says)
			}
		})
	}
}

func TestThePodsOfTheDocument(t *testing.T) {
	zones := func() *Cluster {
		return clusterOf(newNode("node1", labelled("zone", "us"), labelled("e2e-az-EastWest", "e2e-az-East"),
			labelled("failure-domain.beta.kubernetes.io/zone", "z1")),
			newNode("node2", labelled("zone", "emea"), labelled("e2e-az-NorthSouth", "e2e-az-North"),
				labelled("failure-domain.beta.kubernetes.io/zone", "z2")))
	}
	running := func(name, node string) *schedulingv1.Pod {
		p := pod(t, name)
		p.Spec.NodeName = node
		return p
	}
	tests := []struct {
		name    string
		cluster *Cluster
		pod     string
		want    string
		says    string
	}{
		{"required node affinity", zones(), "004-59", "node2", ""},
		{"preferred node affinity", zones(), "004-60", "node1", ""},
		{"a node with the matching label", zones(), "004-63", "node1", ""},
		{
			"no node with the matching label", clusterOf(newNode("node1", labelled("zone", "emea"))), "004-64", "",
			"No nodes are available that match all of the following predicates: MatchNodeSelector (1).",
		},
		{"near a pod, in the same zone", zones().with(running("004-67", "node2")), "004-65", "node2", ""},
		{"near a pod that is not there", zones(), "004-65", "", "2 node(s) didn't match pod affinity rules"},
		{"rather away from a pod", zones().with(running("004-69", "node1")), "004-66", "node2", ""},
		{"team4a on the node of team4", zones().with(running("004-71", "node2")), "004-72", "node2", ""},
		{"not on the node of s1", zones().with(running("004-73", "node1")), "004-74", "node2", ""},
		{
			"s1 is everywhere", clusterOf(newNode("node1")).with(running("004-73", "node1")), "004-74", "",
			"1 node(s) didn't match pod anti-affinity rules",
		},
		{
			"near a pod with a label that no pod has", zones().with(running("004-75", "node1")), "004-76", "",
			"2 node(s) didn't match pod affinity rules",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := place(tt.cluster, pod(t, tt.pod)); got.Node != tt.want || !strings.Contains(got.Message, tt.says) {
				t.Errorf("node %q, message %q; want %q, %q", got.Node, got.Message, tt.want, tt.says)
			}
		})
	}
}

func TestAPodThatRunsKeepsOthersAway(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b"))
	lonely := pod(t, "004-74")
	lonely.Spec.NodeName = "a"
	c.AddPod(lonely)
	if got := place(c, newPod("p", carrying("security", "s1"))); got.Node != "b" {
		t.Errorf("placed on %q, want b", got.Node)
	}
	c.RemoveNode("b")
	if got := place(c, newPod("p2", carrying("security", "s1"))); !strings.Contains(got.Message,
		"existing pods anti-affinity") {
		t.Errorf("message %q", got.Message)
	}
}

func TestTheFirstOfAGroupGoesAnywhereAndTheOthersFollow(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b"), newNode("c"))
	var pods []*schedulingv1.Pod
	for i := range 6 {
		p := pod(t, "004-72")
		p.Metadata.Name, p.Metadata.Labels = fmt.Sprint("team-", i), map[string]string{"team": "4"}
		pods = append(pods, p)
	}
	turn := uint64(1)
	for _, d := range placeAll(c, Policy(nil), pods, &turn) {
		if d.Node != "b" {
			t.Errorf("%s went to %q, want b", d.Pod.GetMetadata().GetName(), d.Node)
		}
	}
}

func TestPodsOfOneCallCountForEachOther(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b"))
	var pods []*schedulingv1.Pod
	for i := range 5 {
		pods = append(pods, newPod(fmt.Sprint("p", i), asking("cpu", "2")))
	}
	var turn uint64
	got := map[string]int{}
	for _, d := range placeAll(c, Policy(nil), pods, &turn) {
		got[d.Node]++
	}
	if diff := cmp.Diff(map[string]int{"a": 2, "b": 2, "": 1}, got); diff != "" || turn != 4 {
		t.Errorf("(-want +got):\n%s\nturn %d", diff, turn)
	}
}

func TestHigherPriorityAndAgeGoFirst(t *testing.T) {
	made := func(second int64) func(*schedulingv1.Pod) {
		return func(p *schedulingv1.Pod) {
			p.Metadata.CreationTimestamp = timestamppb.New(time.Unix(second, 0))
		}
	}
	important := func(p *schedulingv1.Pod) { p.Spec.Priority = proto.Int32(10) }
	c := clusterOf(newNode("a"))
	var turn uint64
	var got []string
	for _, d := range placeAll(c, Policy(nil), []*schedulingv1.Pod{
		newPod("young", made(9), asking("cpu", "3")),
		newPod("old", made(1), asking("cpu", "1")), newPod("important", made(20), important, asking("cpu", "3")),
	}, &turn) {
		got = append(got, d.Pod.GetMetadata().GetName()+" "+d.Node)
	}
	if diff := cmp.Diff([]string{"important a", "old a", "young "}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEqualNodesTakeTurns(t *testing.T) {
	equal := Policy(&schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
		{Name: "EqualPriority", Weight: proto.Int32(1)},
	}})
	c := clusterOf(newNode("c"), newNode("a"), newNode("b"))
	var turn uint64
	var got []string
	for i := range 4 {
		got = append(got, placeAll(c, equal, []*schedulingv1.Pod{newPod(fmt.Sprint("p", i))}, &turn)[0].Node)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "a"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheCountsOfTheMessage(t *testing.T) {
	c := clusterOf(newNode("m1", tainted("node-role.kubernetes.io/master", "", "NoSchedule")),
		newNode("m2", tainted("node-role.kubernetes.io/master", "", "NoSchedule")),
		newNode("m3", tainted("node-role.kubernetes.io/master", "", "NoSchedule")), newNode("w1", having("cpu", "1")),
		newNode("w2", having("cpu", "1")))
	got := place(c, newPod("p", asking("cpu", "2")))
	want := "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had taint {node-role.kubernetes.io/master: }, that the pod didn't tolerate." +
		" No nodes are available that match all of the following predicates: PodFitsResources (2), PodToleratesNodeTaints (3)."
	if got.Message != want {
		t.Errorf("message\n%s\nwant\n%s", got.Message, want)
	}
	if diff := cmp.Diff(map[string]int{"PodFitsResources": 2, "PodToleratesNodeTaints": 3}, got.Predicates); diff != "" {
		t.Errorf("predicates (-want +got):\n%s", diff)
	}
}

func TestTheOtherScheduler(t *testing.T) {
	got := Explain(clusterOf(newNode("a")), Policy(nil), pod(t, "004-45"), 0)
	if got.GetSchedulerName() != "custom-scheduler" || got.GetBest() != "a" ||
		got.GetMessage() != "Successfully assigned default/custom-scheduler to a" {
		t.Errorf("%v", got)
	}
}

func TestExplainNamesEveryFailureWithNumbers(t *testing.T) {
	c := clusterOf(newNode("a", having("cpu", "2"), tainted("k", "v", "NoSchedule"))).with(
		newPod("q", asking("cpu", "1800m"), on("a")))
	got := Explain(c, Policy(nil), newPod("p", asking("cpu", "500m"), selecting("disk", "ssd")), 0)
	want := &schedulingv1.ExplainPodResponse{
		SchedulerName: "default-scheduler",
		Message: "0/1 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match node selector." +
			" No nodes are available that match all of the following predicates: MatchNodeSelector (1), PodFitsResources (1).",
		NodeCount: 1,
		Obstacles: []*schedulingv1.ExplainPodResponse_Obstacle{
			{Reason: "Insufficient cpu", NodeCount: 1, Examples: []string{"a"}},
			{Reason: "node(s) didn't match node selector", NodeCount: 1, Examples: []string{"a"}},
		},
		Nodes: []*schedulingv1.ExplainPodResponse_NodeVerdict{
			{Node: "a", Failures: []*schedulingv1.ExplainPodResponse_Failure{
				{
					Predicate: "GeneralPredicates", Part: "MatchNodeSelector",
					Reason:  "node(s) didn't match node selector: it lacks disk=ssd",
					Unblock: "the node gets the label disk=ssd",
				},
				{
					Predicate: "GeneralPredicates", Part: "PodFitsResources",
					Reason:  "Insufficient cpu: asked 500m, free 200m of 2",
					Unblock: "needs 300m more cpu", Resource: "cpu", Asked: "500m", Free: "200m",
				},
				{
					Predicate: "PodToleratesNodeTaints", Part: "PodToleratesNodeTaints",
					Reason:  "node(s) had taint {k: v}, that the pod didn't tolerate: its effect is NoSchedule",
					Unblock: "the taint k goes, or the pod gets a toleration for it",
				},
			}},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExplainLooksAtABoundPodAsIfItWereNot(t *testing.T) {
	bound := newPod("p", asking("cpu", "3"), on("a"))
	c := clusterOf(newNode("a"), newNode("b", having("cpu", "2"))).with(bound)
	got := Explain(c, Policy(nil), bound, 0)
	if got.GetBoundTo() != "a" || got.GetBest() != "a" || c.Pods() != 1 || c.byName["a"].used.MilliCPU != 3000 {
		t.Errorf("%v, %d pods, %d used", got, c.Pods(), c.byName["a"].used.MilliCPU)
	}
}

func TestExplainSaysThatGatesHoldAPodBack(t *testing.T) {
	gated := newPod("p", func(p *schedulingv1.Pod) {
		p.Spec.SchedulingGates = []*structpb.Struct{{Fields: map[string]*structpb.Value{"name": text("example.com/quota")}}}
	})
	got := Explain(clusterOf(newNode("a")), Policy(nil), gated, 0)
	if want := "it has scheduling gates, which must go first: example.com/quota"; got.GetRefused() != want ||
		got.GetMessage() != want || got.GetBest() != "" {
		t.Errorf("%v, want %q", got, want)
	}
}

func TestAPodCountsAsSoonAsItsNodeIsThere(t *testing.T) {
	c := NewCluster().with(newPod("q", asking("cpu", "3"), on("a")))
	c.AddNode(newNode("a"))
	if got := place(c, newPod("p", asking("cpu", "2"))); got.Node != "" {
		t.Errorf("placed on %q", got.Node)
	}
	c.RemoveNode("a")
	c.AddNode(newNode("a"))
	if got := place(c, newPod("p", asking("cpu", "2"))); got.Node != "" {
		t.Errorf("placed on %q after the node came back", got.Node)
	}
	c.RemovePod("default", "q")
	if got := place(c, newPod("p", asking("cpu", "2"))); got.Node != "a" {
		t.Errorf("pending: %s", got.Message)
	}
}
