package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/audit"
)

// Exit codes of `windlass audit verify`.
const (
	exitBroken = 1
	exitUnread = 2
)

func newAudit(e *env) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Check the audit logs"}
	cmd.AddCommand(newAuditVerify(e))
	return cmd
}

func newAuditVerify(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [DIR | FILE]...",
		Short: "Check that no record of the audit logs was changed, removed or inserted",
		Long: `Check the hash that each record carries of the one before.

A directory stands for the logs in it and in the directories in it, with their older files; a file is checked by itself.
Without an argument the logs of the cluster on this machine are checked.

Exit code 0: all chains are intact. 1: one is not, and the first record that does not follow is named. 2: a log cannot be
read, or there is none. The other logs are checked all the same.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				c, err := e.cluster()
				if err != nil {
					fmt.Fprintln(e.err, "error:", err)
					return ExitError{exitUnread}
				}
				args = c.AuditDirs()
			}
			return e.verifyAudit(args)
		},
	}
}

func (e *env) verifyAudit(paths []string) error {
	reports, err := audit.Verify(paths...)
	broken := false
	for _, r := range reports {
		if r.Break != nil {
			broken = true
			fmt.Fprintf(e.out, "%s: BROKEN at record %d (%s:%d): %s\n", r.Log, r.Break.Record, r.Break.File, r.Break.Line, r.Break.Why)
		} else {
			fmt.Fprintf(e.out, "%s: OK, records %d to %d in %d files\n", r.Log, r.First, r.Last, len(r.Files))
		}
		for _, note := range r.Notes {
			fmt.Fprintf(e.out, "  %s\n", note)
		}
	}
	if err != nil {
		fmt.Fprintln(e.err, "error:", err)
	}
	switch {
	case broken:
		return ExitError{exitBroken}
	case err != nil:
		return ExitError{exitUnread}
	}
	return nil
}
