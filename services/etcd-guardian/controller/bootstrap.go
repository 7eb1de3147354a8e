package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// Bootstrap is the process of the bootstrap member. It is started only where that is no danger: an empty member in the
// place of a cluster that exists would be an empty store without users.
type Bootstrap struct {
	sup     *process.Supervisor
	spec    process.Spec
	dataDir string
	known   []string // files whose presence proves that there was a cluster
	allowed string   // file whose presence allows an empty member
	note    *store.NoteFile
	log     *slog.Logger
	ending  atomic.Bool
}

// NewBootstrap returns the bootstrap member that spec runs on dataDir. Any of the files known proves that there was a
// cluster. Without the file allowed, which the first start of a cluster makes and the pivot removes, no empty member is
// started: the absence of all else may as well mean that it was lost.
func NewBootstrap(sup *process.Supervisor, spec process.Spec, dataDir, allowed string, known []string,
	note *store.NoteFile, log *slog.Logger,
) *Bootstrap {
	return &Bootstrap{sup: sup, spec: spec, dataDir: dataDir, allowed: allowed, known: known, note: note, log: log}
}

// Start has the process run if it may.
func (b *Bootstrap) Start() error {
	n := b.note.Get()
	if n.BootstrapRetired {
		return nil
	}
	has, err := hasData(b.dataDir)
	if err != nil {
		return err
	}
	if !has {
		if n.ClusterID != 0 {
			return fmt.Errorf(
				"the data of the bootstrap member is gone from %s: an empty one is not started in the place of cluster %x",
				b.dataDir, n.ClusterID)
		}
		for _, f := range b.known {
			if _, err := os.Stat(f); err == nil {
				return fmt.Errorf(
					"the data of the bootstrap member is gone from %s: an empty one is not started, since %s shows that there was a cluster", b.dataDir, f)
			}
		}
		if _, err := os.Stat(b.allowed); err != nil {
			return fmt.Errorf(
				"an empty bootstrap member is not started: only the first start of a cluster allows it (%w); the members of a cluster that exists are learned from their agents", err)
		}
	}
	return b.sup.Ensure(b.spec)
}

func hasData(dir string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(entries) > 0, err
}

// Stop has the process ended, in the background: whether it is down is seen by asking it.
func (b *Bootstrap) Stop(ctx context.Context) {
	if !b.ending.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer b.ending.Store(false)
		if err := b.sup.Stop(context.WithoutCancel(ctx), b.spec.Name); err != nil {
			b.log.WarnContext(ctx, "bootstrap member does not stop", "error", err)
		}
	}()
}

// Retire writes down that the member has left for good. Clean ends it and removes its data.
func (b *Bootstrap) Retire() error {
	return b.note.Change(func(n *store.Note) { n.BootstrapRetired = true })
}

// Clean ends what may be left of a member that has left, and removes its data. It does nothing unless it is on disk
// that it has.
func (b *Bootstrap) Clean(ctx context.Context) error {
	if !b.note.Get().BootstrapRetired {
		return nil
	}
	if err := b.sup.Stop(ctx, b.spec.Name); err != nil {
		return err
	}
	if err := durable.Remove(b.allowed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(b.dataDir)
}
