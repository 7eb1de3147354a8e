package plan

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// scene is a cluster, a policy and pods to place.
type scene struct {
	nodes  []*nodev1.Node
	bound  []*schedulingv1.Pod
	pods   []*schedulingv1.Pod
	policy *schedulingv1.Policy
}

func (s scene) cluster() *Cluster {
	c := clusterOf(s.nodes...).with(s.bound...)
	c.withService(map[string]string{"app": "web"})
	c.AddReplicaSet(&schedulingv1.ReplicaSet{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "db"},
		Spec: &schedulingv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		},
	})
	return c
}

func scenes() *rapid.Generator[scene] {
	return rapid.Custom(func(t *rapid.T) scene {
		var s scene
		alike := rapid.Bool().Draw(t, "alike")
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			if i > 0 && alike && rapid.IntRange(0, 3).Draw(t, "another") > 0 {
				n := proto.CloneOf(s.nodes[0])
				n.Metadata.Name = fmt.Sprint("node-", i)
				n.Metadata.Labels["kubernetes.io/hostname"] = n.Metadata.Name
				s.nodes = append(s.nodes, n)
				continue
			}
			s.nodes = append(s.nodes, drawNode(t, i))
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "bound") {
			p := drawPod(t, fmt.Sprint("bound-", i))
			p.Spec.NodeName = fmt.Sprint("node-", rapid.IntRange(0, 9).Draw(t, "on"))
			s.bound = append(s.bound, p)
		}
		templates := []*schedulingv1.Pod{drawPod(t, "x"), drawPod(t, "y"), drawPod(t, "z")}
		for i := range rapid.IntRange(1, 12).Draw(t, "pods") {
			p := proto.Clone(rapid.SampledFrom(templates).Draw(t, "template")).(*schedulingv1.Pod)
			p.Metadata.Name = fmt.Sprintf("p-%02d", i)
			s.pods = append(s.pods, p)
		}
		if rapid.Bool().Draw(t, "policy") {
			s.policy = &schedulingv1.Policy{AlwaysCheckAllPredicates: proto.Bool(rapid.Bool().Draw(t, "all"))}
			priorities := rapid.SampledFrom([]string{
				"LeastRequestedPriority", "MostRequestedPriority", "SelectorSpreadPriority", "EqualPriority",
				"InterPodAffinityPriority", "ServiceSpreadingPriority", "EvenPodsSpreadPriority",
				"NodePreferAvoidPodsPriority",
			})
			for _, name := range rapid.SliceOfDistinct(priorities, rapid.ID).Draw(t, "priorities") {
				s.policy.Priorities = append(s.policy.Priorities, &schedulingv1.PriorityPolicy{
					Name: name, Weight: proto.Int32(rapid.Int32Range(1, 3).Draw(t, "weight")),
				})
			}
		}
		return s
	})
}

func drawNode(t *rapid.T, i int) *nodev1.Node {
	n := newNode(fmt.Sprint("node-", i), having("cpu", rapid.SampledFrom([]string{"1", "2", "4"}).Draw(t, "cpu")),
		having("pods", rapid.SampledFrom([]string{"2", "5", "110"}).Draw(t, "room")))
	for _, label := range []string{"region", "zone", "disk", placement.ZoneLabel} {
		if v := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, label); v != "" {
			n.Metadata.Labels[label] = v
		}
	}
	for _, effect := range []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} {
		if rapid.IntRange(0, 4).Draw(t, effect) == 0 {
			tainted(effect, "v", effect)(n)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "cordoned") == 0 {
		cordoned(n)
	}
	if rapid.IntRange(0, 2).Draw(t, "avoided") == 0 {
		n.Metadata.Annotations = map[string]string{avoidAnnotation: avoidsU1}
	}
	return n
}

// avoidsU1 has a node avoided by the pods of the replica set that some pods belong to.
const avoidsU1 = `{"preferAvoidPods":[{"podSignature":{"podController":{"kind":"ReplicaSet","uid":"u1"}}}]}`

func drawPod(t *rapid.T, name string) *schedulingv1.Pod {
	some := func(label string) bool { return rapid.IntRange(0, 3).Draw(t, label) == 0 }
	p := newPod(name, carrying("app", rapid.SampledFrom([]string{"web", "db", "none"}).Draw(t, "app")))
	if !some("asks nothing") {
		asking("cpu", rapid.SampledFrom([]string{"0", "300m", "1", "1500m"}).Draw(t, "cpu"))(p)
	}
	if some("selects") {
		selecting(rapid.SampledFrom([]string{"disk", "region"}).Draw(t, "by"), rapid.SampledFrom([]string{"1", "2"}).Draw(t,
			"value"))(p)
	}
	if some("tolerates") {
		bearing(rapid.SampledFrom([]string{"NoSchedule", "NoExecute", "PreferNoSchedule", ""}).Draw(t, "bears"), "")(p)
	}
	if some("port") {
		taking(80)(p)
	}
	if some("disk") {
		mounting(gcePD, map[string]any{
			"pdName": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "of"), "readOnly": some("reads"),
		})(p)
	}
	if some("owned") {
		p.Metadata.OwnerReferences = []*metav1.OwnerReference{{Kind: kindReplicaSet, Uid: "u1", Controller: proto.Bool(true)}}
	}
	term := func() *schedulingv1.PodAffinityTerm {
		return &schedulingv1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": rapid.SampledFrom([]string{"web", "db"}).Draw(t, "of")},
			},
			TopologyKey: rapid.SampledFrom([]string{"kubernetes.io/hostname", "zone", "disk"}).Draw(t, "topology"),
		}
	}
	p.Spec.Affinity = &schedulingv1.Affinity{}
	if some("near") {
		p.Spec.Affinity.PodAffinity = &schedulingv1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{term()},
		}
	}
	if some("away") {
		p.Spec.Affinity.PodAntiAffinity = &schedulingv1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{term()},
		}
	}
	if some("rather near") {
		p.Spec.Affinity.PodAffinity = &schedulingv1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.WeightedPodAffinityTerm{
				{Weight: 5, PodAffinityTerm: term()},
			},
		}
	}
	if some("preferences") {
		p.Spec.Affinity.NodeAffinity = &schedulingv1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PreferredSchedulingTerm{
				{Weight: 3, Preference: &schedulingv1.NodeSelectorTerm{MatchExpressions: []*schedulingv1.NodeSelectorRequirement{
					{Key: "disk", Operator: "Exists"},
				}}},
			},
		}
	}
	for i := range rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, "constraints") {
		drawSpread(t, p, i)
	}
	return p
}

// drawSpread adds a constraint on the spread.
func drawSpread(t *rapid.T, p *schedulingv1.Pod, i int) {
	c := map[string]any{
		"maxSkew":           rapid.IntRange(1, 2).Draw(t, "skew"),
		"topologyKey":       []string{"kubernetes.io/hostname", "zone", "disk"}[i],
		"whenUnsatisfiable": rapid.SampledFrom([]string{doNotSchedule, scheduleAnyway}).Draw(t, "unsatisfiable"),
	}
	set := func(field string, value any) {
		if rapid.IntRange(0, 2).Draw(t, field) == 0 {
			c[field] = value
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "selects") > 0 {
		selector := map[string]any{}
		if rapid.IntRange(0, 4).Draw(t, "something") > 0 {
			selector["matchLabels"] = map[string]any{"app": rapid.SampledFrom([]string{"web", "db"}).Draw(t, "of")}
		} else {
			set("matchLabelKeys", []any{"app"})
		}
		c["labelSelector"] = selector
	}
	if c["whenUnsatisfiable"] == doNotSchedule {
		set("minDomains", rapid.IntRange(1, 3).Draw(t, "domains"))
	}
	set("nodeAffinityPolicy", rapid.SampledFrom([]string{honor, ignore}).Draw(t, "affinity"))
	set("nodeTaintsPolicy", rapid.SampledFrom([]string{honor, ignore}).Draw(t, "taints"))
	spreading(c)(p)
}

// spreading adds an element of topologySpreadConstraints.
func spreading(constraint map[string]any) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		c, err := structpb.NewStruct(constraint)
		if err != nil {
			panic(err)
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

// obeys checks a placed pod against the rules without the cluster's own book-keeping.
func obeys(t *rapid.T, s scene, placed []Decision) {
	for _, n := range s.nodes {
		has, room := placement.Allocatable(n)
		var here []*schedulingv1.Pod
		var used placement.Resources
		for _, b := range s.bound {
			if b.GetSpec().GetNodeName() == n.GetMetadata().GetName() {
				here = append(here, b)
				used.Add(placement.RequestsOf(b.GetSpec()))
			}
		}
		for _, d := range placed {
			if d.Node != n.GetMetadata().GetName() {
				continue
			}
			spec := d.Pod.GetSpec()
			asked := placement.RequestsOf(spec)
			used.Add(asked)
			switch {
			case int64(len(here)) >= room, !asked.Zero() && (used.MilliCPU > has.MilliCPU || used.Memory > has.Memory):
				t.Fatalf("%s overcommits %s", d.Pod.GetMetadata().GetName(), d.Node)
			case !placement.MatchesNode(spec, n):
				t.Fatalf("%s did not ask for %s", d.Pod.GetMetadata().GetName(), d.Node)
			case placement.Untolerated(spec.GetTolerations(), n.GetSpec().GetTaints(), placement.NoSchedule,
				placement.NoExecute) != nil:
				t.Fatalf("%s does not bear the taints of %s", d.Pod.GetMetadata().GetName(), d.Node)
			case n.GetSpec().GetUnschedulable() && !placement.Tolerates(spec.GetTolerations(),
				&nodev1.Taint{Key: placement.UnschedulableTaint, Effect: placement.NoSchedule}):
				t.Fatalf("%s is cordoned", d.Node)
			}
			for _, other := range here {
				for _, d := range disksOf(spec) {
					if slices.ContainsFunc(disksOf(other.GetSpec()), d.conflicts) {
						t.Fatalf("%s and %s want one disk", d.id, other.GetMetadata().GetName())
					}
				}
				if _, clash := placement.FirstClash(placement.HostPorts(spec), placement.HostPorts(other.GetSpec())); clash {
					t.Fatalf("%s and %s want one port", d.Pod.GetMetadata().GetName(), other.GetMetadata().GetName())
				}
				for _, term := range spec.GetAffinity().GetPodAntiAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution() {
					_, known := n.GetMetadata().GetLabels()[term.GetTopologyKey()]
					if known && term.GetLabelSelector().GetMatchLabels()["app"] == other.GetMetadata().GetLabels()["app"] {
						t.Fatalf("%s keeps away from %s", d.Pod.GetMetadata().GetName(), other.GetMetadata().GetName())
					}
				}
			}
			here = append(here, d.Pod)
		}
	}
}

func TestNoNodeIsOvercommittedAndEveryRuleHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		var turn uint64
		obeys(t, s, placeAll(s.cluster(), Policy(s.policy), s.pods, &turn))
	})
}

func TestPlacingTogetherIsPlacingOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		profile := Policy(s.policy)
		var together, apart uint64
		c := s.cluster()
		all := placeAll(s.cluster(), profile, s.pods, &together)
		for _, d := range all {
			one := placeAll(c, profile, []*schedulingv1.Pod{d.Pod}, &apart)[0]
			if one.Node != d.Node {
				t.Fatalf("%s: %q together, %q apart", d.Pod.GetMetadata().GetName(), d.Node, one.Node)
			}
		}
	})
}

func TestExplainAgreesWithPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		c, profile := s.cluster(), Policy(s.policy)
		turn := rapid.Uint64Range(0, 7).Draw(t, "turn")
		for _, p := range s.pods {
			why := Explain(c, profile, p, turn)
			d := placeAll(c, profile, []*schedulingv1.Pod{p}, &turn)[0]
			if why.GetBest() != d.Node || d.Node == "" && why.GetMessage() != d.Message {
				t.Fatalf("%s: explained %q (%s), placed %q (%s)", p.GetMetadata().GetName(), why.GetBest(), why.GetMessage(),
					d.Node, d.Message)
			}
			for _, v := range why.GetNodes() {
				if v.GetFits() != (len(v.GetFailures()) == 0) {
					t.Fatalf("%s fits = %v with %v", v.GetNode(), v.GetFits(), v.GetFailures())
				}
				if v.GetFits() && v.GetTotal() > why.GetNodes()[0].GetTotal() {
					t.Fatalf("%s is better than the best, %s", v.GetNode(), d.Node)
				}
				for _, score := range v.GetScores() {
					if score.GetScore() < 0 || score.GetScore() > best {
						t.Fatalf("%s scores %d", score.GetPriority(), score.GetScore())
					}
				}
			}
		}
	})
}

func TestWhatComesAndGoesLeavesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		c, profile := s.cluster(), Policy(s.policy)
		var turn uint64
		for _, d := range placeAll(c, profile, s.pods, &turn) {
			c.RemovePod("default", d.Pod.GetMetadata().GetName())
		}
		fresh := s.cluster()
		for i, n := range c.nodes {
			want := fresh.nodes[i]
			if n.cpu != want.cpu || n.memory != want.memory || n.used.MilliCPU != want.used.MilliCPU ||
				len(n.pods) != len(want.pods) || len(n.ports) != len(want.ports) {
				t.Fatalf("%s: %+v, want %+v", n.name, n, want)
			}
		}
		for id, g := range c.groups {
			if again := fresh.recount(g); !slices.Equal(again, g.counts[:min(len(again), len(g.counts))]) {
				t.Fatalf("group %q counts %v, want %v", id, g.counts, again)
			}
		}
	})
}

// recount counts the pods of a group by their nodes.
func (c *Cluster) recount(g *group) []int32 {
	again := &group{namespace: g.namespace, selectors: g.selectors, counts: make([]int32, len(g.counts))}
	for _, b := range c.pods {
		if b.node != nil && again.selects(b) {
			again.add(b.node.slot, 1)
		}
	}
	return again.counts
}
