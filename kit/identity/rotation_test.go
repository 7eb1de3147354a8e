package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
)

func TestACopyTrustsWhatItTrustedUntilItIsWritten(t *testing.T) {
	former, next := authority(t, time.Hour), authority(t, time.Hour)
	before, after := Trust{former, []*x509.Certificate{next.cert}}, Trust{next, []*x509.Certificate{former.cert}}
	for _, cut := range []string{"windlass-ca.key", "windlass-ca.crt", "windlass-old-ca.crt"} {
		t.Run(cut, func(t *testing.T) {
			dir := t.TempDir()
			if err := before.Save(dir); err != nil {
				t.Fatal(err)
			}
			// A directory in the place of the file makes its write fail, where a death would have prevented it.
			path := filepath.Join(dir, cut)
			if err := os.Rename(path, path+".kept"); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := after.Save(dir); err == nil {
				t.Fatal("Save succeeded")
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".kept", path); err != nil {
				t.Fatal(err)
			}
			trusted := map[string]bool{}
			for _, name := range []string{"windlass-ca.crt", "windlass-old-ca.crt"} {
				certs, err := readCertificates(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range certs {
					trusted[keyHash(c)] = true
				}
			}
			if len(trusted) != 2 {
				t.Errorf("%d authorities are trusted, want both", len(trusted))
			}
			if err := after.Save(dir); err != nil {
				t.Fatal(err)
			}
			if got, err := LoadTrust(dir, "windlass"); err != nil || !bytes.Equal(got.Bundle(), after.Bundle()) {
				t.Errorf("written again it is something else: %v", err)
			}
		})
	}
}

func TestTheHashOfWhatIsTrusted(t *testing.T) {
	a, b := authority(t, time.Hour).PEM(), authority(t, time.Hour).PEM()
	hash := func(bundles ...[]byte) string {
		h, err := TrustHash(bundles...)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	both, turned := append(bytes.Clone(a), b...), append(append(bytes.Clone(b), a...), b...)
	if hash(both, a) != hash(turned, a) {
		t.Error("the order and repetitions of authorities count")
	}
	seen := map[string]bool{}
	for _, set := range [][][]byte{{a, a}, {b, a}, {a, b}, {both, a}, {a, both}, {both}} {
		if h := hash(set...); seen[h] {
			t.Errorf("%s is the hash of two sets", h)
		} else {
			seen[h] = true
		}
	}
	if h, err := TrustHash(a, []byte("nothing")); err == nil {
		t.Errorf("a bundle without a certificate has the hash %s", h)
	}
}

func TestClientCredentialsFollowTheirFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former, next := authority(t, time.Hour), authority(t, time.Hour)
		client := newPlace(t).issue(former, clientRequest())
		creds, err := client.files().ClientCredentials()
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name, address string
			server        *Authority   // of the server's certificate
			client        *Authority   // of the client's
			trusted       []*Authority // by the client
			good          bool
		}{
			{"the only authority", "127.1.2.1:2379", former, former, []*Authority{former}, true},
			{"another address", "127.1.2.2:2379", former, former, []*Authority{former}, false},
			{"the next authority before it is trusted", "127.1.2.1:2379", next, former, []*Authority{former}, false},
			{"the next authority", "127.1.2.1:2379", next, former, []*Authority{former, next}, true},
			{"a certificate of the next authority", "127.1.2.1:2379", next, next, []*Authority{next}, true},
			{"the former authority", "127.1.2.1:2379", former, next, []*Authority{next}, false},
		} {
			client.issue(tc.client, clientRequest(), tc.trusted...)
			time.Sleep(2 * checkEvery) // of the bubble
			server := serverTLS(t, newPlace(t).issue(tc.server, serverRequest(), former, next))
			if cert, err := greet(creds, server, tc.address); (err == nil) != tc.good || tc.good &&
				!bytes.Equal(cert, tc.client.cert.RawSubjectPublicKeyInfo) {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	})
}

// greet connects a client to a server at an address, and returns the key of the authority of the client's certificate.
func greet(creds credentials.TransportCredentials, server *tls.Config, address string) ([]byte, error) {
	listener := bufconn.Listen(1 << 16)
	defer listener.Close()
	accepted := make(chan []byte, 1)
	go func() {
		defer close(accepted)
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		conn := tls.Server(raw, server)
		if conn.Handshake() == nil {
			chain := conn.ConnectionState().VerifiedChains[0]
			accepted <- chain[len(chain)-1].RawSubjectPublicKeyInfo
		}
	}()
	raw, err := listener.Dial()
	if err != nil {
		return nil, err
	}
	conn, _, err := creds.ClientHandshake(context.Background(), address, raw)
	if err != nil {
		raw.Close()
	} else {
		defer conn.Close()
	}
	return <-accepted, err
}

func TestAnotherHostsNextAuthorityIsAdopted(t *testing.T) {
	dir := t.TempDir()
	if err := authority(t, time.Hour).Save(dir); err != nil {
		t.Fatal(err)
	}
	pair := func() (certPEM, keyPEM []byte) {
		a := authority(t, time.Hour)
		keyPEM, err := a.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		return a.PEM(), keyPEM
	}
	if err := PrepareRotation(dir, "windlass", time.Hour); err != nil { // of a command that lost to another host's
		t.Fatal(err)
	}
	cert, key := pair()
	_, otherKey := pair()
	if err := AdoptNext(dir, "windlass", cert, otherKey); err == nil {
		t.Error("a key of another certificate is adopted")
	}
	// A directory in the place of the certificate makes its write fail, where a death would have prevented it.
	certPath := filepath.Join(dir, "windlass-next-ca.crt")
	if err := os.Remove(certPath); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(certPath, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certPath, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AdoptNext(dir, "windlass", cert, key); err == nil {
		t.Fatal("AdoptNext succeeded")
	}
	if err := os.RemoveAll(certPath); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := AdoptNext(dir, "windlass", cert, key); err != nil {
			t.Fatal(err)
		}
	}
	next, err := NextAuthority(dir, "windlass")
	if err != nil || !bytes.Equal(next.PEM(), cert) {
		t.Fatalf("the next authority is another one: %v", err)
	}
	if err := ActivateRotation(dir, "windlass"); err != nil {
		t.Fatal(err)
	}
	if err := AdoptNext(dir, "windlass", cert, key); err == nil {
		t.Error("an authority is adopted while the former one is trusted")
	}
}

func TestAStatementIsOfOneAuthorityAndPurpose(t *testing.T) {
	a, b := authority(t, time.Hour), authority(t, time.Hour)
	sig, err := a.SignStatement("one", []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.CheckStatement("one", []byte("text"), sig); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another purpose":   a.CheckStatement("two", []byte("text"), sig),
		"another text":      a.CheckStatement("one", []byte("texts"), sig),
		"another authority": b.CheckStatement("one", []byte("text"), sig),
		"no signature":      a.CheckStatement("one", []byte("text"), nil),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
