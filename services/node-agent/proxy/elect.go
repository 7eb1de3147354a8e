package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/backoff"
)

const (
	lockName = "services.lock" // in the directory of the host
	// lockEvery is how often a lock that another agent has is asked for. A call that waits for it would not end with its
	// context.
	lockEvery = 300 * time.Millisecond
)

// elect returns when this agent is the elected one of its host, or ctx ends. release gives another one the turn; a
// process that ends does so, too.
func elect(ctx context.Context, dir string, log *slog.Logger) (release func(), err error) {
	release = func() {}
	if dir == "" {
		return release, nil
	}
	said := ""
	for {
		f, err := lock(dir)
		if err == nil {
			log.InfoContext(ctx, "this agent leads the connections to services")
			return func() { _ = f.Close() }, nil
		}
		if text := err.Error(); !errors.Is(err, unix.EWOULDBLOCK) && text != said {
			said = text
			log.WarnContext(ctx, "this agent cannot lead the connections to services", "error", err)
		}
		if !backoff.Sleep(ctx, lockEvery) {
			return release, nil
		}
	}
}

// lock returns the locked file, or an error that wraps EWOULDBLOCK if another agent has it.
func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
