package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/recovery"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newSnapshots(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "snapshots [DIRECTORY]",
		Short: "List the complete snapshots in a directory, without etcd",
		Long: `List the complete snapshots in a directory, by default that of the cluster on this machine.
It reads the files, and needs neither etcd nor any service.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := snapshotsIn(e, args)
			if err != nil && len(list) == 0 {
				return err
			}
			return errors.Join(printSnapshots(e.Out, e.Err, list), err)
		},
	}
}

func snapshotsIn(e *session.Env, args []string) ([]snapshot.Info, error) {
	dir, err := snapshotDir(e, args)
	if err != nil {
		return nil, err
	}
	return snapshot.NewDirectory(dir).List()
}

func snapshotDir(e *session.Env, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	c, err := e.ClusterHere()
	if err != nil {
		return "", err
	}
	return recovery.Snapshots(c), nil
}

func printSnapshots(w, errw io.Writer, list []snapshot.Info) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(errw, "No complete snapshots found")
		return err
	}
	rows := [][]string{{"NAME", "TAKEN", "SIZE", "REVISION", "KEYS", "HASH", "MEMBER", "HOST KEYS"}}
	for _, s := range list {
		sealed := "no"
		if s.SealedKeys != nil {
			sealed = "yes"
		}
		rows = append(rows, []string{
			s.Name, s.Time.UTC().Format(time.RFC3339), bytesText(s.SizeBytes), fmt.Sprint(s.Revision), fmt.Sprint(s.Keys),
			s.Hash, s.Member, sealed,
		})
	}
	return table.New(w).Print(rows...)
}

func newDrill(e *session.Env) *cobra.Command {
	var timeout time.Duration
	var key string
	cmd := &cobra.Command{
		Use:   "drill [FILE | NAME]",
		Short: "Rehearse a restore: start a member on a restored copy and count its keys",
		Long: `Rehearse a restore: check a snapshot, restore it into a temporary directory, start a member on it, and count the keys
that the member serves. NAME is a snapshot of "windlass quorum snapshots"; the default is the newest one. The cluster is
not touched. The exit code is 0 if the snapshot can be restored.

With --recovery-key it also opens the keys beside the snapshot and checks that a control-plane host can be made from
them, as "windlass host restore" does.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return drill(ctx, e, args, key)
		},
	}
	cmd.Flags().StringVar(&key, "recovery-key", "",
		"file with the private key that opens the keys beside the snapshot; - for the standard input")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long the drill may take")
	return cmd
}

func drill(ctx context.Context, e *session.Env, args []string, key string) error {
	file, err := snapshotFile(e, args)
	if err != nil {
		return err
	}
	if key != "" {
		if err := openKeys(e, file, key); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp("", "windlass-drill")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	d, err := snapshot.Drill(ctx, file, work)
	if err != nil {
		return err
	}
	_,
		err = fmt.Fprintf(e.Out, "%s can be restored: %d keys at revision %d (hash %s), served after %.1f s at revision %d\n",
		file, d.Keys, d.Info.Revision, d.Info.Hash, d.Elapsed.Seconds(), d.Revision)
	return err
}

// openKeys opens the keys beside a snapshot and checks that they are complete.
func openKeys(e *session.Env, file, keyFile string) error {
	key, err := recovery.ReadRecoveryKey(keyFile, e.In)
	if err != nil {
		return fmt.Errorf("--recovery-key: %w", err)
	}
	sealed, err := recovery.ReadKeys(snapshot.KeysOf(file))
	if err != nil {
		return err
	}
	bundle, err := hostbundle.Open(sealed, key)
	if err != nil {
		return fmt.Errorf("%s: %w", snapshot.KeysOf(file), err)
	}
	files, err := hostbundle.Unpack(bundle)
	if err != nil {
		return fmt.Errorf("%s: %w", snapshot.KeysOf(file), err)
	}
	_, err = fmt.Fprintf(e.Out, "%s can be opened: %d files, with the keys of all authorities\n", snapshot.KeysOf(file),
		len(files))
	return err
}

// snapshotFile returns the file in the arguments, or that of the complete snapshot with the name in the arguments, or
// that of the newest one.
func snapshotFile(e *session.Env, args []string) (string, error) {
	if len(args) > 0 {
		if _, err := os.Stat(args[0]); !errors.Is(err, fs.ErrNotExist) {
			return args[0], nil
		}
	}
	dir, err := snapshotDir(e, nil)
	if err != nil {
		return "", err
	}
	d := snapshot.NewDirectory(dir)
	list, err := d.List()
	if len(args) > 0 {
		if slices.ContainsFunc(list, func(s snapshot.Info) bool { return s.Name == args[0] }) {
			return d.File(args[0]), nil
		}
		return "", errors.Join(fmt.Errorf("%q is neither a file nor a snapshot in %s; `windlass quorum snapshots` lists them",
			args[0], dir), err)
	}
	if len(list) == 0 {
		return "", errors.Join(fmt.Errorf("%s has no complete snapshot", dir), err)
	}
	if err != nil { // the others can be restored all the same
		fmt.Fprintln(e.Err, err)
	}
	return d.File(list[len(list)-1].Name), nil
}

func newRestore(e *session.Env) *cobra.Command {
	f := &recoverFlags{}
	cmd := &cobra.Command{
		Use:   "restore (FILE | NAME)",
		Short: "Replace the etcd of a cluster on this machine with a snapshot",
		Long: `Replace the etcd of a cluster on this machine with a snapshot, such as services/etcd-guardian/snapshots/NAME.db in
the cluster's directory, or an object that was downloaded from a bucket. NAME is a snapshot of "windlass quorum
snapshots".

Without --yes the command only checks the snapshot and shows what would be lost. With --yes it stops the cluster, makes a
cluster of one member from the snapshot with a later revision, and moves the old data aside. "windlass up" then starts
the cluster, and its control-plane machines join again.

On a host of a control plane on several hosts the programs of this host are ended, and the members of the other hosts
must be off: --without names them all. "windlass host run" then starts this host, and the others join again. Where no
host is left, use "windlass host restore".`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return restore(ctx, e, *f, args)
		},
	}
	f.add(cmd, "also if a majority of the present members answers")
	return cmd
}

func restore(ctx context.Context, e *session.Env, f recoverFlags, args []string) error {
	c, err := localCluster(ctx, e, f)
	if err != nil {
		return err
	}
	if recovery.Unfinished(c) {
		return errors.New(
			"an earlier recovery or restore was interrupted: finish it with `windlass quorum recover --yes` first")
	}
	file, err := snapshotFile(e, args)
	if err != nil {
		return err
	}
	info, err := snapshot.Verify(file)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "snapshot   %s: %d keys at revision %d, hash %s\n", file, info.Keys, info.Revision, info.Hash)
	s, err := recovery.Look(c)
	if err != nil {
		return err
	}
	fmt.Fprintln(e.Out, "lost       everything that was written after the snapshot was taken")
	if best, some := s.Survivor(); some {
		fmt.Fprintf(e.Out, "present    data of member %s, last written at %s, is moved aside\n", best.Name,
			best.Copy.Written.UTC().Format(time.RFC3339))
	}
	q := lastQuorum(ctx, e)
	if q.GetHealthyVoters() > 0 && q.GetHealthyVoters() >= q.GetMajority() && !f.force {
		return fmt.Errorf("%d of %d voters answer: add --force to replace a cluster that works", q.GetHealthyVoters(),
			q.GetVoters())
	}
	if err := confirm(c, s, f); err != nil {
		return err
	}
	if !f.yes {
		return errors.New("nothing was changed: add --yes to restore")
	}
	if err := recovery.CheckSpace(c, info.SizeBytes); err != nil {
		return err
	}
	p := progress.New(e.Out)
	release, err := stop(ctx, e, c, p)
	if err != nil {
		return err
	}
	defer release()
	if s, err = recovery.Look(c); err != nil { // of a member that runs not all is known
		return err
	}
	if err := confirm(c, s, f); err != nil {
		return err
	}
	p.Begin("data")
	aside, err := recovery.FromSnapshot(c, file, time.Now())
	if err != nil {
		return err
	}
	p.Done("restored")
	return done(e.Out, c, aside)
}
