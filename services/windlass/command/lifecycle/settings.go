package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

const (
	// settingsPatience is how long a program may take to become ready with new settings before the previous settings are
	// restored.
	settingsPatience = 30 * time.Second
	// settingsStarts is how often a program may start in that time: a program that keeps exiting rejects its flags.
	settingsStarts = 3
)

// changeSettings changes the settings of a running cluster and restarts only the programs whose flags change. If one of
// them does not become ready, it restores the previous settings and returns an error.
func changeSettings(ctx context.Context, e *session.Env, c *cluster.Cluster, to []string, s *progress.Steps) error {
	if name := supervise.OnTrial(c); name != "" {
		return fmt.Errorf("settings: %s changes its executable, try again when that is over: `windlass get programs%s`", name,
			session.NameFlag(c))
	}
	before := slices.Clone(c.ProgramFlags)
	executable := supervise.Executable(c, e.Program)
	was := flagsOf(c, executable)
	c.ProgramFlags = to
	changed := slices.DeleteFunc(topology.Names(), func(name string) bool {
		return slices.Equal(was[name], c.Spec(name, executable).Args)
	})
	s.Begin("settings")
	if len(changed) == 0 {
		s.Done("unchanged")
		return c.Save()
	}
	pids, err := pidsOf(c)
	if err != nil {
		return err
	}
	if err = restartWith(ctx, e, c, executable); err == nil {
		err = awaitPrograms(ctx, e, c, changed, pids, s)
	}
	if err == nil {
		s.Done(strings.Join(changed, ", ") + " restarted")
		return nil
	}
	c.ProgramFlags = before
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), settingsPatience)
	defer cancel()
	undo := supervise.StopSupervisor(back, c) // so that no more programs start with the rejected settings
	refused, pidsErr := pidsOf(c)
	maps.DeleteFunc(refused, func(name string, pid int) bool { return pids[name] == pid }) // not restarted
	if undo = errors.Join(undo, pidsErr); undo == nil {
		undo = restartWith(back, e, c, executable)
	}
	if undo == nil {
		undo = awaitPrograms(back, e, c, changed, refused, s)
	}
	if undo != nil {
		return fmt.Errorf("settings: %w; restoring the previous settings failed: %w", err, undo)
	}
	return fmt.Errorf("settings rejected: %w; the previous settings were restored", err)
}

func flagsOf(c *cluster.Cluster, executable string) map[string][]string {
	out := map[string][]string{}
	for _, name := range topology.Names() {
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

// restartWith stores the settings and starts a new supervisor, which keeps every program whose flags did not change.
func restartWith(ctx context.Context, e *session.Env, c *cluster.Cluster, executable string) error {
	if err := c.Save(); err != nil {
		return err
	}
	if err := supervise.StopSupervisor(ctx, c); err != nil {
		return err
	}
	_, _, err := supervise.Start(c, executable)
	return err
}

// awaitPrograms waits until each program runs as a new process and is ready.
func awaitPrograms(ctx context.Context, e *session.Env, c *cluster.Cluster, names []string, before map[string]int,
	s *progress.Steps,
) error {
	ctx, cancel := context.WithTimeout(ctx, settingsPatience)
	defer cancel()
	o, end, err := probe.New(c)
	if err != nil {
		return err
	}
	defer end()
	for _, name := range names {
		seen := map[int]bool{}
		err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
			pids, err := pidsOf(c)
			if err != nil {
				return false, name, err
			}
			pid := pids[name]
			if pid != 0 && pid != before[name] {
				seen[pid] = true
			}
			if len(seen) >= settingsStarts {
				return false, name, fmt.Errorf("%s exits after each start: %s", name, supervise.LastLine(c.Log(name)))
			}
			if !seen[pid] {
				return false, name, nil
			}
			ready, err := o.Serving(ctx, name)
			if err != nil || !ready {
				return false, name, err
			}
			again, err := pidsOf(c) // otherwise the previous process may have answered
			return again[name] == pid, name, err
		})
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s is not ready after %s: %s", name, settingsPatience, supervise.LastLine(c.Log(name)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
