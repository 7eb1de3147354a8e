package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/windlass-dev/windlass/kit/identity"
)

// removedMark is a file in the data directory of a member that was removed, so that it ends at once when
// started again, also if no other member is left to report the removal. It is deleted with the data.
const removedMark = "removed"

// member is one etcd server and what is needed to start it again.
type member struct {
	cfg     config
	log     *slog.Logger
	etcdLog *zap.Logger
	socket  string // path of the HTTP socket
	peers   *peers
	gate    gate
	grpc    atomic.Pointer[grpc.Server] // of the client port; nil until etcd is ready

	validity *identity.Validity // ends the connections of clients and peers with their certificates
}

// settings builds etcd's configuration. A new one for each start, since etcd keeps what it is given.
func (m *member) settings() (*embed.Config, error) {
	trust, err := m.pin()
	if err != nil {
		return nil, err
	}
	m.gate.trust.Store(&trust)
	ec := embed.NewConfig()
	ec.Name, ec.Dir = m.cfg.name, m.cfg.dataDir
	ec.InitialCluster, ec.ClusterState, ec.InitialClusterToken = m.cfg.initialCluster, m.cfg.clusterState,
		m.cfg.clusterToken
	ec.StrictReconfigCheck = m.cfg.strictCheck
	ec.TickMs, ec.ElectionMs = m.cfg.tickMS, m.cfg.electionMS
	ec.QuotaBackendBytes = m.cfg.quotaBytes
	ec.ZapLoggerBuilder, ec.LogOutputs = embed.NewZapLoggerBuilder(m.etcdLog), []string{"stderr"}
	m.limits(ec)
	if err := m.secure(ec); err != nil {
		return nil, err
	}
	return ec, m.listen(ec)
}

func (m *member) limits(ec *embed.Config) {
	ec.MaxTxnOps = 128 // counted for compares, then and else each
	ec.MaxRequestBytes = 8 << 20
	// By time and not by number of revisions: what must stay readable is what a watcher that was away for some
	// minutes, or a reader in the middle of a long list, still needs, however busy the cluster is.
	ec.AutoCompactionMode, ec.AutoCompactionRetention = embed.CompactorModePeriodic, "10m"
	ec.SnapshotCatchUpEntries = 500 // kept in memory for a follower that is behind
	ec.WatchProgressNotifyInterval = 2 * time.Second
	ec.EnableGRPCGateway = false
	ec.GRPCAdditionalServerOptions = append(m.gate.options(),
		// Clients ping every 10 s whether or not they have a call open; etcd's own policy would cut them off.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Of a fixed size: else each message of a client, such as the renewal of a lease, costs a ping and its answer to
		// measure the line.
		grpc.StaticStreamWindowSize(1<<20), grpc.StaticConnWindowSize(4<<20),
		// Without a grace: new calls go to a new connection with the client's newest certificate, watches live on.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: embed.DefaultGRPCKeepAliveInterval, Timeout: embed.DefaultGRPCKeepAliveTimeout,
			MaxConnectionAge: m.cfg.connectionAge,
		}))
	ec.ServiceRegister = func(s *grpc.Server) { m.grpc.Store(s) }
}

func (m *member) secure(ec *embed.Config) error {
	ec.TlsMinVersion = "TLS1.3"
	ec.ClientTLSInfo = transport.TLSInfo{
		CertFile: m.cfg.tls(serverCertFile), KeyFile: m.cfg.tls(serverKeyFile),
		TrustedCAFile: m.pinned(clientCAFile), ClientCertAuth: true,
	}
	ec.PeerTLSInfo = transport.TLSInfo{
		CertFile: m.cfg.tls(peerCertFile), KeyFile: m.cfg.tls(peerKeyFile),
		TrustedCAFile: m.pinned(peerCAFile), ClientCertAuth: true,
	} // for the connections that this member makes; those to it are served by peers
	// etcd checks a client's certificate in the handshake alone. These credentials come after its own and replace them.
	info := ec.ClientTLSInfo
	info.MinVersion, info.Logger = tls.VersionTLS13, m.etcdLog
	settings, err := info.ServerConfig()
	if err != nil {
		return usageError{fmt.Errorf("--tls-dir: %w", err)}
	}
	ec.GRPCAdditionalServerOptions = append(ec.GRPCAdditionalServerOptions,
		grpc.Creds(m.validity.Credentials(credentials.NewTLS(settings))))
	return nil
}

func (m *member) listen(ec *embed.Config) error {
	for target, raw := range map[*[]url.URL]string{
		&ec.ListenClientUrls: m.cfg.listenClient, &ec.AdvertiseClientUrls: m.cfg.advertiseClient,
		&ec.AdvertisePeerUrls: m.cfg.advertisePeer,
	} {
		u, err := url.Parse(raw)
		if err != nil {
			return usageError{err}
		}
		*target = []url.URL{*u}
	}
	// With an HTTP listener of its own, the client port speaks plain gRPC, which is faster.
	ec.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: m.socket}}
	ec.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: m.socket + ".peer"}} // not connected to: see peers
	return nil
}

func (m *member) hasData() bool {
	_, err := os.Stat(filepath.Join(m.cfg.dataDir, "member", "wal"))
	return !errors.Is(err, fs.ErrNotExist)
}

func (m *member) wasRemoved() bool {
	_, err := os.Stat(filepath.Join(m.cfg.dataDir, removedMark))
	return err == nil
}

// markRemoved writes a removal down.
func (m *member) markRemoved() {
	mark := filepath.Join(m.cfg.dataDir, removedMark)
	if err := os.WriteFile(mark, []byte(errRemoved.Error()+"\n"), 0o600); err != nil {
		m.log.Error("removal is not written down", "error", err)
	}
}

// errLate means that etcd replicates but did not become ready.
var errLate = errors.New("not ready in time")

// start starts etcd and returns it when it is ready.
//
// A member that joins often loses the message by which it becomes ready, and would send it again only after 7 s, though
// it already replicates. Starting the server again sends it at once. A member with data of its own has that trouble
// only around elections, and may be slow for better reasons, so it is given more time. On a busy host the message is
// lost several times in a row, while its connections are still being made. After the last try we wait for however long
// it takes.
func (m *member) start(ctx context.Context) (*embed.Etcd, error) {
	patience := []time.Duration{
		250 * time.Millisecond, 500 * time.Millisecond, time.Second, time.Second, 2 * time.Second,
		2 * time.Second,
	}
	if m.hasData() {
		patience = []time.Duration{time.Second, 2 * time.Second}
	}
	for try := 0; ; try++ {
		limit := time.Duration(0)
		if try < len(patience) {
			limit = patience[try]
		}
		began := time.Now()
		e, err := m.startOnce(ctx)
		if err != nil || e == nil {
			return nil, err
		}
		m.gate.guard(e.Server.StoppingNotify())
		m.peers.serve(e, m.etcdLog)
		err = awaitReady(ctx, e, began, limit)
		if !errors.Is(err, errLate) {
			return e, err
		}
		m.log.Info("etcd replicates but is not ready, starting it again", "elapsed_ms", limit.Milliseconds())
		m.peers.pause()
		e.Server.HardStop() // before Close, which would wait for readiness
		e.Close()
	}
}

// startOnce returns nothing if ctx ends first; etcd's own start knows no context and is then left behind.
func (m *member) startOnce(ctx context.Context) (*embed.Etcd, error) {
	ec, err := m.settings()
	if err != nil {
		return nil, err
	}
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		e, err := embed.StartEtcd(ec)
		started <- result{e, err}
	}()
	select {
	case <-ctx.Done():
		return nil, nil
	case r := <-started:
		if r.err != nil {
			return nil, fmt.Errorf("start etcd: %w", r.err)
		}
		return r.etcd, nil
	}
}

// awaitReady waits until etcd is ready, its server ended, or ctx ended, which is no error. It returns errLate if
// limit is not 0 and is over. began is when etcd was started.
func awaitReady(ctx context.Context, e *embed.Etcd, began time.Time, limit time.Duration) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var since time.Time
	for {
		select {
		case <-e.Server.ReadyNotify():
			return nil
		case <-e.Server.StopNotify():
			return whyEnded(e, nil)
		case err := <-e.Err():
			return whyEnded(e, err)
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			switch {
			case limit == 0 || e.Server.Leader() == 0 || !hasApplied(e):
			case since.IsZero():
				since = now
			case isLate(began, since, now, limit):
				return errLate
			}
		}
	}
}

// isLate reports whether etcd, which was started at began and has known a leader and applied something since, has been
// given limit to become ready, and no less time than that start took: on a busy host another start costs more than the
// message that it would send again.
func isLate(began, since, now time.Time, limit time.Duration) bool {
	return now.Sub(since) > max(limit, since.Sub(began))
}

// hasApplied reports whether the server has taken in something of its cluster's state. A snapshot does not move
// the applied index until an entry follows it, but it brings the users: in a Windlass cluster they are always on.
func hasApplied(e *embed.Etcd) bool {
	return e.Server.AppliedIndex() > 0 || e.Server.AuthStore().IsAuthEnabled()
}

// whyEnded returns why etcd ended by itself. The one reason for which its server stops by itself is
// its removal; when its disk fails, etcd ends the whole process.
func whyEnded(e *embed.Etcd, err error) error {
	select {
	case <-e.Server.StoppingNotify():
		return errRemoved
	default:
		return fmt.Errorf("serve: %w", err)
	}
}
