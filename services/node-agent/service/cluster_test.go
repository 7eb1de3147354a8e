package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// cluster is what an agent sees of a cluster: one gateway, and behind it the services that sign, receive reports and
// send commands. It keeps what was reported.
type cluster struct {
	machinev1.UnimplementedJoinServiceServer
	nodev1.UnimplementedNodeAgentServiceServer
	etcdv1.UnimplementedQuorumServiceServer
	schedulingv1.UnimplementedPodAgentServiceServer

	t         *testing.T
	ground    *servetest.Ground
	authority *identity.Authority // signs for all three purposes
	lifetime  time.Duration
	address   string
	server    *grpc.Server
	settings  *tls.Config

	mu        sync.Mutex
	token     string
	loseJoin  int               // answers to Join that get lost
	keys      map[string]int    // public keys of joins, and how often each came
	renewals  int               // certificates renewed
	nodes     map[string]*heard // by name
	gateways  []string          // the list that goes with certificates
	offers    []*etcdv1.AttendMemberRequest
	certified int                               // certificates of members that were signed
	attend    chan *etcdv1.AttendMemberResponse // commands for the connected agent; unbuffered
	pod       *schedulingv1.Pod                 // bound to every node; nil for none
	services  []*schedulingv1.ServiceEndpoints  // nil for a cluster that has no such call
}

type heard struct {
	registration  *nodev1.RegisterNodeRequest
	registrations int
	beats         int
	boot          string
	reboot        string // boot to end
	conditions    []*nodev1.NodeCondition
}

// newCluster runs a cluster whose gateway shows a certificate of gateway, by default its own.
func newCluster(t *testing.T, gateway string) *cluster {
	t.Helper()
	ground := servetest.New(t)
	c := &cluster{
		t: t, authority: ground.Authority, lifetime: time.Hour, keys: map[string]int{}, nodes: map[string]*heard{},
		attend: make(chan *etcdv1.AttendMemberResponse),
	}
	c.token = "uid-1.00ff." + c.authority.Hash()
	var err error
	if c.settings, err = ground.Files(servetest.Service(gateway)).ServerTLS(tls.VerifyClientCertIfGiven); err != nil {
		t.Fatal(err)
	}
	c.ground = ground
	c.listen("127.0.0.1:0")
	t.Cleanup(func() { c.server.Stop() })
	return c
}

func (c *cluster) listen(address string) { c.address, c.server = c.serve(address, c.settings) }

// serve runs one more gateway, with settings that may be another server's.
func (c *cluster) serve(address string, settings *tls.Config) (string, *grpc.Server) {
	c.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(settings)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	machinev1.RegisterJoinServiceServer(s, c)
	nodev1.RegisterNodeAgentServiceServer(s, c)
	etcdv1.RegisterQuorumServiceServer(s, c)
	schedulingv1.RegisterPodAgentServiceServer(s, c)
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), s
}

// another runs a gateway with the certificate that r asks for until the test ends.
func (c *cluster) another(r identity.Request) (string, *grpc.Server) {
	c.t.Helper()
	settings, err := c.ground.Files(r).ServerTLS(tls.VerifyClientCertIfGiven)
	if err != nil {
		c.t.Fatal(err)
	}
	address, s := c.serve("127.0.0.1:0", settings)
	c.t.Cleanup(s.Stop)
	return address, s
}

// restart is a gateway that went and came again.
func (c *cluster) restart() {
	c.server.Stop()
	c.listen(c.address)
}

// locked runs f with the cluster's lock.
func (c *cluster) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func caller(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.PeerCertificates) == 0 {
		return ""
	}
	who, err := identity.FromCertificate(info.State.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return who.User
}

func (c *cluster) Join(_ context.Context, r *machinev1.JoinRequest) (*machinev1.JoinResponse, error) {
	csr, err := x509.ParseCertificateRequest(r.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.GetToken() != c.token {
		return nil, rpcerr.BadToken("no such token")
	}
	c.keys[string(csr.RawSubjectPublicKeyInfo)]++
	if c.loseJoin > 0 {
		c.loseJoin--
		return nil, rpcerr.Unavailable("the answer was lost")
	}
	return c.certify("m-0", r.GetAgentRequest())
}

func (c *cluster) Renew(ctx context.Context, r *machinev1.RenewRequest) (*machinev1.JoinResponse, error) {
	if caller(ctx) != identity.NodeUser("m-0") {
		return nil, rpcerr.Forbidden("not the node")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewals++
	return c.certify("m-0", r.GetAgentRequest())
}

func (c *cluster) certify(name string, agent []byte) (*machinev1.JoinResponse, error) {
	out := &machinev1.JoinResponse{
		NodeName: name, MachineNamespace: "openshift-machine-api", MachineName: name, ProviderId: "local://test/" + name,
		Role: "worker", Address: "127.0.0.1", Authority: c.authority.PEM(), Gateways: c.gateways,
	}
	var err error
	out.AgentCertificate, err = c.sign(agent, identity.Request{
		CommonName: name, URI: identity.NodeURI(name, name+"-uid"),
		Client: true,
	})
	return out, err
}

// CertifyMember signs for the member of the calling node as the guardian does.
func (c *cluster) CertifyMember(ctx context.Context, r *etcdv1.CertifyMemberRequest) (*etcdv1.CertifyMemberResponse,
	error,
) {
	if caller(ctx) != identity.NodeUser(r.GetNode()) {
		return nil, rpcerr.Forbidden("not the node")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.certified++
	member := identity.Request{
		CommonName: r.GetNode(), URI: identity.MemberURI(1, 2),
		IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true,
	}
	out := &etcdv1.CertifyMemberResponse{
		MemberId: "2", ClientAuthority: c.authority.PEM(),
		PeerAuthority: c.authority.PEM(),
	}
	var err error
	if out.ServerCertificate, err = c.sign(r.GetServerRequest(), member); err != nil {
		return nil, err
	}
	out.PeerCertificate, err = c.sign(r.GetPeerRequest(), member)
	return out, err
}

func (c *cluster) sign(der []byte, r identity.Request) ([]byte, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	r.Lifetime = c.lifetime
	return c.authority.Sign(csr, r)
}

func (c *cluster) node(name string) *heard {
	h := c.nodes[name]
	if h == nil {
		h = &heard{}
		c.nodes[name] = h
	}
	return h
}

func (c *cluster) RegisterNode(ctx context.Context, r *nodev1.RegisterNodeRequest) (*nodev1.Node, error) {
	if caller(ctx) != identity.NodeUser(r.GetName()) {
		return nil, rpcerr.Forbidden("not the node")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.node(r.GetName())
	h.registration = r
	h.registrations++
	return &nodev1.Node{Status: r.GetStatus()}, nil
}

func (c *cluster) Heartbeat(s grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if caller(s.Context()) != identity.NodeUser(r.GetName()) {
			return rpcerr.Forbidden("not the node")
		}
		answer := &nodev1.HeartbeatResponse{}
		c.mu.Lock()
		h := c.node(r.GetName())
		if h.registrations == 0 {
			c.mu.Unlock()
			return rpcerr.NotFound("Node", r.GetName())
		}
		h.beats++
		h.boot = r.GetBootId()
		if len(r.GetConditions()) > 0 {
			h.conditions = r.GetConditions()
		}
		if h.reboot != "" {
			answer.Command, answer.BootId = "Reboot", h.reboot
		}
		c.mu.Unlock()
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

func (c *cluster) AttendMember(r *etcdv1.AttendMemberRequest,
	s grpc.ServerStreamingServer[etcdv1.AttendMemberResponse],
) error {
	if caller(s.Context()) != identity.NodeUser(r.GetNode()) {
		return rpcerr.Forbidden("not the node")
	}
	c.locked(func() { c.offers = append(c.offers, r) })
	for {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case order := <-c.attend:
			if err := s.Send(order); err != nil {
				return err
			}
		}
	}
}

// order gives an order to the agent that attends.
func (c *cluster) order(r *etcdv1.AttendMemberResponse) {
	c.t.Helper()
	select {
	case c.attend <- r:
	case <-time.After(2 * time.Minute):
		c.t.Fatal("no agent is connected")
	}
}

// WatchOwnPods sends the one pod that there may be.
func (c *cluster) WatchOwnPods(_ *schedulingv1.WatchOwnPodsRequest,
	s grpc.ServerStreamingServer[schedulingv1.WatchPodsResponse],
) error {
	out := &schedulingv1.WatchPodsResponse{Bookmark: true}
	c.locked(func() {
		if c.pod != nil {
			out.Events = []*schedulingv1.WatchPodsResponse_Event{{Type: "ADDED", Object: proto.CloneOf(c.pod)}}
		}
	})
	if err := s.Send(out); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (c *cluster) ReportPod(_ context.Context, r *schedulingv1.ReportPodRequest) (*schedulingv1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pod.Status = r.GetStatus()
	return proto.CloneOf(c.pod), nil
}

// WatchServiceEndpoints sends the services, and no changes.
func (c *cluster) WatchServiceEndpoints(r *schedulingv1.WatchServiceEndpointsRequest,
	s grpc.ServerStreamingServer[schedulingv1.WatchServiceEndpointsResponse],
) error {
	if caller(s.Context()) != identity.NodeUser(r.GetNodeName()) {
		return rpcerr.Forbidden("not the node")
	}
	out := &schedulingv1.WatchServiceEndpointsResponse{Complete: true}
	c.locked(func() { out.Changed = c.services })
	if out.Changed == nil {
		return c.UnimplementedPodAgentServiceServer.WatchServiceEndpoints(r, s)
	}
	if err := s.Send(out); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}
