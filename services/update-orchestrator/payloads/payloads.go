// Package payloads keeps release images in the store of this service, by their digests: a cluster is kept at its
// release, and finds the way back, also when the place that an image came from is gone. Everything in it may be done
// again after a kill between any two writes.
package payloads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/store"
)

const (
	// maxSize is how many bytes an image may have to be kept.
	maxSize = 32 << 20

	chunkSize    = 1 << 20 // a value of etcd is small: its usual limit of a request is 1.5 MiB
	recordPrefix = "payloads/"
	chunkPrefix  = "payload-chunks/"
)

// Payloads are the images that are kept.
type Payloads struct {
	store *store.Store
	most  int64 // maxSize
	chunk int   // chunkSize
}

// New returns the images that are kept in a store.
func New(st *store.Store) *Payloads { return &Payloads{store: st, most: maxSize, chunk: chunkSize} }

// record says how the bytes of an image are kept.
type record struct {
	Size     int    `json:"size"`
	Chunks   int    `json:"chunks"`
	SHA256   string `json:"sha256"`
	Complete bool   `json:"complete"` // all chunks are there; the record is written before the first one as well
}

func recordKey(digest string) string { return recordPrefix + strings.ReplaceAll(digest, ":", "-") }

func chunksOf(digest string) string { return chunkPrefix + strings.ReplaceAll(digest, ":", "-") + "/" }

func chunkKey(digest string, n int) string { return fmt.Sprintf("%s%04d", chunksOf(digest), n) }

// Keep keeps an image, unless it is kept already. An image of more than maxSize bytes is release.ErrTooLarge.
func (p *Payloads) Keep(ctx context.Context, image *release.Image) error {
	_, err := p.Open(ctx, "kept@"+image.Digest)
	if err == nil || !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	content, err := image.Content(p.most)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	r := record{
		Size: len(content), Chunks: (len(content) + p.chunk - 1) / p.chunk, SHA256: hex.EncodeToString(sum[:]),
	}
	if err := p.note(ctx, image.Digest, r); err != nil {
		return err
	}
	n := 0
	for chunk := range slices.Chunk(content, p.chunk) {
		if _, err := p.store.Commit(ctx, store.Put(chunkKey(image.Digest, n), chunk, store.Whatever)); err != nil {
			return err
		}
		n++
	}
	r.Complete = true
	return p.note(ctx, image.Digest, r)
}

func (p *Payloads) note(ctx context.Context, digest string, r record) error {
	raw, err := json.Marshal(r)
	if err == nil {
		_, err = p.store.Commit(ctx, store.Put(recordKey(digest), raw, store.Whatever))
	}
	return err
}

// Open opens an image that is named by its digest. One that is not kept, or not as it was, is store.ErrNotFound.
func (p *Payloads) Open(ctx context.Context, ref string) (*release.Image, error) {
	_, digest, _ := strings.Cut(ref, "@")
	r, err := p.read(ctx, digest)
	if err != nil {
		return nil, err
	}
	if !r.Complete {
		return nil, fmt.Errorf("%w: %s is not kept to its end", store.ErrNotFound, digest)
	}
	var content bytes.Buffer
	for n := range r.Chunks {
		chunk, err := p.store.Get(ctx, chunkKey(digest, n))
		if err != nil {
			return nil, err
		}
		content.Write(chunk.Value)
	}
	if sum := sha256.Sum256(content.Bytes()); hex.EncodeToString(sum[:]) != r.SHA256 {
		return nil, fmt.Errorf("%w: what is kept of %s has another sum", store.ErrNotFound, digest)
	}
	image, err := release.OpenContent(ref, content.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrNotFound, err)
	}
	return image, nil
}

func (p *Payloads) read(ctx context.Context, digest string) (record, error) {
	var r record
	stored, err := p.store.Get(ctx, recordKey(digest))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(stored.Value, &r); err != nil || r.Size < 0 || int64(r.Size) > 2*p.most ||
		r.Chunks < 0 || r.Chunks > r.Size {
		return r, fmt.Errorf("%w: the record of %s is damaged", store.ErrNotFound, digest)
	}
	return r, nil
}

// Retain removes all images but those with some digests.
func (p *Payloads) Retain(ctx context.Context, digests []string) error {
	page, err := p.store.List(ctx, recordPrefix, store.ListOptions{})
	if err != nil {
		return err
	}
	for _, stored := range page.Records {
		name := strings.TrimPrefix(stored.Key, recordPrefix)
		digest := strings.Replace(name, "-", ":", 1)
		if slices.Contains(digests, digest) {
			continue
		}
		if err := p.remove(ctx, digest); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the chunks first: the record leads to them.
func (p *Payloads) remove(ctx context.Context, digest string) error {
	page, err := p.store.List(ctx, chunksOf(digest), store.ListOptions{})
	if err != nil {
		return err
	}
	keys := []string{}
	for _, chunk := range page.Records {
		keys = append(keys, chunk.Key)
	}
	for _, key := range append(keys, recordKey(digest)) {
		if _, err := p.store.Commit(ctx, store.Delete(key, store.Whatever)); err != nil {
			return err
		}
	}
	return nil
}
