package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/services/provider-docker/engine"
)

// of returns the fleet of the engine that listens on a socket.
func of(t *testing.T, socket string) *Fleet {
	t.Helper()
	e, err := engine.Open("unix://"+socket, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	l, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger.json"))
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Cluster: "test", Addresses: netip.MustParsePrefix("127.250.0.0/16"), Log: slog.New(slog.DiscardHandler),
		Identity: filepath.Join(t.TempDir(), "engine-id"),
	}, e, l)
}

func TestAnEngineThatDoesNotAnswerSaysNothingOfInstances(t *testing.T) {
	hanging := filepath.Join(t.TempDir(), "hanging.sock")
	listener, err := net.Listen("unix", hanging) // connections are accepted by the kernel and never answered
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, socket := range map[string]string{
		"it hangs": hanging, "it does not exist": filepath.Join(t.TempDir(), "missing.sock"),
	} {
		t.Run(name, func(t *testing.T) {
			f := of(t, socket)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := f.Get(ctx, "", "uid-1")
			_, listed := f.List(ctx)
			_, created := f.Create(ctx, Request{Token: "uid-1", Machine: "a"})
			deleted := f.Delete(ctx, "", "uid-1", 0)
			_ = f.pass(ctx) // its error is kept
			_, _, known := f.Snapshot()
			for call, err := range map[string]error{
				"Get": err, "List": listed, "Create": created, "Delete": deleted, "Snapshot": known,
			} {
				if !errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, ErrBusy) {
					t.Errorf("%s = %v, want ErrUnavailable", call, err)
				}
			}
			if f.ledger.Used("uid-1") {
				t.Error("the token of a deletion that was refused is used up")
			}
		})
	}
}

func TestAnotherEngineSaysNothingOfInstances(t *testing.T) {
	var id atomic.Value
	id.Store("one")
	answers := http.NewServeMux() // an engine without containers
	answers.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
	answers.HandleFunc("/v1.41/info", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"ID":%q}`, id.Load())
	})
	answers.HandleFunc("/v1.41/containers/json", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "[]") })
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.Server{Listener: listener, Config: &http.Server{Handler: answers}}
	server.Start()
	defer server.Close()
	f := of(t, socket)
	if _, err := f.Get(t.Context(), "", "uid-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get from the first engine = %v, want ErrNotFound", err)
	}
	id.Store("two")
	f.doubt() // as when the stream of events ends
	if _, err := f.Get(t.Context(), "", "uid-1"); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Get from another engine = %v, want ErrUnavailable", err)
	}
	id.Store("one")
	if _, err := f.Get(t.Context(), "", "uid-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get from the first engine again = %v, want ErrNotFound", err)
	}
}

func TestIDAndTokenMustMatch(t *testing.T) {
	list := []Instance{
		{Container: engine.Container{ProviderID: "docker://c/a/1", Token: "uid-a"}},
		{Container: engine.Container{ProviderID: "docker://c/b/2", Token: "uid-b"}},
		{Container: engine.Container{ProviderID: "docker://c/container/3"}, State: failed},
	}
	for _, c := range []struct {
		id, token, found string
		err              error
	}{
		{"docker://c/a/1", "", "docker://c/a/1", nil},
		{"", "uid-b", "docker://c/b/2", nil},
		{"docker://c/b/2", "uid-b", "docker://c/b/2", nil},
		{"docker://c/a/1", "uid-b", "", ErrOther},
		{"docker://c/a/1", "uid-x", "", ErrOther},
		{"docker://c/x/9", "uid-b", "", ErrOther},
		{"docker://c/x/9", "uid-x", "", ErrNotFound},
		{"", "", "", ErrNotFound},
	} {
		i, err := find(list, c.id, c.token)
		if i.ProviderID != c.found || !errors.Is(err, c.err) {
			t.Errorf("find(%q, %q) = %q, %v; want %q, %v", c.id, c.token, i.ProviderID, err, c.found, c.err)
		}
	}
}

func TestAddressesAreGivenInTurn(t *testing.T) {
	p := netip.MustParsePrefix("10.0.0.0/29") // .1 to .6
	a := netip.MustParseAddr
	taken := map[netip.Addr]bool{a("10.0.0.1"): true, a("10.0.0.4"): true}
	for _, c := range []struct{ last, want string }{
		{"0.0.0.0", "10.0.0.2"}, {"10.0.0.2", "10.0.0.3"}, {"10.0.0.3", "10.0.0.5"}, {"10.0.0.6", "10.0.0.2"},
	} {
		if got, ok := nextFree(p, a(c.last), taken); !ok || got != a(c.want) {
			t.Errorf("after %s comes %s, %v; want %s", c.last, got, ok, c.want)
		}
	}
	for n := range 8 {
		taken[netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})] = true
	}
	if got, ok := nextFree(p, a("10.0.0.2"), taken); ok {
		t.Errorf("%s was given in a full network", got)
	}
}
