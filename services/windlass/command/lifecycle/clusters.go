package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// clusterLine is the row of one cluster in the output of `windlass clusters`.
type clusterLine struct {
	Name    string    `json:"name"`
	State   string    `json:"state"` // Running, Unsupervised (programs run without a supervisor), Down or Unreadable
	Address string    `json:"address,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Version string    `json:"version,omitempty"` // of the current release; empty if the cluster does not answer
	Error   string    `json:"error,omitempty"`
}

// versionPatience limits the request for a cluster's version; all clusters are asked concurrently.
const versionPatience = time.Second

// NewClusters returns the command clusters.
func NewClusters(e *session.Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "List the clusters on this machine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return clusters(cmd.Context(), e, output) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	return cmd
}

func clusters(ctx context.Context, e *session.Env, output string) error {
	form, err := printer.Parse(output, printer.JSON)
	if err != nil {
		return err
	}
	names, err := cluster.List()
	if err != nil {
		return err
	}
	lines := make([]clusterLine, len(names))
	var asked sync.WaitGroup
	for i, name := range names {
		asked.Go(func() { lines[i] = lineOf(ctx, name) })
	}
	asked.Wait()
	if form.Word == printer.JSON {
		return printer.WriteJSON(e.Out, map[string]any{"items": lines})
	}
	if len(lines) == 0 {
		_, err := fmt.Fprintln(e.Err, "No clusters on this machine. Run `windlass up` to create one.")
		return err
	}
	w := tabwriter.NewWriter(e.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tADDRESS\tAGE\tVERSION")
	for _, l := range lines {
		age := table.OrNone("")
		if !l.Created.IsZero() {
			age = duration.HumanDuration(time.Since(l.Created))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.Name, l.State, table.OrNone(l.Address), age, table.OrNone(l.Version))
	}
	return w.Flush()
}

// lineOf returns the row of a cluster on this machine; an error is part of it.
func lineOf(ctx context.Context, name string) clusterLine {
	line := clusterLine{Name: name, State: "Unreadable"}
	c, err := cluster.Open(name)
	if err != nil {
		line.Error = err.Error()
		return line
	}
	line.Address, line.Created, line.State = "https://"+c.Gateway(), c.Created, "Down"
	pid, err := supervise.Alive(c)
	running, err2 := process.Running(c.Dir("run"))
	switch {
	case err != nil:
		line.Error = err.Error()
	case err2 != nil:
		line.Error = err2.Error()
	case pid != 0:
		line.State = "Running"
	case len(running) > 0:
		line.State = "Unsupervised"
	default:
		return line
	}
	if line.Version, err = versionOf(ctx, name); err != nil && line.Error == "" {
		line.Error = failure.Describe(err)
	}
	return line
}

func versionOf(ctx context.Context, name string) (string, error) {
	t, err := client.Target{Cluster: name}.Resolve()
	if err != nil {
		return "", err
	}
	conn, err := client.Dial(t)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	v, err := updatev1.NewClusterVersionServiceClient(conn).GetClusterVersion(ctx, &updatev1.GetClusterVersionRequest{
		Name: "version",
	})
	if err != nil {
		return "", err
	}
	for _, h := range v.GetStatus().GetHistory() { // newest first
		if h.GetState() == "Completed" {
			return h.GetVersion(), nil
		}
	}
	return v.GetStatus().GetDesired().GetVersion(), nil
}
