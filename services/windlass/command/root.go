// Package command is the tree of the windlass commands. Each noun is a package that makes its commands, with verbs and
// flags named as in oc and kubectl; nouns import the shared packages and never each other, so what two of them need is
// in a package of its own.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/adm"
	"github.com/windlass-dev/windlass/services/windlass/command/audit"
	"github.com/windlass-dev/windlass/services/windlass/command/auth"
	"github.com/windlass-dev/windlass/services/windlass/command/describe"
	"github.com/windlass-dev/windlass/services/windlass/command/explain"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/hooks"
	"github.com/windlass-dev/windlass/services/windlass/command/host"
	"github.com/windlass-dev/windlass/services/windlass/command/lifecycle"
	"github.com/windlass-dev/windlass/services/windlass/command/objects"
	"github.com/windlass-dev/windlass/services/windlass/command/plans"
	"github.com/windlass-dev/windlass/services/windlass/command/provider"
	"github.com/windlass-dev/windlass/services/windlass/command/quorum"
	"github.com/windlass-dev/windlass/services/windlass/command/release"
	"github.com/windlass-dev/windlass/services/windlass/command/rollout"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// Run runs the command line and returns the exit code: 0, 1 for an error, or the code of an Exit.
func Run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	out, errw = terminal.New(out), terminal.New(errw)
	e := &session.Env{In: in, Out: out, Err: errw}
	var err error
	if e.Program, err = os.Executable(); err != nil {
		fmt.Fprintln(errw, "error:", err)
		return 1
	}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err = root.ExecuteContext(ctx)
	var exit failure.Exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	default:
		var all failure.List
		all.Add(err)
		for _, err := range all {
			if ctx.Err() != nil && failure.Canceled(err) {
				err = errors.New("interrupted")
			}
			fmt.Fprintln(errw, failure.Headed(failure.Describe(err)))
		}
		if ctx.Err() != nil {
			return interrupted
		}
		if slices.ContainsFunc(all, failure.Silent) {
			fmt.Fprintln(errw, "Run `windlass status` to see what is not running.")
		}
		return 1
	}
}

// interrupted is the exit code after an interrupt, as shells and kubectl have it: 128 and the number of the signal.
const interrupted = 130

func newRoot(e *session.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "windlass",
		Short: "A control plane for fleets of machines",
		Long: `Windlass keeps a fleet of machines healthy while machines are replaced, updated, reconfigured and lost.

  windlass up                     start a cluster on this machine
  windlass get machines           list its machines
  windlass describe machine NAME  show the details of a machine and what it waits for
  windlass quorum                 show the etcd quorum that stores the cluster's state`,
		SilenceUsage: true, SilenceErrors: true,
	}
	f := root.PersistentFlags()
	f.StringVar(&e.Target.Cluster, "name", "", "name of the cluster on this machine (default $"+client.EnvCluster+
		" or main)")
	f.StringVarP(&e.Namespace, "namespace", "n", "", "namespace (default: the kind's default namespace)")
	f.StringVar(&e.Target.Server, "server", "",
		"host:port of the cluster's gateway, or of several with commas between them (default $"+client.EnvServer+")")
	f.StringVar(&e.Target.CA, "cacert", "", "file with the certificate authority to trust (default $"+client.EnvCA+")")
	f.StringVar(&e.Target.Cert, "cert", "", "file with the client certificate (default $"+client.EnvCert+")")
	f.StringVar(&e.Target.Key, "key", "", "file with the client certificate's private key (default $"+client.EnvKey+")")
	f.StringVar(&e.Target.Token, "token", "", "bearer token, instead of a client certificate (default $"+client.EnvToken+
		")")
	admin := adm.New(e)
	admin.AddCommand(release.New(e))
	root.AddCommand(
		lifecycle.NewUp(e), lifecycle.NewDown(e), lifecycle.NewStatus(e), lifecycle.NewClusters(e), lifecycle.NewEnv(e),
		lifecycle.NewServe(e), lifecycle.NewSupervise(e), lifecycle.NewContainer(e, auth.NewIssue, auth.NewRotate),
		lifecycle.NewVersion(e),
		objects.NewGet(e), objects.NewCreate(e), objects.NewApply(e), objects.NewReplace(e), objects.NewEdit(e),
		objects.NewPatch(e), objects.NewLabel(e), objects.NewAnnotate(e), objects.NewScale(e), objects.NewDelete(e),
		objects.NewWait(e), objects.NewEvents(e), objects.NewLogs(e), objects.NewExec(e), objects.NewTop(e),
		admin, adm.NewCordon(e), adm.NewUncordon(e), adm.NewDrain(e), auth.New(e), auth.NewWhoami(e),
		audit.New(e), host.New(e, objects.NewGet), describe.New(e), explain.New(e), explain.NewAPIResources(e), hooks.New(e),
		plans.New(e),
		provider.New(e),
		quorum.New(e), rollout.New(e),
	)
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
		showUsage(cmd)
	}
	return root
}

// showUsage makes every command, at any depth, show its use when it gets too many or too few arguments: cobra's error
// only has their number.
func showUsage(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		showUsage(c)
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w\nUsage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// refuseUnknown makes every command that only groups subcommands, at any depth, reject an unknown subcommand. Cobra
// would print the help and exit with 0.
func refuseUnknown(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseUnknown(c)
	}
	if !cmd.HasSubCommands() || cmd.Runnable() {
		return
	}
	cmd.Args, cmd.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
			text += "; did you mean " + strings.Join(like, " or ") + "?"
		}
		return fmt.Errorf("%s\nSee '%s --help' for help and examples", text, cmd.CommandPath())
	}
}
