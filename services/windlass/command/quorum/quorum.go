// Package quorum makes the command quorum, which shows the members of etcd, and its subcommands, which make etcd work
// again after a loss.
package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// New returns the command quorum.
func New(e *session.Env) *cobra.Command {
	var output string
	var watch bool
	cmd := &cobra.Command{
		Use:   "quorum",
		Short: "Show the etcd quorum that stores the cluster's state, and its next change",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			form, err := printer.Parse(output, printer.JSON, printer.YAML)
			if err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return quorum(cmd.Context(), e, c, form, watch) })
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "after showing the quorum, watch for changes")
	cmd.AddCommand(newRecover(e), newRestore(e), newDrill(e), newSnapshots(e))
	return cmd
}

func quorum(ctx context.Context, e *session.Env, c *client.Client, form printer.Format, watch bool) error {
	guardian := etcdv1.NewQuorumServiceClient(c.Conn())
	if !watch {
		q, err := guardian.GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
		if err != nil {
			return err
		}
		return show(e.Out, form, q, time.Now())
	}
	err := follow(ctx, guardian, func(q *etcdv1.Quorum, first bool) error {
		switch {
		case !first && form.Word == printer.YAML:
			fmt.Fprintln(e.Out, "---")
		case !first && form.Word == printer.Table:
			fmt.Fprintln(e.Out)
		}
		return show(e.Out, form, q, time.Now())
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// follow calls f with the quorum on each change. It survives restarts of the guardian.
func follow(ctx context.Context, guardian etcdv1.QuorumServiceClient,
	f func(q *etcdv1.Quorum, first bool) error,
) error {
	const pause = 200 * time.Millisecond // about the time of a guardian restart
	for first := true; ; {
		stream, err := guardian.WatchQuorum(ctx, &etcdv1.WatchQuorumRequest{})
		for err == nil {
			var resp *etcdv1.WatchQuorumResponse
			if resp, err = stream.Recv(); err != nil {
				break
			}
			if err := f(resp.GetQuorum(), first); err != nil {
				return err
			}
			first = false
		}
		if c := status.Code(err); !errors.Is(err, io.EOF) && c != codes.Unavailable && c != codes.Aborted {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// show prints the members and then the state of the quorum.
func show(w io.Writer, form printer.Format, q *etcdv1.Quorum, now time.Time) error {
	if form.Word != printer.Table {
		return printer.Message(w, form, q)
	}
	rows := [][]string{{"NAME", "ROLE", "HEALTH", "LEADER", "VERSION", "DB SIZE", "IN USE", "QUOTA", "ALARMS", "MACHINE"}}
	for _, m := range q.GetMembers() {
		rows = append(rows, memberRow(m))
	}
	if err := table.New(w).Print(rows...); err != nil {
		return err
	}
	fact := func(label, text string, args ...any) {
		fmt.Fprintf(w, "%-11s%s\n", label+":", fmt.Sprintf(text, args...))
	}
	fmt.Fprintln(w)
	fact("Phase", "%s", q.GetPhase())
	fact("Voters", "%d of %d healthy, %d desired, majority %d", q.GetHealthyVoters(), q.GetVoters(), q.GetDesiredVoters(),
		q.GetMajority())
	for _, m := range q.GetMembers() {
		if !m.GetHealthy() && m.GetMessage() != "" {
			fact("Unhealthy", "%s: %s", cmp.Or(m.GetName(), m.GetId()), m.GetMessage())
		}
	}
	for _, m := range q.GetMembers() {
		if text := printer.Etcd(m); m.GetNextVersion() != "" && text != m.GetVersion() {
			fact("Version", "%s: %s", cmp.Or(m.GetName(), m.GetId()), text)
		}
	}
	fact("Tolerance", "%s", tolerance(q))
	if q.GetStrategy() != "" {
		fact("Scaling", "%s (%s)", cmp.Or(q.GetScaleMessage(), "safe"), q.GetStrategy())
	}
	fact("Permit", "%s", permit(q.GetPermit(), now))
	fact("Next", "%s", nextStep(q.GetNext()))
	fact("Waits for", "%s", cmp.Or(q.GetWaitsFor(), "nothing"))
	return nil
}

func memberRow(m *etcdv1.Member) []string {
	role := "voter"
	if m.GetLearner() {
		role = "learner"
	}
	if m.GetBootstrap() {
		role += " (bootstrap)"
	}
	health := "healthy"
	if !m.GetHealthy() {
		health = "unhealthy"
	}
	leader := ""
	if m.GetLeader() {
		leader = "*"
	}
	return []string{
		cmp.Or(m.GetName(), m.GetId()), role, health, leader, m.GetVersion(), bytesText(m.GetDbSizeBytes()),
		bytesText(m.GetDbSizeInUseBytes()),
		bytesText(m.GetDbQuotaBytes()), strings.Join(m.GetAlarms(), ","), table.OrNone(m.GetMachine().GetName()),
	}
}

func tolerance(q *etcdv1.Quorum) string {
	switch n := q.GetFailureTolerance(); n {
	case 0:
		return "no voter may fail"
	case 1:
		return "1 voter may fail"
	default:
		return fmt.Sprintf("%d voters may fail", n)
	}
}

func permit(p *etcdv1.DisruptionPermit, now time.Time) string {
	if p == nil {
		return "free"
	}
	return fmt.Sprintf("%s for %s (%s), since %s", cmp.Or(p.GetHolder(), "held"),
		cmp.Or(printer.Reference(p.GetMachine()), p.GetMachine().GetUid()), p.GetReason(), table.Age(p.GetAcquireTime(), now))
}

func nextStep(a *metav1.PlannedAction) string {
	if a == nil {
		return "nothing"
	}
	text := a.GetAction()
	if name := printer.Reference(a.GetObject()); name != "" {
		text += " " + name
	}
	if r := a.GetReason(); r != "" {
		text += ": " + r
	}
	return text
}

// bytesText returns a size in the form of etcdctl: "2.1 MB".
func bytesText(n int64) string {
	const unit = 1000
	if n <= 0 {
		return ""
	}
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, names := float64(n)/unit, []string{"kB", "MB", "GB", "TB"}
	i := 0
	for ; value >= unit && i < len(names)-1; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %s", value, names[i])
}
