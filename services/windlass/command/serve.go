package command

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/program"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

func newServe(e *env) *cobra.Command {
	return &cobra.Command{
		Use:                "serve PROGRAM [flags]",
		Short:              "Run one of the cluster's programs in the foreground",
		Long:               "Run one of the cluster's programs in the foreground: " + program.Names() + ".",
		DisableFlagParsing: true, // the program parses its own flags
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return program.List(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains([]string{"-h", "--help", "help"}, args[0]) {
				return cmd.Help()
			}
			err := program.Run(cmd.Context(), args[0], args[1:], e.err)
			if err != nil {
				fmt.Fprintln(e.err, "error:", err)
				return exitError{program.ExitCode(args[0], err)}
			}
			return nil
		},
	}
}

func newSupervise(e *env) *cobra.Command {
	return &cobra.Command{
		Use:    "supervise",
		Short:  "Keep the programs of a cluster running (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.cluster()
			if err != nil {
				return err
			}
			return superviseUntil(cmd.Context(), c, e)
		},
	}
}

func superviseUntil(ctx context.Context, c *cluster.Cluster, e *env) error {
	log := slog.New(slog.NewJSONHandler(e.err, nil)).With("service", "supervisor", "cluster", c.Name)
	if err := supervise.Run(ctx, c, e.program, log); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}
