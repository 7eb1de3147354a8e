package release

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Folders of a release image, in load order.
const (
	folderOwn      = "manifests"         // of the orchestrator itself
	folderReleases = "release-manifests" // of everything else
)

// Limits of what is read of an image, far beyond those of real releases.
const (
	maxManifest = 8 << 20   // bytes of a manifest or an index that is kept
	maxConfig   = 8 << 20   // bytes of the configuration
	maxFile     = 8 << 20   // bytes of one file
	maxFiles    = 10_000    // files of the two folders
	maxContent  = 64 << 20  // bytes of all files of the two folders
	maxLayers   = 127       // Source: the limit of containerd and Docker
	maxEntries  = 1_000_000 // files of all layers, of interest or not
	maxPacked   = 2 << 30   // bytes of all layers, as they are sent
	maxUnpacked = 4 << 30   // bytes of all layers, unpacked
)

// limits are those that hold for all layers together.
type limits struct {
	layers, entries  int
	packed, unpacked int64
}

// Markers of files that a layer takes away.
const (
	whiteout       = ".wh."
	whiteoutFolder = ".wh..wh..opq"
)

// File is a file of a release.
type File struct {
	Folder  string // manifests or release-manifests
	Name    string
	Content []byte
}

// tree is the files of the two folders, layer by layer.
type tree struct {
	files map[string][]byte // by path
	size  int               // bytes of all of them
	here  map[string]bool   // paths of files that are of the present layer

	volume
}

// volume is how much was read of all layers until now.
type volume struct {
	most             limits
	entries          int
	packed, unpacked int64
}

func newTree(most limits) *tree {
	return &tree{files: map[string][]byte{}, here: map[string]bool{}, volume: volume{most: most}}
}

func (t *tree) remove(p string) {
	t.size -= len(t.files[p])
	delete(t.files, p)
}

// hide removes a file of the layers below. Source: the OCI image specification, "Whiteouts": what is in the same layer
// stays, wherever the whiteout is in it.
func (t *tree) hide(p string) {
	if !t.here[p] {
		t.remove(p)
	}
}

func (t *tree) put(p string, content []byte) error {
	t.remove(p)
	if len(t.files) >= maxFiles {
		return fmt.Errorf("there are more than %d files", maxFiles)
	}
	if t.size += len(content); t.size > maxContent {
		return fmt.Errorf("with it, all files together are longer than %d bytes", maxContent)
	}
	t.files[p], t.here[p] = content, true
	return nil
}

func (t *tree) hideAll(folder string) {
	for p := range t.files {
		if strings.HasPrefix(p, folder+"/") {
			t.hide(p)
		}
	}
}

// readLayers returns the files of the two folders, in load order: the folders one after the other, in each the names
// byte by byte.
func readLayers(image v1.Image, most limits) ([]File, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, fmt.Errorf("layers: %w", err)
	}
	if err := checkSizes(layers, most); err != nil {
		return nil, err
	}
	t := newTree(most)
	for i, l := range layers {
		clear(t.here)
		if err := t.readLayer(l, t.readTar); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	var out []File
	for _, p := range slices.Sorted(maps.Keys(t.files)) { // "manifests" sorts before "release-manifests"
		folder, file := path.Split(p)
		out = append(out, File{Folder: path.Clean(folder), Name: file, Content: t.files[p]})
	}
	return out, nil
}

// checkSizes refuses layers that are beyond the limits by what the manifest says, before any is fetched.
func checkSizes(layers []v1.Layer, most limits) error {
	if len(layers) > most.layers {
		return fmt.Errorf("it has %d layers, more than %d", len(layers), most.layers)
	}
	left := most.packed
	for i, l := range layers {
		size, err := l.Size()
		switch {
		case err != nil:
			return fmt.Errorf("layer %d: %w", i, err)
		case size < 0:
			return fmt.Errorf("layer %d: its size is negative", i)
		case size > left:
			return errPacked(most.packed)
		}
		left -= size
	}
	return nil
}

func errPacked(most int64) error {
	return fmt.Errorf("its layers have more than %d bytes, as they are packed", most)
}

func errUnpacked(most int64) error {
	return fmt.Errorf("its layers have more than %d bytes, unpacked", most)
}

// counted fails when more was read than is allowed.
type counted struct {
	io.Reader
	have *int64 // until now, also of layers before
	most int64
	err  func(most int64) error
}

// Read implements io.Reader.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if *c.have += int64(n); *c.have > c.most {
		return n, c.err(c.most)
	}
	return n, err
}

// readLayer has read take in the archive of a layer, and compares the layer with its digest. If a layer that was
// changed cannot be read, the error is that of the digest.
func (v *volume) readLayer(l v1.Layer, read func(*tar.Reader) error) error {
	want, err := l.Digest()
	if err != nil {
		return err
	}
	packed, err := l.Compressed()
	if err != nil {
		return absent(err, "content")
	}
	defer packed.Close()
	sum := sha256.New()
	stream := bufio.NewReader(io.TeeReader(counted{packed, &v.packed, v.most.packed, errPacked}, sum))
	bad := v.readPacked(stream, read)
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return cmp.Or(bad, err)
	}
	return cmp.Or(sameSum(sum, want), bad)
}

// readPacked has read take in an archive that may be packed. What follows the archive counts too for the limits.
func (v *volume) readPacked(stream *bufio.Reader, read func(*tar.Reader) error) error {
	plain, err := unpacked(stream)
	if err != nil {
		return err
	}
	plain = counted{plain, &v.unpacked, v.most.unpacked, errUnpacked}
	if err := read(tar.NewReader(plain)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, plain)
	return err
}

// unpacked takes gzip off a stream if it is there.
func unpacked(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, errors.New("it is packed with zstd, which is not understood: use gzip")
	}
	return r, nil
}

func (t *tree) readTar(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := t.entry(h, r); err != nil {
			return fmt.Errorf("file %q: %w", h.Name, err)
		}
	}
}

// entry takes one entry of an archive. Names that lead out of the image are refused wherever they are, everything else
// that is unusual only in the two folders.
func (t *tree) entry(h *tar.Header, r io.Reader) error {
	if t.entries++; t.entries > t.most.entries {
		return fmt.Errorf("all layers together have more than %d entries", t.most.entries)
	}
	if path.IsAbs(h.Name) {
		return errors.New("its path is absolute")
	}
	if slices.Contains(strings.Split(h.Name, "/"), "..") {
		return errors.New("its path leads upwards")
	}
	p := path.Clean(h.Name)
	folder, file, inside := strings.Cut(p, "/")
	if p == whiteoutFolder {
		t.hideAll(folderOwn)
		t.hideAll(folderReleases)
		return nil
	}
	if removed, ok := strings.CutPrefix(p, whiteout); ok && (removed == folderOwn || removed == folderReleases) {
		t.hideAll(removed)
		return nil
	}
	if folder != folderOwn && folder != folderReleases {
		return nil
	}
	switch {
	case h.Typeflag == tar.TypeDir:
		return nil
	case !inside:
		return errors.New("it is no folder")
	case strings.Contains(file, "/"):
		return t.deeper(h)
	case file == whiteoutFolder:
		t.hideAll(folder)
		return nil
	case strings.HasPrefix(file, whiteout):
		t.hide(folder + "/" + strings.TrimPrefix(file, whiteout))
		return nil
	}
	return t.add(p, h, r)
}

// deeper checks an entry of a sub-folder, which is not read.
func (t *tree) deeper(h *tar.Header) error {
	if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
		return t.link(h)
	}
	return nil
}

func (t *tree) add(p string, h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink, tar.TypeLink:
		return t.link(h)
	default:
		return fmt.Errorf("it is of type %q, neither a file nor a link", string(h.Typeflag))
	}
	content, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return err
	}
	if len(content) > maxFile {
		return fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return t.put(p, content)
}

// link follows a link to a file of the two folders that came before it.
func (t *tree) link(h *tar.Header) error {
	p := path.Clean(h.Name)
	target := h.Linkname
	if h.Typeflag == tar.TypeSymlink && !path.IsAbs(target) {
		target = path.Join(path.Dir(p), target)
	}
	target = path.Clean(target)
	folder, file, _ := strings.Cut(target, "/")
	if path.IsAbs(target) || folder != folderOwn && folder != folderReleases {
		return fmt.Errorf("it is a link that leads outside, to %q", h.Linkname)
	}
	content, ok := t.files[target]
	if !ok {
		return fmt.Errorf("it is a link to %q, which is not there", h.Linkname)
	}
	if strings.Contains(file, "/") || strings.Count(p, "/") > 1 {
		return nil
	}
	return t.put(p, content)
}
