package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// scores returns the raw scores of the nodes that fit by one priority, under a policy that has it alone.
func scores(c *Cluster, p *schedulingv1.PriorityPolicy, pod *schedulingv1.Pod) map[string]int32 {
	p.Weight = proto.Int32(1)
	out := map[string]int32{}
	for _, v := range Explain(c, Policy(&schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{p}}), pod,
		0).GetNodes() {
		if v.GetFits() {
			out[v.GetNode()] = v.GetScores()[0].GetScore()
		}
	}
	return out
}

func named(name string) *schedulingv1.PriorityPolicy { return &schedulingv1.PriorityPolicy{Name: name} }

func zoned(zone string) func(*nodev1.Node) { return labelled(placement.OldZoneLabel, zone) }

// web returns pods of the service web on nodes, one for each.
func web(nodes ...string) (out []*schedulingv1.Pod) {
	for i, n := range nodes {
		out = append(out, newPod(fmt.Sprint("web-", i), carrying("app", "web"), on(n)))
	}
	return out
}

func TestScores(t *testing.T) {
	selector := map[string]string{"app": "web"}
	owned := func(p *schedulingv1.Pod) {
		p.Metadata.OwnerReferences = []*metav1.OwnerReference{{Kind: "ReplicaSet", Uid: "u1", Controller: proto.Bool(true)}}
	}
	avoiding := func(n *nodev1.Node) {
		n.Metadata.Annotations = map[string]string{
			avoidAnnotation: `{"preferAvoidPods":[{"podSignature":{"podController":{"kind":"ReplicaSet","uid":"u1"}}}]}`,
		}
	}
	image := func(mib float64) func(*nodev1.Node) {
		return func(n *nodev1.Node) {
			n.Status.Images = []*nodev1.ContainerImage{
				{Names: []string{"docker.io/ocpqe/hello-pod:latest"}, SizeBytes: mib * (1 << 20)},
			}
		}
	}
	half := newPod("q", asking("cpu", "2"), asking("memory", "2Gi"), on("a"))
	near := func(weight int32) func(*schedulingv1.Pod) {
		return func(p *schedulingv1.Pod) {
			p.Spec.Affinity = &schedulingv1.Affinity{
				PodAffinity: &schedulingv1.PodAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.WeightedPodAffinityTerm{
						{Weight: weight, PodAffinityTerm: &schedulingv1.PodAffinityTerm{
							TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: selector},
						}},
					},
				},
			}
		}
	}
	tests := []struct {
		name     string
		cluster  *Cluster
		priority *schedulingv1.PriorityPolicy
		pod      *schedulingv1.Pod
		want     map[string]int32
	}{
		{
			"least requested is the mean of what is left", clusterOf(newNode("a"), newNode("b")).with(half),
			named("LeastRequestedPriority"), newPod("p", asking("cpu", "1"), asking("memory", "2Gi")),
			map[string]int32{"a": 3, "b": 7},
		},
		{
			"most requested is the mean of what is taken", clusterOf(newNode("a"), newNode("b")).with(half),
			named("MostRequestedPriority"), newPod("p", asking("cpu", "1"), asking("memory", "2Gi")),
			map[string]int32{"a": 6, "b": 2},
		},
		{
			"who does not say counts for 100m and 200Mi",
			clusterOf(newNode("a", having("cpu", "200m"), having("memory", "400Mi"))), named("LeastRequestedPriority"),
			newPod("p"),
			map[string]int32{"a": 5},
		},
		{
			"balanced is best where cpu and memory go alike", clusterOf(newNode("a"), newNode("b", having("memory", "4Gi"))),
			named("BalancedResourceAllocation"), newPod("p", asking("cpu", "2"), asking("memory", "2Gi")),
			map[string]int32{"a": 7, "b": 10},
		},
		{
			"pods of a service spread over nodes", clusterOf(newNode("a"), newNode("b"), newNode("c")).withService(
				selector).with(web("a", "a", "b")...), named("ServiceSpreadingPriority"), newPod("p", carrying("app", "web")),
			map[string]int32{"a": 0, "b": 5, "c": 10},
		},
		{
			"zones count two thirds", clusterOf(newNode("a", zoned("1")), newNode("b", zoned("1")), newNode("c", zoned("2")),
				newNode("d")).withService(selector).with(web("a", "a", "c")...), named("SelectorSpreadPriority"),
			newPod("p", carrying("app", "web")),
			map[string]int32{"a": 0, "b": 3, "c": 5, "d": 10},
		},
		{
			"whom nothing selects gets all", clusterOf(newNode("a")).with(web("a")...), named("SelectorSpreadPriority"),
			newPod("p", carrying("app", "web")),
			map[string]int32{"a": 10},
		},
		{"service anti-affinity spreads over values of a label", clusterOf(newNode("a", labelled("rack", "1")),
			newNode("b", labelled("rack", "1")), newNode("c", labelled("rack", "2")), newNode("d")).withService(selector).with(
			web("a", "b", "c", "d")...), &schedulingv1.PriorityPolicy{
			Name: "RackSpread", Argument: &schedulingv1.PriorityArgument{ServiceAntiAffinity: &schedulingv1.ServiceAntiAffinity{
				Labels: []string{"rack"},
			}},
		}, newPod("p", carrying("app", "web")), map[string]int32{"a": 5, "b": 5, "c": 7, "d": 0}},
		{"without pods of the service every node with the label gets all", clusterOf(newNode("a", labelled("rack", "1")),
			newNode("b")).withService(selector), &schedulingv1.PriorityPolicy{
			Name: "RackSpread", Argument: &schedulingv1.PriorityArgument{ServiceAffinity: &schedulingv1.ServiceAffinity{
				Labels: []string{"rack"},
			}},
		}, newPod("p", carrying("app", "web")), map[string]int32{"a": 10, "b": 0}},
		{"a label that is liked", clusterOf(newNode("a", labelled("zone", "1")), newNode("b")), &schedulingv1.PriorityPolicy{
			Name: "ZonePreferred", Argument: &schedulingv1.PriorityArgument{LabelPreference: &schedulingv1.LabelPreference{
				Label: "zone", Presence: proto.Bool(true),
			}},
		}, newPod("p"), map[string]int32{"a": 10, "b": 0}},
		{
			"mild taints are counted and compared",
			clusterOf(newNode("a", tainted("k", "", "PreferNoSchedule"), tainted("l", "", "PreferNoSchedule")),
				newNode("b", tainted("k", "", "PreferNoSchedule")), newNode("c")), named("TaintTolerationPriority"), newPod("p"),
			map[string]int32{"a": 0, "b": 5, "c": 10},
		},
		{
			"a controller that is to be avoided", clusterOf(newNode("a", avoiding), newNode("b")),
			named("NodePreferAvoidPodsPriority"), newPod("p", owned),
			map[string]int32{"a": 0, "b": 10},
		},
		{
			"images that are there, from 23 to 1000 MiB", clusterOf(newNode("a", image(22)), newNode("b", image(23)),
				newNode("c", image(1000)), newNode("d")), named("ImageLocalityPriority"), newPod("p"),
			map[string]int32{"a": 0, "b": 1, "c": 10, "d": 0},
		},
		{
			"rather near pods of a service", clusterOf(newNode("a", labelled("zone", "1")), newNode("b", labelled("zone", "2")),
				newNode("c", labelled("zone", "1"))).with(web("a")...), named("InterPodAffinityPriority"), newPod("p", near(5)),
			map[string]int32{"a": 10, "b": 0, "c": 10},
		},
		{
			"pods that run have preferences too", clusterOf(newNode("a", labelled("zone", "1")),
				newNode("b", labelled("zone", "2"))).with(newPod("q", near(5), on("b"))), named("InterPodAffinityPriority"),
			newPod("p", carrying("app", "web")),
			map[string]int32{"a": 0, "b": 10},
		},
		{
			"all nodes are equal", clusterOf(newNode("a"), newNode("b")), named("EqualPriority"), newPod("p"),
			map[string]int32{"a": 1, "b": 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, scores(tt.cluster, tt.priority, tt.pod)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWeightsDecide(t *testing.T) {
	policy := &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
		{Name: "LeastRequestedPriority", Weight: proto.Int32(1)}, {Name: "MostRequestedPriority", Weight: proto.Int32(2)},
	}}
	c := clusterOf(newNode("a"), newNode("b")).with(newPod("q", asking("cpu", "2"), on("a")))
	got := Explain(c, Policy(policy), newPod("p", asking("cpu", "1")), 0)
	if got.GetBest() != "a" {
		t.Errorf("best is %q, want a: %v", got.GetBest(), got.GetNodes())
	}
	for _, v := range got.GetNodes() {
		if s := v.GetScores(); v.GetTotal() != s[0].GetScore()+2*s[1].GetScore() || s[1].GetWeighted() != 2*s[1].GetScore() {
			t.Errorf("total of %s is %d: %v", v.GetNode(), v.GetTotal(), s)
		}
	}
}

func TestWhoFailedOnceIsLookedAtAgainWhenItsCompanyArrives(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b"))
	first, second := pod(t, "004-72"), pod(t, "004-72")
	first.Metadata.Name, second.Metadata.Name = "a-first", "z-second"
	company := pod(t, "004-71")
	company.Metadata.Name = "m-company"
	var turn uint64
	var got []string
	for _, d := range placeAll(c, Policy(nil), []*schedulingv1.Pod{first, second, company}, &turn) {
		got = append(got, d.Pod.GetMetadata().GetName()+" "+d.Node)
	}
	if diff := cmp.Diff([]string{"a-first ", "m-company a", "z-second a"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestServiceAffinityFollowsTheFirstPodByName(t *testing.T) {
	policy := load(t, "004-42", &schedulingv1.Policy{})
	c := clusterOf(newNode("a", labelled("city", "x")), newNode("b", labelled("city", "y"))).withService(map[string]string{
		"app": "web",
	})
	var turn uint64
	for _, d := range placeAll(c, Policy(policy), []*schedulingv1.Pod{
		newPod("p1", carrying("app", "web")),
		newPod("p2", carrying("app", "web")), newPod("p3", carrying("app", "web")),
	}, &turn) {
		if d.Node != "a" {
			t.Errorf("%s went to %q: %s", d.Pod.GetMetadata().GetName(), d.Node, d.Message)
		}
	}
	pinned := newPod("p4", carrying("app", "web"), selecting("city", "y"))
	if d := placeAll(c, Policy(policy), []*schedulingv1.Pod{pinned}, &turn)[0]; d.Node != "b" {
		t.Errorf("a pod that asks for a city itself went to %q: %s", d.Node, d.Message)
	}
}

func TestServiceAffinityFollowsAPodThatTerminates(t *testing.T) {
	policy := load(t, "004-42", &schedulingv1.Policy{})
	c := clusterOf(newNode("a", labelled("city", "x")), newNode("b", labelled("city", "y"))).withService(map[string]string{
		"app": "web",
	})
	c.AddPod(newPod("m", carrying("app", "web"), on("b"), func(p *schedulingv1.Pod) {
		p.Metadata.DeletionTimestamp = &timestamppb.Timestamp{Seconds: 1}
	}))
	for turn := range uint64(2) { // of equal nodes, each is taken in turn
		got := placeAll(c, Policy(policy), []*schedulingv1.Pod{newPod("p", carrying("app", "web"))}, &turn)
		if got[0].Node != "b" {
			t.Errorf("the pod went to %q: %s", got[0].Node, got[0].Message)
		}
		c.RemovePod("default", "p")
	}
}

func TestLabelPresence(t *testing.T) {
	policy := load(t, "004-44", &schedulingv1.Policy{})
	c := clusterOf(newNode("bare"), newNode("r", labelled("region", "1")),
		newNode("rb", labelled("region", "1"), labelled("building", "2")))
	got := Explain(c, Policy(policy), newPod("p"), 0)
	if got.GetBest() != "r" {
		t.Errorf("best is %q", got.GetBest())
	}
	fails := map[string]string{}
	for _, v := range got.GetNodes() {
		for _, f := range v.GetFailures() {
			fails[v.GetNode()] += f.GetPredicate() + ": " + f.GetReason()
		}
	}
	want := map[string]string{
		"bare": "RequireRegion: node(s) didn't have the requested labels: it lacks region",
		"rb":   "BuildingNodesAvoid: node(s) didn't have the requested labels: it has building",
	}
	if diff := cmp.Diff(want, fails); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhoFailedOnceIsLookedAtAgainWhenTheServiceIsFollowedElsewhere(t *testing.T) {
	policy := load(t, "004-42", &schedulingv1.Policy{})
	policy.Predicates = append(policy.Predicates, &schedulingv1.PredicatePolicy{Name: "GeneralPredicates"})
	c := clusterOf(newNode("a", labelled("city", "x")),
		newNode("b", labelled("city", "y"), having("cpu", "1"))).withService(map[string]string{"app": "web"})
	c.AddPod(newPod("m", carrying("app", "web"), on("b")))
	large := asking("cpu", "2")
	var turn uint64
	var got []string
	for _, d := range placeAll(c, Policy(policy), []*schedulingv1.Pod{
		newPod("b-first", carrying("app", "web"), large), newPod("c-pinned", carrying("app", "web"), selecting("city", "x")),
		newPod("d-second", carrying("app", "web"), large),
	}, &turn) {
		got = append(got, d.Pod.GetMetadata().GetName()+" "+d.Node)
	}
	if diff := cmp.Diff([]string{"b-first ", "c-pinned a", "d-second a"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
