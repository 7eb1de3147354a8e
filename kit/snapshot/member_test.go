package snapshot_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	write(t, w, seen, 1, list...)
	return dir
}

// write adds entries to a log, of which some are agreed on.
func write(t *testing.T, w *wal.WAL, seen, commit uint64, list ...*raftpb.Entry) {
	t.Helper()
	state := &raftpb.HardState{Term: proto.Uint64(seen), Vote: proto.Uint64(1), Commit: proto.Uint64(commit)}
	if err := w.Save(state, list); err != nil {
		t.Fatal(err)
	}
}

func TestARemovalThatIsNotAgreedOnDoesNotCount(t *testing.T) {
	dir := t.TempDir()
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: proto.Uint64(1), ClusterID: proto.Uint64(9)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := wal.Create(zap.NewNop(), filepath.Join(dir, "member", "wal"), metadata)
	if err != nil {
		t.Fatal(err)
	}
	change := func(index uint64, kind raftpb.ConfChangeType, id uint64, context string) *raftpb.Entry {
		data, err := proto.Marshal(&raftpb.ConfChange{Type: &kind, NodeId: proto.Uint64(id), Context: []byte(context)})
		if err != nil {
			t.Fatal(err)
		}
		of := raftpb.EntryConfChange
		return &raftpb.Entry{Term: proto.Uint64(1), Index: proto.Uint64(index), Type: &of, Data: data}
	}
	write(t, w, 1, 5,
		change(1, raftpb.ConfChangeAddNode, 1, `{"id": 1, "name": "self"}`),
		change(2, raftpb.ConfChangeAddLearnerNode, 2, `{"id": 2, "isLearner": true}`),
		change(3, raftpb.ConfChangeAddNode, 3, `{"id": 3, "name": "gone"}`),
		change(4, raftpb.ConfChangeRemoveNode, 3, ""),
		change(5, raftpb.ConfChangeAddNode, 2, `{"id": 2, "isPromote": true}`),
		change(6, raftpb.ConfChangeAddLearnerNode, 4, `{"id": 4, "name": "late", "isLearner": true}`),
		change(7, raftpb.ConfChangeRemoveNode, 2, ""),
		change(8, raftpb.ConfChangeRemoveNode, 1, ""),
	)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := snapshot.Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[uint64]snapshot.Listed{1: {Name: "self"}, 2: {}, 4: {Name: "late", Learner: true}}
	if diff := cmp.Diff(want, c.Members); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[uint64]bool{3: true}, c.Removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
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
