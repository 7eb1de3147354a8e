package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

// handle refers to one running process by a pidfd, which never refers to another process even if its pid is reused.
type handle struct {
	record
	started time.Time
	grace   time.Duration // guarded by the keeper's mutex
	exited  chan struct{} // closed when the process ended; a zombie has ended

	beside sync.Mutex // held while something is started beside it
	closed bool       // nothing is started beside it any more; guarded by beside
	pidfd  *os.File
	conn   syscall.RawConn
	idle   chan struct{} // closed when await no longer uses pidfd

	// asked are the members as the process was asked to end, where no control group has them: once their parent has
	// ended, some may not be found.
	asked processes
}

// newRecord returns the record of a process before it runs, with a new marker, and creates its control group.
func newRecord(spec Spec, groups cgroup.Tree) (record, error) {
	r, err := here()
	if err != nil {
		return r, err
	}
	r.Mark, r.Path, r.Args, r.Digest, r.Grace = newMark(), spec.Path, spec.Args, spec.digest(), spec.grace()
	r.Once, r.Pool, r.Wrapper = spec.Once, spec.Pool, spec.Wrapper
	if spec.User != nil && spec.User.UID != uint32(os.Geteuid()) {
		r.UID = spec.User.UID
	}
	group, err := groups.Make(cgroup.Pool{Name: spec.Pool, Limits: spec.PoolLimits}, r.Mark, spec.Limits)
	if err != nil {
		return r, fmt.Errorf("control group: %w", err)
	}
	r.Cgroup, r.Controllers = group.Path, group.Controllers
	return r, nil
}

// launch starts spec as a detached process with the marker of rec in its environment. Between fork and exec the child
// holds a copy of the supervisor's lock file. If the supervisor dies in that moment, the next one gets the lock only
// once the child can be found by its marker.
func launch(dir string, spec Spec, rec record) (*handle, error) {
	stdout, stderr, err := openOutput(spec)
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	defer stderr.Close()
	files, err := openFiles(spec.Files)
	defer closeAll(files)
	if err != nil {
		return nil, err
	}
	try := func() (*exec.Cmd, error) {
		cmd := exec.Command(spec.Path, spec.Args...)
		cmd.Dir = spec.Dir
		cmd.Env = append(spec.environ(), markers(dir, spec, rec.Mark)...) // the last one of a name counts
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = stdout, stderr, files    // nothing else: listeners are never inherited
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd, rec.start(cmd, spec)
	}
	cmd, err := try()
	// for example without clone3: it runs without a group, unless it has limits, or its pool has as many as it may have
	if err != nil && rec.Cgroup != "" && !spec.bound() && !errors.Is(err, errIsolation) &&
		!errors.Is(err, ErrTooManyProcesses) {
		rec.group().Discard()
		rec.Cgroup, rec.Controllers = "", cgroup.Controllers{}
		cmd, err = try()
	}
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	if spec.Pool != "" {
		// A process that has ended by now may have no group any more; a weight alone ends nothing.
		_ = rec.group().Weigh(spec.PoolLimits, spec.Limits)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // reap waits for it, so that no goroutine is tied to a process that outlives the supervisor
	st, err := readStat(pid)
	if err != nil && !errors.Is(err, ErrNoProcess) {
		return nil, reapBroken(pid, err)
	}
	rec.PID, rec.StartTime = pid, st.startTime
	h, err := rec.hold() // no confirm: the pid of a child is not reused before the child is reaped
	if err != nil {
		return nil, reapBroken(pid, err)
	}
	return h, nil
}

// errIsolation means that a process cannot be given its root, or what it is to have mounted.
var errIsolation = errors.New("no isolation")

// start starts the process of spec, in the control group of r if there is one.
func (r *record) start(cmd *exec.Cmd, spec Spec) error {
	return r.startInside(cmd, spec.User, func() (at stage, err error) {
		if at, r.Mounts, err = spec.isolate(); err == nil && spec.Confined {
			err = confine()
		}
		if err != nil {
			return at, fmt.Errorf("%w: %w", errIsolation, err)
		}
		return at, nil
	})
}

// startInside starts a command as a user, in the control group of r, if there is one. It is in that group before it
// runs. The thread that starts it calls enter before.
func (r *record) startInside(cmd *exec.Cmd, user *User, enter func() (stage, error)) error {
	if r.Cgroup == "" {
		return start(cmd, user, enter)
	}
	group, err := os.Open(r.Cgroup)
	if err != nil {
		return err
	}
	defer group.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	err = start(cmd, user, func() (stage, error) {
		if err := r.group().Enter(); err != nil {
			return stage{}, fmt.Errorf("control group: %w", err)
		}
		return enter()
	})
	if errors.Is(err, unix.EAGAIN) && r.Pool != "" {
		return r.tooMany(err)
	}
	return err
}

// tooMany says of an error why no process was started in the pool. The thread that starts one counts for that moment,
// too, and the host may have no numbers left, so whether the pool is full is not seen from its present count.
func (r *record) tooMany(err error) error {
	n := r.group().ProcessLimit()
	if n == 0 {
		return fmt.Errorf("%w on this host: %w", ErrTooManyProcesses, err)
	}
	return fmt.Errorf("%w: the limit of %d processes and threads, or one of the host, is reached: %w",
		ErrTooManyProcesses, n, err)
}

// join gives the calling thread, which must be locked and end soon, a copy of the mounts that the process was started
// with, and its hostname, and has it be outside of its root. A process may have changed its own mounts since: those are
// not joined.
func (h *handle) join() (stage, error) {
	var opened []*os.File
	defer func() { closeAll(opened) }()
	for _, name := range []string{fmt.Sprintf("%d/ns/uts", h.PID), fmt.Sprintf("%d/ns/mnt", h.PID), ""} {
		f, err := os.Open("/proc/" + name)
		if err != nil {
			return stage{}, h.unlessGone(err)
		}
		opened = append(opened, f)
	}
	if now, err := inode(opened[1]); err != nil || now != h.Mounts {
		return stage{}, h.unlessGone(errors.Join(errors.New("the process has other mounts than it was started with"), err))
	}
	for _, do := range []func() error{
		func() error { return unix.Unshare(unix.CLONE_FS) },
		func() error { return unix.Setns(int(opened[0].Fd()), unix.CLONE_NEWUTS) },
		func() error { return unix.Setns(int(opened[1].Fd()), unix.CLONE_NEWNS) },
		func() error { return unix.Unshare(unix.CLONE_NEWNS) }, // nothing of the process sees what is changed
	} {
		if err := do(); err != nil {
			return stage{}, err
		}
	}
	return newStage(opened[2])
}

// bound reports whether a process must not run without its limits.
func (spec Spec) bound() bool { return spec.Limits.Bound() || spec.PoolLimits.Bound() }

// Start starts a command as another user, without supplementary groups and with no_new_privs, so that neither setuid
// programs nor file capabilities add privileges. If user is nil it only starts the command. It requires the
// capabilities SETUID and SETGID.
func Start(cmd *exec.Cmd, user *User) error {
	if user == nil {
		return cmd.Start()
	}
	return start(cmd, user, func() (stage, error) { return stage{}, nil })
}

// start starts a command on a thread on which enter was called before. If that has the thread be outside of a root, the
// command has that root.
func start(cmd *exec.Cmd, user *User, enter func() (stage, error)) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if user != nil {
		user.on(cmd.SysProcAttr)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if cmd.Stdin == nil { // the command would open it where the thread is
		cmd.Stdin = null
	}
	if cmd.Stdout == nil {
		cmd.Stdout = null
	}
	if cmd.Stderr == nil {
		cmd.Stderr = null
	}
	onOwnThread(func() {
		if user != nil {
			if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				err = fmt.Errorf("no_new_privs: %w", err)
				return
			}
			if err = unix.Setgroups(nil); err != nil { // of this thread, which opens files as the user
				err = fmt.Errorf("supplementary groups: %w", err)
				return
			}
		}
		var at stage
		if at, err = enter(); err != nil {
			at.close()
			return
		}
		if cmd.SysProcAttr.Chroot = at.root; at.root != "" && cmd.Dir == "" {
			cmd.Dir = "/"
		}
		if err = cmd.Start(); err != nil {
			at.close()
			return
		}
		if err = at.leave(); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return err
}

// on has a process start as the user.
func (u User) on(attr *syscall.SysProcAttr) {
	attr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID}
	if u.Inside == nil {
		return
	}
	attr.Credential.Uid, attr.Credential.Gid = u.Inside.UID, u.Inside.GID
	attr.Cloneflags |= syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.Inside.UID), HostID: int(u.UID), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.Inside.GID), HostID: int(u.GID), Size: 1}}
	attr.GidMappingsEnableSetgroups = true
}

// onOwnThread calls f on a thread that ends then, since it keeps no_new_privs and control groups. That is never the
// first thread: it would not end, and its memory is counted in its control group, which is that of this whole process.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(f) // on another one, for this one is taken until then
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// reapBroken kills a child that cannot be supervised: there must never be two processes of one name.
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

// openOutput returns where standard output and error go, which may be the same file.
func openOutput(spec Spec) (stdout, stderr *os.File, err error) {
	if spec.Stdout == "" {
		log, err := openLog(spec)
		return log, log, err
	}
	if stdout, err = openPipe(spec.Stdout); err != nil {
		return nil, nil, err
	}
	if stderr, err = openPipe(spec.Stderr); err != nil {
		stdout.Close()
	}
	return stdout, stderr, err
}

// openPipe opens a named pipe as a process gets it. A File of os would make it non-blocking, also for the process.
func openPipe(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
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
	if spec.User != nil { // programs may reopen /dev/stdout, which requires write permission for the file
		if err := give(f, *spec.User); err != nil {
			f.Close()
			return nil, fmt.Errorf("log file: %w", err)
		}
	}
	return f, nil
}

// MakePipe makes a named pipe for the output of a process of a user, nil for this process's own. It replaces nothing.
func MakePipe(path string, user *User) error {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	if user == nil {
		return nil
	}
	f, err := openPipe(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return give(f, *user)
}

// give changes the owner of a file to a user; the supervisor's group may still read and write it.
func give(f *os.File, to User) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == to.UID {
		return nil
	}
	// The mode is changed while this process owns the file, which requires no further capability.
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

// open returns a handle of the process of r, or ErrNoProcess if it no longer runs. The pidfd is opened first and
// everything else is compared after that: if it matches then, the pidfd refers to that process permanently.
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

// hold opens the pidfd of the process that has that pid now.
func (r record) hold() (*handle, error) {
	fd, err := unix.PidfdOpen(r.PID, unix.PIDFD_NONBLOCK)
	if scarce(err) {
		return nil, fmt.Errorf("pidfd of %d: %w", r.PID, err)
	}
	// any other error means that the pid is not that process, for example that it is a thread (EINVAL before Linux 6.9,
	// ENOENT since)
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

// confirm returns when the process started, or ErrNoProcess if the pid belongs to another process or to none: the
// process is gone unless boot, pid namespace, start time, session and marker match.
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
	if err == nil { // an error means that the handle was closed
		close(h.exited)
	}
}

// signal sends sig to the group that the process leads, or to its family if it is in a pool.
func (h *handle) signal(sig syscall.Signal) error {
	if h.Pool == "" {
		return h.signalLed(sig)
	}
	select {
	case <-h.exited:
		return ErrNoProcess
	default:
	}
	err := h.signalFamily(sig)
	if sig == unix.SIGKILL { // it ends wherever it went; last, since children are found by their parents
		err = errors.Join(err, h.signalLed(sig))
	}
	return err
}

// signalLed sends sig to the group that the process leads.
func (h *handle) signalLed(sig syscall.Signal) error {
	var sent error
	err := h.conn.Control(func(fd uintptr) { sent = signalGroup(int(fd), h.PID, sig) })
	return h.unlessGone(errors.Join(err, sent))
}

// unlessGone returns ErrNoProcess in place of the error that a signal to an ended process has. That of a pidfd which
// was closed since has no value to compare with.
func (h *handle) unlessGone(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-h.exited:
		return ErrNoProcess
	default:
	}
	if errors.Is(err, unix.ESRCH) {
		return ErrNoProcess
	}
	return err
}

// pidfdSignalProcessGroup is PIDFD_SIGNAL_PROCESS_GROUP of linux/pidfd.h.
const pidfdSignalProcessGroup = 1 << 2

// signalGroup sends sig to the process group of pidfd. Linux 6.9 accepts the pidfd for the group, also after its leader
// has ended. Earlier versions accept only the group's number, which is used only while the process exists, so that it
// cannot be reused.
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

// SignalGroup sends sig to the process group that a child leads; os.ErrProcessDone if the child was already waited for.
func SignalGroup(leader *os.Process, sig syscall.Signal) error {
	var sent error
	err := leader.WithHandle(func(pidfd uintptr) { sent = signalGroup(int(pidfd), leader.Pid, sig) })
	return errors.Join(err, sent)
}

// reap returns how the process ended, and reaps it if it is a child. It must be called after exited is closed. It first
// kills what is left in the process group.
func (h *handle) reap() Exit {
	_ = h.signalLed(unix.SIGKILL)
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

// close releases the process, which continues to run.
func (h *handle) close() {
	h.pidfd.Close()
	<-h.idle
}
