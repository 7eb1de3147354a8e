package store_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestAClientFollowsTheMembers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "endpoints")
	endpoint := etcdtest.Endpoint(t)
	// One address is dead, as that of the bootstrap member after the pivot.
	c, err := store.Dial(store.ClientConfig{Endpoints: []string{"unix:///nowhere", endpoint}, EndpointsFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	endpoints := store.NewEndpoints(c, file, slog.New(slog.DiscardHandler))
	go func() { done <- endpoints.Save(ctx) }()
	if err := endpoints.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the file", func() bool { b, err := os.ReadFile(file); return err == nil && string(b) == endpoint+"\n" })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{endpoint}, c.Endpoints()); diff != "" {
		t.Error(diff)
	}
	again, err := store.Dial(store.ClientConfig{EndpointsFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := store.NewEndpoints(again, "", slog.New(slog.DiscardHandler)).Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestVotersWithAnAddressAreUsed(t *testing.T) {
	got := store.ClientURLs([]*etcdserverpb.Member{
		{ClientURLs: []string{"https://127.0.9.2:2379"}},
		{ClientURLs: []string{"https://127.0.9.1:2379"}},
		{ClientURLs: []string{"https://127.0.9.3:2379"}, IsLearner: true},
		{PeerURLs: []string{"https://127.0.9.4:2380"}},
	})
	if diff := cmp.Diff([]string{"https://127.0.9.1:2379", "https://127.0.9.2:2379"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWithoutAnAddressThereIsNoClient(t *testing.T) {
	if _, err := store.Dial(store.ClientConfig{EndpointsFile: filepath.Join(t.TempDir(), "missing")}); err == nil {
		t.Error("Dial succeeded")
	}
}

func TestUnreachableMembersAreNotReady(t *testing.T) {
	c, err := store.Dial(store.ClientConfig{Endpoints: []string{"unix:///nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := store.NewEndpoints(c, "", slog.New(slog.DiscardHandler)).Ready(ctx); !errors.Is(err, store.ErrNotReady) {
		t.Errorf("Ready = %v", err)
	}
}

// One member that hangs must not get each third call: it is left out until it answers again.
func TestAVoterThatHangsIsLeftOut(t *testing.T) {
	members := etcdtest.StartMembers(t, 3)
	c, err := store.Dial(store.ClientConfig{Endpoints: members.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	endpoints := store.NewEndpoints(c, "", slog.New(slog.DiscardHandler))
	ready := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_ = endpoints.Ready(ctx) // may fail while the member is paused
	}
	all := sorted(members.Endpoints())
	waitFor(t, "a client of all members", func() bool { ready(); return slices.Equal(all, sorted(c.Endpoints())) })
	seen := map[uint64]bool{} // before that, no call would go to the one that hangs
	waitFor(t, "an answer of each member", func() bool {
		resp, err := c.MemberList(t.Context())
		if err == nil {
			seen[resp.Header.GetMemberId()] = true
		}
		return len(seen) == 3
	})
	hangs := (members.Leader() + 1) % 3
	members.Stop(hangs)
	rest := sorted(slices.Delete(members.Endpoints(), hangs, hangs+1))
	waitFor(t, "a client without the member that hangs",
		func() bool { ready(); return slices.Equal(rest, sorted(c.Endpoints())) })
	members.Continue(hangs)
	waitFor(t, "a client of all members", func() bool { ready(); return slices.Equal(all, sorted(c.Endpoints())) })
	for i := range 3 { // none answers: none is left out
		members.Stop(i)
	}
	for range 3 {
		ready()
	}
	if diff := cmp.Diff(all, sorted(c.Endpoints())); diff != "" {
		t.Error(diff)
	}
	for i := range 3 {
		members.Continue(i)
	}
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// waitFor waits until what holds.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}
