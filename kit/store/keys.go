package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/durable"
)

// Sealer encrypts the values of chosen records. A KeyRing is one; a client of a key management service may be another.
// Its methods may be called concurrently. additional is authenticated and not stored: a value opens only where it was
// sealed.
type Sealer interface {
	// Seal returns the value sealed by the key in force, and the id of that key, which is above 0.
	Seal(value, additional []byte) (key uint64, sealed []byte, err error)
	// Open is the inverse of Seal.
	Open(key uint64, sealed, additional []byte) ([]byte, error)
	// Current returns the id of the key in force.
	Current() (uint64, error)
}

// WithSealer lets the store seal records that PutSealed writes, and open them.
func WithSealer(sealer Sealer) Option { return func(s *Store) { s.sealer = sealer } }

var errNoSealer = errors.New("no keys for sealed records are configured")

// ringCheck is how often the file of a KeyRing is checked: a rotation is in force everywhere soon after.
const ringCheck = time.Second

// KeyRing is keys for AES-256-GCM in a file. The first key seals; all of them open. The file is read again when it
// changes.
type KeyRing struct {
	path string

	mu      sync.Mutex
	checked time.Time
	changed time.Time // the file's time when it was read
	first   uint64
	keys    map[uint64]cipher.AEAD
}

type ringFile struct {
	Keys []ringKey `json:"keys"`
}

type ringKey struct {
	ID      uint64    `json:"id"`
	Key     []byte    `json:"key"` // 32 bytes
	Created time.Time `json:"created"`
}

const ringKeyBytes = 32

// OpenKeyRing reads the file of a key ring. A missing file is an error: with a new key nothing that was sealed before
// could be opened.
func OpenKeyRing(path string) (*KeyRing, error) {
	r := &KeyRing{path: path}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r, r.read()
}

// AddKey puts a new key at the head of a key ring's file, which it makes if it is missing, and returns its id. The
// others stay, to open what they have sealed. It may be called concurrently, by several processes too. When it returns,
// the key is on the disk: etcd must not hold a record that is sealed by a key which a loss of power takes away.
func AddKey(path string, now time.Time) (uint64, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return 0, fmt.Errorf("key ring: %w", err)
	}
	defer dir.Close() // which unlocks it
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return 0, fmt.Errorf("key ring: lock %s: %w", dir.Name(), err)
	}
	f, err := readRing(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	fresh := ringKey{ID: 1, Key: make([]byte, ringKeyBytes), Created: now.UTC()}
	for _, k := range f.Keys {
		fresh.ID = max(fresh.ID, k.ID+1)
	}
	if _, err := rand.Read(fresh.Key); err != nil {
		return 0, err
	}
	f.Keys = append([]ringKey{fresh}, f.Keys...)
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return 0, err
	}
	if err := durable.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return 0, fmt.Errorf("key ring: %w", err)
	}
	return fresh.ID, nil
}

func readRing(path string) (ringFile, error) {
	var f ringFile
	b, err := os.ReadFile(path)
	if err != nil {
		return f, fmt.Errorf("key ring: %w", err)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("key ring %s: %w", path, err)
	}
	return f, nil
}

// read reads the file. The lock is held.
func (r *KeyRing) read() error {
	info, err := os.Stat(r.path)
	if err != nil {
		return fmt.Errorf("key ring: %w", err)
	}
	f, err := readRing(r.path)
	if err != nil {
		return err
	}
	if len(f.Keys) == 0 {
		return fmt.Errorf("key ring %s: it has no key", r.path)
	}
	keys := map[uint64]cipher.AEAD{}
	for i, k := range f.Keys {
		if k.ID == plainKey || keys[k.ID] != nil || len(k.Key) != ringKeyBytes {
			return fmt.Errorf("key ring %s: keys[%d]: want an id of its own above 0, and %d bytes", r.path, i, ringKeyBytes)
		}
		block, err := aes.NewCipher(k.Key)
		if err != nil {
			return fmt.Errorf("key ring %s: keys[%d]: %w", r.path, i, err)
		}
		if keys[k.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return fmt.Errorf("key ring %s: keys[%d]: %w", r.path, i, err)
		}
	}
	r.first, r.keys, r.changed = f.Keys[0].ID, keys, info.ModTime()
	return nil
}

// refresh reads the file again if it has changed. One that cannot be read leaves the keys as they are. The lock is
// held.
func (r *KeyRing) refresh() {
	if time.Since(r.checked) < ringCheck {
		return
	}
	r.checked = time.Now()
	if info, err := os.Stat(r.path); err == nil && !info.ModTime().Equal(r.changed) {
		_ = r.read()
	}
}

// Current returns the id of the first key.
func (r *KeyRing) Current() (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh()
	return r.first, nil
}

// Seal seals by the first key.
func (r *KeyRing) Seal(value, additional []byte) (uint64, []byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh()
	return r.first, r.keys[r.first].Seal(nil, nil, value, additional), nil
}

// Open opens what any of the keys has sealed.
func (r *KeyRing) Open(key uint64, sealed, additional []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[key] == nil {
		r.checked = time.Time{} // it may have come just now
	}
	r.refresh()
	aead := r.keys[key]
	if aead == nil {
		return nil, fmt.Errorf("key %d is not in the key ring", key)
	}
	value, err := aead.Open(nil, nil, sealed, additional)
	if err != nil {
		return nil, fmt.Errorf("sealed by key %d: %w", key, err)
	}
	return value, nil
}
