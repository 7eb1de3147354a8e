// Package store keeps records in etcd under one prefix. It promises that a write happens at most once however often
// its answer is lost, that all records of one Commit share a revision, and that a watch has no gap and no duplicate
// as long as etcd keeps its history. What the bytes of a record mean is left to others.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Record is one value and its revisions.
type Record struct {
	Key            string // relative to the store's prefix
	Value          []byte // as it was given to Put
	Revision       int64  // of the last change
	CreateRevision int64

	// SealedBy is the id of the key that has sealed the value; 0: it is not sealed.
	SealedBy uint64

	// Damage says why the value could not be opened, in a List or an Event: then Value is what is stored.
	Damage error
}

// Store reads and writes the records under one prefix. It is safe for concurrent use.
type Store struct {
	client *clientv3.Client
	prefix string
	seen   atomic.Int64 // the highest revision that any answer carried: a write sent from now on is later

	patience *patience
	writer   *writer
	shares   shares
	log      *slog.Logger
	sealer   Sealer // nil: none

	unreadable unreadable
	refusals   Refusals
}

// Option is a setting of a Store that New takes.
type Option func(*Store)

// WithLog makes the store log what its callers do not receive: watches that etcd refuses, records that cannot be read.
func WithLog(log *slog.Logger) Option { return func(s *Store) { s.log = log } }

// New returns a store over all keys that begin with prefix, which ends in a slash. It does not own the client. A
// process needs one for a prefix; each that writes keeps a small key there.
func New(c *clientv3.Client, prefix string, options ...Option) *Store {
	s := &Store{
		client: c, prefix: prefix, patience: newPatience(), writer: newWriter(), shares: shares{wait: sharedWait},
		log: slog.New(slog.DiscardHandler),
	}
	for _, set := range options {
		set(s)
	}
	return s
}

// RefusedWatches returns how many watches etcd has refused or ended with an error that is no compaction.
func (s *Store) RefusedWatches() int64 { return s.refusals.Count() }

// Prefix returns the beginning that all keys of the store share.
func (s *Store) Prefix() string { return s.prefix }

// Get returns the record as of now, with all writes that were acknowledged before the call. Without a record:
// ErrNotFound; if its value cannot be opened: ErrUnreadable.
func (s *Store) Get(ctx context.Context, key string) (Record, error) {
	resp, err := s.read(ctx, shortPace, s.prefix+key)
	if err != nil {
		return Record{}, fmt.Errorf("get %q: %w", key, err)
	}
	if len(resp.Kvs) == 0 {
		return Record{}, fmt.Errorf("get %q: %w", key, ErrNotFound)
	}
	r := s.record(resp.Kvs[0])
	if r.Damage != nil {
		return Record{}, fmt.Errorf("get %q: %w: %w", key, ErrUnreadable, r.Damage)
	}
	return r, nil
}

// Revision returns etcd's revision at some moment of the call.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	resp, err := s.read(ctx, shortPace, s.prefix, clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("revision: %w", err)
	}
	return resp.Header.Revision, nil
}

// pageSize bounds one answer of etcd: with pages a long list costs the server a fraction of the memory.
const pageSize = 1000

// ListOptions narrow a List. The zero value lists everything as of now.
type ListOptions struct {
	Revision int64  // to list at; 0: now
	Limit    int    // most records to return; 0: all
	After    string // key, relative to the prefix, to continue after
}

// Page is what List returned: records in the order of their keys.
type Page struct {
	Records   []Record
	Revision  int64 // that all records were read at; continue with it, and watch after it
	More      bool
	Remaining int64 // records of the list behind this page
}

// List returns the records whose keys begin with keyPrefix. If the revision asked for is gone: ErrCompacted.
func (s *Store) List(ctx context.Context, keyPrefix string, o ListOptions) (Page, error) {
	page := Page{Revision: o.Revision}
	for {
		n := pageSize
		if o.Limit > 0 {
			n = min(n, o.Limit-len(page.Records))
		}
		last, err := s.listMore(ctx, &page, keyPrefix, o.After, n)
		if err != nil {
			return Page{}, fmt.Errorf("list %q: %w", keyPrefix, err)
		}
		if !page.More || o.Limit > 0 && len(page.Records) == o.Limit {
			return page, nil
		}
		o.After = last
	}
}

// listMore adds up to n records behind the key after to page, at the page's revision. It returns the last key that it
// came to.
func (s *Store) listMore(ctx context.Context, page *Page, keyPrefix, after string, n int) (string, error) {
	from := s.prefix + keyPrefix
	if behind := s.prefix + after + "\x00"; after != "" && behind > from {
		from = behind
	}
	resp, err := s.read(ctx, listPace, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.prefix+keyPrefix)),
		clientv3.WithLimit(int64(n)), clientv3.WithRev(page.Revision))
	if err != nil {
		return "", err
	}
	for _, kv := range resp.Kvs {
		if after = string(kv.Key[len(s.prefix):]); keeps(after) {
			continue
		}
		page.Records = append(page.Records, s.record(kv))
	}
	if page.Revision == 0 {
		page.Revision = resp.Header.Revision
	}
	page.More = resp.More
	page.Remaining = resp.Count - int64(len(resp.Kvs))
	return after, nil
}

// read is a linearizable range that is tried until ctx ends.
func (s *Store) read(ctx context.Context, p pace, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse,
	error,
) {
	resp, err := retry(ctx, s, p, "read", func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, key, opts...)
	})
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil, ErrCompacted
	}
	if err != nil {
		return nil, err
	}
	s.saw(resp.Header.Revision)
	return resp, nil
}

// saw notes a revision that etcd has reached.
func (s *Store) saw(revision int64) {
	for {
		old := s.seen.Load()
		if revision <= old || s.seen.CompareAndSwap(old, revision) {
			return
		}
	}
}

// record returns a record whose value may be damaged.
func (s *Store) record(kv *mvccpb.KeyValue) Record {
	r := Record{Key: string(kv.Key[len(s.prefix):]), Revision: kv.ModRevision, CreateRevision: kv.CreateRevision}
	if r.Value, r.SealedBy, r.Damage = s.open(kv.Value, string(kv.Key)); r.Damage != nil {
		r.Value = kv.Value
	}
	return r
}

// open returns the payload of a stored value, and the id of the key that has sealed it. key is that of the record: what
// was sealed for another does not open.
func (s *Store) open(stored []byte, key string) (value []byte, by uint64, err error) {
	e, err := decodeEnvelope(stored)
	if err != nil || e.keyID == plainKey {
		return e.payload, plainKey, err
	}
	if s.sealer == nil {
		return nil, e.keyID, fmt.Errorf("sealed by key %d: %w", e.keyID, errNoSealer)
	}
	value, err = s.sealer.Open(e.keyID, e.payload, []byte(key))
	return value, e.keyID, err
}

// SealsBy returns the id of the key that PutSealed seals by now; 0 without a Sealer.
func (s *Store) SealsBy() (uint64, error) {
	if s.sealer == nil {
		return plainKey, nil
	}
	return s.sealer.Current()
}
