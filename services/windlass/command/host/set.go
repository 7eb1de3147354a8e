package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newSet(e *session.Env) *cobra.Command {
	var dir, gateway string
	var unset []string
	var files filesFlags
	var observe bool
	cmd := &cobra.Command{
		Use: "set [PROGRAM.FLAG=VALUE...] [--unset PROGRAM.FLAG...] [--gateway HOST:PORT] [--observe=BOOL] " +
			"[--allow-path PATH...]",
		Short: "Change flags of the programs of this host, or what configurations may change on it",
		Long: `Change flags of the programs of this control-plane host, or show them. They are in force once ` + "`windlass host run`" + `
has been started again, which restarts the programs whose flags change. Use the command on each control-plane host; one
that joins has the flags of the host that made its token.

--observe has this host compared with its machine configuration and changes nothing of it; --observe=false ends that.
--allow-path lets configurations change a file or directory, and what is below it, that they may not change on
every host; --forbid-path ends that. Both are in force once ` + "`windlass host run`" + ` has been started again, and need
a host whose own files are changed (` + "`windlass host join --files host`" + `).

--gateway makes another gateway of its cluster known to this host, also to a worker. Hosts learn of gateways by
themselves, but not while none that they know runs: as of one that ` + "`windlass host restore`" + ` made at a new address.`,
		Example: `  windlass host set etcd-guardian.s3-endpoint=https://s3.example.com etcd-guardian.s3-bucket=backups
  systemctl restart windlass

  windlass host set --gateway 192.0.2.9:6443
  windlass host set --observe=false --allow-path /srv/app`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("observe") {
				files.observe = &observe
			}
			if files.observe != nil || len(files.allow)+len(files.forbid) > 0 {
				if gateway != "" || len(args)+len(unset) > 0 {
					return errors.New("--observe, --allow-path and --forbid-path cannot be combined with other changes")
				}
				return setFiles(e, dir, files)
			}
			if gateway != "" {
				if len(args)+len(unset) > 0 {
					return errors.New("--gateway: cannot be combined with other changes")
				}
				return addGateway(cmd.Context(), e, dir, gateway)
			}
			return set(e, dir, args, unset)
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&gateway, "gateway", "", "host and port of another gateway of the cluster")
	cmd.Flags().BoolVar(&observe, "observe", false,
		"compare this host with its machine configuration, and change nothing")
	cmd.Flags().StringArrayVar(&files.allow, "allow-path", nil,
		"absolute path of a file or directory that configurations may change; may be repeated")
	cmd.Flags().StringArrayVar(&files.forbid, "forbid-path", nil, "a path that was allowed; may be repeated")
	cmd.Flags().StringArrayVar(&unset, "unset", nil, "a flag that is to have its default again; may be repeated")
	return cmd
}

func set(e *session.Env, dir string, given, unset []string) error {
	if err := cluster.CheckSettings(given, unset); err != nil {
		return err
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
	var before []string
	now, err := cluster.ChangeHost(c.Dir(), func(s *cluster.Settings) {
		before = s.ProgramFlags
		s.ProgramFlags = cluster.MergeSettings(before, given, unset)
	})
	if err != nil {
		return err
	}
	if slices.Equal(before, now.ProgramFlags) {
		_, err := fmt.Fprintln(e.Out, "unchanged")
		return err
	}
	_,
		err = fmt.Fprintf(e.Out,
		"host %s: changed; in force once `windlass host run%s` is started again: systemctl restart windlass\n",
		c.Member.Name, dirOption(dir))
	return err
}

// filesFlags are the flags about the files of a host.
type filesFlags struct {
	observe       *bool // nil: as it is
	allow, forbid []string
}

// setFiles changes what configurations may change of this host.
func setFiles(e *session.Env, dir string, f filesFlags) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	if c.Member.Files != cluster.FilesOfHost {
		return errors.New("machine configurations do not change the files of this host: it joined without --files host")
	}
	for _, p := range f.allow {
		if err := machineconfig.CheckAllowed(p); err != nil {
			return fmt.Errorf("--allow-path %w", err)
		}
	}
	for _, p := range f.forbid {
		if !slices.Contains(c.AllowedPaths, p) {
			return fmt.Errorf("--forbid-path %q: was not allowed; allowed are %q", p, c.AllowedPaths)
		}
	}
	var before cluster.Settings
	now, err := cluster.ChangeHost(c.Dir(), func(s *cluster.Settings) {
		before = *s
		m := *s.Member
		if f.observe != nil {
			m.Observe = *f.observe
		}
		s.Member = &m
		s.AllowedPaths = slices.DeleteFunc(append(slices.Clone(s.AllowedPaths), f.allow...),
			func(p string) bool { return slices.Contains(f.forbid, p) })
		slices.Sort(s.AllowedPaths)
		s.AllowedPaths = slices.Compact(s.AllowedPaths)
	})
	if err != nil {
		return err
	}
	if *before.Member == *now.Member && slices.Equal(before.AllowedPaths, now.AllowedPaths) {
		_, err := fmt.Fprintln(e.Out, "unchanged")
		return err
	}
	_, err = fmt.Fprintf(e.Out,
		"host %s: changed; in force once `windlass host run%s` is started again: systemctl restart windlass\n",
		c.Member.Name, dirOption(dir))
	return err
}

// checkGateway returns an error unless a gateway answers with a certificate of an authority that this host has.
func checkGateway(ctx context.Context, c *cluster.Cluster, at netip.AddrPort) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cfg, err := identity.TrustOnly(c.HostFiles().CA)
	if err != nil {
		return err
	}
	cfg.ServerName = at.Addr().String()
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// addGateway has this host know another gateway, the first of those that it asks besides its own.
func addGateway(ctx context.Context, e *session.Env, dir, gateway string) error {
	at, err := netip.ParseAddrPort(gateway)
	if err != nil || at.Port() == 0 {
		return fmt.Errorf("--gateway %q: must be an IP address and a port, as 192.0.2.9:6443", gateway)
	}
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	switch err := checkGateway(ctx, c, at); {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("gateway %s is of another cluster, or of authorities that this host does not have: %w", at, err)
	case err != nil:
		fmt.Fprintf(e.Err, "Warning: gateway %s does not answer now: %v\n", at, err)
	}
	added, err := c.AddGateway(at.String())
	if err != nil {
		return err
	}
	if !added {
		_, err := fmt.Fprintln(e.Out, "unchanged")
		return err
	}
	_, err = fmt.Fprintf(e.Out, "host %s knows gateway %s\n", c.Member.Name, at)
	return err
}
