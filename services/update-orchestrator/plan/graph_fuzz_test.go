package plan

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzGraph holds that a graph that is taken has edges between its own nodes only, that each of its nodes can be
// explained, and that an answer that came as a message is read as one that came as text.
func FuzzGraph(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"nodes":[{"version":"1.0.0","payload":"r@sha256:a","metadata":{"url":"https://x"}},{"version":"1.1.0","payload":"r@sha256:b"}],"edges":[[0,1]],
		  "conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[{"url":"https://x","name":"A","message":"m","matchingRules":[{"type":"PromQL","promql":{"promql":"up"}}]}]}]}`,
		`{"nodes":[{"version":"1.0.0"},{"version":"1.0.0"}],"edges":[[0,0],[1,0],[-1,1e300]]}`,
		`{"nodes":[{"version":"1.0.0","payload":"a"},{"version":"1.1.0","payload":"b"},{"version":"1.2.0","payload":"c"}],"edges":[[0,1],[1,2],[2,0]]}`,
		`[{"nodes":null}]`, `{"edges":[[0]]}`, `{"version":2}`, `{"nodes":{"a":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := ParseGraph(raw, "1.0.0")
		var p Problem
		if err != nil {
			if !errors.As(err, &p) || p.Path == "" && p.Reason == "" || g != nil {
				t.Fatalf("%v: %v", g, err)
			}
			return
		}
		for _, e := range g.Edges {
			if e[0] < 0 || e[1] < 0 || e[0] >= len(g.Nodes) || e[1] >= len(g.Nodes) {
				t.Fatalf("edge %v of %d nodes", e, len(g.Nodes))
			}
		}
		q := Query{Graph: g, Version: "1.0.0"}
		for _, n := range g.Nodes {
			if WhyNot(q, n.Version) == "" {
				t.Fatalf("nothing is said of %s", n.Version)
			}
		}
		s := &structpb.Struct{}
		if s.UnmarshalJSON(raw) != nil {
			return // keys given twice, for one
		}
		again, err := GraphOf(s, "1.0.0")
		if err != nil || len(again.Nodes) != len(g.Nodes) || len(again.Edges) != len(g.Edges) ||
			len(again.Conditional) != len(g.Conditional) {
			t.Fatalf("%v, as a message %v, %v", g, again, err)
		}
	})
}
