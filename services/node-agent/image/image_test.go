package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/services/node-agent/image"
)

func layer(t *testing.T, entries ...tar.Header) v1.Layer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		content := ""
		if h.Size > 0 { // only the beginning of it
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			return static.NewLayer(out.Bytes(), types.OCIUncompressedLayer)
		}
		if h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(out.Bytes(), types.OCIUncompressedLayer)
}

func reg(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
func dir(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }
func sym(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
}

func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeLink}
}

// write makes the layout of an image below a directory of images.
func write(t *testing.T, images, name, tag string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(images, name)
	p, err := layout.FromPath(path)
	if err != nil {
		if p, err = layout.Write(path, empty.Index); err != nil {
			t.Fatal(err)
		}
	}
	var options []layout.Option
	if tag != "" {
		options = append(options, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
	}
	if err := p.AppendImage(img, options...); err != nil {
		t.Fatal(err)
	}
	return img
}

func TestImagesAreFound(t *testing.T) {
	images := t.TempDir()
	one := write(t, images, "example.com/a/b", "v1", layer(t, reg("one")))
	two := write(t, images, "example.com/a/b", "latest", layer(t, reg("two")))
	only := write(t, images, "plain", "", layer(t, reg("only")))
	digest := func(i v1.Image) string {
		d, err := i.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	s := image.NewStore(filepath.Join(images, "none"), images)
	for ref, want := range map[string]v1.Image{
		"example.com/a/b:v1": one, "example.com/a/b": two, "example.com/a/b@" + digest(one): one, "plain": only,
		"plain:any": only,
	} {
		if got, err := s.Find(ref); err != nil || got.Digest != digest(want) {
			t.Errorf("Find(%q) = %v, %v", ref, got, err)
		}
	}
	for _, ref := range []string{
		"example.com/a/b:v3", "example.com/a", "other", "", "../plain", "/plain",
		"plain@sha256:" + strings.Repeat("0", 64),
	} {
		if got, err := s.Find(ref); !errors.Is(err, image.ErrNotFound) {
			t.Errorf("Find(%q) = %v, %v, want ErrNotFound", ref, got, err)
		}
	}
}

func unpack(t *testing.T, layers ...v1.Layer) (string, error) {
	t.Helper()
	images := t.TempDir()
	write(t, images, "x", "", layers...)
	i, err := image.NewStore(images).Find("x")
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "root")
	return to, i.Unpack(t.Context(), to)
}

func TestLayersLieOverEachOther(t *testing.T) {
	root, err := unpack(t,
		layer(t, reg("a"), reg("b"), reg("d/x"), reg("d/y"), reg("o/old"), dir("was-dir"), reg("was-dir/f"),
			sym("run", "/var/run"), dir("var/run")),
		layer(t, reg("a"), reg(".wh.b"), reg("d/.wh.x"), reg("o/.wh..wh..opq"), reg("o/new"), reg("was-dir"),
			hard("linked", "a"), reg("run/pid"), sym("abs", "/d/y")),
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{
		"a": true, "b": false, ".wh.b": false, "d/x": false, "d/y": true, "o/old": false, "o/new": true, "was-dir": true,
		"was-dir/f": false,
		"linked":    true, "var/run/pid": true, "abs": true,
	} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "abs")); err != nil || string(data) != "content of d/y" {
		t.Errorf("an absolute link leads to %q, %v", data, err)
	}
}

// TestALayerHidesOnlyWhatIsBelowIt has marks come after what the same layer wrote, at every depth. Source: OCI image
// layer specification, on whiteouts.
func TestALayerHidesOnlyWhatIsBelowIt(t *testing.T) {
	root, err := unpack(t,
		layer(t, reg("f"), reg("d/old"), reg("o/sub/old"), reg("o/gone/old"), reg("kept/x")),
		layer(t, reg("f"), reg(".wh.f"), reg("d/new"), reg(".wh.d"), reg("o/sub/new"), sym("o/link", "/kept"),
			reg("o/.wh..wh..opq")),
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{
		"f": true, "d/old": false, "d/new": true, "o/sub/old": false, "o/sub/new": true, "o/gone": false, "o/link": true,
		"kept/x": true,
	} {
		if _, err := os.Lstat(filepath.Join(root, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNothingLeavesTheDirectory(t *testing.T) {
	outside := t.TempDir()
	for name, l := range map[string]v1.Layer{
		"by a path":             layer(t, reg("../../escaped")),
		"by a link to the host": layer(t, sym("out", outside), reg("out/escaped")),
		"by a relative link":    layer(t, sym("up", "../../.."), reg("up/escaped")),
		"by a hard link":        layer(t, hard("passwd", "../../../../etc/passwd")),
		"by a whiteout":         layer(t, sym("out", "../../.."), reg("out/.wh.tmp")),
	} {
		t.Run(name, func(t *testing.T) {
			root, err := unpack(t, l)
			_ = err // refused, or kept inside: both will do
			if _, err := os.Stat(filepath.Join(outside, "escaped")); err == nil {
				t.Error("a file was written outside")
			}
			for d := filepath.Dir(root); d != "/"; d = filepath.Dir(d) {
				if _, err := os.Stat(filepath.Join(d, "escaped")); err == nil {
					t.Errorf("a file was written to %s", d)
				}
			}
			if _, err := os.Lstat(filepath.Join(root, "passwd")); err == nil {
				t.Error("a file of the host was linked")
			}
		})
	}
}

// TestHostileLayersAreRefused has layers that no image needs, each refused with what is wrong.
func TestHostileLayersAreRefused(t *testing.T) {
	huge := tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: 9 << 30}
	var deep strings.Builder
	for range 3000 {
		deep.WriteString("d/")
	}
	for _, tc := range []struct {
		name, want string
		layer      v1.Layer
	}{
		{"a path upwards", "leads out", layer(t, reg("../escaped"))},
		{"a path upwards from a directory", "leads out", layer(t, reg("a/../../escaped"))},
		{"a hard link upwards", "leads out", layer(t, hard("passwd", "../../etc/passwd"))},
		{"a hard link to a file of the host", "is not in the image", layer(t, hard("passwd", "/etc/passwd"))},
		{"a hard link through a link of the image", "hard link to", layer(t, sym("out", "../../../../../../etc"),
			hard("passwd", "out/passwd"))},
		{"a file through a link of the image", "escapes", layer(t, sym("out", "../../../../../../tmp"), reg("out/escaped"))},
		{"a device", "is a device", layer(t, tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8})},
		{"a terminal", "is a device", layer(t, tar.Header{Name: "tty", Typeflag: tar.TypeChar, Devmajor: 5})},
		{"a pipe", "is a named pipe", layer(t, tar.Header{Name: "pipe", Typeflag: tar.TypeFifo})},
		{"a file that is too large", "more than 8589934592 bytes", layer(t, huge)},
		{"a name that is too long", "a name of more than 4096 bytes", layer(t, reg(deep.String()+"f"))},
		{"a mark that hides all", "hides nothing", layer(t, reg(".wh.."))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, err := unpack(t, tc.layer)
			if !errors.Is(err, image.ErrBroken) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Unpack = %v, want %q", err, tc.want)
			}
			if _, err := os.Lstat(root); err == nil {
				t.Error("a part of it counts as unpacked")
			}
		})
	}
}

func TestAChangedBlobIsNotTaken(t *testing.T) {
	images := t.TempDir()
	img := write(t, images, "x", "", layer(t, reg("a")))
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	d, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(images, "x", "blobs", "sha256", d.Hex)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte("content of a"), []byte("another text"), 1)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := image.NewStore(images).Find("x")
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "root")
	if err := i.Unpack(t.Context(), to); !errors.Is(err, image.ErrBroken) {
		t.Errorf("Unpack = %v, want ErrBroken", err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("a broken image was unpacked")
	}
	manifest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(images, "x", "blobs", "sha256", manifest.Hex), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := image.NewStore(images).Find("x"); !errors.Is(err, image.ErrBroken) {
		t.Errorf("Find = %v, want ErrBroken", err)
	}
}
