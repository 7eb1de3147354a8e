package manifest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// whole makes an empty message of each kind that is a document of its own in the examples.
var whole = map[string]func() proto.Message{
	"Machine":                     func() proto.Message { return &machinev1.Machine{} },
	"MachineSet":                  func() proto.Message { return &machinev1.MachineSet{} },
	"Node":                        func() proto.Message { return &nodev1.Node{} },
	"Pod":                         func() proto.Message { return &schedulingv1.Pod{} },
	"Namespace":                   func() proto.Message { return &schedulingv1.Namespace{} },
	"Policy":                      func() proto.Message { return &schedulingv1.Policy{} },
	"AdmissionConfig":             func() proto.Message { return &schedulingv1.AdmissionConfig{} },
	"KubernetesMasterConfig":      func() proto.Message { return &schedulingv1.KubernetesMasterConfig{} },
	"PodNodeSelectorPluginConfig": func() proto.Message { return &schedulingv1.PodNodeSelectorPluginConfig{} },
	"MachineConfig":               func() proto.Message { return &configv1.MachineConfig{} },
	"ClusterVersion":              func() proto.Message { return &updatev1.ClusterVersion{} },
}

// around puts a fragment where it belongs: the kind, and the text before and after it.
var around = map[string]struct{ kind, before, after string }{
	"Pod":                            {"Pod", ``, ``},
	"Pod.spec":                       {"Pod", `{"spec":`, `}`},
	"Pod.spec.affinity":              {"Pod", `{"spec":{"affinity":`, `}}`},
	"Pod.spec.affinity.nodeAffinity": {"Pod", `{"spec":{"affinity":{"nodeAffinity":`, `}}}`},
	"Node":                           {"Node", ``, ``},
	"MachineSet":                     {"MachineSet", ``, ``},
	"Policy":                         {"Policy", ``, ``},
	"Policy.predicates":              {"Policy", `{"predicates":[`, `]}`},
	"Policy.priorities":              {"Policy", `{"priorities":[`, `]}`},
	"status.availableUpdates":        {"ClusterVersion", `{"status":{"availableUpdates":`, `}}`},
	"status.conditionalUpdates":      {"ClusterVersion", `{"status":{"conditionalUpdates":`, `}}`},
}

// TestEveryExampleOfTheDocumentsLoads is the promise that the documents' own YAML and JSON loads as it is. What it
// holds is kept: printed and read again it is the same.
func TestEveryExampleOfTheDocumentsLoads(t *testing.T) {
	var examples []struct{ File, Kind, Frag string }
	index, err := os.ReadFile("testdata/documents/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(index, &examples); err != nil {
		t.Fatal(err)
	}
	if len(examples) != 112 {
		t.Errorf("%d examples, want 112", len(examples))
	}
	for _, e := range examples {
		t.Run(e.File, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata/documents", e.File))
			if err != nil {
				t.Fatal(err)
			}
			kind, doc := placed(t, e.File, e.Kind, e.Frag, text)
			m := whole[kind]()
			if err := manifest.Decode(doc, m); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
			printed, err := manifest.Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			again := whole[kind]()
			if err := manifest.Decode(printed, again); err != nil || !proto.Equal(m, again) {
				t.Errorf("%s\nreads again as %v, %v", printed, again, err)
			}
		})
	}
}

// placed returns an example as a whole document of a kind.
func placed(t *testing.T, file, kind, frag string, text []byte) (string, []byte) {
	t.Helper()
	if frag == "" && kind != "PodNodeSelectorPluginConfig" || frag == "MasterConfig" {
		documents, err := manifest.Split(strings.NewReader(string(text)), file)
		if err != nil || len(documents) != 1 {
			t.Fatalf("%d documents, %v", len(documents), err)
		}
		if documents[0].Kind != kind {
			t.Errorf("kind %q, want %q", documents[0].Kind, kind)
		}
		return kind, documents[0].JSON
	}
	inner, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	if frag == "" {
		return kind, inner
	}
	a, ok := around[frag]
	if !ok {
		t.Fatalf("fragment of %q: not known", frag)
	}
	return a.kind, []byte(a.before + string(inner) + a.after)
}
