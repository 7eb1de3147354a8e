package plan

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// policyOf reads a document that is a policy or a part of one.
func policyOf(t *testing.T, file string) *schedulingv1.Policy {
	policy := &schedulingv1.Policy{}
	switch {
	case strings.Contains(file, "-PredicatePolicy"):
		one := &schedulingv1.PredicatePolicy{}
		read(t, file, one)
		policy.Predicates = append(policy.Predicates, one)
	case strings.Contains(file, "-PriorityPolicy"):
		one := &schedulingv1.PriorityPolicy{}
		read(t, file, one)
		policy.Priorities = append(policy.Priorities, one)
	default:
		read(t, file, policy)
	}
	return policy
}

func TestEveryPolicyOfTheDocumentIsRight(t *testing.T) {
	files, err := filepath.Glob("testdata/004-*-P*[ys].[jy]*") // Policy, PredicatePolicy, PolicyPredicates and so on
	if err != nil || len(files) != 44 {
		t.Fatalf("%d policies, want 44: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			policy := policyOf(t, file)
			if fields := CheckPolicy(policy); len(fields) > 0 {
				t.Errorf("wrong fields: %v", fields)
			}
			p := Policy(policy)
			if n := len(policy.GetPredicates()); n > 0 && len(p.predicates) < n {
				t.Errorf("%d predicates became %d", n, len(p.predicates))
			}
			if n := len(policy.GetPriorities()); n > 0 && len(p.priorities) != n {
				t.Errorf("%d priorities became %d", n, len(p.priorities))
			}
		})
	}
}

func TestTheDefaultsAreThoseOfTheDocument(t *testing.T) {
	document, built := Policy(load(t, "004-01", &schedulingv1.Policy{})), Policy(nil)
	names := func(p *Profile) (out []string) {
		for _, one := range p.predicates {
			// The first is newer than the document, which says of the other that the default scheduler has it.
			if one.name != "CheckNodePIDPressure" && one.name != "CheckVolumeBinding" {
				out = append(out, one.name)
			}
		}
		return out
	}
	if diff := cmp.Diff(names(document), names(built)); diff != "" {
		t.Errorf("predicates (-document +built in):\n%s", diff)
	}
	newer := slices.DeleteFunc(built.priorities, func(p priority) bool { return p.name == "EvenPodsSpreadPriority" })
	same := cmp.Options{
		cmp.AllowUnexported(priority{}),
		cmp.Transformer("names", func(r *rank) []string { return append(r.names, r.arguments...) }),
	}
	if diff := cmp.Diff(document.priorities, newer, same); diff != "" {
		t.Errorf("priorities (-document +built in):\n%s", diff)
	}
}

// The document's default policy, with one of its lists emptied or left out. The two predicates that are always checked
// come in addition.
func TestAnEmptyListOfThePolicyFileMeansNone(t *testing.T) {
	sample := load(t, "004-01", &schedulingv1.Policy{})
	for _, tt := range []struct {
		name                   string
		change                 func(*schedulingv1.Policy)
		predicates, priorities int
	}{
		{
			"predicates: []", func(p *schedulingv1.Policy) { p.Predicates, p.NoPredicates = nil, true },
			2, len(sample.GetPriorities()),
		},
		{
			"priorities: []", func(p *schedulingv1.Policy) { p.Priorities, p.NoPriorities = nil, true },
			len(sample.GetPredicates()) + 2, 0,
		},
		{
			"no predicates", func(p *schedulingv1.Policy) { p.Predicates = nil },
			len(Policy(nil).predicates), len(sample.GetPriorities()),
		},
		{
			"no priorities", func(p *schedulingv1.Policy) { p.Priorities = nil },
			len(sample.GetPredicates()) + 2, len(Policy(nil).priorities),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			policy := proto.CloneOf(sample)
			tt.change(policy)
			text, err := manifest.Encode(policy)
			if err != nil {
				t.Fatal(err)
			}
			stored := &schedulingv1.Policy{} // as it is after it went through a file
			if err := manifest.Decode(text, stored); err != nil {
				t.Fatal(err)
			}
			if fields := CheckPolicy(stored); len(fields) > 0 {
				t.Errorf("wrong fields: %v", fields)
			}
			if p := Policy(stored); len(p.predicates) != tt.predicates || len(p.priorities) != tt.priorities {
				t.Errorf("%d predicates and %d priorities, want %d and %d", len(p.predicates), len(p.priorities),
					tt.predicates, tt.priorities)
			}
		})
	}
}

func TestWithoutPredicatesOnlyTheConditionsOfANodeCount(t *testing.T) {
	tainted := newNode("tainted")
	tainted.Spec.Taints = []*nodev1.Taint{{Key: "dedicated", Effect: "NoSchedule"}}
	down := newNode("down")
	down.Status.Conditions = []*nodev1.NodeCondition{{Type: "Ready", Status: "False"}}
	pod := newPod("a", func(p *schedulingv1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	for name, tt := range map[string]struct {
		policy *schedulingv1.Policy
		want   string
	}{
		"none":        {&schedulingv1.Policy{NoPredicates: true, NoPriorities: true}, "tainted"},
		"the default": {&schedulingv1.Policy{}, ""},
	} {
		var turn uint64
		got := placeAll(clusterOf(down, tainted), Policy(tt.policy), []*schedulingv1.Pod{pod}, &turn)
		if got[0].Node != tt.want {
			t.Errorf("%s: the pod goes to %q, want %q: %s", name, got[0].Node, tt.want, got[0].Message)
		}
	}
}

var write = flag.Bool("write", false, "write the tables of docs/scheduler.md")

// The tables of docs/scheduler.md are those of the code: `go test ./services/scheduler/placement/plan -run Docs
// -write`.
func TestTheDocsListEveryPredicateAndPriority(t *testing.T) {
	quoted := func(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }
	yes := map[bool]string{true: "yes"}
	predicates := "| predicate | the node | by default | built |\n|---|---|---|---|\n"
	for _, f := range filters() {
		predicates += fmt.Sprintf("| %s | %s | %s | %s |\n", quoted(f.names), f.about, yes[f.byDefault || f.always],
			"yes")
	}
	priorities := "| priority, or argument | prefers | default weight |\n|---|---|---|\n"
	for _, r := range ranks() {
		weight := ""
		if r.weight > 0 {
			weight = strconv.FormatInt(r.weight, 10)
		}
		priorities += fmt.Sprintf("| %s | %s | %s |\n", quoted(append(r.names, r.arguments...)), r.about, weight)
	}
	const page, begin, end = "../../../../docs/scheduler.md", "<!-- predicates and priorities -->\n",
		"<!-- end of them -->\n"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	have, after, is := strings.Cut(rest, end)
	if !ok || !is {
		t.Fatalf("%s has no place for the tables", page)
	}
	want := "\n" + predicates + "\n" + priorities + "\n"
	if *write {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s is not as the tables of the code: run the test with -write (-want +got):\n%s", page, diff)
	}
}

// A row that lacks its function would pass every node, or fail at the first pod.
func TestEveryRowHasItsFunctions(t *testing.T) {
	for _, f := range filters() {
		if checks := f.node != nil || f.usage != nil || f.others != nil; !checks || f.about == "" {
			t.Errorf("%s: a predicate has a check and is described", f.names[0])
		}
	}
	for _, r := range ranks() {
		if compares := r.look != nil && r.compare != nil; compares == (r.alone != nil) || r.about == "" {
			t.Errorf("%q: a priority reads a node alone or compares nodes, and is described", append(r.names, r.arguments...))
		}
		if len(r.names)+len(r.arguments) == 0 {
			t.Errorf("a priority that prefers %s has no name", r.about)
		}
	}
}

func TestCheckPolicy(t *testing.T) {
	service, presence := &schedulingv1.ServiceAffinity{Labels: []string{"rack"}}, &schedulingv1.LabelsPresence{
		Labels: []string{"rack"},
	}
	one := proto.Int32(1)
	tests := []struct {
		name   string
		policy *schedulingv1.Policy
		paths  []string
		says   string
	}{
		{"a predicate that no document knows", &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{
			{Name: "PodFitsMood"},
		}}, []string{"predicates[0].name"}, "known are CheckNodeCondition, "},
		{"a priority that no document knows", &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
			{Name: "Favourite", Weight: one},
		}}, []string{"priorities[0].name"}, "LeastRequestedPriority"},
		{"a priority without a weight", &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
			{Name: "EqualPriority"},
		}}, []string{"priorities[0].weight"}, "1 or more"},
		{"a weight of 0", &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
			{Name: "EqualPriority", Weight: proto.Int32(0)},
		}}, []string{"priorities[0].weight"}, "1 or more"},
		{"weights beyond what a score can hold", &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
			{Name: "EqualPriority", Weight: proto.Int32(200_000_000)},
			{Name: "LeastRequestedPriority", Weight: proto.Int32(200_000_000)},
		}}, []string{"priorities[1].weight"}, "the weights together"},
		{"two arguments at once", &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{
			{Name: "a", Argument: &schedulingv1.PredicateArgument{ServiceAffinity: service, LabelsPresence: presence}},
		}}, []string{"predicates[0].argument"}, "not both"},
		{"an empty argument", &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{
			{Name: "a", Argument: &schedulingv1.PredicateArgument{}},
		}}, []string{"predicates[0].argument"}, "serviceAffinity or labelsPresence"},
		{"an argument without labels", &schedulingv1.Policy{Priorities: []*schedulingv1.PriorityPolicy{
			{Name: "a", Weight: one, Argument: &schedulingv1.PriorityArgument{
				ServiceAntiAffinity: &schedulingv1.ServiceAntiAffinity{},
			}},
		}}, []string{"priorities[0].argument.serviceAntiAffinity.label"}, "must name a label"},
		{"predicates, and none", &schedulingv1.Policy{
			Predicates: []*schedulingv1.PredicatePolicy{{Name: "HostName"}}, NoPredicates: true,
		}, []string{"noPredicates"}, "must not be true"},
		{"priorities, and none", &schedulingv1.Policy{
			Priorities: []*schedulingv1.PriorityPolicy{{Name: "EqualPriority", Weight: one}}, NoPriorities: true,
		}, []string{"noPriorities"}, "must not be true"},
		{"a name twice", &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{
			{Name: "HostName"}, {Name: "HostName"},
		}}, []string{"predicates[1].name"}, "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fields := CheckPolicy(tt.policy)
			var paths []string
			for _, f := range fields {
				paths = append(paths, f.Path)
			}
			if diff := cmp.Diff(tt.paths, paths); diff != "" || !strings.Contains(fields[0].Description, tt.says) {
				t.Errorf("(-want +got):\n%s\n%v", diff, fields)
			}
		})
	}
}

func TestTheConditionInForceNamesWhatIsNot(t *testing.T) {
	if c := InForce([]string{"extenders"}); c.GetStatus() != "False" || !strings.Contains(c.GetMessage(), "extenders") {
		t.Errorf("condition: %v", c)
	}
	if c := InForce(nil); c.GetStatus() != "True" {
		t.Errorf("condition: %v", c)
	}
}
