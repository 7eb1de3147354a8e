package release

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Build is what a release image is made of.
type Build struct {
	From     string   // directory of manifests; those of a component may be in a folder with its name
	Version  string   // SemVer
	Previous []string // versions that it is an update for
	// images by name, each by digest; empty means those of the file image-references in From, if it is there
	Images map[string]string
	// Further are manifests by the names of their files, besides those of From, whose files must not have these names.
	Further map[string][]byte
	URL     string    // page about it
	Created time.Time // zero means 1970
}

const (
	metadataURL  = "url"                               // key of a release's metadata
	labelVersion = "io.openshift.release"              // label of the image
	annotationID = "org.opencontainers.image.ref.name" // of the image in its layout
	defaultName  = "0000_50_%s_%s"                     // of a file that does not say its run level: component, name
	noComponent  = "release"                           // component of a file outside a folder
	digestForm   = `^[^@\s]+@sha256:[0-9a-f]{64}$`     // of an image
	wordForm     = `^[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*$`  // of a component
)

// New makes a release image and adds it to the OCI layout at the directory to, which is made if it is not there. It
// returns the digest. The same input always gives the same digest.
func New(to string, b Build) (string, error) {
	files, err := b.files()
	if err != nil {
		return "", err
	}
	if _, err := read(files); err != nil {
		return "", err
	}
	image, err := b.image(files)
	if err != nil {
		return "", err
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	path, err := layout.FromPath(to)
	if errors.Is(err, fs.ErrNotExist) {
		path, err = layout.Write(to, empty.Index)
	}
	if err != nil {
		return "", fmt.Errorf("OCI layout %s: %w", to, err)
	}
	if err := path.ReplaceImage(image, match.Digests(digest),
		layout.WithAnnotations(map[string]string{annotationID: b.Version})); err != nil {
		return "", fmt.Errorf("OCI layout %s: %w", to, err)
	}
	return digest.String(), nil
}

// files returns the files of the release, in load order.
func (b Build) files() ([]File, error) {
	metadata := Metadata{Kind: metadataKind, Version: b.Version, Previous: slices.Clone(b.Previous)}
	slices.SortFunc(metadata.Previous, func(x, y string) int {
		v, errV := semver.StrictNewVersion(x)
		w, errW := semver.StrictNewVersion(y)
		if errV != nil || errW != nil {
			return strings.Compare(x, y)
		}
		return v.Compare(w)
	})
	metadata.Previous = slices.Compact(metadata.Previous)
	if b.URL != "" {
		metadata.Metadata = map[string]string{metadataURL: b.URL}
	}
	files, given, err := readFolder(b.From)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(b.Further)) {
		if slices.ContainsFunc(files, func(f File) bool { return f.Name == name }) {
			return nil, fmt.Errorf("%s: there are two files of that name", name)
		}
		files = append(files, File{Folder: folderReleases, Name: name, Content: b.Further[name]})
	}
	refs, err := b.references(given)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name  string
		value any
	}{{fileReferences, refs}, {fileMetadata, metadata}} {
		raw, err := json.MarshalIndent(f.value, "", "  ")
		if err != nil {
			return nil, err
		}
		files = append(files, File{Folder: folderReleases, Name: f.name, Content: append(raw, '\n')})
	}
	slices.SortFunc(files, func(x, y File) int { return strings.Compare(x.Name, y.Name) })
	return files, nil
}

// references makes the file image-references; given is that of the directory, or nil.
func (b Build) references(given []byte) (references, error) {
	var r references
	if len(b.Images) == 0 && given != nil {
		if err := json.Unmarshal(given, &r); err != nil {
			return r, fmt.Errorf("%s: %w", fileReferences, err)
		}
	}
	r.Kind, r.APIVersion, r.Metadata.Name = "ImageStream", "image.openshift.io/v1", b.Version
	if r.Spec.Tags == nil {
		r.Spec.Tags = []referenceTag{}
	}
	form := regexp.MustCompile(digestForm)
	for _, name := range slices.Sorted(maps.Keys(b.Images)) {
		if image := b.Images[name]; name == "" || !form.MatchString(image) {
			return r, fmt.Errorf("image %s=%s: it must be named by its digest, as in name@sha256:…", name, image)
		}
		r.Spec.Tags = append(r.Spec.Tags, referenceTag{Name: name, From: referenceFrom{"DockerImage", b.Images[name]}})
	}
	return r, nil
}

// readFolder returns the manifests of a directory and of its folders, under the names that they have in a release, and
// the file image-references.
func readFolder(dir string) (files []File, references []byte, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	taken := map[string]bool{}
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.Contains(p, "/"):
			return fs.SkipDir
		case d.IsDir() || p != fileReferences && !isManifest(p):
			return nil
		}
		content, err := readFile(root, p)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, p), err)
		}
		if p == fileReferences {
			references = content
			return nil
		}
		name := releaseName(p)
		for i := 2; taken[name]; i++ {
			ext := path.Ext(name)
			name = fmt.Sprintf("%s_%d%s", strings.TrimSuffix(releaseName(p), ext), i, ext)
		}
		taken[name] = true
		files = append(files, File{Folder: folderReleases, Name: name, Content: content})
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s holds no manifests", dir)
	}
	return files, references, err
}

func readFile(root *os.Root, p string) ([]byte, error) {
	f, err := root.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return content, err
}

// releaseName returns the name that a file has in a release: its own if it begins with 0000_, else one of run level 50.
func releaseName(p string) string {
	folder, file := path.Split(p)
	if strings.HasPrefix(file, "0000_") {
		return file
	}
	component := path.Clean(folder)
	if !regexp.MustCompile(wordForm).MatchString(component) {
		component = noComponent
	}
	return fmt.Sprintf(defaultName, component, file)
}

// image puts files into an image with one layer. The layer is not packed, so that its digest hangs on nothing but the
// files.
func (b Build) image(files []File) (v1.Image, error) {
	created := b.Created.UTC().Truncate(time.Second)
	if b.Created.IsZero() {
		created = time.Unix(0, 0).UTC()
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.Folder + "/" + f.Name, Mode: 0o644, Size: int64(len(f.Content)),
			ModTime: created, Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(image, mutate.Addendum{
		Layer:   static.NewLayer(archive.Bytes(), types.OCIUncompressedLayer),
		History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "windlass adm release new"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", "amd64", v1.Time{Time: created}
	config.Config.Labels = map[string]string{labelVersion: b.Version}
	return mutate.ConfigFile(image, config)
}
