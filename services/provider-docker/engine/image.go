package engine

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// importPatience bounds the import of an image of about 100 MB.
const importPatience = 2 * time.Minute

// Image is an image whose only file is an executable that holds all programs. It must be linked statically.
type Image struct {
	Name       string // repository and tag; the tag follows from the executable
	executable string
}

// ImageOf returns the image of an executable.
func ImageOf(executable string) (Image, error) {
	f, err := os.Open(executable)
	if err != nil {
		return Image{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return Image{}, err
	}
	return Image{Name: "windlass-node:" + hex.EncodeToString(sum.Sum(nil)[:6]), executable: executable}, nil
}

// Import makes the image at the engine, if it does not exist there. No registry is involved.
func (e *Engine) Import(ctx context.Context, image Image) error {
	brief, end := context.WithTimeout(ctx, patience)
	defer end()
	_, err := e.api.ImageInspect(brief, image.Name)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return e.failed("image "+image.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, importPatience)
	defer cancel()
	archive, write := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := image.write(write)
		write.CloseWithError(err)
		written <- err
	}()
	result, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: archive, SourceName: "-"}, image.Name,
		client.ImageImportOptions{Changes: []string{`ENTRYPOINT ["/windlass"]`, "LABEL dev.windlass.node=true"}})
	if err == nil {
		_, err = io.Copy(io.Discard, result)
		err = errors.Join(err, result.Close())
	}
	archive.CloseWithError(err) // ends the writer if the engine did not read everything
	return e.failed("import of image "+image.Name, errors.Join(err, <-written))
}

// write writes the image's file system as an archive.
func (i Image) write(to io.Writer) error {
	f, err := os.Open(i.executable)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	if err := w.WriteHeader(&tar.Header{Name: "windlass", Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("%s: %w", i.executable, err)
	}
	return w.Close()
}
