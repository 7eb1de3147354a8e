package hostagent

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

// renewals signs the certificates of hosts with an authority; a nil one answers without a certificate.
type renewals struct {
	machinev1.UnimplementedHostJoinServiceServer
	authority *identity.Trust
}

func (s *renewals) RenewHost(_ context.Context, r *machinev1.RenewHostRequest) (*machinev1.JoinHostResponse, error) {
	if s.authority == nil {
		return &machinev1.JoinHostResponse{}, nil
	}
	csr, err := identity.ParseRequest(r.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	cert, err := s.authority.Sign(csr, identity.Request{
		CommonName: "h1", URI: identity.HostURI("h1", "u"), Client: true, Lifetime: time.Hour,
	})
	return &machinev1.JoinHostResponse{AgentCertificate: cert, Authority: s.authority.Bundle()}, err
}

func TestACertificateIsRenewedForTheSameKey(t *testing.T) {
	authority, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := &renewals{}
	server := grpc.NewServer()
	machinev1.RegisterHostJoinServiceServer(server, service)
	go server.Serve(l) //nolint:errcheck
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	dir := t.TempDir()
	files := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	if err := os.WriteFile(files.Cert, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := New(Config{Name: "h1", Dir: dir, Files: files, Log: slog.New(slog.DiscardHandler)})
	if err := a.renewOnce(t.Context(), conn); err == nil {
		t.Error("an answer without a certificate is taken")
	}
	if have, err := os.ReadFile(files.Cert); err != nil || string(have) != "before" {
		t.Errorf("after it the certificate is %q, %v", have, err)
	}
	service.authority = &identity.Trust{Authority: authority}
	var serials []string
	for range 2 {
		if err := a.renewOnce(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		if _, err := files.ClientTLS("gateway"); err != nil { // of the key
			t.Fatal(err)
		}
		cert, err := identity.ReadCertificate(files.Cert)
		if err != nil {
			t.Fatal(err)
		}
		serials = append(serials, cert.SerialNumber.String())
	}
	if serials[0] == serials[1] {
		t.Error("the certificate is not another one")
	}
}

func TestTheOwnGatewayComesFirst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateways")
	c := Config{Gateway: "192.0.2.2:6443", GatewaysFile: file}
	if got, err := c.gateways(); err != nil || !slices.Equal(got, []string{"192.0.2.2:6443"}) {
		t.Errorf("without a file: %q, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("192.0.2.1:6443\n192.0.2.2:6443\n[2001:db8::1]:6443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"192.0.2.2:6443", "192.0.2.1:6443", "[2001:db8::1]:6443"}
	if got, err := c.gateways(); err != nil || !slices.Equal(got, want) {
		t.Errorf("gateways = %q, %v; want %q", got, err, want)
	}
}
