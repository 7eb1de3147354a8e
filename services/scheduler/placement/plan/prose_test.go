package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Sentences of the documents about scheduling that no other test is about; docs/scheduler.md has the rules themselves.

// nodesFor returns the nodes that a pod may go to under a policy, with the best of them first, and the message if there
// is none. Each of the best is found, since equal nodes take turns.
func nodesFor(c *Cluster, p *Profile, pod *schedulingv1.Pod) (best, fitting []string, message string) {
	got := Explain(c, p, pod, 0)
	var top int32
	for _, v := range got.GetNodes() {
		if !v.GetFits() {
			continue
		}
		fitting = append(fitting, v.GetNode())
		switch {
		case len(best) == 0 || v.GetTotal() > top:
			best, top = []string{v.GetNode()}, v.GetTotal()
		case v.GetTotal() == top:
			best = append(best, v.GetNode())
		}
	}
	slices.Sort(best)
	slices.Sort(fitting)
	return best, fitting, got.GetMessage()
}

// labelledNode returns a node with labels, as in "region=r1 zone=z1".
func labelledNode(name, labels string, change ...func(*nodev1.Node)) *nodev1.Node {
	for pair := range strings.FieldsSeq(labels) {
		key, value, _ := strings.Cut(pair, "=")
		change = append(change, labelled(key, value))
	}
	return newNode(name, change...)
}

// TestThePoliciesOfTheDocumentDoWhatItSays has pods of the service web placed under each sample.
func TestThePoliciesOfTheDocumentDoWhatItSays(t *testing.T) {
	member := func(change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
		return newPod("p", append(change, carrying("app", "web"))...)
	}
	topology := func() []*nodev1.Node {
		return []*nodev1.Node{
			labelledNode("n1", "region=r1 zone=z1 rack=s1"), labelledNode("n2", "region=r1 zone=z1 rack=s2"),
			labelledNode("n3", "region=r1 zone=z2 rack=s3"), labelledNode("n4", "region=r2 zone=z1 rack=s4"),
		}
	}
	city := func() []*nodev1.Node {
		return []*nodev1.Node{
			labelledNode("a1", "city=x building=b1 room=1"), labelledNode("a2", "city=x building=b1 room=2"),
			labelledNode("a3", "city=x building=b2 room=3"), labelledNode("far", "city=y building=b3 room=4"),
		}
	}
	tests := []struct {
		name, policy  string
		nodes         []*nodev1.Node
		running       []string // nodes of the pods of the service that run
		pod           *schedulingv1.Pod
		best, fitting string
	}{
		{
			"the changed sample names no predicate for taints, so a tainted node takes pods", "004-02",
			[]*nodev1.Node{labelledNode("a", "region=r1", tainted("k", "", "NoSchedule"))},
			nil, newPod("p"), "a", "a",
		},
		{
			"it keeps a service in one region and spreads it over zones", "004-02", topology(),
			[]string{"n1"},
			member(),
			"n3", "n1 n2 n3",
		},
		{
			"its PodFitsResources is in force", "004-02", topology(), nil, member(asking("cpu", "5")), "", "",
		},
		{
			"the first pod of a service goes anywhere", "004-41", topology(), nil, member(), "n1 n2 n3 n4", "n1 n2 n3 n4",
		},
		{
			"affinity of two levels: the same region and the same zone, spread over racks", "004-41", topology(),
			[]string{"n1"},
			member(), "n2", "n1 n2",
		},
		{
			"a level that the pod's node selector names is taken from there", "004-41", topology(),
			[]string{"n1"},
			member(selecting("zone", "z2")), "n3", "n3",
		},
		{
			"without a node of the same group the pod is not scheduled", "004-41",
			[]*nodev1.Node{labelledNode("n1", "region=r1 zone=z1", cordoned), labelledNode("n4", "region=r2 zone=z1")},
			[]string{"n1"},
			member(), "", "",
		},
		{"one city, spread over buildings", "004-42", city(), []string{"a1"}, member(), "a3", "a1 a2 a3"},
		{"and then over rooms", "004-42", city(), []string{"a1", "a3"}, member(), "a2", "a1 a2 a3"},
		{
			"only nodes with the label region, rather those with the label zone", "004-43",
			[]*nodev1.Node{newNode("bare"), labelledNode("r", "region=1"), labelledNode("rz", "region=2 zone=3")},
			nil, newPod("p"), "rz", "r rz",
		},
		{
			"PodFitsPorts, by its former name", "004-44",
			[]*nodev1.Node{labelledNode("a", "region=1"), labelledNode("b", "region=1")},
			[]string{"a"},
			member(taking(80)), "b", "b",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := clusterOf(tt.nodes...).withService(map[string]string{"app": "web"})
			for i, n := range tt.running {
				c.AddPod(newPod(fmt.Sprint("web-", i), carrying("app", "web"), taking(80), on(n)))
			}
			best, fitting, message := nodesFor(c, Policy(load(t, tt.policy, &schedulingv1.Policy{})), tt.pod)
			if strings.Join(best, " ") != tt.best || strings.Join(fitting, " ") != tt.fitting {
				t.Errorf("best of %q are %q, want %q of %q: %s", fitting, best, tt.best, tt.fitting, message)
			}
		})
	}
}

// wants returns a term of node affinity with one expression.
func wants(key, operator string, values ...string) *schedulingv1.NodeSelectorTerm {
	return &schedulingv1.NodeSelectorTerm{MatchExpressions: []*schedulingv1.NodeSelectorRequirement{
		{Key: key, Operator: operator, Values: values},
	}}
}

// TestRequiredRulesComeFirstAndThenTheHeaviestPreferredOnes is about node affinity and affinity to pods.
func TestRequiredRulesComeFirstAndThenTheHeaviestPreferredOnes(t *testing.T) {
	prefers := func(weight int32, term *schedulingv1.NodeSelectorTerm) *schedulingv1.PreferredSchedulingTerm {
		return &schedulingv1.PreferredSchedulingTerm{Weight: weight, Preference: term}
	}
	nodes := func(required *schedulingv1.NodeSelectorTerm, preferred ...*schedulingv1.PreferredSchedulingTerm,
	) *schedulingv1.Affinity {
		a := &schedulingv1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: preferred}
		if required != nil {
			a.RequiredDuringSchedulingIgnoredDuringExecution = &schedulingv1.NodeSelector{
				NodeSelectorTerms: []*schedulingv1.NodeSelectorTerm{required},
			}
		}
		return &schedulingv1.Affinity{NodeAffinity: a}
	}
	term := func(security string) *schedulingv1.PodAffinityTerm {
		return &schedulingv1.PodAffinityTerm{
			TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"security": security},
			},
		}
	}
	near := func(weight int32, security string) *schedulingv1.WeightedPodAffinityTerm {
		return &schedulingv1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: term(security)}
	}
	for _, tt := range []struct {
		name          string
		affinity      *schedulingv1.Affinity
		best, fitting string
	}{
		{
			"of two preferred rules for nodes the one of higher weight",
			nodes(nil, prefers(1, wants("disk", "In", "ssd")), prefers(100, wants("cpu", "Exists"))), "b", "a b c",
		},
		{
			"a preferred rule that no node meets keeps no pod away",
			nodes(nil, prefers(100, wants("gpu", "Exists"))), "a b c", "a b c",
		},
		{
			"a required rule for nodes comes first",
			nodes(wants("disk", "Exists"), prefers(100, wants("cpu", "Exists"))), "a c", "a c",
		},
		{
			"among the nodes that meet it the preferred rule counts",
			nodes(wants("disk", "Exists"), prefers(1, wants("disk", "NotIn", "ssd"))), "c", "a c",
		},
		{
			"of two preferred rules for pods the one of higher weight", &schedulingv1.Affinity{
				PodAffinity: &schedulingv1.PodAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.WeightedPodAffinityTerm{
						near(1, "S1"), near(100, "S2"),
					},
				},
			}, "b", "a b c",
		},
		{
			"a required rule for pods comes first", &schedulingv1.Affinity{
				PodAntiAffinity: &schedulingv1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{term("S2")},
				},
				PodAffinity: &schedulingv1.PodAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.WeightedPodAffinityTerm{near(100, "S2"), near(
						1, "S1")},
				},
			}, "a", "a c",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := clusterOf(newNode("a", labelled("disk", "ssd")), newNode("b", labelled("cpu", "fast")),
				newNode("c", labelled("disk", "slow"))).with(newPod("s1", carrying("security", "S1"), on("a")),
				newPod("s2", carrying("security", "S2"), on("b")))
			p := newPod("p")
			p.Spec.Affinity = tt.affinity
			// of all priorities only those of affinity, as the others see the pods that run
			policy := Policy(&schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
				weighted("NodeAffinityPriority"), weighted("InterPodAffinityPriority"),
			}})
			best, fitting, message := nodesFor(c, policy, p)
			if strings.Join(best, " ") != tt.best || strings.Join(fitting, " ") != tt.fitting {
				t.Errorf("best of %q are %q, want %q of %q: %s", fitting, best, tt.best, tt.fitting, message)
			}
		})
	}
}

// weighted returns a priority with the weight 1.
func weighted(name string) *schedulingv1.PriorityPolicy {
	one := int32(1)
	return &schedulingv1.PriorityPolicy{Name: name, Weight: &one}
}

// TestPredicatesThatTheDocumentDescribes are those that no other test names.
func TestPredicatesThatTheDocumentDescribes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		predicate string
		node      *nodev1.Node
		fits      bool
	}{
		{"a node without disk space", "CheckNodeCondition", newNode("a", condition("OutOfDisk", "True")), false},
		{"a disk of which nothing is known", "CheckNodeCondition", newNode("a", condition("OutOfDisk", "Unknown")), false},
		{"a node with disk space", "CheckNodeCondition", newNode("a", condition("OutOfDisk", "False")), true},
		{
			"a NoExecute taint", "PodToleratesNodeNoExecuteTaints", newNode("a", tainted("k", "", "NoExecute")), false,
		},
		{
			"a NoSchedule taint is not read", "PodToleratesNodeNoExecuteTaints", newNode("a", tainted("k", "", "NoSchedule")),
			true,
		},
		{"no labels are asked for", "CheckNodeLabelPresence", newNode("a"), true},
		{"no labels are followed", "checkServiceAffinity", newNode("a"), true},
		{"short memory", "CheckNodeMemoryPressure", newNode("a", condition("MemoryPressure", "True")), false},
		{"a full disk", "CheckNodeDiskPressure", newNode("a", condition("DiskPressure", "True")), false},
		{"a full disk is not read", "CheckNodeMemoryPressure", newNode("a", condition("DiskPressure", "True")), true},
	} {
		t.Run(tt.predicate+": "+tt.name, func(t *testing.T) {
			policy := Policy(&schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{{Name: tt.predicate}}})
			if _, fitting, message := nodesFor(clusterOf(tt.node), policy, newPod("p")); (len(fitting) == 1) != tt.fits {
				t.Errorf("fits on %q: %s", fitting, message)
			}
		})
	}
}

// TestSelectorsThatSpreadPods are those of services, replication controllers, replica sets and stateful sets.
func TestSelectorsThatSpreadPods(t *testing.T) {
	selector := map[string]string{"app": "web"}
	meta := &metav1.ObjectMeta{Namespace: "default", Name: "web"}
	for name, add := range map[string]func(*Cluster){
		"Service": func(c *Cluster) { c.withService(selector) },
		"ReplicationController": func(c *Cluster) {
			c.AddReplicationController(&schedulingv1.ReplicationController{
				Metadata: meta, Spec: &schedulingv1.ReplicationControllerSpec{Selector: selector},
			})
		},
		"ReplicaSet": func(c *Cluster) {
			c.AddReplicaSet(&schedulingv1.ReplicaSet{
				Metadata: meta, Spec: &schedulingv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}},
			})
		},
		"StatefulSet": func(c *Cluster) {
			c.AddStatefulSet(&schedulingv1.StatefulSet{
				Metadata: meta, Spec: &schedulingv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}},
			})
		},
	} {
		c := clusterOf(newNode("a"), newNode("b"), newNode("c")).with(web("a", "a", "b")...)
		policy := Policy(&schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{weighted("SelectorSpreadPriority")}})
		if best, _, _ := nodesFor(c, policy, newPod("p", carrying("app", "web"))); len(best) != 3 {
			t.Errorf("without a %s: best are %q, want all nodes", name, best)
		}
		add(c)
		if best, _, _ := nodesFor(c, policy, newPod("p", carrying("app", "web"))); !slices.Equal(best, []string{"c"}) {
			t.Errorf("%s: best are %q, want the node with the fewest pods, c", name, best)
		}
	}
}

// TestDevelopersReachTheirRegionsAndNoSingleOne is the document's example of five data centers in two regions.
func TestDevelopersReachTheirRegionsAndNoSingleOne(t *testing.T) {
	list := func(s ...any) *structpb.Value {
		l, err := structpb.NewList(s)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(l)
	}
	config := &schedulingv1.AdmissionConfig{AdmissionConfig: &schedulingv1.AdmissionPlugins{
		PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{
			nodeConstraintsPlugin: {Configuration: &structpb.Struct{Fields: map[string]*structpb.Value{
				"nodeSelectorLabelBlacklist": list("kubernetes.io/hostname", "region"),
			}}},
			nodeSelectorPlugin: {Configuration: &structpb.Struct{}},
		},
	}}
	project := &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: "us", Annotations: map[string]string{
		nodeSelectorAnnotation: "superregion=us",
	}}}
	centers := clusterOf(labelledNode("n1", "region=us-east superregion=us"),
		labelledNode("n2", "region=us-central superregion=us"),
		labelledNode("n3", "region=us-west superregion=us"), labelledNode("n4", "region=apac-east superregion=apac"),
		labelledNode("n5", "region=apac-west superregion=apac"))
	view := AdmissionView{Pod: newPod("p", selecting("region", "us-east")), Namespace: project, Admission: config}
	if got := Admit(view); !strings.HasPrefix(got.Forbidden, "spec.nodeSelector['region']") {
		t.Errorf("a developer who asks for a region gets %q", got.Forbidden)
	}
	view.MayBind = true
	if got := Admit(view); got.Forbidden != "" {
		t.Errorf("an administrator who asks for a region gets %q", got.Forbidden)
	} else if _, fitting, _ := nodesFor(centers, Policy(nil), got.Pod); !slices.Equal(fitting, []string{"n1"}) {
		t.Errorf("the administrator's pod fits on %q, want n1", fitting)
	}
	view.MayBind, view.Pod = false, newPod("p")
	got := Admit(view)
	if _, fitting, _ := nodesFor(centers, Policy(nil), got.Pod); !slices.Equal(fitting, []string{"n1", "n2", "n3"}) {
		t.Errorf("a pod of the project fits on %q, want the nodes of superregion=us: %s", fitting, got.Forbidden)
	}
}

// TestDaemonPodsOnTheHostsNetworkTolerateThatItIsUnavailable is the last of the document's tolerations of daemon sets.
func TestDaemonPodsOnTheHostsNetworkTolerateThatItIsUnavailable(t *testing.T) {
	const want = "node.kubernetes.io/network-unavailable Exists NoSchedule"
	for _, host := range []bool{false, true} {
		yes := true
		p := newPod("p", func(p *schedulingv1.Pod) {
			p.Metadata.OwnerReferences = []*metav1.OwnerReference{{Kind: "DaemonSet", Controller: &yes}}
			p.Spec.HostNetwork = &host
		})
		if got := bears(admit(p).Pod); slices.Contains(got, want) != host {
			t.Errorf("host network %v: the pod bears %q", host, got)
		}
	}
}
