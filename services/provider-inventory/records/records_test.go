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
