// Package etcdtest gives the tests of a package one real etcd between them: an embedded member on Unix sockets in a
// temporary directory. It starts when the first test asks for it and is stopped by Run. Each test has keys of its own.
package etcdtest

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/windlass-dev/windlass/kit/store"
)

// startLimit is ample: a member is ready in under a second even on a busy machine, mostly at once.
const startLimit = time.Minute

// shared is the one server of a test binary. A test cannot be handed anything by TestMain, so it is a variable.
var shared server

type server struct {
	mu      sync.Mutex
	running bool // Run was called
	dir     string
	etcd    *embed.Etcd
	err     error
	tests   atomic.Int64
}

// Run runs the tests and stops the server afterwards. Call it from TestMain: os.Exit(etcdtest.Run(m)).
func Run(m *testing.M) int {
	if raw := os.Getenv(asMember); raw != "" {
		return runMember(raw)
	}
	shared.mu.Lock()
	shared.running = true
	shared.mu.Unlock()
	defer shared.stop()
	return m.Run()
}

// Endpoint returns the server's address, for a client with settings of its own.
func Endpoint(t testing.TB) string {
	t.Helper()
	endpoint, err := shared.endpoint()
	if err != nil {
		t.Fatal(err)
	}
	return endpoint
}

// Client returns a client as the services use it. It is closed when the test ends.
func Client(t testing.TB) *clientv3.Client {
	t.Helper()
	c, err := store.Dial(store.ClientConfig{Endpoints: []string{Endpoint(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Prefix returns a prefix that no other call returns.
func Prefix(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("/test/%d/", shared.tests.Add(1))
}

// Store returns an empty store under a prefix of its own.
func Store(t testing.TB) *store.Store {
	t.Helper()
	return store.New(Client(t), Prefix(t))
}

func (s *server) endpoint() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return "", errors.New("etcdtest.Run was not called: add it to TestMain")
	}
	if s.etcd == nil && s.err == nil {
		s.err = s.start()
	}
	if s.err != nil {
		return "", s.err
	}
	return s.etcd.Config().AdvertiseClientUrls[0].String(), nil
}

func (s *server) start() error {
	dir, err := os.MkdirTemp("", "etcdtest") // short, since the path of a socket has at most 107 bytes
	if err != nil {
		return err
	}
	s.dir = dir
	e, err := embed.StartEtcd(config(dir))
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	s.etcd = e
	select {
	case <-e.Server.ReadyNotify():
		return nil
	case err := <-e.Err():
		return fmt.Errorf("start etcd: %w", err)
	case <-time.After(startLimit):
		return fmt.Errorf("etcd is not ready after %v", startLimit)
	}
}

func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcd != nil {
		// Without clients there is nothing to wait for, and the graceful stop would wait for every open watch.
		s.etcd.Server.HardStop()
		s.etcd.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// config sets up a lone member as the services meet it, but without waiting for the disk.
func config(dir string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "test"
	cfg.Dir = filepath.Join(dir, "data")
	client, peer := socket(dir, "client"), socket(dir, "peer")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.ListenClientHttpUrls = socket(dir, "http") // a client port with nothing but gRPC is faster
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = os.Getenv("WINDLASS_TEST_FSYNC") == "" // benchmarks of durable writes set it
	cfg.TickMs, cfg.ElectionMs = 10, 100                       // a single member waits for no peer
	cfg.MaxRequestBytes = 8 << 20
	cfg.WatchProgressNotifyInterval = time.Second
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	return cfg
}

func socket(dir, name string) []url.URL {
	return []url.URL{{Scheme: "unix", Path: filepath.Join(dir, name)}}
}
