// Package supervise runs the programs of a cluster on one machine. The supervisor is a process of its own: when it dies
// its programs run on, and the next one takes them over by pid and start time.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/version"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// Run keeps the programs of a cluster running and their certificates valid until ctx ends. The programs run on then.
func Run(ctx context.Context, c *cluster.Cluster, executable string, log *slog.Logger) error {
	s := process.NewSupervisor(c.Dir("run"), log)
	programs, err := newPrograms(c, ownExecutable{executable, version.Number}, s, log)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Run(ctx) })
	g.Go(func() error { // as the one supervisor of the cluster
		select {
		case <-s.Active():
		case <-ctx.Done():
			return nil
		}
		if c.Network > 0 {
			held, err := c.HoldNetwork(ctx)
			if err != nil {
				return err
			}
			defer held.Close()
		}
		if err := programs.begin(); err != nil {
			return err
		}
		return programs.run(ctx)
	})
	g.Go(func() error { return Renew(ctx, c, log) })
	return g.Wait()
}

// Renew keeps the certificates of a cluster valid until ctx ends. It checks often enough that each certificate is seen
// several times between 70 % and the end of its life, and soon after the host slept, when certificates may have
// expired.
func Renew(ctx context.Context, c *cluster.Cluster, log *slog.Logger) error {
	every := min(time.Duration(c.Lifetime)/20, time.Minute)
	tick := time.NewTicker(max(every, 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n, err := c.EnsureCertificates(time.Now())
		if err != nil {
			log.ErrorContext(ctx, "certificates not renewed", "error", err)
		} else if n > 0 {
			log.InfoContext(ctx, "certificates renewed", "count", n)
		}
	}
}

// Alive returns the pid of the cluster's supervisor, or of what starts that again; 0 if none is alive.
func Alive(c *cluster.Cluster) (int, error) {
	if pid, err := process.Owner(c.Dir(launcherDir)); err != nil || pid != 0 {
		return pid, err
	}
	return process.Owner(c.Dir("run"))
}

// Executable returns the executable of a cluster's supervisor, which its programs were started from; other if none is
// alive, or its executable is gone.
func Executable(c *cluster.Cluster, other string) string {
	pid, err := Alive(c)
	if err != nil || pid == 0 {
		return other
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return other
	}
	path = strings.TrimSuffix(path, " (deleted)") // one that was built again is at the same place
	if _, err := os.Stat(path); err != nil {
		return other
	}
	return path
}

// Start starts the supervisor of a cluster as a process of its own, unless one is alive. It returns the pid and whether
// it was started now.
func Start(c *cluster.Cluster, executable string) (pid int, started bool, err error) {
	if pid, err = Alive(c); err != nil || pid != 0 {
		return pid, false, err
	}
	if err := os.MkdirAll(c.Dir("logs"), 0o700); err != nil {
		return 0, false, err
	}
	log, err := os.OpenFile(c.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, false, err
	}
	defer log.Close()
	cmd := exec.Command(executable, "supervise", "--name", c.Name)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, false, err
	}
	if err := awaitHold(c, cmd); err != nil {
		return 0, false, err
	}
	pid, err = Alive(c) // another start's, if that was faster
	return pid, pid == cmd.Process.Pid, err
}

// awaitHold waits until a supervisor that was just started holds the cluster and its network: from then on it is found
// by Alive.
func awaitHold(c *cluster.Cluster, cmd *exec.Cmd) error {
	const patience = 15 * time.Second // a supervisor waits 5 s for one that is just ending, and 5 s for its network
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; {
		if pid, err := Alive(c); err == nil && pid == cmd.Process.Pid && (c.Network == 0 || networkHolder(c) == pid) {
			return nil
		}
		if time.Now().After(end) {
			if pid, err := Alive(c); err == nil && pid == cmd.Process.Pid && networkHolder(c) == 0 {
				return nil // it is of an earlier version, which holds none
			}
			return fmt.Errorf("supervisor %d does not begin: see %s", cmd.Process.Pid, c.Log("supervisor"))
		}
		select {
		case err := <-ended:
			if pid, _ := Alive(c); pid != 0 {
				return nil // another one was faster
			}
			return fmt.Errorf("supervisor ended at once (%v): see %s", err, c.Log("supervisor"))
		case <-tick.C:
		}
	}
}

// networkHolder returns the process that holds the network of a cluster; 0 if none does.
func networkHolder(c *cluster.Cluster) int {
	pid, _ := loopback.Holder(c.Network)
	return int(pid)
}

// Stop ends all processes of a cluster: the supervisor, the programs, the machines and the members of etcd. It calls
// report with what it is about to stop. The files of the cluster remain.
func Stop(ctx context.Context, c *cluster.Cluster, log *slog.Logger, report func(string)) error {
	if pid, err := Alive(c); err == nil && pid != 0 {
		report("supervisor")
	}
	if err := StopSupervisor(ctx, c); err != nil {
		return err
	}
	if err := stopPrograms(ctx, c, log, report); err != nil {
		return err
	}
	return endPods(ctx, c, log, report)
}

// endPods ends what runs of the pods of a cluster's machines on this host.
func endPods(ctx context.Context, c *cluster.Cluster, log *slog.Logger, report func(string)) error {
	machines, err := c.PodsDirs()
	if err != nil {
		return err
	}
	err = nodeagent.EndContainers(ctx, machines, log, report)
	users := c.PodUsers()
	return errors.Join(err, users.Kill()) // what left its pod's session, or is of a runtime that does not answer
}

// StopHeld is Stop for a host, and keeps `windlass host run` from starting until release is called: it must not start
// programs on data that is being replaced.
func StopHeld(ctx context.Context, c *cluster.Cluster, log *slog.Logger, report func(string)) (release func(),
	err error,
) {
	if err := StopSupervisor(ctx, c); err != nil {
		return nil, err
	}
	let, err := holdLauncher(context.WithoutCancel(ctx), c, log)
	if err != nil {
		return nil, fmt.Errorf("`windlass host run` starts again: %w", err)
	}
	err = stopPrograms(ctx, c, log, report)
	if err == nil {
		err = endPods(ctx, c, log, report)
	}
	if err != nil {
		return nil, errors.Join(err, let())
	}
	return func() { _ = let() }, nil
}

// stopPrograms ends the programs, the agents and the members of etcd, but no pods.
func stopPrograms(ctx context.Context, c *cluster.Cluster, log *slog.Logger, report func(string)) error {
	// Parents first, because they would restart their children: the programs, then the agents, then the remaining members.
	dirs, err := RunDirs(c)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := stopAll(ctx, dir, log, report); err != nil {
			return err
		}
	}
	return nil
}

// StopSupervisor ends the supervisor of a cluster alone: the programs run on, and the next one takes them over.
func StopSupervisor(ctx context.Context, c *cluster.Cluster) error {
	for _, dir := range []string{c.Dir(launcherDir), c.Dir("run")} { // the first one would start the second one again
		if err := endOwner(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// endOwner ends the supervisor of a run directory, if one is alive.
func endOwner(ctx context.Context, dir string) error {
	pid, err := process.Owner(dir)
	if err != nil || pid == 0 {
		return err
	}
	if err := process.SignalOwner(dir, syscall.SIGTERM); err != nil && !errors.Is(err, process.ErrNoProcess) {
		return fmt.Errorf("stop supervisor %d: %w", pid, err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if pid, err = process.Owner(dir); err != nil || pid == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("supervisor %d does not end: %w", pid, ctx.Err())
		case <-tick.C:
		}
	}
}

// RunDirs returns the run directories of a cluster: that of the supervisor, then those of its programs, then those of
// the machines.
func RunDirs(c *cluster.Cluster) ([]string, error) {
	var out []string
	for _, pattern := range []string{"run", "services/*/run", "services/*/*/*/run", "node/run"} {
		found, err := filepath.Glob(c.Dir(pattern))
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// stopAll ends every process of a run directory, all at once: also those that have no record, since a full disk took
// none.
func stopAll(ctx context.Context, dir string, log *slog.Logger, report func(string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := process.NewSupervisor(dir, log)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Active():
	case err := <-done:
		return err
	}
	names, err := s.Recorded()
	if err != nil {
		return err
	}
	g, stopping := errgroup.WithContext(ctx)
	for _, name := range names {
		report(name)
		g.Go(func() error { return s.Stop(stopping, name) })
	}
	err = g.Wait()
	cancel()
	return errors.Join(err, <-done)
}
