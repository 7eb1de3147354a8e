package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/snapshot"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

var when = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// taken returns a snapshot of an etcd with one more key, and the revision of that.
func taken(t *testing.T) ([]byte, int64) {
	t.Helper()
	client := etcdtest.Client(t)
	put, err := client.Put(t.Context(), "/snapshot-test", "kept")
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b, put.Header.Revision
}

func writing(b []byte) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

func TestADirectoryKeepsCheckedSnapshots(t *testing.T) {
	data, revision := taken(t)
	d := snapshot.NewDirectory(filepath.Join(t.TempDir(), "snapshots"))
	for i, name := range []string{"late", "early"} {
		info, err := d.Write(t.Context(), snapshot.Info{Name: name, Time: when.Add(-time.Duration(i) * time.Hour)},
			nil, writing(data))
		if err != nil {
			t.Fatal(err)
		}
		if info.Revision < revision || info.SizeBytes != int64(len(data)) || info.Keys == 0 || info.Hash == "" ||
			info.VerifyTime.IsZero() {
			t.Errorf("%s: %+v, want revision %d or more and %d bytes", name, info, revision, len(data))
		}
	}
	list, err := d.List()
	if err != nil || len(list) != 2 || list[0].Name != "early" || list[1].Name != "late" {
		t.Fatalf("List = %+v, %v", list, err)
	}
	if err := d.Remove("early"); err != nil {
		t.Fatal(err)
	}
	if list, err = d.List(); err != nil || len(list) != 1 {
		t.Errorf("List after a removal = %+v, %v", list, err)
	}
	if err := d.Remove("early"); err != nil {
		t.Errorf("a second removal: %v", err)
	}
}

func TestWhatIsNoWholeSnapshotLeavesNothing(t *testing.T) {
	data, _ := taken(t)
	flipped := slices.Clone(data)
	flipped[len(flipped)/2] ^= 1
	half := func(err error) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			if _, err := w.Write(data[:len(data)/2]); err != nil {
				return err
			}
			return err
		}
	}
	for name, fetch := range map[string]func(context.Context, io.Writer) error{
		"the disk is full":       half(unix.ENOSPC),
		"the member went away":   half(io.ErrUnexpectedEOF),
		"the end is missing":     half(nil),
		"a bit is another":       writing(flipped),
		"the hash is cut off":    writing(data[:len(data)-32]),
		"nothing came":           writing(nil),
		"something else came":    writing(bytes.Repeat([]byte("x"), 4096)),
		"it is a page too short": writing(append(slices.Clone(data[:len(data)-32-4096]), data[len(data)-32:]...)),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d := snapshot.NewDirectory(dir)
			if _, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, fetch); err == nil {
				t.Error("it was accepted")
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestAPartOfAKilledProcessIsNoSnapshot(t *testing.T) {
	data, _ := taken(t)
	dir := t.TempDir()
	d := snapshot.NewDirectory(dir)
	for _, name := range []string{"s.db.partial", "t.db"} { // killed while it wrote, and before it described
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := d.List(); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "t", Time: when}, nil, writing(data)); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.partial"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, name := range []string{"s.db.partial", "s.db", "t.db.partial"} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(d.Discard("s"), d.Discard("t")); err != nil {
		t.Error(err)
	}
	if left, err = filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v; want the complete snapshot alone", left, err)
	}
	if _, err := d.Info("t"); err != nil {
		t.Error(err)
	}
	if _, err := d.Info("s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Info of what was discarded: %v", err)
	}
}

// A complete snapshot is not lost to a later one of its name.
func TestACompleteSnapshotIsNotOverwritten(t *testing.T) {
	data, _ := taken(t)
	d := snapshot.NewDirectory(t.TempDir())
	s, err := snapshot.NewS3(bucket(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	info, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Upload(t.Context(), d.File("s"), nil, info); err != nil {
		t.Fatal(err)
	}
	later := info
	later.Time = when.Add(time.Hour)
	if _, err := d.Write(t.Context(), later, nil, writing(data)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Write = %v, want %v", err, fs.ErrExist)
	}
	if _, err := s.Upload(t.Context(), d.File("s"), nil, later); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Upload = %v, want %v", err, fs.ErrExist)
	}
	if got, err := d.Info("s"); err != nil || !got.Time.Equal(when) {
		t.Errorf("the directory has %+v, %v", got, err)
	}
	if got, err := s.Info(t.Context(), "s"); err != nil || !got.Time.Equal(when) {
		t.Errorf("the bucket has %+v, %v", got, err)
	}
}

// A user who may write to the directory cannot have the reader follow a link or read a device or a pipe, which would
// never end.
func TestOnlyRegularFilesAreSnapshots(t *testing.T) {
	data, _ := taken(t)
	dir := t.TempDir()
	d := snapshot.NewDirectory(dir)
	for _, name := range []string{"good", "linked"} {
		if _, err := d.Write(t.Context(), snapshot.Info{Name: name, Time: when}, nil, writing(data)); err != nil {
			t.Fatal(err)
		}
	}
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.Rename(d.File("linked"), victim), os.Symlink(victim, d.File("linked")),
		os.Symlink("/dev/zero", filepath.Join(dir, "endless.json")), unix.Mkfifo(filepath.Join(dir, "pipe.json"), 0o600),
		os.Symlink(victim, filepath.Join(dir, "new.db.partial"))); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(victim)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.List()
	if len(list) != 1 || list[0].Name != "good" || !errors.Is(err, snapshot.ErrBroken) {
		t.Errorf("List = %+v, %v; want the good one, and what is wrong with the others", list, err)
	}
	for _, name := range []string{"linked", "endless", "pipe"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("List does not name %s: %v", name, err)
		}
	}
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "new", Time: when}, nil, writing(data)); err != nil {
		t.Error(err)
	}
	if after, err := os.Stat(victim); err != nil || after.ModTime() != before.ModTime() || after.Size() != before.Size() {
		t.Errorf("what a link led to was written: %v, %v", after, err)
	}
}

func TestOneBrokenDescriptionHidesNoOtherSnapshot(t *testing.T) {
	data, _ := taken(t)
	dir := t.TempDir()
	d := snapshot.NewDirectory(dir)
	for _, name := range []string{"good", "short", "garbled"} {
		if _, err := d.Write(t.Context(), snapshot.Info{Name: name, Time: when}, nil, writing(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(d.File("short"), 4096); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "garbled.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := d.List()
	if len(list) != 1 || list[0].Name != "good" || !errors.Is(err, snapshot.ErrBroken) ||
		!strings.Contains(err.Error(), "short") || !strings.Contains(err.Error(), "garbled") {
		t.Errorf("List = %+v, %v; want the good one, and the names of the others", list, err)
	}
}

// A guardian that is killed during an upload leaves parts that the store keeps, and that no list of objects shows.
func TestPartsOfAnUploadAreRemoved(t *testing.T) {
	cfg := bucket(t, nil)
	s, err := snapshot.NewS3(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := minio.NewCore(strings.TrimPrefix(cfg.Endpoint, "http://"), &minio.Options{
		Creds: credentials.NewFileAWSCredentials(cfg.CredentialsFile, "default"), Region: cfg.Region,
		BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		t.Fatal(err)
	}
	const key = "etcd/prod/s.db"
	id, err := client.NewMultipartUpload(t.Context(), cfg.Bucket, key, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutObjectPart(t.Context(), cfg.Bucket, key, id, 1, strings.NewReader("x"), 1,
		minio.PutObjectPartOptions{}); err == nil {
		t.Error("the upload goes on after the snapshot was removed")
	}
}

// start starts a lone member on restored data and returns a client of it.
func start(t *testing.T, dir string) *clientv3.Client {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel, cfg.InitialCluster = "drill", dir, "error", "drill=http://localhost:2380"
	cfg.ListenClientUrls, cfg.ListenPeerUrls = nil, nil
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("not ready")
	}
	c := v3client.New(e.Server)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRestoredDataHasALaterRevisionAndAnotherCluster(t *testing.T) {
	data, revision := taken(t)
	dir := t.TempDir()
	d := snapshot.NewDirectory(dir)
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data)); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(dir, "data")
	r := snapshot.Restored{File: d.File("s"), DataDir: restored, Name: "drill", PeerURL: "http://localhost:2380"}
	if err := snapshot.Restore(r); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Restore(r); err == nil {
		t.Error("data that exist were restored over")
	}
	c := start(t, restored)
	got, err := c.Get(t.Context(), "/snapshot-test")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "kept" {
		t.Fatalf("Get = %v, %v", got, err)
	}
	if got.Header.Revision < revision+snapshot.RevisionBump {
		t.Errorf("revision %d, want %d more than %d", got.Header.Revision, snapshot.RevisionBump, revision)
	}
	w := <-c.Watch(t.Context(), "/snapshot-test", clientv3.WithRev(revision+100))
	if w.CompactRevision == 0 {
		t.Errorf("an old watch got %+v, want that the revision is compacted", w)
	}
}

func TestADrillServesWhatTheSnapshotHas(t *testing.T) {
	data, revision := taken(t)
	dir := t.TempDir()
	d := snapshot.NewDirectory(dir)
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data)); err != nil {
		t.Fatal(err)
	}
	got, err := snapshot.Drill(t.Context(), d.File("s"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Keys == 0 || got.Keys != int64(got.Info.Keys) || got.Revision < revision+snapshot.RevisionBump {
		t.Errorf("Drill = %+v", got)
	}
	// what was restored once can be again
	data = again(t, d.File("s"))
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "t", Time: when}, nil, writing(data)); err != nil {
		t.Fatal(err)
	}
	if got, err := snapshot.Drill(t.Context(), d.File("t"), dir); err != nil {
		t.Errorf("Drill of a snapshot of a restored member = %+v, %v", got, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "drill*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// again returns a snapshot of a member that was restored from a file.
func again(t *testing.T, file string) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	r := snapshot.Restored{File: file, DataDir: dir, Name: "drill", PeerURL: "http://localhost:2380"}
	if err := snapshot.Restore(r); err != nil {
		t.Fatal(err)
	}
	part, err := start(t, dir).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	b, err := io.ReadAll(part)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Three members, of which one survives that has everything that was acknowledged.
func TestASurvivorGivesWhatAMajorityHad(t *testing.T) {
	members := etcdtest.StartMembers(t, 3)
	client := members.Client(t)
	last := int64(0)
	for i := range 50 {
		put, err := client.Put(t.Context(), fmt.Sprintf("/survivor/%d", i), "kept")
		if err != nil {
			t.Fatal(err)
		}
		last = put.Header.Revision
	}
	survivor, leader := 0, members.Leader()
	if leader == 0 {
		survivor = 1 // a follower, which may not know yet that the last entry was agreed on
	}
	for i := range 3 {
		if i != survivor {
			members.Kill(i)
		}
	}
	dir := members.DataDir(survivor)
	live, err := snapshot.Inspect(dir) // while it runs
	if err != nil {
		t.Fatal(err)
	}
	members.Kill(survivor)
	work := t.TempDir()
	file := filepath.Join(work, "db")
	if err := snapshot.Extract(t.Context(), dir, work, file); err != nil {
		t.Fatal(err)
	}
	still, err := snapshot.Inspect(dir)
	if err != nil || still.MemberID != live.MemberID || still.MemberID == 0 || still.LastIndex < live.LastIndex ||
		still.Commit > still.LastIndex || still.Term == 0 {
		t.Errorf("the survivor's data: %+v after %+v, %v", still, live, err)
	}
	restored := filepath.Join(work, "data")
	err = snapshot.Restore(snapshot.Restored{
		File: file, Raw: true, DataDir: restored, Name: "drill", PeerURL: "http://localhost:2380",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, restored)
	got, err := c.Get(t.Context(), "/survivor/", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) < 49 || got.Header.Revision < last+snapshot.RevisionBump-1 {
		t.Errorf("%d keys at revision %d, %v; want 50 after %d", len(got.Kvs), got.Header.GetRevision(), err, last)
	}
	if _, err := snapshot.Inspect(work); !errors.Is(err, snapshot.ErrNoData) {
		t.Errorf("Inspect of no data: %v", err)
	}
}

// bucket returns an object store in this process, and its access and secret key.
func bucket(t *testing.T, tamper func(name string, b []byte) []byte) snapshot.S3Config {
	t.Helper()
	fake := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true))
	server := httptest.NewServer(tampering{fake.Server(), tamper})
	t.Cleanup(server.Close)
	keys := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = AKIDWINDLASS\naws_secret_access_key = "+secret+
		"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	return snapshot.S3Config{
		Endpoint: server.URL, Region: "us-east-1", Bucket: "windlass", Prefix: "etcd/prod", CredentialsFile: keys,
	}
}

const secret = "wJalrXUtnFEMIsecret"

func TestAnObjectStoreKeepsCheckedSnapshots(t *testing.T) {
	data, _ := taken(t)
	s, err := snapshot.NewS3(bucket(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	d := snapshot.NewDirectory(t.TempDir())
	info, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := s.Upload(t.Context(), d.File("s"), nil, info)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]snapshot.Info{stored}, list); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	if err := s.Fetch(t.Context(), "s", &out); err != nil || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("Fetch: %d bytes, %v, want %d", out.Len(), err, len(data))
	}
	for range 2 {
		if err := s.Remove(t.Context(), "s"); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List after the removal = %v, %v", list, err)
	}
}

func TestAnObjectThatIsReadBackOtherwiseIsRefused(t *testing.T) {
	data, _ := taken(t)
	s, err := snapshot.NewS3(bucket(t, func(name string, b []byte) []byte {
		if strings.HasSuffix(name, ".db") && len(b) > 1000 {
			b[500] ^= 1
		}
		return b
	}))
	if err != nil {
		t.Fatal(err)
	}
	d := snapshot.NewDirectory(t.TempDir())
	info, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Upload(t.Context(), d.File("s"), nil, info); !errors.Is(err, snapshot.ErrBroken) {
		t.Errorf("Upload = %v, want %v", err, snapshot.ErrBroken)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
}

func TestKeysAreKeptBesideASnapshot(t *testing.T) {
	data, _ := taken(t)
	keys := &snapshot.Keys{Sealed: []byte("sealed"), Recipients: []string{"age1x"}}
	dir := t.TempDir()
	d := snapshot.NewDirectory(dir)
	info, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, keys, writing(data))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Keys(info); err != nil || string(got) != "sealed" || !slices.Equal(info.SealedKeys.Recipients,
		keys.Recipients) {
		t.Errorf("Keys = %q, %v; %+v", got, err, info.SealedKeys)
	}
	if err := os.WriteFile(d.KeysFile("s"), []byte("SEALED"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Info("s"); !errors.Is(err, snapshot.ErrBroken) {
		t.Errorf("with other keys: %v, want %v", err, snapshot.ErrBroken)
	}
	if err := os.Remove(d.KeysFile("s")); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(); len(list) != 0 || !errors.Is(err, snapshot.ErrBroken) {
		t.Errorf("without its keys: %v, %v, want %v", list, err, snapshot.ErrBroken)
	}
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data)); !errors.Is(err,
		fs.ErrExist) {
		t.Errorf("a snapshot without its keys is written over: %v", err)
	}
	if err := d.Remove("s"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, keys, writing(data)); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove("s"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left after the removal: %v, %v", left, err)
	}
	if _, err := d.Keys(snapshot.Info{Name: "s"}); err == nil {
		t.Error("a snapshot without keys has some")
	}
}

func TestKeysAreKeptInAnObjectStore(t *testing.T) {
	data, _ := taken(t)
	keys := &snapshot.Keys{Sealed: []byte("sealed"), Recipients: []string{"age1x"}}
	tampered := false
	s, err := snapshot.NewS3(bucket(t, func(name string, b []byte) []byte {
		if strings.HasSuffix(name, ".keys.age") && tampered {
			return []byte("SEALED")
		}
		return b
	}))
	if err != nil {
		t.Fatal(err)
	}
	d := snapshot.NewDirectory(t.TempDir())
	info, err := d.Write(t.Context(), snapshot.Info{Name: "s", Time: when}, nil, writing(data))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := s.Upload(t.Context(), d.File("s"), keys, info)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Keys(t.Context(), stored); err != nil || string(got) != "sealed" {
		t.Errorf("Keys = %q, %v", got, err)
	}
	if err := s.Remove(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Keys(t.Context(), stored); err == nil {
		t.Error("the keys are left after the removal")
	}
	tampered = true
	if _, err := s.Upload(t.Context(), d.File("s"), keys, info); !errors.Is(err, snapshot.ErrBroken) {
		t.Errorf("keys that are read back otherwise: %v, want %v", err, snapshot.ErrBroken)
	}
}

func TestErrorsDoNotShowCredentials(t *testing.T) {
	cfg := bucket(t, nil)
	cfg.Endpoint = "http://127.0.0.1:1" // no store there
	s, err := snapshot.NewS3(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = s.List(ctx)
	if err == nil || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "AKID") ||
		strings.Contains(err.Error(), "Signature") {
		t.Errorf("List = %v", err)
	}
	for _, endpoint := range []string{"store:9000", "https://user:" + secret + "@store", "ftp://store", ""} {
		cfg.Endpoint = endpoint
		if _, err := snapshot.NewS3(cfg); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
}
