package service

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/renameio/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// soon is how long certificates live here: what comes before their end must be done in it.
const soon = 5 * time.Second

// briefly returns TLS settings of a user whose certificate lives for so long.
func (w *world) briefly(name string, lifetime time.Duration, protocols ...string) *tls.Config {
	w.t.Helper()
	request := servetest.User(name, "staff")
	request.Lifetime = lifetime
	cert, key, err := w.ground.Authority.Issue(request)
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		w.t.Fatal(err)
	}
	settings := w.user("", protocols...)
	settings.Certificates = []tls.Certificate{pair}
	return settings
}

func TestACertificateEndsOnOpenConnectionsOfBothLanes(t *testing.T) {
	w := newWorld(t)
	for _, l := range lanes {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			creds := credentials.NewTLS(w.briefly("alice", soon))
			if l.both {
				creds = offering{w.briefly("alice", soon, "h2", "http/1.1")}
			}
			conn, err := grpc.NewClient("passthrough:///"+w.address, grpc.WithTransportCredentials(creds))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := machinev1.NewMachineServiceClient(conn)
			watch, err := client.WatchMachines(t.Context(), &machinev1.WatchMachinesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := watch.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := watch.Recv(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "expired") {
				t.Errorf("the watch ended with %v", err)
			}
			_, err = client.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: "ns", Name: "a"})
			// on a slow host the call may come after that
			closed := status.Code(err) == codes.Unavailable && conn.GetState() != connectivity.Ready
			if status.Code(err) != codes.Unauthenticated && !closed {
				t.Errorf("a call on the open connection = %v", err)
			}
		})
	}
	for _, protocols := range [][]string{{"http/1.1"}, {"h2", "http/1.1"}} {
		t.Run("REST over "+protocols[0], func(t *testing.T) {
			t.Parallel()
			transport := &http.Transport{TLSClientConfig: w.briefly("alice", soon, protocols...), Protocols: new(http.Protocols)}
			transport.Protocols.SetHTTP1(true)
			transport.Protocols.SetHTTP2(len(protocols) > 1)
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+w.address+"/v1/machines:watch", nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Body.Close()
			var last string
			for lines := bufio.NewScanner(got.Body); lines.Scan(); {
				last = lines.Text()
			}
			if !strings.Contains(last, "expired") {
				t.Errorf("the last line of the watch is %s", last)
			}
		})
	}
}

func TestATokenOfARevokedUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	before, err := identity.OpenValidity(filepath.Join(dir, "revocations.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Keep([]identity.Revocation{{User: "carol", IssuedBefore: time.Now(), Reason: "left"}}); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, func(c *Config) { c.Dir = dir })
	got := w.do("GET", "/v1/namespaces/ns/machines/a", http.Header{"Authorization": {"Bearer " + goodToken}}, "",
		w.http("", "http/1.1"))
	if got.StatusCode != http.StatusUnauthorized || !strings.Contains(got.body, "left") {
		t.Errorf("status %d: %s", got.StatusCode, got.body)
	}
}

func TestWithADamagedDenyListCallersAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "revocations.json"), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, func(c *Config) { c.Dir = dir })
	const path = "/v1/namespaces/ns/machines/a"
	for name, got := range map[string]answerOf{
		"a token":       w.do("GET", path, http.Header{"Authorization": {"Bearer " + goodToken}}, "", w.http("", "http/1.1")),
		"a certificate": w.do("GET", path, nil, "", w.http("alice", "http/1.1")),
	} {
		if got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got.body, "revoked is not known") {
			t.Errorf("%s: status %d: %s", name, got.StatusCode, got.body)
		}
	}
}

// Agents ask for the gateway's health to choose one: they leave a gateway that would refuse each of their calls.
func TestWithADamagedDenyListHealthChecksAreRefusedToo(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "revocations.json"), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, func(c *Config) { c.Dir = dir })
	for _, lane := range lanes {
		_, err := grpc_health_v1.NewHealthClient(w.grpc("alice", lane)).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("health check: %v, want UNAVAILABLE", err)
		}
	}
}

func TestStreamsEndWithTheirToken(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "tokens")
	secret, other, err := identity.NewToken("dave", []string{"staff"}, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.AddToken(file, other); err != nil {
		t.Fatal(err)
	}
	watch := func(token string) func() error {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		stream, err := machinev1.NewMachineServiceClient(w.grpc("", lanes[0])).WatchMachines(ctx,
			&machinev1.WatchMachinesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		return func() error { _, err := stream.Recv(); return err }
	}
	w.until(func() bool { // the gateway has read the file again
		header := http.Header{"Authorization": {"Bearer " + secret}}
		return w.do("GET", "/v1/namespaces/ns/machines/a", header, "", w.http("", "http/1.1")).StatusCode == http.StatusOK
	})
	kept := make(chan error, 1)
	daves := watch(secret)
	go func() { kept <- daves() }()
	removed := watch(goodToken)
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+w.address+"/v1/machines:watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+goodToken)
	rest, err := w.http("", "http/1.1").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Body.Close()

	entry, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	// at once: a file that is half written has no tokens
	if err := renameio.WriteFile(file, append(entry, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removed(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "removed") {
		t.Errorf("gRPC: the watch ended with %v", err)
	}
	var last string
	for lines := bufio.NewScanner(rest.Body); lines.Scan(); {
		last = lines.Text()
	}
	if !strings.Contains(last, "removed") {
		t.Errorf("REST: the last line of the watch is %s", last)
	}
	select {
	case err := <-kept:
		t.Errorf("the watch by a token that stays ended with %v", err)
	default:
	}
}

func TestAnOldConnectionIsAnnouncedToEnd(t *testing.T) {
	w := newWorldWith(t, func(c *Config) { c.Config.ConnectionAge = 2 * time.Second })
	client := w.http("alice", "http/1.1")
	get := func() bool { return w.do("GET", "/v1/namespaces/ns/machines/a", nil, "", client).Close }
	if get() {
		t.Error("a new connection ends with its first answer")
	}
	w.until(get)
	if get() {
		t.Error("the next connection ends with its first answer")
	}
}
