package hostconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
)

const (
	// unitPrefix begins the names of the processes of units among all that the supervisor keeps.
	unitPrefix = "unit-"
	// mainPID is the variable with the number of a unit's process, for what reloads it.
	mainPID = "MAINPID"
	// tail is how much of the end of a failed command's output is reported.
	tail = 300
	// stopLimit bounds the end of one unit; the supervisor kills it before that.
	stopLimit = 30 * time.Second
)

// processes runs units as processes of the agent. A command is looked up below the machine's root first, then in the
// operating system that runs, and on the host if it is in neither; a working directory in the first and the last.
// WINDLASS_ROOT is the path of the machine's root.
type processes struct {
	supervisor *process.Supervisor
	dir        string // where the output of units goes
	system     string // files of the operating system; empty if those are the host's
}

func (p *processes) expect([]unit) error { return nil }

func (p *processes) settled([]unit) error { return nil }

func (p *processes) load(context.Context, []unit) error { return nil }

func (p *processes) strays(is []unit, boot bool) ([]string, error) {
	names, err := p.supervisor.Recorded()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, unitPrefix) || !boot && slices.ContainsFunc(is, func(u unit) bool {
			return u.long() && processName(u.name) == name
		})
	}), nil
}

func (p *processes) end(ctx context.Context, stray string) error {
	return p.supervisor.Stop(ctx, stray)
}

func (p *processes) stop(ctx context.Context, u unit) error {
	if !u.long() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	return p.supervisor.Stop(ctx, processName(u.name))
}

func (p *processes) resume(ctx context.Context, u unit, root *os.Root, boot bool) error {
	if !u.long() && !boot {
		return nil
	}
	return p.start(ctx, u, root, boot)
}

func (p *processes) reload(ctx context.Context, u unit, root *os.Root) error {
	s, _ := p.supervisor.Lookup(processName(u.name))
	u.limit = min(u.limit, reloadLimit)
	for _, c := range u.reload {
		if err := p.once(ctx, u, c, root, mainPID+"="+strconv.Itoa(s.PID)); err != nil {
			return fmt.Errorf("reload: %w", err)
		}
	}
	return nil
}

func (p *processes) idle(context.Context, []unit) string { return "" } // the supervisor has them run

func (p *processes) look(_ context.Context, u unit) (unitState, bool) {
	s, known := p.supervisor.Lookup(processName(u.name))
	out := unitState{running: s.Running, final: s.Final, pid: s.PID, since: s.Since}
	exit := s.LastExit
	switch {
	case s.LastError != nil:
		out.failed, out.failedAt = fmt.Sprintf("unit %q does not start: %v", u.name, s.LastError), time.Now()
	case !exit.At.IsZero() && (exit.Code != 0 || exit.Signal != 0):
		out.failed, out.failedAt = fmt.Sprintf("unit %q ended at once: %v%s", u.name, exit, lastWords(p.logFile(u))), exit.At
	}
	out.worked = s.Final && exit.Known && exit.Code == 0 && exit.Signal == 0
	return out, known
}

func (p *processes) start(ctx context.Context, u unit, root *os.Root, pre bool) error {
	if pre {
		for _, c := range u.pre {
			if err := p.once(ctx, u, c, root); err != nil {
				return err
			}
		}
	}
	if u.long() {
		spec, err := p.spec(u, root)
		if err != nil {
			return err
		}
		return p.supervisor.Ensure(spec)
	}
	for _, c := range u.start {
		if err := p.once(ctx, u, c, root); err != nil {
			return err
		}
	}
	return nil
}

// once runs a command to its end, with more in its environment.
func (p *processes) once(ctx context.Context, u unit, c command, root *os.Root, more ...string) error {
	program, err := p.resolve(root, c.args[0])
	if err != nil {
		if c.lenient {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, u.limit)
	defer cancel()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(p.logFile(u), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	env := append(p.env(u, root), more...)
	cmd := exec.CommandContext(ctx, program, p.args(u, c, env)...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), p.workingDir(u, root)
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
	return fmt.Errorf("%s: %w%s", c.args[0], err, lastWords(p.logFile(u)))
}

// spec is a unit as a process that is kept running.
func (p *processes) spec(u unit, root *os.Root) (process.Spec, error) {
	c := u.start[0]
	program, err := p.resolve(root, c.args[0])
	if err != nil {
		return process.Spec{}, err
	}
	env := p.env(u, root)
	spec := process.Spec{
		Name: processName(u.name), Path: program, Args: p.args(u, c, env), Env: env, Dir: p.workingDir(u, root),
		LogFile: p.logFile(u),
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
func (p *processes) env(u unit, root *os.Root) []string {
	sum := sha256.Sum256([]byte(u.text))
	own := []string{"WINDLASS_ROOT=" + root.Name(), "WINDLASS_UNIT=" + u.name + "@" + hex.EncodeToString(sum[:6])}
	return append(own, u.env...)
}

// args are a command's arguments, with ${NAME} replaced from the unit's environment; values are not expanded again.
func (p *processes) args(u unit, c command, env []string) []string {
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
func (p *processes) resolve(root *os.Root, program string) (string, error) {
	own := strings.TrimPrefix(filepath.Clean(program), "/")
	if info, err := root.Stat(own); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return filepath.Join(root.Name(), own), nil
	}
	if p.system != "" {
		system, err := os.OpenRoot(p.system)
		if err != nil {
			return "", err
		}
		defer system.Close()
		if info, err := system.Stat(own); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return filepath.Join(p.system, own), nil
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

func (p *processes) workingDir(u unit, root *os.Root) string {
	own := strings.TrimPrefix(filepath.Clean(u.dir), "/")
	if info, err := root.Stat(own); u.dir != "" && own != "" && err == nil && info.IsDir() {
		return filepath.Join(root.Name(), own)
	}
	if u.dir == "" || u.dir == "/" {
		return root.Name()
	}
	return u.dir
}

func (p *processes) logFile(u unit) string { return filepath.Join(p.dir, processName(u.name)+".log") }

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
