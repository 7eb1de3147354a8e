package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

const (
	// settingsPatience is how long a program may take to become ready with other settings before those it had are put back.
	settingsPatience = 30 * time.Second
	// settingsStarts is how often a program may start within that: one that ends again and again does not take its flags.
	settingsStarts = 3
)

// changeSettings gives settings to a cluster that runs. Only the programs whose flags change are started again. If one of them does not become ready, the
// settings before are put back, and the error says so.
func (e *env) changeSettings(ctx context.Context, c *cluster.Cluster, to []string, s *steps) error {
	before := slices.Clone(c.ProgramFlags)
	executable := supervise.Executable(c, e.program)
	was := flagsOf(c, executable)
	c.ProgramFlags = to
	changed := slices.DeleteFunc(cluster.Programs(), func(name string) bool { return slices.Equal(was[name], c.Spec(name, executable).Args) })
	s.begin("settings")
	if len(changed) == 0 {
		s.done("as before")
		return c.Save()
	}
	pids, err := pidsOf(c)
	if err != nil {
		return err
	}
	if err = e.restartWith(ctx, c, executable); err == nil {
		err = e.awaitPrograms(ctx, c, changed, pids, s)
	}
	if err == nil {
		s.done(strings.Join(changed, ", ") + " started again")
		return nil
	}
	c.ProgramFlags = before
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), settingsPatience)
	defer cancel()
	undo := supervise.StopSupervisor(back, c) // so that no program starts with the refused ones any more
	refused, pidsErr := pidsOf(c)
	maps.DeleteFunc(refused, func(name string, pid int) bool { return pids[name] == pid }) // it never had them
	if undo = errors.Join(undo, pidsErr); undo == nil {
		undo = e.restartWith(back, c, executable)
	}
	if undo == nil {
		undo = e.awaitPrograms(back, c, changed, refused, s)
	}
	if undo != nil {
		return fmt.Errorf("settings: %w; the settings before could not be put back: %w", err, undo)
	}
	return fmt.Errorf("settings refused: %w; the settings before are in force again", err)
}

func flagsOf(c *cluster.Cluster, executable string) map[string][]string {
	out := map[string][]string{}
	for _, name := range cluster.Programs() {
		out[name] = c.Spec(name, executable).Args
	}
	return out
}

func pidsOf(c *cluster.Cluster) (map[string]int, error) {
	found, err := process.Running(c.Dir("run"))
	out := map[string]int{}
	for _, f := range found {
		out[f.Name] = f.PID
	}
	return out, err
}

// restartWith writes the settings down and starts another supervisor, which takes over every program whose flags are the same.
func (e *env) restartWith(ctx context.Context, c *cluster.Cluster, executable string) error {
	if err := c.Save(); err != nil {
		return err
	}
	if err := supervise.StopSupervisor(ctx, c); err != nil {
		return err
	}
	_, _, err := supervise.Start(c, executable)
	return err
}

// awaitPrograms waits until each program runs as another process than before and is ready.
func (e *env) awaitPrograms(ctx context.Context, c *cluster.Cluster, names []string, before map[string]int, s *steps) error {
	ctx, cancel := context.WithTimeout(ctx, settingsPatience)
	defer cancel()
	o, end, err := newObserver(c)
	if err != nil {
		return err
	}
	defer end()
	for _, name := range names {
		seen := map[int]bool{}
		err := until(ctx, s, func(ctx context.Context) (bool, string, error) {
			pids, err := pidsOf(c)
			if err != nil {
				return false, name, err
			}
			pid := pids[name]
			if pid != 0 && pid != before[name] {
				seen[pid] = true
			}
			if len(seen) >= settingsStarts {
				return false, name, fmt.Errorf("%s ends after each start: %s", name, lastLine(c.Log(name)))
			}
			if !seen[pid] {
				return false, name, nil
			}
			ready, err := o.serving(ctx, name)
			if err != nil || !ready {
				return false, name, err
			}
			again, err := pidsOf(c) // else it may have been the one before that answered
			return again[name] == pid, name, err
		})
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s is not ready with them after %s: %s", name, settingsPatience, lastLine(c.Log(name)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lastLine returns the last line of a log, shortened.
func lastLine(path string) string {
	const most = 300
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(data[max(0, len(data)-64<<10):]))
	line := text[strings.LastIndexByte(text, '\n')+1:]
	return line[:min(len(line), most)]
}

// mergeSettings returns the settings of a cluster after some are given: those of the same program and flag are replaced.
func mergeSettings(has, given []string) []string {
	key := func(s string) string { k, _, _ := strings.Cut(s, "="); return k }
	replaced := map[string]bool{}
	for _, g := range given {
		replaced[key(g)] = true
	}
	out := slices.DeleteFunc(slices.Clone(has), func(s string) bool { return replaced[key(s)] })
	return append(out, given...)
}
