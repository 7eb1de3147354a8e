package command

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newAuth(e *env) *cobra.Command {
	cmd := &cobra.Command{Use: "auth", Short: "Show who you are and what you may do"}
	cmd.AddCommand(newCanI(e), newWhoami(e))
	return cmd
}

func newCanI(e *env) *cobra.Command {
	var list, quiet bool
	cmd := &cobra.Command{
		Use:   "can-i (VERB TYPE[/NAME] | --list)",
		Short: "Show whether you may do something; the exit code is 0 for yes and 1 for no",
		Long: `Show whether you may do something: get, list, watch, create, update, patch, delete or plan. The services themselves are asked, by calls that
change nothing; a refusal is written to their audit logs like any other.`,
		Example: `  windlass auth can-i delete machines
  windlass auth can-i patch machine/a -n openshift-machine-api
  windlass auth can-i --list`,
		Args: cobra.MaximumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return client.Verbs(), cobra.ShellCompDirectiveNoFileComp
			}
			return e.completeObjects(cmd, args[1:], typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.withClient(func(c *client.Client) error {
				if list {
					return e.canList(cmd.Context(), c)
				}
				if len(args) != 2 {
					return errors.New("you must specify two arguments: verb resource, or verb resource/resourceName")
				}
				return e.canI(cmd.Context(), c, args[0], args[1], quiet)
			})
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "show everything that you may do")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing, only the exit code counts")
	return cmd
}

func (e *env) canI(ctx context.Context, c *client.Client, verb, word string, quiet bool) error {
	word, name, _ := strings.Cut(word, "/")
	k, err := client.FindKind(word)
	if err != nil {
		return err
	}
	allowed, reason, err := c.Allowed(ctx, k, verb, e.namespaceOf(k), name)
	if err != nil {
		return err
	}
	if !quiet {
		answer := "yes"
		if !allowed {
			answer = "no"
			if reason != "" {
				answer += " - " + reason
			}
		}
		fmt.Fprintln(e.out, answer)
	}
	if !allowed {
		return ExitError{1}
	}
	return nil
}

func (e *env) canList(ctx context.Context, c *client.Client) error {
	rows := [][]string{{"RESOURCES", "VERBS"}}
	for _, k := range client.Kinds() {
		var may []string
		for _, verb := range k.Verbs() {
			ok, _, err := c.Allowed(ctx, k, verb, e.namespaceOf(k), "")
			if err != nil {
				return err
			}
			if ok {
				may = append(may, verb)
			}
		}
		if len(may) > 0 {
			rows = append(rows, []string{k.FullName(), "[" + strings.Join(may, " ") + "]"})
		}
	}
	return table.New(e.out).Print(rows...)
}

func newWhoami(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show as whom you call the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := e.target.Resolve()
			if err != nil {
				return err
			}
			rows := [][]string{{"ATTRIBUTE", "VALUE"}, {"Server", t.Server}}
			if t.Cert == "" {
				rows = append(rows, []string{"Credentials", "bearer token: only the server knows whose it is"})
				return table.New(e.out).Print(rows...)
			}
			who, until, err := certificateOwner(t.Cert)
			if err != nil {
				return err
			}
			rows = append(rows, []string{"Username", who.User}, []string{"Groups", fmt.Sprint(who.Groups)},
				[]string{"Certificate", t.Cert}, []string{"Valid until", until.Format(time.RFC3339)})
			return table.New(e.out).Print(rows...)
		},
	}
}

// certificateOwner returns as whom a certificate makes its holder known.
func certificateOwner(path string) (identity.Caller, time.Time, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return identity.Caller{}, time.Time{}, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return identity.Caller{}, time.Time{}, fmt.Errorf("%s holds no certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return identity.Caller{}, time.Time{}, fmt.Errorf("%s: %w", path, err)
	}
	who, err := identity.FromCertificate(cert)
	return who, cert.NotAfter, err
}
