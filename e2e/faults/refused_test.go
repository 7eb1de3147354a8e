package faults

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/release"

	"github.com/windlass-dev/windlass/e2e/harness"
)

func TestFaultsAConfigurationThatCannotBeApplied(t *testing.T) {
	const name, command = "62-worker-broken", "/nowhere/no-such-program"
	c := shared.Cluster(t)
	for _, way := range []struct {
		name string
		out  func()
	}{
		{"it is corrected", func() { apply(t, c, machineConfig(name, "corrected", "/bin/true")) }},
		{"it is taken back", func() { c.MustCLI("delete", "machineconfig", name) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := shared.Cluster(t)
			c.SettleAll(patience)
			record := c.Record()
			before := target(t, c, "worker")
			files := onWorkers(t, c)
			apply(t, c, machineConfig(name, "broken", command))
			bad := degraded(t, c, before, command)
			if got := onWorkers(t, c); fmt.Sprint(got) != fmt.Sprint(files) {
				t.Errorf("the files are %v, they were %v", got, files)
			}
			c.Wait(patience, "the pool to name "+bad, func(ctx context.Context) (bool, string, error) {
				p, err := c.Pool(ctx, "worker")
				is, text := harness.Condition(p.GetStatus().GetConditions(), "NodeDegraded")
				return is == "True" && strings.Contains(text, bad) && strings.Contains(text, command), text, err
			})
			c.Hold(2*time.Second, "no other node is touched", func(ctx context.Context) (string, error) {
				return touched(ctx, c, bad, before)
			})
			way.out()
			c.SettleAll(patience)
			c.Wait(patience, "the pool to be well", func(ctx context.Context) (bool, string, error) {
				p, err := c.Pool(ctx, "worker")
				is, text := harness.Condition(p.GetStatus().GetConditions(), "Degraded")
				done, why := harness.Condition(p.GetStatus().GetConditions(), "Updated")
				return is == "False" && done == "True", text + " " + why, err
			})
			record.Check(hello)
		})
	}
}

// degraded waits until a worker says that it could not take a configuration up, and why, and returns its name.
func degraded(t *testing.T, c *harness.Cluster, before, why string) string {
	t.Helper()
	var bad string
	c.Wait(patience, "a node that says why it cannot", func(ctx context.Context) (bool, string, error) {
		nodes, err := c.Nodes(ctx)
		for _, n := range nodes {
			marks := n.GetMetadata().GetAnnotations()
			if marks[stateOfConfig] == "Degraded" && strings.Contains(marks[annotation+"reason"], why) &&
				marks[currentConfig] == before {
				bad = n.GetMetadata().GetName()
			}
		}
		return bad != "", "", err
	})
	return bad
}

// touched says which workers beside the bad one are meant to change.
func touched(ctx context.Context, c *harness.Cluster, bad, before string) (string, error) {
	nodes, err := c.Nodes(ctx)
	i := slices.IndexFunc(nodes, func(n *nodev1.Node) bool {
		_, worker := n.GetMetadata().GetLabels()["node-role.kubernetes.io/worker"]
		return worker && n.GetMetadata().GetName() != bad && (n.GetMetadata().GetAnnotations()[desiredConfig] != before ||
			n.GetSpec().GetUnschedulable())
	})
	if i < 0 {
		return "", err
	}
	return nodes[i].GetMetadata().GetName() + " is changed, too", err
}

// onWorkers returns what the test's file and unit hold on each worker; what is not there is empty.
func onWorkers(t *testing.T, c *harness.Cluster) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range c.MustMachines("worker") {
		for _, path := range []string{"etc/faults", "etc/systemd/system/faults.service"} {
			raw, err := os.ReadFile(c.Dir("services", "provider-local", "machines", m.GetMetadata().GetName(), "root", path))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			out[m.GetMetadata().GetName()+"/"+path] = string(raw)
		}
	}
	return out
}

func TestFaultsBadReleasesAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	before := version(t, c)
	pools := []string{target(t, c, "master"), target(t, c, "worker")}
	have := before.GetStatus().GetDesired().GetVersion()
	next := following(t, have)
	images := c.Dir("release", "images")
	build := func(t *testing.T, flags ...string) string {
		t.Helper()
		args := append([]string{
			"adm", "release", "new", "--from-dir", manifests(t, next), "--version", next, "--previous",
			have, "--to", images, "-o", "name",
		}, flags...)
		return strings.TrimSpace(c.MustCLI(args...))
	}
	for _, bad := range []struct {
		name, why string
		image     func(t *testing.T) string
	}{
		{"unsigned", "cannot be verified", func(t *testing.T) string {
			return build(t, "--url", "https://example.com/unsigned")
		}},
		{"of a foreign key", "cannot be verified", func(t *testing.T) string {
			keys := t.TempDir()
			c.MustCLI("adm", "release", "keygen", "--to", keys)
			return build(t, "--url", "https://example.com/foreign", "--signing-key", filepath.Join(keys, "signing-key.asc"),
				"--signature-store", c.Dir("release", "signatures"))
		}},
		{"tampered with", "it was changed or is broken", func(t *testing.T) string {
			image := signed(t, c, build(t, "--url", "https://example.com/tampered"))
			layer := blob(images, layerOf(t, images, image))
			raw, err := os.ReadFile(layer)
			if err != nil {
				t.Fatal(err)
			}
			raw[len(raw)/2] ^= 1
			if err := os.WriteFile(layer, raw, 0o644); err != nil {
				t.Fatal(err)
			}
			return image
		}},
		{"with a path that leads out", "its path leads upwards", func(t *testing.T) string {
			return signed(t, c, escaping(t, images, build(t, "--url", "https://example.com/escaping")))
		}},
	} {
		t.Run(bad.name, func(t *testing.T) {
			c := shared.Cluster(t)
			image := bad.image(t)
			c.MustCLI("adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade")
			c.Wait(patience, "the release to be refused", func(ctx context.Context) (bool, string, error) {
				v, err := c.Version(ctx)
				is, text := harness.Condition(v.GetStatus().GetConditions(), "ReleaseAccepted")
				return is == "False" && strings.Contains(text, digestOf(image)) && strings.Contains(text, bad.why), text, err
			})
			now := version(t, c)
			if !proto.Equal(now.GetStatus().GetDesired(), before.GetStatus().GetDesired()) ||
				len(now.GetStatus().GetHistory()) != len(before.GetStatus().GetHistory()) {
				t.Errorf("the version is %v with the history %v, it was %v with %v",
					now.GetStatus().GetDesired(), now.GetStatus().GetHistory(), before.GetStatus().GetDesired(),
					before.GetStatus().GetHistory())
			}
			if got := []string{target(t, c, "master"), target(t, c, "worker")}; !slices.Equal(got, pools) {
				t.Errorf("the pools must have %v, they had %v", got, pools)
			}
			c.MustCLI("adm", "upgrade", "--clear")
			c.Wait(patience, "the desired update to be dropped", func(ctx context.Context) (bool, string, error) {
				v, err := c.Version(ctx)
				is, text := harness.Condition(v.GetStatus().GetConditions(), "ReleaseAccepted")
				return is != "False" && v.GetStatus().GetObservedGeneration() == v.GetMetadata().GetGeneration(), text, err
			})
		})
	}
	if list, err := configv1.NewMachineConfigServiceClient(c.Conn()).ListMachineConfigs(t.Context(),
		&configv1.ListMachineConfigsRequest{}); err != nil ||
		slices.ContainsFunc(list.GetItems(), func(m *configv1.MachineConfig) bool {
			return strings.Contains(m.String(), next)
		}) {
		t.Errorf("something of a bad release was applied: %v (%v)", list.GetItems(), err)
	}
	err := filepath.WalkDir(c.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == escaped {
			t.Errorf("a release wrote %s", path)
		}
		return ignoreGone(err)
	})
	if err != nil {
		t.Error(err)
	}
}

// escaped is the name of a file that a release tries to put beside itself.
const escaped = "escaped-from-a-release"

func digestOf(image string) string { return image[strings.Index(image, "@")+1:] }

// signed signs an image with the cluster's own key.
func signed(t *testing.T, c *harness.Cluster, image string) string {
	t.Helper()
	raw, err := os.ReadFile(c.Dir("release", "signing-key.asc"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := release.ReadKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := key.Sign(c.Dir("release", "signatures"), digestOf(image), image, time.Now()); err != nil {
		t.Fatal(err)
	}
	return image
}

// blob is the file of a digest in an OCI layout.
func blob(layout, digest string) string {
	return filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func layerOf(t *testing.T, layout, image string) string {
	t.Helper()
	var m struct{ Layers []struct{ Digest string } }
	decode(t, blob(layout, digestOf(image)), &m)
	return m.Layers[len(m.Layers)-1].Digest
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// escaping makes an image like another one, with a file whose path leads out of it, and returns its name.
func escaping(t *testing.T, layout, image string) string {
	t.Helper()
	var manifest, config, index map[string]any
	decode(t, blob(layout, digestOf(image)), &manifest)
	decode(t, blob(layout, manifest["config"].(map[string]any)["digest"].(string)), &config)
	decode(t, filepath.Join(layout, "index.json"), &index)

	layer, err := os.ReadFile(blob(layout, layerOf(t, layout, image))) // a plain archive
	if err != nil {
		t.Fatal(err)
	}
	const trailer = 2 * 512 // of a tar archive
	var more bytes.Buffer
	w := tar.NewWriter(&more)
	text := []byte("out\n")
	if err := w.WriteHeader(&tar.Header{
		Name: "release-manifests/../../../" + escaped, Mode: 0o644, Size: int64(len(text)),
		Typeflag: tar.TypeReg,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer = append(layer[:len(layer)-trailer], more.Bytes()...)

	layers, ids := manifest["layers"].([]any), config["rootfs"].(map[string]any)["diff_ids"].([]any)
	digest := put(t, layout, layer)
	ids[len(ids)-1] = digest
	describe(layers[len(layers)-1], digest, len(layer))
	raw := encode(t, config)
	describe(manifest["config"], put(t, layout, raw), len(raw))
	raw = encode(t, manifest)
	digest = put(t, layout, raw)
	index["manifests"] = append(index["manifests"].([]any), map[string]any{
		"mediaType": manifest["mediaType"],
		"digest":    digest, "size": len(raw),
	})
	if err := os.WriteFile(filepath.Join(layout, "index.json"), encode(t, index), 0o644); err != nil {
		t.Fatal(err)
	}
	return image[:strings.Index(image, "@")] + "@" + digest
}

func describe(descriptor any, digest string, size int) {
	d := descriptor.(map[string]any)
	d["digest"], d["size"] = digest, size
}

// put adds a blob to an OCI layout and returns its digest.
func put(t *testing.T, layout string, raw []byte) string {
	t.Helper()
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(raw))
	if err := os.WriteFile(blob(layout, digest), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return digest
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
