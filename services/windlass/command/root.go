// Package command is the command line: one file per verb, spelled as in oc and kubectl.
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

// ExitError ends the program with a code of its own; its text has been printed.
type ExitError struct{ Code int }

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// env is what the verbs share: where to print, and how the user said which cluster and namespace are meant.
type env struct {
	in        io.Reader
	out, err  io.Writer
	target    client.Target
	namespace string
	program   string // path of this executable
}

// connect returns a client of the cluster that the user means and a function that ends it.
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

// Run runs the command line and returns the exit code: 0, 1 for an error, or the code of an ExitError.
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
	var exit ExitError
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
			fmt.Fprintln(errw, "`windlass status` shows what does not run.")
		}
		return 1
	}
}

// headed begins an error as oc does: "Error from server (NotFound): …", or "error: …" for what never got there.
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
		Long: `Windlass keeps a fleet of machines healthy while they are replaced, updated, reconfigured and lost.

  windlass up                     start a cluster on this machine
  windlass get machines           see its machines
  windlass describe machine NAME  see what a machine is and what it waits for
  windlass quorum                 see the etcd quorum that holds the cluster's state`,
		SilenceUsage: true, SilenceErrors: true,
	}
	f := root.PersistentFlags()
	f.StringVar(&e.target.Cluster, "name", "", "name of the cluster on this machine (default $"+client.EnvCluster+" or main)")
	f.StringVarP(&e.namespace, "namespace", "n", "", "namespace (default: that of the kind)")
	f.StringVar(&e.target.Server, "server", "", "host:port of the cluster's gateway (default $"+client.EnvServer+")")
	f.StringVar(&e.target.CA, "cacert", "", "file of the authority to trust (default $"+client.EnvCA+")")
	f.StringVar(&e.target.Cert, "cert", "", "file of your certificate (default $"+client.EnvCert+")")
	f.StringVar(&e.target.Key, "key", "", "file of its key (default $"+client.EnvKey+")")
	f.StringVar(&e.target.Token, "token", "", "bearer token, instead of a certificate (default $"+client.EnvToken+")")
	root.AddCommand(
		newUp(e), newDown(e), newStatus(e), newClusters(e), newEnv(e), newServe(e), newSupervise(e), newContainer(e),
		newGet(e), newDescribe(e), newCreate(e), newApply(e), newReplace(e), newDelete(e), newScale(e), newQuorum(e), newHooks(e), newEvents(e),
		newEdit(e), newPatch(e), newLabel(e), newAnnotate(e), newWait(e), newPlan(e), newAuth(e), newAudit(e), newWhoami(e),
		newAdm(e), newCordon(e), newUncordon(e), newDrain(e), newAPIResources(e), newExplain(e), newVersion(e), newLogs(e), newExec(e), newRollout(e),
	)
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
	}
	return root
}

// refuseUnknown has every command that only holds others, at any depth, refuse a name that it does not hold: cobra would print its help and
// end with 0.
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
