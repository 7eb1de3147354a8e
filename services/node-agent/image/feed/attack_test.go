package feed_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/image/feed"
)

// fake is a runtime that can be made to misbehave. The zero value behaves.
type fake struct {
	pull   func(ctx context.Context, ref string) error // what happens before it pulls
	remove func()                                      // what happens before it removes
	asked  func()                                      // what happens when it has found out whether it has an image

	mu    sync.Mutex
	has   map[string]bool
	pulls int
}

func (f *fake) PullImage(ctx context.Context, ref string) (string, error) {
	if f.pull != nil {
		if err := f.pull(ctx, ref); err != nil {
			return "", err
		}
	}
	id, err := fetch(ctx, ref)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pulls++; err != nil {
		return "", err
	}
	if f.has == nil {
		f.has = map[string]bool{}
	}
	f.has[id] = true
	return id, nil
}

// fetch reads everything of an image, and returns the digest of its configuration.
func fetch(ctx context.Context, ref string) (string, error) {
	parsed, err := name.NewDigest(ref, name.StrictValidation)
	if err != nil {
		return "", err
	}
	img, err := remote.Image(parsed, remote.WithContext(ctx))
	if err != nil {
		return "", err
	}
	layers, err := img.Layers()
	if err != nil {
		return "", err
	}
	for _, l := range layers {
		content, err := l.Compressed()
		if err != nil {
			return "", err
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return "", err
		}
	}
	if _, err := img.RawConfigFile(); err != nil {
		return "", err
	}
	id, err := img.ConfigName()
	return id.String(), err
}

func (f *fake) ImagePresent(_ context.Context, id string) (bool, error) {
	f.mu.Lock()
	has := f.has[id]
	f.mu.Unlock()
	if f.asked != nil {
		f.asked()
	}
	return has, nil
}

func (f *fake) RemoveImage(_ context.Context, id string) error {
	if f.remove != nil {
		f.remove()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.has, id)
	return nil
}

// TestAProcessThatGuessesGetsNothing asks while the image is served, and afterwards.
func TestAProcessThatGuessesGetsNothing(t *testing.T) {
	img := newImage(t, 1, types.OCIManifestSchema1)
	config := configOf(t, img)
	var host string
	r := &fake{pull: func(ctx context.Context, ref string) error {
		parsed, err := name.NewDigest(ref, name.StrictValidation)
		if err != nil {
			return err
		}
		host = parsed.RegistryStr()
		repository := parsed.RepositoryStr()
		token, rest, _ := strings.Cut(repository, "/")
		if len(token) < 20 || rest != "example.com/a" {
			t.Errorf("reference %s", ref)
		}
		other := "0" + token[1:]
		get := func(method, path string) int {
			q, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			out, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			_ = out.Body.Close()
			return out.StatusCode
		}
		for _, path := range []string{
			"/", "/v2/_catalog", "/v2/" + rest + "/manifests/" + parsed.DigestStr(), "/v2/" + rest + "/blobs/" + config,
			"/v2/" + other + "/" + rest + "/blobs/" + config, "/v2/" + token[:10], "/v2/" + token,
			"/v2/" + token[:1] + "/" + rest + "/blobs/" + config, "/v2//" + repository + "/blobs/" + config,
			"/v2/" + repository + "/tags/list", "/v2/" + repository + "/manifests/v1",
			"/v2/" + repository + "/manifests/" + config, "/v2/" + repository + "/blobs/" + parsed.DigestStr(),
			"/v2/" + repository + "/blobs/sha256:" + strings.Repeat("0", 64),
			"/v2/" + repository + "/blobs/../../../../etc/passwd", "/v2/../" + repository + "/blobs/" + config,
		} {
			if status := get(http.MethodGet, path); status != http.StatusNotFound {
				t.Errorf("GET %s: status %d", path, status)
			}
		}
		for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch} {
			if status := get(method, "/v2/"+repository+"/blobs/"+config); status != http.StatusNotFound {
				t.Errorf("%s: status %d", method, status)
			}
		}
		if status := get(http.MethodGet, "/v2/"+repository+"/blobs/"+config); status != http.StatusOK {
			t.Errorf("the right path: status %d", status)
		}
		return nil
	}}
	n := onNode(t, "", r)
	writeLayout(t, filepath.Join(n.dir, "images", "example.com", "a"), img)
	if _, err := n.get(t, "example.com/a:v1", ""); err != nil {
		t.Fatal(err)
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", host); err == nil {
		_ = conn.Close()
		t.Error("it is still served")
	}
}

// TestARuntimeThatDoesNotAnswer ends with the pod, and with the patience of the feed.
func TestARuntimeThatDoesNotAnswer(t *testing.T) {
	waits := make(chan struct{}, 10)
	r := &fake{pull: func(ctx context.Context, _ string) error {
		waits <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	n := onNode(t, "", r)
	writeLayout(t, filepath.Join(n.dir, "images", "a"), newImage(t, 1, types.OCIManifestSchema1))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-waits
		cancel()
	}()
	if _, err := n.Get(ctx, image.Request{Ref: "a"}, &image.Progress{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Get = %v", err)
	}
	n.end()
	n = newNode(t, n.dir, "", feed.New(r, 50*time.Millisecond))
	if _, err := n.get(t, "a", ""); err == nil || !strings.Contains(err.Error(), "the runtime does not pull the image") {
		t.Errorf("without patience: %v", err)
	}
	<-waits
}

// TestARuntimeThatStopsReading keeps a connection open, and reads nothing of the layer.
func TestARuntimeThatStopsReading(t *testing.T) {
	r := &fake{pull: func(ctx context.Context, ref string) error {
		parsed, err := name.NewDigest(ref, name.StrictValidation)
		if err != nil {
			return err
		}
		img, err := remote.Image(parsed, remote.WithContext(context.Background()))
		if err != nil {
			return err
		}
		layers, err := img.Layers()
		if err != nil {
			return err
		}
		if _, err := layers[0].Compressed(); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	n := newNode(t, t.TempDir(), "", feed.New(r, 100*time.Millisecond))
	large := static.NewLayer(archive(t, tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 64 * megabyte}, 64*megabyte),
		types.OCIUncompressedLayer)
	img, err := mutate.AppendLayers(empty.Image, large)
	if err != nil {
		t.Fatal(err)
	}
	writeLayout(t, filepath.Join(n.dir, "images", "a"), img)
	if _, err := n.get(t, "a", ""); err == nil || !strings.Contains(err.Error(), "the runtime does not pull the image") {
		t.Errorf("Get = %v", err)
	}
}

func TestARuntimeThatPullsTwice(t *testing.T) {
	r := &fake{pull: func(ctx context.Context, ref string) error {
		_, err := fetch(ctx, ref)
		return err
	}}
	n := onNode(t, "", r)
	writeLayout(t, filepath.Join(n.dir, "images", "a"), newImage(t, 2, types.OCIManifestSchema1))
	var p image.Progress
	if _, err := n.Get(t.Context(), image.Request{Ref: "a"}, &p); err != nil || p.String() != "2.1 of 2.1 MB" {
		t.Errorf("Get = %v, progress %q", err, &p)
	}
}

// archive returns a layer of one file, of which only some bytes are there.
func archive(t *testing.T, h tar.Header, content int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	h.Mode = 0o644
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, content)); err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // says what is missing
	return out.Bytes()
}

// TestImagesBeyondTheBoundsDoNotGetToTheRuntime has images that the embedded store refuses, too, and those by which a
// runtime would ask other hosts.
func TestImagesBeyondTheBoundsDoNotGetToTheRuntime(t *testing.T) {
	of := func(layers ...v1.Layer) v1.Image {
		img, err := mutate.AppendLayers(empty.Image, layers...)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	plain := func(h tar.Header) v1.Layer { return static.NewLayer(archive(t, h, 0), types.OCIUncompressedLayer) }
	foreign, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: plain(tar.Header{Name: "x", Typeflag: tar.TypeReg}), URLs: []string{"http://example.com/layer"},
	})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]v1.Layer, 128)
	for i := range many {
		many[i] = plain(tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg})
	}
	for _, tc := range []struct {
		name, want string
		img        v1.Image
	}{
		{
			"a file that is too large", "more than 8589934592 bytes",
			of(plain(tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: 9 << 30})),
		},
		{"a path upwards", "leads out", of(plain(tar.Header{Name: "../x", Typeflag: tar.TypeReg}))},
		{"no archive", "blob sha256:", of(static.NewLayer([]byte(strings.Repeat("text", 1000)), types.OCIUncompressedLayer))},
		{"too many layers", "128 layers", of(many...)},
		{"a layer elsewhere", "is to be fetched from", foreign},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &fake{}
			n := onNode(t, "", r)
			writeLayout(t, filepath.Join(n.dir, "images", "a"), tc.img)
			_, err := n.get(t, "a", "")
			if !errors.Is(err, image.ErrBroken) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Get = %v, want %q", err, tc.want)
			}
			if len(r.has) != 0 {
				t.Error("the runtime has it")
			}
		})
	}
}

// TestAPullWhileTheImageIsRemoved has a pod come while the collector removes the image that it wants: the runtime still
// has it then.
func TestAPullWhileTheImageIsRemoved(t *testing.T) {
	removing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r := &fake{}
	r.remove = func() {
		close(removing)
		<-goOn
	}
	r.asked = func() {
		select {
		case <-removing:
			once.Do(func() { close(goOn) })
		default:
		}
	}
	n := onNode(t, "", r)
	_, host := newRegistry(t)
	push(t, host+"/a:v1", newImage(t, 1, types.OCIManifestSchema1))
	first, err := n.get(t, host+"/a:v1", "")
	if err != nil {
		t.Fatal(err)
	}
	var collector sync.WaitGroup
	collector.Go(func() {
		if err := n.Remove(first.Digest, time.Now()); err != nil {
			t.Error(err)
		}
	})
	<-removing
	got, err := n.get(t, host+"/a:v1", "")
	if err != nil {
		t.Fatal(err)
	}
	collector.Wait()
	if has, err := r.ImagePresent(t.Context(), got.ID); !has || err != nil || r.pulls != 2 {
		t.Errorf("in the runtime: %t, %v, after %d pulls", has, err, r.pulls)
	}
	if list, _ := n.List(); len(list) != 1 {
		t.Errorf("images %v, want one", list)
	}
}

// TestPodsAndTheCollectorAtOnce has pods get images while the collector removes them. Two of the images are one in the
// runtime. What a pod has is in the runtime as long as the pod has it, unless another client of the runtime removes it.
func TestPodsAndTheCollectorAtOnce(t *testing.T) {
	one := newImage(t, 1, types.OCIManifestSchema1)
	twin, ok := mutate.Annotations(one, map[string]string{"a": "b"}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	images := map[string]v1.Image{"one": one, "twin": twin, "other": newImage(t, 2, types.DockerManifestSchema2)}
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprintf("alone %t", alone), func(t *testing.T) {
			r := &fake{}
			n := onNode(t, "", r)
			var pods, others sync.WaitGroup
			for name, img := range images {
				writeLayout(t, filepath.Join(n.dir, "images", name), img)
				for range 2 {
					pods.Go(func() {
						for range 20 {
							got, err := n.Get(t.Context(), image.Request{Ref: name}, &image.Progress{})
							if err != nil {
								t.Error(err)
								return
							}
							if has, _ := r.ImagePresent(t.Context(), got.ID); !has && alone || got.Digest != digestOf(t, img) {
								t.Errorf("%s: %v, in the runtime: %v", name, got, has)
							}
							n.Release(got)
						}
					})
				}
			}
			collect := func() {
				list, _ := n.List()
				for _, i := range list {
					if err := n.Remove(i.Digest, time.Now()); err != nil {
						t.Error(err)
					}
					if !alone {
						_ = r.RemoveImage(t.Context(), i.ID)
					}
				}
			}
			stop := make(chan struct{})
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						collect()
					}
				}
			})
			pods.Wait()
			close(stop)
			others.Wait()
			collect()
			if list, _ := n.List(); len(r.has) != 0 || len(list) != 0 || len(n.Leased()) != 0 {
				t.Errorf("the runtime has %v, the library %v, leased are %v", r.has, list, n.Leased())
			}
		})
	}
}
