package kinds

import (
	"slices"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"google.golang.org/protobuf/proto"
)

// policyJob returns a job of a document whose spec begins with given lines.
func policyJob(t *testing.T, lines ...string) *schedulingv1.Job {
	t.Helper()
	j := &schedulingv1.Job{}
	doc := "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: j-, namespace: default}\nspec:\n  " +
		strings.Join(append(lines, "template:"), "\n  ") + `
    spec: {restartPolicy: Never, containers: [{name: main, image: pause}]}
`
	raw, err := manifest.JSON([]byte(doc))
	if err == nil {
		err = manifest.Decode(raw, j)
	}
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestPoliciesOfJobsAreChecked(t *testing.T) {
	tab := tables(t)
	const indexed = "completionMode: Indexed"
	rule := func(text string) string { return "podFailurePolicy: {rules: [{" + text + "}]}" }
	success := func(text string) string { return "successPolicy: {rules: [{" + text + "}]}" }
	const at, of = "spec.podFailurePolicy.rules[0]", "spec.successPolicy.rules[0]"
	for _, c := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{
			"exit codes",
			[]string{rule("action: FailJob, onExitCodes: {containerName: main, operator: In, values: [1, 42]}")},
			nil,
		},
		{"conditions", []string{rule("action: Ignore, onPodConditions: [{type: DisruptionTarget}]")}, nil},
		{"no rules", []string{"podFailurePolicy: {rules: []}"}, nil},
		{"neither", []string{rule("action: Ignore")}, []string{at}},
		{
			"both",
			[]string{rule("action: Ignore, onExitCodes: {operator: In, values: [1]}, onPodConditions: [{type: A}]")},
			[]string{at},
		},
		{"no action", []string{rule("onPodConditions: [{type: A}]")}, []string{at + ".action"}},
		{
			"0 fails nothing",
			[]string{rule("action: Count, onExitCodes: {operator: In, values: [0]}")},
			[]string{at + ".onExitCodes.values"},
		},
		{"0 may be excluded", []string{rule("action: Count, onExitCodes: {operator: NotIn, values: [0]}")}, nil},
		{
			"no order",
			[]string{rule("action: Count, onExitCodes: {operator: In, values: [2, 1]}")},
			[]string{at + ".onExitCodes.values[1]"},
		},
		{
			"twice",
			[]string{rule("action: Count, onExitCodes: {operator: In, values: [1, 1]}")},
			[]string{at + ".onExitCodes.values[1]"},
		},
		{"no values", []string{rule("action: Count, onExitCodes: {operator: In}")}, []string{at + ".onExitCodes.values"}},
		{
			"another container",
			[]string{rule("action: Count, onExitCodes: {containerName: x, operator: In, values: [1]}")},
			[]string{at + ".onExitCodes.containerName"},
		},
		{
			"an index without limits",
			[]string{rule("action: FailIndex, onPodConditions: [{type: A}]")},
			[]string{at + ".action"},
		},
		{
			"an index",
			[]string{
				indexed, "completions: 3", "backoffLimitPerIndex: 1",
				rule("action: FailIndex, onPodConditions: [{type: A}]"),
			},
			nil,
		},
		{
			"pods are replaced too early",
			[]string{
				"podReplacementPolicy: TerminatingOrFailed",
				rule("action: Ignore, onPodConditions: [{type: A}]"),
			},
			[]string{"spec.podReplacementPolicy"},
		},
		{"another policy", []string{"podReplacementPolicy: Never"}, []string{"spec.podReplacementPolicy"}},
		{"limits without indexes", []string{"backoffLimitPerIndex: 1"}, []string{"spec.backoffLimitPerIndex"}},
		{
			"failed indexes without limits",
			[]string{indexed, "completions: 3", "maxFailedIndexes: 1"},
			[]string{"spec.maxFailedIndexes"},
		},
		{
			"more than all may fail",
			[]string{indexed, "completions: 3", "backoffLimitPerIndex: 1", "maxFailedIndexes: 4"},
			[]string{"spec.maxFailedIndexes"},
		},
		{
			"very many",
			[]string{indexed, "completions: 100001", "backoffLimitPerIndex: 1", "parallelism: 10001"},
			[]string{"spec.maxFailedIndexes", "spec.parallelism"},
		},
		{
			"more failures at once than can be recorded",
			[]string{indexed, "completions: 20000", "backoffLimitPerIndex: 1", "parallelism: 20000"},
			[]string{"spec.parallelism"},
		},
		{"success", []string{indexed, "completions: 5", success(`succeededIndexes: "0-2,4", succeededCount: 4`)}, nil},
		{"success without indexes", []string{success("succeededCount: 1")}, []string{"spec.successPolicy"}},
		{"success of nothing", []string{indexed, "completions: 5", "successPolicy: {rules: [{}]}"}, []string{of}},
		{
			"no rule of success",
			[]string{indexed, "completions: 5", "successPolicy: {}"},
			[]string{"spec.successPolicy.rules"},
		},
		{
			"an index that is not there",
			[]string{indexed, "completions: 5", success(`succeededIndexes: "5"`)},
			[]string{of + ".succeededIndexes"},
		},
		{
			"more than there are",
			[]string{indexed, "completions: 5", success(`succeededIndexes: "0-1", succeededCount: 3`)},
			[]string{of + ".succeededCount"},
		},
	} {
		_, err := tab.Jobs.Create(t.Context(), policyJob(t, c.lines...))
		if got := wrong(err); !slices.Equal(got, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: wrong are %v, want %v: %v", c.name, got, c.want, err)
		}
	}
}

func TestDefaultsOfJobsWithPolicies(t *testing.T) {
	tab := tables(t)
	create := func(lines ...string) *schedulingv1.Job {
		t.Helper()
		j, err := tab.Jobs.Create(t.Context(), policyJob(t, lines...))
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	if s := create().GetSpec(); s.GetPodReplacementPolicy() != "TerminatingOrFailed" || s.GetBackoffLimit() != 6 {
		t.Errorf("a plain job: %v", s)
	}
	s := create("podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: A}]}]}").GetSpec()
	if s.GetPodReplacementPolicy() != "Failed" || s.GetPodFailurePolicy().GetRules()[0].GetOnPodConditions()[0].
		GetStatus() != "True" {
		t.Errorf("a job with a podFailurePolicy: %v", s)
	}
	j := create("completionMode: Indexed", "completions: 3", "backoffLimitPerIndex: 1")
	if j.GetSpec().GetBackoffLimit() != 1<<31-1 {
		t.Errorf("a job with limits for its indexes: %v", j.GetSpec())
	}
	next := proto.CloneOf(j)
	next.Spec.BackoffLimitPerIndex = nil
	next.Spec.SuccessPolicy = &schedulingv1.SuccessPolicy{
		Rules: []*schedulingv1.SuccessPolicyRule{{SucceededCount: proto.Int32(1)}},
	}
	_, err := tab.Jobs.Update(t.Context(), next)
	if got := wrong(err); !slices.Equal(got, []string{"spec.backoffLimitPerIndex", "spec.successPolicy"}) {
		t.Errorf("changed are %v: %v", got, err)
	}
}
