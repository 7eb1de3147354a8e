package updategraph

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// published returns the public graph data.
func published(t testing.TB) fstest.MapFS {
	t.Helper()
	f, err := os.Open("testdata/graph-data.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			files[h.Name] = &fstest.MapFile{Data: raw}
		}
	}
}

func readData(t testing.TB, files fstest.MapFS) *Data {
	t.Helper()
	d, err := Read(files)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// suggestions are the ranges of versions that lead to the releases of a minor version.
type suggestions struct {
	Default struct {
		MinorMin       string   `json:"minor_min"`
		MinorMax       string   `json:"minor_max"`
		MinorBlockList []string `json:"minor_block_list"`
		ZMin           string   `json:"z_min"`
		ZMax           string   `json:"z_max"`
		ZBlockList     []string `json:"z_block_list"`
	} `json:"default"`
}

// suggested returns the releases of versions as they would be built today.
func suggested(t testing.TB, files fstest.MapFS, versions []string) (out []Release) {
	t.Helper()
	minor := func(v string) string { return strings.Join(strings.SplitN(v, ".", 3)[:2], ".") }
	for i, to := range versions {
		var s suggestions
		if err := yaml.Unmarshal(files["build-suggestions/"+minor(to)+".yaml"].Data, &s); err != nil {
			t.Fatal(err)
		}
		r := Release{Version: to, Payload: fmt.Sprintf("x@sha256:%064d", i)}
		for _, from := range versions {
			low, high, without := s.Default.MinorMin, s.Default.MinorMax, s.Default.MinorBlockList
			if minor(from) == minor(to) {
				low, high, without = s.Default.ZMin, s.Default.ZMax, s.Default.ZBlockList
			}
			if compareVersions(from, to) < 0 && compareVersions(low, from) <= 0 && compareVersions(from, high) <= 0 &&
				!slices.Contains(without, from) {
				r.Previous = append(r.Previous, from)
			}
		}
		out = append(out, r)
	}
	return out
}

// names returns what leads where in a graph, and the names of the risks; "" for none.
func names(g *Graph) map[Edge]string {
	out := map[Edge]string{}
	for _, e := range g.Edges {
		out[Edge{g.Nodes[e[0]].Version, g.Nodes[e[1]].Version}] = ""
	}
	for _, c := range g.ConditionalEdges {
		var risks []string
		for _, r := range c.Risks {
			risks = append(risks, r.Name)
		}
		slices.Sort(risks)
		for _, e := range c.Edges {
			out[e] = strings.Join(risks, " ")
		}
	}
	return out
}

// The public graph data give the public graph, as far as risks have not been declared since it was recorded.
func TestTheGraphOfPublishedData(t *testing.T) {
	raw, err := os.ReadFile("../../services/update-orchestrator/plan/testdata/stable-4.13-amd64.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded Graph
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	var versions []string
	for _, n := range recorded.Nodes {
		versions = append(versions, n.Version)
	}
	files := published(t)
	g, ok, err := readData(t, files).Graph("stable-4.13", "amd64", suggested(t, files, versions))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	want, got := names(&recorded), names(g)
	var missing, more, conditional, same, since int
	for e, risks := range want {
		ours, there := got[e]
		switch {
		case !there:
			missing++
		case risks != "" && ours == "":
			t.Errorf("%v has lost its risks %s", e, risks)
		case risks != "":
			conditional++
			if risks == ours {
				same++
			}
		case ours != "":
			since++
		}
	}
	for e := range got {
		if _, there := want[e]; !there {
			more++
		}
	}
	counts := []int{len(g.Nodes), len(want), missing, more, conditional, same, since}
	if diff := cmp.Diff([]int{98, 3429, 0, 668, 2394, 1832, 86}, counts); diff != "" {
		t.Errorf(
			"nodes, recorded updates, missing, more, conditional, with the same risks, conditional since (-want +got):\n%s",
			diff)
	}
}

func small(extra ...string) fstest.MapFS {
	files := fstest.MapFS{
		"version":              {Data: []byte("1.1.0\n")},
		"channels/stable.yaml": {Data: []byte("name: stable\nversions: [1.0.0, 1.1.0, 1.2.0+arm64, 1.3.0]\n")},
		"channels/fast.yaml":   {Data: []byte("name: fast\nversions: [1.1.0]\n")},
		"channels/README.md":   {Data: []byte("no channel")},
	}
	for i := 0; i+1 < len(extra); i += 2 {
		files[extra[i]] = &fstest.MapFile{Data: []byte(extra[i+1])}
	}
	return files
}

const always = "\nname: Late\nurl: https://example.com/N\nmessage: m\nmatchingRules: [{type: Always}]\n"

func releases() []Release {
	return []Release{
		{Version: "1.3.0", Payload: "x@sha256:3", Previous: []string{"1.1.0", "1.0.0", "1.1.0", "0.9.0", "1.3.0"}},
		{Version: "1.2.0", Payload: "x@sha256:2", Previous: []string{"1.1.0"}},
		{Version: "1.1.0", Payload: "x@sha256:1", Previous: []string{"1.0.0"}, Metadata: map[string]string{"url": "u"}},
		{Version: "1.0.0", Payload: "x@sha256:0"},
		{Version: "2.0.0", Payload: "x@sha256:4", Previous: []string{"1.3.0"}},
	}
}

func TestTheGraphOfAChannel(t *testing.T) {
	for name, tt := range map[string]struct {
		files fstest.MapFS
		arch  string
		want  []string
	}{
		"updates between what the channel has": {small(), "amd64", []string{"1.0.0>1.1.0", "1.0.0>1.3.0", "1.1.0>1.3.0"}},
		"a version for one architecture": {small(), "arm64", []string{
			"1.0.0>1.1.0", "1.0.0>1.3.0", "1.1.0>1.2.0",
			"1.1.0>1.3.0",
		}},
		"an update that is removed": {
			small("blocked-edges/1.yaml", "to: 1.3.0\nfrom: 1[.]0[.].*\n"), "amd64", []string{"1.0.0>1.1.0", "1.1.0>1.3.0"},
		},
		"a risk": {
			small("blocked-edges/1.yaml", "to: 1.3.0\nfrom: 1[.]0[.].*"+always), "amd64",
			[]string{"1.0.0>1.1.0", "1.0.0>1.3.0 Late", "1.1.0>1.3.0"},
		},
		"a risk of another architecture": {
			small("blocked-edges/1.yaml", "to: 1.3.0+arm64\nfrom: .*"+always, "blocked-edges/2.yaml",
				"to: 1.1.0\nfrom: .*[+]arm64"+always),
			"amd64",
			[]string{"1.0.0>1.1.0", "1.0.0>1.3.0", "1.1.0>1.3.0"},
		},
		"two risks": {
			small("blocked-edges/1.yaml", "to: 1.3.0\nfrom: .*"+always, "blocked-edges/2.yaml", "to: 1.3.0\nfrom: 1[.]1"+
				strings.ReplaceAll(always, "Late", "Early")), "amd64", []string{
				"1.0.0>1.1.0", "1.0.0>1.3.0 Late",
				"1.1.0>1.3.0 Early Late",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, ok, err := readData(t, tt.files).Graph("stable", tt.arch, releases())
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			var got []string
			for e, risks := range names(g) {
				got = append(got, strings.TrimSpace(e.From+">"+e.To+" "+risks))
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]string{"url": "u", metadataChannels: "fast,stable"},
				g.Nodes[1].Metadata); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
		})
	}
	d := readData(t, small())
	if _, ok, err := d.Graph("slow", "amd64", nil); ok || err != nil {
		t.Errorf("a channel that is not there: %t, %v", ok, err)
	}
	twice := append(releases(), Release{Version: "1.1.0", Payload: "x@sha256:9"})
	if _, _, err := d.Graph("stable", "amd64", twice); err == nil ||
		err.Error() != "x@sha256:1 and x@sha256:9 are both version 1.1.0" {
		t.Errorf("two releases of a version: %v", err)
	}
	if g, _, err := d.Graph("fast", "amd64", nil); err != nil || g.Nodes == nil || g.Edges == nil ||
		g.ConditionalEdges == nil {
		t.Errorf("an empty graph has no lists: %v, %v", g, err)
	}
}

func TestDataThatMakeNoSenseAreRefusedWithTheirPlace(t *testing.T) {
	for name, tt := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"a newer format":   {small("version", "1.2.0"), "version: format 1.2.0 is not understood, only 1.0 to 1.1 are"},
		"another format":   {small("version", "one"), "version: "},
		"a channel's name": {small("channels/x.yaml", "name: X Y"), `channels/x.yaml: name: "X Y" must have the form`},
		"a channel twice":  {small("channels/x.yaml", "name: fast"), "channels/x.yaml: name: channel fast is defined twice"},
		"a version": {
			small("channels/x.yaml", "name: x\nversions: [1.0.0, one]"),
			`channels/x.yaml: versions[1]: "one" is no semantic version`,
		},
		"no YAML": {small("channels/x.yaml", "name: ["), "channels/x.yaml: "},
		"a target": {
			small("blocked-edges/x.yaml", "to: one\nfrom: x"),
			`blocked-edges/x.yaml: to: "one" is no semantic version`,
		},
		"no source": {small("blocked-edges/x.yaml", "to: 1.0.0"), "blocked-edges/x.yaml: from: must not be empty"},
		"an expression": {
			small("blocked-edges/x.yaml", "to: 1.0.0\nfrom: ("),
			"blocked-edges/x.yaml: from: error parsing regexp",
		},
		"a risk's name": {
			small("blocked-edges/x.yaml", "to: 1.0.0\nfrom: x\nmatchingRules: [{type: Always}]"),
			"blocked-edges/x.yaml: name: must not be empty",
		},
		"a query too many": {
			small("blocked-edges/x.yaml", "to: 1.0.0\nfrom: x"+strings.Replace(always, "Always", "Always, promql: {promql: x}",
				1)), "blocked-edges/x.yaml: matchingRules[0].promql: is for",
		},
		"a query too few": {
			small("blocked-edges/x.yaml", "to: 1.0.0\nfrom: x"+strings.Replace(always, "Always", "PromQL", 1)),
			"blocked-edges/x.yaml: matchingRules[0].promql: is for",
		},
		"no directory": {fstest.MapFS{"version": {Data: []byte("1.0.0")}}, "channels"},
		"no channel": {
			fstest.MapFS{"version": {Data: []byte("1.0.0")}, "channels/README.md": {}},
			"channels: no channel is defined",
		},
		"two documents": {
			small("blocked-edges/x.yaml", "to: 1.0.9\nfrom: x\n---\nto: 1.1.0\nfrom: x\n"),
			"blocked-edges/x.yaml: line 3: a second document",
		},
		"a key twice":  {small("blocked-edges/x.yaml", "to: 1.1.0\nfrom: x\nto: 1.0.7\n"), "blocked-edges/x.yaml: "},
		"an alias":     {small("blocked-edges/x.yaml", "to: &a 1.1.0\nfrom: *a\n"), "blocked-edges/x.yaml: line 1"},
		"another name": {small("blocked-edges/x.YAML", "to: 1.1.0\nfrom: x\n"), "blocked-edges/x.YAML: only *.yaml"},
		"a directory":  {small("blocked-edges/x/y.yaml", "to: 1.1.0\nfrom: x\n"), "blocked-edges/x: only *.yaml"},
		"a long expression": {
			small("blocked-edges/x.yaml", "to: 1.1.0\nfrom: "+strings.Repeat("x", maxFrom+1)),
			"blocked-edges/x.yaml: from: has 4097 bytes",
		},
		"a file too large": {
			small("channels/x.yaml", strings.Repeat("#", maxFile+1)),
			"channels/x.yaml: has more than 1048576 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(tt.files); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

func BenchmarkGraph(b *testing.B) {
	files := published(b)
	d := readData(b, files)
	list := suggested(b, files, d.channels["stable-4.13"])
	for b.Loop() {
		if _, _, err := d.Graph("stable-4.13", "amd64", list); err != nil {
			b.Fatal(err)
		}
	}
}

// What blocks updates must not get lost with a file that cannot be read.
func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	for name, f := range small("blocked-edges/b.yaml", "to: 1.1.0\nfrom: x\n") {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "blocked-edges", "a.yaml")
	if err := os.Symlink("/nowhere", link); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(os.DirFS(dir)); err == nil || !strings.Contains(err.Error(), "a.yaml") {
		t.Errorf("a link to nowhere: %v", err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(link, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(os.DirFS(dir)); err == nil || !strings.Contains(err.Error(), "a.yaml: is no regular file") {
		t.Errorf("a pipe: %v", err)
	}
}

func TestAReleaseOfTheArchitectureCountsFirst(t *testing.T) {
	d := readData(t, small())
	list := append(releases(), Release{
		Version: "1.1.0", Payload: "x@sha256:9", Arch: "multi",
		Previous: []string{"1.0.0"},
	})
	for arch, want := range map[string]string{"amd64": "x@sha256:1", "multi": "x@sha256:9"} {
		g, _, err := d.Graph("stable", arch, list)
		if err != nil || g.Nodes[1].Payload != want {
			t.Errorf("%s: %v, %v; want %s", arch, g, err, want)
		}
	}
	if _, _, err := d.Graph("stable", "amd64", []Release{{Version: "1.1.0+b5", Payload: "x@sha256:5"}}); err == nil ||
		err.Error() != "x@sha256:5: version 1.1.0+b5 has build metadata" {
		t.Errorf("build metadata: %v", err)
	}
}
