package service_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
)

// ends waits until f returns, or fails the test.
func ends(t *testing.T, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s goes on", what)
		return nil
	}
}

// expired fails the test if a certificate is valid still.
func expired(t *testing.T, cert tls.Certificate) {
	t.Helper()
	if left := time.Until(cert.Leaf.NotAfter); left > 0 {
		t.Errorf("it ended %s before the certificate", left)
	}
}

// A thief of a certificate opens a connection while it is valid, and reads and watches on it.
func TestAConnectionOfAClientEndsWithItsCertificate(t *testing.T) {
	c := newCluster(t, twoServices())
	m := c.bootstrap(t)
	putEventually(t, c.as(t, "machine-api", m), "/windlass/machine-api/x")

	stolen := c.pair(t, 3*time.Second, "machine-api")
	conn := c.by(t, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stolen, nil },
		m).ActiveConnection()
	watch, err := etcdserverpb.NewWatchClient(conn).Watch(t.Context()) // etcd's own watcher would begin again without end
	if err != nil {
		t.Fatal(err)
	}
	create := &etcdserverpb.WatchCreateRequest{
		Key:      []byte("/windlass/machine-api/"),
		RangeEnd: []byte("/windlass/machine-api0"),
	}
	if err := watch.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: create,
	}}); err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || !r.GetCreated() {
		t.Fatalf("the watch does not begin: %v, %v", r, err)
	}
	get := func() error {
		_, err := etcdserverpb.NewKVClient(conn).Range(t.Context(), &etcdserverpb.RangeRequest{
			Key: []byte("/windlass/machine-api/x"),
		})
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	err = ends(t, "the watch", func() error {
		for {
			if _, err := watch.Recv(); err != nil {
				return err
			}
		}
	})
	if status.Code(err) != codes.Unavailable { // what etcd's clients answer by another connection
		t.Errorf("the watch ended with %v", err)
	}
	expired(t, stolen)
	if err := ends(t, "the reads", func() error {
		for {
			if err := get(); err != nil {
				return err
			}
		}
	}); status.Code(err) != codes.Unavailable {
		t.Errorf("the reads ended with %v", err)
	}
}

// A client that renews its certificate watches and reads over the ends of several, and notices nothing.
func TestClientsThatRenewLoseNothingWithTheirConnections(t *testing.T) {
	c := newCluster(t, twoServices())
	m := c.bootstrap(t, "--connection-age", "1s")
	writer := c.as(t, "machine-api", m)
	putEventually(t, writer, "/windlass/machine-api/x")

	var handshakes atomic.Int32
	client := c.by(t, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		handshakes.Add(1)
		pair := c.pair(t, 3*time.Second, "machine-api")
		return &pair, nil
	}, m)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := client.Watch(ctx, "/windlass/machine-api/n/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if r := <-watch; !r.Created {
		t.Fatalf("the watch does not begin: %v", r.Err())
	}
	lease, err := client.Grant(ctx, 5)
	if err != nil {
		t.Fatal(err)
	}
	alive, err := client.KeepAlive(ctx, lease.ID)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 6 // connections that ended by their age or by their certificate
	n := 0
	for ; handshakes.Load() < rounds; n++ {
		if err := put(ctx, writer, fmt.Sprintf("/windlass/machine-api/n/%06d", n)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get(ctx, "/windlass/machine-api/x"); err != nil {
			t.Fatalf("a read after %d handshakes: %v", handshakes.Load(), err)
		}
		if _, err := client.Put(ctx, "/windlass/machine-api/own", fmt.Sprint(n)); err != nil {
			t.Fatalf("a write after %d handshakes: %v", handshakes.Load(), err)
		}
		<-time.After(time.Millisecond)
	}
	seen := 0
	_ = ends(t, "the wait for events", func() error {
		for seen < n {
			r, ok := <-watch
			if !ok || r.Err() != nil {
				return fmt.Errorf("the watch ended: %w", r.Err())
			}
			for _, e := range r.Events {
				if key := fmt.Sprintf("/windlass/machine-api/n/%06d", seen); string(e.Kv.Key) != key {
					t.Errorf("the watch saw %s in the place of %s", e.Kv.Key, key)
				}
				seen++
			}
		}
		return nil
	})
	for open := true; open; {
		select {
		case r, ok := <-alive:
			if !ok || r == nil {
				t.Fatal("the lease was lost")
			}
		default:
			open = false
		}
	}
	t.Logf("%d handshakes, %d events", handshakes.Load(), seen)
}

// The stream by which a peer receives raft's messages ends with the peer's certificate.
func TestAConnectionOfAPeerEndsWithItsCertificate(t *testing.T) {
	c := newCluster(t, twoServices())
	m := c.bootstrap(t)
	putEventually(t, c.as(t, "machine-api", m), "/windlass/machine-api/x")
	own, id := alone(t, m)
	// or the member opens no stream to it
	added, err := c.as(t, "root", m).MemberAddAsLearner(t.Context(), []string{"https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	other := added.Member.ID
	u, err := url.Parse(m.peer)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM := c.peers.issueFor(t, 3*time.Second, "other", "127.0.0.1", identity.MemberURI(own, other))
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates:       []tls.Certificate{pair},
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+u.Host+"/raft/stream/message/"+
		fmt.Sprintf("%x", other), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"X-Server-From": fmt.Sprintf("%x", other), "X-Raft-To": fmt.Sprintf("%x", id),
		"X-Etcd-Cluster-Id": fmt.Sprintf("%x", own),
		"X-Server-Version":  "3.7.0", "X-Min-Cluster-Version": "3.0.0",
	} {
		r.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("the stream is not opened: %s", resp.Status)
	}
	_ = ends(t, "the stream", func() error {
		for one := make([]byte, 512); ; {
			if _, err := resp.Body.Read(one); err != nil {
				return err
			}
		}
	})
	expired(t, pair)
}
