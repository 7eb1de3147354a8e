package release

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// adm runs "windlass adm release" with these words.
func adm(t *testing.T, words ...string) (out, errs string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := New(&session.Env{Out: &o, Err: &e})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(words)
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	err = cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

// must is adm for what has to work; it returns what is printed.
func must(t *testing.T, words ...string) string {
	t.Helper()
	out, _, err := adm(t, words...)
	if err != nil {
		t.Fatalf("adm release %s: %v", strings.Join(words, " "), err)
	}
	return out
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	settings = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n  namespace: dns\n  annotations: {include.release.openshift.io/self-managed-high-availability: \"true\"}\n"
	forNone  = "apiVersion: v1\nkind: Namespace\nmetadata: {name: dns}\n"
	pullSpec = "example.com/dns@sha256:e3f12513a4b22a2d7c0e7c9207f52128113758d9d68c7d06b11a0ac7672966f7"
)

// madeRelease makes a release with two manifests and returns its layout and its name.
func madeRelease(t *testing.T, more ...string) (layout, ref string) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "in", "0000_10_dns_01_settings.yaml"), settings)
	write(t, filepath.Join(dir, "in", "0000_10_dns_00_namespace.yaml"), forNone)
	layout = filepath.Join(dir, "images")
	ref = must(t, append([]string{
		"new", "--from-dir", filepath.Join(dir, "in"), "--version", "1.1.0", "--to", layout, "--previous", "1.0.0,1.0.1",
		"--image", "dns=" + pullSpec, "--created", "2026-03-01T12:46:29Z", "-o", "name",
	}, more...)...)
	return layout, strings.TrimSpace(ref)
}

func TestReleaseIsMadeAndExtracted(t *testing.T) {
	layout, ref := madeRelease(t)
	_, digest, _ := strings.Cut(ref, "@")
	to := filepath.Join(t.TempDir(), "payload")
	got := must(t, "extract", ref, "--store", layout, "--to", to)
	if want := "Extracted release payload from digest " + digest + " created at 2026-03-01T12:46:29Z\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := "0000_10_dns_00_namespace.yaml 0000_10_dns_01_settings.yaml image-references release-metadata"; strings.Join(names, " ") != want {
		t.Errorf("files %q, want %s", names, want)
	}
	if out := must(t, "extract", layout, "--file", "0000_10_dns_01_settings.yaml"); out != settings {
		t.Errorf("--file printed %q", out)
	}
	if _, again := madeRelease(t); again != ref {
		t.Errorf("the same input gave %s and %s", ref, again)
	}
}

// The listing of seed 001, without the dots in it.
func TestAReleaseIsExtractedAsTheDocumentLists(t *testing.T) {
	listing := []string{
		"0000_03_authorization-openshift_01_rolebindingrestriction.crd.yaml",
		"0000_03_config-operator_01_proxy.crd.yaml",
		"0000_03_marketplace-operator_01_operatorhub.crd.yaml",
		"0000_03_marketplace-operator_02_operatorhub.cr.yaml",
		"0000_03_quota-openshift_01_clusterresourcequota.crd.yaml",
		"0000_90_service-ca-operator_02_prometheusrolebinding.yaml",
		"0000_90_service-ca-operator_03_servicemonitor.yaml",
		"0000_99_machine-api-operator_00_tombstones.yaml",
		"image-references",
		"release-metadata",
	}
	dir := t.TempDir()
	for i, name := range listing[:8] {
		write(t, filepath.Join(dir, "in", name),
			fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c%d\n  namespace: default\n", i))
	}
	images, to := filepath.Join(dir, "images"), filepath.Join(dir, "out")
	must(t, "new", "--from-dir", filepath.Join(dir, "in"), "--version", "4.12.6", "--to", images)
	must(t, "extract", images, "--to", to)
	entries, err := os.ReadDir(to) // sorted, as by ls
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff(listing, names); diff != "" {
		t.Errorf("the listing differs (-document +ours):\n%s", diff)
	}
}

func TestExtractDoesNotFollowLinksOutOfItsDirectory(t *testing.T) {
	layout, _ := madeRelease(t)
	to, outside := t.TempDir(), filepath.Join(t.TempDir(), "precious")
	write(t, outside, "precious")
	if err := os.Symlink(outside, filepath.Join(to, "release-metadata")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := adm(t, "extract", layout, "--to", to); err == nil {
		t.Error("it went out of the directory")
	}
	if raw, err := os.ReadFile(outside); err != nil || string(raw) != "precious" {
		t.Errorf("the file outside is %q now: %v", raw, err)
	}
}

func TestReleaseInfo(t *testing.T) {
	layout, ref := madeRelease(t)
	_, digest, _ := strings.Cut(ref, "@")
	got := must(t, "info", ref, "--store", layout, "--include", "manifests")
	for _, want := range []string{
		"Name:           1.1.0\n", "Digest:         " + digest + "\n", "Created:        2026-03-01T12:46:29Z\n",
		"Manifests:      2\n", "Pull From: " + ref + "\n",
		"  Upgrades: 1.0.0, 1.0.1\n", "  dns    sha256:e3f12513",
		"  0000_10_dns_00_namespace.yaml   Namespace               dns\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	if got := must(t, "info", layout, "--pullspecs"); !strings.Contains(got, "  dns    "+pullSpec+"\n") {
		t.Errorf("--pullspecs printed\n%s", got)
	}
	var doc struct {
		Digest   string
		Metadata struct{ Version string }
		Images   []struct{ Name, Image string }
	}
	if err := json.Unmarshal([]byte(must(t, "info", layout, "-o", "json")), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Digest != digest || doc.Metadata.Version != "1.1.0" || len(doc.Images) != 1 || doc.Images[0].Image != pullSpec {
		t.Errorf("-o json printed %+v", doc)
	}
	if got := must(t, "info", layout, "-o", "yaml"); !strings.Contains(got, "version: 1.1.0\n") {
		t.Errorf("-o yaml printed\n%s", got)
	}
}

func TestReleaseIsSignedForThoseWhoHaveTheKey(t *testing.T) {
	dir := t.TempDir()
	must(t, "keygen", "--to", dir)
	if info, err := os.Stat(filepath.Join(dir, "signing-key.asc")); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the key that signs: %v, %v", info, err)
	}
	if _, _, err := adm(t, "keygen", "--to", dir); err == nil {
		t.Error("the key was overwritten")
	}
	signatures := filepath.Join(dir, "signatures")
	_, ref := madeRelease(t, "--signing-key", filepath.Join(dir, "signing-key.asc"), "--signature-store", signatures)
	raw, err := os.ReadFile(filepath.Join(dir, "public-key.asc"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := release.ReadRing("ours", raw)
	if err != nil {
		t.Fatal(err)
	}
	must(t, "sign", pullSpec, "--signing-key", filepath.Join(dir, "signing-key.asc"), "--signature-store", signatures)
	for _, ref := range []string{ref, pullSpec} {
		_, digest, _ := strings.Cut(ref, "@")
		if err := (release.Verifier{Rings: []release.Ring{ring}, Stores: []string{"file://" + signatures}}).Verify(
			t.Context(), digest); err != nil {
			t.Error(err)
		}
	}
}

func TestReleaseNewWarnsOfManifestsThatAreForNobody(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "in", "a.yaml"), forNone)
	_, errs, err := adm(t, "new", "--from-dir", filepath.Join(dir, "in"), "--version", "1.1.0", "--to",
		filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "warning: 0000_50_release_a.yaml: Namespace \"dns\" will not be applied: include.release.openshift.io/self-managed-high-availability unset\n"; errs != want {
		t.Errorf("warned %q, want %q", errs, want)
	}
}

func TestReleaseNewWarnsOfAReleaseThatWouldStrandClusters(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "in", "a.yaml"), `apiVersion: v1
kind: ConfigMap
metadata:
  name: trust
  namespace: windlass
  annotations:
    release.openshift.io/verification-config-map: ""
    include.release.openshift.io/self-managed-high-availability: "true"
data:
  verifier-public-key-x: no key
  store-x: https://example.com/signatures
`)
	_, errs, err := adm(t, "new", "--from-dir", filepath.Join(dir, "in"), "--version", "1.1.0", "--to",
		filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "warning: every cluster refuses this release: the release brings verification keys that cannot be read: "; !strings.HasPrefix(errs, want) {
		t.Errorf("warned %q, want %q", errs, want)
	}
}

func TestReleaseVerbsRefuse(t *testing.T) {
	layout, _ := madeRelease(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), settings)
	full := []string{"new", "--from-dir", dir, "--version", "1.1.0", "--to", filepath.Join(dir, "images")}
	tests := map[string]struct {
		words []string
		want  string
	}{
		"no directory": {[]string{"new", "--version", "1.1.0"}, "--from-dir is required"},
		"no version":   {[]string{"new", "--from-dir", dir}, "--version is required"},
		"a version that is none": {
			[]string{"new", "--from-dir", dir, "--version", "one", "--to", dir},
			`version "one" is no semantic version`,
		},
		"a key without a store": {
			append(full, "--signing-key", "x"),
			"--signing-key and --signature-store must be specified together",
		},
		"a key that is not there": {
			append(full, "--signing-key", filepath.Join(dir, "none"), "--signature-store", dir),
			"no such file or directory",
		},
		"a key that is none": {
			append(full, "--signing-key", filepath.Join(dir, "a.yaml"), "--signature-store", dir),
			"signing key: ",
		},
		"a tag to sign": {
			[]string{"sign", "x:v1", "--signing-key", "x", "--signature-store", dir},
			`"x:v1" must be of the form NAME@DIGEST`,
		},
		"an image that is no pair": {append(full, "--image", "dns"), `--image "dns" must be of the form NAME=IMAGE`},
		"an image by tag":          {append(full, "--image", "dns=x:1"), "it must be named by its digest"},
		"an image twice": {
			append(full, "--image", "a="+pullSpec, "--image", "a="+pullSpec),
			"--image a is specified twice",
		},
		"a time that is none": {append(full, "--created", "now"), `--created "now" is not a time`},
		"an unknown form":     {append(full, "-o", "wide"), "unable to match a printer"},
		"an image that is nowhere": {
			[]string{"info", pullSpec[len("example.com/"):], "--store", layout},
			"no such image in " + layout,
		},
		"a directory with no image": {[]string{"info", "oci:" + dir}, "is no OCI layout"},
		"an unknown list": {
			[]string{"info", layout, "--include", "images"},
			`--include must be manifests, not "images"`,
		},
		"a file that is not there": {[]string{"extract", layout, "--file", "x"}, "image did not contain x"},
		"a file and a directory": {
			[]string{"extract", layout, "--file", "x", "--to", dir},
			"cannot specify both --to and --file",
		},
		"no directory for the key": {[]string{"keygen"}, "--to is required"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := adm(t, tt.words...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
		})
	}
}
