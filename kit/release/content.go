package release

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/kit/durable"
)

// Errors of the contents of images.
var (
	ErrTooLarge   = errors.New("the image is too large")     // it has more bytes than were allowed
	ErrNotWritten = errors.New("the file cannot be written") // the image could be read
)

// Size returns how many bytes the manifest says that the layers have, as they are sent.
func (i *Image) Size() (size int64, err error) {
	m, err := i.image.Manifest()
	if err != nil {
		return 0, err
	}
	for _, l := range m.Layers {
		size += max(0, l.Size)
	}
	return size, nil
}

// Content returns the whole image as bytes, from which OpenContent opens it again: a tar archive of its index, if it
// was found by one, its manifest, its configuration and its layers, each named by its digest. Equal images give equal
// bytes. If the parts have more than limit bytes it is ErrTooLarge.
func (i *Image) Content(limit int64) ([]byte, error) {
	var out bytes.Buffer
	err := i.fromAnyPlace(func(i *Image) error {
		out.Reset()
		return i.WriteContent(&out, limit)
	})
	return out.Bytes(), err
}

// SaveContent writes what Content returns to a file, which is there as a whole or not at all, from which OpenFile opens
// the image again. When it returns nil, that is on the disk. What a kill leaves is beside it, and has a name that
// begins with TempPrefix. If the parts have more than limit bytes it is ErrTooLarge; what goes wrong with the file is
// ErrNotWritten.
func (i *Image) SaveContent(ctx context.Context, path string, limit int64) error {
	f, err := os.CreateTemp(filepath.Dir(path), TempPrefix)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	defer os.Remove(f.Name())
	to := &sink{ctx: ctx, f: f}
	err = i.fromAnyPlace(func(i *Image) error {
		if to.err != nil {
			return to.err // another place does not help
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
		return i.WriteContent(to, limit)
	})
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if to.err == nil && err != nil { // it was not read
		_ = f.Close()
		return err
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = durable.Rename(f.Name(), path)
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	return err
}

// TempPrefix begins the names of files that SaveContent has not finished.
const TempPrefix = ".part-"

// sink is a file that is written until a context ends. It remembers why it could not be.
type sink struct {
	ctx context.Context
	f   *os.File
	err error
}

func (s *sink) Write(p []byte) (n int, err error) {
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	if s.err == nil {
		n, s.err = s.f.Write(p)
	}
	return n, s.err
}

// fromAnyPlace reads the image where it was found, and if that fails, from the next place that has it.
func (i *Image) fromAnyPlace(read func(*Image) error) error {
	err := read(i)
	if err == nil || i.elsewhere == nil || errors.Is(err, ErrTooLarge) {
		return err
	}
	other, why := i.elsewhere()
	if why != nil {
		return errors.Join(err, why)
	}
	return other.fromAnyPlace(read)
}

// WriteContent writes what Content returns. It asks no other place when the one where the image was found does not
// deliver it: what was written cannot be taken back.
func (i *Image) WriteContent(to io.Writer, limit int64) error {
	manifest, err := i.image.Manifest()
	if err != nil {
		return err
	}
	digest, err := i.image.Digest()
	if err != nil {
		return err
	}
	a := contentWriter{Writer: tar.NewWriter(to), limit: limit}
	if i.index != nil {
		named, err := v1.NewHash(i.Digest)
		if err == nil {
			err = a.add(i.index, named)
		}
		if err != nil {
			return fmt.Errorf("index: %w", err)
		}
	}
	raw, err := i.image.RawManifest()
	if err == nil {
		err = a.add(raw, digest)
	}
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if raw, err = i.image.RawConfigFile(); err == nil {
		err = a.add(raw, manifest.Config.Digest)
	}
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	seen := map[v1.Hash]bool{}
	for _, d := range manifest.Layers {
		if seen[d.Digest] {
			continue
		}
		seen[d.Digest] = true
		layer, err := i.image.LayerByDigest(d.Digest)
		if err == nil {
			err = a.addLayer(layer, d)
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", d.Digest, err)
		}
	}
	return a.Close()
}

// contentWriter writes a content.
type contentWriter struct {
	*tar.Writer
	size, limit int64 // bytes of the parts: those that there are, and how many there may be
}

func (a *contentWriter) add(raw []byte, digest v1.Hash) error {
	if len(raw) > maxManifest { // it would not be read
		return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, maxManifest)
	}
	return a.copy(bytes.NewReader(raw), digest, int64(len(raw)))
}

func (a *contentWriter) addLayer(l v1.Layer, d v1.Descriptor) error {
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	if err := a.copy(r, d.Digest, d.Size); err != nil {
		_ = r.Close() // the rest may be unread, which is the error that it would return
		return err
	}
	return r.Close()
}

// copy adds a part, and compares it with its digest.
func (a *contentWriter) copy(from io.Reader, digest v1.Hash, size int64) error {
	if size < 0 {
		return fmt.Errorf("its manifest says that it has %d bytes", size)
	}
	if size > a.limit-a.size {
		return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, a.limit)
	}
	a.size += size
	err := a.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: digest.String(), Size: size, Mode: 0o444})
	if err != nil {
		return err
	}
	sum := sha256.New()
	switch n, err := io.Copy(io.MultiWriter(a, sum), from); {
	case errors.Is(err, tar.ErrWriteTooLong) || err == nil && n < size:
		return fmt.Errorf("it has not the %d bytes that its manifest says", size)
	case err != nil:
		return err
	}
	return sameSum(sum, digest)
}

func sameSum(sum hash.Hash, digest v1.Hash) error {
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest.Hex {
		return fmt.Errorf("it has digest sha256:%s, not %s: it was changed or is broken", got, digest)
	}
	return nil
}

// OpenContent opens the image that a reference names by its digest from what Content returned. All of it is compared
// with its digests, now or when it is read.
func OpenContent(ref string, content []byte) (*Image, error) {
	p := parts{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return p.open(ref)
		}
		if err != nil {
			return nil, fmt.Errorf("release image %s: %w", ref, err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("release image %s: %w", ref, err)
		}
		p[h.Name] = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
	}
}

// OpenFile opens the image that a reference names by its digest from what SaveContent wrote. All of the file is
// compared with its digests now, unless verified says that it was, and again when it is read, for which it must stay. A
// file that is not there is an error that wraps fs.ErrNotExist.
func OpenFile(ctx context.Context, ref, path string, verified bool) (*Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := partsOf(ctx, f, section{file: f, path: path}, verified)
	if err != nil {
		return nil, fmt.Errorf("release image %s in %s: %w", ref, path, err)
	}
	return p.open(ref)
}

// maxParts is how many parts an image has at most: its index, manifest and configuration, and its layers.
const maxParts = 3 + maxLayers

// partsOf returns the parts of a content that r reads. What r has read is in the file of a section, which begins there,
// as its present end.
func partsOf(ctx context.Context, r io.Reader, in section, verified bool) (parts, error) {
	p := parts{}
	for r := tar.NewReader(r); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return nil, err
		}
		in.begin, err = in.file.Seek(0, io.SeekCurrent) // nothing of a part was read before
		if err != nil {
			return nil, err
		}
		in.size = h.Size
		digest, err := v1.NewHash(h.Name)
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || len(h.PAXRecords) > 0 { // such as one with holes, which is longer than its bytes
			return nil, fmt.Errorf("%s is not a plain file", digest)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !verified {
			sum := sha256.New()
			if _, err := io.Copy(sum, r); err != nil {
				return nil, err
			}
			if err := sameSum(sum, digest); err != nil {
				return nil, err
			}
		}
		if p[h.Name] = in.open; len(p) > maxParts {
			return nil, fmt.Errorf("it has more than %d parts", maxParts)
		}
	}
}

// section is a part of a file.
type section struct {
	file        *os.File
	path        string // where it is opened again; empty: the file itself is read, and remains open
	begin, size int64
}

func (s section) open() (io.ReadCloser, error) {
	if s.path == "" {
		return io.NopCloser(io.NewSectionReader(s.file, s.begin, s.size)), nil
	}
	f, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, s.begin, s.size), f}, nil
}

// parts open the parts of an image, by their digests.
type parts map[string]func() (io.ReadCloser, error)

func (b parts) open(ref string) (*Image, error) {
	image, err := b.find(ref)
	if err != nil {
		return nil, fmt.Errorf("release image %s: %w", ref, err)
	}
	image.Reference = ref
	return image, nil
}

func (b parts) find(ref string) (*Image, error) {
	_, named, _ := strings.Cut(ref, "@")
	digest, err := v1.NewHash(named)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDigest, err)
	}
	raw, err := b.read(digest, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if list, err := v1.ParseIndexManifest(bytes.NewReader(raw)); err == nil && list.MediaType.IsIndex() {
		return ofIndex(partIndex{b, raw}, digest)
	}
	image, err := b.image(digest)
	if err != nil {
		return nil, err
	}
	return newImage(digest, digest, image)
}

// read reads a part of limit bytes at most.
func (b parts) read(digest v1.Hash, limit int64) ([]byte, error) {
	open, ok := b[digest.String()]
	if !ok {
		return nil, fmt.Errorf("%s is missing", digest)
	}
	r, err := open()
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(raw)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", digest, limit)
	}
	return raw, errors.Join(err, r.Close())
}

func (b parts) image(digest v1.Hash) (v1.Image, error) {
	raw, err := b.read(digest, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) { // the end may have been cut off
		if b[d.Digest.String()] == nil {
			return nil, fmt.Errorf("%s is missing", d.Digest)
		}
	}
	return partial.CompressedToImage(partImage{b, raw, m})
}

type partIndex struct {
	parts parts
	raw   []byte
}

func (b partIndex) RawManifest() ([]byte, error)           { return b.raw, nil }
func (b partIndex) Image(digest v1.Hash) (v1.Image, error) { return b.parts.image(digest) }

type partImage struct {
	parts    parts
	raw      []byte
	manifest *v1.Manifest
}

func (b partImage) RawManifest() ([]byte, error)        { return b.raw, nil }
func (b partImage) MediaType() (types.MediaType, error) { return b.manifest.MediaType, nil }
func (b partImage) RawConfigFile() ([]byte, error) {
	return b.parts.read(b.manifest.Config.Digest, maxConfig)
}

func (b partImage) LayerByDigest(d v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range b.manifest.Layers {
		if open := b.parts[d.String()]; l.Digest == d && open != nil {
			return partLayer{l, open}, nil
		}
	}
	return nil, fmt.Errorf("layer %s is missing", d)
}

type partLayer struct {
	descriptor v1.Descriptor
	open       func() (io.ReadCloser, error)
}

func (l partLayer) Digest() (v1.Hash, error)            { return l.descriptor.Digest, nil }
func (l partLayer) Compressed() (io.ReadCloser, error)  { return l.open() }
func (l partLayer) Size() (int64, error)                { return l.descriptor.Size, nil }
func (l partLayer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }
