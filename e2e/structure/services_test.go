package structure

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/topology"
)

// text returns a file of the repository.
func text(t *testing.T, path ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// What is written manually follows the rows of kit/topology: see docs/extending.md.
func TestEveryServiceHasItsFolderItsContainerAndItsPage(t *testing.T) {
	var compose struct {
		Services map[string]struct{ Command, Volumes []string }
		Volumes  map[string]any
	}
	if err := yaml.Unmarshal([]byte(text(t, "compose.yaml")), &compose); err != nil {
		t.Fatal(err)
	}
	architecture := text(t, "docs", "architecture.md")
	for _, s := range topology.AllServices() {
		name := s.Name
		if !strings.HasPrefix(text(t, "services", name, "main.go"), "// Command "+name) {
			t.Errorf("services/%s/main.go does not begin with the name of the program", name)
		}
		if !strings.Contains(text(t, "services", "windlass", "program", "services.go"), "\""+name+"\":") {
			t.Errorf("services/windlass/program does not run %s: it needs a package service, and make generate", name)
		}
		if !strings.Contains(architecture, "| `"+name+"` |") {
			t.Errorf("docs/architecture.md: the table of programs has no %s", name)
		}
	}
	for _, name := range topology.Names() {
		container, volume := compose.Services[name], name+":/cluster/services/"+name
		if len(container.Command) < 3 || !slices.Equal(container.Command[:3], []string{"container", "run", name}) {
			t.Errorf("compose.yaml has no service that runs %s", name)
		}
		if _, ok := compose.Volumes[name]; !ok || !slices.Contains(container.Volumes, volume) {
			t.Errorf("compose.yaml: %s has no volume %s", name, volume)
		}
		if !slices.Contains(compose.Services["certificates"].Volumes, volume) {
			t.Errorf("compose.yaml: the certificates have no volume %s", volume)
		}
	}
	for name, c := range compose.Services {
		if !slices.Contains(topology.Names(), name) && slices.Contains(c.Command, "run") {
			t.Errorf("compose.yaml runs %s, which is none of the Services of kit/topology", name)
		}
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range topology.AllServices() {
		if !slices.ContainsFunc(pages, func(page string) bool {
			base := filepath.Base(page)
			return base != "architecture.md" && base != "extending.md" && strings.Contains(text(t, "docs", base), s.Name)
		}) {
			t.Errorf("no page of docs is about %s", s.Name)
		}
	}
}
