package serve_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// named answers with the host that it runs on.
type named struct {
	machinev1.UnimplementedMachineServiceServer
	host string
}

func (n named) GetMachine(context.Context, *machinev1.GetMachineRequest) (*machinev1.Machine, error) {
	return &machinev1.Machine{Kind: n.host}, nil
}

// fleet is processes on several hosts over one etcd, each host at a loopback address of its own.
type fleet struct {
	cluster
	etcd  *identity.Authority
	first string // URL of the member
}

func newFleet(t *testing.T) fleet {
	t.Helper()
	ca, err := identity.NewAuthority("etcd-client", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f := fleet{cluster: newCluster(t), etcd: ca}
	f.first = f.member(ca)
	return f
}

// config is that of a service on a host, whose number is the last of its address.
func (f fleet) config(name string, host byte) serve.Config {
	f.t.Helper()
	cfg := f.cluster.config(name)
	address := net.IPv4(127, 0, 0, host)
	f.issue(cfg.TLSDir, "tls", f.ca, identity.Request{
		CommonName: name, URI: identity.ServiceURI(name), IPs: []net.IP{address}, Server: true, Client: true,
	})
	f.issue(cfg.TLSDir, "etcd", f.etcd, identity.Request{CommonName: name, Client: true})
	f.write(filepath.Join(cfg.TLSDir, "etcd-ca.crt"), f.etcd.PEM())
	cfg.EtcdEndpoints = []string{f.first}
	cfg.Host = fmt.Sprintf("host%d", host)
	cfg.Listen, cfg.MetricsListen = address.String()+":0", ""
	return cfg
}

func TestProcessesOfSeveralHostsFindEachOther(t *testing.T) {
	f := newFleet(t)
	stop := map[byte]func() error{}
	for _, host := range []byte{1, 2} {
		p := newProcess(t, f.config("machine-api", host))
		machinev1.RegisterMachineServiceServer(p.Services, named{host: fmt.Sprintf("host%d", host)})
		stop[host] = start(t, p)
	}
	caller := newProcess(t, f.config("hook-broker", 2))
	start(t, caller)
	servetest.Await(t, func() string {
		list := caller.Directory.View().Endpoints["machine-api"]
		if len(list) == 2 && list[0].Ready && list[1].Ready {
			return ""
		}
		return fmt.Sprintf("endpoints of machine-api: %+v, want two that are ready", list)
	})
	conn, err := caller.Dial("machine-api")
	if err != nil {
		t.Fatal(err)
	}
	client := machinev1.NewMachineServiceClient(conn)
	ask := func() (string, error) {
		m, err := client.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: "default", Name: "m"})
		return m.GetKind(), err
	}
	servetest.Await(t, func() string { // the connection to the other one may be there first
		if host, err := ask(); err != nil || host != "host2" {
			return fmt.Sprintf("a call from host2 goes to %q, %v", host, err)
		}
		return ""
	})
	if err := stop[2](); err != nil {
		t.Error(err)
	}
	servetest.Await(t, func() string {
		if host, err := ask(); err != nil || host != "host1" {
			return fmt.Sprintf("a call while host2 has no machine-api: %q, %v", host, err)
		}
		return ""
	})
	servetest.Await(t, func() string {
		if list := caller.Directory.View().Endpoints["machine-api"]; len(list) != 1 {
			return fmt.Sprintf("endpoints of machine-api: %+v, want that of host1 alone", list)
		}
		return ""
	})
}

// What is announced is not trusted: the process at the address must be the service by its certificate.
func TestAnAnnouncedAddressOfAnotherServiceIsRefused(t *testing.T) {
	f := newFleet(t)
	impostor := newProcess(t, f.config("scheduler", 1))
	machinev1.RegisterMachineServiceServer(impostor.Services, named{host: "host1"})
	start(t, impostor)
	caller := newProcess(t, f.config("hook-broker", 2))
	start(t, caller)
	announced := discovery.NewAnnouncer(caller.Etcd, discovery.Endpoint{
		Service: "machine-api", Address: impostor.Address(), Host: "host1",
	}, caller.Log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- announced.Run(ctx) }()
	conn, err := caller.Dial("machine-api")
	if err != nil {
		t.Fatal(err)
	}
	client := machinev1.NewMachineServiceClient(conn)
	servetest.Await(t, func() string {
		_, err := client.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: "default", Name: "m"})
		if status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "the other side is not spiffe://") {
			return ""
		}
		return fmt.Sprintf("a call to scheduler as machine-api: %v", err)
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
