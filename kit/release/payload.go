package release

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
)

// Files of a release that are no manifests.
const (
	fileMetadata   = "release-metadata"
	fileReferences = "image-references"
)

// metadataKind is the kind of the file release-metadata.
const metadataKind = "cincinnati-metadata-v0"

// Payload is what a release image holds.
type Payload struct {
	Digest      string // sha256:<hex> of the image
	Created     time.Time
	Metadata    Metadata
	Images      []ImageReference // in the order of image-references
	Files       []File           // every file, in load order
	Manifests   []Manifest       // every document, in load order
	Skipped     []string         // templates, which are not rendered: their manifests are left out
	VersionHash string           // over all manifests, unchanged: equal hashes, equal manifests
}

// Metadata is the file release-metadata. Source: the Cincinnati design, "cincinnati-metadata-v0".
type Metadata struct {
	Kind     string            `json:"kind"`
	Version  string            `json:"version"`
	Previous []string          `json:"previous,omitempty"`
	Next     []string          `json:"next,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// ImageReference is an image that a release refers to.
type ImageReference struct{ Name, Image string }

// Load reads and checks a release.
func Load(i *Image) (*Payload, error) {
	files, err := i.files()
	if err == nil {
		var p *Payload
		if p, err = read(files); err == nil {
			p.Digest, p.Created = i.Digest, i.Created
			return p, nil
		}
	}
	return nil, fmt.Errorf("release image %s: %w", i.Reference, err)
}

// files reads the layers, from the next place that has the image where one does not deliver them.
func (i *Image) files() ([]File, error) {
	files, err := readLayers(i.image, limits{maxLayers, maxEntries, maxPacked, maxUnpacked})
	if err == nil || i.elsewhere == nil {
		return files, err
	}
	other, why := i.elsewhere()
	if why == nil {
		files, why = other.files()
	}
	if why != nil {
		return nil, errors.Join(err, why)
	}
	return files, nil
}

// read makes a payload of files in load order.
func read(files []File) (*Payload, error) {
	p := &Payload{Files: files}
	content := func(name string) ([]byte, error) {
		i := slices.IndexFunc(files, func(f File) bool { return f.Folder == folderReleases && f.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("it is no release: %s/%s is missing", folderReleases, name)
		}
		return files[i].Content, nil
	}
	raw, err := content(fileMetadata)
	if err != nil {
		return nil, err
	}
	if p.Metadata, err = readMetadata(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", fileMetadata, err)
	}
	if raw, err = content(fileReferences); err != nil {
		return nil, err
	}
	if p.Images, err = readReferences(raw, p.Metadata.Version); err != nil {
		return nil, fmt.Errorf("%s: %w", fileReferences, err)
	}
	return p, p.readManifests()
}

// Draft makes a payload of the manifests of a release that is not built yet; version may be empty. Files are loaded in
// the order of their names, whatever their folder.
func Draft(version string, files []File) (*Payload, error) {
	p := &Payload{Metadata: Metadata{Version: version}}
	for _, f := range files {
		if !isManifest(f.Name) {
			return nil, fmt.Errorf("%s: the name is none of a manifest: it must end with .yaml, .yml or .json", f.Name)
		}
		if len(f.Content) > maxFile {
			return nil, fmt.Errorf("%s: it is longer than %d bytes", f.Name, maxFile)
		}
		p.Files = append(p.Files, File{Folder: folderReleases, Name: f.Name, Content: f.Content})
	}
	slices.SortStableFunc(p.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return p, p.readManifests()
}

func readMetadata(raw []byte) (Metadata, error) {
	var m Metadata
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, err
	}
	if m.Kind != metadataKind {
		return m, fmt.Errorf("unrecognized kind %q, it must be %q", m.Kind, metadataKind)
	}
	if m.Version == "" {
		return m, errors.New("missing required field version")
	}
	if _, err := semver.StrictNewVersion(m.Version); err != nil {
		return m, fmt.Errorf("version %q is no semantic version", m.Version)
	}
	for _, field := range []struct {
		name     string
		versions []string
	}{{"previous", m.Previous}, {"next", m.Next}} {
		for i, v := range field.versions {
			if _, err := semver.StrictNewVersion(v); err != nil {
				return m, fmt.Errorf("%s[%d] %q is no semantic version", field.name, i, v)
			}
			if v == m.Version {
				return m, fmt.Errorf("%s[%d] is the version itself", field.name, i)
			}
		}
	}
	return m, nil
}

// references is the file image-references: an ImageStream.
type references struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Metadata   struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Tags []referenceTag `json:"tags"`
	} `json:"spec"`
}

type referenceTag struct {
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations,omitempty"`
	From        referenceFrom     `json:"from"`
}

type referenceFrom struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

func readReferences(raw []byte, version string) ([]ImageReference, error) {
	var r references
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	if r.Kind != "ImageStream" {
		return nil, fmt.Errorf("unrecognized kind %q, it must be %q", r.Kind, "ImageStream")
	}
	if r.Metadata.Name != version {
		return nil, fmt.Errorf("version from %s (%s) differs from %s (%s)", fileReferences, r.Metadata.Name, fileMetadata,
			version)
	}
	var out []ImageReference
	for i, t := range r.Spec.Tags {
		if t.Name == "" || t.From.Name == "" {
			return nil, fmt.Errorf("spec.tags[%d] must have a name and from.name", i)
		}
		out = append(out, ImageReference{t.Name, t.From.Name})
	}
	return out, nil
}

// isManifest reports whether a file holds manifests by its name.
func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

func (p *Payload) readManifests() error {
	hash := fnv.New64()
	from := map[string]string{}
	var failed []error
	for _, f := range p.Files {
		if !isManifest(f.Name) {
			continue
		}
		if folder, twice := from[f.Name]; twice {
			failed = append(failed, fmt.Errorf("%s is in %s and in %s", f.Name, folder, f.Folder))
			continue
		}
		from[f.Name] = f.Folder
		if f.Folder == folderOwn && strings.Contains(string(f.Content), "{{") {
			p.Skipped = append(p.Skipped, f.Name)
			continue
		}
		list, err := readManifests(f)
		failed = append(failed, err)
		for _, m := range list {
			hash.Write(m.Content)
		}
		p.Manifests = append(p.Manifests, list...)
	}
	p.VersionHash = base64.URLEncoding.EncodeToString(hash.Sum(nil))
	return errors.Join(failed...)
}

// FileNames returns the names of the files whose manifests are in Manifests, in load order.
func (p *Payload) FileNames() []string {
	var out []string
	for _, m := range p.Manifests {
		if len(out) == 0 || out[len(out)-1] != m.File {
			out = append(out, m.File)
		}
	}
	return out
}
