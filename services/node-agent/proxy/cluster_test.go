package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/servetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is the scheduler as the proxy of an agent sees it.
type cluster struct {
	schedulingv1.UnimplementedPodAgentServiceServer
	t       *testing.T
	address string
	server  *grpc.Server

	mu       sync.Mutex
	services map[string]*schedulingv1.ServiceEndpoints
	watchers map[chan *schedulingv1.WatchServiceEndpointsResponse]struct{}
	withheld bool     // lists are not completed
	reports  []string // of ports, as "namespace/name uid protocol port error"
	refusals int      // reports that are to be refused
}

// ReportServicePorts takes reports of ports.
func (c *cluster) ReportServicePorts(_ context.Context, r *schedulingv1.ReportServicePortsRequest) (
	*schedulingv1.ReportServicePortsResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusals > 0 {
		c.refusals--
		return nil, status.Error(codes.ResourceExhausted, "too many")
	}
	if r.GetNodeName() != "m-0" || len(r.GetPorts()) > reportMost {
		c.t.Errorf("a report of %d ports of node %q", len(r.GetPorts()), r.GetNodeName())
	}
	for _, p := range r.GetPorts() {
		c.reports = append(c.reports, fmt.Sprintf("%s/%s %s %s %d %s", p.GetNamespace(), p.GetName(), p.GetUid(),
			p.GetProtocol(), p.GetPort(), p.GetError()))
	}
	return &schedulingv1.ReportServicePortsResponse{}, nil
}

// reported returns the reports so far.
func (c *cluster) reported() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.reports)
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t: t, services: map[string]*schedulingv1.ServiceEndpoints{},
		watchers: map[chan *schedulingv1.WatchServiceEndpointsResponse]struct{}{},
	}
	c.begin("127.0.0.1:0")
	t.Cleanup(func() { c.server.Stop() })
	return c
}

// begin has the cluster answer; server.Stop ends that.
func (c *cluster) begin(address string) {
	c.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = l.Addr().String()
	c.server = grpc.NewServer()
	schedulingv1.RegisterPodAgentServiceServer(c.server, c)
	go func(s *grpc.Server) { _ = s.Serve(l) }(c.server)
}

func (c *cluster) WatchServiceEndpoints(r *schedulingv1.WatchServiceEndpointsRequest,
	s grpc.ServerStreamingServer[schedulingv1.WatchServiceEndpointsResponse],
) error {
	if r.GetNodeName() != "m-0" {
		return fmt.Errorf("node %q", r.GetNodeName())
	}
	ch := make(chan *schedulingv1.WatchServiceEndpointsResponse, 1000)
	c.mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(c.services)) { // one in each message
		ch <- &schedulingv1.WatchServiceEndpointsResponse{
			Changed: []*schedulingv1.ServiceEndpoints{proto.CloneOf(c.services[key])},
		}
	}
	ch <- &schedulingv1.WatchServiceEndpointsResponse{Complete: !c.withheld}
	c.watchers[ch] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, ch)
	}()
	for {
		select {
		case r := <-ch:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (c *cluster) send(r *schedulingv1.WatchServiceEndpointsResponse) {
	for ch := range c.watchers {
		ch <- proto.CloneOf(r)
	}
}

// set makes a service what it is now.
func (c *cluster) set(s *schedulingv1.ServiceEndpoints) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[keyOf(s)] = proto.CloneOf(s)
	c.send(&schedulingv1.WatchServiceEndpointsResponse{Changed: []*schedulingv1.ServiceEndpoints{s}})
}

func (c *cluster) remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.services, key)
	c.send(&schedulingv1.WatchServiceEndpointsResponse{Removed: []string{key}})
}

// host is where agents run.
type host struct {
	t       *testing.T
	cluster *cluster
	shared  string // directory
	log     *output
}

func newHost(t *testing.T) *host {
	return &host{t: t, cluster: newCluster(t), shared: t.TempDir(), log: &output{}}
}

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) count(text string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Count(o.buf.Bytes(), []byte(text))
}

// agent is one life of an agent.
type agent struct {
	*Proxy
	stop func()
}

// start starts an agent whose directory is dir, with changes to its proxy.
func (h *host) start(dir string, changes ...func(*Proxy)) agent {
	h.t.Helper()
	conn, err := grpc.NewClient(h.cluster.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	p := New(Config{
		Dir: dir, HostDir: h.shared, Node: "m-0", Conn: conn, Log: slog.New(slog.NewTextHandler(h.log, nil)),
	})
	for _, change := range changes {
		change(p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			h.t.Error(err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-ended
		_ = conn.Close()
	})
	h.t.Cleanup(stop)
	return agent{p, stop}
}

// awaitStatus waits until a port has a status.
func (a agent) awaitStatus(t *testing.T, address, protocol, why string) {
	t.Helper()
	servetest.Await(t, func() string {
		for _, st := range a.Status() {
			if st.Address.String() == address && st.Protocol == protocol && st.Why == why {
				return ""
			}
		}
		return fmt.Sprintf("%s %s %q, is %+v", address, protocol, why, a.Status())
	})
}

// pod is a process that listens on an address of its own, with a TCP and a UDP port of the same number, and answers
// every line, or datagram, with its name.
type pod struct {
	t       *testing.T
	name    string
	address string // with port
	tcp     net.Listener
	udp     net.PacketConn

	mu    sync.Mutex
	conns []net.Conn
	ends  []error // of the connections, as they were read
}

func newPod(t *testing.T, name string) *pod {
	t.Helper()
	p := &pod{t: t, name: name}
	for range 100 { // until the number is free for both
		var err error
		if p.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		p.address = p.tcp.Addr().String()
		if p.udp, err = net.ListenPacket("udp", p.address); err == nil {
			break
		}
		_ = p.tcp.Close()
	}
	var work sync.WaitGroup
	work.Go(p.accept)
	work.Go(func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := p.udp.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.udp.WriteTo([]byte(name+" "+string(b[:n])), from)
		}
	})
	t.Cleanup(func() {
		p.end()
		work.Wait()
	})
	return p
}

func (p *pod) accept() {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := p.tcp.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns = append(p.conns, c)
		p.mu.Unlock()
		work.Go(func() {
			defer c.Close()
			for b := make([]byte, 1<<16); ; {
				n, err := c.Read(b)
				if err != nil {
					p.mu.Lock()
					p.ends = append(p.ends, err)
					p.mu.Unlock()
					if errors.Is(err, io.EOF) {
						_, _ = c.Write([]byte("bye of " + p.name))
					}
					return
				}
				if _, err := c.Write([]byte(p.name + " " + string(b[:n]))); err != nil {
					return
				}
			}
		})
	}
}

// end ends the pod's process.
func (p *pod) end() {
	_ = p.tcp.Close()
	_ = p.udp.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
}

func (p *pod) endpoint(serving bool) *schedulingv1.ServiceEndpoint {
	host, port, _ := net.SplitHostPort(p.address)
	n, _ := strconv.Atoi(port)
	return &schedulingv1.ServiceEndpoint{
		Pod: p.name, Uid: "uid-" + p.name, Node: "m-0", Address: host, Ports: []int32{int32(n), int32(n)}, Serving: serving,
	}
}

// service returns a service with a TCP and a UDP port of one number that is free at address.
func service(t *testing.T, name, ip string, endpoints ...*schedulingv1.ServiceEndpoint) *schedulingv1.ServiceEndpoints {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := int32(l.Addr().(*net.TCPAddr).Port)
	return &schedulingv1.ServiceEndpoints{
		Namespace: "default", Name: name, Uid: "uid-" + name, ClusterIp: ip, Endpoints: endpoints,
		Ports: []*schedulingv1.ServiceEndpointsPort{
			{Name: "tcp", Protocol: "TCP", Port: port}, {Name: "udp", Protocol: "UDP", Port: port},
		},
	}
}

// at returns the address with the port.
func at(s *schedulingv1.ServiceEndpoints) string {
	return net.JoinHostPort(s.GetClusterIp(), strconv.Itoa(int(s.GetPorts()[0].GetPort())))
}
