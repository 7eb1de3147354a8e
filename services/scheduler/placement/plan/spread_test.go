package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// over returns a constraint that spreads pods with the label app=web.
func over(key, when string, more map[string]any) map[string]any {
	c := map[string]any{
		"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
		"labelSelector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
	}
	for name, value := range more {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}
	return c
}

// The nodes a and b are in zone 1, c is in zone 2, and d is in none.
func zones() *Cluster {
	return clusterOf(newNode("a", labelled("zone", "1")), newNode("b", labelled("zone", "1")),
		newNode("c", labelled("zone", "2"), tainted("dedicated", "x", "NoSchedule")), newNode("d"))
}

func TestSpreadingOverTopologies(t *testing.T) {
	must := func(more map[string]any) func(*schedulingv1.Pod) { return spreading(over("zone", doNotSchedule, more)) }
	tests := []struct {
		name    string
		cluster *Cluster
		pod     *schedulingv1.Pod
		want    string // the nodes that fit
	}{
		{"a node without the label does not fit", zones(), newPod("p", carrying("app", "web"), must(nil)), "a b"},
		{
			"a tainted node counts unless taints are honored", zones().with(web("a")...),
			newPod("p", carrying("app", "web"), must(nil)), "",
		},
		{
			"a tainted node does not count where taints are honored", zones().with(web("a")...),
			newPod("p", carrying("app", "web"), must(map[string]any{"nodeTaintsPolicy": honor})), "a b",
		},
		{
			"a taint that the pod tolerates counts", zones().with(web("a")...),
			newPod("p", carrying("app", "web"), bearing("dedicated", ""), must(map[string]any{"nodeTaintsPolicy": honor})), "c",
		},
		{
			"a node that the pod does not select does not count", zones().with(web("a", "a")...),
			newPod("p", carrying("app", "web"), selecting("zone", "1"), must(nil)), "a b",
		},
		{
			"a node that the pod does not select counts if affinity is ignored", zones().with(web("a", "a")...),
			newPod("p", carrying("app", "web"), selecting("zone", "1"), must(map[string]any{"nodeAffinityPolicy": ignore})), "",
		},
		{
			"a greater skew", zones().with(web("a")...),
			newPod("p", carrying("app", "web"), must(map[string]any{"maxSkew": 2})), "a b",
		},
		{
			"with fewer domains than there must be the fewest are none", zones().with(web("a", "c")...),
			newPod("p", carrying("app", "web"), must(map[string]any{"minDomains": 3})), "",
		},
		{
			"a pod that its own constraint does not select adds nothing", zones().with(web("a")...),
			newPod("p", carrying("app", "db"), must(nil)), "a b",
		},
		{
			"a missing selector selects no pod", zones().with(web("a", "b")...),
			newPod("p", carrying("app", "web"), must(map[string]any{"labelSelector": nil})), "a b",
		},
		{
			"pods that terminate, of other namespaces, and with other values of matchLabelKeys do not count",
			zones().with(func() []*schedulingv1.Pod {
				pods := append(web("a", "a", "a"), newPod("gone", on("a"), carrying("app", "web")))
				pods[0].Metadata.Namespace = "other"
				pods[1].Metadata.Labels["version"], pods[2].Metadata.Labels["version"] = "1", "2"
				pods[2].Metadata.DeletionTimestamp = timestamppb.New(start)
				return pods
			}()...),
			newPod("p", carrying("app", "web"), carrying("version", "2"), must(map[string]any{
				"matchLabelKeys": []any{"version", "missing"},
			})), "a b",
		},
		{
			"all constraints must be met, and a node counts only with all their labels",
			zones().with(web("a")...), newPod("p", carrying("app", "web"), bearing("dedicated", ""),
				must(map[string]any{"maxSkew": 2}), spreading(over(hostnameLabel, doNotSchedule, nil))), "b c",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var fit []string
			for _, v := range Explain(tt.cluster, Policy(nil), tt.pod, 0).GetNodes() {
				if v.GetFits() {
					fit = append(fit, v.GetNode())
				}
			}
			slices.Sort(fit)
			if got := strings.Join(fit, " "); got != tt.want {
				t.Errorf("fits %q, want %q", got, tt.want)
			}
		})
	}
}

func TestScoresOfTheSpread(t *testing.T) {
	rather := func(key string) func(*schedulingv1.Pod) { return spreading(over(key, scheduleAnyway, nil)) }
	untainted := func() *Cluster {
		c := zones()
		c.AddNode(newNode("c", labelled("zone", "2")))
		return c
	}
	for _, tt := range []struct {
		name string
		pod  *schedulingv1.Pod
		want map[string]int32
	}{
		// 3 pods in zone 1 count 3 ln 4 = 4, that of zone 2 counts 1.
		{"zones", newPod("p", rather("zone")), map[string]int32{"a": 2, "b": 2, "c": 10, "d": 0}},
		// 2, 1, 1 and 0 pods, each times ln 6, are 4, 2, 2 and 0.
		{"nodes", newPod("p", rather(hostnameLabel)), map[string]int32{"a": 0, "b": 5, "c": 5, "d": 10}},
		// 3 ln 4 + 2 ln 5 = 7, 3 ln 4 + ln 5 = 6, ln 4 + ln 5 = 3.
		{"both", newPod("p", rather("zone"), rather(hostnameLabel)), map[string]int32{"a": 4, "b": 5, "c": 10, "d": 0}},
		{"no constraint", newPod("p"), map[string]int32{"a": 0, "b": 0, "c": 0, "d": 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := scores(untainted().with(web("a", "a", "b", "c")...), named("EvenPodsSpreadPriority"), tt.pod)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsOfOneCallSpreadEvenly(t *testing.T) {
	for _, tt := range []struct {
		key    string
		values int // that a label of a place may have
		want   map[string]int
	}{
		{"zone", 64, map[string]int{"1": 4, "2": 4}},
		{"zone", 0, map[string]int{"1": 4, "2": 4}},
		{hostnameLabel, 64, map[string]int{"a": 2, "b": 2, "c": 2, "d": 2}},
		{hostnameLabel, 0, map[string]int{"a": 2, "b": 2, "c": 2, "d": 2}},
	} {
		c := zones()
		c.limits.values = tt.values
		c.AddNode(newNode("c", labelled("zone", "2")))
		var turn uint64
		per := map[string]int{}
		for _, name := range strings.Fields("p q r s t u v w") {
			pod := newPod(name, carrying("app", "web"), spreading(over(tt.key, doNotSchedule, nil)))
			for _, d := range placeAll(c, Policy(nil), []*schedulingv1.Pod{pod}, &turn) {
				if d.Node == "" {
					t.Fatalf("%s: %s", name, d.Message)
				}
				per[c.byName[d.Node].labels[tt.key]]++
			}
		}
		if diff := cmp.Diff(tt.want, per); diff != "" {
			t.Errorf("pods by %s (-want +got):\n%s", tt.key, diff)
		}
	}
}

func TestWhatIsWrongWithASpread(t *testing.T) {
	for _, tt := range []struct {
		name  string
		with  map[string]any
		field string // that is wrong
	}{
		{"nothing", nil, ""},
		{"no skew", map[string]any{"maxSkew": 0}, ".maxSkew"},
		{"half a skew", map[string]any{"maxSkew": 1.5}, ".maxSkew"},
		{"a skew that is a text", map[string]any{"maxSkew": "1"}, ".maxSkew"},
		{"no key", map[string]any{"topologyKey": nil}, ".topologyKey"},
		{"a key that is no label", map[string]any{"topologyKey": "a b"}, ".topologyKey"},
		{"no answer to what cannot be met", map[string]any{"whenUnsatisfiable": nil}, ".whenUnsatisfiable"},
		{"no domains", map[string]any{"minDomains": 0}, ".minDomains"},
		{
			"domains that nothing demands", map[string]any{"whenUnsatisfiable": scheduleAnyway, "minDomains": 2}, ".minDomains",
		},
		{"another policy", map[string]any{"nodeTaintsPolicy": "honor"}, ".nodeTaintsPolicy"},
		{"a field of another case", map[string]any{"MaxSkew": 1}, ".MaxSkew"},
		{
			"a selector with a wrong operator", map[string]any{"labelSelector": map[string]any{
				"matchExpressions": []any{map[string]any{"key": "a", "operator": "Gt"}},
			}}, ".labelSelector",
		},
		{"keys without a selector", map[string]any{"labelSelector": nil, "matchLabelKeys": []any{"a"}}, ".matchLabelKeys"},
		{"keys that the selector has", map[string]any{"matchLabelKeys": []any{"a", "app"}}, ".matchLabelKeys[1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPod("p", spreading(over("zone", doNotSchedule, tt.with)))
			var paths []string
			fields, _ := ValidateSpec("spec", p.GetSpec())
			for _, f := range fields {
				paths = append(paths, f.Path)
			}
			var want []string
			if tt.field != "" {
				want = []string{"spec.topologySpreadConstraints[0]" + tt.field}
			}
			if diff := cmp.Diff(want, paths); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, fields)
			}
		})
	}
	twice := newPod("p", spreading(over("zone", doNotSchedule, nil)), spreading(over("zone", doNotSchedule, nil)))
	if fields, _ := ValidateSpec("spec", twice.GetSpec()); len(fields) != 1 ||
		fields[0].Path != "spec.topologySpreadConstraints[1]" {
		t.Errorf("a constraint twice: %v", fields)
	}
}
