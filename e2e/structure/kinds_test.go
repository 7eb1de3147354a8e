package structure

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
)

// TestEveryKindHasRights finds kinds that the default policy forgets: only administrators, who may do everything, could
// read them.
func TestEveryKindHasRights(t *testing.T) {
	type resource struct{ group, plural string }
	granted := map[resource]bool{}
	for _, doc := range bytes.Split(identity.DefaultPolicy(), []byte("\n---\n")) {
		var role struct {
			Rules []struct {
				APIGroups, Resources, Verbs []string
			}
		}
		if err := yaml.Unmarshal(doc, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, plural := range rule.Resources {
					granted[resource{group, plural}] = granted[resource{group, plural}] || slices.Contains(rule.Verbs, "get")
				}
			}
		}
	}
	found := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			kind := object.TypeOf(f.Messages().Get(i))
			if kind == nil {
				continue
			}
			found++
			if !granted[resource{kind.GetGroup(), kind.GetPlural()}] {
				t.Errorf("no role of kit/identity/policy.yaml lets its holders get %s of %q", kind.GetPlural(), kind.GetGroup())
			}
		}
		return true
	})
	if found < 30 {
		t.Errorf("only %d kinds are linked", found)
	}
}
