package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// reserved is the beginning of the keys that the store keeps for itself. Lists and watches do not show them.
	reserved = "store/"
	// writersPrefix is where each Store has its writer key.
	writersPrefix = reserved + "writers/"
	// writersKept bounds the writer keys under a prefix: many times the processes that a service has at once.
	writersKept = 64
)

// writer is the key by which a Store fences its own earlier attempts. Every attempt of a Commit compares the key's
// revision. Where one has no answer, the key is moved on before another is sent: then it can never be carried out,
// however long etcd has delayed it. A key that is gone fences them too. So anyone may remove a key: a Store that finds
// its own gone makes it again, and each new one removes the oldest beyond writersKept, which processes that ended have
// left.
type writer struct {
	making chan struct{} // holds one token while the key is made

	mu        sync.Mutex
	key       string // absolute; empty before the first Commit
	at        int64  // revision of the key; 0: it is to be made
	abandoned int64  // the highest revision that an attempt compared whose Commit ended without knowing its outcome
}

func newWriter() *writer { return &writer{making: make(chan struct{}, 1)} }

// now returns the key and its revision, and whether an attempt that compares it must also move it on.
func (w *writer) now() (key string, at int64, move bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.key, w.at, w.at > 0 && w.abandoned == w.at
}

// moved notes that an attempt which compared the revision before found, or left, the key at now (0: it is gone).
func (w *writer) moved(before, now int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// An answer that others have overtaken is no news, unless the key's revision fell, as it does when etcd was restored.
	if now > w.at || w.at == before {
		w.at = now
	}
}

// abandon notes that nothing is known of an attempt that compared the revision at: the next Commit fences it.
func (w *writer) abandon(at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abandoned = max(w.abandoned, at)
}

// writerNow returns the writer key and its revision, and whether it must be moved on. It makes the key where there is
// none.
func (s *Store) writerNow(ctx context.Context) (key string, at int64, move bool, err error) {
	if key, at, move = s.writer.now(); at > 0 {
		return key, at, move, nil
	}
	select {
	case s.writer.making <- struct{}{}:
		defer func() { <-s.writer.making }()
	case <-ctx.Done():
		return "", 0, false, ended(ctx, "writer key", nil)
	}
	if key, at, move = s.writer.now(); at > 0 {
		return key, at, move, nil
	}
	if err := s.makeWriter(ctx); err != nil {
		return "", 0, false, fmt.Errorf("writer key: %w", err)
	}
	key, at, move = s.writer.now()
	return key, at, move, nil
}

// makeWriter puts the key and removes the oldest ones that are too many. A late attempt of it moves the key once more,
// which does no harm.
func (s *Store) makeWriter(ctx context.Context) error {
	key, _, _ := s.writer.now()
	if key == "" {
		id, err := newWriteID()
		if err != nil {
			return err
		}
		key = s.prefix + writersPrefix + hex.EncodeToString(id[:])
	}
	others, err := s.read(ctx, shortPace, s.prefix+writersPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
	if err != nil {
		return err
	}
	holder := fmt.Sprintf("%s@%d", filepath.Base(os.Args[0]), os.Getpid()) // for people
	then := []clientv3.Op{clientv3.OpPut(key, string(envelope{payload: []byte(holder)}.encode()))}
	for i, kv := range others.Kvs {
		if len(others.Kvs)-i < writersKept || len(then) > writersKept {
			break
		}
		if string(kv.Key) != key {
			then = append(then, clientv3.OpDelete(string(kv.Key)))
		}
	}
	resp, err := retry(ctx, s, shortPace, "write", func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).Then(then...).Commit()
	})
	if err != nil {
		return noSpace(err)
	}
	s.saw(resp.Header.Revision)
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	s.writer.key, s.writer.at = key, resp.Header.Revision
	return nil
}

// keeps reports whether a key, relative to the prefix, is one of the store's own.
func keeps(key string) bool { return strings.HasPrefix(key, reserved) }
