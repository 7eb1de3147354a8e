package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newSet(e *session.Env) *cobra.Command {
	var dir, gateway string
	var unset []string
	cmd := &cobra.Command{
		Use:   "set [PROGRAM.FLAG=VALUE...] [--unset PROGRAM.FLAG...] [--gateway HOST:PORT]",
		Short: "Change flags of the programs of this host",
		Long: `Change flags of the programs of this control-plane host, or show them. They are in force once ` + "`windlass host run`" + `
has been started again, which restarts the programs whose flags change. Use the command on each control-plane host; one
that joins has the flags of the host that made its token.

--gateway makes another gateway of its cluster known to this host, also to a worker. Hosts learn of gateways by themselves, but
not while none that they know runs: as of one that ` + "`windlass host restore`" + ` made at a new address.`,
		Example: `  windlass host set etcd-guardian.s3-endpoint=https://s3.example.com etcd-guardian.s3-bucket=backups
  systemctl restart windlass

  windlass host set --gateway 192.0.2.9:6443`,
		RunE: func(_ *cobra.Command, args []string) error {
			if gateway != "" {
				if len(args)+len(unset) > 0 {
					return errors.New("--gateway: cannot be combined with other changes")
				}
				return addGateway(e, dir, gateway)
			}
			return set(e, dir, args, unset)
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&gateway, "gateway", "", "host and port of another gateway of the cluster")
	cmd.Flags().StringArrayVar(&unset, "unset", nil, "a flag that is to have its default again; may be repeated")
	return cmd
}

func set(e *session.Env, dir string, given, unset []string) error {
	for _, s := range given {
		if err := cluster.CheckSetting(s); err != nil {
			return err
		}
	}
	for _, s := range unset {
		if err := cluster.CheckSetting(s + "="); err != nil || strings.Contains(s, "=") {
			return fmt.Errorf("--unset %q: must be program.flag with a known program", s)
		}
	}
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	if c.Member.Worker {
		return errors.New("this host is a worker, which has no programs of the control plane")
	}
	if len(given)+len(unset) == 0 {
		for _, s := range c.ProgramFlags {
			fmt.Fprintln(e.Out, s)
		}
		return nil
	}
	to := cluster.MergeSettings(c.ProgramFlags, given, unset)
	if slices.Equal(to, c.ProgramFlags) {
		_, err := fmt.Fprintln(e.Out, "unchanged")
		return err
	}
	c.ProgramFlags = to
	if err := c.Save(); err != nil {
		return err
	}
	_,
		err = fmt.Fprintf(e.Out,
		"host %s: changed; in force once `windlass host run%s` is started again: systemctl restart windlass\n",
		c.Member.Name, dirOption(dir))
	return err
}

// addGateway has this host know another gateway, the first of those that it asks besides its own.
func addGateway(e *session.Env, dir, gateway string) error {
	at, err := netip.ParseAddrPort(gateway)
	if err != nil || at.Port() == 0 {
		return fmt.Errorf("--gateway %q: must be an IP address and a port, as 192.0.2.9:6443", gateway)
	}
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	known := c.Gateways()
	if slices.Contains(known, at.String()) {
		_, err := fmt.Fprintln(e.Out, "unchanged")
		return err
	}
	text := strings.Join(append([]string{at.String()}, known[1:]...), "\n") + "\n" // its own is not in the file
	if err := durable.WriteFile(c.GatewaysFile(), []byte(text), 0o600); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.Out, "host %s knows gateway %s\n", c.Member.Name, at)
	return err
}
