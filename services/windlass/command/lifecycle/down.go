package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

// NewDown returns the command down.
func NewDown(e *session.Env) *cobra.Command {
	var purge bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster on this machine and keep its state",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return down(ctx, e, purge)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "also delete the cluster's state")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the processes to exit")
	return cmd
}

func down(ctx context.Context, e *session.Env, purge bool) error {
	c, err := e.Cluster()
	if err != nil {
		return err
	}
	s := progress.New(e.Out)
	fmt.Fprintf(e.Out, "stopping cluster %q\n", c.Name)
	s.Begin("processes")
	var stopped []string
	log := slog.New(slog.NewTextHandler(e.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	err = supervise.Stop(ctx, c, log, func(name string) {
		stopped = append(stopped, name)
		s.Wait(name)
	})
	if err != nil {
		return err
	}
	s.Done(fmt.Sprintf("%d stopped", len(stopped)))
	if !purge {
		fmt.Fprintf(e.Out, "cluster %q is down; run `windlass up%s` to restart it\n", c.Name, session.NameFlag(c))
		return nil
	}
	s.Begin("state")
	if err := c.Remove(); err != nil {
		return err
	}
	s.Done("removed " + strings.TrimSuffix(c.Dir(), "/"))
	return nil
}
