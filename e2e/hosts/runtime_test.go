package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/critest"
)

// guest is a pod that runs on a control-plane host, in a container of a built-in image.
const guest = `apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  tolerations: [{operator: Exists}]
  containers:
  - name: hello
    image: docker.io/ocpqe/hello-pod:latest
`

// A host has containerd run the containers of its pods, and ends them when it leaves.
func TestAHostHasAContainerRuntime(t *testing.T) {
	engine := critest.Start(t)
	bin, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		t: t, bin: bin, name: "h1", address: freeSubnet(t) + ".1", dir: filepath.Join(t.TempDir(), "windlass"),
	}
	f := &fleet{t: t, hosts: []*host{h}}
	t.Cleanup(h.stop)
	begin := []string{"host", "init", "--address", h.address, "--hostname", h.name, "--dir", h.dir, "--runtime"}
	if out, code := h.cli(append(begin, "cri=unix:///no/such.sock")...); code == 0 ||
		!strings.Contains(out, "--runtime \"cri=unix:///no/such.sock\": ") {
		t.Errorf("a runtime that does not answer: exit code %d, %s", code, out)
	}
	h.must(append(begin, "cri="+engine.Endpoint)...)
	h.start()
	f.await("a node with a container runtime", func() string {
		if out, _ := h.ask("get", "nodes", "-o", "wide"); !strings.Contains(out, " Ready ") ||
			!strings.Contains(out, "containerd://") {
			return out
		}
		return ""
	})
	file := filepath.Join(t.TempDir(), "guest.yaml")
	if err := os.WriteFile(file, []byte(guest), 0o600); err != nil {
		t.Fatal(err)
	}
	h.mustAsk("apply", "-f", file)
	h.mustAsk("wait", "pod/guest", "--for=condition=Ready", "--timeout=60s")
	sandboxes := func() (names []string) {
		list, err := engine.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.GetItems() {
			names = append(names, s.GetMetadata().GetName())
		}
		return names
	}
	if got := strings.Join(sandboxes(), " "); !strings.Contains(got, "guest") {
		t.Errorf("the runtime has the sandboxes %q", got)
	}
	h.must("host", "stop", "--dir", h.dir)
	if got := sandboxes(); len(got) > 0 {
		t.Errorf("after the host was stopped the runtime has %q", got)
	}
}
