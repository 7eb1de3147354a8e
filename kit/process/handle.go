package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// newRecord returns what is known of a process before it runs: its marker, and its control group, which is made.
func newRecord(spec Spec, groups cgroups) (record, error) {
	r, err := here()
	if err != nil {
		return r, err
	}
	r.Mark, r.Path, r.Args, r.Digest, r.Grace, r.Once = newMark(), spec.Path, spec.Args, spec.digest(), spec.grace(),
		spec.Once
	if spec.User != nil && spec.User.UID != uint32(os.Geteuid()) {
		r.UID = spec.User.UID
	}
	if r.Cgroup, err = groups.make(r.Mark); err != nil {
		r.Cgroup = ""
		return r, fmt.Errorf("control group: %w", err)
	}
	return r, nil
}

// discard removes what was made for a process that does not run.
func (r record) discard() {
	if r.Cgroup != "" {
		_ = unix.Rmdir(r.Cgroup) // else the next supervisor's sweep does it
	}
}

// launch starts spec as a detached process with the marker of rec in its environment.
//
// Between fork and exec the child holds a copy of the supervisor's lock file. So should the supervisor die in
// that moment, the next one gets the lock only when the child can be found by its marker.
func launch(dir string, spec Spec, rec record) (*handle, error) {
	log, err := openLog(spec)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	files, err := openFiles(spec.Files)
	defer closeAll(files)
	if err != nil {
		return nil, err
	}
	command := func() *exec.Cmd {
		cmd := exec.Command(spec.Path, spec.Args...)
		cmd.Dir = spec.Dir
		cmd.Env = append(spec.environ(), markers(dir, spec, rec.Mark)...) // the last one of a name counts
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, files          // nothing else: no listener is ever passed on
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd
	}
	cmd := command()
	if err = rec.startInside(cmd, spec.User); err != nil && rec.Cgroup != "" { // no clone3, say: it runs without a group
		rec.discard()
		rec.Cgroup = ""
		cmd = command()
		err = Start(cmd, spec.User)
	}
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // reap does the waiting, so that no goroutine is tied to a process that outlives us
	st, err := readStat(pid)
	if err != nil && !errors.Is(err, ErrNoProcess) {
		return nil, reapBroken(pid, err)
	}
	rec.PID, rec.StartTime = pid, st.startTime
	h, err := rec.hold() // nothing to confirm: the pid of a child is free only after it was reaped
	if err != nil {
		return nil, reapBroken(pid, err)
	}
	return h, nil
}

// startInside starts a command in the control group of r, if there is one.
func (r record) startInside(cmd *exec.Cmd, user *User) error {
	if r.Cgroup == "" {
		return Start(cmd, user)
	}
	group, err := os.Open(r.Cgroup)
	if err != nil {
		return err
	}
	defer group.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	return Start(cmd, user)
}

// Start starts a command as another user, without supplementary groups and with no_new_privs, so that neither a setuid
// program nor a file's capabilities give it more; as this process's own user and as it is if user is nil. It takes the
// capabilities SETUID and SETGID.
func Start(cmd *exec.Cmd, user *User) error {
	if user == nil {
		return cmd.Start()
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which has no_new_privs now, ends with the goroutine
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			started <- fmt.Errorf("no_new_privs: %w", err)
			return
		}
		started <- cmd.Start()
	}()
	return <-started
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

func openLog(spec Spec) (*os.File, error) {
	path := spec.LogFile
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	if spec.User != nil { // programs open /dev/stdout again, which takes the right to write to the file
		if err := give(f, *spec.User); err != nil {
			f.Close()
			return nil, fmt.Errorf("log file: %w", err)
		}
	}
	return f, nil
}

// give makes a file a user's; the supervisor's group may still read and write it.
func give(f *os.File, to User) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == to.UID {
		return nil
	}
	// The mode is changed while the file is ours, which takes no further capability.
	return errors.Join(f.Chown(os.Geteuid(), os.Getegid()), f.Chmod(0o660), f.Chown(int(to.UID), os.Getegid()))
}

func openFiles(list []File) ([]*os.File, error) {
	var out []*os.File
	for _, file := range list {
		flags := os.O_RDONLY
		if file.Write {
			flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND | unix.O_NOFOLLOW
		}
		f, err := os.OpenFile(file.Path, flags, 0o600)
		if err != nil {
			return out, err
		}
		out = append(out, f)
	}
	return out, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// open holds on to the process that r means, or returns ErrNoProcess if it does not run any more. The pidfd comes
// first and everything else is compared after that: if it is right then, the pidfd is that process for ever.
func (r record) open() (*handle, error) {
	if r.PID <= 0 {
		return nil, ErrNoProcess
	}
	h, err := r.hold()
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
	if scarce(err) {
		return nil, fmt.Errorf("pidfd of %d: %w", r.PID, err)
	}
	// whatever else the kernel says of the id, a thread's say (EINVAL before Linux 6.9, ENOENT since): it is not that
	// process
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w (%w)", r.PID, ErrNoProcess, err)
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
		h.grace = defaultGrace
	}
	go h.await()
	return h, nil
}

// confirm returns when the process started, or ErrNoProcess if the pid means another or a dead one: unless boot, pid
// namespace, start time, session and marker are right, the process is gone.
func (r record) confirm() (time.Time, error) {
	if here, err := r.reachable(); err != nil {
		return time.Time{}, err
	} else if !here {
		return time.Time{}, ErrNoProcess
	}
	st, err := readStat(r.PID)
	if err != nil {
		return time.Time{}, err
	}
	if st.startTime != r.StartTime || st.session != r.PID || !r.marks(r.PID) {
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

// signal sends sig to the group that the process leads.
func (h *handle) signal(sig syscall.Signal) error {
	var sent error
	err := h.conn.Control(func(fd uintptr) { sent = signalGroup(int(fd), h.PID, sig) })
	if err = errors.Join(err, sent); errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return ErrNoProcess
	}
	return err
}

// pidfdSignalProcessGroup is PIDFD_SIGNAL_PROCESS_GROUP of linux/pidfd.h.
const pidfdSignalProcessGroup = 1 << 2

// signalGroup sends sig to the group of the process that pidfd is. Linux 6.9 takes the pidfd itself for the group, also
// when its leader is gone. Before that the number of the group is all there is: it is used only as long as the process
// keeps it from being another's.
func signalGroup(pidfd, pid int, sig syscall.Signal) error {
	err := unix.PidfdSendSignal(pidfd, sig, nil, pidfdSignalProcessGroup)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		return err
	}
	return unix.Kill(-pid, sig)
}

// SignalGroup sends sig to the group that a child leads which was not waited for yet; os.ErrProcessDone if it was.
func SignalGroup(leader *os.Process, sig syscall.Signal) error {
	var sent error
	err := leader.WithHandle(func(pidfd uintptr) { sent = signalGroup(int(pidfd), leader.Pid, sig) })
	return errors.Join(err, sent)
}

// reap tells how the process ended, after exited is closed, and takes its zombie away if it was our child. What it left
// behind in its group ends before that.
func (h *handle) reap() Exit {
	_ = h.signal(unix.SIGKILL)
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
