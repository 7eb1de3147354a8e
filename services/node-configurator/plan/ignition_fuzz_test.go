package plan

import (
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzIgnition holds that what is wrong is named with its path, and that what is taken is rendered to something that is
// taken too, always the same.
func FuzzIgnition(f *testing.F) {
	for _, seed := range []string{
		fileDoc("/etc/x", "one"),
		`{"ignition":{"version":"3.5.0"},"systemd":{"units":[{"name":"a.service","enabled":true,"contents":"[Service]\nExecStart=/bin/true","dropins":[{"name":"x.conf"}]}]}}`,
		`{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/x","append":[{"source":"data:;base64,AA=="}],"contents":{"compression":"gzip","source":"data:,p"}}]}}`,
		`{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-rsa A"]}]},"kernelArguments":{"shouldExist":["a"]}}`,
		`{"ignition":{"version":"3.2.0"},"storage":{"links":[{"path":"/a","target":"../../b"}],"directories":[{"path":"a"}],"files":[{"path":"/a"}]}}`,
		`{"ignition":{"version":"3.9.0"}}`, `{"ignition":{"version":3}}`, `{}`,
		`{"ignition":{"version":"3.0.0","config":{"merge":[{"source":"x"}]}},"nonsense":1}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc := &structpb.Struct{}
		if doc.UnmarshalJSON([]byte(text)) != nil {
			return
		}
		_, faults := parse(doc, "spec.config")
		for _, fault := range faults {
			if !strings.HasPrefix(fault.Path, "spec.config") || fault.Description == "" {
				t.Fatalf("%s: fault %+v", text, fault)
			}
		}
		if len(faults) > 0 {
			return
		}
		pool, list := poolOf("worker", "worker"), []*configv1.MachineConfig{
			mc("a", "worker", doc),
			mc("b", "worker", ign(fileDoc("/etc/of-b", "b"))),
		}
		r, err := Render(pool, list, nil)
		if err != nil {
			return // two configurations that are good may merge to one that is not; Render says so
		}
		if _, faults := parse(r.Config.GetSpec().GetConfig(), "spec.config"); len(faults) > 0 {
			t.Fatalf("%s is rendered to %v: %v", text, r.Config, faults)
		}
		if again, err := Render(pool, list, nil); err != nil || !proto.Equal(again.Config, r.Config) {
			t.Fatalf("%s is rendered to %v and to %v, %v", text, r.Config, again.Config, err)
		}
	})
}
