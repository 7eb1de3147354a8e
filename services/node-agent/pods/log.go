package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
)

// A container writes to its log file directly, so that it can go on when the agent does not run. So the time of a line
// is unknown.
const (
	logFile      = "log"
	previousFile = "log.previous"

	// maxLog is how much of a log is kept; what is older is given back to the disk, at the latest when there is twice as
	// much.
	maxLog = 10 << 20

	chunk      = 32 << 10
	followTick = 200 * time.Millisecond
)

// rotate makes the log of the last start the previous one.
func rotate(dir string) error {
	previous := filepath.Join(dir, previousFile)
	err := os.Rename(filepath.Join(dir, logFile), previous)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return process.TrimLog(previous, maxLog)
}

// readLog sends what of a container's log is wanted.
func (s *Pods) readLog(ctx context.Context, uid string, r *schedulingv1.GetPodLogRequest,
	send func([]byte) error,
) error {
	c, name, err := s.find(uid, r.GetContainer())
	if err != nil {
		return err
	}
	if r.GetTimestamps() {
		return errors.New(
			"timestamps are not available: a container writes to its log itself, and the time of a line is not kept")
	}
	file := logFile
	if r.GetPrevious() {
		file = previousFile
	}
	f, err := os.Open(filepath.Join(s.containerDir(uid, name), file))
	if errors.Is(err, fs.ErrNotExist) {
		if r.GetPrevious() {
			return fmt.Errorf("there is no log of an earlier start of container %q", name)
		}
		return fmt.Errorf("container %q has not started yet", name)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	from, err := beginning(f)
	if err != nil {
		return err
	}
	if r.SinceSeconds != nil {
		if from, err = since(f, from, c, r); err != nil {
			return err
		}
	}
	if r.TailLines != nil {
		if from, err = tail(f, from, int(r.GetTailLines())); err != nil {
			return err
		}
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	follow := r.GetFollow() && !r.GetPrevious()
	return copyLog(ctx, f, send, func() bool { return follow && s.writes(uid, name, c.Starts) })
}

// find returns a copy of what is known of a container, by its name or as the only one.
func (s *Pods) find(uid, name string) (container, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[uid]
	if p == nil {
		return container{}, "", errors.New("the pod is not on this node any more")
	}
	spec := p.object.GetSpec()
	if name == "" {
		if n := len(spec.GetContainers()); n != 1 {
			return container{}, "", fmt.Errorf("the pod has %d containers: say which one", n)
		}
		name = spec.GetContainers()[0].GetName()
	}
	for _, list := range [][]*schedulingv1.Container{spec.GetContainers(), spec.GetInitContainers()} {
		for _, of := range list {
			if of.GetName() != name {
				continue
			}
			if c := p.record.Containers[name]; c != nil {
				return *c, name, nil
			}
			return container{}, name, nil
		}
	}
	return container{}, "", fmt.Errorf("the pod has no container %q", name)
}

// writes reports whether the start of a container still runs.
func (s *Pods) writes(uid, name string, start int) bool {
	c, _, err := s.find(uid, name)
	return err == nil && c.Starts == start && c.Exit == nil
}

// beginning returns where the first whole line of a log begins.
func beginning(f *os.File) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	if err != nil || at == 0 {
		return 0, nil // it is empty, or the file system knows no holes
	}
	buf := make([]byte, chunk)
	n, err := f.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return at + int64(bytes.IndexByte(buf[:n], '\n')+1), nil
}

// since returns where to begin for what was written in the last seconds, where that can be said: nothing if the file is
// older than that, everything if the container is younger.
func since(f *os.File, from int64, c container, r *schedulingv1.GetPodLogRequest) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	then := time.Now().Add(-time.Duration(r.GetSinceSeconds()) * time.Second)
	began := c.Since
	if r.GetPrevious() && c.Last != nil {
		began = c.Last.Started
	}
	switch {
	case info.ModTime().Before(then):
		return info.Size(), nil
	case !began.Before(then):
		return from, nil
	}
	return 0, errors.New("sinceSeconds reaches into the middle of the log: the time of a line is not kept; use tailLines")
}

// tail returns where the last lines of a log begin, from or later.
func tail(f *os.File, from int64, lines int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	at, size := info.Size(), info.Size()
	if lines == 0 {
		return size, nil
	}
	buf := make([]byte, chunk)
	for at > from {
		n := min(int64(len(buf)), at-from)
		at -= n
		if _, err := f.ReadAt(buf[:n], at); err != nil {
			return 0, err
		}
		for i := n - 1; i >= 0; i-- {
			if buf[i] != '\n' || at+i == size-1 { // the last one ends the last line
				continue
			}
			if lines--; lines == 0 {
				return at + i + 1, nil
			}
		}
	}
	return from, nil
}

// copyLog sends a file to its end, and what is written to it then as long as more may come.
func copyLog(ctx context.Context, f *os.File, send func([]byte) error, more func() bool) error {
	buf := make([]byte, chunk)
	tick := time.NewTicker(followTick)
	defer tick.Stop()
	for last := false; ; {
		n, err := f.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if last {
			return nil
		}
		if err := behindEnd(f); err != nil {
			return err
		}
		if last = !more(); last {
			continue // what was written before the end
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// behindEnd has a file that was shortened read on from its end, as process.TrimLog does it where there are no holes.
func behindEnd(f *os.File) error {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < at {
		_, err = f.Seek(0, io.SeekEnd)
	}
	return err
}
