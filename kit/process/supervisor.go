// Package process keeps detached operating-system processes running: each in a session of its own, so that it outlives
// its supervisor, and is taken over by the next one instead of being started twice. Signals are sent to the process
// group, and what a process leaves behind when it ends is killed. A process is identified by its pid together with its
// start time, the boot, the pid namespace and a marker, a random ID in its environment; all are written to
// <runDir>/<name>.json. If one of them differs, the process is gone and its pid belongs to another one, which is never
// signalled. The marker also finds a process whose supervisor died before it could write that file. What a process left
// behind is found by its control group if the unified hierarchy is writable, also beside controllers of version 1, else
// by the marker, its session and its parent: without control groups, a child is not found that has left its session,
// dropped its environment and lost its parent. The record of a process goes when nothing of it runs. A lock
// ensures that one Supervisor owns a runDir at a time. Linux only: exits are detected through pidfds, which also work
// for processes that are not children of the supervisor. The package does not check whether a process is ready.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

var (
	// ErrLocked means that another living supervisor owns the run directory.
	ErrLocked = errors.New("run directory is owned by another supervisor")
	// ErrNotRunning means that the supervisor's Run is not active, or ended before the request was done.
	ErrNotRunning = errors.New("supervisor is not running")
	// ErrNoProcess means that no process of that name runs.
	ErrNoProcess = errors.New("no such process")
	// ErrTooManyProcesses means that a process was not started since its pool has as many as it may have, or the host has.
	ErrTooManyProcesses = errors.New("too many processes")
)

// defaultGrace is the time from SIGTERM to SIGKILL for a Spec that names none.
const defaultGrace = 10 * time.Second

// Spec describes a process. Specs that differ in any field are different processes, except Grace, FinalExits, Once,
// Wrapper, Changed, PoolLimits.Processes, and what only says how it is isolated: Root, Mounts, Confined, and
// User.Inside.
type Spec struct {
	// file name of the process in the run directory: letters, digits, "-", "_" and "."; unique per supervisor
	Name string
	Path string   // of the executable, absolute
	Args []string // without the program's name
	Env  []string // KEY=value, added to the supervisor's environment
	Dir  string   // working directory; empty: the supervisor's
	// standard output and error are appended to it, and its older part is dropped as it grows; empty:
	// discarded
	LogFile string
	// Stdout and Stderr, if they are not empty, are named pipes that standard output and error go to instead of LogFile.
	// They are opened for reading, too: the process neither fails nor waits for a reader unless a pipe is full. They must
	// belong to User, for programs that reopen their output.
	Stdout string `json:",omitempty"`
	Stderr string `json:",omitempty"`

	Grace      time.Duration // from SIGTERM to SIGKILL when stopped; zero: 10 s
	FinalExits []int         // exit codes after which it is not started again until stopped or changed

	// Once means that it is started at most once, by this supervisor or an earlier one. After any end it is Final until it
	// is stopped or changed.
	Once bool
	// Serial distinguishes specs that are otherwise equal: another number is another process.
	Serial int `json:",omitempty"`
	// OnlyEnv means that the process gets only Env, without the supervisor's environment.
	OnlyEnv bool
	// User is the user that the process runs as, without supplementary groups and with no_new_privs; nil: the
	// supervisor's. It requires the capabilities SETUID, SETGID, CHOWN and KILL. The log file then belongs to that user
	// and the supervisor's group.
	User *User `json:",omitempty"`
	// Files are opened by the supervisor, with its own rights, and passed as descriptors 3, 4 and so on.
	Files []File `json:",omitempty"`
	// Root is what the process has as its root directory, nil for the supervisor's. Path and Dir are then in it; Files are
	// the supervisor's, so that Path can be one of these, as /proc/self/fd/3.
	Root *Root `json:",omitempty"`
	// Mounts are shown to the process and what it starts, also by StartBeside. They require CanMount.
	Mounts []Mount `json:",omitempty"`
	// Confined refuses the process, and what it starts, the system calls that are of use only to administrators of a host,
	// or reach more of the kernel than programs need. It requires User and CanConfine.
	Confined bool `json:",omitempty"`
	// Pool is what the process belongs to, maybe beside others, and which EndPool ends as one; empty: nothing. The names
	// of its processes begin with its name and a dot. Signals for a process of a pool go to everything that it started,
	// also in other process groups.
	Pool string `json:",omitempty"`
	// Limits are what the process and all that it starts may use, PoolLimits what all processes of the pool may use. A
	// process is not started where its limits cannot be enforced: see CanLimit. Requests are in force where limits can be.
	// Both require Pool. PoolLimits.Processes is in force where CanLimitProcesses says so, and is no reason against a
	// start: a process beyond it is not started, nor a command of StartBeside, with ErrTooManyProcesses. It counts all of
	// the pool that was started with it, and becomes that of the last start. Limits.Processes must be 0.
	Limits     cgroup.Limits `json:",omitzero"`
	PoolLimits cgroup.Limits `json:",omitzero"`
	// Wrapper means that the process starts one child, its main process, and ends when that ends: SIGTERM is for the child
	// alone. A process that runs keeps what it was started with.
	Wrapper bool `json:",omitempty"`
	// Changed, if it is not nil, is called after the Status of the process changed. It must not block, nor call the
	// supervisor.
	Changed func() `json:"-"`
}

// User is the user and group that a process runs as. Both are 1 or more.
type User struct {
	UID, GID uint32
	// Inside is what the process takes this user and group for, in a user namespace of its own that has no others; nil
	// without one. It requires CanMap.
	Inside *ID `json:",omitempty"`
}

// ID is a user and a group in a user namespace, of any numbers.
type ID struct{ UID, GID uint32 }

// File is an open file that is passed to a process.
type File struct {
	Path  string // absolute
	Write bool   // opened for appending, and created with mode 0600 if missing; else opened for reading
}

// Status is the state of one process.
type Status struct {
	Name      string
	PID       int  // 0 unless Running
	Running   bool // false between an exit and the next start
	Final     bool // ended with one of Spec.FinalExits, or has Spec.Once, and is not started again
	Restarts  int  // starts by this supervisor after an exit that was not requested
	Since     time.Time
	LastExit  Exit  // zero: none observed by this supervisor
	LastError error // why the last start failed; nil after a successful one
}

// Exit describes how a process ended.
type Exit struct {
	At time.Time `json:"at"`
	// false for a process that is not a child of this supervisor: its exit status is not available
	Known  bool           `json:"known"`
	Code   int            `json:"code"` // if Known and Signal is 0
	Signal syscall.Signal `json:"signal"`
	// OutOfMemory means that the kernel killed it, or a process that it started, for lack of memory.
	OutOfMemory bool `json:"outOfMemory,omitempty"`
}

// String describes the exit for people.
func (e Exit) String() string {
	switch {
	case e.At.IsZero():
		return "none"
	case !e.Known:
		return "ended"
	case e.Signal != 0:
		return "killed by " + e.Signal.String()
	default:
		return fmt.Sprintf("exit code %d", e.Code)
	}
}

// Supervisor keeps a set of processes running. Its methods are safe for concurrent use.
type Supervisor struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	keepers map[string]*keeper
	session *session // nil unless Run is active

	noCgroups bool // set before Run

	active     chan struct{} // closed once Run has been active
	activeOnce sync.Once
}

// session is the state of one call of Run.
type session struct {
	ctx     context.Context
	group   sync.WaitGroup
	strays  strays // processes of earlier supervisors, found after the lock was taken
	cgroups cgroup.Tree
}

// NewSupervisor returns a supervisor of runDir, which Run creates. Nothing runs before Run.
func NewSupervisor(runDir string, log *slog.Logger) *Supervisor {
	return &Supervisor{dir: runDir, log: log, keepers: map[string]*keeper{}, active: make(chan struct{})}
}

// WithoutCgroups has a supervisor that does not run yet use no control groups, as on a host where they are not
// writable.
func (s *Supervisor) WithoutCgroups() *Supervisor {
	s.noCgroups = true
	return s
}

// Run keeps the wanted processes running until ctx ends, and then leaves them running. If another supervisor owns the
// run directory, Run waits a few seconds for it to end and then returns ErrLocked.
func (s *Supervisor) Run(ctx context.Context) error {
	// What this process inherited is not for others: a directory would lead out of their root. Kernels before Linux 5.11
	// cannot.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	dir, err := makeDir(s.dir)
	if err != nil {
		return err
	}
	lock, err := acquire(ctx, filepath.Join(dir, lockName))
	if err != nil {
		return err
	}
	if lock == nil {
		return nil // ctx ended
	}
	defer lock.Close()
	found, err := findStrays(dir)
	if err != nil {
		return err
	}
	ss := &session{ctx: ctx, strays: found}
	if !s.noCgroups {
		ss.cgroups = cgroup.Find(dir)
	}
	if err := sweepUnknown(dir, found, ss.cgroups); err != nil {
		s.log.WarnContext(ctx, "processes of an earlier supervisor are left", "error", err)
	}
	s.begin(dir, ss)
	s.trimLogs(ctx)
	s.end()
	ss.group.Wait()
	return nil
}

// sweepUnknown kills what is in control groups of processes that neither have a record nor were found.
func sweepUnknown(dir string, found strays, groups cgroup.Tree) error {
	known := map[string]bool{}
	for _, r := range found {
		known[r.Mark] = true
	}
	names, err := recorded(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		r, err := readRecord(dir, name)
		if scarce(err) {
			return err // any group may belong to it
		}
		known[r.Mark] = true // the process of a truncated record is among those that were found
	}
	return groups.Sweep(known)
}

// Active is closed once Run owns the run directory; Stop works from then on.
func (s *Supervisor) Active() <-chan struct{} { return s.active }

func (s *Supervisor) begin(dir string, ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir, s.session = dir, ss
	s.activeOnce.Do(func() { close(s.active) })
	for _, k := range s.keepers {
		s.keep(k)
	}
}

func (s *Supervisor) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = nil
}

// keep starts the goroutine of k. The caller holds s.mu and Run is active.
func (s *Supervisor) keep(k *keeper) {
	ss := s.session
	k.attach(s.dir, ss.strays.take(k.name), ss.cgroups)
	ss.group.Go(func() {
		if k.run(ss.ctx) {
			s.forget(k)
		}
	})
}

// forget drops a keeper that has nothing left to do, unless a concurrent call gave it something.
func (s *Supervisor) forget(k *keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.idle() {
		delete(s.keepers, k.name)
		return
	}
	if s.session != nil {
		s.keep(k)
	}
}

// Ensure makes spec the desired state and returns immediately. While Run is active, the process is taken over if it
// runs with an equal spec, restarted if it runs with another, and started otherwise; whenever it ends it is started
// again, with a back-off from 50 ms to 5 s. Before Run, Ensure only records spec. The error describes what is invalid
// about spec; a start that fails later is reported by Status.
func (s *Supervisor) Ensure(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, known := s.keepers[spec.Name]
	if !known {
		// A path in /proc/self/fd is one of Spec.Files, which only the process has.
		if _, err := os.Stat(spec.Path); err != nil && !strings.HasPrefix(spec.Path, "/proc/self/fd/") {
			return fmt.Errorf("process %q: %w", spec.Name, err)
		}
		k = newKeeper(spec.Name, s.log)
		s.keepers[spec.Name] = k
	}
	k.want(spec)
	if !known && s.session != nil {
		s.keep(k) // after want: a keeper without a spec would end the process that it is to take over
	}
	return nil
}

// add creates the keeper of name. The caller holds s.mu.
func (s *Supervisor) add(name string) *keeper {
	k := newKeeper(name, s.log)
	s.keepers[name] = k
	if s.session != nil {
		s.keep(k)
	}
	return k
}

// Stop ends the process, with SIGTERM, and SIGKILL after its grace period. The process is then no longer wanted, and
// its status is dropped. Stop also ends a process that an earlier supervisor left behind and that was not ensured
// since. It returns nil once the process is gone or if there was none; if ctx ends first, stopping continues in the
// background.
func (s *Supervisor) Stop(ctx context.Context, name string) error {
	if err := validName(name); err != nil {
		return err
	}
	s.mu.Lock()
	ss := s.session
	if ss == nil {
		s.mu.Unlock()
		return fmt.Errorf("stop %q: %w", name, ErrNotRunning)
	}
	k := s.keepers[name]
	if k == nil {
		k = s.add(name)
	}
	gone := k.unwant()
	s.mu.Unlock()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %q: %w", name, ctx.Err())
	case <-ss.ctx.Done():
		return fmt.Errorf("stop %q: %w", name, ErrNotRunning)
	}
}

// Signal sends sig to the process and its group, or with Spec.Pool to all that belongs to it; ErrNoProcess if it does
// not run. To end a process permanently, use Stop.
func (s *Supervisor) Signal(name string, sig syscall.Signal) error {
	s.mu.Lock()
	k := s.keepers[name]
	s.mu.Unlock()
	if k == nil {
		return fmt.Errorf("signal %q: %w", name, ErrNoProcess)
	}
	return k.signal(sig)
}

// Ask sends SIGTERM to the main process alone: with Spec.Wrapper to the child of the process. ErrNoProcess if it does
// not run, or not yet: then try again.
func (s *Supervisor) Ask(name string) error {
	s.mu.Lock()
	k := s.keepers[name]
	s.mu.Unlock()
	if k == nil {
		return fmt.Errorf("ask %q to end: %w", name, ErrNoProcess)
	}
	return k.ask()
}

// StartBeside starts a command that belongs to a process: it ends with that process, if it did not before. The command
// must be waited for by the caller. It gets a session of its own. ErrNoProcess if the process does not run.
func (s *Supervisor) StartBeside(name string, cmd *exec.Cmd, user *User) error {
	s.mu.Lock()
	k := s.keepers[name]
	s.mu.Unlock()
	if k == nil {
		return fmt.Errorf("start beside %q: %w", name, ErrNoProcess)
	}
	return k.beside(cmd, user)
}

// CanLimit returns why processes of pools can have no limits on this host; nil if they can.
func (s *Supervisor) CanLimit() error {
	s.mu.Lock()
	ss := s.session
	s.mu.Unlock()
	if ss == nil {
		return ErrNotRunning
	}
	return ss.cgroups.CanLimit()
}

// CanLimitProcesses returns why pools have no limit of processes on this host, whatever PoolLimits say; nil if they
// have.
func (s *Supervisor) CanLimitProcesses() error {
	s.mu.Lock()
	ss := s.session
	s.mu.Unlock()
	if ss == nil {
		return ErrNotRunning
	}
	return ss.cgroups.CanLimitProcesses()
}

// EndPool kills what still runs of a pool whose processes were all stopped. An error means that something may be left.
func (s *Supervisor) EndPool(pool string) error {
	if err := validName(pool); err != nil {
		return err
	}
	s.mu.Lock()
	ss, dir := s.session, s.dir
	s.mu.Unlock()
	if ss == nil {
		return fmt.Errorf("end of pool %q: %w", pool, ErrNotRunning)
	}
	if err := ss.cgroups.End(pool); err != nil {
		return fmt.Errorf("end of pool %q: %w", pool, err)
	}
	if ss.cgroups.Usable() {
		return nil
	}
	return killAll(func() (processes, error) { return descended(dir, pool+".") })
}

// Status returns one entry for each wanted process, ordered by name.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Status, 0, len(s.keepers))
	for _, k := range s.keepers {
		if st, wanted := k.status(); wanted {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Lookup returns the status of one wanted process; false if it is not wanted.
func (s *Supervisor) Lookup(name string) (Status, bool) {
	s.mu.Lock()
	k := s.keepers[name]
	s.mu.Unlock()
	if k == nil {
		return Status{}, false
	}
	return k.status()
}

// Recorded returns the sorted names of all processes that have a record in the run directory, that are wanted (a
// process may run before its record is written), or that Run found by their marker (on a full disk no record is
// written). Those of an earlier supervisor that were not ensured since can be ended by Stop.
func (s *Supervisor) Recorded() ([]string, error) {
	wanted := s.Status() // read first, so that no record written in between is missed
	s.mu.Lock()
	dir := s.dir
	var names []string
	if s.session != nil {
		names = slices.Collect(maps.Keys(s.session.strays))
	}
	s.mu.Unlock()
	list, err := recorded(dir)
	if err != nil {
		return nil, err
	}
	names = append(names, list...)
	for _, w := range wanted {
		names = append(names, w.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func recorded(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // ordered by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("recorded processes: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && validName(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

func (spec Spec) validate() error {
	if err := validName(spec.Name); err != nil {
		return err
	}
	if !filepath.IsAbs(spec.Path) {
		return fmt.Errorf("process %q: path %q is not absolute", spec.Name, spec.Path)
	}
	for _, e := range spec.Env {
		if !strings.Contains(e, "=") || strings.HasPrefix(e, "=") {
			return fmt.Errorf("process %q: environment entry %q is not KEY=value", spec.Name, e)
		}
	}
	if spec.Pool == "" && (spec.Limits != cgroup.Limits{} || spec.PoolLimits != cgroup.Limits{}) {
		return fmt.Errorf("process %q: limits without a pool", spec.Name)
	}
	if spec.Limits.Processes != 0 || spec.PoolLimits.Processes < 0 {
		return fmt.Errorf("process %q: a limit of processes is of a pool, and 1 or more", spec.Name)
	}
	if spec.Pool != "" && (validName(spec.Pool) != nil || !strings.HasPrefix(spec.Name, spec.Pool+".")) {
		return fmt.Errorf("process %q: its name does not begin with its pool %q and a dot", spec.Name, spec.Pool)
	}
	if u := spec.User; u != nil && (u.UID == 0 || u.GID == 0) {
		return fmt.Errorf("process %q: the user and group of a process must not be 0", spec.Name)
	}
	for _, f := range spec.Files {
		if !filepath.IsAbs(f.Path) {
			return fmt.Errorf("process %q: file %q is not absolute", spec.Name, f.Path)
		}
	}
	if (spec.Stdout == "") != (spec.Stderr == "") {
		return fmt.Errorf("process %q: only one of standard output and error is a pipe", spec.Name)
	}
	for _, v := range slices.Concat(spec.Args, spec.Env,
		[]string{spec.Path, spec.Dir, spec.LogFile, spec.Stdout, spec.Stderr}) {
		if strings.ContainsRune(v, 0) {
			return fmt.Errorf("process %q: a NUL character in %q", spec.Name, v)
		}
	}
	return nil
}

func validName(name string) error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)
	}
	if name == "" || strings.HasPrefix(name, ".") || strings.TrimFunc(name, plain) != "" {
		return fmt.Errorf("process name %q: want letters, digits, -, _ and ., not starting with a dot", name)
	}
	return nil
}

// makeDir creates the run directory and returns its canonical path, so that markers compare equal for every path to it.
func makeDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	return real, nil
}
