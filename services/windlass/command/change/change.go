// Package change has the flags of the commands that change objects: a dry run, and how the result is printed.
package change

import (
	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/services/windlass/command/printer"
)

// Flags are the flags that all modifying verbs have.
type Flags struct {
	DryRun
	printer.Changes
}

// AddFlags adds --dry-run and -o to the flags of a command.
func (f *Flags) AddFlags(fs *pflag.FlagSet) {
	f.AddFlag(fs)
	fs.StringVarP(&f.Output, "output", "o", "", "output format: json, yaml, name or jsonpath=TEMPLATE")
}

// Settle checks the values of the flags. It must be called before Print.
func (f *Flags) Settle() error {
	if err := f.Check(); err != nil {
		return err
	}
	f.Dry = f.Suffix()
	return f.Parse()
}
