package lifecycle

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/version"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// NewVersion returns the command version.
func NewVersion(e *session.Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			form, err := printer.Parse(output, printer.JSON)
			if err != nil {
				return err
			}
			v := buildVersion()
			if form.Word == printer.JSON {
				return printer.WriteJSON(e.Out, v)
			}
			_, err = fmt.Fprintf(e.Out, "Windlass Version: %s\nCommit: %s\nGo Version: %s\n", v["version"],
				table.OrNone(v["commit"]), v["goVersion"])
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	return cmd
}

// buildVersion returns the version information of the build.
func buildVersion() map[string]string {
	v := map[string]string{"version": version.Number}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v["goVersion"] = info.GoVersion
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v["commit"] = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			v["modified"] = "true"
		}
	}
	return v
}
