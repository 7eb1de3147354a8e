package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName     = "lock"
	lockPatience = 5 * time.Second // a supervisor that was asked to end has ended by then
	lockPause    = 20 * time.Millisecond

	holderSize = 32 // a pid of 7 digits at the most, and ticks since boot
)

// acquire takes the lock at path, which is held until the file is closed or this process ends. If ctx ends first, it
// returns no file and no error.
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
	if err := writeHolder(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// writeHolder writes which process holds a lock into its file, for Owner and SignalOwner; only the lock itself is
// authoritative. The text has a fixed length and is overwritten in place, so that the write succeeds on a full disk.
func writeHolder(f *os.File) error {
	st, err := readStat(os.Getpid())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(io.NewOffsetWriter(f, 0), "%-*s\n", holderSize-1, fmt.Sprintf("%d %d", os.Getpid(), st.startTime))
	return err
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
	if pid, _, ok := readHolder(f); ok {
		return strconv.Itoa(pid)
	}
	return "unknown"
}

// readHolder returns the process that last recorded itself as the holder of a lock; started is 0 in a record of an
// earlier version.
func readHolder(f *os.File) (pid int, started uint64, ok bool) {
	buf := make([]byte, 2*holderSize)
	n, _ := f.ReadAt(buf, 0)
	n, _ = fmt.Sscan(string(buf[:n]), &pid, &started)
	return pid, started, n > 0
}

// Owner returns the pid of the supervisor of a run directory, 0 if none is alive.
func Owner(runDir string) (int, error) {
	f, err := os.Open(filepath.Join(runDir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, nil // it is free; closing the file releases it
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	pid, started, ok := readHolder(f)
	if !ok {
		return 0, fmt.Errorf("lock %s: holds no pid", f.Name())
	}
	if st, err := readStat(pid); err != nil || started != 0 && st.startTime != started {
		return 0, nil // it died while a process that it was starting held a copy of the lock
	}
	return pid, nil
}

// SignalOwner sends sig to the supervisor of a run directory; ErrNoProcess if none is alive.
func SignalOwner(runDir string, sig syscall.Signal) error {
	pid, err := Owner(runDir)
	if err != nil {
		return err
	}
	if pid == 0 {
		return ErrNoProcess
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// if it still is the owner, the pidfd is that of the owner
	if again, err := Owner(runDir); err != nil || again != pid {
		return errors.Join(err, ErrNoProcess)
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}
