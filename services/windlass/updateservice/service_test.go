package updateservice

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/updategraph"
)

// place has graph data and releases on disk.
type place struct {
	*testing.T
	Source
}

func newPlace(t *testing.T) *place {
	p := &place{t, Source{
		GraphData: t.TempDir(), Layouts: []string{filepath.Join(t.TempDir(), "images")},
		Repository: "example.com/release",
	}}
	p.write("version", "1.1.0\n")
	p.write("channels/stable.yaml", "name: stable-1\nversions: [1.0.0, 1.1.0, 1.2.0]\n")
	p.write("blocked-edges/x.yaml",
		"to: 1.2.0\nfrom: 1[.]0[.].*\nname: R\nmessage: m\nurl: https://example.com/R\nmatchingRules: [{type: Always}]\n")
	return p
}

func (p *place) write(name, text string) {
	p.Helper()
	file := filepath.Join(p.GraphData, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// release makes a release image and returns its digest.
func (p *place) release(version string, previous ...string) string {
	p.Helper()
	from := p.TempDir()
	manifest := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n"
	if err := os.WriteFile(filepath.Join(from, "0000_10_a_b.yaml"), []byte(manifest), 0o600); err != nil {
		p.Fatal(err)
	}
	digest, err := release.New(p.Layouts[0], release.Build{From: from, Version: version, Previous: previous})
	if err != nil {
		p.Fatal(err)
	}
	return digest
}

func get(t *testing.T, h http.Handler, target, accept string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, target, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if kind := w.Header().Get("Content-Type"); kind != "application/json" {
		t.Errorf("%s: Content-Type %q", target, kind)
	}
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestTheGraphsOfReleasesAreServed(t *testing.T) {
	p := newPlace(t)
	digests := []string{p.release("1.0.0"), p.release("1.1.0", "1.0.0"), p.release("1.2.0", "1.0.0", "1.1.0")}
	s, skipped, err := Load(t.Context(), p.Source)
	if err != nil || len(skipped) > 0 {
		t.Fatal(skipped, err)
	}
	code, text := get(t, s, "/graph?channel=stable-1&arch=arm64&id=x&version=1.0.0", "application/json")
	var got updategraph.Graph
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK {
		t.Fatal(code, text, err)
	}
	var payloads []string
	for _, n := range got.Nodes {
		payloads = append(payloads, n.Version+" "+n.Payload)
	}
	want := []string{
		"1.0.0 example.com/release@" + digests[0], "1.1.0 example.com/release@" + digests[1],
		"1.2.0 example.com/release@" + digests[2],
	}
	if diff := cmp.Diff(want, payloads); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][2]int{{0, 1}, {1, 2}}, got.Edges); diff != "" {
		t.Errorf("edges (-want +got):\n%s", diff)
	}
	if len(got.ConditionalEdges) != 1 || got.ConditionalEdges[0].Risks[0].Name != "R" ||
		got.ConditionalEdges[0].Edges[0] != (updategraph.Edge{From: "1.0.0", To: "1.2.0"}) {
		t.Errorf("conditional edges: %v", got.ConditionalEdges)
	}
	for target, want := range map[string]struct {
		accept string
		code   int
		text   string
	}{
		"/api/upgrades_info/v1/graph?channel=none": {"", 200, `{"version":1,"nodes":[],"edges":[],"conditionalEdges":[]}`},
		"/graph": {
			"", 400, `{"kind":"missing_params","value":"mandatory client parameters missing: channel"}`,
		},
		"/graph?channel=A": {
			"", 400, `{"kind":"invalid_params","value":"channel must have the form ^[0-9a-z.-]{1,63}$"}`,
		},
		"/graph?channel=a&arch=../x": {
			"", 400, `{"kind":"invalid_params","value":"arch must have the form ^[0-9a-z_]{1,16}$"}`,
		},
		"/graph?channel=a&version=1.0": {
			"text/html, application/xml;q=0.9", 406,
			`{"kind":"invalid_content_type","value":"only application/json is served"}`,
		},
		"/other": {"", 404, `{"kind":"does_not_exist","value":"/other is not served"}`},
	} {
		if code, text := get(t, s, target, want.accept); code != want.code || text != want.text {
			t.Errorf("%s: %d %s, want %d %s", target, code, text, want.code, want.text)
		}
	}
}

func TestAServiceFollowsItsSourceAndSurvivesWhatMakesNoSense(t *testing.T) {
	p := newPlace(t)
	p.release("1.0.0")
	s, _, err := Load(t.Context(), p.Source)
	if err != nil {
		t.Fatal(err)
	}
	versions := func() (out string) {
		_, text := get(t, s, "/graph?channel=stable-1", "*/*")
		var g updategraph.Graph
		if err := json.Unmarshal([]byte(text), &g); err != nil {
			t.Fatal(text, err)
		}
		for _, n := range g.Nodes {
			out += n.Version + " "
		}
		return out
	}
	if got := versions(); got != "1.0.0 " {
		t.Errorf("versions %s", got)
	}
	p.release("1.1.0", "1.0.0")
	p.write("channels/bad.yaml", "name: [")
	if _, err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "channels/bad.yaml") {
		t.Errorf("error = %v", err)
	}
	if got := versions(); got != "1.0.0 " {
		t.Errorf("after data that make no sense: versions %s", got)
	}
	if err := os.Remove(filepath.Join(p.GraphData, "channels/bad.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := versions(); got != "1.0.0 1.1.0 " {
		t.Errorf("after the data were corrected: versions %s", got)
	}
	// Another image of the same version.
	p.release("1.1.0")
	if _, err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "are both version 1.1.0") {
		t.Errorf("error = %v", err)
	}
	if got := versions(); got != "1.0.0 1.1.0 " {
		t.Errorf("after two releases of a version: versions %s", got)
	}
}

func TestASourceThatIsNotThereIsSaid(t *testing.T) {
	p := newPlace(t)
	if _, _, err := Load(t.Context(), p.Source); err == nil ||
		!strings.HasPrefix(err.Error(), "releases in "+p.Layouts[0]) {
		t.Errorf("without releases: %v", err)
	}
	p.GraphData = filepath.Join(p.GraphData, "none")
	if _, _, err := Load(t.Context(), p.Source); err == nil || !strings.HasPrefix(err.Error(), "graph data "+p.GraphData) {
		t.Errorf("without graph data: %v", err)
	}
}
