package host

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

func newStop(e *session.Env) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop all programs of this host; its files remain",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.OpenHost(dir)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(terminal.Raw(e.Err), &slog.HandlerOptions{Level: slog.LevelWarn}))
			stopped := 0
			if err := supervise.Stop(cmd.Context(), c, log, func(string) { stopped++ }); err != nil {
				return err
			}
			fmt.Fprintf(e.Out, "host %s: %d processes stopped\n", c.Member.Name, stopped)
			return nil
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}
