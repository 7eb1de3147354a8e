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
	"os"
	"path/filepath"
	"sync"
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

// The disk of an engine is full: it can import no image, and has space again after containers were removed.
func TestContainersAreRemovedWithoutTheImage(t *testing.T) {
	var removed atomic.Int32
	answers := http.NewServeMux()
	answers.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
	answers.HandleFunc("/v1.41/info", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"ID":"one"}`) })
	answers.HandleFunc("/v1.41/containers/json", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"Id":"c1","State":"running","Labels":{"dev.windlass.token":"uid-1","dev.windlass.machine":"a",
			"dev.windlass.provider-id":"docker://test/a/1","dev.windlass.fence":"0"}}]`)
	})
	answers.HandleFunc("DELETE /v1.41/containers/c1", func(w http.ResponseWriter, _ *http.Request) {
		removed.Add(1)
		w.WriteHeader(http.StatusNoContent)
	})
	answers.HandleFunc("/v1.41/images/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
		} else {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, `{"message":"no space left on device"}`)
	})
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.Server{Listener: listener, Config: &http.Server{Handler: answers}}
	server.Start()
	defer server.Close()
	f := of(t, socket)
	executable := filepath.Join(t.TempDir(), "windlass")
	if err := os.WriteFile(executable, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f.cfg.Image, err = engine.ImageOf(executable); err != nil {
		t.Fatal(err)
	}
	if err := f.ledger.Use("uid-1", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := f.pass(t.Context()); err != nil || removed.Load() != 1 {
		t.Errorf("pass = %v; %d containers were removed, want 1", err, removed.Load())
	}
	if list, _, err := f.Snapshot(); err != nil || len(list) != 1 {
		t.Errorf("Snapshot = %v, %v: the image says nothing of the instances", list, err)
	}
}

// An engine stops to answer while it is asked for the image.
func TestASilentEngineIsReportedDuringAnImport(t *testing.T) {
	var silent atomic.Bool
	answers := http.NewServeMux()
	answers.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
	answers.HandleFunc("/v1.41/info", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"ID":"one"}`) })
	answers.HandleFunc("/v1.41/containers/json", func(w http.ResponseWriter, _ *http.Request) {
		if silent.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, "[]")
	})
	answers.HandleFunc("/v1.41/images/", func(_ http.ResponseWriter, r *http.Request) {
		silent.Store(true)
		<-r.Context().Done()
	})
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.Server{Listener: listener, Config: &http.Server{Handler: answers}}
	server.Start()
	defer server.Close()
	f := of(t, socket)
	f.cfg.Image.Name = "node"
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // much less than an engine has for one answer
	var group sync.WaitGroup
	group.Go(func() { _ = f.Run(ctx) })
	defer group.Wait()
	defer cancel()
	for {
		_, changed, err := f.Snapshot()
		if err != nil && silent.Load() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the engine is still said to answer")
		}
		f.look()
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
