// Package files reads the files that configure admission plugins, from one directory of the scheduler's host that an
// administrator chose. It follows no link out of it.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/manifest"
)

// mostBytes bounds a file: its content is stored with the configuration that names it.
const mostBytes = 128 << 10

// Directory is where the files are. The zero Directory has none.
type Directory struct {
	Path string // absolute
}

// Read returns the text of a file, and the object in it, which is YAML or JSON. location is a path in the directory,
// relative to it or absolute. An error names the location, and nothing else of the host.
func (d Directory) Read(location string) (text []byte, object *structpb.Struct, err error) {
	text, err = d.text(location)
	if err != nil {
		return nil, nil, fmt.Errorf("file %q: %w", location, err)
	}
	json, err := manifest.JSON(text)
	if err != nil {
		return nil, nil, fmt.Errorf("file %q: %w", location, err)
	}
	object = &structpb.Struct{}
	if len(json) == 0 {
		return nil, nil, fmt.Errorf("file %q: is empty", location)
	}
	if err := object.UnmarshalJSON(json); err != nil {
		return nil, nil, fmt.Errorf("file %q: must be one object", location)
	}
	return text, object, nil
}

func (d Directory) text(location string) ([]byte, error) {
	if d.Path == "" {
		return nil, errors.New("the scheduler has no directory of such files: see --admission-config-dir")
	}
	name := location
	if filepath.IsAbs(name) {
		below, inside := strings.CutPrefix(filepath.Clean(name), strings.TrimSuffix(filepath.Clean(d.Path), "/")+"/")
		if !inside {
			return nil, fmt.Errorf("must be in the directory %s of --admission-config-dir", d.Path)
		}
		name = below
	}
	root, err := os.OpenRoot(d.Path)
	if err != nil {
		return nil, fmt.Errorf("the directory of --admission-config-dir: %w", cause(err))
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // to open a pipe would wait for its writer
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, cause(err)
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("is no regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	switch {
	case err != nil:
		return nil, cause(err)
	case len(text) > mostBytes:
		return nil, fmt.Errorf("is longer than %d bytes", mostBytes)
	}
	return text, nil
}

// cause returns an error without the path in it, which is given by the caller.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}
