package hostconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/process"
)

const (
	// unitPrefix begins the names of the processes of units among all that the supervisor keeps.
	unitPrefix = "unit-"
	// startWatch is how long a unit that has just been started is watched: one that fails at once does so within this.
	startWatch = 300 * time.Millisecond
	startLook  = 20 * time.Millisecond
	// steadyRun is how long a unit that ended at once in a new boot must have run since for it to count as started.
	steadyRun = 2 * time.Second
	// stopLimit bounds the end of one unit; the supervisor kills it before that.
	stopLimit = 30 * time.Second
	// reloadLimit bounds one command that has a unit read its configuration again.
	reloadLimit = 90 * time.Second
	// mainPID is the variable with the number of a unit's process, for what reloads it.
	mainPID = "MAINPID"
	// tail is how much of the end of a failed command's output is reported.
	tail = 300
)

// runner carries out units as processes of the host. A command is looked up below the machine's root first, then in the
// operating system that runs, and on the host if it is in neither; a working directory in the first and the last.
// WINDLASS_ROOT is the path of the machine's root.
type runner struct {
	supervisor *process.Supervisor
	dir        string // where the output of units goes
	system     string // files of the operating system; empty if those are the host's
	// why units could not be started; it is read only while nothing is done
	failed map[string]string
}

// change ends the units that are no longer wanted, or not as they were, and starts the new ones. The error names the
// first that does not start.
func (r *runner) change(ctx context.Context, was, is []unit, root *os.Root) error {
	if err := r.stop(ctx, was, is); err != nil {
		return err
	}
	var fresh []unit
	for _, u := range is {
		if !contains(was, u) {
			fresh = append(fresh, u)
		}
	}
	if err := r.start(ctx, fresh, root, true); err != nil {
		return err
	}
	for _, u := range is { // what keeps them from starting may be gone; that it is not is no fault of this change
		if r.failed[u.name] != "" && contains(was, u) {
			_ = r.startOne(ctx, u, root, true)
		}
	}
	return nil
}

// back ends what a failed change started and starts what it ended. A unit that does not start holds up none of the
// others, nor that the change is taken back: it is trouble.
func (r *runner) back(ctx context.Context, is, was []unit, root *os.Root) error {
	if err := r.stop(ctx, is, was); err != nil {
		return err
	}
	for _, u := range was {
		if u.long() && !contains(is, u) {
			_ = r.startOne(ctx, u, root, false)
		}
	}
	return nil
}

// resume has the units of the present configuration run: those that go on running are taken over. What an agent left
// behind in the middle of a change is ended. In a new boot everything starts again, the oneshot units, too. One that
// does not start holds up none of the others: see trouble, and late for what just started and did not stay up.
func (r *runner) resume(ctx context.Context, is []unit, root *os.Root, boot bool) (late, error) {
	names, err := r.supervisor.Recorded()
	if err != nil {
		return late{}, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, unitPrefix) || (wants(is, name) && !boot) {
			continue
		}
		if err := r.supervisor.Stop(ctx, name); err != nil {
			return late{}, err
		}
	}
	if boot {
		clear(r.failed)
	}
	var watched []unit
	began := time.Now()
	for _, u := range is {
		if !u.long() && !boot {
			continue
		}
		if err := r.startOne(ctx, u, root, boot); err == nil && u.long() {
			watched = append(watched, u)
		}
	}
	var l late
	if boot && len(watched) > 0 {
		if err := r.watch(ctx, watched, began); err != nil {
			l = late{watched, err.Error()}
		}
	}
	return l, ctx.Err()
}

// late are units of which one ended at once in a new boot. It may need another unit, and is started again and again: so
// this is no trouble any more once all of them run. The zero late is none.
type late struct {
	units []unit
	why   string
}

// steady reports whether each of the units has run for a while, or has done its work.
func (r *runner) steady(units []unit) bool {
	for _, u := range units {
		s, known := r.supervisor.Lookup(processName(u.name))
		runs := s.Running && time.Since(s.Since) >= steadyRun
		worked := s.Final && s.LastExit.Known && s.LastExit.Code == 0 && s.LastExit.Signal == 0
		if !known || !runs && !worked {
			return false
		}
	}
	return true
}

func wants(units []unit, process string) bool {
	for _, u := range units {
		if u.long() && processName(u.name) == process {
			return true
		}
	}
	return false
}

func contains(units []unit, u unit) bool {
	for _, o := range units {
		if o.name == u.name && o.text == u.text {
			return true
		}
	}
	return false
}

func (r *runner) stop(ctx context.Context, was, is []unit) error {
	for _, u := range was {
		if !u.long() || contains(is, u) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, stopLimit)
		err := r.supervisor.Stop(call, processName(u.name))
		cancel()
		if err != nil {
			return fmt.Errorf("unit %q: %w", u.name, err)
		}
	}
	return nil
}

// start starts units in order; pre has their ExecStartPre run, too.
func (r *runner) start(ctx context.Context, units []unit, root *os.Root, pre bool) error {
	var watched []unit
	began := time.Now()
	for _, u := range units {
		if err := r.startOne(ctx, u, root, pre); err != nil {
			return fmt.Errorf("unit %q: %w", u.name, err)
		}
		if u.long() {
			watched = append(watched, u)
		}
	}
	if !pre || len(watched) == 0 {
		return nil
	}
	return r.watch(ctx, watched, began)
}

// renew has services that run on see a change of what they read. Those that were started for the change have seen it.
// The error names the first that does not.
func (r *runner) renew(ctx context.Context, services []*configv1.ServiceAction, was, is []unit, root *os.Root) error {
	for _, s := range services {
		i := slices.IndexFunc(is, func(u unit) bool { return u.name == s.GetName() })
		if i < 0 || !contains(was, is[i]) {
			continue
		}
		if err := r.renewAndWatch(ctx, is[i], s.GetReload(), root); err != nil {
			return fmt.Errorf("unit %q: %w", s.GetName(), err)
		}
	}
	return nil
}

// renewAndWatch reloads or restarts a unit, and waits until it has run for a moment.
func (r *runner) renewAndWatch(ctx context.Context, u unit, reload bool, root *os.Root) error {
	s, _ := r.supervisor.Lookup(processName(u.name))
	switch {
	case reload && s.Final:
		return nil // it has ended, and reads nothing
	case reload && s.Running:
		return r.reload(ctx, u, s.PID, root)
	}
	return r.restart(ctx, u, root) // also one that is not taken over yet: it may have read what was there before
}

func (r *runner) restart(ctx context.Context, u unit, root *os.Root) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.stop(context.WithoutCancel(ctx), []unit{u}, nil); err != nil {
		return err
	}
	began := time.Now() // the end of what was stopped is no end of what is started
	err := r.startOne(ctx, u, root, true)
	switch {
	case ctx.Err() != nil && u.long(): // it is not left ended
		return errors.Join(ctx.Err(), r.startOne(context.WithoutCancel(ctx), u, root, false))
	case err != nil || !u.long():
		return err
	}
	return r.watch(ctx, []unit{u}, began)
}

func (r *runner) reload(ctx context.Context, u unit, pid int, root *os.Root) error {
	began := time.Now()
	u.limit = min(u.limit, reloadLimit)
	for _, c := range u.reload {
		if err := r.once(ctx, u, c, root, mainPID+"="+strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("reload: %w", err)
		}
	}
	return r.watch(ctx, []unit{u}, began)
}

func (r *runner) startOne(ctx context.Context, u unit, root *os.Root, pre bool) error {
	err := r.tryOne(ctx, u, root, pre)
	switch {
	case err != nil && ctx.Err() == nil:
		r.failed[u.name] = fmt.Sprintf("unit %q: %v", u.name, err)
	case err == nil && (pre || u.long() && len(u.pre) == 0):
		delete(r.failed, u.name)
	}
	return err
}

// trouble names the units that could not be started; empty if there are none.
func (r *runner) trouble() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r.failed)) {
		out = append(out, r.failed[name])
	}
	return strings.Join(out, "\n")
}

func (r *runner) tryOne(ctx context.Context, u unit, root *os.Root, pre bool) error {
	if pre {
		for _, c := range u.pre {
			if err := r.once(ctx, u, c, root); err != nil {
				return err
			}
		}
	}
	if u.long() {
		spec, err := r.spec(u, root)
		if err != nil {
			return err
		}
		return r.supervisor.Ensure(spec)
	}
	for _, c := range u.start {
		if err := r.once(ctx, u, c, root); err != nil {
			return err
		}
	}
	return nil
}

// watch waits until units have run for a moment; the error names the first that ended instead.
func (r *runner) watch(ctx context.Context, units []unit, began time.Time) error {
	ticker := time.NewTicker(startLook)
	defer ticker.Stop()
	for end := time.Now().Add(startWatch); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		stats := map[string]process.Status{}
		for _, s := range r.supervisor.Status() {
			stats[s.Name] = s
		}
		for _, u := range units {
			s := stats[processName(u.name)]
			exit := s.LastExit
			switch {
			case s.LastError != nil:
				return fmt.Errorf("unit %q does not start: %w", u.name, s.LastError)
			case !exit.At.IsZero() && exit.At.After(began) && (exit.Code != 0 || exit.Signal != 0):
				return fmt.Errorf("unit %q ended at once: %v%s", u.name, exit, lastWords(r.logFile(u)))
			}
		}
	}
	return nil
}

// once runs a command to its end, with more in its environment.
func (r *runner) once(ctx context.Context, u unit, c command, root *os.Root, more ...string) error {
	program, err := r.resolve(root, c.args[0])
	if err != nil {
		if c.lenient {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, u.limit)
	defer cancel()
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(r.logFile(u), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	env := append(r.env(u, root), more...)
	cmd := exec.CommandContext(ctx, program, r.args(u, c, env)...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), r.workingDir(u, root)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return process.SignalGroup(cmd.Process, syscall.SIGKILL) }
	err = cmd.Run()
	switch {
	case err == nil || (c.lenient && ctx.Err() == nil):
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s does not end within %v", c.args[0], u.limit)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w%s", c.args[0], err, lastWords(r.logFile(u)))
}

// spec is a unit as a process that is kept running.
func (r *runner) spec(u unit, root *os.Root) (process.Spec, error) {
	c := u.start[0]
	program, err := r.resolve(root, c.args[0])
	if err != nil {
		return process.Spec{}, err
	}
	env := r.env(u, root)
	spec := process.Spec{
		Name: processName(u.name), Path: program, Args: r.args(u, c, env), Env: env, Dir: r.workingDir(u, root),
		LogFile: r.logFile(u),
	}
	switch u.restart {
	case restartOnFailure:
		spec.FinalExits = []int{0}
	case restartNo:
		spec.Once = true
	}
	return spec, nil
}

// env is what a unit's commands find in their environment. The digest makes another unit of the same command another
// process.
func (r *runner) env(u unit, root *os.Root) []string {
	sum := sha256.Sum256([]byte(u.text))
	own := []string{"WINDLASS_ROOT=" + root.Name(), "WINDLASS_UNIT=" + u.name + "@" + hex.EncodeToString(sum[:6])}
	return append(own, u.env...)
}

// args are a command's arguments, with ${NAME} replaced from the unit's environment; values are not expanded again.
func (r *runner) args(u unit, c command, env []string) []string {
	var pairs []string
	for _, e := range slices.Backward(env) { // of a name that is there twice the last one counts
		k, v, _ := strings.Cut(e, "=")
		pairs = append(pairs, "${"+k+"}", v)
	}
	values := strings.NewReplacer(pairs...)
	var out []string
	for _, a := range c.args[1:] {
		out = append(out, values.Replace(a))
	}
	return out
}

// resolve returns the file of a program: the machine's own, or else the host's.
func (r *runner) resolve(root *os.Root, program string) (string, error) {
	own := strings.TrimPrefix(filepath.Clean(program), "/")
	if info, err := root.Stat(own); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return filepath.Join(root.Name(), own), nil
	}
	if r.system != "" {
		system, err := os.OpenRoot(r.system)
		if err != nil {
			return "", err
		}
		defer system.Close()
		if info, err := system.Stat(own); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return filepath.Join(r.system, own), nil
		}
	}
	info, err := os.Stat(program)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no command %s", program)
	case err != nil:
		return "", err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%s cannot be run", program)
	}
	return program, nil
}

func (r *runner) workingDir(u unit, root *os.Root) string {
	own := strings.TrimPrefix(filepath.Clean(u.dir), "/")
	if info, err := root.Stat(own); u.dir != "" && own != "" && err == nil && info.IsDir() {
		return filepath.Join(root.Name(), own)
	}
	if u.dir == "" || u.dir == "/" {
		return root.Name()
	}
	return u.dir
}

func (r *runner) logFile(u unit) string { return filepath.Join(r.dir, processName(u.name)+".log") }

// processName returns the name of a unit's process: units may have signs in their names that processes may not.
func processName(unit string) string {
	plain := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c) {
			return c
		}
		return '_'
	}, unit)
	if plain != unit {
		sum := sha256.Sum256([]byte(unit))
		plain += "-" + hex.EncodeToString(sum[:4])
	}
	return unitPrefix + plain
}

// lastWords returns the end of a log, for people.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(0, info.Size()-tail)
	data, err := io.ReadAll(io.NewSectionReader(f, from, tail))
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(data))
	if _, line, ok := strings.Cut(text, "\n"); ok && from > 0 {
		text = line
	}
	if text == "" {
		return ""
	}
	return ": " + strings.ToValidUTF8(text, "?")
}
