package records_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/provider-inventory/records"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A bootstrap is sealed by the key in force, also after a rotation.
func TestBootstrapsAreSealedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	add := func() uint64 {
		id, err := store.AddKey(path, time.Now())
		must(t, err)
		return id
	}
	add()
	prefix := etcdtest.Prefix(t)
	open := func() (*records.Records, *store.Store) {
		ring, err := store.OpenKeyRing(path)
		must(t, err)
		st := store.New(etcdtest.Client(t), prefix, store.WithSealer(ring))
		return records.New(st, nil), st
	}
	_, st := open()
	want := &hostv1.HostBootstrap{Endpoints: []string{"192.0.2.1:6443"}, Token: "secret", Role: "worker"}
	keep, err := records.KeepBootstrap("h", want)
	must(t, err)
	_, err = st.Commit(t.Context(), keep)
	must(t, err)
	id := add()
	r, st := open()
	for range 2 { // the second time there is nothing to do
		must(t, r.Reseal(t.Context()))
		page, err := st.List(t.Context(), "bootstrap/", store.ListOptions{})
		must(t, err)
		if len(page.Records) != 1 || page.Records[0].SealedBy != id {
			t.Errorf("sealed are %v, want one by key %d", page.Records, id)
		}
		got, err := r.Bootstrap(t.Context(), "h")
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%v: %s", err, diff)
		}
	}
	_, err = st.Commit(t.Context(), records.DropBootstrap("h"))
	must(t, err)
	if got, err := r.Bootstrap(t.Context(), "h"); got != nil || err != nil {
		t.Errorf("after it was dropped: %v, %v", got, err)
	}
}

func TestTokensAreUsedUpForAWhile(t *testing.T) {
	r := records.New(etcdtest.Store(t), nil)
	now := time.Unix(1_800_000_000, 0)
	use := func(token string, at time.Time) {
		f, err := r.Fence(t.Context())
		must(t, err)
		must(t, r.UseOnly(t.Context(), f, 3, token, at))
	}
	use("old", now.Add(-ledger.Retention))
	use("m/1", now.Add(-ledger.Retention+time.Second))
	must(t, r.Sweep(t.Context(), now))
	for token, want := range map[string]bool{"old": false, "m/1": true, "m": false, "new": false} {
		if got, err := r.Used(t.Context(), token); err != nil || got != want {
			t.Errorf("token %q is used up: %v, want %v (%v)", token, got, want, err)
		}
	}
}

// Of two calls that read the same fence, one is decided again; the fence never falls.
func TestAFenceIsRaisedByOneCallAtATime(t *testing.T) {
	st := etcdtest.Store(t)
	r := records.New(st, nil)
	first, err := r.Fence(t.Context())
	must(t, err)
	second, err := r.Fence(t.Context())
	must(t, err)
	must(t, r.Raise(t.Context(), first, 5))
	if err := r.Raise(t.Context(), second, 6); err == nil {
		t.Error("a fence that was read before another call is stored")
	}
	now, err := r.Fence(t.Context())
	must(t, err)
	must(t, r.Raise(t.Context(), now, 4))
	_, err = st.Commit(t.Context(), now.Raised(4))
	must(t, err)
	if now, err := r.Fence(t.Context()); err != nil || now.Highest != 5 {
		t.Errorf("the highest fence is %d, want 5 (%v)", now.Highest, err)
	}
}

// The policy of the hosts is sealed: what is written in etcd without the keys is not taken.
func TestThePolicyOfTheHostsIsSealedAndWrittenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	add := func() {
		_, err := store.AddKey(path, time.Now())
		must(t, err)
	}
	add()
	prefix := etcdtest.Prefix(t)
	open := func() (*records.Records, *store.Store) {
		ring, err := store.OpenKeyRing(path)
		must(t, err)
		st := store.New(etcdtest.Client(t), prefix, store.WithSealer(ring))
		return records.New(st, nil), st
	}
	r, st := open()
	first := &hostv1.ClusterAccess{Generation: 1, Policy: "p"}
	must(t, r.PutAccess(t.Context(), first, 0))
	if err := r.PutAccess(t.Context(), &hostv1.ClusterAccess{Generation: 1, Policy: "other"}, 0); err == nil {
		t.Error("the first content was recorded twice")
	}
	got, revision, err := r.Access(t.Context())
	must(t, err)
	if diff := cmp.Diff(first, got, protocmp.Transform()); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	must(t, r.PutAccess(t.Context(), &hostv1.ClusterAccess{Generation: 2}, revision))
	if err := r.PutAccess(t.Context(), first, revision); err == nil {
		t.Error("a change of a former revision was recorded")
	}
	before, err := st.Get(t.Context(), "access")
	must(t, err)
	add()
	r, st = open()
	must(t, r.Reseal(t.Context()))
	after, err := st.Get(t.Context(), "access")
	must(t, err)
	if before.SealedBy == 0 || after.SealedBy == before.SealedBy {
		t.Errorf("sealed by key %d, and after a rotation by %d", before.SealedBy, after.SealedBy)
	}
	value, err := etcdtest.Client(t).Get(t.Context(), prefix+"access")
	must(t, err)
	forged := append([]byte{}, value.Kvs[0].Value...)
	forged[len(forged)-1] ^= 1
	_, err = etcdtest.Client(t).Put(t.Context(), prefix+"access", string(forged))
	must(t, err)
	if a, _, err := r.Access(t.Context()); err == nil {
		t.Errorf("what was altered in etcd is taken: %v", a)
	}
}
