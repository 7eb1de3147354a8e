// Package servetest runs services in tests as a cluster runs them: each with a certificate of its own, over mutual TLS
// and through the real interceptors, called by users, nodes and other services. The records are the business of
// etcdtest, and what a service does is that of the test.
package servetest

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
)

const (
	loopback = "127.0.0.1" // where everything runs
	// waitLimit is for a machine that does much else; on a free one nothing takes longer than a few seconds.
	waitLimit = 2 * time.Minute
	lookEvery = 5 * time.Millisecond
	// A service that a test starts again is found at once; the default back-off would wait for seconds.
	dialBackoffBase = 10 * time.Millisecond
	dialBackoffMax  = 50 * time.Millisecond
	// dialTimeout also covers the time for which a process is open but does not run yet, and so does not shake hands.
	dialTimeout = 5 * time.Second
)

// Ground is what the processes of one test have in common. What it makes is closed and removed at the end of the test.
// Its methods are for the test's own goroutine: they end the test where they fail.
type Ground struct {
	Authority *identity.Authority // signs for everybody

	t testing.TB
}

// New returns a ground with an authority of its own.
func New(t testing.TB) *Ground {
	t.Helper()
	authority, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &Ground{Authority: authority, t: t}
}

// Service is a request for the certificate of a service on loopback.
func Service(name string) identity.Request {
	return identity.Request{
		CommonName: name, URI: identity.ServiceURI(name), IPs: []net.IP{net.ParseIP(loopback)},
		Server: true, Client: true,
	}
}

// User is a request for the certificate of a user.
func User(name string, groups ...string) identity.Request {
	return identity.Request{CommonName: name, URI: identity.UserURI(name), Organizations: groups, Client: true}
}

// Node is a request for the certificate of the agent of a node whose machine has the uid NodeUID(name).
func Node(name string) identity.Request {
	return identity.Request{CommonName: name, URI: identity.NodeURI(name, NodeUID(name)), Client: true}
}

// Host is a request for the certificate of the agent of a host of the inventory, whose Host has that uid.
func Host(name, uid string) identity.Request {
	return identity.Request{CommonName: name, URI: identity.HostURI(name, uid), Client: true}
}

// NodeUID returns the uid of the machine of a node.
func NodeUID(name string) string { return "uid-of-" + name }

// Admin is a request for the certificate of alice, who may do everything.
func Admin() identity.Request { return User("alice", identity.GroupMasters) }

// Files issues a certificate and returns the files, as tls.crt, tls.key and ca.crt in a directory of their own.
func (g *Ground) Files(r identity.Request) identity.Files {
	g.t.Helper()
	dir := g.t.TempDir()
	cert, key, err := g.Authority.Issue(r)
	if err != nil {
		g.t.Fatal(err)
	}
	f := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt"),
	}
	for path, data := range map[string][]byte{f.Cert: cert, f.Key: key, f.CA: g.Authority.PEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	return f
}

// Process opens the process that cfg describes; Run runs it. Where cfg leaves them empty it listens on a free port of
// loopback, has a new directory, and the certificate of the service of its name. It logs nothing; with go test -v
// warnings go to the test's output.
func (g *Ground) Process(cfg serve.Config) *serve.Process {
	g.t.Helper()
	cfg.Listen = cmp.Or(cfg.Listen, net.JoinHostPort(loopback, "0"))
	if cfg.Dir == "" {
		cfg.Dir = g.t.TempDir()
	}
	if cfg.TLSDir == "" {
		cfg.TLSDir = filepath.Dir(g.Files(Service(cfg.Name)).Cert)
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(g.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("service",
			cfg.Name)
	}
	p, err := serve.New(cfg, log)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { // of a test that ended before it ran the process; otherwise Run has done it
		if err := p.Close(); err != nil {
			g.t.Errorf("Close: %v", err)
		}
	})
	return p
}

// Run runs a process with its parts until stop is called, or else until the test ends. stop waits for the end of the
// process; an error of it fails the test then.
func Run(t testing.TB, p *serve.Process, parts ...serve.Part) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background()) // t.Context() would end before whatever is cleaned up first
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, parts...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Dial returns a connection to a process on loopback in the name that r gives. Calls wait until the process answers,
// and find it soon when it comes again; more options may change that.
func (g *Ground) Dial(address string, r identity.Request, more ...grpc.DialOption) *grpc.ClientConn {
	g.t.Helper()
	settings, err := g.Files(r).ClientTLS(loopback)
	if err != nil {
		g.t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(settings)),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: dialBackoffBase, Multiplier: 1, MaxDelay: dialBackoffMax},
			MinConnectTimeout: dialTimeout,
		}),
	}, more...)...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Clear deletes what services keep in etcd: their keys are the same in every test, under /windlass/.
func Clear(t testing.TB, etcd *clientv3.Client) {
	t.Helper()
	if _, err := etcd.Delete(t.Context(), "/windlass/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// Await looks until f returns "". It fails the test with what f says is missing when that takes longer than 30 s.
func Await(t testing.TB, f func() string) {
	t.Helper()
	limit := time.After(waitLimit)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		missing := f()
		if missing == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("waited in vain: %s", missing)
		}
	}
}
