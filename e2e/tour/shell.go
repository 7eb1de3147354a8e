package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// shell runs programs as a user of one cluster would.
type shell struct {
	name   string   // of the cluster; empty means the default one
	target []string // settings of the environment that say where the cluster is, if it is not on this machine
}

// args adds to the arguments of windlass which cluster is meant, before "--": what follows is another program's.
func (s shell) args(program string, args []string) []string {
	if program != "windlass" || s.name == "" {
		return args
	}
	at := len(args)
	if i := slices.Index(args, "--"); i >= 0 {
		at = i
	}
	return slices.Insert(slices.Clone(args), at, "--name", s.name)
}

// command returns a program to be run. It is asked to end when ctx ends, so that it can tidy up.
func (s shell) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, s.args(program, args)...)
	cmd.Env = append(environment(), s.target...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// environment leaves out what may point windlass at another cluster than the one on this machine that is meant.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{
			"WINDLASS_SERVER", "WINDLASS_URL", "WINDLASS_CACERT", "WINDLASS_CERT", "WINDLASS_KEY",
			"WINDLASS_TOKEN",
		}, name)
	})
}

// output runs a program quietly and returns what it printed on standard output, and what it said on standard error in
// the error.
func (s shell) output(ctx context.Context, program string, args ...string) (string, error) {
	var out, errs strings.Builder
	cmd := s.command(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return out.String(), fmt.Errorf("%s: %w: %s", s.line(program, args...), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// line returns a command as a user would type it.
func (s shell) line(program string, args ...string) string {
	words := []string{program}
	for _, a := range s.args(program, args) {
		words = append(words, quote(a))
	}
	return strings.Join(words, " ")
}

var plainWord = regexp.MustCompile(`^[-A-Za-z0-9_./:=,@%+]+$`)

func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// windlass runs the command line, prints it, and returns what it printed.
func (t *tour) windlass(ctx context.Context, args ...string) (string, error) {
	began := time.Now()
	out, err := t.shell.output(ctx, "windlass", args...)
	if err != nil {
		return out, err
	}
	t.command(t.shell.line("windlass", args...), time.Since(began), out)
	return out, nil
}

// fails runs a command line that must fail, prints it, and returns what it said.
func (t *tour) fails(ctx context.Context, args ...string) (string, error) {
	began := time.Now()
	out, err := t.shell.output(ctx, "windlass", args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", mismatch{{expected: "an error of " + t.shell.line("windlass", args...), seen: out}}
	case !errors.As(err, &exit):
		return "", err
	}
	t.command(t.shell.line("windlass", args...), time.Since(began), out)
	_, said, _ := strings.Cut(err.Error(), exit.Error()+": ")
	return said, nil
}

// ask runs a line of the shell with the settings that `windlass env` prints, prints it, and returns what it printed.
func (t *tour) ask(ctx context.Context, line string) (string, error) {
	began := time.Now()
	env := t.shell.line("windlass", "env")
	out, err := t.shell.output(ctx, "sh", "-c", `set -e; settings=$(`+env+`); eval "$settings"; `+line)
	if err != nil {
		return out, err
	}
	t.command(line, time.Since(began), out)
	return out, nil
}

// errLate means that something did not come about in time.
var errLate = errors.New("not in time")

// until looks again and again until look is content or ctx ends. The error then names what was expected and what was
// seen last.
func until(ctx context.Context, expected string, look func(context.Context) (done bool, seen string, err error)) error {
	const every = 50 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		done, seen, err := look(ctx)
		if done {
			return nil
		}
		if err != nil {
			seen = strings.TrimSpace(seen + "\n" + err.Error())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", mismatch{{expected: expected, seen: seen}}, errLate)
		case <-tick.C:
		}
	}
}

// within is until with a time limit.
func within(ctx context.Context, limit time.Duration, expected string, look func(context.Context) (bool, string,
	error),
) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return until(limited, fmt.Sprintf("%s, within %s", expected, limit), look)
}
