package command

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

func newDown(e *env) *cobra.Command {
	var purge bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster on this machine and keep its state",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return e.down(ctx, purge)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "also delete the cluster's state")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the processes to exit")
	return cmd
}

func (e *env) down(ctx context.Context, purge bool) error {
	c, err := e.cluster()
	if err != nil {
		return err
	}
	s := newSteps(e.out)
	fmt.Fprintf(e.out, "stopping cluster %q\n", c.Name)
	s.begin("processes")
	var stopped []string
	log := slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	err = supervise.Stop(ctx, c, log, func(name string) {
		stopped = append(stopped, name)
		s.wait(name)
	})
	if err != nil {
		return err
	}
	s.done(fmt.Sprintf("%d stopped", len(stopped)))
	if !purge {
		fmt.Fprintf(e.out, "cluster %q is down; run `windlass up%s` to restart it\n", c.Name, nameFlag(c))
		return nil
	}
	s.begin("state")
	if err := c.Remove(); err != nil {
		return err
	}
	s.done("removed " + strings.TrimSuffix(c.Dir(), "/"))
	return nil
}
