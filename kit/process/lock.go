package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName     = "lock"
	lockPatience = 5 * time.Second // a supervisor that was told to end is gone by then
	lockPause    = 20 * time.Millisecond
)

// acquire takes the lock at path, which holds until the file is closed or this process dies. If ctx ends
// first, it returns no file and no error.
func acquire(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := lockWithin(ctx, f, lockPatience); err != nil {
		f.Close()
		if ctx.Err() != nil {
			err = nil
		}
		return nil, err
	}
	// The pid is for people; the lock is what counts.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func lockWithin(ctx context.Context, f *os.File, patience time.Duration) error {
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s, held by pid %s: %w", f.Name(), holder(f), ErrLocked)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func holder(f *os.File) string {
	buf := make([]byte, 20)
	n, _ := f.ReadAt(buf, 0)
	if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
		return pid
	}
	return "unknown"
}
