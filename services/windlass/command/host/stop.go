package host

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

func newStop(e *session.Env) *cobra.Command {
	var dir string
	var ifStopping bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop all programs of this host; its files remain",
		Long: `Stop all programs of this host, the services before etcd. Its files remain.

Where ` + "`windlass host run`" + ` is run by windlass.service, ` + "`systemctl stop windlass`" + ` does that: the unit would start
the programs again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return stop(cmd.Context(), e, dir, ifStopping) },
	}
	dirFlag(cmd, &dir)
	cmd.Flags().BoolVar(&ifStopping, "if-stopping", false,
		"stop them only if systemd is stopping windlass.service, and not if it restarts it")
	return cmd
}

func stop(ctx context.Context, e *session.Env, dir string, ifStopping bool) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	if ifStopping {
		stopping, err := unitIsStopping(ctx)
		if err != nil {
			return err
		}
		if !stopping {
			fmt.Fprintf(e.Out, "host %s: the programs run on, since %s is not being stopped\n", c.Member.Name, supervise.Unit)
			return nil
		}
	} else if err := supervise.CheckUnit(ctx, c); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(terminal.Raw(e.Err), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var stopped []string
	if err := supervise.Stop(ctx, c, log, func(name string) { stopped = append(stopped, name) }); err != nil {
		return err
	}
	if len(stopped) == 0 {
		stopped = append(stopped, "none ran")
	}
	fmt.Fprintf(e.Out, "host %s: processes stopped, in this order: %s\n", c.Member.Name, strings.Join(stopped, ", "))
	return nil
}

// unitIsStopping reports whether systemd has a job to stop the unit, as at the shutdown of the host. It has another one
// while it restarts the unit, and none after `windlass host run` ended by itself.
func unitIsStopping(ctx context.Context) (bool, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "list-jobs", "--plain", "--no-legend", supervise.Unit).Output()
	if err != nil {
		return false, fmt.Errorf("systemctl list-jobs %s: %w", supervise.Unit, err)
	}
	job := strings.Fields(string(out)) // 123 windlass.service stop running
	return len(job) > 2 && job[1] == supervise.Unit && job[2] == "stop", nil
}
