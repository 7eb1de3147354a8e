package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestTaskGraph(t *testing.T) {
	tests := map[string]struct {
		names    []string
		jobs     []string
		mode     Mode
		want     []Step
		unparsed []string
	}{
		"nothing": {},
		"one file": {
			names: []string{"0000_10_a_x.yaml"},
			want:  []Step{{RunLevel: "10", Chains: []Chain{{"a", []string{"0000_10_a_x.yaml"}}}}},
		},
		"two components of one level are applied at once": {
			names: []string{"0000_10_a_1.yaml", "0000_10_a_2.yaml", "0000_10_b_1.yaml"},
			want: []Step{
				{RunLevel: "10", Chains: []Chain{
					{"a", []string{"0000_10_a_1.yaml", "0000_10_a_2.yaml"}},
					{"b", []string{"0000_10_b_1.yaml"}},
				}},
			},
		},
		"levels with one component share a chain": {
			names: []string{"0000_00_a_1.yaml", "0000_03_b_1.yaml", "0000_10_c_1.yaml", "0000_10_d_1.yaml", "0000_20_e_1.yaml"},
			want: []Step{
				{Chains: []Chain{{"", []string{"0000_00_a_1.yaml", "0000_03_b_1.yaml"}}}},
				{RunLevel: "10", Chains: []Chain{{"c", []string{"0000_10_c_1.yaml"}}, {"d", []string{"0000_10_d_1.yaml"}}}},
				{RunLevel: "20", Chains: []Chain{{"e", []string{"0000_20_e_1.yaml"}}}},
			},
		},
		"a component that comes twice has two chains": {
			names: []string{"0000_10_a_1.yaml", "0000_10_b_1.yaml", "0000_10_a_2.yaml"},
			want: []Step{{RunLevel: "10", Chains: []Chain{
				{"a", []string{"0000_10_a_1.yaml"}}, {"b", []string{"0000_10_b_1.yaml"}}, {"a", []string{"0000_10_a_2.yaml"}},
			}}},
		},
		"nothing passes a job": {
			names: []string{"0000_10_a_1.yaml", "0000_10_b_1.yaml", "0000_10_b_2.yaml", "0000_10_c_1.yaml", "0000_10_d_1.yaml"},
			jobs:  []string{"0000_10_b_2.yaml"},
			want: []Step{
				{RunLevel: "10", Chains: []Chain{{"a", []string{"0000_10_a_1.yaml"}}, {"b", []string{"0000_10_b_1.yaml"}}}},
				{RunLevel: "10", Chains: []Chain{{"b", []string{"0000_10_b_2.yaml"}}}, Job: true},
				{RunLevel: "10", Chains: []Chain{{"c", []string{"0000_10_c_1.yaml"}}, {"d", []string{"0000_10_d_1.yaml"}}}},
			},
		},
		"nothing passes a job of the initial release": {
			names: []string{"0000_10_a_1.yaml", "0000_20_b_1.yaml", "0000_30_c_1.yaml"},
			jobs:  []string{"0000_20_b_1.yaml"},
			mode:  Initializing,
			want: []Step{
				{Chains: []Chain{{"a", []string{"0000_10_a_1.yaml"}}}},
				{RunLevel: "20", Chains: []Chain{{"b", []string{"0000_20_b_1.yaml"}}}, Job: true},
				{Chains: []Chain{{"c", []string{"0000_30_c_1.yaml"}}}},
			},
		},
		"a name that says nothing ends the level": {
			names: []string{"0000_10_a_1.yaml", "image.yaml", "0000_10_b_1.yaml", "0000_10_c_1.yaml"},
			want: []Step{
				{Chains: []Chain{{"", []string{"0000_10_a_1.yaml", "image.yaml"}}}},
				{RunLevel: "10", Chains: []Chain{{"b", []string{"0000_10_b_1.yaml"}}, {"c", []string{"0000_10_c_1.yaml"}}}},
			},
			unparsed: []string{"image.yaml"},
		},
		"all at once when nothing was ever complete": {
			names: []string{"0000_00_a_1.yaml", "0000_00_a_2.yaml", "x.yaml", "0000_03_a_1.yaml"},
			mode:  Initializing,
			want: []Step{{Chains: []Chain{
				{"a", []string{"0000_00_a_1.yaml", "0000_00_a_2.yaml"}},
				{"", []string{"x.yaml"}},
				{"a", []string{"0000_03_a_1.yaml"}},
			}}},
			unparsed: []string{"x.yaml"},
		},
		"levels are compared as text": {
			names: []string{"0000_5_a_1.yaml", "0000_05_b_1.yaml"},
			want:  []Step{{Chains: []Chain{{"", []string{"0000_5_a_1.yaml", "0000_05_b_1.yaml"}}}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			steps, unparsed := TaskGraph(tt.names, set(tt.jobs), tt.mode)
			if diff := cmp.Diff(tt.want, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if !slices.Equal(unparsed, tt.unparsed) {
				t.Errorf("unparsed %q, want %q", unparsed, tt.unparsed)
			}
		})
	}
}

func TestRunLevel(t *testing.T) {
	tests := map[string][2]string{
		"0000_03_config-operator_01_proxy.crd.yaml":     {"03", "config-operator"},
		"release-manifests/0000_90_service-ca_03_x.yml": {"90", "service-ca"},
		"0000_50_cluster-autoscaler-operator_x.yaml":    {"50", "cluster-autoscaler-operator"},
		"0000_x_a_b.yaml":   {},
		"0000_10_-a_b.yaml": {},
		"0000_10_a.yaml":    {},
		"image-references":  {},
	}
	for name, want := range tests {
		level, component, ok := RunLevel(name)
		if level != want[0] || component != want[1] || ok != (want[0] != "") {
			t.Errorf("RunLevel(%q) = %q, %q, %v; want %q", name, level, component, ok, want)
		}
	}
}

// realNames returns the file names of the manifests of a real release.
func realNames(t testing.TB) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "manifest-names-default.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(raw))
}

// fatal is what the checks below need of a test.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkOrder checks what an order promises: every name once; what is of one level and component in order; and, for
// Updating, no level before all of the lower ones.
func checkOrder(t fatal, names []string, steps []Step, mode Mode) {
	t.Helper()
	at := map[string][3]int{} // step, chain, place
	for i, s := range steps {
		for j, c := range s.Chains {
			for k, n := range c.Manifests {
				if _, twice := at[n]; twice {
					t.Fatalf("%s is there twice", n)
				}
				at[n] = [3]int{i, j, k}
			}
		}
	}
	if len(at) != len(names) {
		t.Fatalf("%d of %d names are there", len(at), len(names))
	}
	for i := 1; i < len(names); i++ {
		a, b := names[i-1], names[i]
		levelA, componentA, okA := RunLevel(a)
		levelB, componentB, okB := RunLevel(b)
		sameLevel := okA && okB && levelA == levelB
		before, after := at[a], at[b]
		switch {
		case sameLevel && componentA == componentB:
			if before[0] != after[0] || before[1] != after[1] || before[2]+1 != after[2] {
				t.Fatalf("%s and %s are torn apart: %v, %v", a, b, before, after)
			}
		case mode == Updating && !sameLevel:
			if before[0] > after[0] || before[0] == after[0] && (before[1] != after[1] || before[2] >= after[2]) {
				t.Fatalf("%s may be applied before %s is done: %v, %v", b, a, before, after)
			}
		case mode == Updating && sameLevel:
			if before[0] != after[0] {
				t.Fatalf("%s waits for %s of the same level", b, a)
			}
		}
	}
}

func TestTaskGraphOfARealRelease(t *testing.T) {
	names := realNames(t)
	for _, mode := range []Mode{Updating, Initializing, Reconciling} {
		steps, unparsed := TaskGraph(names, nil, mode)
		checkOrder(t, names, steps, mode)
		if len(unparsed) != 0 {
			t.Errorf("%s: not understood: %q", mode, unparsed)
		}
		if mode != Updating && len(steps) != 1 {
			t.Errorf("%s: %d steps, want 1", mode, len(steps))
		}
	}
	steps, _ := TaskGraph(names, nil, Updating)
	var levels []string
	for _, s := range steps {
		if s.RunLevel != "" && len(s.Chains) > 1 {
			levels = append(levels, s.RunLevel)
		}
	}
	if !slices.IsSorted(levels) || len(levels) < 10 {
		t.Errorf("run levels %q", levels)
	}
}

// drawNames draws file names of manifests, in load order.
func drawNames(t *rapid.T) []string {
	name := rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 9).Draw(t, "kind") == 0 {
			return rapid.StringMatching(`[a-c]{1,3}\.yaml`).Draw(t, "name")
		}
		return fmt.Sprintf("0000_%02d_%s_%s.yaml", rapid.IntRange(0, 4).Draw(t, "level"),
			rapid.SampledFrom([]string{"a", "b-c", "d"}).Draw(t, "component"), rapid.StringMatching(`[a-z]{1,4}`).Draw(t,
				"rest"))
	})
	names := rapid.SliceOfDistinct(name, func(s string) string { return s }).Draw(t, "names")
	slices.Sort(names)
	return names
}

func set(names []string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

func TestTaskGraphKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := drawNames(t)
		mode := rapid.SampledFrom([]Mode{Updating, Initializing, Reconciling}).Draw(t, "mode")
		steps, unparsed := TaskGraph(names, nil, mode)
		checkOrder(t, names, steps, mode)
		for _, n := range unparsed {
			if _, _, ok := RunLevel(n); ok {
				t.Fatalf("%s is understood", n)
			}
		}
	})
}

// TestNothingPassesAJob: whatever the mode, all before a job is in earlier steps, and all after it in later ones.
func TestNothingPassesAJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := drawNames(t)
		jobs := set(rapid.SliceOf(rapid.SampledFrom(append(names, "none"))).Draw(t, "jobs"))
		mode := rapid.SampledFrom([]Mode{Updating, Initializing, Reconciling}).Draw(t, "mode")
		steps, _ := TaskGraph(names, jobs, mode)
		at := map[string]int{}
		for i, s := range steps {
			for _, c := range s.Chains {
				for _, n := range c.Manifests {
					at[n] = i
				}
			}
		}
		if len(at) != len(names) {
			t.Fatalf("%d of %d names are there", len(at), len(names))
		}
		for i, job := range names {
			for j, n := range names {
				if jobs[job] && (j < i && at[n] >= at[job] || j > i && at[n] <= at[job]) {
					t.Fatalf("%s belongs to step %d, and the job %s to step %d", n, at[n], job, at[job])
				}
			}
		}
	})
}

func BenchmarkTaskGraph(b *testing.B) {
	names := realNames(b)
	for b.Loop() {
		TaskGraph(names, nil, Updating)
	}
}
