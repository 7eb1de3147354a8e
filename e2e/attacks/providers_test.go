package attacks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/identity"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// forger is a provider that claims the kind of provider spec and the machines of provider-local. It notes what it is
// asked for.
type forger struct {
	providerv1.UnimplementedProviderServiceServer
	instance *providerv1.Instance

	mu    sync.Mutex
	ready bool // it says who it is
	calls []string
}

func (f *forger) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ready {
		return nil, status.Error(codes.Unavailable, "not yet")
	}
	return &providerv1.GetProviderInfoResponse{
		Name: "forged", Platform: "Local", ProviderSpecKinds: []string{"LocalMachineProviderSpec"},
	}, nil
}

func (f *forger) GetInstance(context.Context, *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	return f.instance, nil
}

func (f *forger) ListInstances(context.Context, *providerv1.ListInstancesRequest) (*providerv1.ListInstancesResponse,
	error,
) {
	return &providerv1.ListInstancesResponse{Instances: []*providerv1.Instance{f.instance}}, nil
}

func (f *forger) WatchInstances(_ *providerv1.WatchInstancesRequest,
	s grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	if err := s.Send(&providerv1.WatchInstancesResponse{Instance: f.instance}); err != nil {
		return err
	}
	if err := s.Send(&providerv1.WatchInstancesResponse{Synced: true}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// asked returns the methods that the forger was called with.
func (f *forger) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(f.calls)))
}

// watched returns how many watches of its instances were opened.
func (f *forger) watched() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call == "WatchInstances" {
			n++
		}
	}
	return n
}

// serve serves the forger at a host with a certificate until the test ends, and returns its address.
func (f *forger) serve(t *testing.T, host string, files identity.Files) string {
	t.Helper()
	own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	note := func(method string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls = append(f.calls, method[strings.LastIndex(method, "/")+1:])
	}
	s := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{own}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13,
		})),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
			error,
		) {
			note(info.FullMethod)
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
		) error {
			note(info.FullMethod)
			return next(srv, s)
		}))
	providerv1.RegisterProviderServiceServer(s, f)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// serving issues a certificate by the cluster's authority that is good for servers on this host. No caller of the
// cluster is issued one for nodes or users: only the name in it is wrong for a provider.
func serving(t *testing.T, c *harness.Cluster, r identity.Request) identity.Files {
	t.Helper()
	r.IPs, r.Server, r.Client, r.Lifetime = []net.IP{net.IPv4(127, 0, 0, 1)}, true, true, time.Hour
	cert, key, err := authorityOf(t, c, "windlass").Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := identity.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for path, text := range map[string][]byte{f.Cert: cert, f.Key: key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestAForgedProviderChangesNothing connects machine-api with listeners that have another's certificate, and with a
// provider that claims what provider-local has. Those of a node and a user are good for clients only, without an
// address; each of the others lacks nothing but the name.
func TestAForgedProviderChangesNothing(t *testing.T) {
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	c.Settle(3 * time.Minute)
	victim := worker(t, c)
	meta := victim.GetMetadata()
	forged := &providerv1.Instance{
		ProviderId: "forged://1", MachineName: meta.GetName(), MachineUid: meta.GetUid(), RequestToken: meta.GetUid(),
		State: "Running", Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.66"}},
	}

	pki := c.Dir("services", "provider-local", "machines", meta.GetName(), "pki")
	eve := c.As("eve").Files()
	own := filepath.Join(t.TempDir(), "tls")
	c.MustCLI("auth", "issue", "--service", "provider-forged", "--host", "127.0.0.1", "--out", own)
	certified := identity.Files{Cert: filepath.Join(own, "tls.crt"), Key: filepath.Join(own, "tls.key")}
	forgers, flags := map[string]*forger{}, []string{}
	for name, files := range map[string]identity.Files{
		"provider-node": {Cert: filepath.Join(pki, "agent.crt"), Key: filepath.Join(pki, "agent.key")},
		"provider-user": eve,
		"provider-serving-node": serving(t, c, identity.Request{
			CommonName: identity.NodeUser(meta.GetName()), Organizations: []string{identity.GroupNodes},
			URI: identity.NodeURI(meta.GetName(), meta.GetUid()),
		}),
		"provider-serving-user": serving(t, c, identity.Request{CommonName: "eve", URI: identity.UserURI("eve")}),
		"provider-service": {
			Cert: c.Dir("services", "scheduler", "tls", "tls.crt"),
			Key:  c.Dir("services", "scheduler", "tls", "tls.key"),
		},
		"provider-other":  certified, // of another provider
		"provider-forged": certified,
	} {
		host := "127.0.0.1"
		if name == "provider-service" {
			host, _, _ = net.SplitHostPort(c.Gateway()) // that the certificate is for
		}
		f := &forger{instance: forged, ready: name != "provider-forged"}
		forgers[name] = f
		flags = append(flags, "--set", "machine-api.peer="+name+"="+f.serve(t, host, files))
	}
	c.Up(flags...)
	message := func(ctx context.Context) (string, error) {
		o, err := updatev1.NewClusterOperatorServiceClient(c.Conn()).GetClusterOperator(ctx,
			&updatev1.GetClusterOperatorRequest{Name: "machine-api"})
		for _, condition := range o.GetStatus().GetConditions() {
			if condition.GetType() == "Degraded" {
				return condition.GetMessage(), err
			}
		}
		return "", err
	}
	c.Wait(time.Minute, "the providers with another's certificate to be reported", func(ctx context.Context) (bool, string,
		error,
	) {
		text, err := message(ctx)
		var answered []string
		for name := range forgers {
			if !strings.Contains(text, name+" has not answered") {
				answered = append(answered, name)
			}
		}
		slices.Sort(answered)
		return err == nil && len(answered) == 0 && !strings.Contains(text, "provider-local"),
			fmt.Sprintf("%q are not reported: %s", answered, text), err
	})
	last := forgers["provider-forged"]
	last.mu.Lock()
	last.ready = true
	last.mu.Unlock()
	c.Wait(time.Minute, "the provider that claims another's kind to be reported", func(ctx context.Context) (bool, string,
		error,
	) {
		text, err := message(ctx)
		return strings.Contains(text, "provider-forged is not in force for kind LocalMachineProviderSpec") &&
			slices.Contains(last.asked(), "WatchInstances"), text, err
	})
	// After a restart it answers first, and is not in force either.
	before := last.watched()
	if err := errors.Join(c.Pause("provider-local"), c.Kill("machine-api")); err != nil {
		t.Fatal(err)
	}
	c.Wait(time.Minute, "another watch of the forged instances", func(context.Context) (bool, string, error) {
		return last.watched() > before, "", nil
	})
	if err := c.Continue("provider-local"); err != nil {
		t.Fatal(err)
	}
	c.Hold(5*time.Second, "provider-local in force", func(ctx context.Context) (string, error) {
		text, err := message(ctx)
		if !strings.Contains(text, "provider-local is not in force") {
			text = ""
		}
		return text, err
	})

	same := func(ctx context.Context) (string, error) {
		m, err := c.Machine(ctx, meta.GetName())
		switch {
		case err != nil:
			return "", err
		case m.GetSpec().GetProviderId() != victim.GetSpec().GetProviderId():
			return "its instance is " + m.GetSpec().GetProviderId(), nil
		case m.GetStatus().GetPhase() != "Running":
			return "it is " + m.GetStatus().GetPhase(), nil
		}
		for _, a := range m.GetStatus().GetAddresses() {
			if a.GetAddress() == "192.0.2.66" {
				return "it has the forged address", nil
			}
		}
		return "", nil
	}
	c.Hold(5*time.Second, "machine "+meta.GetName()+" as it was", same)
	c.DeleteMachine(meta.GetName())
	c.Settle(3 * time.Minute)
	list, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(t.Context(), &machinev1.ListMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.GetItems() {
		if id := m.GetSpec().GetProviderId(); !strings.HasPrefix(id, "local://") {
			t.Errorf("machine %s has instance %q", m.GetMetadata().GetName(), id)
		}
	}
	for name, f := range forgers {
		calls := f.asked()
		if name != "provider-forged" && len(calls) > 0 {
			t.Errorf("%s, with another's certificate, was asked for %v", name, calls)
		}
		if slices.Contains(calls, "CreateInstance") || slices.Contains(calls, "DeleteInstance") {
			t.Errorf("%s was asked for %v", name, calls)
		}
	}
}
