package image_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/node-agent/image"
)

// signer is a key, its ring in a file, and a store for its signatures.
type signer struct {
	t           *testing.T
	key         release.Key
	ring, store string
}

func newSigner(t *testing.T) signer {
	t.Helper()
	private, public, err := release.GenerateKey("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := release.ReadKey(private)
	if err != nil {
		t.Fatal(err)
	}
	s := signer{t: t, key: key, ring: filepath.Join(t.TempDir(), "ring.asc"), store: t.TempDir()}
	if err := os.WriteFile(s.ring, public, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s signer) rule(images string) string {
	return fmt.Sprintf("{images: %q, keyRings: [%q], stores: [%q]}", images, s.ring, "file://"+s.store)
}

func (s signer) sign(digest v1.Hash) {
	s.t.Helper()
	if _, err := s.key.Sign(s.store, digest.String(), "x", time.Now()); err != nil {
		s.t.Fatal(err)
	}
}

func digestOf(t *testing.T, of interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	digest, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestOnlySignedImagesAreTaken(t *testing.T) {
	hub := httptest.NewServer(newRegistry())
	defer hub.Close()
	host := hub.Listener.Addr().String()
	ours, theirs := newSigner(t), newSigner(t)
	img := tiny(t, "x")
	push(t, host, "team/x:v1", img)
	push(t, host, "free/x:v1", img)
	l := newLibrary(t, "signatures: ["+ours.rule(host+"/team")+"]")
	get := func(ref, policy string) error {
		i, err := l.Get(t.Context(), image.Request{Ref: ref, Policy: policy}, &image.Progress{})
		if err == nil {
			l.Release(i)
		}
		return err
	}
	theirs.sign(digestOf(t, img))
	if err := get(host+"/team/x:v1", ""); !errors.Is(err, image.ErrUnsigned) {
		t.Fatalf("an image that is not signed: %v", err)
	}
	if list, _ := l.List(); len(list) != 0 {
		t.Error("an image that is not signed was unpacked")
	}
	if err := get(host+"/free/x:v1", ""); err != nil {
		t.Fatalf("an image that need not be signed: %v", err)
	}
	for _, policy := range []string{"Never", "IfNotPresent", "Always"} { // the same digest, which is on the node now
		if err := get(host+"/team/x@"+digestOf(t, img).String(), policy); err == nil ||
			policy != "Never" && !errors.Is(err, image.ErrUnsigned) {
			t.Errorf("policy %s: %v", policy, err)
		}
	}
	for _, ref := range []string{host + "/free/../team/x:v1", host + "//team/x:v1", host + "/./team/x:v1"} {
		if err := get(ref, ""); !errors.Is(err, image.ErrInvalidName) {
			t.Errorf("another way to write a name, %s: %v", ref, err)
		}
	}
	ours.sign(digestOf(t, img))
	if err := get(host+"/team/x:v1", ""); err != nil {
		t.Fatalf("signed: %v", err)
	}
	if err := os.RemoveAll(ours.store); err != nil {
		t.Fatal(err)
	}
	if err := get(host+"/team/x:v1", "Always"); err != nil {
		t.Errorf("what was found once does not hold: %v", err)
	}
	raw, err := os.ReadFile(theirs.ring)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ours.ring, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"Never", "IfNotPresent", "Always"} {
		if err := get(host+"/team/x:v1", policy); !errors.Is(err, image.ErrUnsigned) {
			t.Errorf("after the change of keys, policy %s: %v", policy, err)
		}
	}
}

// An index is signed, not the image in it.
func TestTheSignatureOfAnIndexIsThatOfItsImages(t *testing.T) {
	hub := httptest.NewServer(newRegistry())
	defer hub.Close()
	host := hub.Listener.Addr().String()
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: tiny(t, "x"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}},
	})
	ref, err := name.ParseReference(host + "/x:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	first, second := newSigner(t), newSigner(t)
	both := fmt.Sprintf("signatures: [{images: '*', keyRings: [%q, %q], stores: [%q, %q]}]", first.ring, second.ring,
		"file://"+first.store, "file://"+second.store)
	l := newLibrary(t, both)
	first.sign(digestOf(t, index))
	if _, err := l.Get(t.Context(), image.Request{Ref: ref.Name()}, &image.Progress{}); !errors.Is(err,
		image.ErrUnsigned) {
		t.Errorf("signed for one ring of two: %v", err)
	}
	second.sign(digestOf(t, index))
	for _, policy := range []string{"Always", "Never"} {
		if _, err := l.Get(t.Context(), image.Request{Ref: ref.Name(), Policy: policy}, &image.Progress{}); err != nil {
			t.Errorf("policy %s: %v", policy, err)
		}
	}
	list, _ := l.List()
	if len(list) != 1 || !strings.Contains(strings.Join(list[0].Names, " "), "@"+digestOf(t, index).String()) {
		t.Errorf("images %v, want one with the name of its index", list)
	}
}
