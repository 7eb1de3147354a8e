package image_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/windlass-dev/windlass/services/node-agent/image"
)

func newLibrary(t *testing.T, settings string) *image.Library {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "registries.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := image.NewLibrary(image.LibraryConfig{
		Dir: filepath.Join(dir, "unpacked"), Settings: []string{file}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(t.Context())
	}()
	t.Cleanup(func() { <-ended }) // until then it may write
	return l
}

func tiny(t *testing.T, text string) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layer(t, reg(text)))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func push(t *testing.T, host, repository string, img v1.Image, options ...remote.Option) {
	t.Helper()
	ref, err := name.ParseReference(host + "/" + repository)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, options...); err != nil {
		t.Fatal(err)
	}
}

func newRegistry() http.Handler { return registry.New(registry.Logger(log.New(io.Discard, "", 0))) }

func TestAPrivateAuthorityIsTrustedForItsHostOnly(t *testing.T) {
	s := httptest.NewTLSServer(newRegistry())
	defer s.Close()
	host := s.Listener.Addr().String()
	push(t, host, "x:v1", tiny(t, "x"), remote.WithTransport(s.Client().Transport))
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	get := func(settings, ref string) error {
		_, err := newLibrary(t, settings).Get(t.Context(), image.Request{Ref: ref}, &image.Progress{})
		return err
	}
	if err := get("", host+"/x:v1"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without its authority: %v", err)
	}
	if err := get(fmt.Sprintf("registries: {%q: {caFile: %s}}", host, ca), host+"/x:v1"); err != nil {
		t.Errorf("with its authority: %v", err)
	}
	if err := get(fmt.Sprintf("registries: {other.example.com: {caFile: %s}}", ca), host+"/x:v1"); err == nil {
		t.Error("the authority of another host was trusted")
	}
	mirrored := fmt.Sprintf(`registries: {docker.io: {mirrors: ["https://%s"], mirrorsOnly: true}, %q: {caFile: %s}}`,
		host, host, ca)
	push(t, host, "library/x:v1", tiny(t, "mirrored"), remote.WithTransport(s.Client().Transport))
	if err := get(mirrored, "x:v1"); err != nil {
		t.Errorf("as a mirror: %v", err)
	}
	if err := get(mirrored, "x:v2"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("a tag that does not exist: %v, want ErrNotFound", err)
	}
}

// TestAMirrorThatBreaksIsPassedOver has the first mirror know the manifest, and not deliver the layer.
func TestAMirrorThatBreaksIsPassedOver(t *testing.T) {
	img := tiny(t, "x")
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	inner, spoil := newRegistry(), false
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if spoil && strings.HasSuffix(r.URL.Path, digest.String()) {
			_, _ = w.Write([]byte("something else"))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer broken.Close()
	good := httptest.NewServer(newRegistry())
	defer good.Close()
	push(t, broken.Listener.Addr().String(), "library/x:v1", img)
	push(t, good.Listener.Addr().String(), "library/x:v1", img)
	spoil = true
	only := fmt.Sprintf("registries: {docker.io: {mirrors: [%q], mirrorsOnly: true}}", broken.URL)
	if _, err := newLibrary(t, only).Get(t.Context(), image.Request{Ref: "x:v1"}, &image.Progress{}); err == nil {
		t.Error("a layer of another digest was taken")
	}
	both := fmt.Sprintf("registries: {docker.io: {mirrors: [%q, %q], mirrorsOnly: true}}", broken.URL, good.URL)
	l := newLibrary(t, both)
	got, err := l.Get(t.Context(), image.Request{Ref: "x:v1"}, &image.Progress{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got.Root, "x")); err != nil {
		t.Error(err)
	}
	if err := l.Remove(got.Digest, got.Used); err != nil {
		t.Fatal(err)
	}
	if list, _ := l.List(); len(list) != 1 {
		t.Error("an image was removed that is in use")
	}
	l.Release(got)
	if err := l.Remove(got.Digest, got.Used); err != nil {
		t.Fatal(err)
	}
	if list, _ := l.List(); len(list) != 0 {
		t.Error("an unused image was not removed")
	}
}

// TestARegistryLeadsToNoHostInTheClear has one redirect to plain http.
func TestARegistryLeadsToNoHostInTheClear(t *testing.T) {
	asked := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		asked = true
		http.Redirect(w, r, "http://registry.example.com"+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	_, err := newLibrary(t, "").Get(t.Context(), image.Request{Ref: s.Listener.Addr().String() + "/x:v1"},
		&image.Progress{})
	if err == nil || !strings.Contains(err.Error(), "loopback addresses only") || !asked {
		t.Errorf("Get = %v", err)
	}
}
