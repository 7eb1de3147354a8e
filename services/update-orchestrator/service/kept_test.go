package service

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// The place that releases come from is gone: the cluster is kept at its release, also after a restart, and an update
// that has begun goes on, and back.
func TestAClusterIsKeptAtItsReleaseWithoutTheSourceOfIt(t *testing.T) { withoutSource(t, 0) }

// So it is with a release that is too large for etcd.
func TestAClusterIsKeptAtALargeReleaseWithoutTheSourceOfIt(t *testing.T) { withoutSource(t, 33<<20) }

// withoutSource updates to a release whose image has some bytes more.
func withoutSource(t *testing.T, more int) {
	c, _ := installed(t)
	c.cfg.reconcile = 100 * time.Millisecond
	if err := os.RemoveAll(c.layout); err != nil {
		t.Fatal(err)
	}
	restored := func() {
		t.Helper()
		const config = "50-worker-release"
		if _, err := c.configs.Delete(t.Context(), "", config, nil); err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string {
			if _, err := c.configs.Get(t.Context(), "", config); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	c.stop()
	c.run()
	restored()

	next := c.heavier(c.image("1.0.1", example("1.0.1"), "1.0.0"), more)
	c.sign(next, c.key)
	c.desire("", next)
	c.version(waitsFor("archive", "ledger"))
	if err := os.RemoveAll(c.layout); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.run()
	c.ready(operators...)
	c.version(completed("1.0.1"))
	c.sign(c.cfg.initial, c.key)
	c.desire("", c.cfg.initial)
	c.version(completed("1.0.0"))
	restored()
	for _, version := range []string{"1.0.0", "1.0.1"} {
		kept := object.FindCondition(c.release(version).GetStatus().GetConditions(), "Kept")
		if kept.GetStatus() != "True" {
			t.Errorf("%s: %v", version, kept)
		}
		if file := filepath.Join(c.dir, "releases"); version == "1.0.1" && strings.Contains(kept.GetMessage(),
			file) != (more > 0) {
			t.Errorf("%s with %d bytes more: %v", version, more, kept)
		}
	}
}

// heavier adds a layer without manifests to an image.
func (c *cluster) heavier(ref string, size int) string {
	c.t.Helper()
	if size == 0 {
		return ref
	}
	noise := make([]byte, size)
	_, err := rand.Read(noise)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err = errors.Join(err, w.WriteHeader(&tar.Header{Name: "noise", Mode: 0o644, Size: int64(size)}))
	_, wrote := w.Write(noise)
	if err := errors.Join(err, wrote, w.Close()); err != nil {
		c.t.Fatal(err)
	}
	_, hex, _ := strings.Cut(ref, "@")
	digest, err := v1.NewHash(hex)
	if err != nil {
		c.t.Fatal(err)
	}
	in := layout.Path(c.layout)
	image, err := in.Image(digest)
	if err != nil {
		c.t.Fatal(err)
	}
	image, err = mutate.AppendLayers(image, static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := in.AppendImage(image); err != nil {
		c.t.Fatal(err)
	}
	if digest, err = image.Digest(); err != nil {
		c.t.Fatal(err)
	}
	return repository + "@" + digest.String()
}
