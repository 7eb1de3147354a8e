package release

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
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
	maxFile     = 8 << 20  // bytes of one file
	maxFiles    = 10_000   // files of the two folders
	maxUnpacked = 2 << 30  // bytes of one layer, unpacked
	maxContent  = 64 << 20 // bytes of all files of the two folders
)

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

// tree is the files of the two folders.
type tree struct {
	files map[string][]byte // by path
	size  int               // bytes of all of them
}

func (t *tree) remove(p string) {
	t.size -= len(t.files[p])
	delete(t.files, p)
}

func (t *tree) put(p string, content []byte) error {
	t.remove(p)
	if len(t.files) >= maxFiles {
		return fmt.Errorf("there are more than %d files", maxFiles)
	}
	if t.size += len(content); t.size > maxContent {
		return fmt.Errorf("with it, all files together are longer than %d bytes", maxContent)
	}
	t.files[p] = content
	return nil
}

func (t *tree) clear(folder string) {
	for p := range t.files {
		if strings.HasPrefix(p, folder+"/") {
			t.remove(p)
		}
	}
}

// readLayers returns the files of the two folders, in load order: the folders one after the other, in each the names
// byte by byte.
func readLayers(image v1.Image) ([]File, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, fmt.Errorf("layers: %w", err)
	}
	t := &tree{files: map[string][]byte{}}
	for i, l := range layers {
		if err := t.readLayer(l); err != nil {
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

// readLayer puts a layer on top of those before.
func (t *tree) readLayer(l v1.Layer) error {
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
	stream := bufio.NewReader(io.TeeReader(packed, sum))
	plain, err := unpacked(stream)
	if err != nil {
		return err
	}
	limited := &io.LimitedReader{R: plain, N: maxUnpacked}
	if err := t.readTar(tar.NewReader(limited)); err != nil {
		if limited.N == 0 {
			return fmt.Errorf("it unpacks to more than %d bytes", int64(maxUnpacked))
		}
		return err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil { // what follows the end of the archive counts for the digest too
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want.Hex {
		return fmt.Errorf("it has digest sha256:%s, not %s: it was changed or is broken", got, want)
	}
	return nil
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
	if path.IsAbs(h.Name) {
		return errors.New("its path is absolute")
	}
	if slices.Contains(strings.Split(h.Name, "/"), "..") {
		return errors.New("its path leads upwards")
	}
	p := path.Clean(h.Name)
	folder, file, inside := strings.Cut(p, "/")
	if removed, ok := strings.CutPrefix(p, whiteout); ok && (removed == folderOwn || removed == folderReleases) {
		t.clear(removed)
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
		t.clear(folder)
		return nil
	case strings.HasPrefix(file, whiteout):
		t.remove(folder + "/" + strings.TrimPrefix(file, whiteout))
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
