package seeds

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

//go:embed testdata/commands.txt
var commandsText string

// command is a command line of a document.
type command struct {
	at       string // document and line
	text     string
	replaced [][2]string
}

// commandsOf returns the commands of a document, in its order.
func commandsOf(t *testing.T, document string) []command {
	t.Helper()
	var out []command
	for line := range strings.Lines(commandsText) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if !strings.HasPrefix(fields[0], document+":") {
			continue
		}
		c := command{at: fields[0], text: fields[1]}
		if len(fields) == 3 {
			for pair := range strings.SplitSeq(fields[2], "; ") {
				from, to, ok := strings.Cut(pair, " = ")
				if !ok || !strings.Contains(c.text, from) {
					t.Fatalf("%s: replacement %q", c.at, pair)
				}
				c.replaced = append(c.replaced, [2]string{from, to})
			}
		}
		out = append(out, c)
	}
	return out
}

// walk goes through the commands of one document.
type walk struct {
	*testing.T
	c     *harness.Cluster
	left  []command
	dir   string            // where the commands run and the documents' files are
	names map[string]string // what {name} in the replacements is

	root     string // directory of the source; the test runs in another one
	examples string // directory of the documents' examples
}

// through walks through a document in a directory of its own. Nothing may be left of what it did to the cluster.
func through(t *testing.T, document string, steps func(*walk)) {
	t.Helper()
	w := &walk{T: t, c: shared.Cluster(t), left: commandsOf(t, document), dir: t.TempDir(), names: map[string]string{}}
	w.root = harness.Root()
	w.examples = filepath.Join(w.root, "kit/manifest/testdata/documents")
	w.names["dir"] = w.dir
	if workers := w.c.MustMachines("worker"); len(workers) > 0 {
		w.names["worker"] = workers[0].GetMetadata().GetName() // a node has the name of its machine
	}
	t.Chdir(w.dir)
	before := w.traces()
	t.Run("commands", func(t *testing.T) {
		inner := *w
		inner.T, inner.c = t, shared.Cluster(t)
		steps(&inner)
		if len(inner.left) > 0 {
			t.Errorf("%s and %d more commands are not run", inner.left[0].at, len(inner.left)-1)
		}
	})
	if after := w.traces(); !slices.Equal(before, after) {
		t.Errorf("the cluster is not as it was before:\n%s\nwas\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// traces is what the commands of the documents can leave behind.
func (w *walk) traces() []string {
	w.Helper()
	nodes, err := w.c.Nodes(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	var out []string
	for _, n := range nodes {
		labels := maps.Clone(n.GetMetadata().GetLabels())
		delete(labels, "kubernetes.io/hostname")
		out = append(out, fmt.Sprintf("node %v %v", labels, n.GetSpec().GetTaints()))
	}
	slices.Sort(out)
	pods, err := schedulingv1.NewPodServiceClient(w.c.Conn()).ListPods(w.Context(), &schedulingv1.ListPodsRequest{})
	if err != nil {
		w.Fatal(err)
	}
	for _, p := range pods.GetItems() {
		if len(p.GetMetadata().GetOwnerReferences()) == 0 {
			out = append(out, "pod "+p.GetMetadata().GetName())
		}
	}
	for _, kind := range []string{"machinesets", "namespaces", "admissionconfigs"} {
		out = append(out, w.c.MustCLI("get", kind, "-o", "name"))
	}
	return append(out, w.c.MustCLI("get", "clusterversion", "version", "-o", "jsonpath={.spec}"))
}

// run runs the next command of the document, at a line of it, and returns what it prints.
func (w *walk) run(at string) string {
	w.Helper()
	if len(w.left) == 0 || w.left[0].at != at {
		w.Fatalf("the next command is not that of %s but %v", at, w.left)
	}
	next := w.left[0]
	w.left = w.left[1:]
	text := next.text
	for _, r := range next.replaced {
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	text = w.named(text)
	text, filter, _ := strings.Cut(strings.TrimPrefix(text, "oc "), "|")
	r := w.c.CLI(strings.Fields(text)...)
	w.Logf("%s: %s\nwindlass %s\n%s%s", at, next.text, text, r.Stdout, r.Stderr)
	if r.Code != 0 {
		w.Fatalf("%s: exit code %d: %s", at, r.Code, r.Stderr)
	}
	return w.filtered(r.Stdout, strings.Fields(filter))
}

// named puts what {name} is into a text.
func (w *walk) named(text string) string {
	for name, value := range w.names {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// filtered does what grep -i and jq do in the documents.
func (w *walk) filtered(text string, filter []string) string {
	w.Helper()
	if len(filter) == 0 {
		return text
	}
	if filter[0] == "grep" {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if strings.Contains(strings.ToLower(line), filter[len(filter)-1]) {
				out.WriteString(line)
			}
		}
		return out.String()
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		w.Fatal(err)
	}
	for _, key := range strings.Split(strings.Trim(filter[1], "'."), ".") {
		v = v.(map[string]any)[key]
	}
	out, err := json.Marshal(v)
	if err != nil {
		w.Fatal(err)
	}
	return string(out)
}

// shows fails the test unless a text matches each of the patterns. A space of a pattern is any number of spaces of the
// text; ^ and $ are the ends of a line.
func (w *walk) shows(text string, patterns ...string) {
	w.Helper()
	for _, p := range patterns {
		p = w.named(p)
		if !regexp.MustCompile("(?m)" + strings.ReplaceAll(p, " ", " +")).MatchString(text) {
			w.Errorf("%q is not in\n%s", p, text)
		}
	}
}

// admin runs a command that is no document's, which must succeed.
func (w *walk) admin(words string, with ...string) string {
	w.Helper()
	return w.c.MustCLI(append(strings.Fields(w.named(words)), with...)...)
}

// later runs a command when the test ends.
func (w *walk) later(words string, with ...string) {
	w.Cleanup(func() { w.admin(words, with...) })
}

// await waits for what `windlass wait` can wait for.
func (w *walk) await(what, until string) {
	w.Helper()
	w.admin("wait --timeout=25s "+what, "--for="+until)
}

// file puts one of the documents' examples where the commands find it, whole. within is the field of a Pod that a
// fragment is; the pod's name is that of the file then, and it has the container of the documents.
func (w *walk) file(name, example string, within ...string) {
	w.Helper()
	raw, err := os.ReadFile(filepath.Join(w.examples, example))
	if err != nil {
		w.Fatal(err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		w.Fatal(err)
	}
	for _, field := range slices.Backward(within) {
		doc = map[string]any{field: doc}
	}
	if spec, ok := doc["spec"].(map[string]any); ok && doc["kind"] == nil {
		doc["apiVersion"], doc["kind"] = "v1", "Pod"
		doc["metadata"] = map[string]any{"name": strings.TrimSuffix(name, ".yaml")}
		spec["containers"] = []any{map[string]any{"name": "hello-pod", "image": "docker.io/ocpqe/hello-pod"}}
	}
	w.write(name, doc)
}

// filled puts one of the documents' examples where the commands find it, with a word for its placeholder.
func (w *walk) filled(name, example, placeholder, value string) {
	w.Helper()
	raw, err := os.ReadFile(filepath.Join(w.examples, example))
	if err != nil {
		w.Fatal(err)
	}
	text := strings.ReplaceAll(string(raw), placeholder, value)
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *walk) write(name string, doc map[string]any) {
	w.Helper()
	out, err := yaml.Marshal(doc)
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, name), out, 0o600); err != nil {
		w.Fatal(err)
	}
}

// pinned has the pod of a file run on the worker alone, if it runs.
func (w *walk) pinned(name string) {
	w.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.Fatal(err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		w.Fatal(err)
	}
	doc["spec"].(map[string]any)["nodeSelector"] = map[string]any{"kubernetes.io/hostname": w.names["worker"]}
	w.write(name, doc)
}

// nodeOf returns the node of a pod.
func (w *walk) nodeOf(pod string) string {
	w.Helper()
	return w.admin("get pod " + pod + " -o jsonpath={.spec.nodeName}")
}

// gone deletes pods, and waits.
func (w *walk) gone(pods string) {
	w.Helper()
	w.admin("delete pod --now " + pods)
}
