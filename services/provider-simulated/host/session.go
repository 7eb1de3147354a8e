package host

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
	"github.com/windlass-dev/windlass/services/provider-simulated/fleet"
)

const (
	// beatEvery and unansweredBeats are those of node-agent.
	beatEvery       = time.Second
	unansweredBeats = 5
	// renewAfter is the part of its lifetime after which a certificate is renewed.
	renewAfter = 0.8
)

// host is one instance; one goroutine uses it.
type host struct {
	instance *providerv1.Instance
	order    fleet.Order
	fate     fleet.NodeFate
	boot     string // ID of the boot
	log      *slog.Logger
	said     string // the error that was logged last

	key     *ecdsa.PrivateKey
	joined  *machinev1.JoinResponse // nil before the instance joined
	cert    tls.Certificate
	renewAt time.Time
}

// request returns a certificate request of the instance's key, which is made with the first one.
func (h *host) request() ([]byte, error) {
	if h.key == nil {
		var err error
		if h.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, err
		}
	}
	return x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: h.order.Machine}}, h.key)
}

// take notes the answer to a request.
func (h *host) take(r *machinev1.JoinResponse) error {
	cert := tls.Certificate{PrivateKey: h.key}
	for rest := r.GetAgentCertificate(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert.Certificate = append(cert.Certificate, block.Bytes)
	}
	if len(cert.Certificate) == 0 {
		return errors.New("the answer has no certificate")
	}
	var err error
	if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
		return err
	}
	issued := identity.IssuedAt(cert.Leaf)
	h.renewAt = issued.Add(time.Duration(renewAfter * float64(cert.Leaf.NotAfter.Sub(issued))))
	h.joined, h.cert = r, cert
	return nil
}

// join exchanges the instance's token for a certificate, at one of the gateways.
func (h *host) join(ctx context.Context, try int) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	endpoints := h.order.Bootstrap.GetEndpoints()
	token := h.order.Bootstrap.GetToken()
	at := strings.LastIndexByte(token, '.')
	if at < 0 || len(endpoints) == 0 {
		return errors.New("the instance was given no gateway, or a token without the hash of an authority")
	}
	request, err := h.request()
	if err != nil {
		return err
	}
	conn, err := connect(endpoints[try%len(endpoints)], func(name string) *tls.Config {
		return identity.PinnedTLS(token[at+1:], name)
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := machinev1.NewJoinServiceClient(conn).Join(ctx, &machinev1.JoinRequest{Token: token, AgentRequest: request})
	if err != nil {
		return err
	}
	return h.take(r)
}

// connect returns a connection to a gateway, with settings for its name. It connects with the first call.
func connect(endpoint string, settings func(name string) *tls.Config) (*grpc.ClientConn, error) {
	endpoint = strings.TrimPrefix(endpoint, "https://")
	name, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, err
	}
	cfg := identity.WithURI(settings(name), identity.ServiceURI(topology.Gateway))
	return grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		dial.Reconnect(firstPause, longPause, longPause), dial.KeepAlive(dial.PingTimeout),
		// A node says little, and there are thousands.
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
}

// session is the node's presence at one gateway, until something fails.
func (h *host) session(ctx context.Context, try int) error {
	endpoints := h.joined.GetGateways()
	if len(endpoints) == 0 {
		endpoints = h.order.Bootstrap.GetEndpoints()
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(h.joined.GetAuthority()) {
		return errors.New("the cluster's authority cannot be read")
	}
	cert := h.cert
	conn, err := connect(endpoints[try%len(endpoints)], func(name string) *tls.Config {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, ServerName: name, RootCAs: roots, Certificates: []tls.Certificate{cert},
		}
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	group, ctx := errgroup.WithContext(ctx)
	nodes := nodev1.NewNodeAgentServiceClient(conn)
	if err := h.register(ctx, nodes); err != nil {
		return err
	}
	group.Go(func() error { return h.beat(ctx, nodes) })
	group.Go(func() error { return h.runPods(ctx, schedulingv1.NewPodAgentServiceClient(conn)) })
	var renewed *machinev1.JoinResponse
	group.Go(func() error {
		r, err := h.certify(ctx, machinev1.NewJoinServiceClient(conn))
		if err == nil {
			renewed, err = r, errRenewed
		}
		return err
	})
	if err := group.Wait(); renewed == nil {
		return err
	}
	return h.take(renewed)
}

// errRenewed ends a session whose certificate is replaced.
var errRenewed = errors.New("the certificate was renewed")

// certify renews the certificate in time.
func (h *host) certify(ctx context.Context, joins machinev1.JoinServiceClient) (*machinev1.JoinResponse, error) {
	// A timer stops while the process is stopped, the validity of certificates does not.
	for left := time.Until(h.renewAt); left > 0; left = time.Until(h.renewAt) {
		if !backoff.Sleep(ctx, min(left, time.Minute)) {
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	request, err := h.request()
	if err != nil {
		return nil, err
	}
	return joins.Renew(ctx, &machinev1.RenewRequest{AgentRequest: request})
}

// register makes the node known.
func (h *host) register(ctx context.Context, nodes nodev1.NodeAgentServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	name := h.joined.GetNodeName()
	_, err := nodes.RegisterNode(ctx, &nodev1.RegisterNodeRequest{
		Name: name, ProviderId: h.joined.GetProviderId(),
		Machine: &metav1.ObjectReference{
			ApiVersion: "machine.openshift.io/v1beta1", Kind: "Machine",
			Namespace: h.joined.GetMachineNamespace(), Name: h.joined.GetMachineName(),
		},
		Labels: map[string]string{
			"kubernetes.io/hostname": name, "kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH,
		},
		Status: &nodev1.NodeStatus{
			Capacity: h.order.Capacity, Allocatable: h.order.Capacity, Addresses: h.instance.GetAddresses(),
			NodeInfo: &nodev1.NodeSystemInfo{
				SystemUuid: h.joined.GetProviderId(), BootId: h.boot, OsImage: "simulated",
				ContainerRuntimeVersion: "simulated://" + version.Number, KubeletVersion: "windlass-" + version.Number,
				OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
			},
		},
	})
	return err
}

// beat says once a second that the node lives.
func (h *host) beat(ctx context.Context, nodes nodev1.NodeAgentServiceClient) error {
	stream, err := nodes.Heartbeat(ctx)
	if err != nil {
		return err
	}
	var open atomic.Int32
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			r, err := stream.Recv()
			if err != nil {
				return err
			}
			open.Store(0)
			if r.GetCommand() == "Reboot" && r.GetBootId() == h.boot {
				return errReboot
			}
		}
	})
	group.Go(func() error {
		for first := true; ; first = false {
			if open.Add(1) > unansweredBeats {
				return errors.New("heartbeats are not answered")
			}
			err := stream.Send(&nodev1.HeartbeatRequest{Name: h.joined.GetNodeName(), BootId: h.boot})
			if errors.Is(err, io.EOF) {
				<-ctx.Done() // the receiver says why
				return ctx.Err()
			}
			if err != nil {
				return err
			}
			pause := beatEvery
			if first {
				pause = mathrand.N(beatEvery) // nodes that came together do not speak at the same moment ever after
			}
			if !backoff.Sleep(ctx, pause) {
				return ctx.Err()
			}
		}
	})
	return group.Wait()
}
