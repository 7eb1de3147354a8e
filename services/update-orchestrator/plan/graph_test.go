package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// recorded returns a real answer of the public update service.
func recorded(t testing.TB) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "stable-4.13-amd64.json"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// parsed reads a graph for the version 1.0.0.
func parsed(t testing.TB, raw []byte) *Graph {
	t.Helper()
	g, err := ParseGraph(raw, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestParseGraphReadsARecordedAnswer(t *testing.T) {
	g := parsed(t, recorded(t))
	conditional := 0
	for _, c := range g.Conditional {
		conditional += len(c.Edges)
	}
	if len(g.Nodes) != 98 || len(g.Edges) != 1171 || len(g.Conditional) != 37 || conditional != 2394 {
		t.Errorf("%d nodes, %d edges, %d groups with %d edges; want 98, 1171, 37, 2394", len(g.Nodes), len(g.Edges),
			len(g.Conditional), conditional)
	}
}

func TestGraphOfIsParseGraph(t *testing.T) {
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON(recorded(t)); err != nil {
		t.Fatal(err)
	}
	g, err := GraphOf(s, "4.13.0")
	if err != nil {
		t.Fatal(err)
	}
	if want := parsed(t, recorded(t)); len(g.Nodes) != len(want.Nodes) || !slices.Equal(g.Edges, want.Edges) {
		t.Error("the two differ")
	}
}

func TestParseGraphNamesWhatIsWrong(t *testing.T) {
	const two = `"nodes":[{"version":"1.0.0","payload":"r@sha256:a"},{"version":"1.1.0","payload":"r@sha256:b"}]`
	risky := func(risks string) string {
		return `{` + two + `,"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":` + risks + `}]}`
	}
	tests := map[string]struct{ doc, want string }{
		"no JSON":                     {`{`, "$: is no JSON: unexpected end of JSON input"},
		"a list":                      {`[]`, "$: must be an object"},
		"nodes are no list":           {`{"nodes":{}}`, "nodes: must be a list"},
		"another version of the form": {`{"version":2}`, "version: 2 is not understood, only 1 is"},
		"the version twice": {
			`{"nodes":[{"version":"1.0.0"},{"version":"1.0.0"}]}`,
			"nodes[1].version: 1.0.0 is there twice: see nodes[0].version",
		},
		"a target twice": {
			`{"nodes":[{"version":"1.0.0"},{"version":"1.1.0"},{"version":"1.1.0"}],"edges":[[0,1]]}`,
			"nodes[2].version: 1.1.0 is there twice: see nodes[1].version",
		},
		"metadata that are no text": {
			`{"nodes":[{"version":"1.0.0","metadata":{"url":1}}]}`,
			"nodes[0].metadata.url: must be a string",
		},
		"a target without a version": {
			`{"nodes":[{"version":"1.0.0"},{"payload":"x"}],"edges":[[0,1]]}`,
			`nodes[1].version: "" is no semantic version`,
		},
		"a conditional target with a payload that is no text": {
			`{"nodes":[{"version":"1.0.0"},{"version":"1.1.0","payload":1}],
				"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[{"name":"R"}]}]}`,
			`nodes[1].payload: must be a string`,
		},
		"an edge with three ends": {`{` + two + `,"edges":[[0,1,1]]}`, "edges[0]: must be a pair of indexes"},
		"an edge out of range": {
			`{` + two + `,"edges":[[0,1],[0,2]]}`,
			"edges[1][1]: 2 is out of range: there are 2 nodes",
		},
		"an edge to a fraction": {`{` + two + `,"edges":[[0,0.5]]}`, "edges[0][1]: must be a whole number"},
		"an edge between texts": {`{` + two + `,"edges":[["1.0.0",1]]}`, "edges[0][0]: must be a whole number"},
		"a conditional edge to x": {
			`{` + two + `,"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"x"}],"risks":[{"name":"R"}]}]}`,
			`conditionalEdges[0].edges[0].to: "x" is no semantic version`,
		},
		"a conditional edge to itself": {
			`{` + two + `,"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.0.0"}],"risks":[{"name":"R"}]}]}`,
			`conditionalEdges[0].edges[0]: leads from 1.0.0 to itself`,
		},
		"a conditional edge without risks": {risky("[]"), "conditionalEdges[0].risks: must not be empty"},
		"a risk without a name":            {risky(`[{"url":"u"}]`), "conditionalEdges[0].risks[0].name: must not be empty"},
		"a query that is no text": {
			risky(`[{"name":"R","matchingRules":[{"type":"PromQL","promql":{"promql":1}}]}]`),
			"conditionalEdges[0].risks[0].matchingRules[0].promql.promql: must be a string",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseGraph([]byte(tt.doc), "1.0.0")
			if err == nil || err.Error() != tt.want {
				t.Errorf("ParseGraph = %v, want %s", err, tt.want)
			}
		})
	}
}

// What makes no sense and concerns neither the version nor a target of it is left out, and said once.
func TestWhatConcernsNoUpdateOfTheVersionInvalidatesNothing(t *testing.T) {
	const sound = `{"version":"1.0.0","payload":"r@sha256:a"},{"version":"1.1.0","payload":"r@sha256:b"},
		{"version":"1.2.0","payload":"r@sha256:c"}`
	tests := map[string]struct{ nodes, edges, conditional, skipped string }{
		"a cycle of the version":  {"", ",[1,0]", "", ""},
		"a cycle elsewhere":       {"", ",[1,2],[2,1]", "", ""},
		"an edge to itself":       {"", ",[0,0],[2,2]", "", ""},
		"a version that is none":  {`,{"version":"1.0"}`, "", "", `nodes[3].version: "1.0" is no semantic version`},
		"a node that is none":     {`,7`, "", "", "nodes[3]: must be an object"},
		"a broken node, and back": {`,{"version":"x"}`, ",[3,0],[2,3]", "", `nodes[3].version: "x" is no semantic version`},
		"metadata that are no text": {
			`,{"version":"1.3.0","metadata":{"url":1}}`, ",[2,3]", "", "nodes[3].metadata.url: must be a string",
		},
		"a version twice": {
			`,{"version":"1.2.0"}`, ",[1,3]", "", "nodes[3].version: 1.2.0 is there twice: see nodes[2].version",
		},
		"an edge out of range":  {"", ",[1,9]", "", "edges[1][1]: 9 is out of range: there are 3 nodes"},
		"an edge from nowhere":  {"", ",[-1,1]", "", "edges[1][0]: -1 is out of range: there are 3 nodes"},
		"an edge to a fraction": {"", ",[1,0.5]", "", "edges[1][1]: must be a whole number"},
		"a conditional edge from nowhere": {
			"", "", `{"edges":[{"to":"1.1.0"}],"risks":[]}`,
			`conditionalEdges[0].edges[0].from: "" is no semantic version`,
		},
		"a conditional edge without risks": {
			"", "", `{"edges":[{"from":"1.1.0","to":"1.2.0"}]}`, "conditionalEdges[0].risks: must not be empty",
		},
		"a risk without a name": {
			"", "", `{"edges":[{"from":"1.1.0","to":"1.2.0"}],"risks":[{"url":"u"}]}`,
			"conditionalEdges[0].risks[0].name: must not be empty",
		},
		"risks of no edge": {"", "", `{"edges":[],"risks":[{"url":"u"}]}`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := parsed(t, []byte(`{"nodes":[`+sound+tt.nodes+`],"edges":[[0,1]`+tt.edges+`],"conditionalEdges":[`+
				tt.conditional+`]}`))
			u := Evaluate(Query{Graph: g, Version: "1.0.0"})
			if diff := cmp.Diff([]string{"1.1.0"}, versions(u.Available)); diff != "" || u.Retrieved.GetStatus() != True {
				t.Errorf("%v, available (-want +got):\n%s", u.Retrieved, diff)
			}
			if message := u.Retrieved.GetMessage(); !strings.HasSuffix(message, tt.skipped) ||
				(message == "") != (tt.skipped == "") {
				t.Errorf("RetrievedUpdates says %q, want %q", message, tt.skipped)
			}
			if text := WhyNot(Query{Graph: g, Version: "1.0.0"}, "1.2.0"); !strings.HasPrefix(text, "1.2.0 is not offered: ") {
				t.Error(text)
			}
		})
	}
}

func TestAGraphBeyondTheLimitsIsRefused(t *testing.T) {
	many := func(n int, item func(i int) string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = item(i)
		}
		return strings.Join(items, ",")
	}
	node := func(i int) string { return fmt.Sprintf(`{"version":"1.0.%d","payload":"r@sha256:%x"}`, i, i) }
	tests := map[string]struct{ doc, want string }{
		"nodes": {`{"nodes":[` + many(110_000, node) + `]}`, "nodes: has 110000 items, more than 10000"},
		"edges": {
			`{"nodes":[` + many(2, node) + `],"edges":[` + many(100_001, func(int) string { return "[0,1]" }) + `]}`,
			"edges: has 100001 items, more than 100000",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if g, err := ParseGraph([]byte(tt.doc), "1.0.0"); err == nil || err.Error() != tt.want {
				t.Errorf("ParseGraph = %v, %v, want %s", g, err, tt.want)
			}
		})
	}
	t.Run("texts", func(t *testing.T) {
		g := parsed(t, []byte(`{"nodes":[`+many(9_000, node)+`],"edges":[`+
			many(8_999, func(i int) string { return fmt.Sprintf("[0,%d]", i+1) })+`]}`))
		g.Nodes[1].Payload = "r" + strings.Repeat("/r", maxListed/2) + "@sha256:1"
		u := Evaluate(Query{Graph: g, Version: "1.0.0"})
		if u.Retrieved.GetReason() != responseInvalid || len(u.Available) > 0 ||
			!strings.Contains(u.Retrieved.GetMessage(), "the graph leads from 1.0.0 to 8999 updates with ") {
			t.Errorf("%d updates, %v", len(u.Available), u.Retrieved)
		}
	})
}

func TestParseGraphNeverPanics(t *testing.T) {
	answer := map[string]any{}
	if err := json.Unmarshal(recorded(t), &answer); err != nil {
		t.Fatal(err)
	}
	junk := []any{nil, 1.5, -1.0, "x", []any{}, map[string]any{}, true}
	rapid.Check(t, func(t *rapid.T) {
		doc := map[string]any{
			"nodes": answer["nodes"].([]any)[:3], "edges": []any{[]any{0.0, 1.0}},
			"conditionalEdges": answer["conditionalEdges"].([]any)[:1],
		}
		spoiled := spoil(doc, rapid.SliceOfN(rapid.IntRange(0, 9), 1, 6).Draw(t, "way"),
			rapid.SampledFrom(junk).Draw(t, "junk"))
		raw, err := json.Marshal(spoiled)
		if err != nil {
			t.Fatal(err)
		}
		if g, err := ParseGraph(raw, "4.13.0"); err == nil {
			Evaluate(Query{Graph: g, Version: "4.13.0"})
			WhyNot(Query{Graph: g, Version: "4.13.0"}, "4.13.36")
		} else if !strings.Contains(err.Error(), ": ") {
			t.Fatalf("%v names no place", err)
		}
	})
}

// spoil puts something else in a place of a JSON value.
func spoil(v any, way []int, junk any) any {
	if len(way) == 0 {
		return junk
	}
	switch v := v.(type) {
	case map[string]any:
		out, keys := map[string]any{}, []string{}
		for k, x := range v {
			out[k] = x
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if len(keys) > 0 {
			k := keys[way[0]%len(keys)]
			out[k] = spoil(v[k], way[1:], junk)
		}
		return out
	case []any:
		out := slices.Clone(v)
		if len(out) > 0 {
			i := way[0] % len(out)
			out[i] = spoil(out[i], way[1:], junk)
		}
		return out
	}
	return junk
}

func BenchmarkParseGraph(b *testing.B) {
	raw := recorded(b)
	for b.Loop() {
		if _, err := ParseGraph(raw, "4.13.0"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEvaluate(b *testing.B) {
	q := Query{Graph: parsed(b, recorded(b)), Version: "4.13.0", Channel: "stable-4.13"}
	for b.Loop() {
		Evaluate(q)
	}
}
