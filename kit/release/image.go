// Package release reads and makes release images, and signs them and checks their signatures. A release image is an OCI
// image whose layers hold the folders manifests/ and release-manifests/: what a version of a cluster consists of.
// Reading an image writes nothing anywhere.
package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/windlass-dev/windlass/kit/registry"
)

// Errors of Open.
var (
	ErrNotFound = errors.New("no such image") // it is in none of the places, all of which answered
	errNoDigest = errors.New("the image must be named by its digest, as in name@sha256:…")
)

// Image is a release image that was found; its manifest and configuration match their digests, as does the index that
// led to it. Its layers are checked when they are read.
type Image struct {
	Reference string    // as it was asked for
	Digest    string    // sha256:<hex> of what the reference names: the image, or an index of images
	Created   time.Time // UTC; zero if the image does not say
	image     v1.Image
	index     []byte                 // that has led to the image; nil without one
	elsewhere func() (*Image, error) // the same image from the next place that may have it; nil without one
}

// Places are where release images are looked for.
type Places struct {
	Layouts []string // OCI layouts, for images that are named by their digest; the first one first
	// Elsewhere returns the processes of other hosts, which are asked for images that are named by their digest and are in
	// none of the layouts; the first one first. nil means none.
	Elsewhere  func() []Peer
	Spool      string // directory for the images of other hosts while they are used; empty means that of temporary files
	Registries registry.Access
}

// WithDefaults returns the places with registries.yaml of each layout as the settings of registries, if there are none.
func (p Places) WithDefaults() Places {
	if len(p.Registries.Settings) == 0 {
		for _, dir := range p.Layouts {
			p.Registries.Settings = append(p.Registries.Settings, filepath.Join(dir, "registries.yaml"))
		}
	}
	return p
}

// Open finds an image. ref is one of
//
//	oci:<directory>                an OCI layout with one image
//	oci:<directory>@sha256:<hex>   one image of an OCI layout
//	<name>@sha256:<hex>            looked up by its digest in the layouts in order, then on other hosts, then
//	                               in the registry if the name begins with the host of one
//	<host>/<name>:<tag>            at the registry
//
// A registry is asked after its mirrors.
//
// Where the reference leads to an index, the image is the one for linux and this machine's architecture. ctx bounds
// what is read from a registry, also in Load; from another host all is read now. An image that is nowhere is
// ErrNotFound.
func Open(ctx context.Context, ref string, in Places) (*Image, error) {
	image, err := find(ctx, ref, in)
	if err != nil {
		return nil, fmt.Errorf("release image %s: %w", ref, err)
	}
	image.Reference = ref
	return image, nil
}

// newImage returns an image when its digests were compared with what they are. named is that of the image or of an
// index.
func newImage(named, manifest v1.Hash, image v1.Image) (*Image, error) {
	created, err := compareDigests(image, manifest)
	if err != nil {
		return nil, err
	}
	return &Image{Digest: named.String(), Created: created, image: image}, nil
}

func find(ctx context.Context, ref string, in Places) (*Image, error) {
	if dir, ok := strings.CutPrefix(ref, "oci:"); ok {
		return ofLayout(dir)
	}
	repository, hex, byDigest := strings.Cut(ref, "@")
	var nowhere error
	if byDigest {
		digest, err := v1.NewHash(hex)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoDigest, err)
		}
		image, final, err := in.onHosts(ctx, digest)
		if final || !hasHost(repository) {
			return image, err
		}
		nowhere = err
	}
	if !hasHost(repository) {
		return nil, errNoDigest
	}
	image, err := pull(ctx, ref, in.Registries)
	if err != nil && in.Elsewhere != nil && nowhere != nil && ctx.Err() == nil {
		err = both(nowhere, err)
	}
	return image, err
}

// Find finds an image by its digest in the layouts in order, then on other hosts. One that none of them has is
// ErrNotFound.
func (in Places) Find(ctx context.Context, digest string) (*Image, error) {
	hash, err := v1.NewHash(digest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDigest, err)
	}
	image, _, err := in.onHosts(ctx, hash)
	return image, err
}

// onHosts is Find. final means that no other place is asked, whatever the error.
func (in Places) onHosts(ctx context.Context, digest v1.Hash) (image *Image, final bool, err error) {
	image, err = in.inLayouts(digest)
	if !errors.Is(err, ErrNotFound) {
		return image, true, err
	}
	if in.Elsewhere == nil {
		return nil, false, err
	}
	image, err = in.onOtherHosts(ctx, digest)
	return image, err == nil || ctx.Err() != nil, err
}

// both returns two errors of places, one after the other. It is ErrNotFound only if both are.
func both(a, b error) error {
	switch {
	case errors.Is(a, ErrNotFound) && !errors.Is(b, ErrNotFound):
		return fmt.Errorf("%v; %w", a, b)
	case errors.Is(b, ErrNotFound) && !errors.Is(a, ErrNotFound):
		return fmt.Errorf("%w; %v", a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// inLayouts returns the image of the first layout that has it.
func (in Places) inLayouts(digest v1.Hash) (*Image, error) {
	for _, dir := range in.Layouts {
		image, err := inLayout(dir, digest)
		if !errors.Is(err, ErrNotFound) {
			return image, err
		}
	}
	return nil, fmt.Errorf("%w in %s", ErrNotFound, orNone(in.Layouts))
}

func orNone(stores []string) string {
	if len(stores) == 0 {
		return "any layout, since none is configured"
	}
	return strings.Join(stores, ", ")
}

// ofLayout reads what follows "oci:".
func ofLayout(ref string) (*Image, error) {
	if i := strings.LastIndex(ref, "@sha256:"); i >= 0 {
		digest, err := v1.NewHash(ref[i+1:])
		if err != nil {
			return nil, err
		}
		return inLayout(ref[:i], digest)
	}
	descriptors, err := descriptorsOf(ref)
	if err != nil {
		return nil, err
	}
	if len(descriptors) != 1 {
		return nil, fmt.Errorf("%s holds %d images: name one by its digest, as in oci:%s@sha256:…", ref,
			len(descriptors), ref)
	}
	return inLayout(ref, descriptors[0].Digest)
}

// descriptorsOf returns what the index of an OCI layout lists. A directory that is none is ErrNotFound.
func descriptorsOf(dir string) ([]v1.Descriptor, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is no OCI layout", ErrNotFound, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("OCI layout %s: %w", dir, err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("OCI layout %s: index.json: %w", dir, err)
	}
	return list.Manifests, nil
}

func inLayout(dir string, digest v1.Hash) (*Image, error) {
	descriptors, err := descriptorsOf(dir)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(descriptors, func(d v1.Descriptor) bool { return d.Digest == digest })
	if i < 0 {
		return nil, fmt.Errorf("%w in %s", ErrNotFound, filepath.Clean(dir))
	}
	image, err := listed(dir, descriptors[i])
	if err != nil {
		return nil, fmt.Errorf("OCI layout %s: %w", dir, err)
	}
	return image, nil
}

// listed reads what the index of an OCI layout lists.
func listed(dir string, d v1.Descriptor) (*Image, error) {
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	switch {
	case d.MediaType.IsImage():
		image, err := top.Image(d.Digest)
		if err != nil {
			return nil, err
		}
		return newImage(d.Digest, d.Digest, image)
	case d.MediaType.IsIndex():
		index, err := top.ImageIndex(d.Digest)
		if err != nil {
			return nil, err
		}
		return ofIndex(index, d.Digest)
	}
	return nil, fmt.Errorf("%s is of type %s, neither an image nor an index", d.Digest, d.MediaType)
}

// ofIndex returns the image of an index that is for this machine. It compares the index with its digest: what is signed
// is the index, so that each of its images is good by that signature.
func ofIndex(index index, digest v1.Hash) (*Image, error) {
	raw, err := index.RawManifest()
	if err != nil {
		return nil, absent(err, "index")
	}
	if err := sameDigest("index", raw, digest); err != nil {
		return nil, err
	}
	list, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	d, err := pick(list.Manifests, runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", digest, err)
	}
	image, err := index.Image(d.Digest)
	if err != nil {
		return nil, absent(err, "manifest")
	}
	found, err := newImage(digest, d.Digest, image)
	if err != nil {
		return nil, err
	}
	found.index = raw
	return found, nil
}

// index is an index of images.
type index interface {
	RawManifest() ([]byte, error)
	Image(digest v1.Hash) (v1.Image, error)
}

// pick returns the image for linux, which releases are made for wherever they are read, and an architecture.
func pick(list []v1.Descriptor, arch string) (v1.Descriptor, error) {
	const system = "linux"
	var there []string
	for _, d := range list {
		switch p := d.Platform; {
		case !d.MediaType.IsImage():
		case p == nil:
			there = append(there, "one for an unnamed platform")
		case p.OS == system && p.Architecture == arch:
			return d, nil
		default:
			there = append(there, p.String())
		}
	}
	if len(there) == 0 {
		there = []string{"none"}
	}
	return v1.Descriptor{},
		noPlatform{fmt.Errorf("no image for %s/%s: it has %s", system, arch, strings.Join(there, ", "))}
}

// noPlatform is an error of an index without an image for a machine.
type noPlatform struct{ error }

// Is reports that an executable is unfit that is not there for this machine.
func (noPlatform) Is(target error) bool { return target == ErrUnfit }

// hasHost reports whether the name of an image begins with a registry, as in localhost/x, example.com/x or host:5000/x.
func hasHost(repository string) bool {
	host, _, ok := strings.Cut(repository, "/")
	return ok && (host == "localhost" || strings.ContainsAny(host, ".:"))
}

// pull asks one place after the other for an image.
func pull(ctx context.Context, ref string, access registry.Access) (*Image, error) {
	parsed, err := name.ParseReference(ref, name.StrictValidation)
	if err != nil {
		return nil, err
	}
	sources, err := access.Sources(parsed)
	if err != nil {
		return nil, err
	}
	return first(ctx, sources, "")
}

// first returns the image of the first of the sources that has it; want is its digest, empty if that is not known. It
// is not found only if all say so.
func first(ctx context.Context, sources []registry.Source, want string) (*Image, error) {
	var failed []error
	missing := 0
	for i, s := range sources {
		image, err := fetch(ctx, s)
		if err == nil && want != "" && image.Digest != want {
			err = fmt.Errorf("it has digest %s, not %s", image.Digest, want)
		}
		switch {
		case err == nil:
			if rest := sources[i+1:]; len(rest) > 0 {
				image.elsewhere = func() (*Image, error) { return first(ctx, rest, image.Digest) }
			}
			return image, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case registry.IsNotFound(err):
			missing++
		}
		failed = append(failed, fmt.Errorf("%s: %w", s.Host, err))
	}
	if missing == len(sources) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, errors.Join(failed...))
	}
	return nil, errors.Join(failed...)
}

func fetch(ctx context.Context, s registry.Source) (*Image, error) {
	named, end, err := s.Get(ctx, nil)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, end)
	if named.MediaType.IsIndex() {
		index, err := named.ImageIndex()
		if err != nil {
			return nil, err
		}
		return ofIndex(index, named.Digest)
	}
	image, err := named.Image()
	if err != nil {
		return nil, err
	}
	return newImage(named.Digest, named.Digest, image)
}

// compareDigests compares the digests of an image's manifest and configuration with what they are, and returns when the
// image was made.
func compareDigests(image v1.Image, digest v1.Hash) (time.Time, error) {
	raw, err := image.RawManifest()
	if err != nil {
		return time.Time{}, absent(err, "manifest")
	}
	if err := sameDigest("manifest", raw, digest); err != nil {
		return time.Time{}, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return time.Time{}, fmt.Errorf("manifest: %w", err)
	}
	if size := manifest.Config.Size; size < 0 || size > maxConfig {
		return time.Time{}, fmt.Errorf("its configuration has %d bytes: it must have between 0 and %d", size, maxConfig)
	}
	raw, err = image.RawConfigFile()
	if err != nil {
		return time.Time{}, absent(err, "configuration")
	}
	if err := sameDigest("configuration", raw, manifest.Config.Digest); err != nil {
		return time.Time{}, err
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return time.Time{}, fmt.Errorf("configuration: %w", err)
	}
	return config.Created.UTC(), nil
}

// absent names a part of an image that cannot be read.
func absent(err error, part string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("its %s is missing", part)
	}
	return fmt.Errorf("%s: %w", part, err)
}

func sameDigest(part string, raw []byte, want v1.Hash) error {
	got, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("its %s has digest %s, not %s: it was changed or is broken", part, got, want)
	}
	return nil
}
