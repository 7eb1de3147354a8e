package command

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/version"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newVersion(e *env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			form, err := parseFormat(output, formatJSON)
			if err != nil {
				return err
			}
			v := buildVersion()
			if form.word == formatJSON {
				return writeJSON(e.out, v)
			}
			_, err = fmt.Fprintf(e.out, "Windlass Version: %s\nCommit: %s\nGo Version: %s\n", v["version"],
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
