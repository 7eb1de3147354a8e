package plan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

func parsed(t testing.TB, raw []byte) *Graph {
	t.Helper()
	g, err := ParseGraph(raw)
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
	g, err := GraphOf(s)
	if err != nil {
		t.Fatal(err)
	}
	if want := parsed(t, recorded(t)); len(g.Nodes) != len(want.Nodes) || !slices.Equal(g.Edges, want.Edges) {
		t.Error("the two differ")
	}
}

func TestParseGraphNamesWhatIsWrong(t *testing.T) {
	const two = `"nodes":[{"version":"1.0.0","payload":"r@sha256:a"},{"version":"1.1.0","payload":"r@sha256:b"}]`
	tests := map[string]struct{ doc, want string }{
		"no JSON":                     {`{`, "$: is no JSON: unexpected end of JSON input"},
		"a list":                      {`[]`, "$: must be an object"},
		"nodes are no list":           {`{"nodes":{}}`, "nodes: must be a list"},
		"another version of the form": {`{"version":2}`, "version: 2 is not understood, only 1 is"},
		"a version that is none":      {`{"nodes":[{"version":"1.0"}]}`, `nodes[0].version: "1.0" is no semantic version`},
		"a node without a version":    {`{"nodes":[{"payload":"x"}]}`, `nodes[0].version: "" is no semantic version`},
		"a version twice": {
			`{"nodes":[{"version":"1.0.0"},{"version":"1.0.0"}]}`,
			"nodes[1].version: 1.0.0 is there twice: see nodes[0].version",
		},
		"metadata that are no text": {
			`{"nodes":[{"version":"1.0.0","metadata":{"url":1}}]}`,
			"nodes[0].metadata.url: must be a string",
		},
		"an edge with three ends": {`{` + two + `,"edges":[[0,1,1]]}`, "edges[0]: must be a pair of indexes"},
		"an edge out of range": {
			`{` + two + `,"edges":[[0,1],[0,2]]}`,
			"edges[1][1]: 2 is out of range: there are 2 nodes",
		},
		"an edge before the first node": {
			`{` + two + `,"edges":[[-1,1]]}`,
			"edges[0][0]: -1 is out of range: there are 2 nodes",
		},
		"an edge between texts": {`{` + two + `,"edges":[["1.0.0",1]]}`, "edges[0][0]: must be a whole number"},
		"a cycle": {
			`{` + two + `,"edges":[[0,1],[1,0]]}`,
			"edges[1]: makes a cycle: 1.1.0 leads back to 1.0.0",
		},
		"an edge to itself": {
			`{` + two + `,"edges":[[1,1]]}`,
			"edges[0]: makes a cycle: 1.1.0 leads back to 1.1.0",
		},
		"a conditional edge from nowhere": {
			`{` + two + `,"conditionalEdges":[{"edges":[{"to":"1.1.0"}],"risks":[]}]}`,
			`conditionalEdges[0].edges[0].from: "" is no semantic version`,
		},
		"a conditional edge without risks": {
			`{` + two + `,"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}]}]}`,
			"conditionalEdges[0].risks: must not be empty",
		},
		"a risk without a name": {
			`{` + two + `,"conditionalEdges":[{"edges":[],"risks":[{"url":"u"}]}]}`,
			"conditionalEdges[0].risks[0].name: must not be empty",
		},
		"a query that is no text": {
			`{` + two +
				`,"conditionalEdges":[{"risks":[{"name":"R","matchingRules":[{"type":"PromQL","promql":{"promql":1}}]}]}]}`,
			"conditionalEdges[0].risks[0].matchingRules[0].promql.promql: must be a string",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseGraph([]byte(tt.doc))
			if err == nil || err.Error() != tt.want {
				t.Errorf("ParseGraph = %v, want %s", err, tt.want)
			}
		})
	}
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
		if g, err := ParseGraph(raw); err == nil {
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
		if _, err := ParseGraph(raw); err != nil {
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
