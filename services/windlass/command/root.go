// Package command implements the windlass command line: one file per verb, with verbs and flags named as in oc and
// kubectl.
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
)

// exitError ends the program with Code. The command has already printed its message.
type exitError struct{ Code int }

// Error implements error.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// env holds what all verbs share: input, outputs, and the cluster and namespace that the flags select.
type env struct {
	in        io.Reader
	out, err  io.Writer
	target    client.Target
	namespace string
	program   string // path of this executable
}

// connect returns a client of the selected cluster and a function that closes its connection.
func (e *env) connect() (*client.Client, func(), error) {
	t, err := e.target.Resolve()
	if err != nil {
		return nil, nil, err
	}
	t.Warn = func(text string) { fmt.Fprintln(e.err, "Warning:", text) }
	conn, err := client.Dial(t)
	if err != nil {
		return nil, nil, err
	}
	return client.New(conn), func() { conn.Close() }, nil
}

// Run runs the command line and returns the exit code: 0, 1 for an error, or the code of an exitError.
func Run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	e := &env{in: in, out: out, err: errw}
	var err error
	if e.program, err = os.Executable(); err != nil {
		fmt.Fprintln(errw, "error:", err)
		return 1
	}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err = root.ExecuteContext(ctx)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	default:
		var all failures
		all.add(err)
		for _, err := range all {
			fmt.Fprintln(errw, headed(describe(err)))
		}
		if slices.ContainsFunc(all, silent) {
			fmt.Fprintln(errw, "Run `windlass status` to see what is not running.")
		}
		return 1
	}
}

// headed prefixes an error as oc does: "Error from server (NotFound): …" for the cluster's errors, "error: …" for
// those of the command line.
func headed(text string) string {
	if strings.HasPrefix(text, fromServer) {
		return "Error " + text
	}
	return "error: " + text
}

func newRoot(e *env) *cobra.Command {
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
	f.StringVar(&e.target.Cluster, "name", "", "name of the cluster on this machine (default $"+client.EnvCluster+
		" or main)")
	f.StringVarP(&e.namespace, "namespace", "n", "", "namespace (default: the kind's default namespace)")
	f.StringVar(&e.target.Server, "server", "", "host:port of the cluster's gateway (default $"+client.EnvServer+")")
	f.StringVar(&e.target.CA, "cacert", "", "file with the certificate authority to trust (default $"+client.EnvCA+")")
	f.StringVar(&e.target.Cert, "cert", "", "file with the client certificate (default $"+client.EnvCert+")")
	f.StringVar(&e.target.Key, "key", "", "file with the client certificate's private key (default $"+client.EnvKey+")")
	f.StringVar(&e.target.Token, "token", "", "bearer token, instead of a client certificate (default $"+client.EnvToken+
		")")
	root.AddCommand(
		newUp(e), newDown(e), newStatus(e), newClusters(e), newEnv(e), newServe(e), newSupervise(e), newContainer(e),
		newGet(e), newDescribe(e), newCreate(e), newApply(e), newReplace(e), newDelete(e), newScale(e), newQuorum(e),
		newHooks(e), newEvents(e),
		newEdit(e), newPatch(e), newLabel(e), newAnnotate(e), newWait(e), newPlan(e), newAuth(e), newAudit(e), newWhoami(e),
		newAdm(e), newCordon(e), newUncordon(e), newDrain(e), newAPIResources(e), newExplain(e), newVersion(e), newLogs(e),
		newExec(e), newRollout(e),
	)
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
	}
	return root
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
