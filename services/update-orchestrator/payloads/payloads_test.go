package payloads

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// image makes a release image with manifests of some bytes that cannot be packed.
func image(t *testing.T, version string, size int) (*release.Image, string) {
	t.Helper()
	from, layout := t.TempDir(), t.TempDir()
	for i := 0; i == 0 || size > 0; i++ {
		noise := make([]byte, min(size, 100<<10))
		if _, err := rand.Read(noise); err != nil {
			t.Fatal(err)
		}
		size -= len(noise)
		manifest := fmt.Sprintf("apiVersion: v1\nkind: LimitRange\nmetadata: {name: a%d}\ndata: %q\n", i,
			base64.StdEncoding.EncodeToString(noise))
		name := filepath.Join(from, fmt.Sprintf("0000_10_a_%02d_x.yaml", i))
		if err := os.WriteFile(name, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	digest, err := release.New(layout, release.Build{From: from, Version: version})
	if err != nil {
		t.Fatal(err)
	}
	ref := "releases.invalid/r@" + digest
	i, err := release.Open(t.Context(), ref, release.Places{Layouts: []string{layout}})
	if err != nil {
		t.Fatal(err)
	}
	return i, ref
}

func keeper(t *testing.T) (*Payloads, *store.Store) {
	t.Helper()
	servetest.Clear(t, etcdtest.Client(t))
	st := store.New(etcdtest.Client(t), "/windlass/update-orchestrator/")
	p := New(st, t.TempDir())
	p.most, p.chunk, p.reserve = 256<<10, 8<<10, 0
	return p, st
}

func keys(t *testing.T, st *store.Store) int {
	t.Helper()
	page, err := st.List(t.Context(), "payload", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Records)
}

func TestAnImageIsOpenedAsItWasKept(t *testing.T) {
	_, st := keeper(t)
	p := New(st, t.TempDir()) // with parts as large as they are
	i, ref := image(t, "1.0.0", 1200<<10)
	if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("before: %v", err)
	}
	for range 2 {
		if _, err := p.Keep(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := p.Open(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if kept.Digest != i.Digest || kept.Reference != ref || !kept.Created.Equal(i.Created) {
		t.Errorf("%s %s, want %s %s", kept.Digest, kept.Reference, i.Digest, ref)
	}
	got, err := release.Load(kept)
	if err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Version != "1.0.0" || len(got.Manifests) != 12 {
		t.Errorf("loaded %+v", got.Metadata)
	}
	// Another one is kept beside it, and goes alone.
	other, otherRef := image(t, "1.0.1", 0)
	if _, err := p.Keep(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := p.Retain(t.Context(), []string{other.Digest}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(t.Context(), otherRef); err != nil {
		t.Error(err)
	}
	if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after: %v", err)
	}
	if n := keys(t, st); n != 2 {
		t.Errorf("%d keys, want one record and one chunk", n)
	}
}

// Whatever a kill or damage leaves is no image, is repaired by the next Keep, and is removed whole.
func TestHalfAnImageIsNone(t *testing.T) {
	i, ref := image(t, "1.0.0", 24<<10)
	tests := map[string]func(t *testing.T, st *store.Store) error{
		"the record only": func(t *testing.T, st *store.Store) error {
			_, err := st.Commit(t.Context(), store.Put(recordKey(i.Digest), []byte(`{"size":24576}`), store.Whatever))
			return err
		},
		"a chunk is missing": func(t *testing.T, st *store.Store) error {
			_, err := st.Commit(t.Context(), store.Delete(chunkKey(i.Digest, 1), store.Whatever))
			return err
		},
		"a chunk was changed": func(t *testing.T, st *store.Store) error {
			_, err := st.Commit(t.Context(), store.Put(chunkKey(i.Digest, 1), []byte("x"), store.Whatever))
			return err
		},
		"the record is no record": func(t *testing.T, st *store.Store) error {
			_, err := st.Commit(t.Context(), store.Put(recordKey(i.Digest), []byte("x"), store.Whatever))
			return err
		},
		"the record is of too much": func(t *testing.T, st *store.Store) error {
			_, err := st.Commit(t.Context(), store.Put(recordKey(i.Digest), []byte(`{"size":1000000000000,"complete":true}`),
				store.Whatever))
			return err
		},
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			p, st := keeper(t)
			if _, err := p.Keep(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			if err := damage(t, st); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("opened: %v", err)
			}
			if _, err := p.Keep(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Open(t.Context(), ref); err != nil {
				t.Error(err)
			}
			if err := damage(t, st); err != nil {
				t.Fatal(err)
			}
			if err := p.Retain(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if n := keys(t, st); n != 0 {
				t.Errorf("%d keys stay", n)
			}
		})
	}
}

func TestALargeImageIsKeptOnTheDisk(t *testing.T) {
	p, st := keeper(t)
	i, ref := image(t, "1.0.0", 256<<10)
	file, err := p.Keep(t.Context(), i)
	if err != nil || filepath.Dir(file) != p.dir {
		t.Fatalf("it is kept in %q: %v", file, err)
	}
	if n := keys(t, st); n != 0 {
		t.Errorf("%d keys", n)
	}
	opens := func() {
		t.Helper()
		kept, err := New(st, p.dir).Open(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := release.Load(kept); err != nil || got.Metadata.Version != "1.0.0" || len(got.Manifests) != 3 {
			t.Errorf("loaded %+v: %v", got, err)
		}
	}
	opens()
	if again, err := p.Keep(t.Context(), i); err != nil || again != file {
		t.Errorf("again, it is kept in %q: %v", again, err)
	}

	// Damage anywhere is found when it is opened, and is repaired.
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damages := map[string][]byte{"nothing is left": nil}
	for _, at := range []int{600, len(content) / 2, len(content) - 1500} {
		changed := bytes.Clone(content)
		changed[at] ^= 1
		damages[fmt.Sprint("byte ", at, " is changed")] = changed
	}
	for at := 0; at < len(content); at += 512 { // parts begin at such places
		if content[at] == 's' && bytes.HasPrefix(content[at:], []byte("sha256:")) {
			damages[fmt.Sprint("the end is missing from ", at)] = content[:at]
			damages[fmt.Sprint("the end is empty from ", at)] = append(bytes.Clone(content[:at]), make([]byte, 1024)...)
		}
	}
	for what, damaged := range damages {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) || !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := p.Keep(t.Context(), i); err != nil {
			t.Fatal(err)
		}
		opens()
	}

	// It stays for its digest, and goes with what a kill has left beside it.
	left := filepath.Join(p.dir, release.TempPrefix+"123")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Retain(t.Context(), []string{i.Digest}); err != nil {
		t.Fatal(err)
	}
	opens()
	if err := p.Retain(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(p.dir); err != nil || len(entries) > 0 {
		t.Errorf("what stays is %v, %v", entries, err)
	}
	if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after: %v", err)
	}
}

func TestAnImageThatIsTooLargeIsNotKept(t *testing.T) {
	p, st := keeper(t)
	p.mostFile = 300 << 10
	i, ref := image(t, "1.0.0", 300<<10)
	if _, err := p.Keep(t.Context(), i); !errors.Is(err, ErrNotKept) || !strings.Contains(err.Error(), "307200") {
		t.Errorf("%v", err)
	}
	if entries, err := os.ReadDir(p.dir); err != nil || len(entries) > 0 || keys(t, st) > 0 {
		t.Errorf("what stays is %v, %v", entries, err)
	}
	if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("opened: %v", err)
	}
}

func TestAFullDiskKeepsNoLargeImage(t *testing.T) {
	p, _ := keeper(t)
	if err := unix.Mount("none", p.dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.dir, 0) })
	i, _ := image(t, "1.0.0", 300<<10)
	for reserve, want := range map[int64]string{0: "65536 bytes are free", -1 << 30: "no space"} {
		p.reserve = reserve
		if _, err := p.Keep(t.Context(), i); !errors.Is(err, ErrNotKept) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	if entries, err := os.ReadDir(p.dir); err != nil || len(entries) > 0 {
		t.Errorf("what stays is %v, %v", entries, err)
	}
}

func TestWhatIsNoDigestNamesNoFile(t *testing.T) {
	p, _ := keeper(t)
	for _, ref := range []string{"r@sha256:../x", "r@../../etc/passwd", "r", "r@"} {
		if _, err := p.Open(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestNothingIsKeptThatWasNotSeenToBeStored(t *testing.T) {
	p, _ := keeper(t)
	i, _ := image(t, "1.0.0", 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Keep(ctx, i); err == nil {
		t.Error("it is said to be kept")
	}
}
