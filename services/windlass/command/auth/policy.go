package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newPolicy(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Show and change the policy of all control-plane hosts"}
	cmd.AddCommand(newPolicyApply(e), newPolicyShow(e), newPolicyStatus(e))
	return cmd
}

func policyOf(c *cluster.Cluster) string { return c.Dir("policy.yaml") }

type applyFlags struct {
	file    string
	force   bool
	timeout time.Duration
}

func newPolicyApply(e *session.Env) *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Change the policy on all control-plane hosts",
		Long: `Change the policy on all control-plane hosts of a cluster, and wait until the programs of all of them have
loaded it. The policy is checked as the programs do before anything is changed.

The first line of what "windlass auth policy show" prints is the generation of the policy. A file with it is
refused if the policy was changed since then; a file without it replaces the present policy. A policy that
takes the right to change it from you, or a right from the programs of the cluster, is refused without --force.

A host that is away gets the policy when it is back. It is named, and the exit code is 1.`,
		Example: `  windlass auth policy show > policy.yaml
  windlass auth policy apply -f policy.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readFile(e.In, f.file)
			if err != nil {
				return err
			}
			return withAccess(e, policyWord, policyOf, func(hosts hostv1.HostServiceClient) error {
				return applyPolicy(cmd.Context(), e, hosts, text, f)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "filename", "f", "", "file with the policy, or - (required)")
	fs.BoolVar(&f.force, "force", false, "also if the policy takes rights from you or from the programs of the cluster")
	fs.DurationVar(&f.timeout, "timeout", accessTimeout, "how long to wait for the hosts")
	return cmd
}

func readFile(in io.Reader, file string) (string, error) {
	switch file {
	case "":
		return "", errors.New("must specify a file or - with -f")
	case "-":
		text, err := io.ReadAll(in)
		return string(text), err
	}
	text, err := os.ReadFile(file)
	return string(text), err
}

// generationLine begins the first line of a policy that was printed, before its generation.
const generationLine = "# windlass.dev/generation: "

// cutGeneration returns a policy without the line of its generation, and the generation; 0 if it has none.
func cutGeneration(text string) (string, int32, error) {
	rest, ok := strings.CutPrefix(text, generationLine)
	if !ok {
		return text, 0, nil
	}
	number, rest, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 32)
	if err != nil || n < 1 {
		return "", 0, fmt.Errorf("%s%s: must be a generation that `windlass auth policy show` has printed", generationLine,
			number)
	}
	return rest, int32(n), nil
}

func applyPolicy(ctx context.Context, e *session.Env, hosts hostv1.HostServiceClient, text string, f applyFlags) error {
	text, generation, err := cutGeneration(text)
	if err != nil {
		return err
	}
	is, err := hosts.GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{})
	if err != nil {
		return notRecorded(ctx, hosts, err)
	}
	if generation == 0 {
		generation = is.GetGeneration()
	}
	if err := warnOfOthers(ctx, e, hosts); err != nil {
		return err
	}
	now, err := hosts.SetClusterAccess(ctx, &hostv1.SetClusterAccessRequest{
		Generation: generation, Policy: &text, Force: f.force,
	})
	if err != nil {
		return err
	}
	what := "unchanged"
	if now.GetGeneration() != is.GetGeneration() {
		what = "recorded"
	}
	fmt.Fprintf(e.Out, "policy %s: generation %d, SHA-256 %s\n", what, now.GetGeneration(), now.GetPolicyHash())
	return await(ctx, e.Out, hosts, now, f.timeout, func(is *hostv1.ClusterAccess) bool {
		return is.GetPolicyHash() == now.GetPolicyHash()
	})
}

// await shows on out how the hosts get a change. holds reports whether what is recorded has the change: other users may
// have made further ones.
func await(ctx context.Context, out io.Writer, hosts hostv1.HostServiceClient, changed *hostv1.ClusterAccess,
	timeout time.Duration, holds func(*hostv1.ClusterAccess) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	count, err := awaitAccess(ctx, progress.New(out), hosts, changed.GetGeneration())
	if err == nil {
		var is *hostv1.ClusterAccess
		if is, err = hosts.GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{}); err == nil && !holds(is) {
			err = fmt.Errorf("generation %d of user %q has replaced this change", is.GetGeneration(), is.GetChangedBy())
		}
	}
	if err != nil {
		return fmt.Errorf("%w; see `windlass auth policy status`", err)
	}
	fmt.Fprintf(out, "in force on all %d control-plane hosts\n", count)
	return nil
}

// notRecorded replaces the error of a policy that is not recorded yet by what that waits for.
func notRecorded(ctx context.Context, hosts hostv1.HostServiceClient, err error) error {
	p, planErr := hosts.PlanClusterAccess(ctx, &hostv1.PlanClusterAccessRequest{})
	if planErr == nil && p.GetAccess() == nil {
		return errors.New("the policy and the tokens are not recorded yet: " + p.GetWaitsFor())
	}
	return err
}

func newPolicyShow(e *session.Env) *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the policy of all control-plane hosts",
		Long: `Print the policy of all control-plane hosts as "windlass auth policy apply" takes it. The first line is its
generation.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAccess(e, policyWord, policyOf, func(hosts hostv1.HostServiceClient) error {
				return showPolicy(cmd.Context(), e, hosts, host)
			})
		},
	}
	cmd.Flags().StringVar(&host, "host", "", "fail unless policy.yaml of this host is the same")
	return cmd
}

func showPolicy(ctx context.Context, e *session.Env, hosts hostv1.HostServiceClient, host string) error {
	is, err := hosts.GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{})
	if err != nil {
		return notRecorded(ctx, hosts, err)
	}
	if host != "" {
		if err := sameOn(ctx, hosts, host, is); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(e.Out, "%s%d\n%s", generationLine, is.GetGeneration(), is.GetPolicy())
	return err
}

// sameOn returns an error unless policy.yaml of a host is the recorded one.
func sameOn(ctx context.Context, hosts hostv1.HostServiceClient, host string, is *hostv1.ClusterAccess) error {
	p, err := hosts.PlanClusterAccess(ctx, &hostv1.PlanClusterAccessRequest{})
	if err != nil {
		return err
	}
	for _, h := range p.GetHosts() {
		switch {
		case h.GetName() != host:
			continue
		case h.GetState() == "Away":
			return fmt.Errorf("host %s: %s", host, h.GetMessage())
		case h.GetPolicyHash() != is.GetPolicyHash():
			return fmt.Errorf("host %s has another policy.yaml, SHA-256 %s: it is in the directory of that host", host,
				table.OrNone(h.GetPolicyHash()))
		}
		return nil
	}
	return fmt.Errorf("there is no control-plane host %q", host)
}

func newPolicyStatus(e *session.Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which policy and bearer tokens each control-plane host has",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			form, err := printer.Parse(output, printer.JSON, printer.YAML)
			if err != nil {
				return err
			}
			return withAccess(e, policyWord, policyOf, func(hosts hostv1.HostServiceClient) error {
				p, err := hosts.PlanClusterAccess(cmd.Context(), &hostv1.PlanClusterAccessRequest{})
				if err != nil {
					return err
				}
				if form.Word != "" {
					return printer.Message(e.Out, form, p)
				}
				return printAccess(e.Out, p)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func printAccess(out io.Writer, p *hostv1.PlanClusterAccessResponse) error {
	is := p.GetAccess()
	by := "from the files of host " + is.GetHost()
	if is.GetHost() == "" {
		by = "by " + is.GetChangedBy()
	}
	if is != nil {
		fmt.Fprintf(out,
			"Generation %d, %s at %s\nPolicy: SHA-256 %s, of generation %d\nTokens: SHA-256 %s, of generation %d\n\n",
			is.GetGeneration(), by, is.GetChangeTime().AsTime().UTC().Format(time.RFC3339), is.GetPolicyHash(),
			is.GetPolicyGeneration(), is.GetTokensHash(), is.GetTokensGeneration())
	}
	rows := [][]string{{"HOST", "STATE", "GENERATION", "POLICY", "TOKENS", "SINCE", "MESSAGE"}}
	for _, h := range p.GetHosts() {
		since := table.None
		if h.GetSinceTime() != nil {
			since = h.GetSinceTime().AsTime().UTC().Format(time.RFC3339)
		}
		rows = append(rows, []string{
			h.GetName(), h.GetState(), fmt.Sprint(h.GetGeneration()), short(h.GetPolicyHash()), short(h.GetTokensHash()), since,
			table.OrNone(h.GetMessage()),
		})
	}
	if err := table.New(out).Print(rows...); err != nil {
		return err
	}
	if p.GetWaitsFor() != "" && is == nil {
		fmt.Fprintln(out, "\nNot recorded yet:", p.GetWaitsFor())
	}
	return nil
}

// short returns enough of a hash to compare it.
func short(hash string) string {
	const most = 12
	return table.OrNone(hash[:min(len(hash), most)])
}
