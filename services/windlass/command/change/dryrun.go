package change

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// DryRun is the flag --dry-run.
type DryRun string

// AddFlag adds --dry-run to the flags of a command.
func (d *DryRun) AddFlag(fs *pflag.FlagSet) {
	fs.StringVar((*string)(d), "dry-run", "none",
		"none, client (do not send the request) or server (validate the request without storing the result)")
	fs.Lookup("dry-run").NoOptDefVal = "client"
}

// Check returns an error for an unknown value of the flag.
func (d DryRun) Check() error {
	if !slices.Contains([]DryRun{"none", "client", "server"}, d) {
		return fmt.Errorf("--dry-run=%s: must be none, client or server", string(d))
	}
	return nil
}

// Client reports whether the request is not sent.
func (d DryRun) Client() bool { return d == "client" }

// Server reports whether the server validates the request without storing the result.
func (d DryRun) Server() bool { return d == "server" }

// Suffix is printed after the verb; "" without a dry run.
func (d DryRun) Suffix() string {
	switch {
	case d.Client():
		return " (dry run)"
	case d.Server():
		return " (server dry run)"
	}
	return ""
}
