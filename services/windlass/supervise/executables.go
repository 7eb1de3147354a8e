package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

const fetchLimit = 10 * time.Minute

// partSuffix follows the digest in the names of directories that are not whole yet, or no more.
const partSuffix = ".part-"

// executables are those that programs run from, on the disk: that of the cluster itself, and those of images.
type executables struct {
	cluster *cluster.Cluster
	own     ownExecutable
	log     *slog.Logger

	mu     sync.Mutex
	staged map[plan.Executable]*staging
}

// ownExecutable is the executable that a cluster was started with.
type ownExecutable struct{ Path, Version string }

func newExecutables(c *cluster.Cluster, own ownExecutable, log *slog.Logger) *executables {
	return &executables{cluster: c, own: own, log: log, staged: map[plan.Executable]*staging{}}
}

// first is the executable that the cluster was started with.
func (x *executables) first() plan.Executable { return plan.Executable{Version: x.own.Version} }

// staging is how far the fetch of an executable has come.
type staging struct {
	running, done, unfit bool
	problem              string
	tries                int
	tried                time.Time
}

// path returns where an executable is, or is to be.
func (x *executables) path(e plan.Executable) string {
	if e.Image == "" {
		return x.own.Path
	}
	_, digest, _ := strings.Cut(e.Image, "@sha256:")
	return x.cluster.Dir("executables", digest, "windlass")
}

// gone reports whether the executable of an image is not on this machine.
func (x *executables) gone(e plan.Executable) (bool, error) {
	_, err := os.Stat(x.path(e))
	if errors.Is(err, fs.ErrNotExist) {
		return e.Image != "", nil
	}
	return false, err
}

// show puts how far the executable is that is wanted into a view.
func (x *executables) show(v *plan.View) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.staged[v.Wanted.Executable]; s != nil {
		v.Staged, v.Unfit, v.StageErr, v.Tries, v.Tried = s.done, s.unfit, s.problem, s.tries, s.tried
	}
	v.Staged = v.Staged || v.Wanted.Image == ""
}

// stage begins to fetch an executable unless that is under way. updates is a connection to the update-orchestrator of
// this machine.
func (x *executables) stage(ctx context.Context, e plan.Executable, updates grpc.ClientConnInterface) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.staged[e]
	if s == nil {
		s = &staging{}
		x.staged[e] = s
	}
	if s.running {
		return
	}
	s.running = true
	go func() {
		err := x.prepare(ctx, e, updates)
		x.mu.Lock()
		defer x.mu.Unlock()
		*s = staging{done: err == nil, tries: s.tries + 1, tried: time.Now()}
		if err != nil {
			s.problem, s.unfit = err.Error(), errors.Is(err, release.ErrUnfit)
			x.log.WarnContext(ctx, "executable not fetched", "image", e.Image, "error", err)
		}
	}()
}

// prepare has the executable of an image on the disk, and looks whether it runs and is of the version that it is said
// to be of. The error is release.ErrUnfit if another try makes no sense.
func (x *executables) prepare(ctx context.Context, e plan.Executable, updates grpc.ClientConnInterface) error {
	missing, err := x.gone(e)
	if err == nil && missing {
		err = x.fetch(ctx, e, updates)
	}
	if err != nil {
		return err
	}
	said, err := release.ExecutableVersion(ctx, x.path(e))
	if err == nil && said != e.Version {
		err = fmt.Errorf("%w: it is of version %q, not %q", release.ErrUnfit, said, e.Version)
	}
	return err
}

// places are where images of releases are looked for. Where the control plane is on hosts, the update-orchestrator of
// this host also reads those that are on another host alone.
func (x *executables) places(updates grpc.ClientConnInterface) release.Places {
	places := x.cluster.ReleasePlaces()
	if x.cluster.Member == nil {
		return places
	}
	places.Spool = x.cluster.Dir("executables")
	places.Elsewhere = func() []release.Peer {
		return []release.Peer{{
			Name: topology.UpdateOrchestrator, Relays: true,
			Dial: func() (release.PeerConn, error) { return shared{updates}, nil },
		}}
	}
	return places
}

// shared is a connection that others use, too, and that is not closed here.
type shared struct{ grpc.ClientConnInterface }

func (shared) Close() error { return nil }

// fetch reads the executable of an image. Its directory appears once it is there as a whole.
func (x *executables) fetch(ctx context.Context, e plan.Executable, updates grpc.ClientConnInterface) error {
	dir := filepath.Dir(x.path(e))
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	image, err := release.Open(ctx, e.Image, x.places(updates))
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

// sweep removes the executables that are not needed.
func (x *executables) sweep(ctx context.Context, needed []plan.Executable) {
	x.mu.Lock()
	defer x.mu.Unlock()
	keep := map[string]bool{}
	for _, e := range needed {
		if e.Image != "" {
			keep[filepath.Base(filepath.Dir(x.path(e)))] = true
		}
	}
	for e, s := range x.staged {
		if s.running {
			return // the next time
		}
		if !slices.Contains(needed, e) {
			delete(x.staged, e)
		}
	}
	found, err := os.ReadDir(x.cluster.Dir("executables"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	for _, f := range found {
		if !keep[f.Name()] {
			err = errors.Join(err, os.RemoveAll(x.cluster.Dir("executables", f.Name())))
		}
	}
	if err != nil {
		x.log.WarnContext(ctx, "executables not removed", "error", err)
	}
}
