package pods

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/logger"
)

const (
	loggerProcess = "logger"
	logsDir       = "logs" // of a container; each start has a directory in it

	loggerAgain = 100 * time.Millisecond
	// logPatience is how long the end of a container waits for the end of its log. It takes a millisecond unless there is
	// no logger, or the disk does not answer.
	logPatience = 30 * time.Second
)

// logs is what the logger is to do. The logger process is started with the first container and runs from then on, also
// while no agent does. While a container runs, the agent has its pipes open as well: what is in them is lost only if
// the container, the logger and the agent all end.
type logs struct {
	mu      sync.Mutex
	open    map[string]pipes // by the directory of the start
	changes int              // of open
	known   int              // changes that the logger carried out
	carried chan struct{}    // closed and replaced when it did
	wake    chan struct{}    // capacity 1
}

// pipes are those of one start.
type pipes struct {
	stdout, stderr int // file descriptors
	change         int // that opened them
}

func newLogs() *logs {
	return &logs{open: map[string]pipes{}, carried: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (l *logs) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// startLogDir returns where the log of a start of a container is.
func startLogDir(dir string, start int) string {
	return filepath.Join(dir, logsDir, strconv.Itoa(start))
}

// makeLog makes the pipes of the next start of a container in dir. Of earlier logs only the last one stays.
func (s *Pods) makeLog(dir string, start int, user *process.User) (stdout, stderr string, err error) {
	at := startLogDir(dir, start)
	if err := errors.Join(process.RemoveAll(at), keepLast(dir, start-1)); err != nil {
		return "", "", err
	}
	if err := s.makeDir(at); err != nil {
		return "", "", err
	}
	stdout, stderr = filepath.Join(at, logger.Stdout), filepath.Join(at, logger.Stderr)
	if err := errors.Join(logger.Make(at), process.MakePipe(stdout, user), process.MakePipe(stderr, user)); err != nil {
		return "", "", err
	}
	return stdout, stderr, s.log(at)
}

// keepLast removes the logs of all starts of a container but the last.
func keepLast(dir string, last int) error {
	entries, err := os.ReadDir(filepath.Join(dir, logsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() != strconv.Itoa(last) {
			if err := process.RemoveAll(filepath.Join(dir, logsDir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// log has the logger log what comes from the pipes in a directory.
func (s *Pods) log(dir string) error {
	stdout, err := holdPipe(filepath.Join(dir, logger.Stdout))
	if err != nil {
		return err
	}
	stderr, err := holdPipe(filepath.Join(dir, logger.Stderr))
	if err != nil {
		_ = unix.Close(stdout)
		return err
	}
	l := s.logs
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
	l.open[dir] = pipes{stdout, stderr, l.changes}
	l.nudge()
	return nil
}

// holdPipe opens a pipe, not as a File: nothing is read from it or written to it.
func holdPipe(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// adoptLogs has what containers that run write logged again.
func (s *Pods) adoptLogs(ctx context.Context) {
	s.mu.Lock()
	var dirs []string
	for _, p := range s.pods {
		for _, c := range p.record.Containers {
			if c.Starts > 0 && c.Exit == nil && c.Spec.Stdout != "" {
				dirs = append(dirs, filepath.Dir(c.Spec.Stdout))
			}
		}
	}
	s.mu.Unlock()
	for _, dir := range dirs {
		if err := s.log(dir); err != nil {
			s.cfg.Log.WarnContext(ctx, "container is not logged", "directory", dir, "error", err)
		}
	}
}

// keepLogs has the logger do what it is to do, until ctx ends.
func (s *Pods) keepLogs(ctx context.Context) error {
	defer s.logs.release()
	for said := false; ; {
		select {
		case <-s.logs.wake:
		case <-ctx.Done():
			return nil
		}
		err := s.tellLogger(ctx)
		if err == nil {
			said = false
			continue
		}
		if !said && ctx.Err() == nil {
			s.cfg.Log.InfoContext(ctx, "container logger not reached", "error", err)
			said = true
		}
		time.AfterFunc(loggerAgain, s.logs.nudge)
	}
}

func (s *Pods) tellLogger(ctx context.Context) error {
	l := s.logs
	l.mu.Lock()
	changes := l.changes
	dirs := make([]string, 0, len(l.open))
	for dir := range l.open {
		dirs = append(dirs, dir)
	}
	l.mu.Unlock()
	if changes == 0 {
		return nil // no container has started yet
	}
	if err := os.MkdirAll(s.cfg.LoggerDir, 0o700); err != nil {
		return err
	}
	command := s.cfg.LoggerCommand
	if err := s.cfg.Supervisor.Ensure(process.Spec{
		Name: loggerProcess, Path: command[0], Args: append(command[1:len(command):len(command)], "--dir", s.cfg.LoggerDir),
		LogFile: filepath.Join(s.cfg.LoggerDir, "log"), Changed: l.nudge,
	}); err != nil {
		return err
	}
	if err := logger.Follow(ctx, s.cfg.LoggerDir, dirs); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = changes
	close(l.carried)
	l.carried = make(chan struct{})
	return nil
}

// finish waits until everything that an ended container wrote is in its log, and removes its pipes.
func (l *logs) finish(ctx context.Context, dir string) error {
	l.mu.Lock()
	held, ok := l.open[dir]
	l.mu.Unlock()
	if !ok {
		return nil // its pipes could not be opened
	}
	err := l.await(ctx, held.change) // it may have ended before the logger knew it
	l.mu.Lock()
	delete(l.open, dir)
	l.changes++
	mine := l.changes
	l.nudge()
	l.mu.Unlock()
	if err == nil {
		err = l.await(ctx, mine)
	}
	_ = unix.Close(held.stdout)
	_ = unix.Close(held.stderr)
	if err != nil {
		return err
	}
	for _, name := range []string{logger.Stdout, logger.Stderr} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// await waits until the logger carried out what was to be done after that many changes.
func (l *logs) await(ctx context.Context, changes int) error {
	for {
		l.mu.Lock()
		known, carried := l.known, l.carried
		l.mu.Unlock()
		if known >= changes {
			return nil
		}
		select {
		case <-carried:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release closes the pipes: containers and logger have them.
func (l *logs) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for dir, p := range l.open {
		delete(l.open, dir)
		_ = unix.Close(p.stdout)
		_ = unix.Close(p.stderr)
	}
}

// logged reports whether all that a container which ended wrote is in its log. If not, the pod is settled again when it
// is.
func (s *Pods) logged(p *pod, c *container) bool {
	if c.Spec.Stdout == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.logged == nil {
		done := make(chan struct{})
		c.logged = done
		dir := filepath.Dir(c.Spec.Stdout)
		s.jobs.Go(func() {
			ctx, cancel := context.WithTimeout(s.life, logPatience)
			defer cancel()
			if err := s.logs.finish(ctx, dir); err != nil {
				if s.life.Err() != nil {
					return // the next agent does it
				}
				s.cfg.Log.WarnContext(ctx, "the end of a container's log may be missing", "directory", dir, "error", err)
			}
			close(done)
			s.settled.Add(p.uid)
		})
		return false
	}
	select {
	case <-c.logged:
		return true
	default:
		return false
	}
}
