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
	// trimEvery is how often logs are looked at: a process that fills a disk in less has other faults.
	trimEvery = time.Minute
	// keptLog is how much stays of the log of a process, at the most twice as much.
	keptLog = 32 << 20

	blockSize = 512 // of stat(2)
)

// TrimLog gives the older part of a log back to the disk when twice as much as keep bytes of it are there: it becomes a
// hole, so whoever appends to the file goes on as before. On a file system without holes the file is shortened instead,
// and what is written at that moment may be lost. A log that is not there is no error.
func TrimLog(path string, keep int64) error { return trimLog(path, keep, punch) }

func punch(f *os.File, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
}

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

// shorten leaves the last keep bytes of a file of a size. Its writers append, so they go on behind them.
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

// trimLogs keeps the logs of all wanted processes from filling the disk, until ctx ends.
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
			if err := TrimLog(path, keptLog); err != nil {
				s.log.DebugContext(ctx, "log not shortened", "error", err)
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
