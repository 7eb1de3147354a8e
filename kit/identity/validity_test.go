package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// revoke has a deny list in force and on the disk.
func revoke(v *Validity, list []Revocation) error {
	v.Deny(list)
	return v.Keep(list)
}

func validity(t *testing.T, path string) *Validity {
	t.Helper()
	v, err := OpenValidity(path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestWhatARevocationRefuses(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)
	alice := Credential{User: "alice", Issued: now.Add(-time.Hour), serial: "a1"}
	node := Credential{Issued: now, serial: "b2", machine: "u-1"}
	tests := []struct {
		name    string
		list    []Revocation
		c       Credential
		refused bool
	}{
		{"nothing is refused by an empty list", nil, alice, false},
		{"a user's older certificate", []Revocation{{User: "alice", IssuedBefore: now}}, alice, true},
		{
			"a user's newer certificate is good",
			[]Revocation{{User: "alice", IssuedBefore: now.Add(-2 * time.Hour)}},
			alice,
			false,
		},
		{
			"what was issued in the second of the revocation",
			[]Revocation{{User: "alice", IssuedBefore: now}},
			Credential{User: "alice", Issued: now},
			true,
		},
		{
			"what was issued in the next second is good",
			[]Revocation{{User: "alice", IssuedBefore: now}},
			Credential{User: "alice", Issued: now.Add(time.Second)},
			false,
		},
		{
			"a user without a time",
			[]Revocation{{User: "alice"}},
			Credential{User: "alice", Issued: now.Add(1000 * time.Hour)},
			true,
		},
		{
			"a token whose time of issue is not known",
			[]Revocation{{User: "alice", IssuedBefore: now}},
			Credential{User: "alice"},
			true,
		},
		{"another user is good", []Revocation{{User: "bob"}}, alice, false},
		{"of two for a user the later counts", []Revocation{
			{User: "alice", IssuedBefore: now},
			{User: "alice", IssuedBefore: now.Add(-2 * time.Hour)},
		}, alice, true},
		{"a serial number", []Revocation{{Serial: "a1"}}, alice, true},
		{"another serial number is good", []Revocation{{Serial: "a2"}}, alice, false},
		{"a machine", []Revocation{{MachineUID: "u-1"}}, node, true},
		{"a later machine of the same name is good", []Revocation{{MachineUID: "u-0"}}, node, false},
		{"an entry that names nothing refuses nothing", []Revocation{{}}, Credential{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := validity(t, "")
			if err := revoke(v, tt.list); err != nil {
				t.Fatal(err)
			}
			if err := v.Check(tt.c); (err != nil) != tt.refused {
				t.Errorf("Check = %v, want refused %v", err, tt.refused)
			}
		})
	}
}

func TestWhatIsOpenEndsWithItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := validity(t, "")
		start := time.Now()
		ended := make(chan error, 10)
		c := Credential{User: "alice", Issued: start, NotAfter: start.Add(time.Hour)}
		v.Follow(c, func(err error) { ended <- err })
		stop := v.Follow(c, func(err error) { t.Errorf("ended after it was closed: %v", err) })
		stop()
		err := <-ended
		if late := time.Since(start) - time.Hour; late < 0 || late > 10*time.Millisecond {
			t.Errorf("ended %v after the credential", late)
		}
		if !strings.Contains(err.Error(), "expired") {
			t.Error(err)
		}

		v.Follow(c, func(err error) { ended <- err }) // expired when it comes
		<-ended

		bob := Credential{User: "bob", Issued: time.Now(), NotAfter: time.Now().Add(time.Hour)}
		ctx, stop := v.Bound(t.Context(), bob, nil)
		defer stop()
		if err := revoke(v, []Revocation{{User: "bob", Reason: "left"}}); err != nil {
			t.Fatal(err)
		}
		select { // not later, when something looks
		case <-ctx.Done():
		default:
			t.Fatal("the revocation did not end what was open")
		}
		if err := Refusal(ctx); err == nil || !strings.Contains(err.Error(), "left") {
			t.Errorf("Refusal = %v", err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if Refusal(canceled) != nil {
			t.Error("a cancelled call is taken for a refused one")
		}
	})
}

func TestTheDenyListSurvivesItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations.json")
	if err := revoke(validity(t, path), []Revocation{
		{Serial: "a1", Reason: "lost"},
		{User: "alice", IssuedBefore: time.Now()},
	}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	again := validity(t, path)
	for _, c := range []Credential{{serial: "a1"}, {User: "alice", Issued: time.Now().Add(-time.Minute)}} {
		if again.Check(c) == nil {
			t.Errorf("%+v is good after a restart", c)
		}
	}
	missing := validity(t, filepath.Join(t.TempDir(), "missing", "revocations.json"))
	if err := revoke(missing, []Revocation{{Serial: "a1"}}); err == nil || missing.Check(Credential{serial: "a1"}) == nil {
		t.Errorf("a list that cannot be written: %v; in force: %v", err, missing.Check(Credential{serial: "a1"}))
	}
}

func TestADamagedDenyListIsNotAnEmptyOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations.json")
	if err := revoke(validity(t, path), []Revocation{{Serial: "a1", Reason: "lost"}, {User: "alice"}}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := map[string][]byte{
		"an empty list": []byte("[]"), "null": []byte("null"), "an object": []byte("{}"), "zeros": make([]byte, len(good)),
		"another name": []byte(strings.Replace(string(good), "alice", "alicf", 1)),
	}
	for n := range len(good) - 1 { // without the last line break it is complete
		damaged[fmt.Sprintf("%d bytes", n)] = good[:n]
	}
	node := Caller{User: NodeUser("w"), UID: "u", Groups: []string{GroupNodes, GroupAuthenticated}}
	for name, text := range damaged {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := OpenValidity(path)
		if err == nil || v == nil || v.Lost() == nil {
			t.Fatalf("%s: %v, %v", name, v, err)
		}
		for _, tt := range []struct {
			c       Caller
			service string
			refused bool
		}{
			{Caller{User: "bob", Groups: []string{GroupMasters}}, "machine-api", true},
			{node, "scheduler", true},
			{node, "etcd-guardian", false}, // through it etcd comes back, and with that the list
			{Caller{User: ServiceUser("scheduler"), Groups: []string{GroupServices}}, "machine-api", false},
			{Caller{}, "machine-api", false},
		} {
			if err := v.Unknown(tt.c, tt.service); tt.refused != (status.Code(err) == codes.Unavailable) || !tt.refused &&
				err != nil {
				t.Errorf("%s: %q at %s: %v", name, tt.c.User, tt.service, err)
			}
		}
		if err := revoke(v, []Revocation{{Serial: "a1"}}); err != nil || v.Unknown(node, "scheduler") != nil ||
			v.Check(Credential{serial: "a1"}) == nil {
			t.Errorf("%s: the list of machine-api is not in force: %v", name, err)
		}
	}
}

// watcher is a service whose watch stays open.
type watcher struct{ nodes }

func (watcher) WatchNodes(_ *nodev1.WatchNodesRequest, s grpc.ServerStreamingServer[nodev1.WatchNodesResponse]) error {
	if err := s.Send(&nodev1.WatchNodesResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// Heartbeat is of those that check rights themselves.
func (watcher) Heartbeat(s grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	Needs(s.Context(), Attributes{Verb: "get", Resource: "nodes"})
	if err := s.Send(&nodev1.HeartbeatResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// serveWatcher serves until the end of the test and returns the address.
func serveWatcher(t *testing.T, ca *Authority, policy *Policy, v *Validity) string {
	t.Helper()
	request := serverRequest()
	request.IPs = []net.IP{net.IPv4(127, 0, 0, 1)}
	cfg, err := newPlace(t).issue(ca, request).files().ServerTLS(tls.RequireAndVerifyClientCert)
	if err != nil {
		t.Fatal(err)
	}
	guard := Guard{Service: "eviction-controller", Policy: policy, Validity: v}
	server := grpc.NewServer(grpc.Creds(v.Credentials(credentials.NewTLS(cfg))),
		grpc.UnaryInterceptor(UnaryInterceptor(guard)), grpc.StreamInterceptor(StreamInterceptor(guard)))
	nodev1.RegisterNodeServiceServer(server, watcher{})
	nodev1.RegisterNodeAgentServiceServer(server, watcher{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func TestAStreamEndsWithTheRightToIt(t *testing.T) {
	role := strings.Replace(roleOfTests, "verbs: [get]", "verbs: [get, watch]", 1)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(role + bindingOfTests("alice") + strings.Replace(bindingOfTests("bob"), "readers", "others", 1))
	policy, err := LoadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	ca := authority(t, time.Hour)
	address := serveWatcher(t, ca, policy, validity(t, ""))
	open := func(user string) (watch, own func() error) {
		t.Helper()
		p := newPlace(t).issue(ca, Request{CommonName: user, URI: UserURI(user), Client: true, Lifetime: time.Hour})
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, p, ""))))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		w, err := nodev1.NewNodeServiceClient(conn).WatchNodes(t.Context(), &nodev1.WatchNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := nodev1.NewNodeAgentServiceClient(conn).Heartbeat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		watch, own = func() error { _, err := w.Recv(); return err }, func() error { _, err := h.Recv(); return err }
		if err := errors.Join(watch(), own()); err != nil {
			t.Fatal(err)
		}
		return watch, own
	}
	kept := make(chan error, 2)
	for _, receive := range tuple(open("bob")) {
		go func() { kept <- receive() }()
	}
	watch, own := open("alice")
	write(role + bindingOfTests("bob"))
	for name, err := range map[string]error{"the watch": watch(), "the stream that checks rights itself": own()} {
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "alice") {
			t.Errorf("%s ended with %v", name, err)
		}
	}
	select {
	case err := <-kept:
		t.Errorf("a stream of a user who kept the right ended with %v", err)
	default:
	}
}

func tuple(a, b func() error) []func() error { return []func() error{a, b} }

func TestExpiredAndRevokedCertificatesEndOnOpenConnections(t *testing.T) {
	ca := authority(t, time.Hour)
	policy, err := LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	v := validity(t, "")
	address := serveWatcher(t, ca, policy, v)

	for name, tt := range map[string]struct {
		lifetime time.Duration
		revoke   func(c Credential) []Revocation // nil: it expires
		text     string
	}{
		"expired":       {5 * time.Second, nil, "expired"}, // what comes before must be done in it
		"serial number": {time.Hour, func(c Credential) []Revocation { return []Revocation{{Serial: c.serial}} }, "revoked"},
		"user": {time.Hour, func(Credential) []Revocation {
			return []Revocation{{User: "root", IssuedBefore: time.Now()}}
		}, "revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t).issue(ca, Request{
				CommonName: "root", Organizations: []string{GroupMasters}, URI: UserURI("root"),
				Client: true, Lifetime: tt.lifetime,
			})
			lost := make(chan struct{})
			conn, err := grpc.NewClient("passthrough:///"+address,
				grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, p, ""))),
				grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
					select {
					case <-lost:
						return nil, net.ErrClosed // it does not connect again
					default:
					}
					c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
					if err != nil {
						return nil, err
					}
					return &noticed{Conn: c, lost: sync.OnceFunc(func() { close(lost) })}, nil
				}))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := nodev1.NewNodeServiceClient(conn)
			watch, err := client.WatchNodes(t.Context(), &nodev1.WatchNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := watch.Recv(); err != nil {
				t.Fatal(err)
			}
			if _, err := client.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "n"}); err != nil {
				t.Fatal(err)
			}
			if tt.revoke != nil {
				certs, err := readCertificates(p.files().Cert)
				if err != nil {
					t.Fatal(err)
				}
				if err := revoke(v, tt.revoke(CertificateCredential(certs[0]))); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := watch.Recv(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("the watch ended with %v", err)
			}
			if _, err := client.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "n"}); status.Code(
				err) != codes.Unauthenticated && (err == nil || !isClosed(lost)) {
				t.Errorf("a call on the open connection = %v", err)
			}
			select {
			case <-lost:
			case <-time.After(time.Minute):
				t.Error("the connection stays open")
			}
		})
	}
}

// isClosed says that the connection was closed, which on a slow host may come before the call that is made after the
// refusal.
func isClosed(lost <-chan struct{}) bool {
	select {
	case <-lost:
		return true
	default:
		return false
	}
}

// noticed is a client's connection that says when it was lost: gRPC closes its side then.
type noticed struct {
	net.Conn
	lost func()
}

func (n *noticed) Close() error {
	n.lost()
	return n.Conn.Close()
}

func TestConnectionsOfAnAuthorityThatIsNoLongerTrustedAreClosed(t *testing.T) {
	kept, removed := authority(t, time.Hour), authority(t, time.Hour)
	dir := newPlace(t).issue(kept, clientRequest(), kept, removed)
	v := validity(t, "")
	v.Trust(dir.files().CA)
	conns := map[*Authority]net.Conn{}
	for _, a := range []*Authority{kept, removed} {
		p := newPlace(t).issue(a, clientRequest())
		cert, err := ReadCertificate(p.files().Cert)
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close() })
		conns[a] = far
		defer v.CloseConn(near, cert)()
	}
	v.look()
	if err := os.WriteFile(dir.files().CA, kept.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	v.look() // else within five seconds
	_ = conns[removed].SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conns[removed].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection of the removed authority: %v", err)
	}
	_ = conns[kept].SetReadDeadline(time.Now().Add(closeAfter))
	if _, err := conns[kept].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection of the authority that is kept: %v", err)
	}
}
