// Package process keeps detached operating-system processes running: each in a session of its own, so that
// it outlives its supervisor, and is taken over by the next one instead of being started twice. Signals go to
// the whole group of a process, and what it leaves behind when it ends is killed.
//
// A process is known by its pid together with its start time, the boot, the pid namespace and a marker, a random id in
// its environment; all are written to <runDir>/<name>.json. If one of them differs, the process is gone and its pid
// means another one, which is never signalled. The marker also finds a process whose supervisor died before it could
// write that file. What a process left behind is found by its control group where the unified hierarchy is writable,
// also beside controllers of version 1, else by the marker: without control groups, a child that left the group and
// dropped its environment is not found. One Supervisor owns a runDir at a time; a lock sees to it. Linux only: exits
// are seen through pidfds, which also work for processes that are not children of the supervisor.
//
// Whether a process is ready for work is not this package's matter.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	// ErrLocked means that another living supervisor owns the run directory.
	ErrLocked = errors.New("run directory is owned by another supervisor")
	// ErrNotRunning means that the supervisor's Run is not active, or ended before the request was done.
	ErrNotRunning = errors.New("supervisor is not running")
	// ErrNoProcess means that no process of that name runs.
	ErrNoProcess = errors.New("no such process")
)

// defaultGrace is the time from SIGTERM to SIGKILL for a Spec that names none.
const defaultGrace = 10 * time.Second

// Spec says what to run. Two specs that differ in anything but Grace, FinalExits, Once and Changed are different
// processes.
type Spec struct {
	// file name of the process in the run directory: letters, digits, "-", "_" and "."; unique per supervisor
	Name string
	Path string   // of the executable, absolute
	Args []string // without the program's name
	Env  []string // KEY=value, added to the supervisor's environment
	Dir  string   // working directory; empty: the supervisor's
	// standard output and error are appended to it, and its older part is dropped when it grows large; empty: discarded
	LogFile string

	Grace      time.Duration // from SIGTERM to SIGKILL when stopped; zero: DefaultGrace
	FinalExits []int         // exit codes after which it is not started again until stopped or changed

	// Once has it started one time at most, by this supervisor or an earlier one: however it ended, it is Final from then
	// on, until it is stopped or changed.
	Once bool
	// Serial tells one start from the next where all else is alike: another number is another process.
	Serial int `json:",omitempty"`
	// OnlyEnv has the environment be Env and nothing of the supervisor's.
	OnlyEnv bool
	// User runs the process as another user, without supplementary groups and with no_new_privs; nil: as the supervisor's.
	// It takes the capabilities SETUID, SETGID, CHOWN and KILL. The log file then belongs to that user and the
	// supervisor's group.
	User *User `json:",omitempty"`
	// Files are opened by the supervisor, with its own rights, as descriptors 3, 4 and so on.
	Files []File `json:",omitempty"`
	// Changed, if it is not nil, is called after what Status tells of the process changed. It must not block, nor call the
	// supervisor.
	Changed func() `json:"-"`
}

// User is whom a process runs as. Both are 1 or more.
type User struct{ UID, GID uint32 }

// File is a file that a process finds open.
type File struct {
	Path  string // absolute
	Write bool   // it is made, with mode 0600, unless it is there, and appended to; else it is read
}

// Status is what the supervisor knows of one process.
type Status struct {
	Name      string
	PID       int  // 0 unless Running
	Running   bool // false between an exit and the next start
	Final     bool // ended with one of Spec.FinalExits, or was to be started Once, and is left alone
	Restarts  int  // starts by this supervisor after an exit that nobody asked for
	Since     time.Time
	LastExit  Exit  // zero: none seen by this supervisor
	LastError error // why the last start did not succeed; nil once one did
}

// Exit tells how a process ended.
type Exit struct {
	At time.Time `json:"at"`
	// false for a process that was not a child of this supervisor: then nobody tells how it ended
	Known  bool           `json:"known"`
	Code   int            `json:"code"` // if Known and Signal is 0
	Signal syscall.Signal `json:"signal"`
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

	noCgroups bool // set by tests before Run

	active     chan struct{} // closed once Run has been active
	activeOnce sync.Once
}

// session is one activity of Run.
type session struct {
	ctx     context.Context
	group   sync.WaitGroup
	strays  strays // processes of earlier supervisors, found once when the lock was taken
	cgroups cgroups
}

// NewSupervisor returns a supervisor of runDir, which is made when Run starts. Nothing runs before Run.
func NewSupervisor(runDir string, log *slog.Logger) *Supervisor {
	return &Supervisor{dir: runDir, log: log, keepers: map[string]*keeper{}, active: make(chan struct{})}
}

// Run keeps the wanted processes running until ctx ends, and then leaves them running. If another living
// supervisor owns the run directory, Run waits a few seconds for it to go and then returns ErrLocked.
func (s *Supervisor) Run(ctx context.Context) error {
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
		ss.cgroups = findCgroups(dir)
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

// sweepUnknown ends what is in control groups of processes that neither have a record nor were found.
func sweepUnknown(dir string, found strays, groups cgroups) error {
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
			return err // it may be that of any group
		}
		known[r.Mark] = true // a record that is cut off is none: its process is among those that were found
	}
	return groups.sweep(known)
}

// Active is closed once Run owns the run directory, so that Stop works.
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

// forget drops a keeper that has nothing left to do, unless it was given something meanwhile.
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

// Ensure makes spec wanted and returns at once: while Run is active, the process is taken over if it runs
// with that very spec, restarted if it runs with another, and started otherwise, again and again with a
// back-off from 50 ms to 5 s whenever it ends. Before Run, Ensure only records the wish. The error says what
// is wrong with spec; a start that fails later is told by Status.
func (s *Supervisor) Ensure(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, known := s.keepers[spec.Name]
	if !known {
		// A descriptor is the process's own, one of Spec.Files.
		if _, err := os.Stat(spec.Path); err != nil && !strings.HasPrefix(spec.Path, "/proc/self/fd/") {
			return fmt.Errorf("process %q: %w", spec.Name, err)
		}
		k = newKeeper(spec.Name, s.log)
		s.keepers[spec.Name] = k
	}
	k.want(spec)
	if !known && s.session != nil {
		s.keep(k) // only now: a keeper of which nothing is wanted would end the process that it is to take over
	}
	return nil
}

// add makes the keeper of name. The caller holds s.mu.
func (s *Supervisor) add(name string) *keeper {
	k := newKeeper(name, s.log)
	s.keepers[name] = k
	if s.session != nil {
		s.keep(k)
	}
	return k
}

// Stop ends the process: SIGTERM, and SIGKILL after its grace. It is then no longer wanted, and forgotten.
// Stop also ends a process that an earlier supervisor left behind and that was not ensured since. It
// returns nil once the process is gone or if there was none; if ctx ends first, stopping goes on without it.
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

// Signal sends sig to the process, ErrNoProcess if it does not run. To end a process for good, use Stop.
func (s *Supervisor) Signal(name string, sig syscall.Signal) error {
	s.mu.Lock()
	k := s.keepers[name]
	s.mu.Unlock()
	if k == nil {
		return fmt.Errorf("signal %q: %w", name, ErrNoProcess)
	}
	return k.signal(sig)
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

// Lookup returns what is known of one wanted process; false if it is not wanted.
func (s *Supervisor) Lookup(name string) (Status, bool) {
	s.mu.Lock()
	k := s.keepers[name]
	s.mu.Unlock()
	if k == nil {
		return Status{}, false
	}
	return k.status()
}

// Recorded returns the names of all processes that the run directory has a record of, of those that are wanted (one
// that is being started runs before its record is written), and, while Run is active, of those that were found by their
// marker when it began: a full disk takes no record. In order. Those that an earlier supervisor started and that were
// not ensured since can be ended by Stop.
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
	if u := spec.User; u != nil && (u.UID == 0 || u.GID == 0) {
		return fmt.Errorf("process %q: the user and group of a process must not be 0", spec.Name)
	}
	for _, f := range spec.Files {
		if !filepath.IsAbs(f.Path) {
			return fmt.Errorf("process %q: file %q is not absolute", spec.Name, f.Path)
		}
	}
	for _, v := range slices.Concat(spec.Args, spec.Env, []string{spec.Path, spec.Dir, spec.LogFile}) {
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

// makeDir makes the run directory and returns its one true name, so that markers compare equal whichever way
// it was reached.
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
