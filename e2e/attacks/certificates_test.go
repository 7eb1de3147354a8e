package attacks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/e2e/harness"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// open is a watch of machines that has begun, and the connection that it came by.
type open struct {
	name  string
	conn  *grpc.ClientConn
	watch grpc.ServerStreamingClient[machinev1.WatchMachinesResponse]
}

// watches opens a watch through the gateway and one past it, and returns when both have sent something.
func watches(t *testing.T, who *harness.Caller) ([]open, error) {
	t.Helper()
	direct, err := who.Direct(topology.Port(topology.MachineAPI))
	if err != nil {
		return nil, err
	}
	out := []open{{name: "gateway", conn: who.Conn()}, {name: "machine-api", conn: direct}}
	for i := range out {
		if out[i].watch, err = machinev1.NewMachineServiceClient(out[i].conn).WatchMachines(t.Context(),
			&machinev1.WatchMachinesRequest{}); err != nil {
			return nil, err
		}
		if _, err := out[i].watch.Recv(); err != nil {
			return nil, fmt.Errorf("%s: %w", out[i].name, err)
		}
	}
	return out, nil
}

// end reads a watch to its end, which must come for the credentials, and calls once more on the same connection.
func (o open) end(t *testing.T, text string) {
	t.Helper()
	timer := time.AfterFunc(5*time.Minute, func() { _ = o.conn.Close() })
	defer timer.Stop()
	var err error
	for err == nil {
		_, err = o.watch.Recv()
	}
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: the watch ended with %v", o.name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := machinev1.NewMachineServiceClient(o.conn).ListMachines(ctx,
		&machinev1.ListMachinesRequest{}); err == nil {
		t.Errorf("%s: a call on the open connection is answered", o.name)
	}
}

func TestAnExpiredCertificateIsNotServedOnItsOpenConnections(t *testing.T) {
	c := shared.Cluster(t)
	var brief *harness.Caller
	var opened []open
	// On a busy host a short one may expire before all of its connections are used: then a longer one is tried.
	for life := 12 * time.Second; ; life *= 3 {
		brief = c.AsFor(life, "brief-"+life.String(), "system:masters")
		resp, err := brief.REST(t.Context(), http.MethodGet, "/v1/machines", "", nil)
		if err == nil && resp.Code != http.StatusOK {
			err = fmt.Errorf("REST: %d", resp.Code)
		}
		if err == nil {
			opened, err = watches(t, brief)
		}
		if err == nil {
			break
		}
		if life > 2*time.Minute {
			t.Fatal(err)
		}
	}
	for _, o := range opened {
		o.end(t, "expired")
	}
	// The connection of the REST client is kept open by it; the call may also meet its end.
	if resp, err := brief.REST(t.Context(), http.MethodGet, "/v1/machines", "", nil); err == nil &&
		resp.Code != http.StatusUnauthorized {
		t.Errorf("REST: %d %s", resp.Code, resp.Body)
	}
}

func TestARevokedUserIsRefusedAtOnceEverywhere(t *testing.T) {
	c := shared.Cluster(t)
	stolen := c.AsFor(time.Hour, "mallory", "system:masters")
	opened, err := watches(t, stolen)
	if err != nil {
		t.Fatal(err)
	}
	c.MustCLI("auth", "revoke", "--user", "mallory", "--reason", "laptop stolen")
	for _, o := range opened {
		o.end(t, "laptop stolen")
	}
	if resp, err := stolen.REST(t.Context(), http.MethodGet, "/v1/machines", "", nil); err == nil &&
		resp.Code != http.StatusUnauthorized {
		t.Errorf("REST: %d %s", resp.Code, resp.Body)
	}
	c.Wait(30*time.Second, "every service to have the entry on its disk", func(context.Context) (bool, string, error) {
		copies, err := filepath.Glob(c.Dir("services", "*", "revocations.json"))
		if err != nil || len(copies) < 9 {
			return false, fmt.Sprint(copies), err
		}
		for _, path := range copies {
			if raw, err := os.ReadFile(path); err != nil || !strings.Contains(string(raw), "mallory") {
				return false, path, err
			}
		}
		return true, "", nil
	})
	// What the user gets now is good.
	again := c.AsFor(time.Hour, "mallory", "system:masters")
	if err := listMachinesAs(t.Context(), again.Conn()); err != nil {
		t.Errorf("a certificate that was issued afterwards: %v", err)
	}

	// One certificate of two.
	cert, err := identity.ReadCertificate(again.Files().Cert)
	if err != nil {
		t.Fatal(err)
	}
	other := c.AsFor(time.Hour, "mallory", "system:masters")
	c.MustCLI("auth", "revoke", "--serial", identity.SerialNumber(cert))
	c.Wait(30*time.Second, "the refusal of the revoked one", func(ctx context.Context) (bool, string, error) {
		err := listMachinesAs(ctx, again.Conn())
		return status.Code(err) == codes.Unauthenticated, fmt.Sprint(err), nil
	})
	if err := listMachinesAs(t.Context(), other.Conn()); err != nil {
		t.Errorf("the other certificate of the user: %v", err)
	}
	for _, line := range strings.Split(strings.TrimSpace(c.MustCLI("get", "revocations", "--no-headers")), "\n") {
		c.MustCLI("delete", "revocation", strings.Fields(line)[0])
	}
}

func TestARevokedMachineIsRefusedUntilTheEntryIsDeleted(t *testing.T) {
	c := shared.Cluster(t)
	name := worker(t, c).GetMetadata().GetName()
	agent := c.AsNode(name)
	asks := func(ctx context.Context) error {
		_, err := machinev1.NewInfrastructureServiceClient(agent.Conn()).GetInfrastructure(ctx,
			&machinev1.GetInfrastructureRequest{Name: "cluster"})
		return err
	}
	if err := asks(t.Context()); err != nil {
		t.Fatal(err)
	}
	entry := strings.Fields(c.MustCLI("auth", "revoke", "--machine", name, "--reason", "stolen disk"))[0]
	defer func() { // the cluster is shared: its worker comes back
		c.MustCLI("delete", strings.Replace(entry, ".windlass.dev", "", 1))
		c.Wait(time.Minute, "the node to be ready again", func(ctx context.Context) (bool, string, error) {
			n, err := nodev1.NewNodeServiceClient(c.Conn()).GetNode(ctx, &nodev1.GetNodeRequest{Name: name})
			for _, condition := range n.GetStatus().GetConditions() {
				if condition.GetType() == "Ready" && condition.GetStatus() == "True" {
					return true, "", nil
				}
			}
			return false, fmt.Sprint(n.GetStatus().GetConditions()), err
		})
		c.Wait(30*time.Second, "its certificate to be accepted again", func(ctx context.Context) (bool, string, error) {
			err := asks(ctx)
			return err == nil, fmt.Sprint(err), nil
		})
	}()
	c.Wait(30*time.Second, "the refusal of the machine's certificate", func(ctx context.Context) (bool, string, error) {
		err := asks(ctx)
		return status.Code(err) == codes.Unauthenticated && strings.Contains(err.Error(), "stolen disk"), fmt.Sprint(err), nil
	})
	// its agent has the same certificate
	c.Wait(time.Minute, "the node to be silent", func(ctx context.Context) (bool, string, error) {
		n, err := nodev1.NewNodeServiceClient(c.Conn()).GetNode(ctx, &nodev1.GetNodeRequest{Name: name})
		for _, condition := range n.GetStatus().GetConditions() {
			if condition.GetType() == "Ready" && condition.GetStatus() != "True" {
				return true, "", nil
			}
		}
		return false, fmt.Sprint(n.GetStatus().GetConditions()), err
	})
}

func TestNoUserMayRevoke(t *testing.T) {
	c := shared.Cluster(t)
	r, err := c.As("edith", "windlass:editors").CLI("", "auth", "revoke", "--user", "admin")
	if err != nil || r.Code == 0 || !strings.Contains(r.Stderr, "Forbidden") {
		t.Errorf("an editor revokes the administrator: %d %v\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
}

func listMachinesAs(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := machinev1.NewMachineServiceClient(conn).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	return err
}

func TestAClusterThatWasOffForThreeDaysComesBack(t *testing.T) {
	c := harness.Second(t)
	before := c.MustCLI("get", "machines", "-A", "-o", "name")
	c.Down()
	if n := expire(t, c); n < 25 {
		t.Fatalf("%d certificates were made to expire", n)
	}
	if r := c.CLI("status"); !strings.Contains(r.Stdout, "Warning:") || !strings.Contains(r.Stdout, "expired 3 days ago") {
		t.Errorf("status says nothing of the certificates:\n%s%s", r.Stdout, r.Stderr)
	}
	c.Up()
	if after := c.MustCLI("get", "machines", "-A", "-o", "name"); after != before {
		t.Errorf("machines before:\n%s\nand after:\n%s", before, after)
	}
	if quorum := c.MustCLI("quorum"); strings.Count(quorum, "voter") < 3 {
		t.Errorf("the quorum is\n%s", quorum)
	}
}

// expire replaces every certificate of a cluster that is down by one of the same names that expired three days ago.
func expire(t *testing.T, c *harness.Cluster) (n int) {
	t.Helper()
	var authorities []*identity.Authority
	for _, name := range []string{"windlass", "etcd-client", "etcd-peer"} {
		a, err := identity.LoadAuthority(c.Dir("pki"), name)
		if err != nil {
			t.Fatal(err)
		}
		authorities = append(authorities, a)
	}
	for _, pattern := range []string{
		"admin/*.crt", "prometheus/*.crt", "services/*/tls/*.crt",
		"services/etcd-guardian/bootstrap/tls/*.crt", "services/provider-local/machines/*/pki/*.crt",
		"services/provider-local/machines/*/etcd/tls/*.crt",
	} {
		found, err := filepath.Glob(c.Dir(pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			old, err := identity.ReadCertificate(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range authorities {
				if !old.IsCA && a.Issued(old) {
					reissue(t, a, old, path)
					n++
				}
			}
		}
	}
	return n
}

func reissue(t *testing.T, a *identity.Authority, old *x509.Certificate, path string) {
	t.Helper()
	r := identity.Request{
		CommonName: old.Subject.CommonName, Organizations: old.Subject.Organization, DNSNames: old.DNSNames,
		IPs:       old.IPAddresses,
		NotBefore: time.Now().Add(-96 * time.Hour), Lifetime: 24 * time.Hour,
	}
	for _, u := range old.URIs {
		r.URI = u.String()
	}
	for _, u := range old.ExtKeyUsage {
		r.Server, r.Client = r.Server || u == x509.ExtKeyUsageServerAuth, r.Client || u == x509.ExtKeyUsageClientAuth
	}
	cert, key, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	for p, data := range map[string][]byte{path: cert, strings.TrimSuffix(path, ".crt") + ".key": key} {
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// shows returns the programs whose certificate is not of the one authority that is given.
func shows(c *harness.Cluster, a *identity.Authority) (wrong []string) {
	for _, service := range topology.Services() {
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", c.Address(service.Port), &tls.Config{
			RootCAs: a.Pool(), MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		})
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", service.Name, err))
			continue
		}
		conn.Close()
	}
	return wrong
}

func TestTheAPIAuthorityIsRotated(t *testing.T) {
	c := harness.Second(t)
	load := func() *identity.Authority {
		a, err := identity.LoadAuthority(c.Dir("pki"), "windlass")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	former := load()
	old, late := c.AsFor(time.Hour, "olga", "system:masters"), c.AsFor(time.Hour, "lars", "system:masters")
	writers := c.Write()

	for _, after := range []time.Duration{
		30 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
		600 * time.Millisecond, time.Second, 1500 * time.Millisecond,
	} {
		c.Interrupt(after, "auth", "rotate", "api")
		if status := c.MustCLI("auth", "rotate", "--status"); !strings.Contains(status, "windlass") {
			t.Fatalf("after a death after %v:\n%s", after, status)
		}
	}
	c.MustCLI("auth", "rotate", "api")
	next := load()
	if next.Hash() == former.Hash() {
		t.Fatal("the authority is the same")
	}
	if wrong := shows(c, next); len(wrong) > 0 {
		t.Errorf("not of the next authority: %v", wrong)
	}
	if err := listMachinesAs(t.Context(), old.Conn()); err != nil {
		t.Errorf("a certificate of the former authority before the end: %v", err)
	}

	for _, after := range []time.Duration{30 * time.Millisecond, 200 * time.Millisecond} {
		c.Interrupt(after, "auth", "rotate", "api", "--finish")
	}
	c.MustCLI("auth", "rotate", "api", "--finish")
	if wrong := shows(c, next); len(wrong) > 0 {
		t.Errorf("not of the next authority: %v", wrong)
	}
	// This caller has no connection yet, the other one had.
	for name, conn := range map[string]*grpc.ClientConn{
		"a new connection":   late.Conn(),
		"an open connection": old.Conn(),
	} {
		c.Wait(60*time.Second, "the refusal of a certificate of the former authority on "+name,
			func(ctx context.Context) (bool, string, error) {
				err := listMachinesAs(ctx, conn)
				return err != nil, "it is served", nil
			})
	}
	nora := c.AsFor(time.Hour, "nora", "system:masters").Conn()
	c.Wait(60*time.Second, "a call with a certificate of the next authority", // connections of the former one break off
		func(ctx context.Context) (bool, string, error) {
			err := listMachinesAs(ctx, nora)
			return err == nil, "", err
		})
	// A machine that is made now joins by the next authority, and the agents go on by theirs.
	c.MustCLI("scale", "machineset/workers", "--replicas=3")
	c.Wait(time.Minute, "six nodes that are ready", func(context.Context) (bool, string, error) {
		nodes := c.CLI("get", "nodes", "--no-headers")
		return strings.Count(nodes.Stdout, " Ready") == 6, nodes.Stdout + nodes.Stderr, nil
	})
	writers.Check()
}
