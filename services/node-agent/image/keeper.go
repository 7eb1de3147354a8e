package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Keeper keeps the files of images, such as a container runtime does. A library without one unpacks them into its
// directory. Methods may be called concurrently.
type Keeper interface {
	// Keep gets an image from its source, and returns what the keeper calls it and its size in bytes. An image that the
	// keeper has is not an error. The source is not used after Keep has returned.
	Keep(ctx context.Context, img *Source) (id string, bytes int64, err error)
	// Has reports whether the keeper still has an image.
	Has(ctx context.Context, id string) (bool, error)
	// Remove removes an image. It is no error if the keeper does not have it.
	Remove(ctx context.Context, id string) error
}

// Source is an image in the layout or the registry where it was found. Its manifest and its configuration are verified,
// its layers are verified while they are read. Its methods may be called concurrently.
type Source struct {
	Digest string // of its manifest, such as sha256:0123
	Name   string // a reference that led to it
	Config string // digest of its configuration
	Bytes  int64  // of its layers and its configuration, as they are sent

	// Manifest is what Digest is the digest of, and MediaType is that of an image's manifest.
	Manifest  []byte
	MediaType string

	image    v1.Image
	blobs    map[string]v1.Descriptor
	layers   map[string]int // how often the image has a layer
	progress *progress

	mu      sync.Mutex
	weighed map[string]weight // layers that were read to their ends
	total   weight            // of those
}

// NewSource returns an image that is in no place of a library. The error is ErrBroken, or that of img.
func NewSource(img v1.Image, name string) (*Source, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	i, err := read(img, digest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return newSource(i, name, &progress{})
}

// newSource returns an image as a keeper gets it. The error is ErrBroken if it is beyond the bounds, or if a part of it
// is elsewhere: a runtime would ask for that without the rules of the settings.
func newSource(img *Image, name string, p *progress) (*Source, error) {
	manifest, err := img.image.Manifest()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	raw, err := img.image.RawManifest()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	s := &Source{
		Digest: img.Digest, Name: name, Config: manifest.Config.Digest.String(), Manifest: raw,
		MediaType: string(types.OCIManifestSchema1), image: img.image, blobs: map[string]v1.Descriptor{},
		layers: map[string]int{}, weighed: map[string]weight{}, progress: p,
	}
	kind := manifest.MediaType
	if kind == "" { // which the OCI specification allows
		if kind, err = img.image.MediaType(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBroken, err)
		}
	}
	if kind == types.DockerManifestSchema2 {
		s.MediaType = string(kind)
	}
	for _, d := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
		if len(d.URLs) > 0 {
			return nil, fmt.Errorf("%w: %s is to be fetched from %.200q", ErrBroken, d.Digest, d.URLs[0])
		}
		if s.Bytes += d.Size; d.Size < 0 || s.Bytes > maxBytes {
			return nil, fmt.Errorf("%w: its layers have more than %d bytes", ErrBroken, int64(maxBytes))
		}
		s.blobs[d.Digest.String()] = d
	}
	for _, l := range manifest.Layers {
		s.layers[l.Digest.String()]++
	}
	return s, nil
}

// Size returns the size of a layer or of the configuration in bytes; false if the image has none with that digest.
func (s *Source) Size(digest string) (bytes int64, found bool) {
	d, found := s.blobs[digest]
	return d.Size, found
}

// Open returns a layer, as it is sent, or the configuration. Reading it fails before its last byte if it does not have
// its digest and size, and if the image unpacks to more than the bounds: the error is ErrBroken. A source that does not
// deliver is an error as well.
func (s *Source) Open(digest string) (io.ReadCloser, error) {
	d, found := s.blobs[digest]
	if !found {
		return nil, fmt.Errorf("%w: blob %s", ErrNotFound, digest)
	}
	b := &blob{of: s, digest: digest, left: d.Size, sum: sha256.New()}
	if digest == s.Config {
		raw, err := s.image.RawConfigFile()
		if err != nil {
			return nil, b.failed(err)
		}
		b.content = io.NopCloser(bytes.NewReader(raw))
		return b, nil
	}
	l, err := s.image.LayerByDigest(d.Digest)
	if err != nil {
		return nil, b.failed(err)
	}
	if b.content, err = l.Compressed(); err != nil {
		return nil, b.failed(err)
	}
	if !s.isWeighed(digest) {
		b.scale = s.weigh(l)
	}
	return b, nil
}

// blob is a layer or a configuration that is read. Its last bytes are returned when it is verified.
type blob struct {
	of      *Source
	digest  string
	content io.ReadCloser
	left    int64
	sum     hash.Hash
	scale   *scale // nil: need not be weighed
	ended   bool
}

// Read implements io.Reader.
func (b *blob) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.content.Read(p[:min(int64(len(p)), b.left)])
	b.sum.Write(p[:n])
	if b.scale != nil {
		if _, err := b.scale.in.Write(p[:n]); err != nil {
			return 0, b.failed(err)
		}
	}
	b.left -= int64(n)
	switch {
	case b.left == 0:
		if err := b.verify(); err != nil {
			return 0, b.failed(err)
		}
		b.ended = true
	case errors.Is(err, io.EOF):
		return 0, b.failed(fmt.Errorf("has %d bytes less than its manifest says", b.left))
	case err != nil:
		return n, b.failed(err)
	}
	b.of.progress.received.Add(int64(n))
	return n, nil
}

// verify checks what was read, all of which the blob has.
func (b *blob) verify() error {
	n, err := io.ReadFull(b.content, make([]byte, 1))
	switch {
	case n > 0:
		return errors.New("has more bytes than its manifest says")
	case !errors.Is(err, io.EOF):
		return err
	}
	if is := fmt.Sprintf("sha256:%x", b.sum.Sum(nil)); is != b.digest {
		return fmt.Errorf("has digest %s", is)
	}
	if b.scale == nil {
		return nil
	}
	w, err := b.scale.end(nil)
	if err != nil {
		return err
	}
	return b.of.add(b.digest, w)
}

func (b *blob) failed(err error) error {
	return fmt.Errorf("%w: blob %s: %w", kindOf(err), b.digest, err)
}

// Close implements io.Closer.
func (b *blob) Close() error {
	if b.scale != nil {
		_, _ = b.scale.end(errors.New("is not read any more"))
	}
	return b.content.Close()
}

// weight is what layers unpack to.
type weight struct {
	archive int64 // bytes
	files   int64 // bytes; holes count
	entries int64
}

var errTooLarge = fmt.Errorf("unpacks to more than %d bytes", int64(maxBytes))

func (w weight) check() error {
	if w.archive > maxBytes+maxBytes/8 || w.files > maxBytes {
		return errTooLarge
	}
	if w.entries > maxEntries {
		return fmt.Errorf("unpacks to more than %d files", maxEntries)
	}
	return nil
}

// isWeighed reports whether it is known what a layer unpacks to.
func (s *Source) isWeighed(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.weighed[digest]
	return known
}

// add notes what a layer unpacks to.
func (s *Source) add(digest string, w weight) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.weighed[digest]; !known {
		s.weighed[digest] = w
		times := int64(s.layers[digest])
		s.total.archive += w.archive * times
		s.total.files += w.files * times
		s.total.entries += w.entries * times
	}
	return s.total.check()
}

// scale finds out what a layer unpacks to while it is read.
type scale struct {
	in   *io.PipeWriter
	done chan struct{} // closed when the fields below are set
	of   weight
	err  error
}

// packed is a layer whose content comes from elsewhere.
type packed struct {
	v1.Layer
	content io.ReadCloser
}

// Compressed implements partial.CompressedLayer.
func (p packed) Compressed() (io.ReadCloser, error) { return p.content, nil }

// weigh begins to weigh a layer. End must be called.
func (s *Source) weigh(l v1.Layer) *scale {
	r, w := io.Pipe()
	c := &scale{in: w, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.of, c.err = weigh(l, io.NopCloser(r))
		_ = r.CloseWithError(c.err) // the writer gets the reason
	}()
	return c
}

// end waits for the weight of all that was written; why is not nil if that is not all of the layer.
func (s *scale) end(why error) (weight, error) {
	_ = s.in.CloseWithError(why)
	<-s.done
	return s.of, s.err
}

func weigh(l v1.Layer, content io.ReadCloser) (w weight, err error) {
	layer, err := partial.CompressedToLayer(packed{l, content})
	if err != nil {
		return w, err
	}
	r, err := layer.Uncompressed()
	if err != nil {
		return w, err
	}
	defer r.Close()
	all := weighing{r, &w}
	for t := tar.NewReader(all); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return w, err
		}
		if _, err := local(h.Name); err != nil {
			return w, fmt.Errorf("%.200q: %w", h.Name, err)
		}
		w.entries++
		if h.Size > maxBytes { // the sum could overflow
			return w, errTooLarge
		}
		if w.files += h.Size; w.check() != nil {
			return w, w.check()
		}
	}
	_, err = io.Copy(io.Discard, all)
	return w, err
}

// weighing counts the bytes of an archive.
type weighing struct {
	r io.Reader
	w *weight
}

// Read implements io.Reader.
func (w weighing) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if w.w.archive += int64(n); w.w.check() != nil {
		return n, w.w.check()
	}
	return n, err
}
