// Package image gets container images, from OCI layouts on the disk and from registries, and unpacks each once. It
// promises that nothing of an image is taken whose digest is not the one that its index or its registry names, that
// nothing is written outside the directory it is unpacked into, and that an image that is there is complete, whenever
// an agent was killed.
package image

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

var (
	// ErrNotFound means that no directory of images holds the image.
	ErrNotFound = errors.New("no such image on this machine")
	// ErrBroken means that an image is not what its digests say, or nothing that can be unpacked.
	ErrBroken = errors.New("image is broken")
)

// refName is the annotation by which a layout names its images.
const refName = "org.opencontainers.image.ref.name"

// Store looks for images below some directories, the first one first: the image docker.io/a/b:c is the one tagged c, or
// the only one, of the layout docker.io/a/b.
type Store struct{ dirs []string }

// NewStore returns a store of directories, which need not be there.
func NewStore(dirs ...string) *Store { return &Store{dirs: dirs} }

// Config is what a container of an image runs if the pod does not say otherwise.
type Config struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	User       string   `json:"user,omitempty"`
}

// Image is an image that is not unpacked, on the disk or in a registry.
type Image struct {
	// Digest of its manifest, such as sha256:0123.
	Digest string
	Config

	index    string // digest of the index that led to it; empty without one
	image    v1.Image
	diffIDs  []v1.Hash
	bytes    int64       // of its layers and its configuration, as its manifest says
	received *progress   // nil on the disk
	close    func(error) // ends what a registry sends of it; nil on the disk
}

const (
	// maxConfig bounds an image's configuration, in bytes, which is held in memory.
	maxConfig = 8 << 20
)

// Find returns an image, or an error that is ErrNotFound or ErrBroken.
func (s *Store) Find(ref string) (*Image, error) {
	name, tag, digest := split(ref)
	if name == "" || !filepath.IsLocal(filepath.FromSlash(name)) {
		return nil, fmt.Errorf("%w: %q is no name of an image", ErrNotFound, ref)
	}
	for _, dir := range s.dirs {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if _, err := os.Stat(filepath.Join(path, "index.json")); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		i, err := open(path, ref, tag, digest)
		if err != nil && !errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("%w: %s: %w", ErrBroken, path, err)
		}
		return i, err
	}
	return nil, fmt.Errorf("%w: %s is in none of %s", ErrNotFound, ref, strings.Join(s.dirs, ", "))
}

// split takes a reference apart: name[:tag][@digest].
func split(ref string) (name, tag, digest string) {
	name, digest, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	return name, tag, digest
}

// Name returns the name of a reference without tag and digest.
func Name(ref string) string {
	name, _, _ := split(ref)
	return name
}

func open(path, ref, tag, digest string) (*Image, error) {
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	d, err := pick(manifest.Manifests, ref, tag, digest)
	if err != nil {
		return nil, err
	}
	above := ""
	if d.MediaType.IsIndex() {
		above = d.Digest.String()
		if index, err = index.ImageIndex(d.Digest); err != nil {
			return nil, err
		}
		if err := sameDigest(index, d.Digest); err != nil {
			return nil, err
		}
		if manifest, err = index.IndexManifest(); err != nil {
			return nil, err
		}
		if d, err = forThisMachine(manifest.Manifests); err != nil {
			return nil, err
		}
	}
	image, err := index.Image(d.Digest)
	if err != nil {
		return nil, err
	}
	i, err := read(image, d.Digest)
	if err == nil {
		i.index = above
	}
	return i, err
}

// pick returns the manifest that a reference means: by its digest, by its tag, or the only one if that one has no other
// tag.
func pick(list []v1.Descriptor, ref, tag, digest string) (v1.Descriptor, error) {
	var tags []string
	for _, d := range list {
		name := d.Annotations[refName]
		switch {
		case digest != "" && d.Digest.String() == digest:
			return d, nil
		case digest == "" && name != "" && (name == ref || name == tag || tag == "" && name == "latest"):
			return d, nil
		case name != "":
			tags = append(tags, name)
		}
	}
	if digest == "" && len(list) == 1 && (tag == "" || len(tags) == 0) {
		return list[0], nil
	}
	return v1.Descriptor{}, fmt.Errorf("%w: the layout of %s has %d images, tagged %q", ErrNotFound, ref, len(list), tags)
}

func forThisMachine(list []v1.Descriptor) (v1.Descriptor, error) {
	for _, d := range list {
		if p := d.Platform; p == nil || p.OS == runtime.GOOS && p.Architecture == runtime.GOARCH {
			return d, nil
		}
	}
	return v1.Descriptor{}, fmt.Errorf("nothing in it is for %s/%s", runtime.GOOS, runtime.GOARCH)
}

func sameDigest(m interface{ RawManifest() ([]byte, error) }, want v1.Hash) error {
	raw, err := m.RawManifest()
	if err != nil {
		return err
	}
	return checkDigest("manifest", raw, want)
}

func checkDigest(what string, raw []byte, want v1.Hash) error {
	is, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	if is != want {
		return fmt.Errorf("%s has digest %s, not %s", what, is, want)
	}
	return nil
}

func read(image v1.Image, digest v1.Hash) (*Image, error) {
	if err := sameDigest(image, digest); err != nil {
		return nil, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("it has %d layers, more than %d", len(manifest.Layers), maxLayers)
	}
	if manifest.Config.Size > maxConfig {
		return nil, fmt.Errorf("its configuration has %d bytes, more than %d", manifest.Config.Size, maxConfig)
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return nil, err
	}
	if err := checkDigest("config", raw, manifest.Config.Digest); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("%d layers, but digests of %d", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	bytes := manifest.Config.Size
	for _, l := range manifest.Layers {
		bytes += l.Size
	}
	c := config.Config
	return &Image{
		Digest: digest.String(), image: image, diffIDs: config.RootFS.DiffIDs, bytes: bytes,
		Config: Config{
			Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User,
		},
	}, nil
}
