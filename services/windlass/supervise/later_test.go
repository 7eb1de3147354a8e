package supervise

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// answer is what the gateway of a host says of its etcd.
type answer struct {
	etcdv1.UnimplementedQuorumServiceServer
	quorum *etcdv1.Quorum
}

func (a answer) GetQuorum(context.Context, *etcdv1.GetQuorumRequest) (*etcdv1.Quorum, error) {
	return a.quorum, nil
}

// newHost makes the files of the host that began a cluster.
func newHost(t *testing.T, address string) *cluster.Cluster {
	t.Helper()
	m, err := cluster.NewMember("a", address, "")
	if err != nil {
		t.Fatal(err)
	}
	m.First = address
	c, err := cluster.CreateHost(t.TempDir(), cluster.Settings{Name: "main", Member: &m})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return c
}

// join makes the files of another host of the cluster.
func join(t *testing.T, c *cluster.Cluster, name, address string) *cluster.Cluster {
	t.Helper()
	m, err := cluster.NewMember(name, address, "")
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := c.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(c.Dir("pki", topology.APIAuthority+"-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := cluster.JoinHost(t.TempDir(), m, cluster.Joined{
		Bundle: bundle, Authority: authority, Endpoints: []string{"https://" + net.JoinHostPort(address, "1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return out
}

// serve runs a gateway of a host that says what its etcd is, with the certificate of the host's gateway.
func serve(t *testing.T, c *cluster.Cluster, q *etcdv1.Quorum) (stop func()) {
	t.Helper()
	dir := c.Service(topology.Gateway, "tls")
	files := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	cfg, err := files.ServerTLS(tls.RequireAndVerifyClientCert, "h2")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", c.Gateway())
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	etcdv1.RegisterQuorumServiceServer(server, answer{quorum: q})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

// data makes the data of a member on a host.
func data(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	dir := c.Dir("node", "etcd", "data")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAHostThatMissedARecoverySetsItsDataAside(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	before, then := time.Unix(1_900_000_000, 5), time.Unix(1_900_000_000, 7)
	first := newHost(t, "127.0.9.1")
	other, last := join(t, first, "b", "127.0.9.2"), join(t, first, "c", "127.0.9.3")
	for _, h := range []*cluster.Cluster{other, last} {
		if _, err := first.AddGateway(h.Gateway()); err != nil {
			t.Fatal(err)
		}
	}
	etcd := data(t, first)
	there := func() bool {
		_, err := os.Stat(etcd)
		return err == nil
	}
	// None answers: the host begins with what it has.
	if err := setAsideIfLater(t.Context(), first, quiet); err != nil || !there() {
		t.Fatalf("%v, data is there: %t", err, there())
	}
	// The others have the etcd that this host has.
	stop := serve(t, other, &etcdv1.Quorum{BootstrapUrl: "https://127.0.9.1:2389"})
	if err := setAsideIfLater(t.Context(), first, quiet); err != nil || !there() {
		t.Fatalf("%v, data is there: %t", err, there())
	}
	stop()
	serve(t, other, &etcdv1.Quorum{RecoveryTime: timestamppb.New(before), BootstrapUrl: "https://127.0.9.2:2389"})
	serve(t, last, &etcdv1.Quorum{
		RecoveryTime: timestamppb.New(then), BootstrapUrl: "https://127.0.9.3:2389", Endpoints: []string{
			"https://127.0.9.3:2379",
		},
	})
	// While it runs it learns of the recovery, and begins again.
	if err := awaitLater(t.Context(), first, quiet); !errors.Is(err, errLater) {
		t.Fatalf("awaitLater = %v, want %v", err, errLater)
	}
	if err := setAsideIfLater(t.Context(), first, quiet); err != nil || there() {
		t.Fatalf("%v, data is there: %t", err, there())
	}
	if m := first.Member; m.First != "127.0.9.3" || !m.Recovered.Equal(then) {
		t.Errorf("%+v: want what was recovered last", m)
	}
	raw, err := os.ReadFile(first.Service(topology.Scheduler, "endpoints"))
	if err != nil || string(raw) != "https://127.0.9.3:2379\n" {
		t.Errorf("endpoints %q, %v", raw, err)
	}
	// Now it knows of the last one, and says which host does not.
	later, wrong := others(t.Context(), first, first.Member.Recovered)
	if later != nil || len(wrong) != 1 || !strings.HasPrefix(wrong[0], "127.0.9.2:6443: ") {
		t.Errorf("%v, %q", later, wrong)
	}
}

func TestAnInterruptedRecoveryIsLeftForALaterOne(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	made := time.Unix(1_900_000_000, 0).UTC()
	first := newHost(t, "127.0.9.4")
	other := join(t, first, "b", "127.0.9.5")
	if _, err := first.AddGateway(other.Gateway()); err != nil {
		t.Fatal(err)
	}
	work := first.Service(topology.EtcdGuardian, "bootstrap", "restoring")
	if err := os.MkdirAll(work, 0o700); err != nil {
		t.Fatal(err)
	}
	ready := "token\netcd-before\n" + made.Format(time.RFC3339Nano) + "\n"
	if err := os.WriteFile(filepath.Join(work, "ready"), []byte(ready), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if err := setAsideIfLater(t.Context(), first, quiet); err == nil || !strings.Contains(err.Error(), "was cut off") {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("no other host answers")
	stop := serve(t, other, &etcdv1.Quorum{
		RecoveryTime: timestamppb.New(made.Add(-time.Second)), BootstrapUrl: "https://127.0.9.5:2389",
	})
	refused("another host was recovered before")
	stop()
	serve(t, other, &etcdv1.Quorum{
		RecoveryTime: timestamppb.New(made.Add(time.Second)), BootstrapUrl: "https://127.0.9.5:2389",
	})
	if err := setAsideIfLater(t.Context(), first, quiet); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(work); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was prepared is left: %v", err)
	}
}
