package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// handle is a hold on one running process: a pidfd, which never means another process, however pids are reused.
type handle struct {
	record
	started time.Time
	grace   time.Duration // guarded by the keeper's mutex
	exited  chan struct{} // closed when the process ended; a zombie has ended
	pidfd   *os.File
	conn    syscall.RawConn
	idle    chan struct{} // closed when nobody waits on pidfd any more
}

// launch starts spec as a detached process with the marker of dir in its environment.
//
// Between fork and exec the child holds a copy of the supervisor's lock file. So should the supervisor die in
// that moment, the next one gets the lock only when the child can be found by its marker.
func launch(dir string, spec Spec) (*handle, error) {
	log, err := openLog(spec.LogFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir = spec.Dir
	cmd.Env = append(spec.environ(), markers(dir, spec)...) // the last one of a name counts
	cmd.Stdout, cmd.Stderr = log, log                       // nothing else: no listener is ever passed on
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // reap does the waiting, so that no goroutine is tied to a process that outlives us
	rec, err := recordOf(pid)
	if err != nil {
		return nil, reapBroken(pid, err)
	}
	rec.Path, rec.Args, rec.Digest, rec.Grace, rec.Once = spec.Path, spec.Args, spec.digest(), spec.grace(), spec.Once
	h, err := rec.hold() // nothing to confirm: the pid of a child is free only after it was reaped
	if err != nil {
		return nil, reapBroken(pid, err)
	}
	return h, nil
}

// reapBroken ends a child that cannot be held on to; there must never be two of one name.
func reapBroken(pid int, cause error) error {
	_ = unix.Kill(pid, unix.SIGKILL)
	_, err := unix.Wait4(pid, nil, 0, nil)
	return errors.Join(cause, err)
}

func (spec Spec) environ() []string {
	if spec.OnlyEnv {
		return slices.Clone(spec.Env)
	}
	return append(os.Environ(), spec.Env...)
}

func openLog(path string) (*os.File, error) {
	if path == "" {
		path = os.DevNull
	} else if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// open holds on to the process that r means, or returns ErrNoProcess if it does not run any more. The pidfd comes
// first and the start time is compared after that: if it is right then, the pidfd is that process for ever.
func (r record) open() (*handle, error) {
	if r.PID <= 0 {
		return nil, ErrNoProcess
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if r.Boot != boot {
		return nil, ErrNoProcess
	}
	h, err := r.hold()
	if errors.Is(err, ErrNoProcess) {
		_ = unix.Kill(-r.PID, unix.SIGKILL) // what it left behind: its number is nobody else's while somebody is in its group
	}
	if err != nil {
		return nil, err
	}
	if h.started, err = r.confirm(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// hold opens the pidfd of whatever process has that pid now.
func (r record) hold() (*handle, error) {
	fd, err := unix.PidfdOpen(r.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: now the id of a thread
		return nil, ErrNoProcess
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", r.PID, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	conn, err := pidfd.SyscallConn()
	if err != nil {
		pidfd.Close()
		return nil, fmt.Errorf("pidfd of %d: %w", r.PID, err)
	}
	h := &handle{
		record: r, started: time.Now(), grace: r.Grace,
		exited: make(chan struct{}), pidfd: pidfd, conn: conn, idle: make(chan struct{}),
	}
	if h.grace <= 0 {
		h.grace = DefaultGrace
	}
	go h.await()
	return h, nil
}

// confirm returns when the process started, or ErrNoProcess if the pid means another or a dead one.
func (r record) confirm() (time.Time, error) {
	st, err := readStat(r.PID)
	if err != nil {
		return time.Time{}, err
	}
	if st.startTime != r.StartTime {
		return time.Time{}, ErrNoProcess
	}
	return st.started()
}

func (h *handle) await() {
	defer close(h.idle)
	err := h.conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n == 1
	})
	if err == nil { // else the handle was closed
		close(h.exited)
	}
}

// signal sends sig to the group that the process leads. The pidfd says first that the process is still there, so that the group is its own.
func (h *handle) signal(sig syscall.Signal) error {
	var sent error
	err := h.conn.Control(func(fd uintptr) {
		if sent = unix.PidfdSendSignal(int(fd), 0, nil, 0); sent == nil {
			sent = unix.Kill(-h.PID, sig)
		}
	})
	if err = errors.Join(err, sent); errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return ErrNoProcess
	}
	return err
}

// reap tells how the process ended, after exited is closed, and takes its zombie away if it was our child. What it left behind in its group
// ends before that: the number of the group is not given to another one as long as somebody is in it.
func (h *handle) reap() Exit {
	_ = unix.Kill(-h.PID, unix.SIGKILL)
	exit := Exit{At: time.Now()}
	var ws unix.WaitStatus
	pid, err := unix.Wait4(h.PID, &ws, unix.WNOHANG, nil)
	for errors.Is(err, unix.EINTR) {
		pid, err = unix.Wait4(h.PID, &ws, unix.WNOHANG, nil)
	}
	if err != nil || pid != h.PID {
		return exit
	}
	exit.Known = true
	if ws.Signaled() {
		exit.Signal = ws.Signal()
	} else {
		exit.Code = ws.ExitStatus()
	}
	return exit
}

// close lets go of the process.
func (h *handle) close() {
	h.pidfd.Close()
	<-h.idle
}
