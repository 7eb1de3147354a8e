package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func versions(list []*updatev1.ReleaseReference) []string {
	var out []string
	for _, r := range list {
		out = append(out, r.GetVersion())
	}
	return out
}

// said is the conditional updates in short: version, status and reason.
func said(list []*updatev1.ConditionalUpdate) []string {
	var out []string
	for _, c := range list {
		r := Find(c.GetConditions(), Recommended)
		out = append(out, fmt.Sprintf("%s %s %s", c.GetRelease().GetVersion(), r.GetStatus(), r.GetReason()))
	}
	return out
}

func TestEvaluateRecordedAnswer(t *testing.T) {
	q := Query{Graph: parsed(t, recorded(t)), Version: "4.13.0", Channel: "stable-4.13"}
	u := Evaluate(q)
	if u.Retrieved.GetStatus() != True {
		t.Fatalf("RetrievedUpdates = %v", u.Retrieved)
	}
	want := []string{
		"4.13.43", "4.13.42", "4.13.15", "4.13.14", "4.13.13", "4.13.12", "4.13.11", "4.13.10", "4.13.8",
		"4.13.6", "4.13.5",
	}
	if diff := cmp.Diff(want, versions(u.Available)); diff != "" {
		t.Errorf("16 plain edges less 5 that are conditional too (-want +got):\n%s", diff)
	}
	if len(u.Conditional) != 29 {
		t.Errorf("%d conditional updates, want 29", len(u.Conditional))
	}
	statuses := map[string]int{}
	for _, line := range said(u.Conditional) {
		statuses[strings.Split(line, " ")[1]]++
	}
	// 4.13.33 to 4.13.36 have the risk HighNodeStatusReportFrequency, which always applies.
	if diff := cmp.Diff(map[string]int{False: 4, Unknown: 25}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if got := said(u.Conditional)[5:8]; !slices.Equal(got, []string{
		"4.13.36 False MultipleReasons",
		"4.13.35 False HighNodeStatusReportFrequency", "4.13.34 False HighNodeStatusReportFrequency",
	}) {
		t.Errorf("got %q", got)
	}
	if u.Current.GetVersion() != "4.13.0" || len(u.Current.GetChannels()) == 0 {
		t.Errorf("current release %v", u.Current)
	}
}

func TestEvaluateWithResultsOfRisks(t *testing.T) {
	q := Query{Graph: parsed(t, recorded(t)), Version: "4.13.0", Results: map[string]string{}}
	for _, group := range q.Graph.Conditional {
		for _, r := range group.Risks {
			q.Results[r.GetName()] = False
		}
	}
	q.Results["CephCapDropPanic"] = True
	q.Accept = []string{"CephCapDropPanic", "NobodyKnowsThis"}
	u := Evaluate(q)
	if len(u.Conditional) != 29 || len(u.Available) != 40 {
		t.Errorf("%d conditional and %d available updates, want 29 and 11 + 29", len(u.Conditional), len(u.Available))
	}
	if got := said(u.Conditional)[0]; got != "4.13.41 True AllExposedRisksAccepted" {
		t.Errorf("first conditional update: %s", got)
	}
	if got := said(u.Conditional)[28]; got != "4.13.1 True NotExposedToRisks" {
		t.Errorf("last conditional update: %s", got)
	}
	q.Accept = nil
	if got := said(Evaluate(q).Conditional)[0]; got != "4.13.41 False CephCapDropPanic" {
		t.Errorf("first conditional update, when the risk is not accepted: %s", got)
	}
}

func TestEveryEdgeThatIsPlainAndConditionalIsConditional(t *testing.T) {
	g := parsed(t, recorded(t))
	plain := map[[2]string]bool{}
	for _, e := range g.Edges {
		plain[[2]string{g.Nodes[e[0]].Version, g.Nodes[e[1]].Version}] = true
	}
	both := 0
	for _, n := range g.Nodes {
		u := Evaluate(Query{Graph: g, Version: n.Version})
		available := versions(u.Available)
		for _, c := range u.Conditional {
			if plain[[2]string{n.Version, c.GetRelease().GetVersion()}] {
				both++
				if slices.Contains(available, c.GetRelease().GetVersion()) {
					t.Errorf("%s to %s is available", n.Version, c.GetRelease().GetVersion())
				}
			}
		}
	}
	if both != 136 {
		t.Errorf("%d edges are plain and conditional, want 136", both)
	}
}

// smallGraph has plain edges from 1.0.0 to 1.0.1 and on to 1.1.0, and whatever conditional edges are given.
func smallGraph(t testing.TB, conditional string) *Graph {
	t.Helper()
	return parsed(t, []byte(`{"nodes":[
		{"version":"1.0.0","payload":"r@sha256:a"},
		{"version":"1.0.1","payload":"r@sha256:b","metadata":{"url":"https://example.com/1.0.1","io.openshift.upgrades.graph.release.channels":" stable-1.1,,fast-1.0, stable-1.1 ,"}},
		{"version":"1.1.0","payload":"r@sha256:c"},
		{"version":"0.9.0","payload":"r@sha256:d"}],
		"edges":[[0,1],[1,2],[3,0]],"conditionalEdges":[`+conditional+`]}`))
}

func TestEvaluateRules(t *testing.T) {
	const edge = `"edges":[{"from":"1.0.0","to":"1.1.0"}]`
	tests := map[string]struct {
		conditional string
		results     map[string]string
		accept      []string
		want        []string
		message     string
	}{
		"a rule that always matches": {
			conditional: `{` + edge +
				`,"risks":[{"name":"R","message":"It hurts.","url":"https://example.com/r","matchingRules":[{"type":"Always"}]}]}`,
			want: []string{"1.1.0 False R"}, message: "It hurts. https://example.com/r",
		},
		"a query": {
			conditional: `{` + edge +
				`,"risks":[{"name":"R","message":"It hurts.","url":"https://example.com/r","matchingRules":[{"type":"PromQL","promql":{"promql":"x"}}]}]}`,
			want:    []string{"1.1.0 Unknown EvaluationFailed"},
			message: "Could not evaluate exposure to update risk R (the query has not been evaluated yet)\n  R description: It hurts.\n  R URL: https://example.com/r",
		},
		"a query whose answer is given": {
			conditional: `{` + edge + `,"risks":[{"name":"R","matchingRules":[{"type":"PromQL","promql":{"promql":"x"}}]}]}`,
			results:     map[string]string{"R": False},
			want:        []string{"1.1.0 True NotExposedToRisks"},
			message:     "The update is recommended, because none of the conditional update risks apply to this cluster.",
		},
		"a query, then a rule that always matches": {
			conditional: `{` + edge +
				`,"risks":[{"name":"R","message":"m","matchingRules":[{"type":"PromQL","promql":{"promql":"x"}},{"type":"Always"}]}]}`,
			want:    []string{"1.1.0 Unknown EvaluationFailed"},
			message: "Could not evaluate exposure to update risk R (the query has not been evaluated yet)\n  R description: m\n  R URL: ",
		},
		"a name that is no reason": {
			conditional: `{` + edge + `,"risks":[{"name":"not a reason","message":"m","matchingRules":[{"type":"Always"}]}]}`,
			want:        []string{"1.1.0 False ExposedToRisks"}, message: "m",
		},
		"two risks of different kinds": {
			conditional: `{` + edge +
				`,"risks":[{"name":"A","message":"a","matchingRules":[{"type":"Always"}]},{"name":"B","message":"b","matchingRules":[{"type":"PromQL","promql":{"promql":"x"}}]}]}`,
			want:    []string{"1.1.0 False MultipleReasons"},
			message: "a\n\nCould not evaluate exposure to update risk B (the query has not been evaluated yet)\n  B description: b\n  B URL: ",
		},
		"rules of unknown types alone drop the update": {
			conditional: `{` + edge +
				`,"risks":[{"name":"R","matchingRules":[{"type":"Oracle"},{"type":"PromQL"},{"type":"Always","promql":{"promql":"x"}}]}]}`,
		},
		"a rule of an unknown type is passed over": {
			conditional: `{` + edge +
				`,"risks":[{"name":"R","message":"m","matchingRules":[{"type":"Oracle"},{"type":"Always"}]}]}`,
			want: []string{"1.1.0 False R"}, message: "m",
		},
		"two groups for one image drop the update": {
			conditional: `{` + edge + `,"risks":[{"name":"R","matchingRules":[{"type":"Always"}]}]},{` + edge +
				`,"risks":[{"name":"S","matchingRules":[{"type":"Always"}]}]}`,
		},
		"an accepted risk that applies": {
			conditional: `{` + edge + `,"risks":[{"name":"A","message":"a","matchingRules":[{"type":"Always"}]}]}`,
			accept:      []string{"A"}, want: []string{"1.1.0 True AllExposedRisksAccepted"},
			message: "The update is recommended, because each conditional update risk either does not apply to this cluster or is accepted.\n\n" +
				"Accepted: A.",
		},
		"an accepted risk that cannot be evaluated": {
			conditional: `{` + edge +
				`,"risks":[{"name":"R","matchingRules":[{"type":"PromQL","promql":{"promql":"x"}}]}]}`,
			accept: []string{"R"}, want: []string{"1.1.0 True AllExposedRisksAccepted"},
			message: "The update is recommended, because each conditional update risk either does not apply to this cluster or is accepted.\n\n" +
				"Accepted: R.\n\nAccepted without an evaluation of whether they apply: R (the query has not been evaluated yet).",
		},
		"the same beside one that applies": {
			conditional: `{` + edge + `,"risks":[{"name":"A","message":"a","matchingRules":[{"type":"Always"}]},
				{"name":"R","matchingRules":[{"type":"PromQL","promql":{"promql":"x"}}]}]}`,
			results: map[string]string{"R": Unknown}, accept: []string{"R"}, want: []string{"1.1.0 False A"},
			message: "a\n\nAccepted without an evaluation of whether they apply: R (the rule could not be evaluated).",
		},
		"edges from other versions do not count": {
			conditional: `{"edges":[{"from":"1.0.1","to":"1.1.0"}],"risks":[{"name":"R","matchingRules":[{"type":"Always"}]}]}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			u := Evaluate(Query{Graph: smallGraph(t, tt.conditional), Version: "1.0.0", Results: tt.results, Accept: tt.accept})
			if diff := cmp.Diff(tt.want, said(u.Conditional)); diff != "" {
				t.Errorf("conditional updates (-want +got):\n%s", diff)
			}
			if len(tt.want) > 0 {
				if got := Find(u.Conditional[0].GetConditions(), Recommended).GetMessage(); got != tt.message {
					t.Errorf("message %q, want %q", got, tt.message)
				}
			}
			want := []string{"1.0.1"}
			if len(tt.want) > 0 && strings.Contains(tt.want[0], " True ") {
				want = []string{"1.1.0", "1.0.1"}
			}
			if diff := cmp.Diff(want, versions(u.Available)); diff != "" {
				t.Errorf("available updates (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEvaluateTellsOfTheRelease(t *testing.T) {
	u := Evaluate(Query{Graph: smallGraph(t, ""), Version: "1.0.0"})
	r := u.Available[0]
	if r.GetImage() != "r@sha256:b" || r.GetUrl() != "https://example.com/1.0.1" ||
		!slices.Equal(r.GetChannels(), []string{"fast-1.0", "stable-1.1"}) {
		t.Errorf("got %v", r)
	}
}

// What a tag names may change after it was checked.
func TestAPayloadWithoutADigestIsNotOffered(t *testing.T) {
	g := parsed(t, []byte(`{"nodes":[{"version":"1.0.0"},{"version":"1.0.1","payload":"r@sha256:a"},
		{"version":"1.0.2","payload":"r:1.0.2"},{"version":"1.0.3"},{"version":"1.0.4","payload":"r@sha256:"}],
		"edges":[[0,1],[0,2],[0,4],[1,3]],"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.0.3"}],
		"risks":[{"name":"R","matchingRules":[{"type":"Always"}]}]}]}`))
	q := Query{Graph: g, Version: "1.0.0"}
	u := Evaluate(q)
	if diff := cmp.Diff([]string{"1.0.1"}, versions(u.Available)); diff != "" || len(u.Conditional) > 0 {
		t.Errorf("%v are offered, and (-want +got):\n%s", said(u.Conditional), diff)
	}
	for version, why := range map[string]string{
		"1.0.2": "1.0.2 is not offered: its payload r:1.0.2 has no digest (@sha256:…).",
		"1.0.3": "1.0.3 is not offered: the graph names no payload for it.",
		"1.0.4": "1.0.4 is not offered: its payload r@sha256: has no digest (@sha256:…).",
	} {
		if got := WhyNot(q, version); got != why || !strings.Contains(u.Retrieved.GetMessage(), why) {
			t.Errorf("WhyNot = %q, RetrievedUpdates says %q, want %q", got, u.Retrieved.GetMessage(), why)
		}
	}
}

// A cluster that is to have releases for all processors gets its own version of them first.
func TestTheMoveToReleasesForAllProcessors(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "candidate-4.12-multi.json"))
	if err != nil {
		t.Fatal(err)
	}
	const version = "4.12.0-rc.1"
	g, err := ParseGraph(raw, version)
	if err != nil {
		t.Fatal(err)
	}
	image := g.Nodes[g.find(version)].Payload
	cv := &updatev1.ClusterVersion{
		Spec:   &updatev1.ClusterVersionSpec{ClusterId: "3fdbd1bd-5a46-4e2b-8d9a-1a4f6a3c2b1d"},
		Status: &updatev1.ClusterVersionStatus{Desired: &updatev1.ReleaseReference{Version: proto.String(version)}},
	}
	evaluate := func() Updates {
		u := Evaluate(Query{Graph: g, Version: version, ToMulti: ToMulti(cv)})
		cv.Status.AvailableUpdates = u.Available
		return u
	}
	if a := Architecture(cv, "amd64"); a != "amd64" || ToMulti(cv) {
		t.Errorf("asked for %s", a)
	}
	cv.Status.AvailableUpdates = []*updatev1.ReleaseReference{
		{Version: proto.String(version), Image: proto.String("r@sha256:old")},
		{Version: proto.String("4.12.0-rc.2"), Image: proto.String("r@sha256:amd64")},
	}
	cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{
		Version:      proto.String("4.12.0-rc.2"),
		Architecture: proto.String(Multi),
	}
	if r := Desired(cv); r != nil {
		t.Errorf("a release for one kind of processor is taken: %v", r)
	}
	cv.Spec.DesiredUpdate.Version = proto.String(version)
	if a := Architecture(cv, "amd64"); a != "multi" || !ToMulti(cv) {
		t.Errorf("asked for %s", a)
	}
	u := evaluate()
	if len(u.Available) != 1 || u.Available[0].GetImage() != image || u.Available[0].GetArchitecture() != Multi ||
		len(u.Conditional) != 0 || u.Retrieved.GetStatus() != True {
		t.Errorf("got %v", u)
	}
	if r := Desired(cv); r.GetImage() != image {
		t.Errorf("desired is %v", r)
	}
	q := Query{Graph: g, Version: version, ToMulti: true}
	for v, want := range map[string]string{
		version:       "The Multi release of 4.12.0-rc.1 is offered: it is an available update.",
		"4.12.0-rc.2": "4.12.0-rc.2 is not offered: the cluster moves to the Multi release of 4.12.0-rc.1 first.",
	} {
		if got := WhyNot(q, v); got != want {
			t.Errorf("WhyNot = %q, want %q", got, want)
		}
	}
	cv.Status.Desired = Desired(cv)
	if a := Architecture(cv, "amd64"); a != "multi" || ToMulti(cv) {
		t.Errorf("after the move %s is asked for", a)
	}
	if u := evaluate(); len(u.Available) == 0 || u.Available[0].GetVersion() == version {
		t.Errorf("after the move: %v", u)
	}
	cv.Spec.DesiredUpdate = nil // there is no way back
	if a := Architecture(cv, "amd64"); a != "multi" {
		t.Errorf("later %s is asked for", a)
	}
	if u := Evaluate(Query{Graph: smallGraph(t, ""), Version: "1.0.0", ToMulti: true}); len(u.Available) > 0 ||
		!strings.HasSuffix(u.Retrieved.GetMessage(), "the graph has no Multi release of 1.0.0") {
		t.Errorf("got %v", u)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	tests := map[string]struct {
		graph           *Graph
		version         string
		reason, message string
		available       int
	}{
		"a version that the channel does not have": {
			graph: smallGraph(t, ""), version: "2.0.0", reason: versionNotFound,
			message: `Unable to retrieve available updates: currently reconciling cluster version 2.0.0 not found in the "stable-1.1" channel`,
		},
		"a version that is none": {
			graph: smallGraph(t, ""), version: "x", reason: invalidCurrentVersion,
			message: `The current version "x" is no semantic version.`,
		},
		"a conditional update without a node, and keeps the plain ones": {
			graph: smallGraph(t,
				`{"edges":[{"from":"1.0.0","to":"7.0.0"}],"risks":[{"name":"R","matchingRules":[{"type":"Always"}]}]}`),
			version: "1.0.0", reason: responseInvalid,
			message: "Unable to retrieve available updates: no node for conditional update 7.0.0", available: 1,
		},
		"bad metadata": {
			graph: parsed(t, []byte(`{"nodes":[{"version":"1.0.0","metadata":{"url":"::"}}]}`)), version: "1.0.0",
			reason:  responseInvalid,
			message: `Unable to retrieve available updates: invalid URL for 1.0.0: "::"`,
		},
		"no graph": {
			version: "1.0.0", reason: versionNotFound,
			message: `Unable to retrieve available updates: currently reconciling cluster version 1.0.0 not found in the "stable-1.1" channel`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			u := Evaluate(Query{Graph: tt.graph, Version: tt.version, Channel: "stable-1.1"})
			if u.Retrieved.GetStatus() != False || u.Retrieved.GetReason() != tt.reason ||
				u.Retrieved.GetMessage() != tt.message {
				t.Errorf("RetrievedUpdates = %v, want %s: %s", u.Retrieved, tt.reason, tt.message)
			}
			if len(u.Available) != tt.available || len(u.Conditional) != 0 {
				t.Errorf("%v and %v are offered", u.Available, u.Conditional)
			}
		})
	}
}

func TestEvaluateKeepsTheTimeOfAStatusThatStays(t *testing.T) {
	g := smallGraph(t,
		`{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[{"name":"R","message":"m","matchingRules":[{"type":"Always"}]}]}`)
	first := Evaluate(Query{Graph: g, Version: "1.0.0", Now: noon()})
	later := noon().Add(time.Hour)
	second := Evaluate(Query{Graph: g, Version: "1.0.0", Now: later, Before: first.Conditional})
	if got := Find(second.Conditional[0].GetConditions(), Recommended).GetLastTransitionTime().AsTime(); !got.Equal(
		noon()) {
		t.Errorf("the time moved to %v", got)
	}
	third := Evaluate(Query{Graph: g, Version: "1.0.0", Now: later, Before: second.Conditional, Results: map[string]string{
		"R": False,
	}})
	if got := Find(third.Conditional[0].GetConditions(), Recommended).GetLastTransitionTime().AsTime(); !got.Equal(later) {
		t.Errorf("the time stayed at %v", got)
	}
	if got := Find(third.Conditional[0].GetRisks()[0].GetConditions(), Applies); got.GetReason() != notMatch ||
		!got.GetLastTransitionTime().AsTime().Equal(later) {
		t.Errorf("the risk says %v", got)
	}
	if risk := g.Conditional[0].Risks[0]; len(risk.GetConditions()) != 0 {
		t.Error("the graph was modified")
	}
}

func TestEvaluateOffersOnlyWhatTheGraphHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGraph(t)
		from := rapid.SampledFrom(g.Nodes).Draw(t, "from").Version
		u := Evaluate(Query{Graph: g, Version: from, Results: map[string]string{
			"A": rapid.SampledFrom([]string{True, False, Unknown}).Draw(t, "A"),
		}})
		offered := versions(u.Available)
		for i, v := range offered {
			if i > 0 && semver.MustParse(offered[i-1]).LessThan(semver.MustParse(v)) {
				t.Fatalf("%v is not in order", offered)
			}
		}
		for _, c := range u.Conditional {
			recommended := Find(c.GetConditions(), Recommended).GetStatus() == True
			if slices.Contains(offered, c.GetRelease().GetVersion()) != recommended {
				t.Fatalf("%s is recommended: %v; available: %v", c.GetRelease().GetVersion(), recommended, offered)
			}
		}
		for _, n := range g.Nodes {
			if text := WhyNot(Query{Graph: g, Version: from}, n.Version); text == "" {
				t.Fatalf("nothing is said of %s", n.Version)
			}
		}
	})
}

// drawGraph draws a graph whose edges lead from lower to higher versions.
func drawGraph(t *rapid.T) *Graph {
	n := rapid.IntRange(1, 12).Draw(t, "nodes")
	var nodes, edges, conditional []string
	for i := range n {
		nodes = append(nodes, fmt.Sprintf(`{"version":"1.%d.%d","payload":"r@sha256:%02x"}`, i/4, i%4, i))
		for j := range i {
			switch rapid.IntRange(0, 3).Draw(t, "edge") {
			case 0:
				edges = append(edges, fmt.Sprintf("[%d,%d]", j, i))
			case 1:
				conditional = append(conditional,
					fmt.Sprintf(
						`{"edges":[{"from":"1.%d.%d","to":"1.%d.%d"}],"risks":[{"name":"A","matchingRules":[{"type":"Always"}]}]}`, j/4,
						j%4, i/4, i%4))
			}
		}
	}
	g,
		err := ParseGraph([]byte(fmt.Sprintf(`{"nodes":[%s],"edges":[%s],"conditionalEdges":[%s]}`, strings.Join(nodes, ","),
		strings.Join(edges, ","), strings.Join(conditional, ","))), "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAsk(t *testing.T) {
	const id = "3fdbd1bd-5a46-4e2b-8d9a-1a4f6a3c2b1d"
	spec := func(upstream, channel, id string) *updatev1.ClusterVersionSpec {
		return &updatev1.ClusterVersionSpec{Upstream: upstream, Channel: channel, ClusterId: id}
	}
	tests := map[string]struct {
		spec          *updatev1.ClusterVersionSpec
		version, arch string
		url, reason   string
	}{
		"asks in the order of the names, after what the address asks": {
			spec("https://example.com/graph?z=1", "stable-1.1", id), "1.0.0", "amd64",
			"https://example.com/graph?arch=amd64&channel=stable-1.1&id=" + id + "&version=1.0.0&z=1", "",
		},
		"a file is not asked anything": {
			spec("file:///srv/graphs", "stable-1.1", id), "1.0.0", "amd64", "file:///srv/graphs",
			"",
		},
		"no upstream":             {spec("", "stable-1.1", id), "1.0.0", "amd64", "", noUpstream},
		"an address that is none": {spec("gopher://x", "stable-1.1", id), "1.0.0", "amd64", "", invalidURI},
		"no identity":             {spec("https://example.com", "stable-1.1", "x"), "1.0.0", "amd64", "", invalidID},
		"no architecture":         {spec("https://example.com", "stable-1.1", id), "1.0.0", "", "", noArchitecture},
		"no version":              {spec("https://example.com", "stable-1.1", id), "", "amd64", "", noCurrentVersion},
		"no channel":              {spec("https://example.com", "", id), "1.0.0", "amd64", "", noChannel},
		"a version that is none": {
			spec("https://example.com", "stable-1.1", id), "1", "amd64", "",
			invalidCurrentVersion,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			url, refused := Ask(tt.spec, tt.version, tt.arch)
			if url != tt.url || refused.GetReason() != tt.reason {
				t.Errorf("Ask = %q, %v; want %q, %s", url, refused, tt.url, tt.reason)
			}
		})
	}
}

func TestKeep(t *testing.T) {
	down := AskFailed(remoteFailed, errors.New("connection refused"))
	if !Keep(down, noon(), noon().Add(23*time.Hour)) || Keep(down, noon(), noon().Add(24*time.Hour)) {
		t.Error("the lists are not kept for 24 hours")
	}
	if Keep(notRetrieved(versionNotFound, "gone"), noon(), noon()) {
		t.Error("the lists are kept for a version that is not there")
	}
}

func TestWhyNot(t *testing.T) {
	risky := `{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[{"name":"R","message":"It hurts.","url":"https://example.com/r","matchingRules":[{"type":"Always"}]}]}`
	tests := map[string]struct{ conditional, version, want string }{
		"offered":          {"", "1.0.1", "1.0.1 is offered: it is an available update."},
		"the current one":  {"", "1.0.0", "1.0.0 is the version that is reconciled now."},
		"no version":       {"", "latest", `"latest" is no semantic version.`},
		"not in the graph": {"", "1.9.0", `1.9.0 is not offered: it is not in the "stable-1.1" channel.`},
		"no edge but a way": {
			"", "1.1.0",
			`1.1.0 is not offered: the "stable-1.1" channel has no edge from 1.0.0 to 1.1.0; it can be reached by way of 1.0.1.`,
		},
		"older": {
			"", "0.9.0", `0.9.0 is not offered: the "stable-1.1" channel has no edge from 1.0.0 to 0.9.0, which is older.`,
		},
		"a risk": {risky, "1.1.0", "1.1.0 is supported but not recommended (R): It hurts. https://example.com/r"},
		"two sets of risks": {
			risky + "," + risky, "1.1.0",
			"1.1.0 is not offered: its risks are unknown, since the graph states them twice or by rules of unknown types.",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := WhyNot(Query{Graph: smallGraph(t, tt.conditional), Version: "1.0.0", Channel: "stable-1.1"},
				tt.version); got != tt.want {
				t.Errorf("WhyNot = %q, want %q", got, tt.want)
			}
		})
	}
}
