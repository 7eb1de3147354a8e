package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

const fetchLimit = 10 * time.Minute

// partSuffix follows the digest in the names of directories that are not whole yet, or no more.
const partSuffix = ".part-"

// executablePath returns where the executable of an image is; other for that of the cluster itself.
func executablePath(c *cluster.Cluster, e plan.Executable, other string) string {
	if e.Image == "" {
		return other
	}
	_, digest, _ := strings.Cut(e.Image, "@sha256:")
	return c.Dir("executables", digest, "windlass")
}

// stage has the executable of an image on the disk, and looks whether it runs and is of the version that it is said to
// be of. The error is release.ErrUnfit if another try makes no sense.
func stage(ctx context.Context, c *cluster.Cluster, e plan.Executable) error {
	path := executablePath(c, e, "")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		err = fetch(ctx, c, e, filepath.Dir(path))
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	said, err := release.ExecutableVersion(ctx, path)
	if err == nil && said != e.Version {
		err = fmt.Errorf("%w: it is of version %q, not %q", release.ErrUnfit, said, e.Version)
	}
	return err
}

// fetch reads the executable of an image. dir appears once it is there as a whole.
func fetch(ctx context.Context, c *cluster.Cluster, e plan.Executable, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	image, err := release.Open(ctx, e.Image, c.ReleasePlaces())
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+partSuffix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	f, err := os.OpenFile(filepath.Join(part, "part"), os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	err = image.Executable(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := durable.Rename(f.Name(), filepath.Join(part, "windlass")); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil { // of a sweep that was cut off
		return err
	}
	return durable.Rename(part, dir)
}

// sweep removes the executables that no program needs.
func sweep(c *cluster.Cluster, needed []plan.Executable) error {
	keep := map[string]bool{}
	for _, e := range needed {
		if e.Image != "" {
			keep[filepath.Base(filepath.Dir(executablePath(c, e, "")))] = true
		}
	}
	found, err := os.ReadDir(c.Dir("executables"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range found {
		if !keep[f.Name()] {
			err = errors.Join(err, os.RemoveAll(c.Dir("executables", f.Name())))
		}
	}
	return err
}
