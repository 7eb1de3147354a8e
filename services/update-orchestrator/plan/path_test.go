package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// routes is a graph of versions with payloads, with plain edges and with edges that have a risk: A always applies, Q
// has a query.
func routes(t testing.TB, versions []string, edges ...string) *Graph {
	t.Helper()
	type m = map[string]any
	index, nodes := map[string]int{}, []m{}
	for i, v := range versions {
		index[v] = i
		nodes = append(nodes, m{"version": v, "payload": "x@sha256:" + fmt.Sprintf("%064d", i)})
	}
	plain, conditional := [][2]int{}, []m{}
	for _, e := range edges {
		f := strings.Fields(e) // from, to, and a risk
		if len(f) == 2 {
			plain = append(plain, [2]int{index[f[0]], index[f[1]]})
			continue
		}
		rule := m{"type": "Always"}
		if f[2] == "Q" {
			rule = m{"type": "PromQL", "promql": m{"promql": "q"}}
		}
		conditional = append(conditional, m{"edges": []m{{"from": f[0], "to": f[1]}}, "risks": []m{{
			"name": f[2], "message": "m", "url": "https://example.com/" + f[2], "matchingRules": []m{rule},
		}}})
	}
	raw, err := json.Marshal(m{"nodes": nodes, "edges": plain, "conditionalEdges": conditional})
	if err != nil {
		t.Fatal(err)
	}
	return parsedFor(t, raw, versions[0])
}

func parsedFor(t testing.TB, raw []byte, version string) *Graph {
	t.Helper()
	g, err := ParseGraph(raw, version)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func hopsOf(list []*updatev1.UpdateHop) (out []string) {
	for _, h := range list {
		out = append(out, h.GetRelease().GetVersion()+" "+h.GetRecommended()+" "+h.GetReason())
	}
	return out
}

func TestAPathHasTheFewestRisksThenTheFewestUpdates(t *testing.T) {
	versions := []string{"1.0.0", "1.0.1", "1.0.2", "1.0.3", "1.1.0"}
	for name, tt := range map[string]struct {
		edges  []string
		accept []string
		want   []string
		none   string
	}{
		"one update": {[]string{"1.0.0 1.1.0"}, nil, []string{"1.1.0 True NotExposedToRisks"}, ""},
		"the shortest": {
			[]string{"1.0.0 1.0.1", "1.0.1 1.0.2", "1.0.2 1.1.0", "1.0.1 1.1.0"},
			nil,
			[]string{"1.0.1 True NotExposedToRisks", "1.1.0 True NotExposedToRisks"},
			"",
		},
		"of two the one over the newer version": {
			[]string{"1.0.0 1.0.1", "1.0.0 1.0.2", "1.0.1 1.1.0", "1.0.2 1.1.0"},
			nil,
			[]string{"1.0.2 True NotExposedToRisks", "1.1.0 True NotExposedToRisks"},
			"",
		},
		"a longer one without a risk": {
			[]string{"1.0.0 1.1.0 A", "1.0.0 1.0.1", "1.0.1 1.0.2", "1.0.2 1.1.0"},
			nil,
			[]string{"1.0.1 True NotExposedToRisks", "1.0.2 True NotExposedToRisks", "1.1.0 True NotExposedToRisks"},
			"",
		},
		"a risk that is accepted": {
			[]string{"1.0.0 1.1.0 A", "1.0.0 1.0.1", "1.0.1 1.1.0"},
			[]string{"A"},
			[]string{"1.1.0 True AllExposedRisksAccepted"},
			"",
		},
		"unknown rather than not recommended": {
			[]string{"1.0.0 1.1.0 A", "1.0.0 1.0.1 Q", "1.0.1 1.1.0 Q"},
			nil,
			[]string{"1.0.1 Unknown EvaluationFailed", "1.1.0 Unknown EvaluationFailed"},
			"",
		},
		"only one that is not recommended": {
			[]string{"1.0.0 1.0.1", "1.0.1 1.1.0 A"}, nil, []string{"1.0.1 True NotExposedToRisks", "1.1.0 False A"}, "",
		},
		"none": {[]string{"1.0.0 1.0.1", "1.0.2 1.1.0"}, nil, nil, `The "c" channel has no way from 1.0.0 to 1.1.0.`},
		"risks that are stated twice": {
			[]string{"1.0.0 1.1.0 A", "1.0.0 1.1.0 Q"}, nil, nil, `The "c" channel has no way from 1.0.0 to 1.1.0.`,
		},
		"a circle": {
			[]string{"1.0.0 1.0.1", "1.0.1 1.0.0", "1.0.1 1.1.0"},
			nil,
			[]string{"1.0.1 True NotExposedToRisks", "1.1.0 True NotExposedToRisks"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, none := Path(Query{Graph: routes(t, versions, tt.edges...), Version: "1.0.0", Channel: "c", Accept: tt.accept},
				"1.1.0")
			if diff := cmp.Diff(tt.want, hopsOf(got)); diff != "" || none != tt.none {
				t.Errorf("none: %q (-want +got):\n%s", none, diff)
			}
		})
	}
}

// A path must not show what an evaluation would not offer.
func TestAPathHasNoUpdateThatIsNotOffered(t *testing.T) {
	const a, b, c = `"x@sha256:a"`, `"x@sha256:b"`, `"x@sha256:c"`
	always := `"risks":[{"name":"A","message":"m","url":"https://example.com/A","matchingRules":[{"type":"Always"}]}]`
	for name, tt := range map[string]struct {
		graph, to string
		want      []string
		none      string
	}{
		"build metadata of the target": {
			`{"nodes":[{"version":"1.0.0","payload":` + a + `},{"version":"1.1.0+b","payload":` + b + `}],"edges":[[0,1]],
				"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}],` + always + `}]}`, "1.1.0", []string{"1.1.0+b False A"}, "",
		},
		"build metadata of the source": {
			`{"nodes":[{"version":"1.0.0+b","payload":` + a + `},{"version":"1.1.0","payload":` + b + `}],"edges":[[0,1]],
				"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}],` + always + `}]}`, "1.1.0", []string{"1.1.0 False A"}, "",
		},
		"two versions of one image": {
			`{"nodes":[{"version":"1.0.0","payload":` + a + `},{"version":"1.1.0","payload":` + b + `},{"version":"1.2.0","payload":` + b + `}],
				"edges":[[0,1]],"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.2.0"}],` + always + `}]}`,
			"1.1.0", nil, `The "c" channel has no way from 1.0.0 to 1.1.0.`,
		},
		"a way over an older release": {
			`{"nodes":[{"version":"1.1.0","payload":` + a + `},{"version":"1.0.0","payload":` + b + `},{"version":"1.2.0","payload":` + c + `}],
				"edges":[[0,1],[1,2]],"conditionalEdges":[{"edges":[{"from":"1.1.0","to":"1.2.0"}],` + always + `}]}`,
			"1.2.0",
			[]string{"1.2.0 False A"},
			"",
		},
		"a graph of which nothing is offered": {
			`{"nodes":[{"version":"1.0.0","payload":` + a + `},{"version":"1.1.0","payload":` + b + `}],"edges":[[0,1]],
				"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"9.9.9"}],` + always + `}]}`,
			"1.1.0", nil, "Unable to retrieve available updates: no node for conditional update 9.9.9",
		},
	} {
		t.Run(name, func(t *testing.T) {
			version := "1.0.0"
			if strings.Contains(tt.graph, `[{"version":"1.1.0"`) {
				version = "1.1.0"
			}
			q := Query{Graph: parsedFor(t, []byte(tt.graph), version), Version: version, Channel: "c"}
			got, none := Path(q, tt.to)
			if diff := cmp.Diff(tt.want, hopsOf(got)); diff != "" || none != tt.none {
				t.Errorf("none: %q (-want +got):\n%s", none, diff)
			}
		})
	}
}

// A path can be followed as it is shown, without a waiver.
func TestAPathHasNoUpdateThatAPreconditionRefuses(t *testing.T) {
	versions := []string{"4.1.0", "4.1.1", "4.2.0", "4.3.0", "5.0.0", "5.1.0", "6.0.0"}
	const plain = " True NotExposedToRisks"
	for name, tt := range map[string]struct {
		edges []string
		to    string
		want  []string
		none  string
	}{
		"a shorter way over two minor versions": {
			[]string{"4.1.0 4.3.0", "4.1.0 4.1.1", "4.1.1 4.2.0", "4.2.0 4.3.0"},
			"4.3.0",
			[]string{"4.1.1" + plain, "4.2.0" + plain, "4.3.0" + plain},
			"",
		},
		"a way without the risk over two minor versions": {
			[]string{"4.1.0 4.3.0", "4.1.0 4.2.0 A", "4.2.0 4.3.0"}, "4.3.0", []string{"4.2.0 False A", "4.3.0" + plain}, "",
		},
		"only over two minor versions": {
			[]string{"4.1.0 4.3.0 A"},
			"4.3.0", nil,
			`The "c" channel has no way from 4.1.0 to 4.3.0 without an update that ClusterVersionGiantHop refuses.`,
		},
		"from the fourth major version to the first of the fifth": {
			[]string{"4.1.0 4.3.0", "4.1.0 4.2.0", "4.2.0 4.3.0", "4.3.0 5.0.0", "4.3.0 5.1.0", "5.0.0 5.1.0"},
			"5.1.0",
			[]string{"4.2.0" + plain, "4.3.0" + plain, "5.0.0" + plain, "5.1.0" + plain},
			"",
		},
		"to another major version": {
			[]string{"4.1.0 5.0.0", "5.0.0 6.0.0"},
			"6.0.0", nil,
			`The "c" channel has no way from 4.1.0 to 6.0.0 without an update that ClusterVersionGiantHop refuses.`,
		},
		"neither with such updates nor without": {
			[]string{"4.1.0 4.3.0"}, "5.0.0", nil, `The "c" channel has no way from 4.1.0 to 5.0.0.`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, none := Path(Query{Graph: routes(t, versions, tt.edges...), Version: "4.1.0", Channel: "c"}, tt.to)
			if diff := cmp.Diff(tt.want, hopsOf(got)); diff != "" || none != tt.none {
				t.Errorf("none: %q (-want +got):\n%s", none, diff)
			}
			at := &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{
				Desired: &updatev1.ReleaseReference{Version: proto.String("4.1.0")},
			}}
			for _, h := range got {
				if v := Preconditions(at, h.GetRelease()); len(v.Blocking)+len(v.Refusing) > 0 {
					t.Errorf("from %s: %v", at.GetStatus().GetDesired().GetVersion(), v)
				}
				at.Status.Desired = h.GetRelease()
			}
		})
	}
}

func TestAnUpdateWithARiskIsNotAvailableBesideOneThatMakesNoSense(t *testing.T) {
	g := smallGraph(t,
		`{"edges":[{"from":"1.0.0","to":"1.1.0"},{"from":"1.0.0","to":"9.9.9"}],"risks":[{"name":"R","matchingRules":[{"type":"Always"}]}]}`)
	u := Evaluate(Query{Graph: g, Version: "1.0.0"})
	if u.Retrieved.GetStatus() != False || slices.Contains(versions(u.Available), "1.1.0") {
		t.Errorf("%v: available %v", u.Retrieved, versions(u.Available))
	}
}

func TestAPathThatMakesNoSenseIsSaid(t *testing.T) {
	q := Query{Graph: routes(t, []string{"1.0.0", "1.1.0"}), Version: "1.0.0", Channel: "c"}
	for version, want := range map[string]string{
		"one":   `"one" is no semantic version.`,
		"1.0.0": "1.0.0 is the version that is reconciled now.",
		"1.2.0": `1.2.0 is not in the "c" channel.`,
	} {
		if _, none := Path(q, version); none != want {
			t.Errorf("%s: %q, want %q", version, none, want)
		}
	}
	q.Version = "0.9.0"
	if _, none := Path(q, "1.1.0"); none != `0.9.0 is not in the "c" channel.` {
		t.Errorf("from nowhere: %q", none)
	}
}

// TestAPathIsOneOfTheBest compares paths with a search through all ways, on small graphs of every form.
func TestAPathIsOneOfTheBest(t *testing.T) {
	versions := []string{"1.0.0", "1.0.1", "1.0.2", "1.1.0"}
	var all []string
	for i, a := range versions {
		for _, b := range versions[i+1:] {
			all = append(all, a+" "+b)
		}
	}
	forms := []string{"", " A", " Q", "none"}
	for n := range 1 << (2 * len(all)) {
		var edges []string
		for i, e := range all {
			if form := forms[n>>(2*i)&3]; form != "none" {
				edges = append(edges, e+form)
			}
		}
		if len(edges) == 0 {
			continue
		}
		got, none := Path(Query{Graph: routes(t, versions, edges...), Version: "1.0.0"}, "1.1.0")
		var is cost
		for _, h := range got {
			is.hops++
			switch h.GetRecommended() {
			case False:
				is.refused++
			case Unknown:
				is.unknown++
			}
		}
		best, found := search(edges, "1.0.0", "1.1.0")
		if found != (none == "") || is != best {
			t.Fatalf("%q: %v (%s), the best is %v", edges, hopsOf(got), none, best)
		}
	}
}

// search tries all ways.
func search(edges []string, from, to string) (best cost, found bool) {
	if from == to {
		return cost{}, true
	}
	for _, e := range edges {
		f := strings.Fields(e)
		if f[0] != from {
			continue
		}
		rest, ok := search(edges, f[1], to)
		rest.hops++
		switch {
		case len(f) == 3 && f[2] == "A":
			rest.refused++
		case len(f) == 3:
			rest.unknown++
		}
		if ok && (!found || rest.compare(best) < 0) {
			best, found = rest, true
		}
	}
	return best, found
}

func BenchmarkPath(b *testing.B) {
	g := parsed(b, recorded(b))
	for b.Loop() {
		if hops, none := Path(Query{Graph: g, Version: "4.12.0"}, "4.13.42"); len(hops) == 0 {
			b.Fatal(none)
		}
	}
}
