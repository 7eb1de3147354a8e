package release

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// executableFile is the executable in an image of one, as in the image of compose.yaml.
const executableFile = "windlass"

// ErrUnfit means that an executable is missing, or cannot be run on this machine: another try makes no sense.
var ErrUnfit = errors.New("there is no executable of Windlass for this machine")

// versionLimit is how long an executable may take to say its version.
const versionLimit = 10 * time.Second

// ExecutableVersion asks an executable of Windlass for its version. ErrUnfit if it gives none.
func ExecutableVersion(ctx context.Context, path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, path, "version", "-o", "json")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limited.Err() != nil:
		return "", fmt.Errorf("it does not say its version within %s", versionLimit)
	case errors.As(err, &exit) && !exit.Exited():
		return "", fmt.Errorf("`windlass version` ends with %w", err) // the machine may lack memory
	case errors.Is(err, syscall.ENOEXEC):
		return "", fmt.Errorf("%w: %w", ErrUnfit, err)
	case errors.As(err, &exit):
		return "", fmt.Errorf("%w: `windlass version` ends with %w: %s", ErrUnfit, err,
			strings.TrimSpace(string(exit.Stderr)))
	case err != nil:
		return "", err
	}
	var said struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(out, &said); err != nil || said.Version == "" {
		return "", fmt.Errorf("%w: `windlass version -o json` gives no version", ErrUnfit)
	}
	return said.Version, nil
}

// NewExecutable makes an image of executables of Windlass for linux, by architecture, and adds it to the OCI layout at
// the directory to, which is made if it is not there. Of several architectures it makes an index of images. It returns
// the digest. The same files always give the same digest.
func NewExecutable(to string, files map[string]string) (string, error) {
	images := map[string]v1.Image{}
	for arch, file := range files {
		image, err := executable(file, arch)
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		images[arch] = image
	}
	dir, err := layout.FromPath(to)
	if errors.Is(err, fs.ErrNotExist) {
		dir, err = layout.Write(to, empty.Index)
	}
	if err != nil {
		return "", fmt.Errorf("OCI layout %s: %w", to, err)
	}
	add := func() (v1.Hash, error) {
		if len(images) == 1 {
			for _, image := range images {
				digest, err := image.Digest()
				if err != nil {
					return digest, err
				}
				return digest, dir.ReplaceImage(image, match.Digests(digest))
			}
		}
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, arch := range slices.Sorted(maps.Keys(images)) {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: images[arch], Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "linux", Architecture: arch},
			}})
		}
		digest, err := index.Digest()
		if err != nil {
			return digest, err
		}
		return digest, dir.ReplaceIndex(index, match.Digests(digest))
	}
	digest, err := add()
	if err != nil {
		return "", fmt.Errorf("OCI layout %s: %w", to, err)
	}
	return digest.String(), nil
}

// executable returns an image with one file, packed fast: it is read far more often on the same machine than sent.
func executable(file, arch string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return executableArchive(file) },
		tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, History: v1.History{
			Created:   v1.Time{Time: time.Unix(0, 0).UTC()},
			CreatedBy: "windlass adm release new",
		},
	}); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config.Entrypoint = []string{"/" + executableFile}
	return mutate.ConfigFile(image, config)
}

// executableArchive returns a file as the executable of an archive.
func executableArchive(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	out, in := io.Pipe()
	go func() {
		defer f.Close()
		w := tar.NewWriter(in)
		err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: executableFile, Mode: 0o755, Size: info.Size(), ModTime: time.Unix(0, 0).UTC(),
			Format: tar.FormatPAX,
		})
		if err == nil {
			_, err = io.Copy(w, f)
		}
		if err == nil {
			err = w.Close()
		}
		in.CloseWithError(err)
	}()
	return out, nil
}

// Executable writes the executable of an image to a file, which is emptied before. It is as the digests say if there is
// no error. ErrUnfit if the image has none.
func (i *Image) Executable(to *os.File) error {
	err := i.executable(to)
	if err == nil || errors.Is(err, ErrUnfit) || i.elsewhere == nil {
		return err
	}
	other, why := i.elsewhere()
	if why == nil {
		why = other.Executable(to)
	}
	if why != nil {
		return errors.Join(err, why)
	}
	return nil
}

func (i *Image) executable(to *os.File) error {
	layers, err := i.image.Layers()
	if err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	most := limits{maxLayers, maxEntries, maxPacked, maxUnpacked}
	if err := checkSizes(layers, most); err != nil {
		return err
	}
	x := extraction{volume: volume{most: most}, to: to}
	for n, l := range layers {
		if err := x.readLayer(l, x.archive); err != nil {
			return fmt.Errorf("layer %d: %w", n, err)
		}
	}
	if !x.found {
		return fmt.Errorf("%w: the image has no regular file /%s", ErrUnfit, executableFile)
	}
	return nil
}

// extraction reads the executable, layer by layer.
type extraction struct {
	volume
	to    *os.File
	found bool
}

func (x *extraction) archive(r *tar.Reader) error {
	for here := false; ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if x.entries++; x.entries > x.most.entries {
			return fmt.Errorf("all layers together have more than %d entries", x.most.entries)
		}
		switch p := path.Clean("/" + h.Name); {
		case (p == "/"+whiteout+executableFile || p == "/"+whiteoutFolder) && !here: // of the layers below
			x.found = false
		case p != "/"+executableFile:
		case h.Typeflag != tar.TypeReg:
			x.found, here = false, true
		default:
			if err := x.write(r); err != nil {
				return fmt.Errorf("file %q: %w", h.Name, err)
			}
			x.found, here = true, true
		}
	}
}

func (x *extraction) write(r io.Reader) error {
	if err := x.to.Truncate(0); err != nil {
		return err
	}
	if _, err := x.to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(x.to, r)
	return err
}
