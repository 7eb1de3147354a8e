package process

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// trimEvery is how often log sizes are checked: often enough for any process that logs at a normal rate.
	trimEvery = time.Minute
	// keptLog is how much of a process's log is kept, in bytes; a log may grow to twice this size.
	keptLog = 32 << 20

	blockSize = 512 // of stat(2)
)

func punch(f *os.File, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
}

// trimLog frees the older part of a log once the log occupies 2*keep bytes or more, and leaves keep bytes. The older
// part becomes a hole, so that writers can continue to append. On a file system without holes the file is truncated
// instead, and concurrent writes may be lost. A missing log is no error.
func trimLog(path string, keep int64, punch func(f *os.File, n int64) error) error {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil &&
		(st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks*blockSize < 2*keep) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = punch(f, st.Size-keep)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return shorten(f, st.Size, keep)
	}
	if err != nil {
		return &fs.PathError{Op: "fallocate", Path: path, Err: err}
	}
	return nil
}

// shorten truncates a file of a size to its last keep bytes. Its writers append, so they continue after these.
func shorten(f *os.File, size, keep int64) error {
	tail := make([]byte, keep)
	n, err := f.ReadAt(tail, size-keep)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.Write(tail[:n])
	return err
}

// trimLogs trims the logs of all wanted processes regularly, until ctx ends.
func (s *Supervisor) trimLogs(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, path := range s.logFiles() {
			if err := trimLog(path, keptLog, punch); err != nil {
				s.log.DebugContext(ctx, "log not trimmed", "error", err)
			}
		}
	}
}

func (s *Supervisor) logFiles() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, k := range s.keepers {
		if path := k.logFile(); path != "" {
			out = append(out, path)
		}
	}
	return out
}
