package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// place is a directory with the files of one certificate.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) place { return place{t: t, dir: t.TempDir()} }

func (p place) files() Files {
	return Files{
		Cert: filepath.Join(p.dir, "tls.crt"), Key: filepath.Join(p.dir, "tls.key"),
		CA: filepath.Join(p.dir, "ca.crt"),
	}
}

func (p place) issue(a *Authority, r Request, trusted ...*Authority) place {
	p.t.Helper()
	cert, key, err := a.Issue(r)
	if err != nil {
		p.t.Fatal(err)
	}
	if len(trusted) == 0 {
		trusted = []*Authority{a}
	}
	var bundle []byte
	for _, ca := range trusted {
		bundle = append(bundle, ca.PEM()...)
	}
	f := p.files()
	for path, content := range map[string][]byte{f.Cert: cert, f.Key: key, f.CA: bundle} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	return p
}

func authority(t *testing.T, lifetime time.Duration) *Authority {
	t.Helper()
	a, err := NewAuthority("windlass", lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func serverRequest() Request {
	return Request{
		CommonName: "machine-api", URI: ServiceURI("machine-api"), IPs: []net.IP{net.IPv4(127, 1, 2, 1)},
		Server: true, Client: true,
	}
}

func clientRequest() Request {
	return Request{CommonName: "alice", URI: UserURI("alice"), Client: true}
}

func serverTLS(t *testing.T, p place) *tls.Config {
	t.Helper()
	cfg, err := p.files().ServerTLS(tls.RequireAndVerifyClientCert)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func clientTLS(t *testing.T, p place, name string) *tls.Config {
	t.Helper()
	cfg, err := p.files().ClientTLS(name)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// handshake connects both ends and returns what went wrong at either, and what the server saw.
func handshake(server, client *tls.Config) (tls.ConnectionState, error) {
	// Buffered, unlike net.Pipe: in a resumed handshake both ends write at once.
	listener := bufconn.Listen(1 << 16)
	defer listener.Close()
	type outcome struct {
		state tls.ConnectionState
		err   error
	}
	served := make(chan outcome, 1)
	go func() {
		a, err := listener.Accept()
		if err != nil {
			served <- outcome{err: err}
			return
		}
		defer a.Close()
		s := tls.Server(a, server)
		if err = s.Handshake(); err == nil {
			_, err = s.Write([]byte("x")) // in TLS 1.3 the client has ended before the server checks its certificate
		}
		served <- outcome{s.ConnectionState(), err}
	}()
	b, err := listener.Dial()
	if err != nil {
		return tls.ConnectionState{}, err
	}
	_, err = io.ReadFull(tls.Client(b, client), make([]byte, 1))
	b.Close()
	o := <-served
	return o.state, errors.Join(err, o.err)
}

func TestHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := authority(t, time.Hour), authority(t, time.Hour)
		server := newPlace(t).issue(ours, serverRequest())
		past := clientRequest()
		past.NotBefore, past.Lifetime = time.Now().Add(-time.Hour), 30*time.Minute
		serverOnly := clientRequest()
		serverOnly.Client, serverOnly.Server = false, true
		node := Request{
			CommonName: "n", URI: NodeURI("n", "u"), IPs: []net.IP{net.IPv4(127, 1, 2, 1)}, Server: true,
			Client: true,
		}
		good := newPlace(t).issue(ours, clientRequest())
		peerTLS := func(p place) *tls.Config { return WithURI(clientTLS(t, p, "127.1.2.1"), ServiceURI("machine-api")) }
		tests := []struct {
			name           string
			server, client *tls.Config
			want           string // part of the error; empty for success
		}{
			{"a client of the same authority gets in", serverTLS(t, server), peerTLS(good), ""},
			{
				"a client of another authority does not", serverTLS(t, server),
				peerTLS(newPlace(t).issue(theirs, clientRequest(), ours)), "unknown authority",
			},
			{"an expired certificate does not", serverTLS(t, server), peerTLS(newPlace(t).issue(ours, past)), "expired"},
			{
				"a certificate for servers alone does not", serverTLS(t, server), peerTLS(newPlace(t).issue(ours, serverOnly)),
				"incompatible key usage",
			},
			{
				"a client without a certificate does not", serverTLS(t, server),
				&tls.Config{RootCAs: ours.Pool(), ServerName: "127.1.2.1"}, "didn't provide a certificate",
			},
			{
				"a server of another authority is refused", serverTLS(t, newPlace(t).issue(theirs, serverRequest())), peerTLS(good),
				"unknown authority",
			},
			{"a server at another address is refused", serverTLS(t, server), clientTLS(t, good, "127.1.2.2"), "not 127.1.2.2"},
			{
				"a node in the place of a service is refused", serverTLS(t, newPlace(t).issue(ours, node)), peerTLS(good),
				"is not spiffe://windlass/service/machine-api",
			},
			{"TLS 1.2 is refused", serverTLS(t, server), &tls.Config{
				RootCAs: ours.Pool(), ServerName: "127.1.2.1",
				MaxVersion: tls.VersionTLS12,
			}, "protocol version"},
			{
				"a hash is enough to know the server's authority", serverTLSOpen(t, server), PinnedTLS(ours.Hash(), "127.1.2.1"),
				"",
			},
			{"another hash is not", serverTLSOpen(t, server), PinnedTLS(theirs.Hash(), "127.1.2.1"), "unknown authority"},
			{
				"a hash does not excuse a wrong address", serverTLSOpen(t, server), PinnedTLS(ours.Hash(), "127.1.2.3"),
				"not 127.1.2.3",
			},
		}
		for _, tt := range tests {
			_, err := handshake(tt.server, tt.client)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
			}
		}
	})
}

func serverTLSOpen(t *testing.T, p place) *tls.Config {
	t.Helper()
	cfg, err := p.files().ServerTLS(tls.VerifyClientCertIfGiven)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestFilesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former, next := authority(t, time.Hour), authority(t, time.Hour)
		server := newPlace(t).issue(former, serverRequest())
		client := newPlace(t).issue(former, clientRequest())
		serverCfg, clientCfg := serverTLS(t, server), clientTLS(t, client, "127.1.2.1")
		clientCfg.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		clientCfg.NextProtos = []string{"h2"}
		mustConnect := func(when string) tls.ConnectionState {
			t.Helper()
			state, err := handshake(serverCfg, clientCfg)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			return state
		}
		mustConnect("at first")
		if !mustConnect("again").DidResume {
			t.Error("the second connection is not resumed")
		}

		renewed := clientRequest()
		renewed.Organizations = []string{"admins"}
		client.issue(former, renewed)
		server.issue(former, serverRequest())
		time.Sleep(checkEvery)
		state := mustConnect("after renewal")
		if state.DidResume || len(state.PeerCertificates[0].Subject.Organization) != 1 {
			t.Errorf("the renewed certificate is not used: %v", state.PeerCertificates[0].Subject)
		}

		// Half-written files leave what was read before in force.
		for _, f := range []string{server.files().Cert, client.files().Key, server.files().CA} {
			if err := os.WriteFile(f, []byte("-----BEGIN"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(checkEvery)
		mustConnect("with broken files")

		// A change of authorities: first both are trusted, then the new one issues, then the former one is dropped.
		server.issue(former, serverRequest(), former, next)
		client.issue(former, clientRequest(), former, next)
		time.Sleep(checkEvery)
		mustConnect("with both authorities")
		server.issue(next, serverRequest(), former, next)
		time.Sleep(checkEvery)
		mustConnect("with a server of the new one")
		server.issue(next, serverRequest(), next)
		time.Sleep(checkEvery)
		if _, err := handshake(serverCfg, clientCfg); err == nil {
			t.Error("a client of the dropped authority gets in, by resumption or otherwise")
		}
		client.issue(next, clientRequest(), next)
		time.Sleep(checkEvery)
		mustConnect("with the new one alone")
	})
}

func TestACertificateEndsWithItsAuthority(t *testing.T) {
	a := authority(t, time.Minute)
	certPEM, _, err := a.Issue(clientRequest())
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.NotAfter.Equal(a.NotAfter()) {
		t.Errorf("the certificate ends %v, its authority %v", cert.NotAfter, a.NotAfter())
	}
}

func TestSignTakesNothingButTheKeyFromTheRequest(t *testing.T) {
	a := authority(t, time.Hour)
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	uri := mustURI(t, NodeURI("other", "u"))
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "root", Organization: []string{GroupMasters}}, DNSNames: []string{"evil"}, URIs: uri,
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, _ := x509.ParseCertificateRequest(der)
	certPEM, err := a.Sign(csr, Request{CommonName: "n", URI: NodeURI("n", "u"), Client: true})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certPEM)
	cert, _ := x509.ParseCertificate(block.Bytes)
	caller, err := FromCertificate(cert)
	if err != nil || caller.User != "system:node:n" || cert.Subject.CommonName != "n" || len(cert.Subject.Organization)+
		len(cert.DNSNames) != 0 {
		t.Errorf("the certificate says %v %v %v (caller %v, %v)", cert.Subject, cert.URIs, cert.DNSNames, caller, err)
	}

	csr.Signature[len(csr.Signature)-1] ^= 1
	if _, err := a.Sign(csr, Request{Client: true}); err == nil {
		t.Error("a request with a broken signature is signed")
	}
	weak, _ := rsa.GenerateKey(rand.Reader, 1024)
	if weak != nil {
		der, _ := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
		if csr, err := x509.ParseCertificateRequest(der); err == nil {
			if _, err := a.Sign(csr, Request{Client: true}); err == nil {
				t.Error("a weak key is signed")
			}
		}
	}
	if _, _, err := a.Issue(Request{CommonName: "x"}); err == nil {
		t.Error("a certificate for neither servers nor clients is issued")
	}
}

func TestAuthorityOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	a := authority(t, time.Hour)
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "windlass-ca.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", info.Mode(), err)
	}
	b, err := LoadAuthority(dir, "windlass")
	if err != nil {
		t.Fatal(err)
	}
	if a.Hash() != b.Hash() || !strings.HasPrefix(a.Hash(), "sha256:") {
		t.Errorf("hash %s, saved as %s", b.Hash(), a.Hash())
	}
	if _, err := LoadAuthority(dir, "etcd-peer"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("LoadAuthority of a missing one = %v", err)
	}
	other := authority(t, time.Hour)
	other.name = "etcd-peer"
	if err := other.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "etcd-peer-ca.key"), filepath.Join(dir, "windlass-ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAuthority(dir, "windlass"); err == nil {
		t.Error("another authority's key is taken")
	}
}
