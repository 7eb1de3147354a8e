// Package auth makes the commands auth and whoami: what a user may do, and the issue, revocation and rotation of
// credentials.
package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// New returns the command auth.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "auth", Short: "Inspect your access; change the policy; issue, revoke and rotate credentials",
	}
	cmd.AddCommand(newCanI(e), NewWhoami(e), NewIssue(e, e.ClusterHere), newRevoke(e), newPolicy(e), newToken(e),
		NewRotate(e, func() (*cluster.Cluster, error) { return clusterToRotate(e) }))
	return cmd
}

type canIFlags struct {
	list, quiet, everywhere bool
	subresource             string
}

func newCanI(e *session.Env) *cobra.Command {
	var f canIFlags
	cmd := &cobra.Command{
		Use:   "can-i (VERB TYPE[/NAME] | --list)",
		Short: "Check whether an action is allowed; exit with 0 for yes, 1 for no",
		Example: `  windlass auth can-i delete machines
  windlass auth can-i patch machine/a -n openshift-machine-api
  windlass auth can-i update machines --subresource=status
  windlass auth can-i complete hooks/clusteroperator/etcd
  windlass auth can-i --list`,
		Args: cobra.MaximumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"get", "list", "watch", "create", "update", "patch", "delete", "plan", "claim", "complete"},
					cobra.ShellCompDirectiveNoFileComp
			}
			return target.CompleteObjects(e)(cmd, args[1:], typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.WithClient(func(c *client.Client) error {
				if f.list {
					return listAccess(cmd.Context(), e, c, f)
				}
				if len(args) != 2 {
					return errors.New("you must specify two arguments: verb resource, or verb resource/resourceName")
				}
				return canI(cmd.Context(), e, c, args[0], args[1], f)
			})
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.list, "list", false, "list all allowed actions")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing, return only the exit code")
	fs.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "check the action in all namespaces")
	fs.StringVar(&f.subresource, "subresource", "", "subresource to check, such as status")
	return cmd
}

// accessRequest returns the access review for a word of the command line: a kind, or a resource that exists only in
// roles, such as hooks.
func accessRequest(ctx context.Context, e *session.Env, verb, word string, f canIFlags) *metav1.ReviewAccessRequest {
	word, name, _ := strings.Cut(word, "/")
	req := &metav1.ReviewAccessRequest{Verb: verb, Name: name}
	if k, err := e.FindKind(ctx, word); err == nil {
		req.Group, req.Resource = k.GetGroup(), k.GetPlural()
		if !f.everywhere {
			req.Namespace = e.NamespaceOf(k)
		}
	} else {
		var has bool
		if req.Resource, req.Group, has = strings.Cut(word, "."); !has && word != "*" {
			req.Group = "windlass.dev" // hooks, quorum, instances, providers
		}
	}
	if f.subresource != "" {
		req.Resource += "/" + f.subresource
	}
	return req
}

func canI(ctx context.Context, e *session.Env, c *client.Client, verb, word string, f canIFlags) error {
	resp, err := metav1.NewAccessServiceClient(c.Conn()).ReviewAccess(ctx, accessRequest(ctx, e, verb, word, f))
	if err != nil {
		return err
	}
	answer := "yes"
	if !resp.GetAllowed() {
		answer = "no"
		if r := resp.GetReason(); r != "" {
			answer += " - " + r
		}
	}
	if !f.quiet {
		fmt.Fprintln(e.Out, answer)
	}
	if !resp.GetAllowed() {
		return failure.Exit{Code: 1}
	}
	return nil
}

func listAccess(ctx context.Context, e *session.Env, c *client.Client, f canIFlags) error {
	req := &metav1.ListAccessRequest{Namespace: e.Namespace}
	if f.everywhere {
		req.Namespace = ""
	}
	resp, err := metav1.NewAccessServiceClient(c.Conn()).ListAccess(ctx, req)
	if err != nil {
		return err
	}
	rows := [][]string{{"RESOURCES", "NAMESPACE", "RESOURCE NAMES", "VERBS"}}
	for _, r := range resp.GetRules() {
		for _, group := range r.GetGroups() {
			for _, res := range r.GetResources() {
				if group != "" {
					res += "." + group
				}
				rows = append(rows, []string{res, r.GetNamespace(), fmt.Sprint(r.GetNames()), fmt.Sprint(r.GetVerbs())})
			}
		}
	}
	return table.New(e.Out).Print(rows...)
}

// certificateRows returns the serial number and expiry of the user's certificate; nil if the user calls with a token.
func certificateRows(e *session.Env, now time.Time) ([][]string, error) {
	t, err := e.Target.Resolve()
	if err != nil || t.Token != "" || t.Cert == "" {
		return nil, err
	}
	cert, err := identity.ReadCertificate(t.Cert)
	if err != nil {
		return nil, err
	}
	return [][]string{
		{"Serial number", identity.SerialNumber(cert)},
		{"Expires", fmt.Sprintf("%s (%s)", cert.NotAfter.Format(time.RFC3339), identity.Expiry(cert.NotAfter, now))},
	}, nil
}

// NewWhoami returns the command whoami.
func NewWhoami(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show your user name and groups as the cluster sees them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.WithClient(func(c *client.Client) error {
				who, err := metav1.NewAccessServiceClient(c.Conn()).WhoAmI(cmd.Context(), &metav1.WhoAmIRequest{})
				if err != nil {
					return err
				}
				rows := [][]string{{"ATTRIBUTE", "VALUE"}, {"Username", who.GetUser()}, {"Groups", fmt.Sprint(who.GetGroups())}}
				own, err := certificateRows(e, time.Now())
				if err != nil {
					return err
				}
				return table.New(e.Out).Print(append(rows, own...)...)
			})
		},
	}
}
