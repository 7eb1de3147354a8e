// Package host makes the commands of a cluster whose control plane is on several hosts.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

var (
	errAddress  = errors.New("--address is required: the address at which all other hosts reach this one")
	errUnusable = errors.New("this host cannot carry a control plane")
)

// New returns the command host. newGet makes the command get.
func New(e *session.Env, newGet func(*session.Env) *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Run a cluster on hosts",
		Long: `Run a cluster whose control plane is on hosts of their own.

A cluster begins on its first host with ` + "`windlass host init`" + `; ` + "`windlass host run`" + ` runs the programs of
the host. Other hosts join with ` + "`windlass host join`" + ` and a token that ` + "`windlass host token`" + ` prints on a
control-plane host.`,
	}
	cmd.AddCommand(newCheck(e), newInit(e), newRun(e), newToken(e), newJoin(e), newList(e, newGet(e)), newCordon(e),
		newUncordon(e),
		newFence(e), newLeave(e), newRemove(e), newStop(e), newCertificates(e), newRecoveryKey(e), newRestore(e), newSet(e))
	return cmd
}

type initFlags struct {
	joinFlags
	settings []string
	lifetime time.Duration
}

func newInit(e *session.Env) *cobra.Command {
	var f initFlags
	cmd := &cobra.Command{
		Use:   "init --address ADDRESS",
		Short: "Begin a cluster on this host",
		Long: `Begin a cluster on this host: make its authorities, its certificates and its first release. Nothing is
started; ` + "`windlass host run`" + ` does that.

The keys of the cluster's three authorities are in DIR/pki: who is root on a control-plane host is root of
the cluster.`,
		Example: `  windlass host init --address 192.0.2.1
  windlass host init --address 192.0.2.1 --hostname rack-1-a --zone rack-1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return initialize(cmd.Context(), e, f) },
	}
	f.add(cmd)
	cmd.Flags().StringArrayVar(&f.settings, "set", nil,
		"a flag of a program, as etcd-guardian.s3-bucket=backups, on this host and on those that join; may be repeated")
	cmd.Flags().DurationVar(&f.lifetime, "certificate-lifetime", cluster.DefaultLifetime, "lifetime of certificates")
	return cmd
}

func dirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", cluster.HostDir(), "directory of this host's part of the cluster")
}

func initialize(ctx context.Context, e *session.Env, f initFlags) error {
	if f.lifetime < time.Minute {
		return fmt.Errorf("--certificate-lifetime %s: must be a minute or more", f.lifetime)
	}
	if err := cluster.CheckSettings(f.settings, nil); err != nil {
		return fmt.Errorf("--set: %w", err)
	}
	m, err := f.member(ctx, e)
	if err != nil {
		return err
	}
	if err := cluster.CheckLocal(m.Address); err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	m.First = m.Address
	c, err := cluster.CreateHost(f.dir, cluster.Settings{
		Name: e.ClusterName(), Lifetime: cluster.Lifetime(f.lifetime), Member: &m, ProgramFlags: f.settings,
	})
	if err != nil {
		return err
	}
	if err := prepare(c); err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "cluster %q begins on host %s: run `windlass host run%s`\n", c.Name, c.Member.Name,
		dirOption(f.dir))
	return nil
}

// prepare makes what is missing of the files of a host. It can be repeated after it was cut off.
func prepare(c *cluster.Cluster) error {
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		return err
	}
	return c.EnsureRelease(time.Now())
}

func dirOption(dir string) string {
	if dir == cluster.HostDir() {
		return ""
	}
	return " --dir " + dir
}

func newRun(e *session.Env) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the programs of this host in the foreground",
		Long: `Run the programs of this host, keep them running and keep their certificates valid, until the command is
ended. The programs run on then, and the next ` + "`windlass host run`" + ` takes them over: it can be replaced without
an interruption. ` + "`windlass host stop`" + ` ends the programs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), e, dir) },
	}
	dirFlag(cmd, &dir)
	return cmd
}

func run(ctx context.Context, e *session.Env, dir string) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	if err := c.CheckFormat(); err != nil {
		return err
	}
	if !c.Member.Begun {
		return fmt.Errorf("%s: `windlass host init` was cut off: repeat it", dir)
	}
	if !c.Member.Worker {
		if err := prepare(c); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewJSONHandler(terminal.Raw(e.Err), nil)).With("service", "host", "host", c.Member.Name)
	if err := cluster.CheckLocal(c.Host()); err != nil { // at boot it may come later than the programs
		log.WarnContext(ctx, "programs are started again until the address is there", "error", err)
	}
	child := supervise.IsChild()
	code, err := supervise.Host(ctx, c, log)
	if ctx.Err() != nil && !child {
		fmt.Fprintln(e.Err, runsOn(c, dirOption(dir)))
	}
	if err == nil && code != 0 {
		return failure.Exit{Code: code}
	}
	return err
}

// runsOn says what runs on after `windlass host run` has ended, and how to end it. dirOption is the flag of the host's
// directory.
func runsOn(c *cluster.Cluster, dirOption string) string {
	what, them := "its machine runs on", "it"
	if !c.Member.Worker {
		what, them = "its machine and its programs ("+strings.Join(c.Programs(), ", ")+") run on", "them"
	}
	return fmt.Sprintf("host %s: %s. `windlass host run%[3]s` takes %[4]s over, `windlass host stop%[3]s` ends %[4]s.",
		c.Member.Name, what, dirOption, them)
}
