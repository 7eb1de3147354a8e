package release

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// contentCases are an image and an index, each with the digest that is asked for.
func contentCases(t *testing.T) (places Places, refs map[string]string) {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	check(t, err)
	image := imageOf(t, append(heads(), put{name: "release-manifests/a.yaml", content: object("a")}), []put{
		{name: "release-manifests/b.yaml", content: object("b")},
	})
	check(t, l.AppendImage(image))
	index := multi(t, "s390x", runtime.GOARCH)
	check(t, l.AppendIndex(index))
	return Places{Layouts: []string{dir}}, map[string]string{
		"an image": "r@" + must(image.Digest()).String(), "an index": "r@" + must(index.Digest()).String(),
	}
}

func TestAnImageIsOpenedFromItsContent(t *testing.T) {
	places, refs := contentCases(t)
	for what, ref := range refs {
		t.Run(what, func(t *testing.T) {
			found, err := Open(t.Context(), ref, places)
			check(t, err)
			want, err := Load(found)
			check(t, err)
			content, err := found.Content(1 << 20)
			check(t, err)
			again, err := OpenContent(ref, content)
			check(t, err)
			got, err := Load(again)
			check(t, err)
			if again.Digest != found.Digest || again.Reference != ref || got.VersionHash != want.VersionHash ||
				len(got.Files) != len(want.Files) {
				t.Errorf("%s of %d files, want %s of %d", again.Digest, len(got.Files), found.Digest, len(want.Files))
			}
			second, err := again.Content(1 << 20)
			check(t, err)
			if !bytes.Equal(content, second) {
				t.Error("its content is another one")
			}
			if _, err := found.Content(100); !errors.Is(err, ErrTooLarge) {
				t.Errorf("100 bytes are allowed: %v", err)
			}
			file := filepath.Join(t.TempDir(), "content")
			check(t, found.SaveContent(t.Context(), file, 1<<20))
			saved, err := os.ReadFile(file)
			check(t, err)
			if !bytes.Equal(content, saved) {
				t.Error("the content of a file is another one")
			}
			again, err = OpenFile(t.Context(), ref, file, false)
			check(t, err)
			got, err = Load(again)
			check(t, err)
			if again.Digest != found.Digest || got.VersionHash != want.VersionHash {
				t.Errorf("from a file, it is %s", again.Digest)
			}
			_, err = OpenContent("r@"+sha, content)
			says(t, err, ErrNotFound.Error())
			_, err = OpenContent("r:tag", content)
			says(t, err, errNoDigest.Error())
		})
	}
}

// Nothing of a content that was changed is taken for what it was.
func TestContentThatWasChangedIsRefused(t *testing.T) {
	places, refs := contentCases(t)
	for what, ref := range refs {
		t.Run(what, func(t *testing.T) {
			found, err := Open(t.Context(), ref, places)
			check(t, err)
			want, err := Load(found)
			check(t, err)
			content, err := found.Content(1 << 20)
			check(t, err)
			for at := 0; at < len(content); at += 97 {
				changed := bytes.Clone(content)
				changed[at] ^= 0x55
				image, err := OpenContent(ref, changed)
				if err != nil {
					continue
				}
				if got, err := Load(image); err == nil && got.VersionHash != want.VersionHash {
					t.Fatalf("byte %d was changed, and so is the release", at)
				}
			}
			for _, n := range []int{0, 1, 511, 512, len(content) / 2} {
				if image, err := OpenContent(ref, content[:n]); err == nil {
					if _, err := Load(image); err == nil {
						t.Errorf("%d of %d bytes are a release", n, len(content))
					}
				}
			}
		})
	}
}

func TestAContentIsReadFromTheNextPlaceThatHasIt(t *testing.T) {
	image := imageOf(t, append(heads(), put{name: "release-manifests/a.yaml", content: object("a")}))
	content, err := (&Image{
		Digest: must(image.Digest()).String(), image: brokenLayers{image},
		elsewhere: func() (*Image, error) {
			return newImage(must(image.Digest()), must(image.Digest()), image)
		},
	}).Content(1 << 20)
	check(t, err)
	found, err := OpenContent("r@"+must(image.Digest()).String(), content)
	check(t, err)
	_, err = Load(found)
	check(t, err)
}

type brokenLayers struct{ v1.Image }

func (brokenLayers) LayerByDigest(v1.Hash) (v1.Layer, error) { return nil, fmt.Errorf("broken") }

// A layer that a registry does not deliver as it is named is not kept.
func TestTheContentOfARegistryIsCompared(t *testing.T) {
	inner := newRegistry()
	var broken bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			fmt.Fprint(w, "something else")
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	tag := must(name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/release:1"))
	image := imageOf(t, append(heads(), put{name: "release-manifests/a.yaml", content: object("a")}))
	check(t, remote.Write(tag, image))
	found, err := Open(t.Context(), tag.String(), Places{})
	check(t, err)
	broken = true
	if _, err := found.Content(1 << 20); err == nil {
		t.Error("a layer that is another one is kept")
	}
}
