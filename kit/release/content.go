package release

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ErrTooLarge means that an image has more bytes than were allowed.
var ErrTooLarge = errors.New("the image is too large")

// Content returns the whole image as bytes, from which OpenContent opens it again: a tar archive of its index, if it
// was found by one, its manifest, its configuration and its layers, each named by its digest. Equal images give equal
// bytes. With more than limit bytes it is ErrTooLarge.
func (i *Image) Content(limit int64) ([]byte, error) {
	content, err := contentOf(i, limit)
	if err == nil || i.elsewhere == nil || errors.Is(err, ErrTooLarge) {
		return content, err
	}
	other, why := i.elsewhere()
	if why != nil {
		return nil, errors.Join(err, why)
	}
	return other.Content(limit)
}

func contentOf(i *Image, limit int64) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(raw []byte, digest v1.Hash, part string) error {
		if err := sameDigest(part, raw, digest); err != nil {
			return err
		}
		if int64(out.Len()+len(raw)) > limit {
			return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
		}
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: digest.String(), Size: int64(len(raw)), Mode: 0o444})
		if err == nil {
			_, err = w.Write(raw)
		}
		return err
	}
	if i.index != nil {
		digest, err := v1.NewHash(i.Digest)
		if err == nil {
			err = add(i.index, digest, "index")
		}
		if err != nil {
			return nil, err
		}
	}
	digest, err := i.image.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := i.image.Manifest()
	if err != nil {
		return nil, err
	}
	raw, err := i.image.RawManifest()
	if err == nil {
		err = add(raw, digest, "manifest")
	}
	if err != nil {
		return nil, err
	}
	if raw, err = i.image.RawConfigFile(); err == nil {
		err = add(raw, manifest.Config.Digest, "configuration")
	}
	if err != nil {
		return nil, err
	}
	seen := map[v1.Hash]bool{}
	for _, d := range manifest.Layers {
		if seen[d.Digest] {
			continue
		}
		seen[d.Digest] = true
		layer, err := i.image.LayerByDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		raw, err := readLayer(layer, limit)
		if err == nil {
			err = add(raw, d.Digest, "layer")
		}
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", d.Digest, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// readLayer reads one byte more than the limit at most.
func readLayer(layer v1.Layer, limit int64) ([]byte, error) {
	r, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(raw)) > limit {
		err = fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
		_ = r.Close() // the rest was not read, which is the error that it would return
		return nil, err
	}
	return raw, errors.Join(err, r.Close())
}

// OpenContent opens the image that a reference names by its digest from what Content returned. All of it is compared
// with its digests, now or when it is read.
func OpenContent(ref string, content []byte) (*Image, error) {
	image, err := ofContent(ref, content)
	if err != nil {
		return nil, fmt.Errorf("release image %s: %w", ref, err)
	}
	image.Reference = ref
	return image, nil
}

func ofContent(ref string, content []byte) (*Image, error) {
	_, named, _ := strings.Cut(ref, "@")
	digest, err := v1.NewHash(named)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDigest, err)
	}
	b := parts{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if b[h.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
	raw, ok := b[digest.String()]
	if !ok {
		return nil, errNotFound
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

// parts are the parts of an image by their digests.
type parts map[string][]byte

func (b parts) image(digest v1.Hash) (v1.Image, error) {
	raw, ok := b[digest.String()]
	if !ok {
		return nil, errors.New("its manifest is missing")
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
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
func (b partImage) RawConfigFile() ([]byte, error)      { return b.get(b.manifest.Config.Digest) }

func (b partImage) LayerByDigest(d v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range b.manifest.Layers {
		if l.Digest == d {
			raw, err := b.get(d)
			return partLayer{l, raw}, err
		}
	}
	return nil, fmt.Errorf("there is no layer %s", d)
}

func (b partImage) get(digest v1.Hash) ([]byte, error) {
	raw, ok := b.parts[digest.String()]
	if !ok {
		return nil, fmt.Errorf("%s is missing", digest)
	}
	return raw, nil
}

type partLayer struct {
	descriptor v1.Descriptor
	raw        []byte
}

func (l partLayer) Digest() (v1.Hash, error) { return l.descriptor.Digest, nil }
func (l partLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.raw)), nil
}
func (l partLayer) Size() (int64, error)                { return l.descriptor.Size, nil }
func (l partLayer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }
