package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/program"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// NewServe returns the command serve.
func NewServe(e *session.Env) *cobra.Command {
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
			err := program.Run(cmd.Context(), args[0], args[1:], terminal.Raw(e.Err))
			if err != nil {
				fmt.Fprintln(e.Err, "error:", err)
				return failure.Exit{Code: program.ExitCode(args[0], err)}
			}
			return nil
		},
	}
}

// NewSupervise returns the command supervise.
func NewSupervise(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "supervise",
		Short:  "Keep the programs of a cluster running (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.Cluster()
			if err != nil {
				return err
			}
			return superviseUntil(cmd.Context(), c, e)
		},
	}
}

func superviseUntil(ctx context.Context, c *cluster.Cluster, e *session.Env) error {
	log := slog.New(slog.NewJSONHandler(terminal.Raw(e.Err), nil)).With("service", "supervisor", "cluster", c.Name)
	if err := supervise.Run(ctx, c, e.Program, log); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}
