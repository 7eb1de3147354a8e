// Package client calls a cluster's gateway without knowing the kinds: which there are, how they are spelled and which
// methods they have is read from the linked descriptors.
package client

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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// Target says where a cluster is and as whom to call it.
type Target struct {
	Cluster string // name of a cluster on this machine; used where Server is empty
	Server  string // host and port of a gateway
	CA      string // file of the authority
	Cert    string // file of the caller's certificate
	Key     string // file of its key
	Token   string // bearer token, instead of a certificate

	account string // in a pod: the directory of its service account, with a token that is renewed

	Warn func(text string) // receives the cluster's warnings; nil discards them
}

// Environment variables that fill what a Target leaves empty; `windlass env` prints them.
const (
	EnvCluster = "WINDLASS_CLUSTER"
	EnvServer  = "WINDLASS_SERVER"
	EnvCA      = "WINDLASS_CACERT"
	EnvCert    = "WINDLASS_CERT"
	EnvKey     = "WINDLASS_KEY"
	EnvToken   = "WINDLASS_TOKEN"
	envAccount = "WINDLASS_SERVICEACCOUNT" // set by the agent in the containers of pods
)

// inPod returns the directory of the pod's service account if that says which cluster is meant, and as whom to call it:
// in a container, unless a flag or a variable says something else.
func (t Target) inPod() string {
	if t.Cluster != "" || t.Server != "" || t.Token != "" || t.Cert != "" ||
		os.Getenv(EnvToken) != "" || os.Getenv(EnvCert) != "" || os.Getenv(EnvServer) == "" {
		return ""
	}
	return os.Getenv(envAccount)
}

// PodNamespace returns the namespace of the pod that this process runs in, if the pod's service account is used; else
// "".
func (t Target) PodNamespace() string {
	dir := t.inPod()
	if dir == "" {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// errNoCluster means that nothing says which cluster is meant, or that there is none of that name.
var errNoCluster = errors.New("no cluster")

// Resolve fills in what is left empty: from the environment, and from the directory of the cluster on this machine.
func (t Target) Resolve() (Target, error) {
	t.account = t.inPod()
	for _, v := range []struct {
		field *string
		env   string
	}{{&t.Server, EnvServer}, {&t.CA, EnvCA}, {&t.Cert, EnvCert}, {&t.Key, EnvKey}, {&t.Token, EnvToken}} {
		// A cluster named by a flag is that cluster, whatever else the environment speaks of.
		if *v.field == "" && t.Cluster == "" {
			*v.field = os.Getenv(v.env)
		}
	}
	if t.Cluster == "" {
		t.Cluster = os.Getenv(EnvCluster)
	}
	if t.Server != "" {
		return t, t.check()
	}
	named := t.Cluster != ""
	if !named {
		t.Cluster = cluster.DefaultName
	}
	c, err := cluster.Open(t.Cluster)
	if errors.Is(err, cluster.ErrNone) && !named {
		if at, err := t.AtHost(cluster.HostDir()); err == nil || errors.Is(err, errWorker) {
			return at, err
		}
	}
	if errors.Is(err, cluster.ErrNone) {
		return t, fmt.Errorf("%w named %q on this machine: %s, or say --server", errNoCluster, t.Cluster, cluster.Others())
	}
	if err != nil {
		return t, err
	}
	return t.of(c, []string{c.Gateway()}), nil
}

// errWorker means that this host has no credentials for its cluster.
var errWorker = errors.New("call the cluster from a control-plane host, or say --server")

// AtHost fills in how the cluster of the host in a directory is called from it. The error wraps cluster.ErrNone if the
// host is in none; a worker cannot call its cluster.
func (t Target) AtHost(dir string) (Target, error) {
	h, err := cluster.OpenHost(dir)
	if err != nil {
		return t, err
	}
	if h.Member.Worker {
		return t, fmt.Errorf("host %s is a worker: %w", h.Member.Name, errWorker)
	}
	return t.of(h, h.Gateways()), nil
}

// Named reports whether a flag or a variable says which cluster is called, or as whom.
func (t Target) Named() bool {
	for _, env := range []string{EnvCluster, EnvServer, EnvCert, EnvToken} {
		if os.Getenv(env) != "" {
			return true
		}
	}
	return t.Cluster != "" || t.Server != "" || t.Cert != "" || t.Token != ""
}

// check returns an error unless the given servers can be called.
func (t Target) check() error {
	for _, server := range t.servers() {
		if host, port, err := net.SplitHostPort(server); err != nil || host == "" || port == "" {
			return fmt.Errorf("--server %q: must be host:port, such as 192.0.2.1:6443 or [2001:db8::1]:6443", server)
		}
	}
	if t.CA == "" {
		return fmt.Errorf("--server is given without --cacert: the certificate authority to trust (or $%s)", EnvCA)
	}
	return nil
}

// servers returns the addresses of the target's gateways.
func (t Target) servers() (out []string) {
	for server := range strings.SplitSeq(t.Server, ",") {
		out = append(out, strings.TrimPrefix(strings.TrimSpace(server), "https://"))
	}
	return out
}

// URL returns the first of the target's gateways.
func (t Target) URL() string { return "https://" + t.servers()[0] }

// of fills in how a cluster is called from this machine, by its administrator if no other user is named.
func (t Target) of(c *cluster.Cluster, gateways []string) Target {
	f := c.AdminFiles()
	t.Server = strings.Join(gateways, ",")
	if t.CA == "" {
		t.CA = f.CA
	}
	if t.Cert == "" && t.Token == "" {
		t.Cert, t.Key = f.Cert, f.Key
	}
	return t
}

// Dial returns a connection to a resolved target's gateway. It sends nothing before the first call, and only to the
// gateway: a server with the certificate of another service is rejected.
func Dial(t Target) (*grpc.ClientConn, error) {
	files := identity.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}
	var cfg *tls.Config
	var err error
	if t.Cert != "" {
		cfg, err = files.ClientTLS("")
	} else {
		cfg, err = identity.TrustOnly(t.CA)
	}
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(topology.Gateway)))),
		dial.Reconnect(50*time.Millisecond, 500*time.Millisecond, 5*time.Second),
		dial.KeepAlive(dial.PingTimeout),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(dial.MaxMessage)),
	}
	if t.Warn != nil {
		opts = append(opts, grpc.WithUnaryInterceptor(warnings(t.Warn)))
	}
	servers := t.servers()
	switch {
	case t.account != "":
		opts = append(opts, grpc.WithPerRPCCredentials(accountToken(t.account)))
		// Those of the directory of its service account come after that of the pod's variable.
		if text, err := os.ReadFile(filepath.Join(t.account, "gateways")); err == nil {
			servers = append(servers, strings.Fields(string(text))...)
		}
		return grpc.NewClient(scheme+":///gateways", append(opts, grpc.WithResolvers(gateways(servers)))...)
	case t.Token != "":
		opts = append(opts, grpc.WithPerRPCCredentials(bearer(t.Token)))
	}
	if len(servers) == 1 {
		return grpc.NewClient("passthrough:///"+servers[0], opts...)
	}
	return grpc.NewClient(scheme+":///gateways", append(opts, grpc.WithResolvers(gateways(ranked(servers, opts))))...)
}

// scheme is that of several gateways.
const scheme = "windlass"

// rankPatience bounds how long gateways are asked whether they serve: what they do not say by then does not count.
const rankPatience = time.Second

// ranked returns gateways with those first that serve, then those that say that they do not, as all do without a
// majority of etcd: such a one still answers what it can. The others may not be there.
func ranked(servers []string, opts []grpc.DialOption) []string {
	ctx, cancel := context.WithTimeout(context.Background(), rankPatience)
	defer cancel()
	ranks := make([]int, len(servers))
	var group sync.WaitGroup
	for i, server := range servers {
		group.Go(func() {
			ranks[i] = 2
			conn, err := grpc.NewClient("passthrough:///"+server, opts...)
			if err != nil {
				return
			}
			defer conn.Close()
			r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			switch {
			case err != nil:
			case r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
				if ranks[i] = 0; i == 0 {
					cancel() // there is none that is better
				}
			default:
				ranks[i] = 1
			}
		})
	}
	group.Wait()
	var out []string
	for rank := range 3 {
		for i, server := range servers {
			if ranks[i] == rank {
				out = append(out, server)
			}
		}
	}
	return out
}

// gateways returns what resolves to gateways. One that does not answer is passed over.
func gateways(list []string) resolver.Builder {
	var state resolver.State
	for i, endpoint := range list {
		if host, _, err := net.SplitHostPort(endpoint); err == nil && slices.Index(list, endpoint) == i {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: endpoint, ServerName: host})
		}
	}
	b := manual.NewBuilderWithScheme(scheme)
	b.InitialState(state)
	return b
}

// accountToken is the directory of a service account, whose token is sent with each call as it is then.
type accountToken string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (a accountToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := os.ReadFile(filepath.Join(string(a), "token"))
	if err != nil {
		return nil, status.Errorf(codes.Unauthenticated, "the token of the pod's service account cannot be read: %v", err)
	}
	return bearer(token).GetRequestMetadata(context.Background())
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (accountToken) RequireTransportSecurity() bool { return true }

// warnings passes on what the cluster warns of with its answers.
func warnings(warn func(string)) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		var header metadata.MD
		err := invoke(ctx, method, req, resp, conn, append(opts, grpc.Header(&header))...)
		for _, text := range header.Get(rpcerr.WarningKey) {
			warn(text)
		}
		return err
	}
}

// bearer sends a token with each call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: a token never travels in the clear.
func (bearer) RequireTransportSecurity() bool { return true }
