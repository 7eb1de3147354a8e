package command

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
)

// newIssue issues with the authority of the cluster that find returns.
func newIssue(e *env, find func() (*cluster.Cluster, error)) *cobra.Command {
	var g cluster.Grant
	var out string
	cmd := &cobra.Command{
		Use:   "issue (--user NAME [--group NAME]... [--token] | --service provider-NAME --host HOST)",
		Short: "Issue a client certificate or a bearer token, on the host that has the cluster's authority",
		Long: `Issue a credential with the cluster's authority, for a user, the owner of a hook, an operator, or a provider's plugin.

A certificate goes into the files tls.crt, tls.key and ca.crt of a directory; "--out -" prints all three. A token is
printed, once: the cluster keeps its hash only. What a credential may do is in the cluster's policy.yaml. Each one is in
the audit log.

In compose: docker compose run --rm certificates container issue --user ann --out - > ann.pem`,
		Example: `  windlass auth issue --user ann --group windlass:editors --for 8h
  windlass auth issue --user my-backup-controller --token --for 2160h
  windlass auth issue --service provider-local --host 192.0.2.10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.target.Server != "" {
				return errors.New("credentials are issued where the key of the cluster's authority is: run this on the cluster's host, without --server")
			}
			if g.User == "" && g.Service == "" {
				return errors.New("--user or --service is missing")
			}
			if g.Token && out != "" && out != "-" {
				return errors.New("--out is for a certificate: a token is printed")
			}
			c, err := find()
			if err != nil {
				return err
			}
			if out == "" {
				out = strings.ReplaceAll(g.User+g.Service, "/", ".")
			}
			if !g.Token && out != "-" && c.Holds(out) {
				return fmt.Errorf("--out %s: what is in the cluster's own directory is renewed for ever; choose another one, or - to print", out)
			}
			issued, err := c.Issue(cmd.Context(), g, slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: slog.LevelWarn})))
			if err != nil {
				return err
			}
			return e.handOver(c, g, issued, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&g.User, "user", "", "name of the user")
	f.StringArrayVar(&g.Groups, "group", nil, "group of the user; may be repeated")
	f.DurationVar(&g.For, "for", 0, "how long it is good for (default 30 days; at most that for a certificate, a year for a token)")
	f.BoolVar(&g.Token, "token", false, "a bearer token instead of a certificate")
	f.StringVar(&g.Service, "service", "", "name of a provider's plugin, instead of a user's")
	f.StringArrayVar(&g.Hosts, "host", nil, "DNS name or address of the plugin; may be repeated")
	f.StringVar(&out, "out", "", "directory for a certificate's files (default: the name); - prints them")
	return cmd
}

// handOver gives the user what was issued.
func (e *env) handOver(c *cluster.Cluster, g cluster.Grant, issued cluster.Issued, out string) error {
	until := fmt.Sprintf("until %s (%s)", issued.Expires.UTC().Format(time.RFC3339), identity.Expiry(issued.Expires, time.Now()))
	switch {
	case g.Token:
		fmt.Fprintf(e.err, "bearer token of %s, %s\n", g.User, until)
		_, err := fmt.Fprintln(e.out, issued.Token)
		return err
	case out == "-":
		fmt.Fprintf(e.err, "certificate of %s, %s\n", g.User+g.Service, until)
		_, err := e.out.Write(bytes.Join([][]byte{issued.Cert, issued.Key, issued.CA}, nil))
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
	fmt.Fprintf(e.out, "certificate of %s in %s, %s\n", g.User+g.Service, out, until)
	if g.User != "" {
		fmt.Fprintf(e.out, "  windlass --server %s --cacert %[2]s --cert %[3]s --key %[4]s auth whoami\n", c.Gateway(),
			filepath.Join(out, "ca.crt"), filepath.Join(out, "tls.crt"), filepath.Join(out, "tls.key"))
	}
	return nil
}
