package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
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
		"/v1/controlplanemachinesets", "windlass.machine.v1.ControlPlaneMachineSetService/CreateControlPlaneMachineSet", "controlPlaneMachineSet",
	},
	"Node": {"/v1/nodes", "windlass.node.v1.NodeService/CreateNode", "node"},
}

// namedFields are the fields whose placeholders a document may be refused for.
var namedFields = []string{"metadata.name", "spec.lifecycleHooks.preDrain[0].name", "spec.lifecycleHooks.preTerminate[0].name"}

func TestTheDocumentsLoadAsTheyAre(t *testing.T) {
	c := shared.Cluster(t)
	files, err := filepath.Glob(filepath.Join(harness.Root(), "kit/manifest/testdata/documents/*.yaml"))
	if err != nil || len(files) != 11 {
		t.Fatalf("%d documents, want 11: %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			doc := wrap(raw)
			refused := tryAll(t, c, doc)
			for _, field := range refused {
				if !slices.Contains(namedFields, field) {
					t.Errorf("refused for %s, which is neither a missing nor a placeholder name", field)
				}
			}
			if refused := tryAll(t, c, named(doc)); len(refused) > 0 {
				t.Errorf("with names given it is still refused for %q", refused)
			}
		})
	}
}

// wrap makes a fragment, which names no kind, the MachineSet that it is a part of.
func wrap(doc []byte) []byte {
	if bytes.Contains(doc, []byte("kind:")) {
		return doc
	}
	return append([]byte("apiVersion: machine.openshift.io/v1beta1\nkind: MachineSet\nmetadata:\n  name: fragment\n"), doc...)
}

// named puts names where a document has placeholders or none.
func named(doc []byte) []byte {
	text := strings.NewReplacer("<hook_name>", "SomeHook", "<hook_owner>", "some-owner", "<machineset>", "some-set", "<node_name>", "some-node").Replace(string(doc))
	if metadata, _, _ := strings.Cut(text, "\nspec:"); !strings.Contains(metadata, "\n  name: ") {
		text = strings.Replace(text, "metadata:\n", "metadata:\n  name: some-name\n", 1)
	}
	return []byte(text)
}

// tryAll creates a document in every way without storing it. It fails the test unless all ways agree, and returns the fields that they refuse.
func tryAll(t *testing.T, c *harness.Cluster, doc []byte) []string {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON(doc)
	if err != nil {
		t.Fatal(err)
	}
	var head struct{ Kind string }
	if err := json.Unmarshal(asJSON, &head); err != nil {
		t.Fatal(err)
	}
	k, ok := kinds[head.Kind]
	if !ok {
		t.Fatalf("kind %q", head.Kind)
	}
	first := tryREST(t, c, k, "application/json", asJSON)
	for way, got := range map[string]refusal{
		"REST with YAML": tryREST(t, c, k, "application/yaml", doc),
		"grpcurl":        tryGrpcurl(t, c, k, asJSON),
	} {
		if got.Code != first.Code || !slices.Equal(got.Fields, first.Fields) {
			t.Errorf("%s says %s\nREST with JSON says %s", way, got, first)
		}
	}
	cli, err := c.Admin().CLI(string(doc), "create", "--dry-run=server", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	if first.Code != codes.OK {
		wants{code: first.Code, fields: first.Fields}.checkCLI(t, cli)
	} else if cli.Code != 0 {
		t.Errorf("command line: exit code %d, but REST accepts it\n%s", cli.Code, cli.Stderr)
	}
	if first.Code != codes.OK && first.Code != codes.InvalidArgument {
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
