package snapshot_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/snapshot"
)

// logged makes a data directory with a log of so many entries of a term, whose member has seen a term.
func logged(t *testing.T, entries, entryTerm, seen uint64) string {
	t.Helper()
	dir := t.TempDir()
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: proto.Uint64(1), ClusterID: proto.Uint64(2)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := wal.Create(zap.NewNop(), filepath.Join(dir, "member", "wal"), metadata)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var list []*raftpb.Entry
	for i := range entries {
		list = append(list, &raftpb.Entry{Term: proto.Uint64(entryTerm), Index: proto.Uint64(i + 1)})
	}
	state := &raftpb.HardState{Term: proto.Uint64(seen), Vote: proto.Uint64(1), Commit: proto.Uint64(1)}
	if err := w.Save(state, list); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A member that voted in an election has seen its term, and has not one entry more for that.
func TestAVoteDoesNotMakeALogNewer(t *testing.T) {
	longer, err := snapshot.Inspect(logged(t, 9, 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	voted, err := snapshot.Inspect(logged(t, 5, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	if voted.Term != 3 || voted.LastTerm != 2 || voted.LastIndex != 5 || longer.LastTerm != 2 || longer.LastIndex != 9 {
		t.Errorf("Inspect = %+v and %+v", voted, longer)
	}
	if voted.After(longer) || !longer.After(voted) {
		t.Error("the log of the member that voted counts as the newer one")
	}
	later, err := snapshot.Inspect(logged(t, 3, 3, 3))
	if err != nil {
		t.Fatal(err)
	}
	if !later.After(longer) {
		t.Error("an entry of a later term does not make a log newer")
	}
}

// A follower may have acknowledged an entry and not know that a majority has it.
func TestASurvivorGivesItsWholeLog(t *testing.T) {
	members := etcdtest.StartMembers(t, 3)
	client := members.Client(t)
	if _, err := client.Put(t.Context(), "/tail/agreed", "kept"); err != nil {
		t.Fatal(err)
	}
	survivor := members.Leader()
	for i := range 3 {
		if i != survivor {
			members.Stop(i)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := members.Client(t, survivor).Put(ctx, "/tail/last", "kept"); err == nil {
		t.Fatal("a write was acknowledged without a majority")
	}
	for i := range 3 {
		members.Kill(i)
	}
	dir := members.DataDir(survivor)
	before, err := snapshot.Inspect(dir)
	if err != nil || before.LastIndex <= before.Commit {
		t.Fatalf("Inspect = %+v, %v; want an entry that is not known to be agreed on", before, err)
	}
	work := t.TempDir()
	file, restored := filepath.Join(work, "db"), filepath.Join(work, "data")
	if err := snapshot.Extract(t.Context(), dir, work, file); err != nil {
		t.Fatal(err)
	}
	err = snapshot.Restore(snapshot.Restored{
		File: file, Raw: true, DataDir: restored, Name: "drill", PeerURL: "http://localhost:2380",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := start(t, restored).Get(t.Context(), "/tail/", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != 2 {
		t.Errorf("the restored member has %d keys, %v; want both", len(got.Kvs), err)
	}
	if after, err := snapshot.Inspect(dir); err != nil || after.Commit != before.Commit {
		t.Errorf("the survivor's own data changed: %+v, %v; before %+v", after, err, before)
	}
}
