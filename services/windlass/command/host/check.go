package host

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/hostcheck"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newCheck(e *session.Env) *cobra.Command {
	var dir, address, output string
	cmd := &cobra.Command{
		Use:   "check --address ADDRESS",
		Short: "Check whether this host can carry a control plane",
		Long: `Check whether this host can carry a control plane: its address, the ports, the disk and how fast it syncs
writes, the clock, memory and limits. The exit code is 1 if a check failed.`,
		Example: "  windlass host check --address 192.0.2.1",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return check(e, dir, address, output) },
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&address, "address", "",
		"IP address of this host at which all other hosts reach it (default: that of the cluster that the host is in)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or empty for a table")
	return cmd
}

func check(e *session.Env, dir, address, output string) error {
	form, err := printer.Parse(output, printer.JSON)
	if err != nil {
		return err
	}
	c, err := cluster.OpenHost(dir)
	switch {
	case errors.Is(err, cluster.ErrNone):
	case err != nil:
		return err
	case address == "":
		address = c.Host()
	}
	if address == "" {
		return errAddress
	}
	list := hostcheck.Judge(hostcheck.Observe(address, dir, cluster.HostPorts(), c != nil))
	if form.Word == printer.JSON {
		err = printer.WriteJSON(e.Out, list)
	} else {
		err = printChecks(e, list)
	}
	if err != nil {
		return err
	}
	if !hostcheck.Usable(list) {
		return errUnusable
	}
	return nil
}

func printChecks(e *session.Env, list []hostcheck.Result) error {
	rows := [][]string{{"CHECK", "RESULT", "MESSAGE"}}
	for _, r := range list {
		rows = append(rows, []string{r.Check, string(r.Verdict), r.Message})
	}
	return table.New(e.Out).Print(rows...)
}
