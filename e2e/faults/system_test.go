package faults

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/e2e/harness"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// systemProgram says its operating system, and then runs until it is ended.
const systemProgram = `package main

import "time"

func main() {
	print("%s")
	for {
		time.Sleep(time.Hour)
	}
}
`

const systemPool = `
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: systems}
spec:
  machineConfigSelector:
    matchExpressions: [{key: machineconfiguration.openshift.io/role, operator: In, values: [worker, systems]}]
  nodeSelector: {matchLabels: {node-role.kubernetes.io/systems: ""}}
`

// systemConfig is a configuration with an operating system, and with a unit of a program that only this has.
func systemConfig(image string) string {
	return `
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 60-system
  labels: {machineconfiguration.openshift.io/role: systems}
spec:
  osImageURL: ` + image + `
  config:
    ignition: {version: 3.4.0}
    systemd:
      units:
      - name: edition.service
        enabled: true
        contents: "[Service]\nExecStart=/usr/bin/edition\n[Install]\nWantedBy=multi-user.target\n"
`
}

// TestFaultsAnOperatingSystemIsReplacedAndComesBack gives a node one operating system after the other. One whose image
// is nowhere disturbs nothing, and the one before comes back though its image is not there any more.
func TestFaultsAnOperatingSystemIsReplacedAndComesBack(t *testing.T) {
	c := shared.Cluster(t)
	var node string
	nodes, err := c.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if _, worker := n.GetMetadata().GetLabels()["node-role.kubernetes.io/worker"]; worker {
			node = n.GetMetadata().GetName()
		}
	}
	images := c.Dir("services", "provider-local", "images")
	first, second := systemImage(t, images, "first"), systemImage(t, images, "second")
	t.Cleanup(func() {
		c.MustCLI("label", "node", node, "node-role.kubernetes.io/systems-")
		awaitSystem(t, c, node, "")
		c.MustCLI("delete", "machineconfigpool", "systems")
		c.MustCLI("delete", "machineconfig", "60-system")
	})
	apply(t, c, systemConfig(first))
	apply(t, c, systemPool)
	c.MustCLI("label", "node", node, "node-role.kubernetes.io/systems=")
	awaitSystem(t, c, node, "first")

	// An image that is nowhere: the node says so, and was never cordoned.
	record := c.Record()
	apply(t, c, systemConfig("example.com/os@sha256:"+strings.Repeat("0", 64)))
	c.Wait(patience, "the node to say that the image is not there", func(ctx context.Context) (bool, string, error) {
		n, err := nodev1.NewNodeServiceClient(c.Conn()).GetNode(ctx, &nodev1.GetNodeRequest{Name: node})
		marks := n.GetMetadata().GetAnnotations()
		reason := marks["machineconfiguration.openshift.io/reason"]
		return marks[stateOfConfig] == "Degraded" && strings.Contains(reason, "example.com/os@sha256:0000"), reason, err
	})
	if text := c.CLI("plan", "machineconfigpool", "systems").Stdout; !strings.Contains(text,
		"example.com/os@sha256:0000") {
		t.Errorf("the plan of the pool does not say what it waits for:\n%s", text)
	}
	for _, s := range record.Steps() {
		if n, ok := s.Object.(*nodev1.Node); ok && n.GetMetadata().GetName() == node && n.GetSpec().GetUnschedulable() {
			t.Fatalf("the node was cordoned: %v", n)
		}
	}

	apply(t, c, systemConfig(second))
	awaitSystem(t, c, node, "second")
	if err := os.RemoveAll(images + "/example.com/os"); err != nil {
		t.Fatal(err)
	}
	c.MustCLI("rollout", "undo", "machineconfigpool/systems")
	awaitSystem(t, c, node, "first")
	c.MustCLI("rollout", "resume", "machineconfigpool/systems")
	awaitSystem(t, c, node, "second")
}

// systemImage makes the image of an operating system in a layout, and returns its reference.
func systemImage(t *testing.T, images, edition string) string {
	t.Helper()
	program, err := os.ReadFile(harness.BuildProgram(t, fmt.Sprintf(systemProgram, edition)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range map[string][]byte{
		"usr/bin/edition": program, "usr/lib/os-release": []byte("PRETTY_NAME=\"" + edition + "\"\n"),
	} {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(out.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	path := images + "/example.com/os"
	p, err := layout.FromPath(path)
	if err != nil {
		if p, err = layout.Write(path, empty.Index); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return "example.com/os@" + digest.String()
}

// awaitSystem waits until a node serves with an operating system of ours, or with none of them, and its program runs.
func awaitSystem(t *testing.T, c *harness.Cluster, node, edition string) {
	t.Helper()
	c.Wait(patience, "the operating system "+edition, func(ctx context.Context) (bool, string, error) {
		n, err := nodev1.NewNodeServiceClient(c.Conn()).GetNode(ctx, &nodev1.GetNodeRequest{Name: node})
		if err != nil {
			return false, "", err
		}
		marks := n.GetMetadata().GetAnnotations()
		has := n.GetStatus().GetNodeInfo().GetOsImage()
		if has != "first" && has != "second" {
			has = ""
		}
		log, err := os.ReadFile(c.Dir("services", "provider-local", "machines", node, "log", "units",
			"unit-edition.service.log"))
		if err != nil && !os.IsNotExist(err) {
			return false, "", err
		}
		return has == edition && harness.Ready(n) && !n.GetSpec().GetUnschedulable() &&
				marks[stateOfConfig] == "Done" && marks[currentConfig] == marks[desiredConfig] &&
				(edition == "" || strings.HasSuffix(string(log), edition)),
			fmt.Sprintf("%s, %v, %q", has, marks, log), nil
	})
}
