package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// Copy is a member's data on a disk. Of several copies of one cluster, that with the highest Term and then the highest
// LastIndex has everything that was ever acknowledged, if any has.
type Copy struct {
	DataDir             string
	MemberID, ClusterID uint64
	Term                uint64 // newest that it has seen
	LastIndex           uint64 // of its log
	Commit              uint64 // index up to which it knows that a majority had the log
	// Revision is the newest in its database, which may be a few entries behind Commit; 0 if another process has the
	// database open.
	Revision int64
	Written  time.Time // when its log was last written to
}

// After reports whether c has more of the log than o.
func (c Copy) After(o Copy) bool {
	if c.Term != o.Term {
		return c.Term > o.Term
	}
	return c.LastIndex > o.LastIndex
}

// ErrNoData means that a directory has no data of a member.
var ErrNoData = errors.New("no data of a member")

// Inspect reads what a data directory has of the log. It changes nothing, and the member may run.
func Inspect(dataDir string) (Copy, error) {
	walDir := filepath.Join(dataDir, "member", "wal")
	logs, err := filepath.Glob(filepath.Join(walDir, "*.wal"))
	if err != nil {
		return Copy{}, err
	}
	if len(logs) == 0 {
		return Copy{}, fmt.Errorf("%s: %w", dataDir, ErrNoData)
	}
	c := Copy{DataDir: dataDir}
	for _, log := range logs {
		if st, err := os.Stat(log); err == nil && st.ModTime().After(c.Written) {
			c.Written = st.ModTime()
		}
	}
	if err := c.readLog(walDir); err != nil {
		return Copy{}, fmt.Errorf("%s: %w", dataDir, err)
	}
	c.Revision = revision(filepath.Join(dataDir, "member", "snap", "db"))
	return c, nil
}

func (c *Copy) readLog(walDir string) error {
	snaps, err := wal.ValidSnapshotEntries(zap.NewNop(), walDir)
	if err != nil {
		return err
	}
	from := &walpb.Snapshot{}
	if len(snaps) > 0 {
		from = snaps[len(snaps)-1]
	}
	w, err := wal.OpenForRead(zap.NewNop(), walDir, from)
	if err != nil {
		return err
	}
	defer w.Close()
	metadata, state, entries, err := w.ReadAll()
	if err != nil {
		return err
	}
	var m etcdserverpb.Metadata
	if err := proto.Unmarshal(metadata, &m); err != nil {
		return err
	}
	c.MemberID, c.ClusterID = m.GetNodeID(), m.GetClusterID()
	c.Term, c.Commit, c.LastIndex = state.GetTerm(), state.GetCommit(), from.GetIndex()
	if n := len(entries); n > 0 {
		c.LastIndex = entries[n-1].GetIndex()
	}
	return nil
}

// revision returns the newest revision in a database, 0 if it cannot be read now.
func revision(path string) int64 {
	const patience = 100 * time.Millisecond // for the lock of a member that runs
	db, err := bolt.Open(path, 0o400, &bolt.Options{ReadOnly: true, Timeout: patience})
	if err != nil {
		return 0
	}
	defer db.Close()
	var newest int64
	err = db.View(func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(keyBucket)); b != nil {
			if k, _ := b.Cursor().Last(); k != nil {
				newest = mvcc.BytesToRev(k).Main
			}
		}
		return nil
	})
	if err != nil {
		return 0
	}
	return newest
}

// Extract writes the database of a member that does not run to a file, with everything in its log that it knows to be
// agreed on. It works on a copy below work, which it removes; dataDir is not changed.
func Extract(ctx context.Context, dataDir, work, file string) error {
	tmp := filepath.Join(work, "extract")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	err := os.CopyFS(filepath.Join(tmp, "member"), os.DirFS(filepath.Join(dataDir, "member")))
	if err == nil {
		err = lone(ctx, tmp, true, func(e *embed.Etcd) error { return writeDatabase(e.Server, file) })
	}
	return errors.Join(err, os.RemoveAll(tmp))
}

func writeDatabase(s *etcdserver.EtcdServer, file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	snap := s.Backend().Snapshot()
	_, err = snap.WriteTo(f)
	return errors.Join(err, snap.Close(), f.Sync(), f.Close())
}

// lone runs a member alone on a data directory, without any listener, while f runs.
func lone(ctx context.Context, dataDir string, force bool, f func(*embed.Etcd) error) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.ForceNewCluster = drillName, dataDir, force
	cfg.ListenClientUrls, cfg.ListenPeerUrls = nil, nil
	cfg.InitialCluster = drillName + "=" + drillPeer
	cfg.TickMs, cfg.ElectionMs = 10, 100 // it waits for no peer
	cfg.QuotaBackendBytes = 8 << 30      // what is there has to fit
	cfg.MaxTxnOps, cfg.MaxRequestBytes = 128, 8<<20
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start a member on %s: %w", dataDir, err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
		return f(e)
	case err := <-e.Err():
		return fmt.Errorf("member on %s: %w", dataDir, err)
	case <-e.Server.StopNotify():
		return fmt.Errorf("the member on %s stopped", dataDir)
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	drillName = "drill"
	drillPeer = "http://localhost:2380" // is only written down: nothing listens
)

// Drilled is what a drill found.
type Drilled struct {
	Info     Info          // of the snapshot
	Revision int64         // of the member that was started on the restored data
	Keys     int64         // that it served
	Elapsed  time.Duration // from the check of the file until all keys were counted
}

// Drill restores a snapshot below a directory that it removes again, starts a member on the data, and counts the keys
// that the member serves. It fails if that differs from what the snapshot has.
func Drill(ctx context.Context, file, work string) (Drilled, error) {
	begin := time.Now()
	info, err := Verify(file)
	if err != nil {
		return Drilled{}, err
	}
	data := filepath.Join(work, "drill")
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		return Drilled{}, fmt.Errorf("%s exists", data)
	}
	out := Drilled{Info: info}
	err = Restore(Restored{File: file, DataDir: data, Name: drillName, PeerURL: drillPeer})
	if err == nil {
		err = lone(ctx, data, false, func(e *embed.Etcd) error {
			c := v3client.New(e.Server)
			defer c.Close()
			root := e.Server.AuthStore().WithRoot(ctx)
			resp, err := c.Get(root, "", clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err == nil {
				out.Revision, out.Keys = resp.Header.GetRevision(), resp.Count
			}
			return err
		})
	}
	out.Elapsed = time.Since(begin)
	if err := errors.Join(err, os.RemoveAll(data)); err != nil {
		return out, err
	}
	if out.Keys != int64(info.Keys) || out.Revision < info.Revision+RevisionBump {
		return out, fmt.Errorf("%w: the member serves %d keys at revision %d, the snapshot has %d at %d", ErrBroken, out.Keys,
			out.Revision, info.Keys, info.Revision)
	}
	return out, nil
}
