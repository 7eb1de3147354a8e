package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const sha = "sha256:e3f12513a4b22a2d7c0e7c9207f52128113758d9d68c7d06b11a0ac7672966f7"

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// says fails the test unless an error says something.
func says(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
}

// folder writes files below a new directory.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		check(t, os.WriteFile(p, []byte(content), 0o600))
	}
	return dir
}

// object is a manifest of a config map.
func object(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n"
}

func created() time.Time { return time.Date(2026, 3, 1, 12, 46, 29, 0, time.UTC) }

func build(t testing.TB, files map[string]string) Build {
	return Build{
		From: folder(t, files), Version: "1.1.0", Previous: []string{"1.0.10", "1.0.9"}, URL: "https://example.com/1.1.0",
		Created: created(),
		Images:  map[string]string{"dns": "example.com/dns@" + sha, "agent": "example.com/agent@" + sha},
	}
}

func TestNewIsReadBack(t *testing.T) {
	b := build(t, map[string]string{
		"0000_10_dns_01_b.yaml": object("b") + "---\n# nothing\n---\n" + object("c"), "0000_10_dns_00_a.yaml": object("a"),
		"plain.yml":                      object("plain"),
		"console/route.json":             `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"route"}}`,
		"console/0000_80_console_x.yaml": object("x"), "README.md": "not a manifest",
		"console/deep/er.yaml": object("deeper"),
		"release/plain.yml":    object("clash"),
	})
	store := filepath.Join(t.TempDir(), "images")
	digest, err := New(store, b)
	check(t, err)
	image, err := Open(t.Context(), "example.com/release@"+digest,
		Places{Layouts: []string{filepath.Join(t.TempDir(), "none"), store}})
	check(t, err)
	p, err := Load(image)
	check(t, err)
	want := []string{
		"0000_10_dns_00_a.yaml", "0000_10_dns_01_b.yaml", "0000_50_console_route.json",
		"0000_50_release_plain.yml", "0000_50_release_plain_2.yml", "0000_80_console_x.yaml",
	}
	if diff := cmp.Diff(want, p.FileNames()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	var objects []string
	for _, m := range p.Manifests {
		objects = append(objects, fmt.Sprintf("%s[%d]", m.Name, m.Document))
	}
	if got := strings.Join(objects, " "); got != "a[0] b[0] c[1] route[0] plain[0] clash[0] x[0]" {
		t.Errorf("objects %s", got)
	}
	if string(p.Manifests[1].Content) != object("b") || string(p.Manifests[2].Content) != object("c") {
		t.Errorf("documents of one file: %q, %q", p.Manifests[1].Content, p.Manifests[2].Content)
	}
	meta := Metadata{
		Kind: metadataKind, Version: "1.1.0", Previous: []string{"1.0.9", "1.0.10"},
		Metadata: map[string]string{"url": "https://example.com/1.1.0"},
	}
	if diff := cmp.Diff(meta, p.Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]ImageReference{{"agent", "example.com/agent@" + sha}, {"dns", "example.com/dns@" + sha}},
		p.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if p.Digest != digest || !p.Created.Equal(created()) || len(p.VersionHash) != 12 {
		t.Errorf("digest %s, created %s, hash %s", p.Digest, p.Created, p.VersionHash)
	}
}

func TestNewGivesTheSameDigestForTheSameInput(t *testing.T) {
	files := map[string]string{"0000_10_a_x.yaml": object("a"), "0000_20_b_x.yaml": object("b")}
	store := t.TempDir()
	first, err := New(store, build(t, files))
	check(t, err)
	again, err := New(store, build(t, files))
	check(t, err)
	if first != again {
		t.Errorf("%s and %s", first, again)
	}
	if list, err := descriptorsOf(store); err != nil || len(list) != 1 {
		t.Errorf("the layout lists %d images: %v", len(list), err)
	}
	other := build(t, files)
	other.Version = "1.1.1"
	if digest, err := New(store, other); err != nil || digest == first {
		t.Errorf("another version has digest %s: %v", digest, err)
	}
	if _, err := Open(t.Context(), "oci:"+store+"@"+first, Places{}); err != nil {
		t.Error("the first image is gone:", err)
	}
	_, err = Open(t.Context(), "oci:"+store, Places{})
	says(t, err, "holds 2 images: name one by its digest")
}

func TestNewTakesTheImagesOfTheDirectory(t *testing.T) {
	b := build(t, map[string]string{
		"a.yaml":           object("a"),
		"image-references": `{"kind":"ImageStream","metadata":{"name":"other"},"spec":{"tags":[{"name":"dns","from":{"kind":"DockerImage","name":"x@` + sha + `"}}]}}`,
	})
	b.Images = nil
	store := t.TempDir()
	_, err := New(store, b)
	check(t, err)
	image, err := Open(t.Context(), "oci:"+store, Places{})
	check(t, err)
	p, err := Load(image)
	check(t, err)
	if len(p.Images) != 1 || p.Images[0].Image != "x@"+sha {
		t.Errorf("images %v", p.Images)
	}
}

func TestNewRefuses(t *testing.T) {
	good := map[string]string{"a.yaml": object("a")}
	tests := map[string]struct {
		files  map[string]string
		change func(*Build)
		want   string
	}{
		"no manifests": {map[string]string{"README.md": ""}, nil, "holds no manifests"},
		"no directory": {good, func(b *Build) { b.From += "/none" }, "no such file or directory"},
		"a version that is none": {
			good, func(b *Build) { b.Version = "1.1" },
			`release-metadata: version "1.1" is no semantic version`,
		},
		"no version": {
			good, func(b *Build) { b.Version = "" },
			"release-metadata: missing required field version",
		},
		"a previous that is none": {
			good, func(b *Build) { b.Previous = []string{"1.0.0", "x"} },
			`release-metadata: previous[1] "x" is no semantic version`,
		},
		"itself as previous": {
			good, func(b *Build) { b.Previous = []string{"1.1.0"} },
			"release-metadata: previous[0] is the version itself",
		},
		"an image by tag": {
			good, func(b *Build) { b.Images = map[string]string{"dns": "example.com/dns:1"} },
			"image dns=example.com/dns:1: it must be named by its digest",
		},
		"a broken manifest": {map[string]string{"a.yaml": "a: [\n"}, nil, "0000_50_release_a.yaml:"},
		"a manifest without name": {
			map[string]string{"a.yaml": "apiVersion: v1\nkind: Pod\n"},
			nil,
			"0000_50_release_a.yaml:1: Pod: missing metadata.name",
		},
		"a delete that is none": {
			map[string]string{"a.yaml": object("a") + "  annotations: {release.openshift.io/delete: \"false\"}\n"},
			nil,
			`annotation release.openshift.io/delete must be "true", not "false"`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := build(t, tt.files)
			if tt.change != nil {
				tt.change(&b)
			}
			store := filepath.Join(t.TempDir(), "images")
			_, err := New(store, b)
			says(t, err, tt.want)
			if _, err := os.Stat(store); !errors.Is(err, os.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	store := t.TempDir()
	_, err := New(store, build(t, map[string]string{"a.yaml": object("a")}))
	check(t, err)
	tests := map[string]struct {
		ref, want string
		notFound  bool
	}{
		"a tag":                            {"release:1.1.0", "must be named by its digest", false},
		"a digest that is none":            {"release@sha256:12", "must be named by its digest", false},
		"a digest that is nowhere":         {"release@" + sha, "no such image in " + store, true},
		"a digest that the layout has not": {"oci:" + store + "@" + sha, "no such image in " + store, true},
		"a directory that is no layout":    {"oci:" + filepath.Join(store, "blobs"), "is no OCI layout", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), tt.ref, Places{Layouts: []string{store}})
			says(t, err, tt.want)
			if errors.Is(err, ErrNotFound) != tt.notFound {
				t.Errorf("%v: is ErrNotFound: %v", err, !tt.notFound)
			}
		})
	}
	_, err = Open(t.Context(), "release@"+sha, Places{})
	says(t, err, "none is configured")
}

func TestWhatWasChangedIsRefused(t *testing.T) {
	store := t.TempDir()
	digest, err := New(store, build(t, map[string]string{"a.yaml": object("a")}))
	check(t, err)
	blobs, err := filepath.Glob(filepath.Join(store, "blobs", "sha256", "*"))
	check(t, err)
	if len(blobs) != 3 {
		t.Fatalf("%d blobs, want manifest, configuration and layer", len(blobs))
	}
	for _, blob := range blobs {
		good, err := os.ReadFile(blob)
		check(t, err)
		for part, change := range map[string]func(){
			"changed": func() {
				bad := bytes.Clone(good)
				bad[len(bad)/3] ^= 1
				check(t, os.WriteFile(blob, bad, 0o600))
			},
			"longer":  func() { check(t, os.WriteFile(blob, append(bytes.Clone(good), ' '), 0o600)) },
			"missing": func() { check(t, os.Remove(blob)) },
		} {
			change()
			image, err := Open(t.Context(), "release@"+digest, Places{Layouts: []string{store}})
			if err == nil {
				_, err = Load(image)
			}
			if err == nil {
				t.Errorf("%s of %d bytes is %s and is accepted", filepath.Base(blob), len(good), part)
			}
			check(t, os.WriteFile(blob, good, 0o600))
		}
	}
}

// A change anywhere in a layer is found by its digest, also where it makes the archive unreadable.
func TestAChangedLayerIsFoundByItsDigest(t *testing.T) {
	store := t.TempDir()
	digest, err := New(store, build(t, map[string]string{"a.yaml": object("a"), "b.yaml": object("b")}))
	check(t, err)
	image, err := Open(t.Context(), "release@"+digest, Places{Layouts: []string{store}})
	check(t, err)
	layer := must(must(image.image.Layers())[0].Digest())
	blob := filepath.Join(store, "blobs", layer.Algorithm, layer.Hex)
	good, err := os.ReadFile(blob)
	check(t, err)
	for at := 0; at < len(good); at += 32 {
		bad := bytes.Clone(good)
		bad[at] ^= 1
		check(t, os.WriteFile(blob, bad, 0o600))
		image, err := Open(t.Context(), "release@"+digest, Places{Layouts: []string{store}})
		if err == nil {
			_, err = Load(image)
		}
		says(t, err, "layer 0: it has digest ")
	}
}

// put is an entry of an archive.
type put struct {
	name, content string
	kind          byte // zero means a file
	link          string
}

func archive(t testing.TB, entries []put) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Size: int64(len(e.content)), Mode: 0o644, Typeflag: e.kind, Linkname: e.link}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		check(t, w.WriteHeader(h))
		_, err := w.Write([]byte(e.content))
		check(t, err)
	}
	check(t, w.Close())
	return b.Bytes()
}

func packed(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(raw)
	check(t, err)
	check(t, w.Close())
	return b.Bytes()
}

// imageOf makes an image of layers, packed with gzip as most are.
func imageOf(t testing.TB, layers ...[]put) v1.Image {
	t.Helper()
	image := v1.Image(empty.Image)
	for _, l := range layers {
		var err error
		image, err = mutate.AppendLayers(image, static.NewLayer(packed(t, archive(t, l)), types.OCILayer))
		check(t, err)
	}
	return image
}

// loaded writes an image to a layout and reads it from there.
func loaded(t testing.TB, image v1.Image) (*Payload, error) {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	check(t, err)
	check(t, l.AppendImage(image))
	found, err := Open(t.Context(), "oci:"+dir, Places{})
	check(t, err)
	return Load(found)
}

// heads are the two files that every release has.
func heads() []put {
	return []put{
		{name: "release-manifests/release-metadata", content: `{"kind":"cincinnati-metadata-v0","version":"1.1.0"}`},
		{name: "release-manifests/image-references", content: `{"kind":"ImageStream","metadata":{"name":"1.1.0"}}`},
	}
}

func TestLoadReadsLayersInOrder(t *testing.T) {
	base := append(heads(),
		put{name: "usr/bin/tool", content: "not of interest"}, put{
			name: "etc/link", kind: tar.TypeSymlink,
			link: "/etc/other",
		},
		put{name: "./manifests/0000_00_own_z.yaml", content: object("own")},
		put{name: "manifests/template.yaml", content: "image: {{.ReleaseImage}}\n"},
		put{name: "release-manifests/0000_10_a_x.yaml", content: object("old")},
		put{name: "release-manifests/0000_10_a_gone.yaml", content: object("gone")},
		put{name: "release-manifests/folder/x.yaml", content: object("deeper")},
	)
	above := []put{
		{name: "release-manifests/", kind: tar.TypeDir},
		{name: "release-manifests/0000_10_a_x.yaml", content: object("new")},
		{name: "release-manifests/.wh.0000_10_a_gone.yaml"},
		{name: "release-manifests/0000_05_b_link.yaml", kind: tar.TypeSymlink, link: "0000_10_a_x.yaml"},
	}
	p, err := loaded(t, imageOf(t, base, above))
	check(t, err)
	var got []string
	for _, m := range p.Manifests {
		got = append(got, m.File+" "+m.Name)
	}
	if diff := cmp.Diff([]string{"0000_00_own_z.yaml own", "0000_05_b_link.yaml new", "0000_10_a_x.yaml new"},
		got); diff != "" {
		t.Errorf("manifests (-want +got):\n%s", diff)
	}
	if !slices.Equal(p.Skipped, []string{"template.yaml"}) {
		t.Errorf("skipped %q", p.Skipped)
	}
}

func TestLoadForgetsFoldersThatALayerTakesAway(t *testing.T) {
	for _, marker := range []string{"release-manifests/.wh..wh..opq", ".wh.release-manifests"} {
		old := []put{{name: "release-manifests/old.yaml", content: object("old")}}
		p, err := loaded(t, imageOf(t, old, append([]put{{name: marker}}, heads()...)))
		check(t, err)
		if len(p.Manifests) != 0 {
			t.Errorf("%s: %v is still there", marker, p.FileNames())
		}
	}
}

// TestAWhiteoutIsForTheLayersBelow holds that it leaves alone what its own layer has, wherever it is in the layer.
// Source: the OCI image specification, "Whiteouts".
func TestAWhiteoutIsForTheLayersBelow(t *testing.T) {
	below := append(heads(), put{name: "release-manifests/a.yaml", content: object("below")},
		put{name: "release-manifests/b.yaml", content: object("below")})
	for _, tt := range []struct {
		marker string
		want   []string
	}{
		{"release-manifests/.wh.a.yaml", []string{"a.yaml above", "b.yaml below"}},
		{"release-manifests/.wh..wh..opq", []string{"a.yaml above"}},
		{".wh.release-manifests", []string{"a.yaml above"}},
		{".wh..wh..opq", []string{"a.yaml above"}},
	} {
		marker, file := put{name: tt.marker}, put{name: "release-manifests/a.yaml", content: object("above")}
		for _, above := range [][]put{{marker, file}, {file, marker}} {
			p, err := loaded(t, imageOf(t, below, append(heads(), above...)))
			check(t, err)
			var got []string
			for _, m := range p.Manifests {
				got = append(got, m.File+" "+m.Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s, then %s (-want +got):\n%s", above[0].name, above[1].name, diff)
			}
		}
	}
	_, err := loaded(t, imageOf(t, heads(), []put{{name: "release-manifests/.wh.release-metadata"}}))
	says(t, err, "it is no release: release-manifests/release-metadata is missing")
}

// TestWhatIsReadOfAnImageIsBounded has small bounds, and images that are just within and just beyond each.
func TestWhatIsReadOfAnImageIsBounded(t *testing.T) {
	plain := func(raw []byte) v1.Layer { return static.NewLayer(raw, types.OCIUncompressedLayer) }
	three := archive(t, []put{{name: "a"}, {name: "b"}, {name: "c", content: strings.Repeat("c", 5000)}})
	size := int64(len(three))
	longer := append(bytes.Clone(three), make([]byte, 1000)...)
	for _, tt := range []struct {
		name   string
		layers []v1.Layer
		most   limits
		want   string
	}{
		{"what is within", []v1.Layer{plain(three), plain(three)}, limits{2, 6, 2 * size, 2 * size}, ""},
		{"layers", []v1.Layer{plain(three), plain(three)}, limits{1, 6, 2 * size, 2 * size}, "it has 2 layers, more than 1"},
		{
			"entries of all layers together",
			[]v1.Layer{plain(three), plain(three)},
			limits{2, 5, 2 * size, 2 * size},
			`layer 1: file "c": all layers together have more than 5 entries`,
		},
		{
			"bytes that the manifest says",
			[]v1.Layer{plain(three), plain(three)},
			limits{2, 6, 2*size - 1, 2 * size},
			fmt.Sprintf("its layers have more than %d bytes, as they are packed", 2*size-1),
		},
		{
			"bytes that the manifest does not say",
			[]v1.Layer{understated{plain(three)}},
			limits{1, 3, size - 1, size},
			fmt.Sprintf("layer 0: its layers have more than %d bytes, as they are packed", size-1),
		},
		{
			"bytes of all layers together",
			[]v1.Layer{plain(three), plain(three)},
			limits{2, 6, 2 * size, 2*size - 1},
			fmt.Sprintf("layer 1: its layers have more than %d bytes, unpacked", 2*size-1),
		},
		{
			"bytes that follow an archive",
			[]v1.Layer{static.NewLayer(packed(t, longer), types.OCILayer)},
			limits{1, 3, size, size},
			fmt.Sprintf("layer 0: its layers have more than %d bytes, unpacked", size),
		},
		{
			"bytes that follow an archive that is not packed",
			[]v1.Layer{understated{plain(longer)}},
			limits{1, 3, size, 2 * size},
			fmt.Sprintf("layer 0: its layers have more than %d bytes, as they are packed", size),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			image, err := mutate.AppendLayers(empty.Image, tt.layers...)
			check(t, err)
			_, err = readLayers(image, tt.most)
			if tt.want == "" {
				check(t, err)
			} else {
				says(t, err, tt.want)
			}
		})
	}
}

// understated is a layer that its manifest says to have one byte.
type understated struct{ v1.Layer }

func (understated) Size() (int64, error) { return 1, nil }

func TestLoadRefuses(t *testing.T) {
	tests := map[string]struct {
		more []put
		want string
	}{
		"an absolute path": {[]put{{name: "/etc/passwd"}}, `file "/etc/passwd": its path is absolute`},
		"a path that leads upwards": {
			[]put{{name: "release-manifests/../../etc/x.yaml"}},
			`file "release-manifests/../../etc/x.yaml": its path leads upwards`,
		},
		"a link that leads upwards": {
			[]put{{name: "release-manifests/x.yaml", kind: tar.TypeSymlink, link: "../../etc/passwd"}},
			`file "release-manifests/x.yaml": it is a link that leads outside, to "../../etc/passwd"`,
		},
		"a link to an absolute path": {
			[]put{{name: "manifests/x.yaml", kind: tar.TypeSymlink, link: "/etc/passwd"}},
			`it is a link that leads outside, to "/etc/passwd"`,
		},
		"a hard link that leads outside": {
			[]put{{name: "manifests/x.yaml", kind: tar.TypeLink, link: "etc/passwd"}},
			`it is a link that leads outside, to "etc/passwd"`,
		},
		"a link in a folder deeper": {
			[]put{{name: "manifests/d/x.yaml", kind: tar.TypeSymlink, link: "../../x"}},
			`it is a link that leads outside, to "../../x"`,
		},
		"a link to nothing": {
			[]put{{name: "manifests/x.yaml", kind: tar.TypeSymlink, link: "y.yaml"}},
			`it is a link to "y.yaml", which is not there`,
		},
		"a device": {
			[]put{{name: "manifests/x.yaml", kind: tar.TypeChar}},
			`file "manifests/x.yaml": it is of type "3", neither a file nor a link`,
		},
		"a folder that is a link": {
			[]put{{name: "release-manifests", kind: tar.TypeSymlink, link: "/etc"}},
			`file "release-manifests": it is no folder`,
		},
		"a file that is too long": {
			[]put{{name: "manifests/x.yaml", content: strings.Repeat(" ", maxFile+1)}},
			`file "manifests/x.yaml": it is longer than 8388608 bytes`,
		},
		"a name in both folders": {
			[]put{{name: "manifests/x.yaml", content: object("a")}, {name: "release-manifests/x.yaml", content: object("a")}},
			"x.yaml is in manifests and in release-manifests",
		},
		"another kind of metadata": {
			[]put{{name: "release-manifests/release-metadata", content: `{"kind":"x","version":"1.1.0"}`}},
			`release-metadata: unrecognized kind "x", it must be "cincinnati-metadata-v0"`,
		},
		"metadata that are no JSON": {
			[]put{{name: "release-manifests/release-metadata", content: `{`}},
			"release-metadata: unexpected end of JSON input",
		},
		"image references of another one": {
			[]put{{name: "release-manifests/image-references", content: `{"kind":"ImageStream","metadata":{"name":"1.0.0"}}`}},
			"version from image-references (1.0.0) differs from release-metadata (1.1.0)",
		},
		"image references of another kind": {
			[]put{{name: "release-manifests/image-references", content: `{"kind":"List"}`}},
			`image-references: unrecognized kind "List"`,
		},
		"a job that may be removed before its end is seen": {
			[]put{{
				name:    "release-manifests/0000_10_a_job.yaml",
				content: `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a"},"spec":{"ttlSecondsAfterFinished":0}}`,
			}}, `Job "a": spec.ttlSecondsAfterFinished must be 60 or more`,
		},
		"a reference to nothing": {
			[]put{
				{
					name:    "release-manifests/image-references",
					content: `{"kind":"ImageStream","metadata":{"name":"1.1.0"},"spec":{"tags":[{"name":"a"}]}}`,
				},
			}, "image-references: spec.tags[0] must have a name and from.name",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := loaded(t, imageOf(t, append(heads(), tt.more...)))
			says(t, err, tt.want)
		})
	}
}

func TestLoadNamesEveryBrokenManifest(t *testing.T) {
	_,
		err := loaded(t, imageOf(t, append(heads(), put{name: "manifests/a.yaml", content: "kind: A\napiVersion: v1\n"},
		put{name: "manifests/b.yaml", content: "- 1\n"})))
	says(t, err, "a.yaml:1: A: missing metadata.name")
	says(t, err, "b.yaml:1")
}

func TestLoadRefusesTooManyFiles(t *testing.T) {
	tr := newTree(limits{})
	for i := range maxFiles {
		check(t, tr.put(fmt.Sprint(i), nil))
	}
	says(t, tr.put("one more", nil), "there are more than 10000 files")
	tr = newTree(limits{})
	big := make([]byte, maxContent/2)
	check(t, tr.put("a", big))
	check(t, tr.put("a", big)) // again: the old one goes
	check(t, tr.put("b", big))
	says(t, tr.put("c", []byte{1}), "all files together are longer than")
}

func TestLoadKeepsTheOrderOfARealRelease(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "release-resources-862.tsv"))
	check(t, err)
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma = '\t'
	rows, err := r.ReadAll()
	check(t, err)
	files := map[string]string{}
	for i, row := range rows[1:] {
		files[fmt.Sprintf("0000_50_all_%04d.yaml", i)] = fmt.Sprintf(
			"apiVersion: example.com/v1\nkind: %q\nmetadata: {name: %q}\n", row[1], row[2])
	}
	store := t.TempDir()
	_, err = New(store, build(t, files))
	check(t, err)
	image, err := Open(t.Context(), "oci:"+store, Places{})
	check(t, err)
	p, err := Load(image)
	check(t, err)
	if len(p.Manifests) != 862 {
		t.Fatalf("%d manifests, want 862", len(p.Manifests))
	}
	for i, m := range p.Manifests {
		if m.Kind != rows[i+1][1] || m.Name != rows[i+1][2] {
			t.Fatalf("manifest %d is %s %s, want %v", i, m.Kind, m.Name, rows[i+1])
		}
	}
}

func TestOpenAsksARegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/release"
	image := imageOf(t, append(heads(), put{name: "release-manifests/a.yaml", content: object("a")}))
	tag, err := name.NewTag(repository + ":1.1.0")
	check(t, err)
	check(t, remote.Write(tag, image))
	digest, err := image.Digest()
	check(t, err)
	for _, ref := range []string{repository + "@" + digest.String(), repository + ":1.1.0"} {
		found, err := Open(t.Context(), ref, Places{})
		check(t, err)
		p, err := Load(found)
		check(t, err)
		if p.Digest != digest.String() || len(p.Manifests) != 1 {
			t.Errorf("%s: digest %s, %d manifests", ref, p.Digest, len(p.Manifests))
		}
	}
	_, err = Open(t.Context(), repository+"@"+sha, Places{})
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = Open(ctx, repository+":1.1.0", Places{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the registry was asked all the same: %v", err)
	}
}

// multi is an index of images for some architectures, each with a manifest named for its own.
func multi(t testing.TB, architectures ...string) v1.ImageIndex {
	t.Helper()
	index := v1.ImageIndex(empty.Index)
	for _, a := range architectures {
		image := imageOf(t, append(heads(), put{name: "release-manifests/" + a + ".yaml", content: object("a")}))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: a}},
		})
	}
	return index
}

func TestAnIndexIsVerifiedAndThisMachinesImageRead(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/release"
	tag, err := name.NewTag(repository + ":1.1.0")
	check(t, err)
	foreign := tag.Tag("foreign")
	index, none := multi(t, "s390x", runtime.GOARCH), multi(t, "s390x", "ppc64le")
	check(t, remote.WriteIndex(tag, index))
	check(t, remote.WriteIndex(foreign, none))
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	check(t, err)
	check(t, l.AppendIndex(index))
	check(t, l.AppendIndex(none))
	digest, without := must(index.Digest()).String(), must(none.Digest()).String()
	for _, ref := range []string{
		tag.String(), repository + "@" + digest, "oci:" + dir + "@" + digest, "release@" + digest,
	} {
		found, err := Open(t.Context(), ref, Places{Layouts: []string{dir}})
		check(t, err)
		if found.Digest != digest {
			t.Errorf("%s: digest %s, want that of the index, %s, which is what is signed", ref, found.Digest, digest)
		}
		p, err := Load(found)
		check(t, err)
		if !slices.Equal(p.FileNames(), []string{runtime.GOARCH + ".yaml"}) || p.Digest != digest {
			t.Errorf("%s: files %v of %s", ref, p.FileNames(), p.Digest)
		}
	}
	for _, ref := range []string{foreign.String(), repository + "@" + without, "oci:" + dir + "@" + without} {
		_, err := Open(t.Context(), ref, Places{})
		says(t, err, "no image for linux/"+runtime.GOARCH+": it has linux/s390x, linux/ppc64le")
	}
}

func TestTheImageOfAnIndexIsPickedByArchitecture(t *testing.T) {
	at := func(n string) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: n} }
	list := []v1.Descriptor{
		{Digest: at("attestation"), MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{
			OS: "unknown", Architecture: "unknown",
		}},
		{Digest: at("unnamed"), MediaType: types.OCIManifestSchema1},
		{Digest: at("nested"), MediaType: types.OCIImageIndex, Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}},
		{Digest: at("windows"), MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{
			OS: "windows", Architecture: "arm64",
		}},
		{Digest: at("amd64"), MediaType: types.DockerManifestSchema2, Platform: &v1.Platform{
			OS: "linux", Architecture: "amd64",
		}},
		{Digest: at("arm64"), MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{
			OS: "linux", Architecture: "arm64", Variant: "v8",
		}},
	}
	for _, arch := range []string{"amd64", "arm64"} {
		d, err := pick(list, arch)
		check(t, err)
		if d.Digest.Hex != arch {
			t.Errorf("%s is picked for %s", d.Digest.Hex, arch)
		}
	}
	_, err := pick(list, "s390x")
	says(t, err,
		"no image for linux/s390x: it has unknown/unknown, one for an unnamed platform, windows/arm64, linux/amd64, linux/arm64/v8")
	_, err = pick(nil, "s390x")
	says(t, err, "no image for linux/s390x: it has none")
}

func TestAnIndexThatWasChangedIsRefused(t *testing.T) {
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	check(t, err)
	index := multi(t, runtime.GOARCH)
	check(t, l.AppendIndex(index))
	digest := must(index.Digest())
	child := must(index.IndexManifest()).Manifests[0].Digest
	for part, hash := range map[string]v1.Hash{"index": digest, "manifest": child} {
		blob := filepath.Join(dir, "blobs", "sha256", hash.Hex)
		good, err := os.ReadFile(blob)
		check(t, err)
		check(t, os.WriteFile(blob, append(bytes.Clone(good), ' '), 0o600))
		_, err = Open(t.Context(), "release@"+digest.String(), Places{Layouts: []string{dir}})
		says(t, err, "its "+part+" has digest ")
		check(t, os.WriteFile(blob, good, 0o600))
	}
}

func TestManifestsSayWhomTheyAreFor(t *testing.T) {
	const id, profile = "cluster", DefaultProfile
	const included = IncludeAnnotation + profile + `: "true", `
	tests := map[string]struct{ annotations, excluded string }{
		"no annotations": {"", "include.release.openshift.io/self-managed-high-availability unset"},
		"the profile":    {IncludeAnnotation + profile + ": \"true\"", ""},
		"another profile": {
			IncludeAnnotation + "x: \"true\"",
			"include.release.openshift.io/self-managed-high-availability unset",
		},
		"excluded by identity": {
			IncludeAnnotation + profile + ": \"true\", " + annotationExclude + id + ": \"true\"",
			"exclude.release.openshift.io/cluster=true",
		},
		"another feature set": {
			IncludeAnnotation + profile + ": \"true\", " + annotationFeatureSet +
				": \"TechPreviewNoUpgrade,X\"",
			`"Default" is not listed in release.openshift.io/feature-set=TechPreviewNoUpgrade,X`,
		},
		"the right feature set": {
			IncludeAnnotation + profile + ": \"true\", " + annotationFeatureSet + ": \"X,Default\"",
			"",
		},
		"a gate that is on": {included + annotationFeatureGate + `: "Here, -Gone"`, ""},
		"a gate that is off": {
			included + annotationFeatureGate + `: "Here,Gone"`,
			"feature gate Gone is off, and " + annotationFeatureGate + "=Here,Gone",
		},
		"a gate that must be off": {
			included + annotationFeatureGate + `: "-Here"`, "feature gate Here is on, and " + annotationFeatureGate + "=-Here",
		},
		"a gate of another version": {
			included + annotationFeatureGate + `: Later`, "feature gate Later is off, and " + annotationFeatureGate + "=Later",
		},
		"no gate": {included + annotationFeatureGate + `: ""`, ""},
		"a gate of another set": {
			included + annotationFeatureGate + `: Preview`,
			"feature gate Preview is off, and " + annotationFeatureGate + "=Preview",
		},
		"its major version":     {included + annotationMajor + `: "3,4"`, ""},
		"another major version": {included + annotationMajor + `: "5"`, `"4" does not fit ` + annotationMajor + "=5"},
		"all but another one":   {included + annotationMajor + `: "-5"`, ""},
		"all but its own":       {included + annotationMajor + `: "-4"`, `"4" does not fit ` + annotationMajor + "=-4"},
	}
	var gates []Manifest
	for set, on := range map[string]string{"Default": "Here", "TechPreviewNoUpgrade": "Preview"} {
		list, err := readManifests(File{Name: set + ".yaml", Content: []byte(
			"apiVersion: config.openshift.io/v1\nkind: FeatureGate\nmetadata: {name: cluster, annotations: {" + included +
				annotationFeatureSet + ": " + set + "}}\nstatus: {featureGates: [{version: 4.20.1, enabled: [{name: " + on +
				"}]}, {version: 4.21.0, enabled: [{name: Later}]}]}\n")})
		check(t, err)
		gates = append(gates, list...)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			list,
				err := readManifests(File{Name: "x.yaml", Content: []byte(object("a") + "  annotations: {" + tt.annotations +
				"}\n")})
			check(t, err)
			p := &Payload{Manifests: append(list, gates...), Metadata: Metadata{Version: "4.20.1"}}
			s := p.Select(Cluster{ID: id, Profile: profile, FeatureSet: DefaultFeatureSet})
			if got := s.Excluded(list[0]); got != tt.excluded {
				t.Errorf("Excluded = %q, want %q", got, tt.excluded)
			}
		})
	}
}

func TestItemsOfAListAreManifests(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"n","labels":{"x":"y"},"annotations":{"release.openshift.io/delete":"true"}},"spec":{"replicas":3}},
		{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","annotations":{"release.openshift.io/create-only":"true"}}}]}`
	list, err := readManifests(File{Name: "x.json", Content: []byte(text)})
	check(t, err)
	if len(list) != 2 || list[0].Group() != "apps" || list[1].Group() != "" || list[1].Document != 1 ||
		list[0].Labels["x"] != "y" {
		t.Fatalf("got %+v", list)
	}
	if !list[0].Delete() || list[0].CreateOnly() || list[1].Delete() || !list[1].CreateOnly() {
		t.Error("the annotations are not understood")
	}
	if n := list[0].Object["spec"].(map[string]any)["replicas"]; n != int64(3) {
		t.Errorf("a whole number is %T", n)
	}
	_,
		err = readManifests(File{Name: "x.json", Content: []byte(`{"apiVersion":"v1","kind":"List","items":[{"kind":"A"}]}`)})
	says(t, err, "x.json:1: v1 List: items[0]: A \"\": missing apiVersion")
}

func TestADocumentStandsAsInItsFileOrAsJSON(t *testing.T) {
	const (
		a = "apiVersion: v1\nkind: A\nmetadata: {name: a}\n"
		b = "apiVersion: v1\nkind: B\nmetadata: {name: b}\n"
		x = `{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}`
		y = `{"apiVersion":"v1","kind":"B","metadata":{"name":"b"}}`
	)
	for _, tt := range []struct {
		name, file string
		want       [2]string
	}{
		{"documents between markers", "---\n" + a + "---\n" + b, [2]string{a, b}},
		{
			"a comment of carriage returns", a + "# c\r# c\r# c\r# c\r# c\r# c\r# c\n---\n" + b,
			[2]string{a + "# c\r# c\r# c\r# c\r# c\r# c\r# c\n", y},
		},
		{
			"a line that only begins like a marker", a + "---more: 1\n---\n" + b,
			[2]string{`{"---more":1,` + strings.TrimPrefix(x, "{"), b},
		},
		{"JSON on lines of its own", x + "\n" + y + "\n", [2]string{x + "\n", y + "\n"}},
		{"JSON that begins on another's last line", strings.Replace(x, ",", ",\n", 1) + " " + y, [2]string{x, y}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, err := readManifests(File{Name: "x.yaml", Content: []byte(tt.file)})
			check(t, err)
			var have [2]string
			for i, m := range list {
				have[i%2] = string(m.Content)
			}
			if len(list) != 2 || have != tt.want {
				t.Errorf("got %q, want %q", have, tt.want)
			}
		})
	}
}
