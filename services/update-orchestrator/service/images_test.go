package service

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// tamper changes a byte in the layers of an image; its manifest stays as it was signed.
func (c *cluster) tamper(image string) {
	c.t.Helper()
	l, err := layout.FromPath(c.layout)
	if err != nil {
		c.t.Fatal(err)
	}
	index, err := l.ImageIndex()
	if err != nil {
		c.t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, d := range manifest.Manifests {
		if !strings.HasSuffix(image, d.Digest.String()) {
			continue
		}
		img, err := l.Image(d.Digest)
		if err != nil {
			c.t.Fatal(err)
		}
		layers, err := img.Layers()
		if err != nil {
			c.t.Fatal(err)
		}
		digest, err := layers[0].Digest()
		if err != nil {
			c.t.Fatal(err)
		}
		path := filepath.Join(c.layout, "blobs", digest.Algorithm, digest.Hex)
		raw, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		raw[len(raw)/2] ^= 1
		if err := os.Chmod(path, 0o600); err != nil {
			c.t.Fatal(err)
		}
		c.write(path, raw)
		return
	}
	c.t.Fatalf("no image %s in the layout", image)
}

// push puts an image of the layout at a registry under a tag.
func (c *cluster) push(image, tag string) {
	c.t.Helper()
	_, digest, _ := strings.Cut(image, "@")
	hash, err := v1.NewHash(digest)
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := layout.FromPath(c.layout)
	if err != nil {
		c.t.Fatal(err)
	}
	img, err := l.Image(hash)
	if err != nil {
		c.t.Fatal(err)
	}
	ref, err := name.ParseReference(tag)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(c.t.Context())); err != nil {
		c.t.Fatal(err)
	}
}

// escape makes an image with a file that would land outside of the release's folder.
func (c *cluster) escape() string {
	c.t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for name, content := range map[string]string{
		"release-manifests/release-metadata":               `{"kind":"cincinnati-metadata-v0","version":"1.1.7"}`,
		"release-manifests/image-references":               `{"kind":"ImageStream","apiVersion":"image.openshift.io/v1","metadata":{"name":"1.1.7"}}`,
		"release-manifests/../../escaped/0000_10_x_y.yaml": example("1.1.7")["0000_10_ledger_00_service.yaml"],
	} {
		if err := w.WriteHeader(&tar.Header{
			Name: name, Mode: int64(fs.ModePerm & 0o644),
			Size: int64(len(content)),
		}); err != nil {
			c.t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		c.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := layout.FromPath(c.layout)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := l.AppendImage(img); err != nil {
		c.t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		c.t.Fatal(err)
	}
	return repository + "@" + digest.String()
}
