package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newToken(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "List and delete the bearer tokens that all gateways of a cluster on hosts accept",
	}
	cmd.AddCommand(newTokenList(e), newTokenDelete(e), newTokenImport(e))
	return cmd
}

func tokensOf(c *cluster.Cluster) string { return c.TokensFile() }

// tokenID is the part of a token's hash by which commands name it.
func tokenID(t identity.Token) string { return strings.ToLower(t.SHA256[:12]) }

func newTokenList(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the bearer tokens", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAccess(e, tokensWord, tokensOf, func(hosts hostv1.HostServiceClient) error {
				is, err := hosts.GetClusterAccess(cmd.Context(), &hostv1.GetClusterAccessRequest{})
				if err != nil {
					return notRecorded(cmd.Context(), hosts, err)
				}
				tokens, err := identity.ParseTokens([]byte(is.GetTokens()))
				if err != nil {
					return err
				}
				var list []identity.Token
				for _, t := range tokens {
					list = append(list, t)
				}
				slices.SortFunc(list, func(a, b identity.Token) int {
					return cmp.Or(cmp.Compare(a.User, b.User), a.Expires.Compare(b.Expires), cmp.Compare(a.SHA256, b.SHA256))
				})
				rows := [][]string{{"ID", "USER", "GROUPS", "EXPIRES"}}
				for _, t := range list {
					rows = append(rows, []string{
						tokenID(t), t.User, table.OrNone(strings.Join(t.Groups, ",")),
						fmt.Sprintf("%s (%s)", t.Expires.UTC().Format(time.RFC3339), identity.Expiry(t.Expires, time.Now())),
					})
				}
				return table.New(e.Out).Print(rows...)
			})
		},
	}
}

func newTokenDelete(e *session.Env) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete ID...",
		Short: "Delete bearer tokens on all control-plane hosts",
		Long: `Delete bearer tokens on all control-plane hosts, and wait until all gateways refuse them. A host that is away
deletes them when it is back; it is named, and the exit code is 1. ` + "`windlass auth revoke --user`" + ` revokes all
certificates and tokens of a user.`,
		Example: `  windlass auth token list
  windlass auth token delete 3f9a0c1e77b2`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			own, err := e.Target.Resolve()
			if err != nil {
				return err
			}
			for _, id := range args {
				if sum := sha256.Sum256([]byte(own.Token)); own.Token != "" &&
					strings.HasPrefix(hex.EncodeToString(sum[:]), strings.ToLower(id)) {
					return fmt.Errorf("token %s is the one with which you call the cluster: use other credentials to delete it", id)
				}
			}
			return withAccess(e, tokensWord, tokensOf, func(hosts hostv1.HostServiceClient) error {
				now, err := changeTokens(cmd.Context(), hosts, func(text []byte) ([]byte, error) {
					return withoutTokens(text, args)
				})
				if err != nil {
					return err
				}
				for _, id := range args {
					fmt.Fprintf(e.Out, "token %s deleted\n", id)
				}
				return await(cmd.Context(), e.Out, hosts, now, timeout, func(is *hostv1.ClusterAccess) bool {
					for _, id := range args {
						if _, err := withoutTokens([]byte(is.GetTokens()), []string{id}); err == nil {
							return false
						}
					}
					return true
				})
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", accessTimeout, "how long to wait for the hosts")
	return cmd
}

func newTokenImport(e *session.Env) *cobra.Command {
	var file string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "import -f FILE",
		Short: "Add the bearer tokens of a file of hashes on all control-plane hosts",
		Long: `Add the bearer tokens of a file of hashes on all control-plane hosts: the file of a gateway that had tokens of
its own, such as tokens.replaced. Those that have expired are left out.`,
		Example: `  windlass auth token import -f /var/lib/windlass/services/gateway/tokens.replaced`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readFile(e.In, file)
			if err != nil {
				return err
			}
			more, err := identity.ParseTokens([]byte(text))
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			return withAccess(e, tokensWord, tokensOf, func(hosts hostv1.HostServiceClient) error {
				now, err := changeTokens(cmd.Context(), hosts, func(text []byte) ([]byte, error) {
					return withTokens(text, more, time.Now())
				})
				if err != nil {
					return err
				}
				return await(cmd.Context(), e.Out, hosts, now, timeout, func(is *hostv1.ClusterAccess) bool {
					text, err := withTokens([]byte(is.GetTokens()), more, time.Now())
					return err == nil && string(text) == is.GetTokens()
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file of tokens, or - (required)")
	cmd.Flags().DurationVar(&timeout, "timeout", accessTimeout, "how long to wait for the hosts")
	return cmd
}

// withTokens adds tokens to the text of a file of tokens that it does not have, and that have not expired.
func withTokens(text []byte, more map[[sha256.Size]byte]identity.Token, now time.Time) ([]byte, error) {
	have, err := identity.ParseTokens(text)
	if err != nil {
		return nil, err
	}
	for _, sum := range slices.SortedFunc(maps.Keys(more), func(a, b [sha256.Size]byte) int {
		return bytes.Compare(a[:], b[:])
	}) {
		if _, there := have[sum]; there || !now.Before(more[sum].Expires) {
			continue
		}
		if text, err = identity.AppendToken(text, more[sum]); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// withoutTokens removes tokens by their IDs. Each must name one token.
func withoutTokens(text []byte, ids []string) ([]byte, error) {
	for _, id := range ids {
		found, err := map[string]bool{}, error(nil) // a file that was written manually may have one twice
		if text, err = identity.RemoveTokens(text, func(t identity.Token) bool {
			match := id != "" && strings.HasPrefix(strings.ToLower(t.SHA256), strings.ToLower(id))
			if match {
				found[strings.ToLower(t.SHA256)] = true
			}
			return match
		}); err != nil {
			return nil, err
		}
		switch {
		case len(found) == 0:
			return nil, fmt.Errorf("there is no token %q: `windlass auth token list` lists them", id)
		case len(found) > 1:
			return nil, fmt.Errorf("%q is the beginning of the IDs of %d tokens: write more of it", id, len(found))
		}
	}
	return text, nil
}

// tokenTries is how often a change of the tokens is made again that collides with others.
const tokenTries = 5

// changeTokens changes the file of tokens of all control-plane hosts.
func changeTokens(ctx context.Context, hosts hostv1.HostServiceClient,
	change func(text []byte) ([]byte, error),
) (*hostv1.ClusterAccess, error) {
	for try := 1; ; try++ {
		is, err := hosts.GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{})
		if err != nil {
			return nil, notRecorded(ctx, hosts, err)
		}
		next, err := change([]byte(is.GetTokens()))
		if err != nil {
			return nil, err
		}
		text := string(next)
		now, err := hosts.SetClusterAccess(ctx, &hostv1.SetClusterAccessRequest{
			Generation: is.GetGeneration(), Tokens: &text,
		})
		if err == nil || status.Code(err) != codes.Aborted || try == tokenTries {
			return now, err
		}
	}
}

// issueOnHosts issues a bearer token, and waits until the gateways of all hosts accept it. It is printed also if some
// do not: it cannot be had again.
func issueOnHosts(ctx context.Context, e *session.Env, c *cluster.Cluster, g cluster.Grant, timeout time.Duration,
	log *slog.Logger,
) error {
	target, err := client.Target{}.AtHost(c.Dir())
	if err != nil {
		return err
	}
	conn, err := client.Dial(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	hosts := hostv1.NewHostServiceClient(conn)
	if _, err := hosts.GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{}); err != nil { // before it is issued
		return explained(notRecorded(ctx, hosts, err), tokensWord)
	}
	issued, err := c.Issue(ctx, g, log)
	if err != nil {
		return err
	}
	now, err := changeTokens(ctx, hosts, func(text []byte) ([]byte, error) {
		return identity.AppendToken(text, issued.Entry)
	})
	if err != nil {
		return err
	}
	err = await(ctx, e.Err, hosts, now, timeout, func(is *hostv1.ClusterAccess) bool {
		return strings.Contains(is.GetTokens(), issued.Entry.SHA256)
	})
	return errors.Join(handOver(e, c, g, issued, ""), err)
}
