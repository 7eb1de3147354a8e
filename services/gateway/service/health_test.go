package service

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
)

func TestAGatewayIsNotReadyBeforeItsFirstRead(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // an etcd that takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	w := startWorld(t, func(c *Config) {
		c.EtcdEndpoints = []string{"https://" + silent.Addr().String()}
		for _, pair := range [][2]string{{"tls.crt", "etcd.crt"}, {"tls.key", "etcd.key"}, {"ca.crt", "etcd-ca.crt"}} {
			text, err := os.ReadFile(filepath.Join(c.TLSDir, pair[0]))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(c.TLSDir, pair[1]), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	r, err := grpc_health_v1.NewHealthClient(w.grpc("alice", lanes[0])).Check(t.Context(),
		&grpc_health_v1.HealthCheckRequest{})
	if err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health: %v, %v; want NOT_SERVING", r.GetStatus(), err)
	}
	if got := w.do("GET", "/readyz", nil, "", nil); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d %s", got.StatusCode, got.body)
	}
}

func TestAHealthCheckSaysWhichPolicyAndTokensAreInForce(t *testing.T) {
	w := newWorld(t)
	sum := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		hash := sha256.Sum256(text)
		return hex.EncodeToString(hash[:])
	}
	file := filepath.Join(w.dir, "tokens")
	empty := sha256.Sum256(nil)
	for _, change := range []func() (tokens string, err error){
		func() (string, error) { return sum(file), nil },
		func() (string, error) {
			_, entry, err := identity.NewToken("dave", nil, time.Now().Add(time.Hour))
			if err == nil {
				err = identity.AddToken(file, entry)
			}
			return sum(file), err
		},
		func() (string, error) { return hex.EncodeToString(empty[:]), os.Remove(file) },
	} {
		want, err := change()
		if err != nil {
			t.Fatal(err)
		}
		w.until(func() bool {
			var header metadata.MD
			_, err := grpc_health_v1.NewHealthClient(w.grpc("alice", lanes[0])).Check(t.Context(),
				&grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header))
			tokens, policy := header.Get(serve.TokensHeader), header.Get(serve.PolicyHeader)
			return err == nil && len(policy) == 1 && len(policy[0]) == 2*sha256.Size && len(tokens) == 1 && tokens[0] == want
		})
	}
}

func TestTheGatewaySaysThatItsPolicyIsNotInForce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(path, identity.DefaultPolicy(), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := identity.LoadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	policy.Log = slog.New(slog.DiscardHandler)
	trail, err := audit.Open(audit.Config{Dir: dir, Service: "gateway", Log: policy.Log})
	if err != nil {
		t.Fatal(err)
	}
	defer trail.Close()
	validity, err := identity.OpenValidity("")
	if err != nil {
		t.Fatal(err)
	}
	alive := programs{Server: health.NewServer(), validity: validity, policy: policy, audit: trail}
	if s := alive.state(t.Context()); !s.Available || s.Degraded {
		t.Fatalf("with a good policy: %+v", s)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	w.until(func() bool {
		s := alive.state(t.Context())
		return s.Available && s.Degraded && s.Reason == "PolicyNotInForce"
	})
}
