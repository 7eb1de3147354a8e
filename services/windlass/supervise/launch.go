package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

const (
	// launcherDir has the lock of the one launcher of a host.
	launcherDir = "launcher"
	// trialLimit is how long a process may be on trial that has not attested that it lives for attestPatience: one that
	// works ends the trial by itself.
	trialLimit     = 5 * plan.Patience
	attestPatience = time.Minute
	// endPatience is how long a process may take to end.
	endPatience = 10 * time.Second
	// againCode is the exit code of a process that is to be started from what the record of Host says by now. Versions
	// that follow one another must agree on it, and on the variables.
	againCode  = 75
	ownPath    = "WINDLASS_HOST_OWN"
	ownVersion = "WINDLASS_HOST_OWN_VERSION"
)

// errRelaunch is the end of a process that is to be started from what the record of Host says by now.
var errRelaunch = errors.New("this program is started from another executable")

// self returns the path of the executable of this process, also if the package has replaced it since.
func self() (string, error) {
	path, err := os.Executable()
	return strings.TrimSuffix(path, " (deleted)"), err
}

// launched reports whether `windlass host run` is two processes here, of which one starts the other one.
func launched(c *cluster.Cluster) bool { return c.Member != nil && !c.Member.Worker }

// IsChild reports whether this process was started by another `windlass host run`. Host forgets that.
func IsChild() bool { return os.Getenv(ownPath) != "" }

// Host runs the programs of a host until ctx ends. On a control-plane host they are run by a process of its own, which
// releases bring and which this one starts: an executable that does not come up could not go back by itself.
func Host(ctx context.Context, c *cluster.Cluster, log *slog.Logger) (exitCode int, err error) {
	executable, err := self()
	if err != nil {
		return 1, err
	}
	own := ownExecutable{executable, version.Number}
	path := os.Getenv(ownPath)
	switch {
	case !launched(c):
		return 0, runHost(ctx, c, own, log)
	case path == "":
		return launch(ctx, c, own, log)
	}
	own = ownExecutable{path, os.Getenv(ownVersion)}
	if path == executable { // the package may have replaced it since the launcher began
		own.Version = version.Number
	}
	for _, name := range []string{ownPath, ownVersion} { // not for the programs
		if err := os.Unsetenv(name); err != nil {
			return 1, err
		}
	}
	if err := runHost(ctx, c, own, log); !errors.Is(err, errRelaunch) {
		return 0, err
	}
	return againCode, nil
}

// launch starts `windlass host run` from what the record of Host says until ctx ends, or that process does so by
// itself. One that is on trial is started again, and taken back to the previous executable, as any program.
func launch(ctx context.Context, c *cluster.Cluster, own ownExecutable, log *slog.Logger) (exitCode int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	release, err := holdLauncher(ctx, c, log)
	if release == nil {
		cancel()
		return 0, err
	}
	defer func() {
		cancel()
		err = errors.Join(err, release())
	}()
	l := launcher{executables: newExecutables(c, own, log)}
	for {
		again, code, err := l.once(ctx)
		if !again || err != nil {
			return code, err
		}
	}
}

// holdLauncher makes this process the one launcher of a host until release is called. There is no release if ctx ended
// before; the error is nil then.
func holdLauncher(ctx context.Context, c *cluster.Cluster, log *slog.Logger) (release func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := process.NewSupervisor(c.Dir(launcherDir), log).WithoutCgroups() // of nothing: it has the lock
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Active():
		return func() error {
			cancel()
			return <-ended
		}, nil
	case err := <-ended:
		cancel()
		return nil, err
	}
}

// launcher is what is known of the process that is started by launch.
type launcher struct {
	executables *executables
	tried       plan.Executable // that was started last
	starts      int             // on trial
	trial       time.Duration   // 0, or that the last start was ended since it did not attest
	last        string          // how the last start ended
	back        *plan.Record    // what is to be on the disk, which has no space for it
}

// once starts the process once, or goes back to the previous executable.
func (l *launcher) once(ctx context.Context) (again bool, exitCode int, err error) {
	r, err := l.executables.read(topology.Host)
	if err != nil {
		return false, 1, err
	}
	if l.back != nil && r.OnTrial && r.Running == l.back.Refused.Executable {
		r = *l.back
		l.save(ctx, r)
	} else {
		l.back = nil // the process has written down something since
	}
	if r.Running != l.tried || !r.OnTrial {
		l.tried, l.starts, l.trial, l.last = r.Running, 0, 0, ""
	}
	if r.OnTrial {
		n := plan.Program(plan.View{Record: r, Starts: l.starts, Trial: l.trial, Last: l.last, Now: time.Now()})
		if n.Verb == plan.Return {
			l.executables.log.WarnContext(ctx, "windlass host run goes back", "message", n.Message)
			if gone, err := l.executables.gone(n.Record.Running); gone || err != nil {
				n.Record.Running = l.executables.first()
			}
			l.save(ctx, n.Record)
			return true, 0, nil
		}
		l.starts++
	}
	exitCode, err = l.run(ctx, l.executables.path(r.Running), r.OnTrial)
	switch {
	case ctx.Err() != nil && exitCode == againCode:
		return false, 0, nil
	case ctx.Err() != nil:
		return false, exitCode, err
	}
	now, readErr := l.executables.read(topology.Host)
	switch {
	case readErr != nil:
		return false, 1, readErr
	case exitCode == againCode && (now.Running != r.Running || now.OnTrial != r.OnTrial):
		return true, 0, nil
	case !now.OnTrial || l.back != nil:
		return false, exitCode, err
	}
	if err != nil {
		l.last = err.Error()
	}
	l.executables.log.WarnContext(ctx, "windlass host run ended on trial", "exitCode", exitCode, "last", l.last)
	backoff.Sleep(ctx, time.Second)
	return ctx.Err() == nil, 0, nil
}

// save writes a record down. Until there is space for that, it is in force without.
func (l *launcher) save(ctx context.Context, r plan.Record) {
	l.back = nil
	if err := l.executables.write(topology.Host, r); err != nil {
		l.back = &r
		l.executables.log.ErrorContext(ctx, "what windlass host run is started from is not written down", "error", err)
	}
}

// attested reports whether the process may go on: it has shown of late that it lives, or is not on trial.
func (l *launcher) attested() bool {
	st, err := os.Stat(recordFile(l.executables.cluster, topology.Host))
	if err == nil && time.Since(st.ModTime()) < attestPatience {
		return true
	}
	r, err := l.executables.read(topology.Host)
	return err != nil || !r.OnTrial
}

// run runs the process until it ends; for at most trialLimit if it is on trial and not attested. It ends with this one.
func (l *launcher) run(ctx context.Context, path string, onTrial bool) (exitCode int, err error) {
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Env = append(os.Environ(), ownPath+"="+l.executables.own.Path, ownVersion+"="+l.executables.own.Version)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.WaitDelay = time.Second // a program that has got its stderr does not keep this one waiting
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	said := &lastWords{}
	if onTrial {
		cmd.Stderr = said
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // what it says is in ProcessState
	}()
	var limit <-chan time.Time
	if onTrial {
		limit = time.After(trialLimit)
	}
	for ended := ctx.Done(); ; {
		select {
		case <-done:
			l.last = said.line()
			return max(cmd.ProcessState.ExitCode(), 0), exitError(cmd.ProcessState)
		case <-ended:
			ended = nil
			_ = cmd.Process.Signal(syscall.SIGTERM)
			limit = time.After(endPatience)
		case <-limit:
			if limit = nil; ctx.Err() == nil && l.attested() {
				limit = time.After(trialLimit)
				continue
			}
			if ctx.Err() == nil {
				l.trial = plan.Patience
			}
			_ = cmd.Process.Kill()
		}
	}
}

// exitError is the error of a process that a signal ended.
func exitError(s *os.ProcessState) error {
	if s.ExitCode() < 0 {
		return fmt.Errorf("windlass host run: %s", s)
	}
	return nil
}

// lastWords passes on what a process says, and keeps the end of it.
type lastWords struct{ end []byte }

// Write implements io.Writer.
func (w *lastWords) Write(p []byte) (int, error) {
	const most = 4 << 10
	w.end = append(w.end, p...)
	w.end = w.end[max(0, len(w.end)-most):]
	_, _ = os.Stderr.Write(p) // the process must not end because its output is not read
	return len(p), nil
}

func (w *lastWords) line() string { return lastOf(string(w.end)) }

// link returns the path that is that of the executable of `windlass host run`, whatever release brings it.
func link(c *cluster.Cluster) string { return c.Dir("windlass") }

// link has the machine's processes started from an executable, unless that is on trial and the machine has another one.
func (ps *programs) link(executable string) error {
	for _, p := range ps.list {
		if _, err := os.Stat(link(ps.cluster)); p.name == topology.Host && p.record.OnTrial && err == nil {
			return nil
		}
	}
	return setLink(ps.cluster, executable)
}

// setLink has link lead to an executable.
func setLink(c *cluster.Cluster, executable string) error {
	if to, err := os.Readlink(link(c)); err == nil && to == executable {
		return nil
	}
	next := link(c) + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(executable, next); err != nil {
		return err
	}
	return durable.Rename(next, link(c))
}
