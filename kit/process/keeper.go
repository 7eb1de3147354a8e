package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

const (
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
	adoptPause = 200 * time.Millisecond
	askAgain   = 10 * time.Millisecond // a wrapper that has not started its main process yet
	longLife   = 10 * time.Second      // after a run of this length the back-off begins again with the shortest pause
)

// keeper supervises one process. Only its run loop starts, adopts and ends the process; the other methods set the
// desired state, wake the loop, and read the status.
type keeper struct {
	name string
	log  *slog.Logger
	wake chan struct{} // capacity 1; a token means that something changed

	mu     sync.Mutex
	spec   *Spec // nil: not wanted
	stops  []chan struct{}
	stat   Status
	handle *handle // the running process, nil if none
	past   record  // of the ended process of a Spec with Once; zero if none

	// Set by attach before the loop runs, then used only by the loop.
	dir     string
	cgroups cgroup.Tree
	stray   *record // a process of an earlier supervisor, found by its environment
	pause   time.Duration
	ended   bool // the last process ended by itself
}

func newKeeper(name string, log *slog.Logger) *keeper {
	return &keeper{
		name: name, log: log.With("process", name), wake: make(chan struct{}, 1),
		stat: Status{Name: name, Since: time.Now()},
	}
}

func (k *keeper) attach(dir string, stray *record, groups cgroup.Tree) {
	k.dir, k.stray, k.cgroups = dir, stray, groups
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default: // the loop has a token already and will see the change
	}
}

func (k *keeper) want(spec Spec) {
	spec.Args, spec.Env = slices.Clone(spec.Args), slices.Clone(spec.Env)
	spec.FinalExits = slices.Clone(spec.FinalExits)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spec == nil || k.spec.digest() != spec.digest() {
		k.stat.Final, k.stat.LastError = false, nil
	} else if k.handle != nil {
		k.handle.grace = spec.grace()
	}
	k.spec = &spec
	k.recall()
	k.nudge()
}

// recall marks the process as final if its Spec has Once and it has run before. The lock is held.
func (k *keeper) recall() {
	if k.spec == nil || !k.spec.Once || k.handle != nil || k.past.Digest != k.spec.digest() {
		return
	}
	k.stat.Final = true
	if k.past.Exit != nil {
		k.stat.LastExit = *k.past.Exit
	}
}

// notify reports a change of the status to Spec.Changed. The lock is not held.
func (k *keeper) notify() {
	k.mu.Lock()
	spec := k.spec
	k.mu.Unlock()
	if spec != nil && spec.Changed != nil {
		spec.Changed()
	}
}

// logFile returns the log file of the process; empty if it is not wanted, or has none.
func (k *keeper) logFile() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spec == nil {
		return ""
	}
	return k.spec.LogFile
}

// unwant returns a channel that is closed when the process is gone.
func (k *keeper) unwant() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	gone := make(chan struct{})
	k.spec, k.stops = nil, append(k.stops, gone)
	k.nudge()
	return gone
}

func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spec == nil && len(k.stops) == 0
}

func (k *keeper) status() (st Status, wanted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stat, k.spec != nil
}

func (k *keeper) signal(sig syscall.Signal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handle == nil {
		return fmt.Errorf("signal %q: %w", k.name, ErrNoProcess)
	}
	return k.handle.signal(sig)
}

func (k *keeper) ask() error {
	k.mu.Lock()
	h := k.handle
	k.mu.Unlock()
	if h == nil {
		return fmt.Errorf("ask %q to end: %w", k.name, ErrNoProcess)
	}
	return h.askMain(syscall.SIGTERM)
}

// beside starts a command that belongs to the process.
func (k *keeper) beside(cmd *exec.Cmd, user *User) error {
	k.mu.Lock()
	h, spec, dir := k.handle, k.spec, k.dir
	k.mu.Unlock()
	if h == nil || spec == nil {
		return fmt.Errorf("start beside %q: %w", k.name, ErrNoProcess)
	}
	// Not the mutex of the keeper: the start takes long where the process has used up its share of the processor.
	h.beside.Lock()
	defer h.beside.Unlock()
	if h.closed {
		return fmt.Errorf("start beside %q: %w", k.name, ErrNoProcess)
	}
	cmd.Env = append(append(cmd.Env, markers(dir, *spec, h.Mark)...), besideName+"="+newMark())
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true // what is found by its session must not share one with the supervisor
	return h.startInside(cmd, user, func() (at stage, err error) {
		if spec.Root != nil {
			at, err = h.join()
		} else {
			at, _, err = spec.isolate()
		}
		if err == nil && spec.Confined {
			err = confine()
		}
		return at, err
	})
}

// KillBeside kills a command that StartBeside started, and everything that is found of what it started: what has its
// environment, is in one of its sessions, or was started by one of these.
func KillBeside(cmd *exec.Cmd) error {
	mark := []byte("\x00" + cmd.Env[len(cmd.Env)-1] + "\x00")
	err := killAll(func() (processes, error) {
		running, err := all()
		if err != nil {
			return nil, err
		}
		led := cmd.Process.Signal(syscall.Signal(0)) == nil // else the number may be another session's
		found := processes{}
		for pid, st := range running {
			environ, err := environOf(pid)
			if led && st.session == cmd.Process.Pid || err == nil && bytes.Contains(slices.Concat([]byte{0}, environ, []byte{0}),
				mark) {
				found[pid] = st
			}
		}
		return found, running.addRelated(found)
	})
	// Also where processes cannot be listed.
	return errors.Join(err, SignalGroup(cmd.Process, syscall.SIGKILL))
}

// run keeps the process in the desired state until ctx ends, or returns true once no process is wanted and none runs.
func (k *keeper) run(ctx context.Context) (finished bool) {
	defer k.leave()
	for logged := false; !k.adopt(logged) && ctx.Err() == nil; logged = true {
		k.sleep(ctx, adoptPause)
	}
	for ctx.Err() == nil {
		spec, stopping, final := k.desired()
		switch h := k.current(); {
		case h != nil && (stopping || spec == nil || !h.runs(*spec)):
			k.terminate(ctx, h)
		case stopping:
			k.stopped()
		case spec == nil:
			return true
		case h != nil:
			k.watch(ctx, h)
		case final:
			k.sleep(ctx, 0)
		default:
			k.start(ctx, *spec)
		}
	}
	k.abandon()
	return false
}

// abandon drops the channels of callers in Stop, which return by themselves when Run ends.
func (k *keeper) abandon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stops = nil
}

func (k *keeper) desired() (spec *Spec, stopping, final bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spec, len(k.stops) > 0, k.stat.Final
}

func (k *keeper) current() *handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.handle
}

// stopped notifies the callers that wait in Stop: no process runs and its record is removed.
func (k *keeper) stopped() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, gone := range k.stops {
		close(gone)
	}
	if k.past.Once {
		removeRecord(k.dir, k.name)
	}
	k.stops, k.stat.Final, k.past, k.pause = nil, false, record{}, 0
}

// leave releases the process, which continues to run.
func (k *keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handle != nil {
		k.handle.close()
		k.handle = nil
	}
	k.stat.Running, k.stat.PID = false, 0
}

// adopt takes over the process that an earlier supervisor recorded or, without a record, one that has our marker. It
// reports false if it is not known whether a process runs, for example because this process cannot open more files:
// another process must not be started then. logged means that the reason was logged before.
func (k *keeper) adopt(logged bool) bool {
	rec, err := readRecord(k.dir, k.name)
	if scarce(err) {
		return k.undecided(err, logged)
	}
	if err != nil {
		k.log.Warn("process record is not readable", "error", err)
	}
	h, err := rec.open()
	unrecorded := false
	// A process with the marker of a start whose own process is gone is a child of it, in a session of its own.
	if errors.Is(err, ErrNoProcess) && k.stray != nil && (rec.PID == 0 || rec.Mark != k.stray.Mark) {
		once := rec.Once
		stray := *k.stray
		stray.Once = once
		if h, err = stray.open(); err == nil {
			rec, unrecorded = stray, true
		}
	}
	if err != nil && !errors.Is(err, ErrNoProcess) {
		return k.undecided(err, logged)
	}
	k.stray = nil
	if err != nil {
		if rec.Once && rec.Exit == nil { // it ended while no supervisor ran
			rec.Exit = &Exit{At: time.Now(), OutOfMemory: rec.group().Killed() > 0}
			if err := rec.write(k.dir, k.name); err != nil {
				k.log.Warn("process record is not written", "error", err)
			}
		}
		if err := rec.sweep(false); err != nil { // its record stays while something of it runs
			return k.undecided(err, logged)
		}
		if !rec.Once {
			removeRecord(k.dir, k.name) // it is no longer valid
		}
		k.remember(rec)
		return true
	}
	if unrecorded {
		if err := rec.write(k.dir, k.name); err != nil {
			k.log.Warn("process record is not written", "error", err)
		}
	}
	k.log.Info("process taken over", "pid", h.PID)
	k.holds(h)
	return true
}

// sweep kills what an ended process left behind, until nothing is left or ctx ends. It reports false in that case.
func (k *keeper) sweep(ctx context.Context, rec record) bool {
	for logged := false; ; logged = true {
		err := rec.sweep(true)
		if err == nil {
			return true
		}
		if !logged {
			k.log.Warn("processes that a process left behind are not killed", "error", err)
		}
		t := time.NewTimer(adoptPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		}
	}
}

// undecided logs once why it is not known whether a process runs.
func (k *keeper) undecided(err error, logged bool) bool {
	if !logged {
		k.log.Warn("process is not taken over", "error", err)
	}
	return false
}

// scarce reports whether an error means that the host or this process is temporarily out of a resource.
func scarce(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// remember keeps the record of an ended process if its Spec has Once.
func (k *keeper) remember(rec record) {
	if !rec.Once {
		return
	}
	k.mu.Lock()
	k.past = rec
	k.recall()
	k.mu.Unlock()
	k.notify()
}

func (k *keeper) holds(h *handle) {
	k.mu.Lock()
	k.handle = h
	k.stat.Running, k.stat.PID, k.stat.Since, k.stat.LastError, k.stat.Final = true, h.PID, h.started, nil, false
	k.mu.Unlock()
	k.notify()
}

func (k *keeper) start(ctx context.Context, spec Spec) {
	rec, err := newRecord(spec, k.cgroups)
	if err == nil && spec.Once { // written before it runs, so that no supervisor starts it again if this one dies here
		err = rec.write(k.dir, k.name)
	}
	if err != nil {
		rec.group().Discard()
		k.failed(err)
		k.rest(ctx)
		return
	}
	h, err := launch(k.dir, spec, rec)
	if err != nil {
		rec.group().Discard()
		k.failed(err)
		k.rest(ctx)
		return
	}
	// before holds, so that a caller that sees it running finds the record
	if err := h.record.write(k.dir, k.name); err != nil {
		// The next supervisor still finds it by the marker in its environment.
		k.log.Warn("process record is not written", "error", err)
	}
	k.log.Info("process started", "pid", h.PID)
	k.holds(h)
	k.countRestart()
}

func (k *keeper) countRestart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		k.stat.Restarts++
	}
	k.ended = false
}

func (k *keeper) failed(err error) {
	k.mu.Lock()
	if k.stat.LastError == nil || k.stat.LastError.Error() != err.Error() {
		k.log.Error("process does not start", "error", err)
	}
	k.stat.LastError = err
	k.mu.Unlock()
	k.notify()
}

// watch waits until the process ends or the desired state changes.
func (k *keeper) watch(ctx context.Context, h *handle) {
	select {
	case <-ctx.Done():
	case <-k.wake:
	case <-h.exited:
		exit := k.buried(ctx, h)
		k.ended = true
		if once, final := k.isFinal(exit); once {
			k.log.Info("process ended", "pid", h.PID, "exit", exit.String())
			k.notify()
			return
		} else if final {
			k.log.Error("process ended with a final exit code", "pid", h.PID, "exit", exit.String())
			k.notify()
			return
		}
		k.notify()
		k.log.Warn("process ended", "pid", h.PID, "exit", exit.String())
		if exit.At.Sub(h.started) >= longLife {
			k.pause = 0
		}
		k.rest(ctx)
	}
}

// isFinal reports whether the process is not started again after its end, and whether that is because its Spec has
// Once.
func (k *keeper) isFinal(exit Exit) (once, final bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	once = k.spec != nil && k.spec.Once && k.past.Digest == k.spec.digest()
	final = once || exit.Known && exit.Signal == 0 && k.spec != nil && slices.Contains(k.spec.FinalExits, exit.Code)
	k.stat.Final = k.stat.Final || final
	return once, final
}

// buried records the end of the process of h, once nothing that it started runs. If ctx ends before, the record stays
// for the next supervisor.
func (k *keeper) buried(ctx context.Context, h *handle) Exit {
	h.beside.Lock()
	h.closed = true
	asked := h.asked
	h.beside.Unlock()
	for pid, st := range asked {
		_ = signalOne(pid, st, syscall.SIGKILL)
	}
	exit := h.reap()
	h.close()
	exit.OutOfMemory = h.group().Killed() > 0
	past := h.record
	if past.Exit = &exit; past.Once {
		if err := past.write(k.dir, k.name); err != nil {
			k.log.Warn("process record is not written", "error", err)
		}
	}
	swept := k.sweep(ctx, h.record)
	if !past.Once {
		past = record{}
		if swept {
			removeRecord(k.dir, k.name)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.past = past
	k.handle = nil
	k.stat.Running, k.stat.PID, k.stat.Since, k.stat.LastExit = false, 0, exit.At, exit
	return exit
}

// rest waits before the next start, longer each time. A change of the desired state ends the wait; a repeated Ensure of
// the same Spec does not, or a caller that calls Ensure often would defeat the back-off.
func (k *keeper) rest(ctx context.Context) {
	k.pause = min(max(2*k.pause, firstPause), longPause)
	end := time.Now().Add(k.pause)
	for left := k.pause; left > 0 && ctx.Err() == nil; left = time.Until(end) {
		before, _, _ := k.desired()
		k.sleep(ctx, left)
		if spec, stopping, _ := k.desired(); stopping || spec == nil || before == nil || spec.digest() != before.digest() {
			return
		}
	}
}

// sleep waits for a change or for d, without limit if d is 0.
func (k *keeper) sleep(ctx context.Context, d time.Duration) {
	var over <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-ctx.Done():
	case <-k.wake:
	case <-over:
	}
}

// terminate ends the process of h, with SIGTERM first.
func (k *keeper) terminate(ctx context.Context, h *handle) {
	t := time.NewTimer(k.graceOf(h))
	defer t.Stop()
	for asked, ended := false, false; !ended; {
		var again <-chan time.Time
		if asked = asked || h.ask(); !asked {
			again = time.After(askAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			continue
		case <-h.exited:
		case <-t.C:
			k.log.Warn("process ignores SIGTERM", "pid", h.PID)
			_ = h.signal(syscall.SIGKILL)
			select {
			case <-ctx.Done():
				return
			case <-h.exited:
			}
		}
		ended = true
	}
	exit := k.buried(ctx, h)
	k.pause, k.ended = 0, false
	k.log.Info("process stopped", "pid", h.PID, "exit", exit.String())
}

func (k *keeper) graceOf(h *handle) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.grace
}

func (spec Spec) grace() time.Duration {
	if spec.Grace > 0 {
		return spec.Grace
	}
	return defaultGrace
}
