package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/snapshot"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// snapshotDisk is the size of the disk in snapshots of the cluster's database as it is, which other tests have grown.
const snapshotDisk = 4

// tries is how many snapshots are begun at most until one is seen while it is written, which takes milliseconds.
const tries = 30

// A disk is full when a snapshot is written to it: the Snapshot says so, no file is left that could be taken for one,
// earlier snapshots remain, and the cluster and later snapshots are not affected.
func TestFaultsAFullDiskDuringASnapshot(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	dir := c.Dir("services", "etcd-guardian", "snapshots")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	q, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	largest := int64(16 << 20) // of a fresh cluster and its next minutes
	for _, m := range q.GetMembers() {
		largest = max(largest, m.GetDbSizeBytes())
	}
	harness.MountDisk(t, dir, snapshotDisk*largest)
	begun := request(t, c, "on-a-disk-with-space")
	if s := concluded(c, begun); s.GetStatus().GetPhase() != "Completed" {
		t.Fatalf("snapshot on a disk with space: %v", s)
	}

	file := filepath.Join(dir, "fill")
	harness.FillDisk(t, file)
	for _, left := range []int64{0, 100 << 10} { // none, and enough to begin with
		if err := os.Truncate(file, sizeOf(t, file)-left); err != nil {
			t.Fatal(err)
		}
		s := concluded(c, request(t, c, fmt.Sprintf("on-a-full-disk-%d", left)))
		if st := s.GetStatus(); st.GetPhase() != "Failed" || !strings.Contains(st.GetMessage(), "no space left on device") ||
			st.GetLocation() != "" || st.GetCompletionTime() == nil {
			t.Errorf("snapshot with %d bytes left: %v", left, s)
		}
		if got := files(t, dir); !slices.Equal(got, []string{"fill", begun + ".db", begun + ".json"}) {
			t.Errorf("files on the full disk: %q", got)
		}
	}
	consistent(t, c)
	keep(t, c, "beside-a-full-disk")
	c.Settle(patience)

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if s := concluded(c, request(t, c, "once-there-is-space")); s.GetStatus().GetPhase() != "Completed" {
		t.Errorf("snapshot once there is space: %v", s)
	}
	consistent(t, c)
	dropSnapshots(t, c)
}

// The guardian dies while it writes the file of a snapshot, or it dies or loses etcd after that and before it stores
// the result: in each case, what the Snapshot says is so of its file.
func TestFaultsASnapshotWhoseGuardianDies(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	for name, k := range map[string]struct {
		written, killed bool // once it is written; the guardian
		want            string
	}{
		"half-written":         {false, true, "Failed"},
		"written-and-killed":   {true, true, "Completed"},
		"written-without-etcd": {true, false, "Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			c := shared.Cluster(t)
			s := interrupt(t, c, name, k.written, k.killed)
			if st := s.GetStatus(); st.GetPhase() != k.want || st.GetCompletionTime() == nil {
				t.Errorf("want it %s: %v", k.want, s)
			}
			c.Settle(patience)
			consistent(t, c)
		})
	}
	dropSnapshots(t, c)
}

// interrupt has a snapshot taken whose guardian is stopped while it writes the file: there it is killed, or it writes
// on without a majority of etcd, in which case it may be killed later. It returns the snapshot once it has ended.
func interrupt(t *testing.T, c *harness.Cluster, name string, written, killed bool) *etcdv1.Snapshot {
	t.Helper()
	dir := c.Dir("services", "etcd-guardian", "snapshots")
	source := concluded(c, request(t, c, "before-"+name)).GetStatus().GetMember()
	guardian := process(t, c, "etcd-guardian").PID
	for n := 0; ; n++ {
		if n == tries {
			t.Fatalf("none of %d snapshots was seen while it was written", tries)
		}
		caught := freeze(t, guardian, filepath.Join(dir, fmt.Sprintf("%s-%d", name, n)))
		answer := make(chan error, 1) // of the call, which the guardian may be stopped before it answers
		go func() { answer <- create(t.Context(), c, fmt.Sprintf("%s-%d", name, n)) }()
		if <-caught {
			name = fmt.Sprintf("%s-%d", name, n)
			break
		}
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
	}
	signal := func(sig unix.Signal) {
		if err := unix.Kill(guardian, sig); err != nil {
			t.Fatal(err)
		}
	}
	if !written {
		signal(unix.SIGKILL)
		return concluded(c, name)
	}
	for _, m := range c.MustMachines("master") {
		if member := harness.Member(m.GetMetadata().GetName()); member != harness.Member(source) {
			t.Cleanup(func() { _ = c.Continue(member) })
			if err := c.Pause(member); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(unix.SIGCONT)
	c.Wait(patience, "the file of the snapshot", func(context.Context) (bool, string, error) {
		_, err := os.Stat(filepath.Join(dir, name+".json"))
		return err == nil, "", err
	})
	if killed {
		signal(unix.SIGKILL)
	} else {
		c.Wait(patience, "the guardian to see that no majority answers", func(ctx context.Context) (bool, string, error) {
			q, err := c.Quorum(ctx)
			return err == nil && strings.Contains(q.GetWaitsFor(), "a majority of the voters"), q.GetWaitsFor(), err
		})
	}
	if err := c.ContinueAll(); err != nil {
		t.Fatal(err)
	}
	return concluded(c, name)
}

// freeze stops a process that begins to write a snapshot, given by the path of its file without a suffix. The channel
// returns whether it did: false if the snapshot was complete before that was noticed.
func freeze(t *testing.T, pid int, path string) <-chan bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	caught, ended := make(chan bool, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(caught)
		for ctx.Err() == nil { // a tick would be too late
			if _, err := os.Stat(path + ".db.partial"); err == nil {
				if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
					t.Error(err)
				}
				_, err := os.Stat(path + ".db.partial")
				if err != nil && unix.Kill(pid, unix.SIGCONT) != nil {
					t.Error("the guardian ended")
				}
				caught <- err == nil
				return
			}
			if _, err := os.Stat(path + ".json"); err == nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = unix.Kill(pid, unix.SIGCONT) // one that has ended needs none
	})
	return caught
}

// request creates a Snapshot, and returns its name.
func request(t *testing.T, c *harness.Cluster, name string) string {
	t.Helper()
	if err := create(t.Context(), c, name); err != nil {
		t.Fatal(err)
	}
	return name
}

func create(ctx context.Context, c *harness.Cluster, name string) error {
	_, err := etcdv1.NewSnapshotServiceClient(c.Conn()).CreateSnapshot(ctx, &etcdv1.CreateSnapshotRequest{
		Snapshot: &etcdv1.Snapshot{Metadata: &metav1.ObjectMeta{Name: name}},
	})
	return err
}

// concluded waits until a snapshot is complete or has failed.
func concluded(c *harness.Cluster, name string) *etcdv1.Snapshot {
	var s *etcdv1.Snapshot
	c.Wait(patience, "the end of snapshot "+name, func(ctx context.Context) (bool, string, error) {
		var err error
		s, err = etcdv1.NewSnapshotServiceClient(c.Conn()).GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: name})
		st := s.GetStatus()
		return slices.Contains([]string{"Completed", "Failed"}, st.GetPhase()), st.GetPhase() + ": " + st.GetMessage(), err
	})
	return s
}

// consistent checks that each Snapshot says what is so of the directory: one that is complete has a file which passes
// the check, and no other one has any.
func consistent(t *testing.T, c *harness.Cluster) {
	t.Helper()
	list, err := etcdv1.NewSnapshotServiceClient(c.Conn()).ListSnapshots(t.Context(), &etcdv1.ListSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	shown := c.MustCLI("quorum", "snapshots")
	all := files(t, c.Dir("services", "etcd-guardian", "snapshots"))
	for _, s := range list.GetItems() {
		name, st := s.GetMetadata().GetName(), s.GetStatus()
		if st.GetPhase() == "Completed" {
			if info, err := snapshot.Verify(st.GetLocation()); err != nil || info.SHA256 != st.GetSha256() {
				t.Errorf("snapshot %s is %v, and its file is %+v, %v", name, st, info, err)
			}
			continue
		}
		if i := slices.IndexFunc(all, func(f string) bool { return strings.HasPrefix(f, name+".") }); i >= 0 {
			t.Errorf("snapshot %s is %s (%s), and there is %s", name, st.GetPhase(), st.GetMessage(), all[i])
		}
		if strings.Contains(shown, name) {
			t.Errorf("snapshot %s is %s, and `windlass quorum snapshots` prints:\n%s", name, st.GetPhase(), shown)
		}
	}
}

// dropSnapshots deletes all snapshots, and waits until their files are removed.
func dropSnapshots(t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.MustCLI("delete", "snapshots", "--all")
	dir := c.Dir("services", "etcd-guardian", "snapshots")
	c.Wait(time.Minute, "a directory without snapshots", func(context.Context) (bool, string, error) {
		left := files(t, dir)
		return len(left) == 0, strings.Join(left, " "), nil
	})
}

// files returns the names in a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	stat, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return stat.Size()
}
