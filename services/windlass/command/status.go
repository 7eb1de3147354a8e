package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

func newStatus(e *env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what runs of a cluster on this machine and whether it is ready",
		Long:  "Show what runs of a cluster on this machine and whether it is ready. The exit code is 0 if it is, 3 if it is not.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				return e.statusAll()
			}
			return e.status(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "list all clusters of this machine")
	return cmd
}

func (e *env) statusAll() error {
	names, err := cluster.List()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tADDRESS\tSUPERVISOR\tCREATED")
	for _, name := range names {
		c, err := cluster.Open(name)
		if err != nil {
			return err
		}
		pid, err := supervise.Alive(c)
		if err != nil {
			return err
		}
		state := "down"
		if pid != 0 {
			state = fmt.Sprintf("pid %d", pid)
		}
		fmt.Fprintf(w, "%s\thttps://%s\t%s\t%s\n", c.Name, c.Gateway(), state, c.Created.Format(time.RFC3339))
	}
	return w.Flush()
}

// notReady is the exit code of status for a cluster that is not ready, as systemctl has it for a unit that is not active.
const notReady = 3

func (e *env) status(ctx context.Context) error {
	c, err := e.cluster()
	if err != nil {
		return err
	}
	pid, err := supervise.Alive(c)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "Cluster:     %s\nAddress:     https://%s\nDirectory:   %s\n", c.Name, c.Gateway(), c.Dir())
	if pid == 0 {
		fmt.Fprintf(e.out, "Supervisor:  not running (`windlass up%s` starts it)\n", nameFlag(c))
	} else {
		fmt.Fprintf(e.out, "Supervisor:  pid %d\n", pid)
	}
	ready, err := e.printState(ctx, c)
	if err != nil {
		return err
	}
	if err := printProcesses(e.out, c); err != nil {
		return err
	}
	if !ready {
		return ExitError{notReady}
	}
	return nil
}

// printState prints what the cluster says of itself and returns whether it is ready.
func (e *env) printState(ctx context.Context, c *cluster.Cluster) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	o, end, err := newObserver(c)
	if err != nil {
		return false, err
	}
	defer end()
	q, err := o.quorum(ctx)
	if err != nil {
		fmt.Fprintf(e.out, "State:       Unreachable: %s\n", describe(err))
		return false, nil
	}
	machines, wanted, err := o.machines(ctx)
	if err != nil {
		fmt.Fprintf(e.out, "State:       NotReady: %s\n", describe(err))
		return false, nil
	}
	running := 0
	for _, m := range machines {
		if m.GetStatus().GetPhase() == "Running" {
			running++
		}
	}
	ready := running == wanted && len(machines) == wanted && q.GetHealthyVoters() == q.GetVoters() && q.GetBootstrapRetired()
	fmt.Fprintf(e.out, "State:       %s\n", map[bool]string{true: "Ready", false: "NotReady"}[ready])
	fmt.Fprintf(e.out, "Quorum:      %s, %d of %d voters healthy\n", q.GetPhase(), q.GetHealthyVoters(), q.GetVoters())
	if w := q.GetWaitsFor(); w != "" {
		fmt.Fprintf(e.out, "             waits for %s\n", w)
	}
	fmt.Fprintf(e.out, "Machines:    %d of %d run\n", running, wanted)
	return ready, nil
}

// printProcesses prints every process of the cluster on this machine.
func printProcesses(out io.Writer, c *cluster.Cluster) error {
	dirs, err := supervise.RunDirs(c)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nPROCESS\tPID\tAGE\tOF")
	for _, dir := range dirs {
		list, err := process.Running(dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		for _, p := range list {
			rel, _ := filepath.Rel(c.Dir(), filepath.Dir(dir))
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", p.Name, p.PID, time.Since(p.Since).Truncate(time.Second), rel)
		}
	}
	return w.Flush()
}
