package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	tcp, udp = "TCP", "UDP"
	notYet   = "not yet"
	noPod    = "no pod serves"

	// firstBind and longBind bound the pause before an address that is in use, or not permitted, is tried again.
	firstBind, longBind = 100 * time.Millisecond, 15 * time.Second
)

// portName identifies a port of a service.
type portName struct {
	protocol string
	address  netip.AddrPort
}

// target is where a port leads connections.
type target struct {
	endpoints []plan.Endpoint // never changed
	affinity  time.Duration
}

// targetsOf returns the ports of a service with an address; nil for any other, and for none.
func targetsOf(s *schedulingv1.ServiceEndpoints) map[portName]target {
	ip, err := netip.ParseAddr(s.GetClusterIp())
	if err != nil { // it has none
		return nil
	}
	out := map[portName]target{}
	for i, p := range s.GetPorts() {
		name := portName{p.GetProtocol(), netip.AddrPortFrom(ip.Unmap(), uint16(p.GetPort()))}
		if name.protocol == "" {
			name.protocol = tcp
		}
		to := target{affinity: time.Duration(s.GetAffinitySeconds()) * time.Second}
		for _, e := range s.GetEndpoints() {
			at, err := netip.ParseAddr(e.GetAddress())
			if err != nil {
				continue
			}
			port := int32(0)
			if i < len(e.GetPorts()) {
				port = e.GetPorts()[i]
			}
			to.endpoints = append(to.endpoints, plan.Endpoint{
				Pod: e.GetUid() + " " + at.String(), Address: netip.AddrPortFrom(at.Unmap(), uint16(port)),
				Serving: e.GetServing(),
			})
		}
		out[name] = to
	}
	return out
}

// port is one port of a service, or of a machine. It listens, and leads what arrives to the pods that serve at that
// moment.
type port struct {
	service string
	name    portName
	slots   *slots
	log     *slog.Logger
	cancel  context.CancelFunc
	ended   chan struct{}
	aimed   chan struct{}    // has a token when the endpoints have changed
	news    chan struct{}    // gets a token when the port has begun to listen, or failed to; may be nil
	notify  func(why string) // is called then, with why it failed; may be nil

	mu      sync.Mutex
	to      target
	turn    uint
	clients *clients
	open    map[flow]string // with the pod that each leads to; nil once the port has ended
	why     string          // why it does not listen
	said    string          // the error that was logged
	full    time.Time       // when it was logged that a connection found no slot
}

// flow is a connection, or a conversation of datagrams, with a pod.
type flow interface {
	// abort ends it at once. It may be called several times.
	abort()
}

func newPort(service string, name portName, all *limits, turn uint, log *slog.Logger) *port {
	return &port{
		service: service, name: name, slots: all.newSlots(), turn: turn, clients: newClients(maxClients),
		open: map[flow]string{}, why: notYet, ended: make(chan struct{}), aimed: make(chan struct{}, 1),
		log: log.With("object", service, "protocol", name.protocol, "address", name.address),
	}
}

// begin has the port listen until ctx ends, or end is called.
func (o *port) begin(ctx context.Context) {
	ctx, o.cancel = context.WithCancel(ctx)
	go func() {
		defer close(o.ended)
		o.run(ctx)
	}()
}

// endPorts ends ports with everything that they lead, and returns when that is done.
func endPorts(list []*port) {
	for _, o := range list {
		o.cancel()
	}
	for _, o := range list {
		<-o.ended
	}
}

// run listens until ctx ends. What cannot be bound is tried again: another process may have the port for a while.
//
// It first listens once a pod serves. Pods share the network of the host, and one that listens on all addresses could
// not start if the service had its port before it. If the pod has the port, connections to the service's address reach
// the pod without this process.
func (o *port) run(ctx context.Context) {
	if err := o.check(); err != nil {
		o.listens(ctx, err)
		<-ctx.Done()
		return
	}
	for again := backoff.Spread(firstBind, longBind); o.awaitPod(ctx); again.Wait(ctx) {
		l, err := o.listen(ctx)
		o.listens(ctx, err)
		if err == nil {
			o.serve(ctx, l)
			return
		}
	}
}

// errUnbindable means that the address of a service is not one that a process can listen on for it.
var errUnbindable = errors.New("not the address of a service")

// check returns why the port can never be listened on.
func (o *port) check() error {
	at := o.name.address
	if !at.Addr().IsGlobalUnicast() && !at.Addr().IsLoopback() { // 0.0.0.0 would be every address of the host
		return errUnbindable
	}
	if o.name.protocol != tcp && o.name.protocol != udp {
		return fmt.Errorf("protocol %s is not led", o.name.protocol)
	}
	return nil
}

// awaitPod waits until a pod serves, and returns false if ctx ends first.
func (o *port) awaitPod(ctx context.Context) bool {
	for ctx.Err() == nil {
		o.mu.Lock()
		serves := len(plan.ChooseEndpoints(plan.EndpointView{Endpoints: o.to.endpoints})) > 0
		if !serves {
			o.why = noPod
		}
		o.mu.Unlock()
		if serves {
			return true
		}
		select {
		case <-o.aimed:
		case <-ctx.Done():
		}
	}
	return false
}

// errMany means that this agent listens on as many ports as it can: others of its files are for connections.
var errMany = errors.New("this agent listens on as many ports of services as it can")

// listen returns a *net.TCPListener or *net.UDPConn, which has one of the agent's places for ports.
func (o *port) listen(ctx context.Context) (l io.Closer, err error) {
	if o.slots.of.ports.Add(1) > o.slots.of.maxPorts {
		o.slots.of.ports.Add(-1)
		return nil, errMany
	}
	if l, err = o.bind(ctx); err != nil {
		o.slots.of.ports.Add(-1)
	}
	return l, err
}

func (o *port) bind(ctx context.Context) (io.Closer, error) {
	c := net.ListenConfig{KeepAliveConfig: keepAlive}
	c.SetMultipathTCP(false) // there is one path
	if o.name.protocol == tcp {
		return c.Listen(ctx, "tcp", o.name.address.String())
	}
	l, err := c.ListenPacket(ctx, "udp", o.name.address.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.UDPConn), nil
}

// serve leads what arrives at l until ctx ends, and closes it.
func (o *port) serve(ctx context.Context, l io.Closer) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() {
		<-ctx.Done()
		_ = l.Close()
		o.slots.of.ports.Add(-1)
		o.endFlows()
	})
	switch l := l.(type) {
	case *net.TCPListener:
		o.accept(ctx, l, &work)
	case *net.UDPConn:
		o.receive(ctx, l, &work)
	}
}

// listens notes whether the port listens, and logs what changed, and has that reported.
func (o *port) listens(ctx context.Context, err error) {
	why := ""
	if err != nil {
		why = reason(err)
	}
	o.mu.Lock()
	o.why = why
	was := o.said
	o.said = why
	o.mu.Unlock()
	if why != was {
		poke(o.news)
	}
	if why != was && o.notify != nil {
		o.notify(why)
	}
	switch {
	case ctx.Err() != nil || why == was:
	case why != "":
		o.log.WarnContext(ctx, "port does not listen", "error", why)
	default:
		o.log.InfoContext(ctx, "port listens")
	}
}

// reason returns what is wrong without the address, which is said beside it.
func reason(err error) string {
	for _, e := range []error{unix.EADDRINUSE, unix.EACCES, unix.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	return err.Error()
}

// obstacle returns why the port does not listen; empty if it does.
func (o *port) obstacle() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// aim has new connections led to other endpoints. Those to pods that have left the service end; those to pods that only
// stopped serving go on, as in Kubernetes.
func (o *port) aim(to target) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = to
	poke(o.aimed)
	for f, pod := range o.open {
		if !plan.HasEndpoint(to.endpoints, pod) {
			f.abort()
		}
	}
}

// choose returns the endpoints to try for a client, the preferred one first. A turn is over with each call.
func (o *port) choose(client netip.Addr) []plan.Endpoint {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := plan.EndpointView{Now: time.Now(), Endpoints: o.to.endpoints, Turn: o.turn, Affinity: o.to.affinity}
	if v.Affinity > 0 {
		v.Client = o.clients.get(client)
	}
	o.turn++
	var out []plan.Endpoint
	for _, i := range plan.ChooseEndpoints(v) {
		out = append(out, v.Endpoints[i])
	}
	return out
}

// serves reports whether datagrams of an open conversation are still led to a port of a pod.
func (o *port) serves(pod string, at netip.AddrPort) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.to.endpoints, func(e plan.Endpoint) bool {
		return e.Pod == pod && e.Address == at && e.Serving
	})
}

// forget has a client led to another pod: the one that it had does not listen.
func (o *port) forget(client netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clients.forget(client)
}

// add notes a flow of a client to a pod. It returns false if the pod has left the service, or the port has ended, since
// the pod was chosen.
func (o *port) add(f flow, client netip.Addr, pod string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil || !plan.HasEndpoint(o.to.endpoints, pod) {
		return false
	}
	o.open[f] = pod
	if o.to.affinity > 0 {
		o.clients.set(client, plan.Affinity{Pod: pod, Last: time.Now()})
	}
	return true
}

func (o *port) remove(f flow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, f)
}

// endFlows ends all flows, and has add refuse new ones.
func (o *port) endFlows() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := range o.open {
		f.abort()
	}
	o.open = nil
}

// fullEvery is how often it is logged that a port is full.
const fullEvery = time.Minute

// take reports whether there is a slot for one more flow; then give it back. That there is none is logged, at most once
// a minute.
func (o *port) take(ctx context.Context) bool {
	ok := o.slots.take()
	o.mu.Lock()
	first := !ok && (o.full.IsZero() || time.Since(o.full) > fullEvery)
	if first {
		o.full = time.Now()
	}
	o.mu.Unlock()
	if first {
		o.log.WarnContext(ctx, "port has as many connections as it can have")
	}
	return ok
}
