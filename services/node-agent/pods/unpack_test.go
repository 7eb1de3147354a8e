package pods

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/services/node-agent/image"
)

// TestAnImageIsThereAgainAfterABrokenOne has the tag of an image lead to a broken one for a while.
func TestAnImageIsThereAgainAfterABrokenOne(t *testing.T) {
	images := t.TempDir()
	find := func(name string, spoil bool) *image.Image {
		t.Helper()
		layer := static.NewLayer(archive(t, file{name: "greeting", content: name}), types.OCIUncompressedLayer)
		img, err := mutate.AppendLayers(empty.Image, layer)
		if err != nil {
			t.Fatal(err)
		}
		index, err := layout.Write(filepath.Join(images, name), empty.Index)
		if err == nil {
			err = index.AppendImage(img)
		}
		if err != nil {
			t.Fatal(err)
		}
		if digest, err := layer.Digest(); err != nil {
			t.Fatal(err)
		} else if spoil {
			if err := os.WriteFile(filepath.Join(images, name, "blobs", digest.Algorithm, digest.Hex), archive(t),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		found, err := image.NewStore(images).Find(name)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	whole, broken, root := find("whole", false), find("broken", true), filepath.Join(t.TempDir(), "root")
	for range 2 {
		if err := (&Pods{}).unpackOnce(whole, root, nil); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(root, "greeting")); string(text) != "whole" {
			t.Fatalf("the image holds %q, %v", text, err)
		}
		if err := (&Pods{}).unpackOnce(broken, root, nil); !errors.Is(err, image.ErrBroken) {
			t.Fatalf("broken: %v", err)
		}
	}
}
