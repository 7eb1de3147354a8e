package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/hostcheck"
	"github.com/windlass-dev/windlass/services/windlass/recovery"
)

func newRecoveryKey(e *session.Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "recovery-key [--output FILE]",
		Short: "Make a key that opens the control plane's keys in backups",
		Long: `Make a key of age (age-encryption.org), as age-keygen does. Snapshots that name its recipient, which begins with
age1, have the keys of the control plane beside them, encrypted to it (spec.keyRecipients of Snapshot and
SnapshotSchedule). ` + "`windlass host restore`" + ` needs the key. Keep it where the hosts and the backups are not: who has it and
a backup is root of the cluster.`,
		Example: `  windlass host recovery-key --output recovery.key`,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return makeRecoveryKey(e, output) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "",
		"file to write, which must not exist (default: the standard output)")
	return cmd
}

func makeRecoveryKey(e *session.Env, output string) error {
	key, recipient, err := hostbundle.NewRecoveryKey()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("# created: %s\n# public key: %s\n%s\n", time.Now().UTC().Format(time.RFC3339), recipient, key)
	if output == "" {
		_, err := fmt.Fprint(e.Out, text)
		return err
	}
	if _, err := os.Lstat(output); err == nil {
		return fmt.Errorf("--output %s: exists; a key that is overwritten opens no backup any more", output)
	}
	if err := durable.WriteFile(output, []byte(text), 0o600); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	_, err = fmt.Fprintf(e.Out, "Public key: %s\n", recipient)
	return err
}

type restoreFlags struct {
	joinFlags
	keys, recoveryKey string
	bucket            snapshot.S3Config
}

func newRestore(e *session.Env) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore (FILE | NAME) --recovery-key FILE --address ADDRESS",
		Short: "Begin again on this host, from a backup, a cluster whose control plane is lost",
		Long: `Begin again on this host, from a backup, a cluster whose control-plane hosts are all lost: make the files of a
control-plane host from the keys beside a snapshot, and etcd from the snapshot. FILE is a snapshot, with FILE's name and
.keys.age instead of .db beside it; NAME is one in a bucket (--s3-bucket). Nothing is started; ` + "`windlass host run`" + `
does that.

Do not use it while a control-plane host of the cluster runs: this would be a second cluster. What was written after the
snapshot is lost. The hosts of before are Lost in the restored inventory until they come back or are removed. One that
comes back has to know this host first: ` + "`windlass host set --gateway ADDRESS:6443`" + `. A control-plane host then moves its
data of etcd aside and joins.`,
		Example: `  windlass host restore nightly-202611300300.db --recovery-key recovery.key --address 192.0.2.9
  windlass host restore nightly-202611300300 --s3-endpoint https://s3.example.com --s3-bucket backups \
    --recovery-key recovery.key --address 192.0.2.9`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return restore(cmd.Context(), e, args[0], f) },
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.recoveryKey, "recovery-key", "",
		"file with the private key of `windlass host recovery-key` or age-keygen; - for the standard input (required)")
	fs.StringVar(&f.keys, "keys", "", "file with the encrypted keys (default: FILE's name with .keys.age)")
	fs.StringVar(&f.bucket.Endpoint, "s3-endpoint", "", "https://HOST:PORT of an object store")
	fs.StringVar(&f.bucket.Bucket, "s3-bucket", "", "bucket of the object store")
	fs.StringVar(&f.bucket.Prefix, "s3-prefix", "", "prefix of the names of snapshots in the bucket")
	fs.StringVar(&f.bucket.Region, "s3-region", "", "region of the bucket (default: the object store's own)")
	fs.StringVar(&f.bucket.CredentialsFile, "s3-credentials", "",
		"file in the format of ~/.aws/credentials, section [default] (default: the variables AWS_…)")
	return cmd
}

func restore(ctx context.Context, e *session.Env, from string, f restoreFlags) error {
	m, err := f.member(ctx, e)
	if err != nil {
		return err
	}
	if f.recoveryKey == "" {
		return errors.New("--recovery-key is required: the private key to which the keys of the control plane were encrypted")
	}
	switch c, err := cluster.OpenHost(f.dir); {
	case err == nil && recovery.Unfinished(c):
		return fmt.Errorf("%s: an earlier restore was cut off: finish it with `windlass quorum recover --yes`", f.dir)
	case err == nil:
		return fmt.Errorf("%s: this host is in a cluster already; `windlass quorum restore` replaces its etcd", f.dir)
	case !errors.Is(err, cluster.ErrNone):
		return err
	}
	key, err := recovery.ReadRecoveryKey(f.recoveryKey, e.In)
	if err != nil {
		return fmt.Errorf("--recovery-key: %w", err)
	}
	list := hostcheck.Judge(hostcheck.Observe(m.Address, f.dir, cluster.HostPorts(), false))
	if !hostcheck.Usable(list) {
		if err := printChecks(e, list); err != nil {
			return err
		}
		return errUnusable
	}
	file, sealed, done, err := backup(ctx, from, f)
	if err != nil {
		return err
	}
	defer done()
	info, err := snapshot.Verify(file)
	if err != nil {
		return err
	}
	bundle, err := hostbundle.Open(sealed, key)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "snapshot   %s: %d keys at revision %d, hash %s\n", from, info.Keys, info.Revision, info.Hash)
	aside := ""
	c, err := cluster.RestoreHost(f.dir, m, bundle, func(c *cluster.Cluster) (err error) {
		// What an earlier call prepared that was cut off: without settings nothing has used it.
		if err := recovery.Discard(c); err != nil {
			return err
		}
		aside, err = recovery.FromSnapshot(c, file, time.Now())
		return err
	})
	if err != nil {
		return err
	}
	if err := os.Remove(aside); err != nil && !errors.Is(err, os.ErrNotExist) { // there was no data that it could have
		return err
	}
	if err := prepare(c); err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "cluster %q begins again on host %s: run `windlass host run%s`\n", c.Name, c.Member.Name,
		dirOption(f.dir))
	return nil
}

// backup returns the file of a snapshot and the encrypted keys beside it. done removes what was fetched for that.
func backup(ctx context.Context, from string, f restoreFlags) (file string, keys []byte, done func(), err error) {
	none := func() {}
	if f.bucket.Bucket == "" && f.bucket.Endpoint == "" {
		keys, err = recovery.ReadKeys(cmp.Or(f.keys, snapshot.KeysOf(from)))
		return from, keys, none, err
	}
	if f.keys != "" {
		return "", nil, none, errors.New("--keys: is for files only; those of a snapshot in a bucket are beside it")
	}
	bucket, err := snapshot.NewS3(f.bucket)
	if err != nil {
		return "", nil, none, fmt.Errorf("--s3-endpoint, --s3-bucket and --s3-credentials: %w", err)
	}
	info, err := bucket.Info(ctx, from)
	if err != nil {
		return "", nil, none, err
	}
	if keys, err = bucket.Keys(ctx, info); err != nil {
		return "", nil, none, err
	}
	work := filepath.Join(f.dir, "restore") // as large as etcd, so not where files are temporary
	if err := os.RemoveAll(work); err != nil {
		return "", nil, none, err
	}
	if err := durable.MkdirAll(work, 0o700); err != nil {
		return "", nil, none, err
	}
	done = func() { _ = os.RemoveAll(work) }
	file = filepath.Join(work, "snapshot.db")
	err = fetch(ctx, bucket, info.Name, file)
	if err == nil {
		err = checkFetched(file, info)
	}
	if err != nil {
		done()
		return "", nil, none, err
	}
	return file, keys, done, nil
}

func fetch(ctx context.Context, bucket *snapshot.S3, name, file string) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(bucket.Fetch(ctx, name, out), out.Close())
}

// checkFetched returns an error unless a file is the database that a description names.
func checkFetched(file string, want snapshot.Info) error {
	got, err := snapshot.Verify(file)
	if err == nil && got.SHA256 != want.SHA256 {
		err = fmt.Errorf("%w: the bucket has another database for snapshot %s", snapshot.ErrBroken, want.Name)
	}
	return err
}
