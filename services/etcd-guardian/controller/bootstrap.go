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
	BootstrapConfig
	ending atomic.Bool
}

// BootstrapConfig is what a Bootstrap needs.
type BootstrapConfig struct {
	Supervisor *process.Supervisor
	Spec       process.Spec
	DataDir    string
	// Allowed is a file whose presence allows an empty member: the first start of a cluster makes it, and the pivot
	// removes it. The absence of all else may as well mean that it was lost.
	Allowed   string
	Known     []string // files whose presence proves that there was a cluster
	Note      *store.NoteFile
	Elsewhere bool // the member is on another host, and never started here
	Log       *slog.Logger
}

// NewBootstrap returns the bootstrap member.
func NewBootstrap(c BootstrapConfig) *Bootstrap { return &Bootstrap{BootstrapConfig: c} }

// Start has the process run if it may.
func (b *Bootstrap) Start() error {
	n := b.Note.Get()
	if n.BootstrapRetired || b.Elsewhere {
		return nil
	}
	has, err := hasData(b.DataDir)
	if err != nil {
		return err
	}
	if !has {
		if n.ClusterID != 0 {
			return fmt.Errorf(
				"the data of the bootstrap member is gone from %s: an empty one is not started in the place of cluster %x",
				b.DataDir, n.ClusterID)
		}
		for _, f := range b.Known {
			if _, err := os.Stat(f); err == nil {
				return fmt.Errorf(
					"the data of the bootstrap member is gone from %s: an empty one is not started, since %s shows that there was a cluster", b.DataDir, f)
			}
		}
		if _, err := os.Stat(b.Allowed); err != nil {
			return fmt.Errorf(
				"an empty bootstrap member is not started: only the first start of a cluster allows it (%w); the members of a cluster that exists are learned from their agents", err)
		}
	}
	return b.Supervisor.Ensure(b.Spec)
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
		if err := b.Supervisor.Stop(context.WithoutCancel(ctx), b.Spec.Name); err != nil {
			b.Log.WarnContext(ctx, "bootstrap member does not stop", "error", err)
		}
	}()
}

// Retire writes down that the member has left for good. Clean ends it and removes its data.
func (b *Bootstrap) Retire() error {
	return b.Note.Change(func(n *store.Note) { n.BootstrapRetired = true })
}

// Clean ends what may be left of a member that has left, and removes its data. It does nothing unless it is on disk
// that it has.
func (b *Bootstrap) Clean(ctx context.Context) error {
	if !b.Note.Get().BootstrapRetired {
		return nil
	}
	if err := b.Supervisor.Stop(ctx, b.Spec.Name); err != nil {
		return err
	}
	if err := durable.Remove(b.Allowed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(b.DataDir)
}
