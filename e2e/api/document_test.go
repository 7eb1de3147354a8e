package api

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// kind is where a kind of the documents is served.
type kind struct {
	path    string // of its collection
	method  string // that creates it
	request string // field of the request that carries it
}

var kinds = map[string]kind{
	"Machine":    {"/v1/machines", "windlass.machine.v1.MachineService/CreateMachine", "machine"},
	"MachineSet": {"/v1/machinesets", "windlass.machine.v1.MachineSetService/CreateMachineSet", "machineSet"},
	"ControlPlaneMachineSet": {
		"/v1/controlplanemachinesets", "windlass.machine.v1.ControlPlaneMachineSetService/CreateControlPlaneMachineSet",
		"controlPlaneMachineSet",
	},
	"Node":      {"/v1/nodes", "windlass.node.v1.NodeService/CreateNode", "node"},
	"Pod":       {"/v1/pods", "windlass.scheduling.v1.PodService/CreatePod", "pod"},
	"Namespace": {"/v1/namespaces", "windlass.scheduling.v1.NamespaceService/CreateNamespace", "namespace"},
	"Policy":    {"/v1/policies", "windlass.scheduling.v1.PolicyService/CreatePolicy", "policy"},
	"AdmissionConfig": {
		"/v1/admissionconfigs", "windlass.scheduling.v1.AdmissionConfigService/CreateAdmissionConfig",
		"admissionConfig",
	},
	"KubernetesMasterConfig": {
		"/v1/kubernetesmasterconfigs", "windlass.scheduling.v1.KubernetesMasterConfigService/CreateKubernetesMasterConfig",
		"kubernetesMasterConfig",
	},
	"ClusterVersion": {
		"/v1/clusterversions", "windlass.update.v1.ClusterVersionService/CreateClusterVersion",
		"clusterVersion",
	},
}

// example is one of the documents' YAML and JSON texts.
type example struct {
	File, Kind string
	Frag       string // which part of a kind a fragment is
}

// places are where the fragments of the documents belong: their kind, and the fields around them. A list is in the
// field whose name ends in "[]".
var places = map[string]struct {
	kind, apiVersion string
	fields           []string
}{
	"Pod":                            {"Pod", "v1", nil},
	"Pod.spec":                       {"Pod", "v1", []string{"spec"}},
	"Pod.spec.affinity":              {"Pod", "v1", []string{"spec", "affinity"}},
	"Pod.spec.affinity.nodeAffinity": {"Pod", "v1", []string{"spec", "affinity", "nodeAffinity"}},
	"Node":                           {"Node", "v1", nil},
	"MachineSet":                     {"MachineSet", "machine.openshift.io/v1beta1", nil},
	"Policy":                         {"Policy", "v1", nil},
	"Policy.predicates":              {"Policy", "v1", []string{"predicates[]"}},
	"Policy.priorities":              {"Policy", "v1", []string{"priorities[]"}},
	"status.availableUpdates":        {"ClusterVersion", "config.openshift.io/v1", []string{"status", "availableUpdates"}},
	"status.conditionalUpdates": {
		"ClusterVersion", "config.openshift.io/v1",
		[]string{"status", "conditionalUpdates"},
	},
	"PodNodeSelectorPluginConfig": {"AdmissionConfig", "v1", []string{
		"admissionConfig", "pluginConfig",
		"PodNodeSelector", "configuration",
	}},
}

// TestTheDocumentsLoadAsTheyAre holds every way to create something against each other, over everything that the
// documents show.
func TestTheDocumentsLoadAsTheyAre(t *testing.T) {
	c := shared.Cluster(t)
	dir := filepath.Join(harness.Root(), "kit/manifest/testdata/documents")
	index, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var examples []example
	if err := json.Unmarshal(index, &examples); err != nil || len(examples) != 112 {
		t.Fatalf("%d documents, want 112: %v", len(examples), err)
	}
	for _, e := range examples {
		t.Run(strings.TrimSuffix(e.File, filepath.Ext(e.File)), func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, e.File))
			if err != nil {
				t.Fatal(err)
			}
			d := e.document(t, raw)
			for _, field := range d.tryAll(t, c) {
				if !d.unfinished(field) {
					t.Errorf("refused for %s, which is neither missing nor a placeholder", field)
				}
			}
			if refused := d.finished(t).tryAll(t, c); len(refused) > 0 {
				t.Errorf("finished it is still refused for %q", refused)
			}
		})
	}
}

// document is an example as a whole document.
type document struct {
	kind   string
	text   []byte // YAML or JSON, as in the documents if they have all of it
	asJSON []byte
}

func (e example) document(t *testing.T, raw []byte) document {
	t.Helper()
	asJSON := toJSON(t, raw)
	if e.Kind == "PodNodeSelectorPluginConfig" {
		e.Frag = e.Kind // a file of its own that a plugin's configuration names
	}
	place, fragment := places[e.Frag]
	if !fragment {
		return document{e.Kind, raw, asJSON}
	}
	var inner any
	if err := json.Unmarshal(asJSON, &inner); err != nil {
		t.Fatal(err)
	}
	for _, field := range slices.Backward(place.fields) {
		if list, ok := strings.CutSuffix(field, "[]"); ok {
			inner = map[string]any{list: []any{inner}}
		} else {
			inner = map[string]any{field: inner}
		}
	}
	whole := inner.(map[string]any)
	whole["kind"], whole["apiVersion"] = place.kind, place.apiVersion
	return ofObject(t, place.kind, whole)
}

// toJSON is YAMLToJSON, but placeholders stay readable.
func toJSON(t *testing.T, raw []byte) []byte {
	t.Helper()
	out, err := yaml.YAMLToJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	return unescaped(out)
}

func unescaped(text []byte) []byte {
	return []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(text)))
}

func ofObject(t *testing.T, kind string, object map[string]any) document {
	t.Helper()
	asJSON, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.JSONToYAML(asJSON)
	if err != nil {
		t.Fatal(err)
	}
	return document{kind, text, unescaped(asJSON)}
}

func (d document) object(t *testing.T) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(d.asJSON, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

var placeholder = regexp.MustCompile(`<([a-zA-Z0-9_-]+)>`)

// unfinished reports whether a document may be refused for a field: one that it leaves out, or one with a placeholder.
// That the field is right once it is filled shows the finished document.
func (d document) unfinished(field string) bool {
	return field == "metadata.name" || field == "spec.containers" || placeholder.Match(d.asJSON)
}

// finished is the document with words for its placeholders, and with a name and containers if it has none.
func (d document) finished(t *testing.T) document {
	t.Helper()
	text := placeholder.ReplaceAllFunc(d.asJSON, func(p []byte) []byte {
		return []byte(strings.ReplaceAll(strings.Trim(string(p), "<>"), "_", "-"))
	})
	o := document{asJSON: text}.object(t)
	// of which there is one
	if d.kind != "AdmissionConfig" && d.kind != "KubernetesMasterConfig" && d.kind != "Policy" &&
		d.kind != "ClusterVersion" {
		metadata, _ := o["metadata"].(map[string]any)
		if metadata == nil {
			metadata = map[string]any{}
			o["metadata"] = metadata
		}
		if metadata["name"] == nil {
			metadata["name"] = "some-name"
		}
	}
	if d.kind == "Pod" {
		spec := o["spec"].(map[string]any)
		if spec["containers"] == nil {
			spec["containers"] = []any{map[string]any{"name": "hello-pod", "image": "docker.io/ocpqe/hello-pod"}}
		}
	}
	return ofObject(t, d.kind, o)
}

// inMessage finds what the policies of the documents call version: a message calls it apiVersion.
var inMessage = regexp.MustCompile(`("kind":"Policy",.*)"version":`)

// tryAll creates a document in every way without storing it. It fails the test unless all ways agree, and returns the
// fields that they refuse.
func (d document) tryAll(t *testing.T, c *harness.Cluster) []string {
	t.Helper()
	k, ok := kinds[d.kind]
	if !ok {
		t.Fatalf("kind %q", d.kind)
	}
	first := tryREST(t, c, k, "application/json", d.asJSON)
	for way, got := range map[string]refusal{
		"REST with YAML": tryREST(t, c, k, "application/yaml", d.text),
		"grpcurl":        tryGrpcurl(t, c, k, inMessage.ReplaceAll(d.asJSON, []byte(`${1}"apiVersion":`))),
	} {
		if got.Code != first.Code || !slices.Equal(got.Fields, first.Fields) {
			t.Errorf("%s says %s\nREST with JSON says %s", way, got, first)
		}
	}
	cli, err := c.Admin().CLI(string(d.text), "create", "--dry-run=server", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	if first.Code != codes.OK {
		wants{code: first.Code, fields: first.Fields}.checkCLI(t, cli)
	} else if cli.Code != 0 {
		t.Errorf("command line: exit code %d, but REST accepts it\n%s", cli.Code, cli.Stderr)
	}
	// there is one, and it is read before that is seen
	there := first.Code == codes.AlreadyExists && d.kind == "ClusterVersion"
	if first.Code != codes.OK && first.Code != codes.InvalidArgument && !there {
		t.Errorf("refused with %s", first)
	}
	return first.Fields
}

func tryREST(t *testing.T, c *harness.Cluster, k kind, contentType string, body []byte) refusal {
	t.Helper()
	resp, err := c.Admin().REST(context.Background(), http.MethodPost, k.path+"?dryRun=All", contentType, body)
	if err != nil {
		t.Fatal(err)
	}
	r := ofResponse(t, resp)
	if r.Code != codes.OK && resp.Code != httpStatus(r.Code) {
		t.Errorf("HTTP status %d with code %s", resp.Code, r.Code)
	}
	return r
}

func tryGrpcurl(t *testing.T, c *harness.Cluster, k kind, doc []byte) refusal {
	t.Helper()
	request, err := json.Marshal(map[string]any{k.request: json.RawMessage(doc), "dryRun": "All"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Admin().Grpcurl(string(request), []string{"-format-error", "-d", "@"}, k.method)
	if err != nil {
		t.Fatal(err)
	}
	if got.Code == 0 {
		return refusal{}
	}
	return ofStatusJSON(t, []byte(got.Stderr))
}
