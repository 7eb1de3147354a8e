// Package runtime tests a cluster whose machines have a container runtime run their containers, through CRI.
package runtime

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/kit/servetest"
)

const patience = 2 * time.Minute

// documents are pods of the documents that the project follows, and their names there.
var documents = map[string]string{
	"004-56-Pod.yaml": "hello-pod", "004-63-Pod.yaml": "pod-s1", "004-67-Pod.yaml": "security-s1",
}

func TestAContainerRuntimeRunsAFleet(t *testing.T) {
	engine := critest.Start(t)
	c := harness.Up(t, "--set", "provider-local.runtime=cri="+engine.Endpoint)
	c.SettleAll(patience)
	if out := c.MustCLI("get", "nodes", "-o", "wide"); !strings.Contains(out, "containerd://") {
		t.Errorf("nodes have no container runtime:\n%s", out)
	}
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	documentsRun(t, c, engine)
	mirrorDelivers(t, c)
	agentIsKilled(t, c, worker)
	agentIsKilledInALife(t, c, engine, worker)
	runtimeIsSilent(t, c, engine, worker)
	nodeIsDrained(t, c, worker)
	machineGoes(t, c, engine)
	c.Down()
	if left := has(t, engine, ""); len(left) > 0 {
		t.Errorf("after windlass down the runtime has %v", left)
	}
	c.Up()
	c.SettleAll(patience)
}

// has returns the sandboxes of a container runtime whose owner contains a text.
func has(t *testing.T, engine *critest.Containerd, owner string) (names []string) {
	t.Helper()
	list, err := engine.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.GetItems() {
		if of := s.GetLabels()["windlass.dev/owner"]; strings.Contains(of, owner) {
			names = append(names, of+" "+s.GetMetadata().GetName())
		}
	}
	return names
}

// documentsRun runs pods of the documents as they are, with the labels that they ask of a node.
func documentsRun(t *testing.T, c *harness.Cluster, engine *critest.Containerd) {
	node := c.MustMachines("worker")[1].GetMetadata().GetName()
	c.MustCLI("label", "node", node, "env=test", "os=fedora", "zone=us")
	for file, pod := range documents {
		c.MustCLI("apply", "-f", filepath.Join(harness.Root(), "services/scheduler/placement/plan/testdata", file))
		c.MustCLI("wait", "pod/"+pod, "--for=condition=Ready", "--timeout=60s")
	}
	if sandboxes := has(t, engine, node); !slices.ContainsFunc(sandboxes, func(s string) bool {
		return strings.HasSuffix(s, " hello-pod")
	}) {
		t.Errorf("the runtime has %v", sandboxes)
	}
	var pod struct {
		Status struct {
			PodIP             string `json:"podIP"`
			ContainerStatuses []struct{ ContainerID, ImageID string }
		}
	}
	if err := json.Unmarshal([]byte(c.MustCLI("get", "pod", "hello-pod", "-o", "json")), &pod); err != nil {
		t.Fatal(err)
	}
	if id := pod.Status.ContainerStatuses[0].ContainerID; !strings.HasPrefix(id, "containerd://") {
		t.Errorf("container %q", id)
	}
	r, err := http.Get("http://" + pod.Status.PodIP + ":8080/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if text, err := io.ReadAll(r.Body); string(text) != "Hello OpenShift!\n" {
		t.Errorf("hello-pod answers %q, %v", text, err)
	}
	servetest.Await(t, func() string {
		if out := c.MustCLI("logs", "hello-pod"); !strings.Contains(out, "serving on ") {
			return "the log of hello-pod is " + out
		}
		return ""
	})
	out := c.MustCLI("exec", "hello-pod", "--", "/windlass", "version")
	if !strings.Contains(strings.ToLower(out), "windlass") {
		t.Errorf("a command in hello-pod: %q", out)
	}
	servetest.Await(t, func() string { // the first measurement takes 10 s
		if r := c.CLI("top", "pods"); r.Code != 0 || !strings.Contains(r.Stdout, "hello-pod") {
			return "use of pods: " + r.Stdout + r.Stderr
		}
		return ""
	})
}

// mirrorDelivers runs hello-pod as a mirror of its registry has it.
func mirrorDelivers(t *testing.T, c *harness.Cluster) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	program, err := os.ReadFile(filepath.Join(harness.Root(), ".bin/example-operators"))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(server.Listener.Addr().String() + "/ocpqe/hello-pod:mirrored")
	if err != nil {
		t.Fatal(err)
	}
	image := critest.Image(t, []string{"/program", "--help"}, map[string][]byte{"program": program})
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
	images := c.Dir("services", "provider-local", "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	settings := fmt.Sprintf("registries:\n  docker.io:\n    mirrors: [%q]\n    mirrorsOnly: true\n", server.URL)
	file := filepath.Join(images, "registries.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	apply(t, c, `{apiVersion: v1, kind: Pod, metadata: {name: mirrored}, spec: {restartPolicy: Never, containers: [
{name: main, image: "docker.io/ocpqe/hello-pod:mirrored"}]}}`)
	servetest.Await(t, func() string {
		out := c.MustCLI("get", "pod", "mirrored", "-o", "jsonpath={.status.phase}")
		if out != "Succeeded" { // the mirror's program ends
			return "the pod of a mirror is " + out
		}
		return ""
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.MustCLI("delete", "pod", "mirrored", "--now")
}

func apply(t *testing.T, c *harness.Cluster, document string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "document.yaml")
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	c.MustCLI("apply", "-f", file)
}

// agentIsKilled kills the agent of a node: its containers go on, and the next agent takes them over.
func agentIsKilled(t *testing.T, c *harness.Cluster, node string) {
	apply(t, c, `{apiVersion: v1, kind: Pod, metadata: {name: stays}, spec: {nodeSelector: {kubernetes.io/hostname: `+node+
		`}, containers: [{name: main, image: docker.io/ocpqe/hello-pod}]}}`)
	c.MustCLI("wait", "pod/stays", "--for=condition=Ready", "--timeout=60s")
	const query = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
	before := c.MustCLI("get", "pod", "stays", "-o", query)
	if err := c.Kill(harness.Agent(node)); err != nil {
		t.Fatal(err)
	}
	c.SettleAll(patience)
	servetest.Await(t, func() string { // until the next agent is connected
		if r := c.CLI("exec", "stays", "--", "/windlass", "version"); r.Code != 0 {
			return "a command in a container that was taken over: " + r.Stderr
		}
		return ""
	})
	if after := c.MustCLI("get", "pod", "stays", "-o", query); after != before {
		t.Errorf("before its agent was killed %s, then %s", before, after)
	}
}

// agentIsKilledInALife kills the agent of a node at moments of the beginning and of the end of pods: each has one
// container, which starts once, and nothing of it is left.
func agentIsKilledInALife(t *testing.T, c *harness.Cluster, engine *critest.Containerd, node string) {
	kill := func() {
		if err := c.Kill(harness.Agent(node)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		pod, after := fmt.Sprintf("mortal-%d", i), time.Duration(i)*60*time.Millisecond // a start takes about 300 ms
		apply(t, c, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {restartPolicy: Never,
terminationGracePeriodSeconds: 1, nodeSelector: {kubernetes.io/hostname: %s},
containers: [{name: main, image: docker.io/ocpqe/hello-pod}]}}`, pod, node))
		time.Sleep(after) // no wait for anything, but the moment of the kill
		kill()
		servetest.Await(t, func() string {
			out := c.MustCLI("get", "pod", pod, "-o", "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}")
			if out != "Running 0" && out != "Failed 0" { // failed: the runtime was starting it just then
				return fmt.Sprintf("%s, whose agent was killed after %s, is %s", pod, after, out)
			}
			return ""
		})
		if list := containersOf(t, engine, pod); len(list) > 1 {
			t.Errorf("%s, whose agent was killed after %s, has %v", pod, after, list)
		}
		c.MustCLI("delete", "pod", pod, "--wait=false")
		time.Sleep(after)
		kill()
		servetest.Await(t, func() string {
			if c.CLI("get", "pod", pod).Code == 0 {
				return pod + " is not gone"
			}
			sandboxes := has(t, engine, node)
			if slices.ContainsFunc(sandboxes, func(s string) bool { return strings.HasSuffix(s, " "+pod) }) {
				return fmt.Sprintf("%s is gone, and the runtime has %v", pod, sandboxes)
			}
			return ""
		})
	}
	c.SettleAll(patience)
}

// containersOf returns the states of a container runtime's containers of a pod.
func containersOf(t *testing.T, engine *critest.Containerd, pod string) (states []string) {
	t.Helper()
	list, err := engine.CRI().ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range list.GetContainers() {
		if of.GetLabels()["io.kubernetes.pod.name"] == pod {
			states = append(states, of.GetState().String())
		}
	}
	return states
}

// runtimeIsSilent stops the runtime: the node is not ready until it answers again, and containers go on.
func runtimeIsSilent(t *testing.T, c *harness.Cluster, engine *critest.Containerd, node string) {
	engine.Freeze()
	ready := func() string {
		return c.MustCLI("get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
	}
	servetest.Await(t, func() string {
		if out := ready(); !strings.Contains(out, "False") || !strings.Contains(out, "container runtime") {
			return "the node whose runtime is silent is " + out
		}
		return ""
	})
	engine.Thaw()
	servetest.Await(t, func() string {
		if out := ready(); !strings.Contains(out, "True") {
			return "the node whose runtime answers again is " + out
		}
		return ""
	})
	c.SettleAll(patience)
	if out := c.MustCLI("get", "pod", "stays", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); out != "0" {
		t.Errorf("a container was restarted %s times though only its runtime was silent", out)
	}
}

// nodeIsDrained moves the pods of a node to another one.
func nodeIsDrained(t *testing.T, c *harness.Cluster, node string) {
	apply(t, c, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 3,
selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 5,
containers: [{name: main, image: docker.io/ocpqe/hello-pod}]}}}}`)
	c.MustCLI("rollout", "status", "deployment/web", "--timeout=60s")
	c.MustCLI("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
	c.MustCLI("rollout", "status", "deployment/web", "--timeout=60s")
	out := c.MustCLI("get", "pods", "-l", "app=web", "-o", "wide")
	if strings.Contains(out, node) {
		t.Errorf("after a drain of %s:\n%s", node, out)
	}
	c.MustCLI("uncordon", node)
}

// machineGoes deletes a machine with pods: its runtime has nothing of it then.
func machineGoes(t *testing.T, c *harness.Cluster, engine *critest.Containerd) {
	machine := c.MustMachines("worker")[1].GetMetadata()
	c.MustCLI("delete", "machine", machine.GetName(), "-n", machine.GetNamespace(), "--timeout=90s")
	servetest.Await(t, func() string {
		if left := has(t, engine, "/"+machine.GetName()); len(left) > 0 {
			return fmt.Sprintf("the runtime has %v of a machine that is gone", left)
		}
		return ""
	})
	c.SettleAll(patience)
}
