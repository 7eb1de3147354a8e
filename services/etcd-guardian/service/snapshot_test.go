package service_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/snapshot"
)

// eventually calls f until it reports that a state holds; errors in between are those of a service that starts.
func (c *cluster) eventually(what string, f func(ctx context.Context) (bool, error)) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		var holds bool
		if holds, err = f(ctx); holds && err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	c.t.Fatalf("%s did not come about within %s: %v", what, limit, err)
}

// ends waits until a snapshot has a phase that is its last, and returns it.
func (c *cluster) ends(snapshots etcdv1.SnapshotServiceClient, name string) *etcdv1.Snapshot {
	c.t.Helper()
	var out *etcdv1.Snapshot
	c.eventually("the end of snapshot "+name, func(ctx context.Context) (bool, error) {
		s, err := snapshots.GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: name})
		out = s
		phase := s.GetStatus().GetPhase()
		return phase == "Completed" || phase == "Failed", err
	})
	return out
}

func (c *cluster) request(snapshots etcdv1.SnapshotServiceClient, name, storage string) {
	c.t.Helper()
	c.eventually("the request of snapshot "+name, func(ctx context.Context) (bool, error) {
		_, err := snapshots.CreateSnapshot(ctx, &etcdv1.CreateSnapshotRequest{Snapshot: &etcdv1.Snapshot{
			Metadata: &metav1.ObjectMeta{Name: name}, Spec: &etcdv1.SnapshotSpec{Storage: storage},
		}})
		return err == nil || status.Code(err) == codes.AlreadyExists, err
	})
}

func TestSnapshotsAreTakenCheckedAndKept(t *testing.T) {
	const secret = "wJalrXUtnFEMIsecret"
	c := newCluster(t)
	store := httptest.NewServer(gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server())
	t.Cleanup(store.Close)
	keys := filepath.Join(c.dir, "credentials")
	c.check(os.WriteFile(keys, []byte("[default]\naws_access_key_id = AKIDWINDLASS\naws_secret_access_key = "+secret+"\n"),
		0o600))
	dir := filepath.Join(c.dir, "snapshots")
	c.extra = []string{
		"--snapshot-dir", dir, "--s3-endpoint", store.URL, "--s3-bucket", "windlass", "--s3-credentials", keys,
		"--s3-region", "us-east-1",
	}
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots := etcdv1.NewSnapshotServiceClient(c.conn)
	schedules := etcdv1.NewSnapshotScheduleServiceClient(c.conn)

	c.request(snapshots, "asked", "")
	s := c.ends(snapshots, "asked")
	st := s.GetStatus()
	if st.GetPhase() != "Completed" || st.GetVerifyTime() == nil || st.GetMember() != "bootstrap" {
		t.Fatalf("snapshot: %v", s)
	}
	info, err := snapshot.Verify(st.GetLocation())
	c.check(err)
	if info.Hash != st.GetHash() || info.SHA256 != st.GetSha256() || st.GetLocation() != filepath.Join(dir, "asked.db") {
		t.Errorf("the file has %+v, the status says %v", info, st)
	}

	c.request(snapshots, "uploaded", "S3")
	if s := c.ends(snapshots, "uploaded"); s.GetStatus().GetLocation() != "s3://windlass/uploaded.db" {
		t.Errorf("snapshot in the bucket: %v", s)
	}

	// a directory that cannot be written, as one on a full disk
	c.check(os.Rename(dir, dir+".away"))
	c.check(os.WriteFile(dir, nil, 0o600))
	c.request(snapshots, "refused", "Directory")
	if s := c.ends(snapshots, "refused"); s.GetStatus().GetPhase() != "Failed" || s.GetStatus().GetMessage() == "" ||
		s.GetStatus().GetLocation() != "" {
		t.Errorf("snapshot that cannot be written: %v", s)
	}
	c.check(os.Remove(dir))
	c.check(os.Rename(dir+".away", dir))

	_, err = schedules.CreateSnapshotSchedule(t.Context(), &etcdv1.CreateSnapshotScheduleRequest{
		SnapshotSchedule: &etcdv1.SnapshotSchedule{
			Metadata: &metav1.ObjectMeta{Name: "often"},
			Spec: &etcdv1.SnapshotScheduleSpec{
				Schedule: "@every 1s", Retention: &etcdv1.SnapshotRetention{MaxNumber: 2},
			},
		},
	})
	c.check(err)
	seen := map[string]bool{}
	c.eventually("four scheduled snapshots of which two are kept", func(ctx context.Context) (bool, error) {
		list, err := snapshots.ListSnapshots(ctx, &etcdv1.ListSnapshotsRequest{})
		kept := 0
		for _, s := range list.GetItems() {
			if s.GetSpec().GetSchedule() == "often" && s.GetStatus().GetPhase() == "Completed" {
				seen[s.GetMetadata().GetName()] = true
				kept++
			}
		}
		return len(seen) >= 4 && kept <= 2, err
	})

	_, err = snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: "asked"})
	c.check(err)
	c.eventually("the removal of the file", func(context.Context) (bool, error) {
		_, err := os.Stat(st.GetLocation())
		return os.IsNotExist(err), nil
	})
	if log := c.guardianLog.String(); strings.Contains(log, secret) || strings.Contains(log, "AKIDWINDLASS") {
		t.Error("the log shows credentials")
	}
}

func TestSnapshotsAndSchedulesAreChecked(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots := etcdv1.NewSnapshotServiceClient(c.conn)
	schedules := etcdv1.NewSnapshotScheduleServiceClient(c.conn)
	c.request(snapshots, "first", "") // the service answers from here on
	_, err := snapshots.CreateSnapshot(t.Context(), &etcdv1.CreateSnapshotRequest{Snapshot: &etcdv1.Snapshot{
		Metadata: &metav1.ObjectMeta{Name: "forged"}, Spec: &etcdv1.SnapshotSpec{Schedule: "often"},
	}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "spec.schedule") {
		t.Errorf("a snapshot in the name of a schedule: %v", err)
	}
	for path, spec := range map[string]*etcdv1.SnapshotScheduleSpec{
		"spec.schedule":            {Schedule: "61 * * * *"},
		"spec.schedule: \"0 0 30":  {Schedule: "0 0 30 2 *"},
		"spec.schedule: \"-5h\"":   {Schedule: "@every -5h"},
		"spec.schedule: \"9ms\"":   {Schedule: "@every 9ms"},
		"spec.timeZone":            {Schedule: "@daily", TimeZone: "Mars/Olympus"},
		"spec.timeZone: \"Local\"": {Schedule: "@daily", TimeZone: "Local"},
		"spec.retention.maxSize":   {Schedule: "@daily", Retention: &etcdv1.SnapshotRetention{MaxSize: "many"}},
	} {
		_, err := schedules.CreateSnapshotSchedule(t.Context(), &etcdv1.CreateSnapshotScheduleRequest{
			SnapshotSchedule: &etcdv1.SnapshotSchedule{Metadata: &metav1.ObjectMeta{Name: "bad"}, Spec: spec},
		})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// removed waits until a snapshot's object is gone.
func (c *cluster) removed(snapshots etcdv1.SnapshotServiceClient, name string) {
	c.t.Helper()
	c.eventually("the end of the object of "+name, func(ctx context.Context) (bool, error) {
		_, err := snapshots.GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: name})
		if status.Code(err) == codes.NotFound {
			return true, nil
		}
		return false, err
	})
}

// TestAStorageThatDoesNotAnswerHoldsUpNoOther deletes a snapshot of a bucket that cannot be reached.
func TestAStorageThatDoesNotAnswerHoldsUpNoOther(t *testing.T) {
	c := newCluster(t)
	c.extra = []string{"--s3-endpoint", "http://127.0.0.1:1", "--s3-bucket", "windlass", "--s3-region", "us-east-1"}
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots := etcdv1.NewSnapshotServiceClient(c.conn)
	c.request(snapshots, "far", "S3")
	if s := c.ends(snapshots, "far"); s.GetStatus().GetPhase() != "Failed" {
		t.Fatalf("snapshot in a bucket that is not there: %v", s)
	}
	_, err := snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: "far"})
	c.check(err)
	c.request(snapshots, "near", "Directory")
	if s := c.ends(snapshots, "near"); s.GetStatus().GetPhase() != "Completed" {
		t.Errorf("snapshot in the directory: %v", s)
	}
	c.eventually("why the deleted snapshot stays", func(ctx context.Context) (bool, error) {
		s, err := snapshots.GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: "far"})
		return strings.Contains(s.GetStatus().GetMessage(), "its files are not removed: bucket windlass"), err
	})
	_, err = snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: "near"})
	c.check(err)
	c.removed(snapshots, "near")
}

// TestWhileOneSnapshotIsTakenTheOthersSayThatTheyWait has a bucket take long for one, and deletes another one.
func TestWhileOneSnapshotIsTakenTheOthersSayThatTheyWait(t *testing.T) {
	c := newCluster(t)
	fake := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server()
	proceed := make(chan struct{})
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/slow.db") {
			<-proceed
		}
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(store.Close)
	release := sync.OnceFunc(func() { close(proceed) })
	t.Cleanup(release)
	keys := filepath.Join(c.dir, "credentials")
	c.check(os.WriteFile(keys, []byte("[default]\naws_access_key_id = a\naws_secret_access_key = bbbbbbbb\n"), 0o600))
	c.extra = []string{
		"--s3-endpoint", store.URL, "--s3-bucket", "windlass", "--s3-credentials", keys, "--s3-region", "us-east-1",
	}
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots := etcdv1.NewSnapshotServiceClient(c.conn)
	c.request(snapshots, "before", "")
	c.ends(snapshots, "before")
	c.request(snapshots, "slow", "S3")
	phase := func(name, phase, message string) {
		t.Helper()
		c.eventually(name+" to be "+phase, func(ctx context.Context) (bool, error) {
			s, err := snapshots.GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: name})
			return s.GetStatus().GetPhase() == phase && s.GetStatus().GetMessage() == message, err
		})
	}
	phase("slow", "Running", "")
	c.request(snapshots, "next", "")
	phase("next", "Pending", "snapshot slow is taken first")
	_, err := snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: "before"})
	c.check(err)
	c.removed(snapshots, "before")
	release()
	for _, name := range []string{"slow", "next"} {
		if s := c.ends(snapshots, name); s.GetStatus().GetPhase() != "Completed" {
			t.Errorf("snapshot: %v", s)
		}
	}
}

// TestACompleteSnapshotOfTheSameNameStays has the file of a snapshot whose object is lost, as after etcd was restored.
func TestACompleteSnapshotOfTheSameNameStays(t *testing.T) {
	c := newCluster(t)
	dir := filepath.Join(c.dir, "snapshots")
	c.extra = []string{"--snapshot-dir", dir}
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots := etcdv1.NewSnapshotServiceClient(c.conn)
	c.request(snapshots, "first", "")
	c.ends(snapshots, "first")
	d := snapshot.NewDirectory(dir)
	info, err := d.Info("first")
	c.check(err)
	info.Name, info.Time = "again", info.Time.Add(-time.Hour)
	_, err = d.Write(t.Context(), info, nil, func(_ context.Context, w io.Writer) error {
		raw, err := os.ReadFile(d.File("first"))
		c.check(err)
		_, err = w.Write(raw)
		return err
	})
	c.check(err)
	c.request(snapshots, "again", "")
	if s := c.ends(snapshots, "again"); s.GetStatus().GetPhase() != "Failed" ||
		!strings.Contains(s.GetStatus().GetMessage(), "snapshot again of "+info.Time.Format(time.RFC3339)+" is complete") {
		t.Errorf("snapshot: %v", s)
	}
	_, err = snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: "again"})
	c.check(err)
	c.removed(snapshots, "again")
	if got, err := d.Info("again"); err != nil || !got.Time.Equal(info.Time) {
		t.Errorf("the file of before: %+v, %v", got, err)
	}
}

// TestASnapshotThatWasNeverStoredCanBeDeleted requests one in a storage that is not set up, and one whose files would
// have too long names.
func TestASnapshotThatWasNeverStoredCanBeDeleted(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots := etcdv1.NewSnapshotServiceClient(c.conn)
	c.request(snapshots, "nowhere", "S3")
	if s := c.ends(snapshots, "nowhere"); s.GetStatus().GetPhase() != "Failed" {
		t.Fatalf("snapshot without a bucket: %v", s)
	}
	_, err := snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: "nowhere"})
	c.check(err)
	c.removed(snapshots, "nowhere")

	_, err = snapshots.CreateSnapshot(t.Context(), &etcdv1.CreateSnapshotRequest{Snapshot: &etcdv1.Snapshot{
		Metadata: &metav1.ObjectMeta{Name: strings.Repeat("n", 201)},
	}})
	if status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "metadata.name: must have at most 200") {
		t.Errorf("a name that is too long for a file: %v", err)
	}
	longest := strings.Repeat("n", 200)
	c.request(snapshots, longest, "")
	if s := c.ends(snapshots, longest); s.GetStatus().GetPhase() != "Completed" {
		t.Errorf("snapshot with the longest name: %v", s)
	}
	_, err = snapshots.DeleteSnapshot(t.Context(), &etcdv1.DeleteSnapshotRequest{Name: longest})
	c.check(err)
	c.removed(snapshots, longest)
}

// TestPlanRequestsAreBounded has one caller ask for what would occupy the guardian for minutes.
func TestPlanRequestsAreBounded(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	snapshots, schedules := make([]*etcdv1.Snapshot, 10_001), make([]*etcdv1.SnapshotSchedule, 10_001)
	for i := range snapshots {
		snapshots[i] = &etcdv1.Snapshot{Spec: &etcdv1.SnapshotSpec{Schedule: "s"}}
		schedules[i] = &etcdv1.SnapshotSchedule{Spec: &etcdv1.SnapshotScheduleSpec{Schedule: "* * * * *"}}
	}
	for path, r := range map[string]*etcdv1.PlanMaintenanceRequest{
		"snapshots.items": {Snapshots: &etcdv1.SnapshotList{Items: snapshots}},
		"schedules.items": {Schedules: &etcdv1.SnapshotScheduleList{Items: schedules}},
		"quorum.members":  {Quorum: &etcdv1.Quorum{Members: make([]*etcdv1.Member, 101)}},
	} {
		if _, err := c.quorum.PlanMaintenance(t.Context(), r); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), path+": has ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := c.quorum.PlanQuorum(t.Context(), &etcdv1.PlanQuorumRequest{Offers: make([]string, 101)}); status.Code(
		err) != codes.InvalidArgument || !strings.Contains(err.Error(), "offers: has 101") {
		t.Errorf("offers: %v", err)
	}
}
