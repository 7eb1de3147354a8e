package store_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func ring(t *testing.T, path string) *store.KeyRing {
	t.Helper()
	r, err := store.OpenKeyRing(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestASealedRecordIsReadOnlyByItsKeyAndInItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if _, err := store.OpenKeyRing(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenKeyRing = %v of a missing file", err)
	}
	if _, err := store.AddKey(path, time.Now()); err != nil {
		t.Fatal(err)
	}
	client, prefix := etcdtest.Client(t), etcdtest.Prefix(t)
	s := store.New(client, prefix, store.WithSealer(ring(t, path)))
	secret := []byte("a secret that etcd must not know")
	commit(t, s, store.PutSealed("secret", secret, 0))
	if r := get(t, s, "secret"); !bytes.Equal(r.Value, secret) || r.SealedBy != 1 {
		t.Errorf("value = %q, sealed by %d", r.Value, r.SealedBy)
	}
	raw, err := client.Get(t.Context(), prefix+"secret")
	if err != nil || bytes.Contains(raw.Kvs[0].Value, secret) {
		t.Errorf("etcd holds %q (%v)", raw.Kvs[0].Value, err)
	}
	// A client that may write to etcd can neither move it to another record nor change it.
	changed := bytes.Clone(raw.Kvs[0].Value)
	changed[len(changed)-1] ^= 1
	for key, value := range map[string][]byte{"moved": raw.Kvs[0].Value, "changed": changed} {
		if _, err := client.Put(t.Context(), prefix+key, string(value)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), key); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s: Get = %v, want ErrUnreadable", key, err)
		}
	}
	plain := store.New(client, prefix)
	if _, err := plain.Get(t.Context(), "secret"); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("without keys: Get = %v, want ErrUnreadable", err)
	}
	if _, err := plain.Commit(t.Context(), store.PutSealed("other", nil, 0)); err == nil {
		t.Error("a record was sealed without a key")
	}
}

func TestAKeyRingRotatesWhileItIsUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if _, err := store.AddKey(path, time.Now()); err != nil {
		t.Fatal(err)
	}
	s := store.New(etcdtest.Client(t), etcdtest.Prefix(t), store.WithSealer(ring(t, path)))
	at := commit(t, s, store.PutSealed("a", []byte("v"), 0))
	if id, err := store.AddKey(path, time.Now()); err != nil || id != 2 {
		t.Fatalf("AddKey = %d, %v", id, err)
	}
	waitFor(t, "the new key to be in force", func() bool { by, err := s.SealsBy(); return err == nil && by == 2 })
	if r := get(t, s, "a"); string(r.Value) != "v" || r.SealedBy != 1 {
		t.Errorf("value = %q, sealed by %d: the old key still opens", r.Value, r.SealedBy)
	}
	commit(t, s, store.PutSealed("a", []byte("v"), at))
	if r := get(t, s, "a"); string(r.Value) != "v" || r.SealedBy != 2 {
		t.Errorf("value = %q, sealed by %d, want 2", r.Value, r.SealedBy)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v (%v)", info.Mode(), err)
	}
	// A broken file does not take the keys away from a process that has them.
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := get(t, s, "a"); string(r.Value) != "v" {
		t.Errorf("value = %q with a broken file", r.Value)
	}
}

func TestKeysThatAreAddedAtOnceAreAllKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	const adders, each = 8, 10
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[uint64]bool{}
	for range adders {
		wg.Go(func() {
			for range each {
				id, err := store.AddKey(path, time.Now())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				ids[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(ids) != adders*each {
		t.Errorf("%d keys have %d ids: some were lost", adders*each, len(ids))
	}
	if by, err := ring(t, path).Current(); err != nil || by != adders*each {
		t.Errorf("the newest key is %d, %v, want %d", by, err, adders*each)
	}
}
