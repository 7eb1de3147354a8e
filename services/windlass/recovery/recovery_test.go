package recovery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/recovery"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func copyOf(term, last uint64) *snapshot.Copy { return &snapshot.Copy{LastTerm: term, LastIndex: last} }

func TestTheSurvivorHasMostOfTheLog(t *testing.T) {
	cases := []struct {
		name     string
		members  []recovery.Member
		want     string
		majority bool
	}{
		{"no data", []recovery.Member{{Name: "a"}, {Name: "b"}, {Name: "c"}}, "", false},
		{"the only one", []recovery.Member{{Name: "a"}, {Name: "b", Copy: copyOf(2, 5)}, {Name: "c"}}, "b", false},
		{
			"the longer log",
			[]recovery.Member{{Name: "a", Copy: copyOf(2, 5)}, {Name: "b", Copy: copyOf(2, 6)}, {Name: "c"}},
			"b", true,
		},
		{
			"a later term counts more than the length",
			[]recovery.Member{{Name: "a", Copy: copyOf(3, 5)}, {Name: "b", Copy: copyOf(2, 9)}, {Name: "c"}, {Name: "d"}},
			"a",
			false,
		},
		{
			"a voter's before a learner's",
			[]recovery.Member{{Name: "a", Learner: true, Copy: copyOf(9, 9)}, {Name: "b", Copy: copyOf(2, 6)}, {Name: "c"}},
			"b",
			false,
		},
		{
			"a learner's if there is no other",
			[]recovery.Member{{Name: "a", Learner: true, Copy: copyOf(9, 9)}, {Name: "b"}, {Name: "c"}},
			"a", false,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := recovery.Survey{Members: c.members, Listed: true}
			got, some := s.Survivor()
			if got.Name != c.want || some != (c.want != "") {
				t.Errorf("Survivor = %q, %t, want %q", got.Name, some, c.want)
			}
			if s.Majority() != c.majority {
				t.Errorf("Majority = %t, want %t", s.Majority(), c.majority)
			}
			if s.Listed = false; s.Majority() {
				t.Error("a majority of members that are not known")
			}
		})
	}
}

// files makes a cluster on the disk whose one machine has the data of a member that runs no more.
func files(t *testing.T) (c *cluster.Cluster, data string) {
	t.Helper()
	members := etcdtest.StartMembers(t, 1)
	if _, err := members.Client(t).Put(t.Context(), "/kept", "1"); err != nil {
		t.Fatal(err)
	}
	members.Kill(0)
	c = cluster.InContainers(t.TempDir(), cluster.Settings{Name: "c", Subnet: "127.9.9"})
	data = c.Service("provider-local", "machines", "m0", "etcd", "data")
	for _, dir := range []string{
		filepath.Dir(data), c.Service("etcd-guardian", "bootstrap", "tls"),
		c.Service("scheduler"),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(data, os.DirFS(members.DataDir(0))); err != nil {
		t.Fatal(err)
	}
	for _, path := range noted(c) {
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, data
}

// noted are the files that name the members of the old cluster.
func noted(c *cluster.Cluster) []string {
	return []string{
		c.Service("etcd-guardian", "cluster.json"), c.Service("etcd-guardian", "endpoints"),
		c.Service("scheduler", "endpoints"), c.Service("provider-local", "machines", "m0", "etcd", "member.json"),
	}
}

func TestASurvivorBecomesTheBootstrapMember(t *testing.T) {
	c, data := files(t)
	s, err := recovery.Look(c)
	if err != nil {
		t.Fatal(err)
	}
	survivor, some := s.Survivor()
	if !some || survivor.Name != "m0" || survivor.Copy.DataDir != data {
		t.Fatalf("Survivor = %+v, %t", survivor, some)
	}
	if !s.Listed || !s.Majority() {
		t.Errorf("Look = %+v: the guardian's record lists no member, and the data has this one alone", s)
	}
	aside, err := recovery.FromMember(t.Context(), c, survivor, now)
	if err != nil {
		t.Fatal(err)
	}
	if moved, err := snapshot.Inspect(filepath.Join(aside, "m0")); err != nil || moved.MemberID != survivor.ID {
		t.Errorf("the old data: %+v, %v", moved, err)
	}
	check(t, c, data, survivor.Copy.ClusterID)
}

// check reports what is not as it has to be after a restore.
func check(t *testing.T, c *cluster.Cluster, old string, cluster uint64) {
	t.Helper()
	got, err := snapshot.Inspect(c.Service("etcd-guardian", "bootstrap", "data"))
	if err != nil || got.ClusterID == cluster || got.Revision < snapshot.RevisionBump {
		t.Errorf("the new data: %+v, %v; the old cluster was %x", got, err, cluster)
	}
	for _, path := range append(noted(c), old, c.Service("etcd-guardian", "bootstrap", "tls"),
		c.Service("etcd-guardian", "bootstrap", "restoring")) {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	token, err := os.ReadFile(c.Service("etcd-guardian", "bootstrap", "token"))
	if err != nil || !strings.HasPrefix(string(token), "windlass-") {
		t.Errorf("token %q, %v", token, err)
	}
	if recovery.Unfinished(c) {
		t.Error("it counts as unfinished")
	}
}

func TestARestoreThatWasCutOffIsFinished(t *testing.T) {
	c, data := files(t)
	s, err := recovery.Look(c)
	if err != nil {
		t.Fatal(err)
	}
	survivor, _ := s.Survivor()
	// a directory in the place of the token stops it where the end of its process could
	token := c.Service("etcd-guardian", "bootstrap", "token")
	if err := os.MkdirAll(filepath.Join(token, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	// a cluster that has not pivoted may start an empty member
	allowed := c.Service("etcd-guardian", "bootstrap", "allowed")
	if err := os.WriteFile(allowed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := recovery.FromMember(t.Context(), c, survivor, now); err == nil {
		t.Fatal("a token was written over a directory")
	}
	if !recovery.Unfinished(c) {
		t.Fatal("nothing shows that it was cut off")
	}
	if _, err := os.Stat(allowed); !os.IsNotExist(err) {
		t.Errorf("an empty member may be started in the place of the new data: %v", err)
	}
	if _, err := recovery.FromMember(t.Context(), c, survivor, now); err == nil {
		t.Error("another one began before it was finished")
	}
	if err := os.RemoveAll(token); err != nil {
		t.Fatal(err)
	}
	aside, err := recovery.Finish(c, now.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if moved, err := snapshot.Inspect(filepath.Join(aside, "m0")); err != nil || moved.MemberID != survivor.ID {
		t.Errorf("the old data is said to be in %s, which has %+v, %v", aside, moved, err)
	}
	check(t, c, data, survivor.Copy.ClusterID)
}

func TestWhatAnInterruptedRestorePreparedCanBeDropped(t *testing.T) {
	c, data := files(t)
	work := c.Service("etcd-guardian", "bootstrap", "restoring")
	if err := os.MkdirAll(filepath.Join(work, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	ready := "token\netcd-before\n" + now.Format(time.RFC3339Nano) + "\n"
	if err := os.WriteFile(filepath.Join(work, "ready"), []byte(ready), 0o600); err != nil {
		t.Fatal(err)
	}
	if at := recovery.MadeTime(c, now.Add(time.Hour)); !recovery.Unfinished(c) || !at.Equal(now) {
		t.Fatalf("unfinished: %t, made at %s; want %s", recovery.Unfinished(c), at, now)
	}
	for range 2 {
		if err := recovery.Discard(c); err != nil || recovery.Unfinished(c) {
			t.Fatalf("%v, unfinished: %t", err, recovery.Unfinished(c))
		}
	}
	if _, err := snapshot.Inspect(data); err != nil {
		t.Errorf("the data of the member: %v", err)
	}
}

// hostFiles makes the files of a control-plane host whose machine has the data of a member that runs no more.
func hostFiles(t *testing.T) (c *cluster.Cluster, data string) {
	t.Helper()
	members := etcdtest.StartMembers(t, 1)
	if _, err := members.Client(t).Put(t.Context(), "/kept", "1"); err != nil {
		t.Fatal(err)
	}
	members.Kill(0)
	m, err := cluster.NewMember("h2", "127.0.0.2", "")
	if err != nil {
		t.Fatal(err)
	}
	m.First, m.Begun, m.Registered = "127.0.0.1", true, true
	c, err = cluster.CreateHost(t.TempDir(), cluster.Settings{Name: "c", Member: &m})
	if err != nil {
		t.Fatal(err)
	}
	data = c.Dir("node", "etcd", "data")
	if err := os.MkdirAll(filepath.Dir(data), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(members.DataDir(0))); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		c.Dir("node", "etcd", "member.json"):       `{"name": "machine-2"}`,
		c.Service("etcd-guardian", "cluster.json"): "{}", c.Service("scheduler", "endpoints"): "https://127.0.0.1:2379\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, data
}

func TestTheMemberOfAHostBecomesTheBootstrapMemberThere(t *testing.T) {
	c, data := hostFiles(t)
	is, err := snapshot.Inspect(data)
	if err != nil {
		t.Fatal(err)
	}
	// the guardian of this host does not lead, and listed the members before its own joined
	note := fmt.Sprintf(`{"clusterID": "%d", "members": []}`, is.ClusterID)
	if err := os.WriteFile(c.Service("etcd-guardian", "cluster.json"), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := recovery.Look(c)
	if err != nil {
		t.Fatal(err)
	}
	survivor, some := s.Survivor()
	if !some || survivor.Name != "machine-2" || survivor.Copy.DataDir != data {
		t.Fatalf("Survivor = %+v, %t", survivor, some)
	}
	last := now.Add(time.Hour) // the clock was set back since
	c.Member.Recovered = last
	if _, err := recovery.FromMember(t.Context(), c, survivor, now); err != nil {
		t.Fatal(err)
	}
	got, err := snapshot.Inspect(c.Service("etcd-guardian", "bootstrap", "data"))
	if err != nil || got.ClusterID == survivor.Copy.ClusterID || got.Revision < snapshot.RevisionBump {
		t.Errorf("the new data: %+v, %v", got, err)
	}
	written, err := cluster.OpenHost(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if m := written.Member; m.First != m.Address || !m.Recovered.After(last) {
		t.Errorf("the settings: %+v, want the bootstrap member here, recovered after %s", m, last)
	}
}

func TestMembersThatTheGuardianHasNotListedAreKnownFromTheData(t *testing.T) {
	members := etcdtest.StartMembers(t, 3)
	client := members.Client(t)
	gone, err := client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:1"})
	for errors.Is(err, rpctypes.ErrUnhealthy) { // in the first seconds of the cluster
		time.Sleep(100 * time.Millisecond)
		gone, err = client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.MemberRemove(t.Context(), gone.Member.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), "/kept", "1"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		members.Kill(i)
	}
	c := cluster.InContainers(t.TempDir(), cluster.Settings{Name: "c", Subnet: "127.9.9"})
	data := c.Service("provider-local", "machines", "m0", "etcd", "data")
	if err := os.MkdirAll(filepath.Dir(data), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(members.DataDir(0))); err != nil {
		t.Fatal(err)
	}
	// the list is from before the second member was added, and after the last one was
	first, err := snapshot.Inspect(data)
	if err != nil {
		t.Fatal(err)
	}
	note := fmt.Sprintf(`{"clusterID": "%d", "members": [{"id": "%d", "name": "m0"}, {"id": "%d", "name": "gone"}]}`,
		first.ClusterID, first.MemberID, gone.Member.ID)
	if err := os.MkdirAll(c.Service("etcd-guardian"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Service("etcd-guardian", "cluster.json"), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := recovery.Look(c)
	if err != nil {
		t.Fatal(err)
	}
	if all, here := s.Voters(); all != 3 || here != 1 || s.Majority() {
		t.Errorf("%d of %d voters are here: %+v; want 1 of 3", here, all, s.Members)
	}
}

func TestAHostSetsTheDataOfTheClusterBeforeAside(t *testing.T) {
	c, data := hostFiles(t)
	there := &etcdv1.Quorum{
		RecoveryTime: timestamppb.New(now), BootstrapUrl: "https://127.0.0.3:2389",
		Endpoints: []string{"https://127.0.0.3:2379"},
	}
	for _, q := range []*etcdv1.Quorum{nil, {}, {RecoveryTime: timestamppb.New(time.Time{})}} {
		if recovery.IsLater(c.Member.Recovered, q) {
			t.Errorf("%v is later", q)
		}
	}
	if !recovery.IsLater(c.Member.Recovered, there) {
		t.Fatal("it is not later")
	}
	for _, url := range []string{"", "https://127.0.0.2:2389"} {
		wrong := proto.CloneOf(there)
		wrong.BootstrapUrl = url
		if _, err := recovery.SetAside(c, wrong); err == nil {
			t.Errorf("set aside for a bootstrap member at %q", url)
		}
		if _, err := os.Stat(data); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time after it was cut off
		aside, err := recovery.SetAside(c, there)
		if err != nil {
			t.Fatal(err)
		}
		if moved, err := snapshot.Inspect(filepath.Join(aside, "machine-2")); err != nil || moved.MemberID == 0 {
			t.Errorf("the old data: %+v, %v", moved, err)
		}
	}
	for _, path := range []string{data, c.Dir("node", "etcd", "member.json"), c.Service("etcd-guardian", "cluster.json")} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if got, err := os.ReadFile(c.Service("scheduler", "endpoints")); string(got) != "https://127.0.0.3:2379\n" {
		t.Errorf("endpoints: %q, %v", got, err)
	}
	written, err := cluster.OpenHost(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if written.Member.First != "127.0.0.3" || recovery.IsLater(written.Member.Recovered, there) {
		t.Errorf("the settings: %+v", written.Member)
	}
}
