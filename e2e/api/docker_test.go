package api

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/e2e/harness"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// dockerProvides runs provider-docker until the test ends, and returns when it is ready.
func dockerProvides(t *testing.T, c *harness.Cluster, cluster string, flags ...string) (
	*harness.Provider, providerv1.ProviderServiceClient,
) {
	t.Helper()
	p := c.Provide("provider-docker", append(flags, "--cluster", cluster)...)
	cfg, err := c.Admin().Files().ClientTLS("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+p.Address(), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	provider := providerv1.NewProviderServiceClient(conn)
	answers(c, provider)
	return p, provider
}

// answers returns when the provider has its engine and image.
func answers(c *harness.Cluster, provider providerv1.ProviderServiceClient) {
	c.Wait(time.Minute, "provider-docker to have its engine and image", func(ctx context.Context) (bool, string, error) {
		_, err := provider.GetProviderInfo(ctx, &providerv1.GetProviderInfoRequest{}, grpc.WaitForReady(true))
		return err == nil, fmt.Sprint(err), nil
	})
}

// subnet makes a network with a subnet until the test ends, and returns its name.
func subnet(t *testing.T, engine *client.Client, name string) string {
	t.Helper()
	var err error
	for n := range 255 { // others may have the first ones
		pool := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 213, byte(n), 0}), 24)
		if _, err = engine.NetworkCreate(t.Context(), name, client.NetworkCreateOptions{
			IPAM: &network.IPAM{Config: []network.IPAMConfig{{Subnet: pool}}},
		}); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := engine.NetworkRemove(context.Background(), name, client.NetworkRemoveOptions{}); err != nil {
			t.Errorf("network %s is left: %v", name, err)
		}
	})
	return name
}

func TestTheDockerProviderKeepsTheRules(t *testing.T) {
	engine, cluster := harness.Docker(t)
	c := shared.Cluster(t)
	p, _ := dockerProvides(t, c, cluster)
	verified(t, c, p.Address(), "provider-docker", "DockerMachineProviderSpec")
	verified(t, c, p.Address(), "provider-docker", "DockerMachineProviderSpec", "network: "+subnet(t, engine, cluster))
	if left := harness.DockerContainers(t, engine, cluster); len(left) > 0 {
		t.Errorf("containers %q are left", left)
	}
}

// enginePath leads to the Docker engine, and ends a provider, or answers nothing, at chosen calls.
type enginePath struct {
	*httputil.ReverseProxy
	mu     sync.Mutex
	at     func(r *http.Request, before bool) bool // whether to end the provider now; nil: never
	end    func()
	silent atomic.Bool
}

// pathTo returns a path to the engine and its address.
func pathTo(t *testing.T, engine *client.Client) (*enginePath, string) {
	t.Helper()
	p := &enginePath{ReverseProxy: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "docker"}) },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return engine.Dialer()(ctx)
		}},
		FlushInterval: -1, // events are sent on at once
		ErrorLog:      log.New(io.Discard, "", 0),
	}}
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(listener) }() // until it is closed
	t.Cleanup(func() { server.Close() })
	return p, "unix://" + socket
}

// ServeHTTP implements http.Handler.
func (p *enginePath) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.silent.Load() {
		<-r.Context().Done()
		return
	}
	if p.hits(r, true) {
		return
	}
	if r.Method != http.MethodGet {
		r = r.WithContext(context.WithoutCancel(r.Context())) // the engine carries it out
	}
	if p.hits(r, false) {
		p.ReverseProxy.ServeHTTP(httptest.NewRecorder(), r)
		p.end()
		return
	}
	p.ReverseProxy.ServeHTTP(w, r)
}

// hits reports whether the provider ends at a call: it does so once, and here if that is before the call.
func (p *enginePath) hits(r *http.Request, before bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == nil || !p.at(r, before) {
		return false
	}
	p.at = nil
	if before {
		p.end()
	}
	return true
}

// once has the provider be killed at its next call with a method and an ending of the path, before the engine gets it
// or after it was carried out.
func (p *enginePath) once(provider *harness.Provider, method, suffix string, before bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = provider.Kill // the test waits for its end
	p.at = func(r *http.Request, now bool) bool {
		return now == before && r.Method == method && strings.HasSuffix(r.URL.Path, suffix)
	}
}

func TestAKilledDockerProviderContinues(t *testing.T) {
	engine, cluster := harness.Docker(t)
	c := shared.Cluster(t)
	path, address := pathTo(t, engine)
	p, provider := dockerProvides(t, c, cluster, "--docker-host", address)
	spec, err := structpb.NewStruct(map[string]any{
		"apiVersion": "windlass.dev/v1", "kind": "DockerMachineProviderSpec",
	})
	if err != nil {
		t.Fatal(err)
	}
	restart := func() {
		p.Ended() // it was killed
		p.Start()
		answers(c, provider)
	}
	for n, at := range []struct {
		method, suffix string
		before         bool
	}{
		{http.MethodPost, "/containers/create", true},
		{http.MethodPost, "/containers/create", false},
		{http.MethodPut, "/archive", true},
		{http.MethodPut, "/archive", false},
		{http.MethodPost, "/start", true},
		{http.MethodPost, "/start", false},
	} {
		name := fmt.Sprintf("%s %s before=%t", at.method, at.suffix, at.before)
		request := &providerv1.CreateInstanceRequest{
			RequestToken: fmt.Sprintf("%s-%d", cluster, n), ProviderSpec: spec,
			Machine:   &metav1.ObjectReference{Name: fmt.Sprintf("machine-%d", n), Uid: fmt.Sprintf("%s-%d", cluster, n)},
			Bootstrap: &providerv1.Bootstrap{Endpoints: []string{"192.0.2.1:6443"}, Token: "none", Role: "worker"},
		}
		path.once(p, at.method, at.suffix, at.before)
		if i, err := provider.CreateInstance(t.Context(), request); err == nil {
			t.Fatalf("%s: the killed provider made %v", name, i)
		}
		restart()
		made, err := provider.CreateInstance(t.Context(), request)
		if err != nil {
			t.Fatalf("%s: again: %v", name, err)
		}
		get := &providerv1.GetInstanceRequest{ProviderId: made.GetProviderId(), RequestToken: request.GetRequestToken()}
		c.Wait(time.Minute, name+": state Running", func(ctx context.Context) (bool, string, error) {
			i, err := provider.GetInstance(ctx, get)
			return i.GetState() == "Running", i.GetState(), err
		})
		if all := harness.DockerContainers(t, engine, cluster); len(all) != 1 {
			t.Fatalf("%s: containers %q, want one", name, all)
		}
		path.once(p, http.MethodDelete, "", at.before) // the removal of the container
		if _, err := provider.DeleteInstance(t.Context(), &providerv1.DeleteInstanceRequest{
			ProviderId: made.GetProviderId(), RequestToken: request.GetRequestToken(),
		}); err != nil && status.Code(err) != codes.Unavailable {
			t.Fatalf("%s: deletion: %v", name, err)
		}
		restart()
		c.Wait(time.Minute, name+": gone", func(ctx context.Context) (bool, string, error) {
			_, err := provider.GetInstance(ctx, get)
			return status.Code(err) == codes.NotFound && len(harness.DockerContainers(t, engine, cluster)) == 0, fmt.Sprint(err),
				nil
		})
		if i, err := provider.CreateInstance(t.Context(), request); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("%s: a creation after the deletion: %v, %v; want FAILED_PRECONDITION", name, i, err)
		}
	}
}

func TestASilentEngineTakesNoInstanceAway(t *testing.T) {
	engine, cluster := harness.Docker(t)
	c := shared.Cluster(t)
	path, address := pathTo(t, engine)
	_, provider := dockerProvides(t, c, cluster, "--docker-host", address)
	path.silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for name, call := range map[string]func() error{
		"GetInstance": func() error {
			_, err := provider.GetInstance(ctx, &providerv1.GetInstanceRequest{RequestToken: "a"})
			return err
		},
		"ListInstances": func() error {
			_, err := provider.ListInstances(ctx, &providerv1.ListInstancesRequest{})
			return err
		},
	} {
		if code := status.Code(call()); code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Errorf("%s: the code is %s, want UNAVAILABLE", name, code)
		}
	}
	c.Wait(time.Minute, "the provider to report it", func(ctx context.Context) (bool, string, error) {
		_, err := provider.GetProviderInfo(ctx, &providerv1.GetProviderInfoRequest{})
		return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "no answer from"), fmt.Sprint(err), nil
	})
	path.silent.Store(false)
	answers(c, provider)
}

// TestContainersJoinACluster is what docs/provider.md says of the Docker provider.
func TestContainersJoinACluster(t *testing.T) {
	engine, cluster := harness.Docker(t)
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p, _ := dockerProvides(t, c, cluster)
	c.Up("--set", "machine-api.peer=provider-docker="+p.Address())
	c.Wait(time.Minute, "the provider to be known", func(context.Context) (bool, string, error) {
		r := c.CLI("apply", "-f", filepath.Join(harness.Root(), "deploy", "examples", "docker", "workers.yaml"))
		return r.Code == 0, r.Stderr, nil
	})
	joined := func(without string) (names []string) {
		t.Helper()
		c.Wait(2*time.Minute, "two Ready nodes in containers", func(ctx context.Context) (bool, string, error) {
			nodes, err := c.Nodes(ctx)
			names = nil
			for _, n := range nodes {
				ready := slices.ContainsFunc(n.GetStatus().GetConditions(), func(c *nodev1.NodeCondition) bool {
					return c.GetType() == "Ready" && c.GetStatus() == "True"
				})
				if ready && strings.HasPrefix(n.GetSpec().GetProviderId(), "docker://"+cluster+"/") {
					names = append(names, n.GetMetadata().GetName())
				}
			}
			all := harness.DockerContainers(t, engine, cluster)
			return len(names) == 2 && len(all) == 2 && !slices.Contains(names, without), fmt.Sprint(names, all), err
		})
		return names
	}
	first := joined("")[0]
	c.DeleteMachine(first)
	second := joined(first)
	// A container that was removed at the engine: its machine fails, and its deletion succeeds.
	machine, err := c.Machine(t.Context(), second[0])
	if err != nil {
		t.Fatal(err)
	}
	id := machine.GetStatus().GetProviderStatus().GetFields()["containerId"].GetStringValue()
	if _, err := engine.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatalf("container %q: %v", id, err)
	}
	c.Wait(time.Minute, "the machine to be Failed", func(ctx context.Context) (bool, string, error) {
		m, err := c.Machine(ctx, second[0])
		return m.GetStatus().GetPhase() == "Failed", m.GetStatus().GetPhase(), err
	})
	c.DeleteMachine(second[0])
	joined(second[0])
	c.MustCLI("delete", "machineset", "containers")
	c.Wait(2*time.Minute, "all containers to be gone", func(context.Context) (bool, string, error) {
		all := harness.DockerContainers(t, engine, cluster)
		return len(all) == 0, fmt.Sprint(all), nil
	})
}
