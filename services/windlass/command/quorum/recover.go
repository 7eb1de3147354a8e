package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/recovery"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// recoverFlags are the flags of recover and restore.
type recoverFlags struct {
	yes, force bool
	without    []string
	timeout    time.Duration
}

func (f *recoverFlags) add(cmd *cobra.Command, force string) {
	fs := cmd.Flags()
	fs.BoolVar(&f.yes, "yes", false, "do it, instead of only showing what could be lost")
	fs.BoolVar(&f.force, "force", false, force)
	fs.StringSliceVar(&f.without, "without", nil,
		"on a host: names of the voters on other hosts, as confirmation that none of them runs any more")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait for the processes to exit and for the data")
}

func newRecover(e *session.Env) *cobra.Command {
	f, discard := &recoverFlags{}, false
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Recover etcd from a surviving member after the loss of a majority",
		Long: `Recover etcd from a surviving member after the loss of a majority.

Without --yes the command changes nothing: it shows which members there is data of, which of them has most of the log,
and what could be lost. With --yes it stops the cluster, makes that member's data a cluster of one member with a later
revision, and moves all other data aside. "windlass up" then starts the cluster, and its control-plane machines join
again. It needs neither etcd nor any service, and works for a cluster on this machine.

On a host of a control plane on several hosts it works with the data of this host, and ends the programs of this host
only. Recover where the last term is the highest, and of these where the last entry is. The members of the other hosts
must be off: --without names them all. "windlass host run" then starts this host; another one that comes back finds this
one, moves its data aside and joins.

A recovery that was interrupted is finished with --yes. --discard drops what it prepared, where the other members turn
out to run after all.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			if discard {
				return discardUnfinished(ctx, e, *f)
			}
			return recoverQuorum(ctx, e, *f)
		},
	}
	f.add(cmd, "also if this machine has, or may have, the data of a majority")
	cmd.Flags().BoolVar(&discard, "discard", false, "drop what an interrupted recovery or restore has prepared")
	return cmd
}

func recoverQuorum(ctx context.Context, e *session.Env, f recoverFlags) error {
	c, err := localCluster(ctx, e, f)
	if err != nil {
		return err
	}
	q := lastQuorum(ctx, e)
	if q.GetHealthyVoters() > 0 && q.GetHealthyVoters() >= q.GetMajority() {
		return fmt.Errorf("%d of %d voters answer, which is a majority: there is nothing to recover", q.GetHealthyVoters(),
			q.GetVoters())
	}
	if recovery.Unfinished(c) {
		return finish(ctx, e, c, f)
	}
	s, err := recovery.Look(c)
	if err != nil {
		return err
	}
	survivor, some := s.Survivor()
	if !some {
		return errors.New("this machine has no data of any member: restore a snapshot with `windlass quorum restore`")
	}
	if err := showSurvey(e.Out, c, s, survivor, q); err != nil {
		return err
	}
	if all, here := s.Voters(); s.Majority() && !f.force {
		return fmt.Errorf(
			"the data of %d of %d voters is on this machine: `%s` starts them, and nothing is lost; "+
				"add --force if they cannot be started", here, all, startCommand(c))
	}
	if !s.Listed && !f.force {
		return fmt.Errorf(
			"the guardian's list of members is missing, so that it is not known whether the data of a majority "+
				"is on this machine: try `%s` first, and add --force if that does not help", startCommand(c))
	}
	if err := confirm(c, s, f); err != nil {
		return err
	}
	if !f.yes {
		return fmt.Errorf("nothing was changed: add --yes to recover from member %s", survivor.Name)
	}
	if err := recovery.CheckSpace(c, sizeOf(survivor.Copy.DataDir)); err != nil {
		return err
	}
	p := progress.New(e.Out)
	release, err := stop(ctx, e, c, p)
	if err != nil {
		return err
	}
	defer release()
	if s, err = recovery.Look(c); err != nil { // its log may have been written to until now
		return err
	}
	if survivor, some = s.Survivor(); !some {
		return errors.New("the data of the survivor is gone")
	}
	if err := confirm(c, s, f); err != nil { // of a member that runs not all is known
		return err
	}
	p.Begin("data")
	aside, err := recovery.FromMember(ctx, c, survivor, time.Now())
	if err != nil {
		return err
	}
	p.Done("from member " + survivor.Name)
	return done(e.Out, c, aside)
}

// discardUnfinished drops what an interrupted recovery or restore has prepared.
func discardUnfinished(ctx context.Context, e *session.Env, f recoverFlags) error {
	f.yes = true
	c, err := localCluster(ctx, e, f)
	if err != nil {
		return err
	}
	if !recovery.Unfinished(c) {
		return errors.New("no recovery or restore was interrupted here")
	}
	if err := recovery.Discard(c); err != nil {
		return err
	}
	_,
		err = fmt.Fprintf(e.Out,
		"discarded; data of members that had been moved aside is in %s: where there is some, delete "+
			"the machine, so that another member takes its place\n", c.Dir("etcd-before-*"))
	return err
}

// localCluster returns the selected cluster, or that of this host, whose files the commands of recovery work on. What
// would start the processes again while they work is refused.
func localCluster(ctx context.Context, e *session.Env, f recoverFlags) (*cluster.Cluster, error) {
	c, err := e.ClusterHere()
	if err != nil {
		return nil, err
	}
	if c.Member != nil && c.Member.Worker {
		return nil, errors.New("this host is a worker, which has no data of etcd: use a control-plane host")
	}
	if c.Member != nil && f.yes {
		if err := supervise.CheckUnit(ctx, c); err != nil {
			return nil, err
		}
	}
	return c, c.CheckFormat()
}

// startCommand is how a cluster, or a host of one, is started.
func startCommand(c *cluster.Cluster) string {
	if c.Member == nil {
		return "windlass up" + session.NameFlag(c)
	}
	return "windlass host run"
}

// confirm returns an error unless a user names all voters on other hosts: a cluster that goes on there would be a
// second one beside this one, and no command can distinguish a host that is off from one that is cut off.
func confirm(c *cluster.Cluster, s recovery.Survey, f recoverFlags) error {
	if c.Member == nil {
		if len(f.without) > 0 {
			return errors.New("--without: is for hosts only; all members of this cluster are on this machine")
		}
		return nil
	}
	if !s.Listed && !f.force {
		return errors.New("it is not known which members there are on other hosts, since this host has no list of them: " +
			"add --force if none of them runs any more")
	}
	var elsewhere, unnamed []string
	given := map[string]bool{}
	for _, name := range f.without {
		given[name] = false
	}
	for _, m := range s.Members {
		if m.Learner || m.Copy != nil || m.Trouble != "" {
			continue
		}
		elsewhere = append(elsewhere, m.Name)
		// Of a member whose name is only in the database the id was shown while that could not be read.
		id := fmt.Sprintf("%x", m.ID)
		_, byName := given[m.Name]
		_, byID := given[id]
		if !byName && !byID {
			unnamed = append(unnamed, m.Name)
		}
		given[m.Name], given[id] = true, true
	}
	for _, name := range f.without {
		if !given[name] {
			return fmt.Errorf("--without: %q is no voter of which this host has no data", name)
		}
	}
	if len(unnamed) == 0 {
		return nil
	}
	return fmt.Errorf(
		"the voters on other hosts must be off, or a second cluster would run there: confirm it with --without %s",
		strings.Join(elsewhere, ","))
}

// lastQuorum returns what the guardian says of its members; nil if it does not answer, as when the cluster is down.
func lastQuorum(ctx context.Context, e *session.Env) *etcdv1.Quorum {
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var q *etcdv1.Quorum
	err := e.WithClient(func(c *client.Client) (err error) {
		q, err = etcdv1.NewQuorumServiceClient(c.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
		return err
	})
	if err != nil {
		return nil
	}
	return q
}

// showSurvey prints the members with their data, and what could be lost.
func showSurvey(w io.Writer, c *cluster.Cluster, s recovery.Survey, survivor recovery.Member, q *etcdv1.Quorum) error {
	rows := [][]string{{"NAME", "ROLE", "TERM", "LAST ENTRY", "AGREED", "REVISION", "LAST WRITTEN", "STATE"}}
	var missing []string
	for _, m := range s.Members {
		row := []string{m.Name, "voter", "", "", "", "", "", state(m, survivor, q)}
		if m.Learner {
			row[1] = "learner"
		}
		if d := m.Copy; d != nil {
			row[2], row[3], row[4] = fmt.Sprint(d.LastTerm), fmt.Sprint(d.LastIndex), fmt.Sprint(d.Commit)
			row[6] = d.Written.UTC().Format(time.RFC3339)
			if revision := max(d.Revision, member(q, m.ID).GetRevision()); revision > 0 {
				row[5] = fmt.Sprint(revision)
			}
		} else if !m.Learner {
			missing = append(missing, m.Name)
		}
		rows = append(rows, row)
	}
	if err := table.New(w).Print(rows...); err != nil {
		return err
	}
	d := survivor.Copy
	fmt.Fprintf(w, "\nSurvivor:  %s has the log up to entry %d of term %d.\n", survivor.Name, d.LastIndex, d.LastTerm)
	fmt.Fprintln(w, "Could be lost:")
	switch {
	case !s.Listed:
		fmt.Fprintf(w, "  - what other members acknowledged without %s: the guardian's list of members is missing\n",
			survivor.Name)
	case len(missing) == 0:
		fmt.Fprintln(w, "  - nothing that was acknowledged: no voter's data is missing")
	default:
		fmt.Fprintf(w, "  - what was acknowledged by %s and did not reach %s, after about %s\n", strings.Join(missing, ", "),
			survivor.Name, d.Written.UTC().Format(time.RFC3339))
	}
	fmt.Fprintf(w, "Not lost:  everything up to entry %d.\n\n", d.LastIndex)
	if c.Member != nil && len(missing) > 1 {
		fmt.Fprint(w,
			"Another host may have more: run this command on each that has its data, and recover where the last term is\n"+
				"the highest, and of these where the last entry is.\n\n")
	}
	return nil
}

// state describes a member in the survey.
func state(m, survivor recovery.Member, q *etcdv1.Quorum) string {
	var text []string
	switch {
	case m.Trouble != "":
		text = append(text, "its data cannot be read: "+m.Trouble)
	case m.Copy == nil:
		text = append(text, "no data on this machine")
	case m.ID == survivor.ID:
		text = append(text, "survivor")
	}
	if at := member(q, m.ID).GetSilentTime(); at != nil {
		text = append(text, "silent since "+at.AsTime().UTC().Format(time.RFC3339))
	}
	return strings.Join(text, ", ")
}

func member(q *etcdv1.Quorum, id uint64) *etcdv1.Member {
	i := slices.IndexFunc(q.GetMembers(), func(m *etcdv1.Member) bool { return m.GetId() == fmt.Sprintf("%x", id) })
	if i < 0 {
		return nil
	}
	return q.GetMembers()[i]
}

// sizeOf returns the bytes of the database in a member's data directory.
func sizeOf(dataDir string) int64 {
	st, err := os.Stat(filepath.Join(dataDir, "member", "snap", "db"))
	if err != nil {
		return 0
	}
	return st.Size()
}

// stop stops all processes of a cluster: no member may run on the data that is replaced. None is started before release
// is called.
func stop(ctx context.Context, e *session.Env, c *cluster.Cluster, p *progress.Steps) (release func(), err error) {
	p.Begin("processes")
	count := 0
	log := slog.New(slog.NewTextHandler(e.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	report := func(name string) {
		count++
		p.Wait(name)
	}
	if c.Member != nil {
		release, err = supervise.StopHeld(ctx, c, log, report)
	} else {
		release, err = func() {}, supervise.Stop(ctx, c, log, report)
	}
	if err == nil {
		p.Done(fmt.Sprintf("%d stopped", count))
	}
	return release, err
}

// finish completes a restore that was interrupted, and whose members elsewhere were confirmed to be off. It counts as
// of the time when its data was made: one on another host since then is the later one.
func finish(ctx context.Context, e *session.Env, c *cluster.Cluster, f recoverFlags) error {
	if !f.yes {
		return fmt.Errorf("an earlier recovery or restore was interrupted, whose data is of %s: add --yes to finish it",
			recovery.MadeTime(c, time.Now()).UTC().Format(time.RFC3339))
	}
	p := progress.New(e.Out)
	release, err := stop(ctx, e, c, p)
	if err != nil {
		return err
	}
	defer release()
	aside, err := recovery.Finish(c, time.Now())
	if err != nil {
		return err
	}
	return done(e.Out, c, aside)
}

func done(w io.Writer, c *cluster.Cluster, aside string) error {
	fmt.Fprintf(w, "etcd of cluster %q has one member now; the old data is in %s\n", c.Name, aside)
	if c.Member != nil {
		_,
			err := fmt.Fprintf(w, "start this host with `%s`; hosts that come back join by themselves, without their old data\n",
			startCommand(c))
		return err
	}
	_, err := fmt.Fprintf(w, "start the cluster with `%s`; the control-plane machines join by themselves\n",
		startCommand(c))
	return err
}
