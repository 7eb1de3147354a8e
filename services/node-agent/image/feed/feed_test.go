package feed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/image/feed"
)

const megabyte = 1 << 20

// newImage returns an image with layers of random content, in Docker's format or OCI's.
func newImage(t *testing.T, layers int, media types.MediaType) v1.Image {
	t.Helper()
	img, err := random.Image(megabyte, int64(layers))
	if err != nil {
		t.Fatal(err)
	}
	if media == types.OCIManifestSchema1 {
		img = mutate.ConfigMediaType(mutate.MediaType(img, media), types.OCIConfigJSON)
	}
	return img
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, img); err != nil {
		t.Fatal(err)
	}
}

func writeLayout(t *testing.T, path string, img v1.Image) {
	t.Helper()
	p, err := layout.Write(path, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
}

func configOf(t *testing.T, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func digestOf(t *testing.T, img v1.Image) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// TestARuntimeGetsAnImageFromEverywhere has each kind of source, and uses and removes the image when the source is
// gone.
func TestARuntimeGetsAnImageFromEverywhere(t *testing.T) {
	r := startContainerd(t, "")
	for _, tc := range []struct {
		name  string
		media types.MediaType
		put   func(t *testing.T, dir, host string, img v1.Image) (ref, settings string)
	}{
		{"a layout", types.OCIManifestSchema1, func(t *testing.T, dir, _ string, img v1.Image) (string, string) {
			writeLayout(t, filepath.Join(dir, "images", "example.com", "a"), img)
			return "example.com/a:v1", ""
		}},
		{"a layout in Docker's format", types.DockerManifestSchema2, func(t *testing.T, dir, _ string, img v1.Image) (
			string, string,
		) {
			writeLayout(t, filepath.Join(dir, "images", "b"), img)
			return "b", ""
		}},
		{"a registry", types.OCIManifestSchema1, func(t *testing.T, _, host string, img v1.Image) (string, string) {
			push(t, host+"/team/c:v1", img)
			return host + "/team/c:v1", ""
		}},
		{"a registry in Docker's format", types.DockerManifestSchema2, func(t *testing.T, _, host string, img v1.Image) (
			string, string,
		) {
			push(t, host+"/team/d:v1", img)
			return host + "/team/d@" + digestOf(t, img), ""
		}},
		{"a mirror", types.OCIManifestSchema1, func(t *testing.T, _, host string, img v1.Image) (string, string) {
			push(t, host+"/hub/library/e:v1", img)
			return "e:v1", fmt.Sprintf("registries: {docker.io: {mirrors: ['http://%s/hub'], mirrorsOnly: true}}", host)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, host := newRegistry(t)
			img, dir := newImage(t, 3, tc.media), t.TempDir()
			ref, settings := tc.put(t, dir, host, img)
			n := newNode(t, dir, settings, feed.New(r, 0))
			var p image.Progress
			before := r.pulls.Load()
			got, err := n.Get(t.Context(), image.Request{Ref: ref, Policy: "IfNotPresent"}, &p)
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest != digestOf(t, img) || got.ID != configOf(t, img) || got.Root != "" || got.Bytes < 3*megabyte {
				t.Errorf("Get = %+v", got)
			}
			if far := p.String(); far != "3.1 of 3.1 MB" {
				t.Errorf("progress %q", far)
			}
			s.Close()
			n.end()
			if err := os.RemoveAll(filepath.Join(dir, "images")); err != nil {
				t.Fatal(err)
			}
			n = newNode(t, dir, settings, feed.New(r, 0))
			for _, policy := range []string{"IfNotPresent", "Never"} {
				if again, err := n.get(t, ref, policy); err != nil || again.ID != got.ID {
					t.Errorf("policy %s in another agent, without the source: %v, %v", policy, again, err)
				}
			}
			if pulls := r.pulls.Load() - before; pulls != 1 {
				t.Errorf("%d pulls, want 1", pulls)
			}
			list, _ := n.List()
			if len(list) != 1 {
				t.Fatalf("images %v, want one", list)
			}
			if err := n.Remove(got.Digest, list[0].Used); err != nil {
				t.Fatal(err)
			}
			if list, _ := n.List(); len(list) != 0 || len(r.list(t)) != 0 {
				t.Errorf("after removal the library has %v, the runtime %v", list, r.list(t))
			}
			if rest, err := os.ReadDir(filepath.Join(dir, "unpacked")); err != nil || len(rest) != 0 {
				t.Errorf("files %v are left, %v", rest, err)
			}
		})
	}
}

func TestOnlySignedImagesGetToTheRuntime(t *testing.T) {
	r := startContainerd(t, "")
	_, host := newRegistry(t)
	img := newImage(t, 1, types.OCIManifestSchema1)
	push(t, host+"/team/x:v1", img)
	private, public, err := release.GenerateKey("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := release.ReadKey(private)
	if err != nil {
		t.Fatal(err)
	}
	ring, store := filepath.Join(t.TempDir(), "ring.asc"), t.TempDir()
	if err := os.WriteFile(ring, public, 0o600); err != nil {
		t.Fatal(err)
	}
	n := onNode(t, fmt.Sprintf("signatures: [{images: %q, keyRings: [%q], stores: ['file://%s']}]", host, ring, store), r)
	if _, err := n.get(t, host+"/team/x:v1", ""); !errors.Is(err, image.ErrUnsigned) {
		t.Errorf("an image that is not signed: %v", err)
	}
	if r.pulls.Load() != 0 {
		t.Error("the runtime was asked to pull it")
	}
	if _, err := key.Sign(store, digestOf(t, img), "x", time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"IfNotPresent", "Always", "Never"} {
		if _, err := n.get(t, host+"/team/x:v1", policy); err != nil {
			t.Errorf("signed, policy %s: %v", policy, err)
		}
	}
	if pulls := r.pulls.Load(); pulls != 1 {
		t.Errorf("%d pulls, want 1", pulls)
	}
}

func TestPodsShareOnePull(t *testing.T) {
	r := startContainerd(t, "")
	_, host := newRegistry(t)
	push(t, host+"/x:v1", newImage(t, 3, types.OCIManifestSchema1))
	n := onNode(t, "", r)
	var pods sync.WaitGroup
	for range 5 {
		pods.Go(func() {
			if _, err := n.get(t, host+"/x:v1", "Always"); err != nil {
				t.Error(err)
			}
		})
	}
	pods.Wait()
	if pulls := r.pulls.Load(); pulls != 1 {
		t.Errorf("%d pulls, want 1", pulls)
	}
	if len(n.Leased()) != 0 {
		t.Errorf("%v are still used", n.Leased())
	}
}

// TestAnImageThatTheRuntimeLostIsGotAgain has another client of the runtime remove the image.
func TestAnImageThatTheRuntimeLostIsGotAgain(t *testing.T) {
	r := startContainerd(t, "")
	s, host := newRegistry(t)
	push(t, host+"/x:v1", newImage(t, 1, types.OCIManifestSchema1))
	n := onNode(t, "", r)
	if _, err := n.get(t, host+"/x:v1", "Never"); !errors.Is(err, image.ErrNeverPull) {
		t.Errorf("before the first pull: %v", err)
	}
	for round, policy := range []string{"IfNotPresent", "Always", "IfNotPresent"} {
		got, err := n.get(t, host+"/x:v1", policy)
		if err != nil {
			t.Fatal(err)
		}
		if pulls := r.pulls.Load(); int(pulls) != round+1 {
			t.Errorf("%d pulls, want %d", pulls, round+1)
		}
		if _, err := n.get(t, host+"/x:v1", "Never"); err != nil {
			t.Errorf("present, with Never: %v", err)
		}
		if err := r.RemoveImage(t.Context(), got.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.get(t, host+"/x:v1", "Never"); !errors.Is(err, image.ErrNeverPull) {
		t.Errorf("lost, with Never: %v", err)
	}
	if list, _ := n.List(); len(list) != 0 {
		t.Errorf("images %v are known that are lost", list)
	}
	s.Close()
	if _, err := n.get(t, host+"/x:v1", "IfNotPresent"); err == nil {
		t.Error("an image without files and source was got")
	}
}

// TestASourceThatBreaksOff has a registry send the first half of a layer.
func TestASourceThatBreaksOff(t *testing.T) {
	r := startContainerd(t, "")
	inner, host := newRegistry(t)
	img := newImage(t, 2, types.OCIManifestSchema1)
	push(t, host+"/x:v1", img)
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	size := map[string]int64{}
	for _, l := range manifest.Layers {
		size[l.Digest.String()] = l.Size
	}
	whole := false
	half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if whole || !strings.Contains(q.URL.Path, "/blobs/") || strings.HasSuffix(q.URL.Path, configOf(t, img)) {
			inner.Config.Handler.ServeHTTP(w, q)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size[path.Base(q.URL.Path)]))
		_, _ = w.Write(make([]byte, megabyte/2))
		panic(http.ErrAbortHandler)
	}))
	defer half.Close()
	ref := half.Listener.Addr().String() + "/x:v1"
	n := onNode(t, "", r)
	_, err = n.get(t, ref, "")
	if err == nil || errors.Is(err, image.ErrBroken) || strings.Contains(err.Error(), "rpc error") ||
		!strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("a layer that breaks off: %v", err)
	}
	if list, _ := n.List(); len(list) != 0 || len(r.list(t)) != 0 {
		t.Errorf("the library has %v, the runtime %v", list, r.list(t))
	}
	whole = true
	if _, err := n.get(t, ref, ""); err != nil {
		t.Errorf("when it does not break off: %v", err)
	}
}

// TestAMirrorThatBreaksIsPassedOver has a mirror send a large layer with other content, which the runtime must not go
// on with when the next mirror has the right one.
func TestAMirrorThatBreaksIsPassedOver(t *testing.T) {
	r := startContainerd(t, "")
	inner, host := newRegistry(t)
	img, err := random.Image(16*megabyte, 1)
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/library/x:v1", img)
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	layer := manifest.Layers[0]
	for _, how := range []string{"to its end", "and breaks off"} {
		broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if !strings.HasSuffix(q.URL.Path, layer.Digest.String()) {
				inner.Config.Handler.ServeHTTP(w, q)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(layer.Size))
			_, _ = w.Write(make([]byte, layer.Size*3/4))
			if how != "to its end" {
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(make([]byte, layer.Size-layer.Size*3/4))
		}))
		defer broken.Close()
		n := onNode(t, fmt.Sprintf("registries: {docker.io: {mirrors: [%q, %q], mirrorsOnly: true}}", broken.URL, inner.URL),
			r)
		got, err := n.get(t, "x:v1", "")
		if err != nil {
			t.Fatalf("the first mirror sends other content %s: %v", how, err)
		}
		if list := r.list(t); len(list) != 1 || list[0].GetId() != got.ID {
			t.Errorf("the runtime has %v", list)
		}
		if err := n.Remove(got.Digest, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestABrokenLayoutDoesNotGetToTheRuntime has layers whose content is not what their digests say.
func TestABrokenLayoutDoesNotGetToTheRuntime(t *testing.T) {
	r := startContainerd(t, "")
	n := onNode(t, "", r)
	img := newImage(t, 1, types.OCIManifestSchema1)
	dir := filepath.Join(n.dir, "images", "x")
	writeLayout(t, dir, img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", digest.Hex)
	content, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	changed := append([]byte{}, content...)
	changed[len(changed)/2]++
	for what, bad := range map[string][]byte{
		"changed": changed, "shorter": content[:len(content)/2], "longer": append(content, 0), "empty": {},
	} {
		if err := os.WriteFile(blob, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := n.get(t, "x", "")
		if err == nil || !errors.Is(err, image.ErrBroken) && what != "shorter" { // which a network can cause
			t.Errorf("%s: %v", what, err)
		}
		if len(r.list(t)) != 0 {
			t.Fatalf("%s: the runtime has it", what)
		}
	}
	if err := os.WriteFile(blob, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.get(t, "x", ""); err != nil {
		t.Errorf("as it was: %v", err)
	}
}

// TestACancelledGetEndsThePull has a registry that does not go on.
func TestACancelledGetEndsThePull(t *testing.T) {
	r := startContainerd(t, "")
	inner, host := newRegistry(t)
	img := newImage(t, 1, types.OCIManifestSchema1)
	push(t, host+"/x:v1", img)
	asked, gone := make(chan struct{}, 10), make(chan struct{}, 10)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if !strings.Contains(q.URL.Path, "/blobs/") || strings.HasSuffix(q.URL.Path, configOf(t, img)) {
			inner.Config.Handler.ServeHTTP(w, q)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(megabyte))
		_, _ = w.Write(make([]byte, megabyte/2))
		_ = http.NewResponseController(w).Flush()
		asked <- struct{}{}
		<-q.Context().Done()
		gone <- struct{}{}
	}))
	defer slow.Close()
	n := onNode(t, "", r)
	ctx, cancel := context.WithCancel(t.Context())
	why := make(chan error)
	go func() {
		_, err := n.Get(ctx, image.Request{Ref: slow.Listener.Addr().String() + "/x:v1"}, &image.Progress{})
		why <- err
	}()
	<-asked
	cancel()
	if err := <-why; !errors.Is(err, context.Canceled) {
		t.Errorf("Get = %v", err)
	}
	<-gone // the registry is not read any more
	n.end()
	if list, _ := n.List(); len(list) != 0 || len(r.list(t)) != 0 || len(n.Leased()) != 0 {
		t.Errorf("the library has %v, the runtime %v", list, r.list(t))
	}
	if rest, err := os.ReadDir(filepath.Join(n.dir, "unpacked")); err != nil || len(rest) != 0 {
		t.Errorf("files %v are left, %v", rest, err)
	}
}

// TestTwoImagesWithTheSameFilesAreOneInTheRuntime has two manifests of one configuration.
func TestTwoImagesWithTheSameFilesAreOneInTheRuntime(t *testing.T) {
	r := startContainerd(t, "")
	_, host := newRegistry(t)
	img := newImage(t, 1, types.OCIManifestSchema1)
	other, ok := mutate.Annotations(img, map[string]string{"a": "b"}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	push(t, host+"/x:v1", img)
	push(t, host+"/y:v1", other)
	n := onNode(t, "", r)
	x, err := n.get(t, host+"/x:v1", "")
	if err != nil {
		t.Fatal(err)
	}
	y, err := n.get(t, host+"/y:v1", "")
	if err != nil {
		t.Fatal(err)
	}
	if x.Digest == y.Digest || x.ID != y.ID {
		t.Fatalf("images %v and %v", x, y)
	}
	if err := n.Remove(x.Digest, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.get(t, host+"/y:v1", "Never"); err != nil {
		t.Errorf("the other one: %v", err)
	}
	if err := n.Remove(y.Digest, time.Now()); err != nil {
		t.Fatal(err)
	}
	if len(r.list(t)) != 0 {
		t.Errorf("the runtime has %v", r.list(t))
	}
}

// TestAnImageInUseIsNotRemoved has the collector come while a pod starts.
func TestAnImageInUseIsNotRemoved(t *testing.T) {
	r := startContainerd(t, "")
	_, host := newRegistry(t)
	push(t, host+"/x:v1", newImage(t, 1, types.OCIManifestSchema1))
	n := onNode(t, "", r)
	got, err := n.Get(t.Context(), image.Request{Ref: host + "/x:v1"}, &image.Progress{})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Remove(got.Digest, time.Now()); err != nil || len(r.list(t)) != 1 {
		t.Errorf("Remove of an image in use = %v", err)
	}
	n.Release(got)
	if err := n.Remove(got.Digest, got.Used.Add(-time.Second)); err != nil || len(r.list(t)) != 1 {
		t.Errorf("Remove of an image that was used since = %v", err)
	}
	if err := n.Remove(got.Digest, time.Now()); err != nil || len(r.list(t)) != 0 {
		t.Errorf("Remove = %v", err)
	}
}

// TestFilesOfOtherAgents has an agent find what one with the other store, and one that was killed, left.
func TestFilesOfOtherAgents(t *testing.T) {
	r := startContainerd(t, "")
	_, host := newRegistry(t)
	img := newImage(t, 1, types.OCIManifestSchema1)
	push(t, host+"/x:v1", img)
	dir, ref := t.TempDir(), host+"/x:v1"
	unpacked := filepath.Join(dir, "unpacked", strings.Replace(digestOf(t, img), ":", "-", 1))
	embedded, err := newNode(t, dir, "", nil).get(t, ref, "")
	if err != nil || embedded.Root == "" || embedded.ID != "" {
		t.Fatalf("embedded: %v, %v", embedded, err)
	}

	n := newNode(t, dir, "", feed.New(r, 0))
	if _, err := n.get(t, ref, "Never"); !errors.Is(err, image.ErrNeverPull) {
		t.Errorf("files of an agent without a runtime: %v", err)
	}
	got, err := n.get(t, ref, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(unpacked, "root")); err == nil {
		t.Error("files are still there that are not used")
	}

	n.end() // killed before image.json was there
	if err := os.Rename(unpacked, filepath.Join(dir, "unpacked", ".new-123")); err != nil {
		t.Fatal(err)
	}
	n = newNode(t, dir, "", feed.New(r, 0))
	if _, err := n.get(t, ref, "Never"); !errors.Is(err, image.ErrNeverPull) {
		t.Errorf("an image that was not entered: %v", err)
	}
	if again, err := n.get(t, ref, ""); err != nil || again.ID != got.ID {
		t.Errorf("Get = %v, %v", again, err)
	}
	if list := r.list(t); len(list) != 1 || len(list[0].GetRepoDigests()) != 1 {
		t.Errorf("the runtime has %v, want one image with one name", list)
	}

	n.end() // the host crashed
	file := filepath.Join(unpacked, "image.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var known image.Cached
	if err := json.Unmarshal(raw, &known); err != nil {
		t.Fatal(err)
	}
	known.Boot, known.Synced = "another", false
	if raw, err = json.Marshal(known); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	before := r.pulls.Load()
	n = newNode(t, dir, "", feed.New(r, 0))
	if _, err := n.get(t, ref, ""); err != nil || r.pulls.Load() != before+1 {
		t.Errorf("an image that may be incomplete: %v, %d pulls", err, r.pulls.Load()-before)
	}
	n.end() // the host crashed before anything of image.json was on the disk
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n = newNode(t, dir, "", feed.New(r, 0))
	if _, err := n.get(t, ref, ""); err != nil || r.pulls.Load() != before+2 {
		t.Errorf("an image of which nothing is known: %v, %d pulls", err, r.pulls.Load()-before)
	}
	n.end()
	if again, err := newNode(t, dir, "", nil).get(t, ref, ""); err != nil || again.Root == "" {
		t.Errorf("embedded, after a runtime: %v, %v", again, err)
	}
}

// TestTheAgentsExecutableIsAnImage runs it in a container, by the ID of the image.
func TestTheAgentsExecutableIsAnImage(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", program, "./testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	builtin := func(n node, entrypoint ...string) *image.Cached {
		t.Helper()
		got, err := n.Builtin(t.Context(), "windlass.invalid/"+entrypoint[1], program, entrypoint, &image.Progress{})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	embedded := builtin(newNode(t, t.TempDir(), "", nil), image.BuiltinPath, "pause")
	if info, err := os.Stat(filepath.Join(embedded.Root, image.BuiltinPath)); err != nil || info.Mode() != 0o755 {
		t.Errorf("unpacked: %v, %v", info, err)
	}
	layouts := t.TempDir() // the runtime's name of the pause image must be known before it starts
	first := onNode(t, "", &fake{})
	pause := builtin(first, image.BuiltinPath, "pause")
	if pause.Digest != embedded.Digest {
		t.Errorf("digests %s and %s of one executable", pause.Digest, embedded.Digest)
	}
	r := startContainerd(t, pause.ID)
	n := newNode(t, layouts, "", feed.New(r, 0))
	if got := builtin(n, image.BuiltinPath, "pause"); got.ID != pause.ID || !n.Leased()[got.Digest] {
		t.Errorf("image %v", got)
	}
	hello := builtin(n, image.BuiltinPath, "hello")
	if hello.Digest == pause.Digest || hello.ID == pause.ID {
		t.Error("another entrypoint is the same image")
	}
	if out := run(t, r, hello.ID); !strings.Contains(out, "[hello]") {
		t.Errorf("output %q", out)
	}
	if again := builtin(n, image.BuiltinPath, "hello"); again.ID != hello.ID || r.pulls.Load() != 2 {
		t.Errorf("the second time: %v, %d pulls in all", again, r.pulls.Load())
	}
	f, err := os.OpenFile(program, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("more"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if changed := builtin(n, image.BuiltinPath, "hello"); changed.Digest == hello.Digest || r.pulls.Load() != 3 {
		t.Errorf("after a change: %v, %d pulls in all", changed, r.pulls.Load())
	}
}

// run runs a container of an image until it ends, and returns its log.
func run(t *testing.T, r *containerd, id string) string {
	t.Helper()
	dir := t.TempDir()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "x", Uid: "x", Namespace: "x"},
		LogDirectory: dir,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}
	pod, err := r.containers.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, err := r.containers.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{
			PodSandboxId: pod.GetPodSandboxId(),
		})
		if err == nil {
			_, err = r.containers.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{
				PodSandboxId: pod.GetPodSandboxId(),
			})
		}
		if err != nil {
			t.Error(err)
		}
	}()
	c, err := r.containers.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: id}, LogPath: "log",
			Linux: &runtimeapi.LinuxContainerConfig{},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.containers.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{
		ContainerId: c.GetContainerId(),
	}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		st, err := r.containers.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{
			ContainerId: c.GetContainerId(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the container does not end")
		}
	}
	out, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
