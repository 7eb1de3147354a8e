package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// Copy is a member's data on a disk. Of several copies of one cluster, that with the highest LastTerm and then the
// highest LastIndex has everything that was ever acknowledged, if any has.
type Copy struct {
	DataDir             string
	MemberID, ClusterID uint64
	Term                uint64 // newest that it has seen; a vote raises it, so it says nothing about the log
	LastTerm            uint64 // in which the last entry of its log was written
	LastIndex           uint64 // of its log
	Commit              uint64 // index up to which it knows that a majority had the log
	// Revision is the newest in its database, which may be a few entries behind Commit; 0 if another process has the
	// database open.
	Revision int64
	Written  time.Time // when its log was last written to
	// Members are those of the cluster by its log and its database, by id. If another process has the database open, they
	// are those whose addition is in the log.
	Members map[uint64]Listed
	// Removed are the members that the cluster does not have any more.
	Removed map[uint64]bool
	// Whole means that the database was read: no member is missing from Members.
	Whole bool
}

// Listed is what a member's data says of a member of its cluster.
type Listed struct {
	Name    string // empty if it is not known
	Learner bool
}

// After reports whether c has more of the log than o, as a voter compares logs in an election. Source: the Raft paper,
// 5.4.1.
func (c Copy) After(o Copy) bool {
	if c.LastTerm != o.LastTerm {
		return c.LastTerm > o.LastTerm
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
	c := Copy{DataDir: dataDir, Members: map[uint64]Listed{}, Removed: map[uint64]bool{}}
	for _, log := range logs {
		if st, err := os.Stat(log); err == nil && st.ModTime().After(c.Written) {
			c.Written = st.ModTime()
		}
	}
	c.readDatabase(filepath.Join(dataDir, "member", "snap", "db")) // before the log, which has what came after it
	if err := c.readLog(walDir); err != nil {
		return Copy{}, fmt.Errorf("%s: %w", dataDir, err)
	}
	return c, nil
}

func (c *Copy) readLog(walDir string) error {
	from, err := begin(walDir)
	if err != nil {
		return err
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
	c.Term, c.Commit = state.GetTerm(), state.GetCommit()
	c.LastTerm, c.LastIndex = from.GetTerm(), from.GetIndex()
	if n := len(entries); n > 0 {
		c.LastTerm, c.LastIndex = entries[n-1].GetTerm(), entries[n-1].GetIndex()
	}
	for _, e := range entries {
		if e.GetType() != raftpb.EntryConfChange {
			continue
		}
		if err := c.apply(e.GetData(), e.GetIndex() <= c.Commit); err != nil {
			return fmt.Errorf("entry %d: %w", e.GetIndex(), err)
		}
	}
	return nil
}

// apply takes a change of the members into account. The database may have it already: ids are never given again, so the
// last change of a member in the log is what counts. A removal that is not agreed on may never come about.
func (c *Copy) apply(data []byte, agreed bool) error {
	var change raftpb.ConfChange
	if err := proto.Unmarshal(data, &change); err != nil {
		return err
	}
	id := change.GetNodeId()
	if change.GetType() == raftpb.ConfChangeRemoveNode {
		if agreed {
			delete(c.Members, id)
			c.Removed[id] = true
		}
		return nil
	}
	var is membership.ConfigChangeContext
	if b := change.GetContext(); len(b) > 0 {
		if err := json.Unmarshal(b, &is); err != nil {
			return err
		}
	}
	c.list(id, is.Name, change.GetType() == raftpb.ConfChangeAddLearnerNode)
	return nil
}

// list notes a member. A change of a member does not say its name, which it reports itself when it starts.
func (c *Copy) list(id uint64, name string, learner bool) {
	if !c.Removed[id] {
		c.Members[id] = Listed{Name: cmp.Or(name, c.Members[id].Name), Learner: learner}
	}
}

// begin returns the newest snapshot of a log, after which its entries count.
func begin(walDir string) (*walpb.Snapshot, error) {
	snaps, err := wal.ValidSnapshotEntries(zap.NewNop(), walDir)
	if err != nil {
		return nil, err
	}
	if len(snaps) == 0 {
		return &walpb.Snapshot{}, nil
	}
	return snaps[len(snaps)-1], nil
}

// agree marks all entries of a log as agreed on. A member learns that a majority has an entry only after that, so its
// last entries may be acknowledged though it does not know it; etcd's force-new-cluster drops these. A leader that was
// elected with this log would keep them too.
func agree(walDir string) error {
	from, err := begin(walDir)
	if err != nil {
		return err
	}
	w, metadata, state, entries, err := openLog(walDir, from)
	if err != nil {
		return err
	}
	var m etcdserverpb.Metadata
	if err := proto.Unmarshal(metadata, &m); err != nil {
		return errors.Join(err, w.Close())
	}
	last := agreeable(entries, state.GetCommit(), m.GetNodeID())
	if last > state.GetCommit() {
		state.Commit = proto.Uint64(last)
		err = w.Save(state, nil)
	}
	return errors.Join(err, w.Close())
}

// openLog opens a log for writing and reads it. An entry that was cut off while it was written is removed, as etcd
// does.
func openLog(walDir string, from *walpb.Snapshot) (w *wal.WAL, metadata []byte, state *raftpb.HardState,
	entries []*raftpb.Entry, err error,
) {
	for repaired := false; ; repaired = true {
		if w, err = wal.Open(zap.NewNop(), walDir, from); err != nil {
			return nil, nil, nil, nil, err
		}
		if metadata, state, entries, err = w.ReadAll(); err == nil {
			return w, metadata, state, entries, nil
		}
		err = errors.Join(err, w.Close())
		if repaired || !errors.Is(err, io.ErrUnexpectedEOF) || !wal.Repair(zap.NewNop(), walDir) {
			return nil, nil, nil, nil, err
		}
	}
}

// agreeable returns the index up to which entries can be agreed on: all of them, unless one that is not agreed on yet
// removes the member itself, which would end it.
func agreeable(entries []*raftpb.Entry, commit, self uint64) uint64 {
	last := commit
	for _, e := range entries {
		if e.GetIndex() <= commit {
			continue
		}
		if e.GetType() == raftpb.EntryConfChange {
			var c raftpb.ConfChange
			if err := proto.Unmarshal(e.GetData(), &c); err != nil ||
				c.GetType() == raftpb.ConfChangeRemoveNode && c.GetNodeId() == self {
				return last
			}
		}
		last = e.GetIndex()
	}
	return last
}

// Buckets of etcd's database.
const (
	membersBucket = "members"         // by id, in hexadecimal
	removedBucket = "members_removed" // the same
)

// readDatabase reads the newest revision and the members from a database, if that can be read now.
func (c *Copy) readDatabase(path string) {
	const patience = 100 * time.Millisecond // for the lock of a member that runs
	db, err := bolt.Open(path, 0o400, &bolt.Options{ReadOnly: true, Timeout: patience})
	if err != nil {
		return
	}
	defer db.Close()
	c.Whole = db.View(func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(keyBucket)); b != nil {
			if k, _ := b.Cursor().Last(); k != nil {
				c.Revision = mvcc.BytesToRev(k).Main
			}
		}
		if b := tx.Bucket([]byte(removedBucket)); b != nil {
			err := b.ForEach(func(k, _ []byte) error {
				id, err := strconv.ParseUint(string(k), 16, 64)
				c.Removed[id] = true
				return err
			})
			if err != nil {
				return err
			}
		}
		b := tx.Bucket([]byte(membersBucket))
		if b == nil {
			return errors.New("no members")
		}
		return b.ForEach(func(_, v []byte) error {
			var m membership.Member
			if err := json.Unmarshal(v, &m); err != nil {
				return err
			}
			c.list(uint64(m.ID), m.Name, m.IsLearner)
			return nil
		})
	}) == nil
}

// Extract writes the database of a member that does not run to a file, with everything in its log. It works on a copy
// below work, which it removes; dataDir is not changed.
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
		err = agree(filepath.Join(tmp, "member", "wal"))
	}
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
