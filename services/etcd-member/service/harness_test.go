package service_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/etcd-member/service"
	"github.com/windlass-dev/windlass/services/etcd-member/users"
)

// With this variable the test binary is the program itself.
const asProgram = "ETCD_MEMBER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := service.Run(ctx, os.Args[1:], os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd-member:", err)
	}
	os.Exit(service.ExitCode(err))
}

// authority is a throw-away CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) issue(t *testing.T, cn, ip string, uris ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	return a.issueFor(t, time.Hour, cn, ip, uris...)
}

func (a authority) issueFor(t *testing.T, life time.Duration, cn, ip string, uris ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, u := range uris {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, parsed)
	}
	if ip != "" {
		template.IPAddresses = []net.IP{net.ParseIP(ip)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER)
}

func (a authority) pem() []byte { return encode("CERTIFICATE", a.cert.Raw) }

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// cluster is a set of member processes with their authorities.
type cluster struct {
	clients, peers authority
	usersFile      string
	net            byte // third part of the addresses, so that clusters of tests do not meet
}

func newCluster(t *testing.T, list []users.User) *cluster {
	t.Helper()
	c := &cluster{clients: newAuthority(t, "etcd-client"), peers: newAuthority(t, "etcd-peer")}
	c.usersFile = filepath.Join(t.TempDir(), "users.json")
	c.writeUsers(t, list)
	one := make([]byte, 1)
	_, _ = rand.Read(one)
	c.net = one[0]
	return c
}

func (c *cluster) writeUsers(t *testing.T, list []users.User) {
	t.Helper()
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	write(t, c.usersFile, data)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// member is one member process, which may be started many times.
type member struct {
	name, dir    string
	client, peer string // URLs
	args         []string
	owner        *testing.T // whose end is the process's end

	mu     sync.Mutex
	cmd    *exec.Cmd
	stderr bytes.Buffer
	exited chan struct{}
}

func (m *member) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stderr.Write(p)
}

func (m *member) log() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stderr.String()
}

// member makes the directory, certificates and flags of a member. The extra flags come last.
func (c *cluster) member(t *testing.T, n byte, extra ...string) *member {
	t.Helper()
	m := &member{name: fmt.Sprintf("m%d", n), dir: t.TempDir(), owner: t}
	ip := fmt.Sprintf("127.%d.%d.%d", 100+byte(os.Getpid())%100, c.net, n)
	m.client, m.peer = "https://"+freePort(t, ip), "https://"+freePort(t, ip)
	serverCert, serverKey := c.clients.issue(t, "etcd-server", ip)
	for name, data := range map[string][]byte{
		"etcd-ca.crt": c.clients.pem(), "etcd-server.crt": serverCert, "etcd-server.key": serverKey,
		"peer-ca.crt": c.peers.pem(),
	} {
		write(t, filepath.Join(m.dir, name), data)
	}
	m.args = append([]string{
		"--name", m.name, "--data-dir", filepath.Join(m.dir, "data"), "--tls-dir", m.dir,
		"--listen-client", m.client, "--listen-peer", m.peer,
	}, extra...)
	cluster, id := alone(t, m)
	c.certify(t, m, cluster, id)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", m.name, m.log())
		}
	})
	return m
}

// alone returns the ids of a cluster that m begins, and of m in it.
func alone(t *testing.T, m *member) (cluster, id uint64) {
	t.Helper()
	urls, err := types.NewURLs([]string{m.peer})
	if err != nil {
		t.Fatal(err)
	}
	first, err := membership.NewClusterFromURLsMap(zap.NewNop(), "windlass", types.URLsMap{m.name: urls})
	if err != nil {
		t.Fatal(err)
	}
	return uint64(first.ID()), uint64(first.MemberByName(m.name).ID)
}

// certify makes m's peer certificate.
func (c *cluster) certify(t *testing.T, m *member, cluster, id uint64) {
	t.Helper()
	u, err := url.Parse(m.peer)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := c.peers.issue(t, m.name, u.Hostname(), identity.MemberURI(cluster, id))
	write(t, filepath.Join(m.dir, "peer.crt"), cert)
	write(t, filepath.Join(m.dir, "peer.key"), key)
}

func freePort(t *testing.T, ip string) string {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (m *member) start(t *testing.T) {
	t.Helper()
	m.cmd = exec.Command(os.Args[0], m.args...)
	m.cmd.Env = append(os.Environ(), asProgram+"=1")
	m.cmd.Stderr = m
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.exited = make(chan struct{})
	cmd, exited := m.cmd, m.exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	m.owner.Cleanup(func() { m.kill(m.owner) })
}

func (m *member) kill(t *testing.T) {
	t.Helper()
	m.signal(t, syscall.SIGKILL)
	m.wait(t)
}

func (m *member) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := m.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
}

// wait returns the exit code, -1 after a signal.
func (m *member) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-m.exited:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s does not end", m.name)
	}
	return m.cmd.ProcessState.ExitCode()
}

// as returns a client with the certificate of user, at the given members.
func (c *cluster) as(t *testing.T, user string, at ...*member) *clientv3.Client {
	t.Helper()
	pair := c.pair(t, time.Hour, user)
	return c.by(t, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }, at...)
}

// pair returns a certificate of user and its key.
func (c *cluster) pair(t *testing.T, life time.Duration, user string) tls.Certificate {
	t.Helper()
	certPEM, keyPEM := c.clients.issueFor(t, life, user, "")
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// by returns a client with the certificate of each handshake, at the given members.
func (c *cluster) by(t *testing.T, cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error),
	at ...*member,
) *clientv3.Client {
	t.Helper()
	var urls []string
	for _, m := range at {
		urls = append(urls, m.client)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.clients.cert)
	retry := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond}
	client, err := clientv3.New(clientv3.Config{
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		},
		Endpoints: urls, Logger: zap.NewNop(), BackoffWaitBetween: 10 * time.Millisecond,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second, PermitWithoutStream: true,
		TLS: &tls.Config{GetClientCertificate: cert, RootCAs: pool, MinVersion: tls.VersionTLS13},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// eventually repeats try until it returns nil, first with 300 ms and then with more: what takes longer on a busy host
// comes about, too.
func eventually(t *testing.T, what string, try func(ctx context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	for limit := 300 * time.Millisecond; ; limit = min(limit*5/4, 3*time.Second) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := try(ctx)
		<-atLeast(ctx, err)
		cancel()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// atLeast is closed at once after a success, and a moment later after a failure.
func atLeast(ctx context.Context, err error) <-chan struct{} {
	moment, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	if err == nil {
		cancel()
	}
	context.AfterFunc(moment, cancel)
	return moment.Done()
}
