package serve_test

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/store"
)

// member starts one etcd member over TLS on loopback and returns its URL.
func (c cluster) member(ca *identity.Authority) string {
	c.t.Helper()
	dir := c.t.TempDir()
	c.issue(dir, "server", ca, identity.Request{
		CommonName: "member", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true,
		Client: true,
	})
	c.write(filepath.Join(dir, "ca.crt"), ca.PEM())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close() // etcd wants to know its address before it listens

	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = filepath.Join(dir, "data"), "error"
	clients := url.URL{Scheme: "https", Host: address}
	peers := url.URL{Scheme: "unix", Host: "peer.sock", Path: filepath.Join(dir, "peer.sock")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: filepath.Join(dir, "server.crt"), KeyFile: filepath.Join(dir, "server.key"),
		TrustedCAFile: filepath.Join(dir, "ca.crt"), ClientCertAuth: true,
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return clients.String()
}

func TestAServiceIsReadyWhenEtcdAnswersItOverMutualTLS(t *testing.T) {
	c := newCluster(t)
	ca, err := identity.NewAuthority("etcd-client", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.config("machine-api")
	c.issue(cfg.TLSDir, "etcd", ca, identity.Request{CommonName: cfg.Name, Client: true})
	c.write(filepath.Join(cfg.TLSDir, "etcd-ca.crt"), ca.PEM())
	cfg.EtcdEndpoints = []string{c.member(ca)}
	server := newProcess(t, cfg)

	written := make(chan error, 1)
	stop := start(t, server, func(ctx context.Context) error {
		_, err := store.New(server.Etcd, "/windlass/machine-api/").Commit(ctx, store.Put("machines/default/m", []byte("x"),
			0))
		written <- err
		return nil
	})
	if err := <-written; err != nil {
		t.Errorf("Commit = %v", err)
	}
	peer := c.config("gateway")
	peer.Peers = map[string]string{"machine-api": server.Address()}
	conn, err := newProcess(t, peer).Dial("machine-api")
	if err != nil {
		t.Fatal(err)
	}
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		response, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if response.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			break
		}
	}
	endpoints := filepath.Join(cfg.Dir, "endpoints")
	for deadline := time.Now().Add(2 * time.Minute); ; {
		content, err := os.ReadFile(endpoints)
		if strings.TrimSpace(string(content)) == cfg.EtcdEndpoints[0] {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s holds %q, %v", endpoints, content, err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.FailNow()
		}
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v", err)
	}

	// The list on disk is enough for the next start.
	cfg.EtcdEndpoints = nil
	if again := newProcess(t, cfg); again.Etcd == nil {
		t.Error("a restart forgets etcd")
	}
}
