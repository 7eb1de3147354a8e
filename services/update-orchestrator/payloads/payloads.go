// Package payloads keeps release images by their digests, in the store of this service, or on the disk of this machine
// if they are large: a cluster is kept at its release, and finds the way back, also when the place that an image came
// from is gone. Everything in it may be done again after a kill between any two writes.
package payloads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/store"
	"golang.org/x/sys/unix"
)

const (
	// maxSize is how many bytes an image may have to be kept in the store.
	maxSize = 32 << 20
	// maxFile is how many bytes one may have to be kept on the disk: what is read of the layers of a release at most.
	maxFile = 2 << 30
	// reserve is how many bytes of the disk are left alone: etcd may be on it, and ends where it is full.
	reserve = 1 << 30

	chunkSize    = 1 << 20 // a value of etcd is small: its usual limit of a request is 1.5 MiB
	recordPrefix = "payloads/"
	chunkPrefix  = "payload-chunks/"
)

// ErrDamaged means that a file is not what was kept.
var ErrDamaged = errors.New("its file is damaged")

// ErrNotKept means that an image cannot be kept here: it is too large, or the disk does not take it.
var ErrNotKept = errors.New("it cannot be kept here")

// Payloads are the images that are kept. Its methods may be called concurrently.
type Payloads struct {
	store    *store.Store
	dir      string
	most     int64 // maxSize
	mostFile int64 // maxFile
	reserve  int64 // of the disk
	chunk    int   // chunkSize

	mu       sync.Mutex
	verified map[string]os.FileInfo // files that were compared with their digests, as they were then
}

// New returns the images that are kept in a store, or in a directory, which is made when it is needed.
func New(st *store.Store, dir string) *Payloads {
	return &Payloads{
		store: st, dir: dir, most: maxSize, mostFile: maxFile, reserve: reserve, chunk: chunkSize,
		verified: map[string]os.FileInfo{},
	}
}

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

// file returns where an image is kept on the disk.
func (p *Payloads) file(digest string) string {
	return filepath.Join(p.dir, strings.ReplaceAll(digest, ":", "-")+fileExt)
}

const fileExt = ".tar"

// Keep keeps an image, unless it is kept already. It returns the file if it is kept on this machine alone, as an image
// of more than maxSize bytes is. One of more than maxFile bytes, and one that the disk does not take, is ErrNotKept.
func (p *Payloads) Keep(ctx context.Context, image *release.Image) (file string, err error) {
	_, file, err = p.open(ctx, "kept@"+image.Digest)
	switch {
	case errors.As(err, new(*fs.PathError)):
		return "", fmt.Errorf("%w: %w", ErrNotKept, err)
	case err == nil || !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable):
		return file, err
	}
	err = p.keepInStore(ctx, image)
	if !errors.Is(err, release.ErrTooLarge) {
		return "", err
	}
	file = p.file(image.Digest)
	err = p.save(ctx, image, file)
	for _, here := range []error{release.ErrTooLarge, release.ErrNotWritten, context.DeadlineExceeded} {
		if errors.Is(err, here) {
			return "", fmt.Errorf("%w: etcd keeps images of up to %d bytes, and as a file: %w", ErrNotKept, p.most, err)
		}
	}
	return file, err
}

// save writes an image to a file, unless the disk would be nearly full then.
func (p *Payloads) save(ctx context.Context, image *release.Image, file string) error {
	if err := durable.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", release.ErrNotWritten, err)
	}
	size, err := image.Size()
	if err != nil {
		return err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(p.dir, &disk); err != nil {
		return fmt.Errorf("%w: %w", release.ErrNotWritten, err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; size > free-p.reserve {
		return fmt.Errorf("%w: %d bytes are free, %d of them are left alone, and the image has %d", release.ErrNotWritten,
			free, p.reserve, size)
	}
	return image.SaveContent(ctx, file, p.mostFile)
}

func (p *Payloads) keepInStore(ctx context.Context, image *release.Image) error {
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
	image, _, err := p.open(ctx, ref)
	return image, err
}

// open also returns the file that the image is in; empty if it is in the store.
func (p *Payloads) open(ctx context.Context, ref string) (_ *release.Image, file string, err error) {
	_, digest, _ := strings.Cut(ref, "@")
	if _, err := v1.NewHash(digest); err != nil { // it becomes part of a path
		return nil, "", fmt.Errorf("%w: %w", store.ErrNotFound, err)
	}
	image, err := p.openInStore(ctx, ref, digest)
	if !errors.Is(err, store.ErrNotFound) {
		return image, "", err
	}
	file = p.file(digest)
	image, why := p.openFile(ctx, ref, file)
	switch {
	case errors.Is(why, fs.ErrNotExist):
		return nil, "", err
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case errors.As(why, new(*fs.PathError)): // nothing says that it is damaged
		return nil, "", why
	case why != nil:
		return nil, "", fmt.Errorf("%w: %w: %w", store.ErrNotFound, ErrDamaged, why)
	}
	return image, file, nil
}

// openFile compares a file with its digests unless it is as it was when that was done.
func (p *Payloads) openFile(ctx context.Context, ref, file string) (*release.Image, error) {
	is, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	was := p.verified[file]
	p.mu.Unlock()
	same := was != nil && os.SameFile(is, was) && is.ModTime().Equal(was.ModTime()) && is.Size() == was.Size()
	image, err := release.OpenFile(ctx, ref, file, same)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verified[file] = is
	return image, nil
}

// Damaged says that what is kept of an image could not be read after it was opened: it is compared with its digests
// again when it is opened next.
func (p *Payloads) Damaged(digest string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.verified, p.file(digest))
}

func (p *Payloads) openInStore(ctx context.Context, ref, digest string) (*release.Image, error) {
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
	return p.retainFiles(digests)
}

// retainFiles removes all files but those of images with some digests, and with them what a kill has left.
func (p *Payloads) retainFiles(digests []string) error {
	entries, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(p.dir, e.Name())
		ours := strings.HasPrefix(e.Name(), release.TempPrefix) || filepath.Ext(e.Name()) == fileExt
		if !ours || slices.ContainsFunc(digests, func(digest string) bool { return path == p.file(digest) }) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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
