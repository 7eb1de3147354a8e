package auth

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// NewIssue makes the command that issues credentials signed by the authority of the cluster that find returns.
func NewIssue(e *session.Env, find func() (*cluster.Cluster, error)) *cobra.Command {
	var g cluster.Grant
	var out string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "issue (--user NAME [--group NAME]... [--token] | --service provider-NAME --host HOST)",
		Short: "Issue a client certificate or a bearer token",
		Long: `Issue a credential for a user, a hook owner, an operator or a provider plugin. Run this on the host
that has the key of the cluster's authority.

A certificate is written to a directory as tls.crt, tls.key and ca.crt; "--out -" prints all three.
A token is printed once; the cluster stores only its hash. On hosts, all gateways accept it once the
command has ended; if a host is away, the token is printed and the exit code is 1. The rights of a
credential are defined in the cluster's policy.yaml. Each issued credential is recorded in the audit log.

With compose: docker compose run --rm certificates container issue --user ann --out - > ann.pem`,
		Example: `  windlass auth issue --user ann --group windlass:editors --for 8h
  windlass auth issue --user my-backup-controller --token --for 2160h
  windlass auth issue --service provider-local --host 192.0.2.10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.Target.Server != "" {
				return errors.New(
					"issuing credentials needs the key of the cluster's authority: run this on the cluster's host, without --server")
			}
			if g.User == "" && g.Service == "" {
				return errors.New("--user or --service is required")
			}
			if g.Token && out != "" && out != "-" {
				return errors.New("--out applies to certificates only: a token is printed")
			}
			c, err := find()
			if err != nil {
				return err
			}
			if out == "" {
				out = strings.ReplaceAll(g.User+g.Service, "/", ".")
			}
			if !g.Token && out != "-" && c.Holds(out) {
				return fmt.Errorf(
					"--out %s: certificates in the cluster's own directory are renewed automatically; use another directory, or - to print", out)
			}
			log := slog.New(slog.NewTextHandler(e.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
			if g.Token && c.Member != nil {
				return issueOnHosts(cmd.Context(), e, c, g, timeout, log)
			}
			issued, err := c.Issue(cmd.Context(), g, log)
			if err != nil {
				return err
			}
			return handOver(e, c, g, issued, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&g.User, "user", "", "name of the user")
	f.StringArrayVar(&g.Groups, "group", nil, "group of the user; can be repeated")
	f.DurationVar(&g.For, "for", 0,
		"lifetime (default 30 days; at most 30 days for a certificate, one year for a token)")
	f.BoolVar(&g.Token, "token", false, "issue a bearer token instead of a certificate")
	f.StringVar(&g.Service, "service", "", "name of a provider plugin, instead of a user")
	f.StringArrayVar(&g.Hosts, "host", nil, "DNS name or IP address of the plugin; can be repeated")
	f.DurationVar(&timeout, "timeout", accessTimeout, "how long to wait until all hosts accept a token")
	f.StringVar(&out, "out", "", "directory for the certificate's files, or - to print them (default: the name)")
	return cmd
}

// handOver prints what was issued or writes its files.
func handOver(e *session.Env, c *cluster.Cluster, g cluster.Grant, issued cluster.Issued, out string) error {
	until := fmt.Sprintf("until %s (%s)", issued.Expires.UTC().Format(time.RFC3339),
		identity.Expiry(issued.Expires, time.Now()))
	switch {
	case g.Token:
		fmt.Fprintf(e.Err, "bearer token of %s, %s\n", g.User, until)
		_, err := fmt.Fprintln(e.Out, issued.Token)
		return err
	case out == "-":
		fmt.Fprintf(e.Err, "certificate of %s, %s\n", g.User+g.Service, until)
		_, err := e.Out.Write(bytes.Join([][]byte{issued.Cert, issued.Key, issued.CA}, nil))
		return err
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{"ca.crt", issued.CA}, {"tls.key", issued.Key}, {"tls.crt", issued.Cert}} {
		if err := renameio.WriteFile(filepath.Join(out, f.name), f.text, 0o600); err != nil {
			return err
		}
	}
	fmt.Fprintf(e.Out, "certificate of %s in %s, %s\n", g.User+g.Service, out, until)
	if g.User != "" {
		fmt.Fprintf(e.Out, "  windlass --server %s --cacert %[2]s --cert %[3]s --key %[4]s auth whoami\n", c.Gateway(),
			filepath.Join(out, "ca.crt"), filepath.Join(out, "tls.crt"), filepath.Join(out, "tls.key"))
	}
	return nil
}
