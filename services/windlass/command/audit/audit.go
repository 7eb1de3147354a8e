// Package audit makes the command audit, which shows and verifies audit logs.
package audit

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// Exit codes of `windlass audit verify`.
const (
	exitBroken = 1
	exitUnread = 2
)

// New returns the command audit.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Show and verify the audit logs"}
	addShow(cmd, e)
	cmd.AddCommand(newVerify(e))
	return cmd
}

func newVerify(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [DIR | FILE]...",
		Short: "Verify that no record of the audit logs was changed, removed or inserted",
		Long: `Verify audit logs: each record contains the hash of the previous record.

For a directory, all logs in it and in its subdirectories are verified, including rotated files; a
file is verified on its own. Without an argument, the logs of the cluster on this machine are
verified.

The exit code is 0 if all logs are intact, 1 if a log is broken (its first wrong record is printed),
and 2 if a log cannot be read or none is found. All logs are verified in each case.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				c, err := e.ClusterHere()
				if err != nil {
					fmt.Fprintln(e.Err, "error:", err)
					return failure.Exit{Code: exitUnread}
				}
				args = c.AuditDirs()
			}
			return verify(e, args)
		},
	}
}

func verify(e *session.Env, paths []string) error {
	reports, err := audit.Verify(paths...)
	broken := false
	for _, r := range reports {
		if r.Break != nil {
			broken = true
			fmt.Fprintf(e.Out, "%s: BROKEN at record %d (%s:%d): %s\n", r.Log, r.Break.Record, r.Break.File, r.Break.Line,
				r.Break.Why)
		} else {
			fmt.Fprintf(e.Out, "%s: OK, records %d to %d in %d files\n", r.Log, r.First, r.Last, len(r.Files))
		}
		for _, note := range r.Notes {
			fmt.Fprintf(e.Out, "  %s\n", note)
		}
	}
	if err != nil {
		fmt.Fprintln(e.Err, "error:", err)
	}
	switch {
	case broken:
		return failure.Exit{Code: exitBroken}
	case err != nil:
		return failure.Exit{Code: exitUnread}
	}
	return nil
}
