package upstream

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

const (
	id    = "7b0fbe4e-6a3c-4f4e-9f0a-3f8d7a0e2c11"
	graph = `{"nodes":[{"version":"1.0.0","payload":"a@sha256:1"}],"edges":[]}`
)

func spec(upstream string) *updatev1.ClusterVersionSpec {
	return &updatev1.ClusterVersionSpec{ClusterId: id, Upstream: upstream, Channel: "stable-1"}
}

func TestAnUpdateServiceIsAskedAsTheProtocolSays(t *testing.T) {
	var asked *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		_, _ = w.Write([]byte(graph))
	}))
	defer s.Close()
	g, refused := New("windlass/1").Graph(t.Context(), spec(s.URL+"/graph?tenant=x"), "1.0.0", "arm64")
	if refused != nil || len(g.Nodes) != 1 {
		t.Fatal(g, refused)
	}
	if q := asked.URL.RawQuery; q != "arch=arm64&channel=stable-1&id="+id+"&tenant=x&version=1.0.0" {
		t.Errorf("query is %s", q)
	}
	if asked.Header.Get("Accept") != "application/json" || asked.Header.Get("User-Agent") != "windlass/1" {
		t.Errorf("header is %v", asked.Header)
	}
}

func TestAnAnswerThatIsNoneHasItsReason(t *testing.T) {
	answer := func(code int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	dir := t.TempDir()
	for name, test := range map[string]struct{ upstream, reason, says string }{
		"an error":            {answer(500, `{"kind":"failed_json_out","value":"broken"}`), "ResponseFailed", "broken"},
		"no graph":            {answer(200, "<html>"), "ResponseInvalid", ""},
		"no server":           {"http://127.0.0.1:1", "RemoteFailed", "refused"},
		"no file":             {"file://" + dir, "RemoteFailed", "no such file"},
		"a file of elsewhere": {"file://host/graph", "InvalidURI", ""},
		"no upstream":         {"", "NoUpstream", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, refused := New("windlass/1").Graph(t.Context(), spec(test.upstream), "1.0.0", "amd64")
			if refused.GetReason() != test.reason || !strings.Contains(refused.GetMessage(), test.says) {
				t.Errorf("refused with %v", refused)
			}
		})
	}
}

func TestADirectoryHasAFileForEachChannelOrOneForAll(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nodes := func(upstream string) int {
		g, refused := New("windlass/1").Graph(t.Context(), spec(upstream), "1.0.0", "amd64")
		if refused != nil {
			t.Fatal(refused)
		}
		return len(g.Nodes)
	}
	write("graph.json", graph)
	before := Stamp("file://"+dir, "stable-1")
	if n := nodes("file://" + dir); n != 1 {
		t.Errorf("%d nodes in graph.json", n)
	}
	write("stable-1.json", `{"nodes":[],"edges":[]}`)
	if n := nodes("file://" + dir); n != 0 {
		t.Errorf("%d nodes in the channel's file", n)
	}
	if after := Stamp("file://"+dir, "stable-1"); after == before {
		t.Errorf("stamp stays %s", after)
	}
	if n := nodes("file://" + filepath.Join(dir, "graph.json")); n != 1 {
		t.Errorf("%d nodes in the file itself", n)
	}
	if s := Stamp("https://example.com", "stable-1"); s != "" {
		t.Errorf("stamp of an address is %s", s)
	}
}
