package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// BuiltinPath is where the executable of an image by Builtin is.
const BuiltinPath = "/windlass"

// Builtin returns an image that has one file: an executable of the host, at BuiltinPath, which belongs to root. The
// image's digest is a function of the executable and of the entrypoint. The image leads by name to no other one, so
// name must be one that no pod means otherwise; signatures are not asked for. Release ends its use. The error is one of
// this package's, or ctx's, or that of a file.
func (l *Library) Builtin(ctx context.Context, name, executable string, entrypoint []string, p *Progress) (*Cached,
	error,
) {
	layer, err := l.builtins.layer(ctx, executable)
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", executable, err)
	}
	img, err := builtin(layer, entrypoint)
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", executable, err)
	}
	return l.cache.ensure(ctx, img, []string{written(name)}, p, l.slot(""))
}

// builtin returns the image of one layer.
func builtin(layer v1.Layer, entrypoint []string) (*Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: runtime.GOOS, Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: entrypoint},
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	return read(img, digest)
}

// builtins are the layers of executables that were read once. The zero value is ready for use.
type builtins struct {
	mu     sync.Mutex
	layers map[string]*program // by path
}

// layer returns the layer of an executable, which is read only if it has changed.
func (b *builtins) layer(ctx context.Context, executable string) (*program, error) {
	f, now, err := openProgram(executable)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.layers[executable]; known != nil && known.same(now) {
		return known, nil
	}
	p := &program{path: executable, info: now}
	sum := sha256.New()
	if _, err := io.Copy(sum, p.archive(reading{ctx, f})); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	p.digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	if b.layers == nil {
		b.layers = map[string]*program{}
	}
	b.layers[executable] = p
	return p, nil
}

func openProgram(path string) (*os.File, os.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is no regular file")
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// reading reads until ctx ends.
type reading struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r reading) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// program is a layer of one executable. It is not compressed: the runtime is on the same host.
type program struct {
	path   string
	info   os.FileInfo // when it was read
	digest v1.Hash
}

// blockSize is what the parts of an archive are multiples of, in bytes. Source: POSIX.1-1988 (ustar).
const blockSize = 512

// archive returns the archive of the executable with a content.
func (p *program) archive(content io.Reader) io.Reader {
	padding := (blockSize - p.info.Size()%blockSize) % blockSize
	return io.MultiReader(bytes.NewReader(p.header()), io.LimitReader(content, p.info.Size()),
		bytes.NewReader(make([]byte, padding+2*blockSize))) // two empty blocks are its end
}

// header returns the entry of the executable. It has nothing of the host's file but the size.
func (p *program) header() []byte {
	var out bytes.Buffer
	err := tar.NewWriter(&out).WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: BuiltinPath[1:], Mode: 0o755, Size: p.info.Size(), ModTime: time.Unix(0, 0),
	})
	if err != nil {
		panic(err) // a constant header, and a size that a file has
	}
	return slices.Clip(out.Bytes())
}

// same reports whether a file has not changed since it was read.
func (p *program) same(now os.FileInfo) bool {
	return os.SameFile(p.info, now) && p.info.Size() == now.Size() && p.info.ModTime().Equal(now.ModTime())
}

// Uncompressed implements v1.Layer.
func (p *program) Uncompressed() (io.ReadCloser, error) {
	f, now, err := openProgram(p.path)
	if err != nil {
		return nil, err
	}
	if !p.same(now) {
		return nil, errors.Join(fmt.Errorf("%w: %s has changed since", errTransfer, p.path), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{p.archive(f), f}, nil
}

// Compressed implements v1.Layer.
func (p *program) Compressed() (io.ReadCloser, error) { return p.Uncompressed() }

// Digest implements v1.Layer.
func (p *program) Digest() (v1.Hash, error) { return p.digest, nil }

// DiffID implements v1.Layer.
func (p *program) DiffID() (v1.Hash, error) { return p.digest, nil }

// Size implements v1.Layer.
func (p *program) Size() (int64, error) {
	content := (p.info.Size() + blockSize - 1) / blockSize * blockSize
	return int64(len(p.header())) + content + 2*blockSize, nil
}

// MediaType implements v1.Layer.
func (p *program) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }
