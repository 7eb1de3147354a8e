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
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Errors of Open.
var (
	errNotFound = errors.New("no such image")
	errNoDigest = errors.New("the image must be named by its digest, as in name@sha256:…")
)

// Image is a release image that was found; its manifest and configuration match their digests. Its
// layers are checked when they are read.
type Image struct {
	Reference string    // as it was asked for
	Digest    string    // sha256:<hex>
	Created   time.Time // UTC; zero if the image does not say
	image     v1.Image
}

// Open finds an image. ref is one of
//
//	oci:<directory>                an OCI layout with one image
//	oci:<directory>@sha256:<hex>   one image of an OCI layout
//	<name>@sha256:<hex>            looked up by its digest in the OCI layouts at stores in order, then in the registry if
//	                               the name begins with the host of one
//	<host>/<name>:<tag>            at the registry
//
// ctx bounds what is read from a registry, also in Load. An image that is nowhere is ErrNotFound.
func Open(ctx context.Context, ref string, stores []string) (*Image, error) {
	image, digest, err := find(ctx, ref, stores)
	if err != nil {
		return nil, fmt.Errorf("release image %s: %w", ref, err)
	}
	created, err := compareDigests(image, digest)
	if err != nil {
		return nil, fmt.Errorf("release image %s: %w", ref, err)
	}
	return &Image{Reference: ref, Digest: digest.String(), Created: created, image: image}, nil
}

func find(ctx context.Context, ref string, stores []string) (v1.Image, v1.Hash, error) {
	if dir, ok := strings.CutPrefix(ref, "oci:"); ok {
		return ofLayout(dir)
	}
	repository, hex, byDigest := strings.Cut(ref, "@")
	if byDigest {
		digest, err := v1.NewHash(hex)
		if err != nil {
			return nil, digest, fmt.Errorf("%w: %w", errNoDigest, err)
		}
		for _, dir := range stores {
			image, err := inLayout(dir, digest)
			if !errors.Is(err, errNotFound) {
				return image, digest, err
			}
		}
	}
	switch {
	case hasHost(repository):
		return pull(ctx, ref)
	case byDigest:
		return nil, v1.Hash{}, fmt.Errorf("%w in %s", errNotFound, orNone(stores))
	}
	return nil, v1.Hash{}, errNoDigest
}

func orNone(stores []string) string {
	if len(stores) == 0 {
		return "any layout, since none is configured"
	}
	return strings.Join(stores, ", ")
}

// ofLayout reads what follows "oci:".
func ofLayout(ref string) (v1.Image, v1.Hash, error) {
	if i := strings.LastIndex(ref, "@sha256:"); i >= 0 {
		digest, err := v1.NewHash(ref[i+1:])
		if err != nil {
			return nil, digest, err
		}
		image, err := inLayout(ref[:i], digest)
		return image, digest, err
	}
	descriptors, err := descriptorsOf(ref)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	if len(descriptors) != 1 {
		return nil, v1.Hash{}, fmt.Errorf("%s holds %d images: name one by its digest, as in oci:%s@sha256:…", ref,
			len(descriptors), ref)
	}
	image, err := inLayout(ref, descriptors[0].Digest)
	return image, descriptors[0].Digest, err
}

// descriptorsOf returns what the index of an OCI layout lists. A directory that is none is ErrNotFound.
func descriptorsOf(dir string) ([]v1.Descriptor, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is no OCI layout", errNotFound, dir)
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

func inLayout(dir string, digest v1.Hash) (v1.Image, error) {
	descriptors, err := descriptorsOf(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range descriptors {
		if d.Digest != digest {
			continue
		}
		if d.MediaType != types.OCIManifestSchema1 && d.MediaType != types.DockerManifestSchema2 {
			return nil, fmt.Errorf("%s in %s is of type %s, not an image", digest, dir, d.MediaType)
		}
		image, err := layout.Path(dir).Image(digest)
		if err != nil {
			return nil, fmt.Errorf("OCI layout %s: %w", dir, err)
		}
		return image, nil
	}
	return nil, fmt.Errorf("%w in %s", errNotFound, filepath.Clean(dir))
}

// hasHost reports whether the name of an image begins with a registry, as in localhost/x, example.com/x or host:5000/x.
func hasHost(repository string) bool {
	host, _, ok := strings.Cut(repository, "/")
	return ok && (host == "localhost" || strings.ContainsAny(host, ".:"))
}

// silence is how long a registry may take to begin an answer.
const silence = 30 * time.Second

func pull(ctx context.Context, ref string) (v1.Image, v1.Hash, error) {
	parsed, err := name.ParseReference(ref, name.StrictValidation)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	client := http.DefaultTransport.(*http.Transport).Clone()
	client.ResponseHeaderTimeout = silence
	image, err := remote.Image(parsed, remote.WithContext(ctx), remote.WithTransport(client))
	var refused *transport.Error
	if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
		return nil, v1.Hash{}, fmt.Errorf("%w: %w", errNotFound, err)
	}
	if err != nil {
		return nil, v1.Hash{}, err
	}
	digest, err := image.Digest()
	return image, digest, err
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
