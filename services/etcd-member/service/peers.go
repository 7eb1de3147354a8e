package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"

	"github.com/windlass-dev/windlass/kit/identity"
)

// peers serves the port for the other members. etcd serves its own handler on a Unix socket that is not used, since it
// checks a peer's certificate in the handshake alone and by its authority alone: with the certificate of a removed
// member a process could still send raft messages, in the name of any member. Here each request is checked against the
// members that this server knows.
type peers struct {
	listener net.Listener
	server   *http.Server
	validity *identity.Validity
	current  atomic.Pointer[peerHandler] // nil while etcd starts
}

// peerHandler is what one start of etcd serves.
type peerHandler struct {
	handler http.Handler
	server  *etcdserver.EtcdServer
}

type connKey struct{}

// listenPeers binds the port. Nothing is served before serve is called.
func listenPeers(cfg config, validity *identity.Validity) (*peers, error) {
	files := identity.Files{Cert: cfg.tls(peerCertFile), Key: cfg.tls(peerKeyFile), CA: cfg.tls(peerCAFile)}
	settings, err := files.ServerTLS(tls.RequireAndVerifyClientCert, "http/1.1")
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(cfg.listenPeer)
	if err != nil {
		return nil, usageError{err}
	}
	// Without TLS of etcd's: ours comes on top of the time limits that raft's connections have.
	plain, err := rafthttp.NewListener(url.URL{Scheme: "http", Host: u.Host}, nil)
	if err != nil {
		return nil, err
	}
	p := &peers{listener: tls.NewListener(plain, settings), validity: validity}
	p.server = &http.Server{
		Handler: p, ReadTimeout: 5 * time.Minute, // as etcd's own
		ReadHeaderTimeout: 5 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // raft speaks HTTP/1.1
		ConnContext:  func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	return p, nil
}

// run serves until close is called.
func (p *peers) run() error {
	if err := p.server.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (p *peers) close() { _ = p.server.Close() }

// serve makes e the server that peers reach.
func (p *peers) serve(e *embed.Etcd, log *zap.Logger) {
	p.current.Store(&peerHandler{handler: etcdhttp.NewPeerHandler(log, e.Server), server: e.Server})
}

// pause refuses peers until serve is called again.
func (p *peers) pause() { p.current.Store(nil) }

// ServeHTTP checks who asks, at every request: connections outlive the membership and the certificate of a member.
func (p *peers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := p.current.Load()
	if h == nil {
		http.Error(w, "the member is starting", http.StatusServiceUnavailable)
		return
	}
	cert := r.TLS.PeerCertificates[0]
	if code, why := h.check(cert, time.Now()); code != 0 {
		w.Header().Set("Connection", "close")
		w.Header().Set("X-Server-Version", version.Version) // without it a stream's reader does not take the status in
		http.Error(w, why, code)
		return
	}
	// A stream lives as long as the connection: it ends with the certificate, and the peer comes again with its newest
	// one.
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		defer p.validity.CloseConn(conn, cert)()
	}
	h.handler.ServeHTTP(w, r)
}

// refused is the status of a peer that is refused for now. It must be neither 403 nor 410: raft takes both for its
// removal, after which the member ends and never starts again on its data.
const refused = http.StatusUnauthorized

// check returns why a peer with this certificate is refused, as a status of HTTP; 0 if it is not. A member that this
// server does not know is let in: the authority signs for planned members only, and one that was down while others
// joined can learn of them from these alone.
func (h *peerHandler) check(cert *x509.Certificate, now time.Time) (int, string) {
	cluster, member, err := identity.MemberFrom(cert)
	switch {
	case err != nil:
		return refused, err.Error()
	case now.After(cert.NotAfter):
		return refused, "the certificate has expired"
	case cluster != uint64(h.server.Cluster().ID()):
		return refused, "the certificate is for a member of another cluster"
	case h.server.IsIDRemoved(member):
		// raft ends a member that receives this
		return http.StatusGone, "the member has been permanently removed from the cluster"
	}
	return 0, ""
}
