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
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// Addresses of services in tests: in a range that no cluster has.
const ip, otherIP = "127.255.48.11", "127.255.48.12"

// limit bounds what is waited for on a socket.
const limit = time.Minute

func dialTCP(t *testing.T, from, to string) *net.TCPConn {
	t.Helper()
	c, err := tryTCP(from, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func tryTCP(from, to string) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: limit}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(limit))
	return c.(*net.TCPConn), nil
}

// ask sends a text and returns the answer, or what went wrong.
func ask(c net.Conn, text string) string {
	if _, err := c.Write([]byte(text)); err != nil {
		return "write: " + reason(err)
	}
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	if err != nil {
		return "read: " + reason(err)
	}
	return string(b[:n])
}

// who returns the name of the pod that a new connection is led to, or what went wrong.
func who(from, to string) string {
	c, err := tryTCP(from, to)
	if err != nil {
		return reason(err)
	}
	defer c.Close()
	name, _, _ := strings.Cut(ask(c, "?"), " ")
	return name
}

// refused reports whether a connection is reset, which its client may see before it is made.
func refused(to string) bool {
	c, err := tryTCP("", to)
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, syscall.ECONNRESET)
}

// away waits until nothing listens at a TCP address.
func away(t *testing.T, address string) {
	t.Helper()
	servetest.Await(t, func() string {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return ""
		}
		_ = c.Close()
		return address + " takes connections"
	})
}

// awaitPod waits until new connections are led to a pod alone.
func awaitPod(t *testing.T, to, name string) {
	t.Helper()
	servetest.Await(t, func() string {
		for range 4 {
			if got := who("", to); got != name {
				return fmt.Sprintf("connected with %q, not %q", got, name)
			}
		}
		return ""
	})
}

// awaitFlows waits until there are n connections and conversations.
func awaitFlows(t *testing.T, a agent, n int64) {
	t.Helper()
	servetest.Await(t, func() string {
		if got := a.flows.all.Load(); got != n {
			return fmt.Sprintf("%d flows, want %d", got, n)
		}
		return ""
	})
}

func TestConnectionsAreLedToThePodsThatServe(t *testing.T) {
	h := newHost(t)
	a, b := newPod(t, "a"), newPod(t, "b")
	s := service(t, "web", ip, a.endpoint(true), b.endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	got := map[string]int{}
	for range 10 {
		got[who("", at(s))]++
	}
	if got["a"] != 5 || got["b"] != 5 {
		t.Errorf("connections were led to %v", got)
	}

	// A pod that stops serving keeps its connections and gets no new ones.
	var old *net.TCPConn
	for old == nil {
		if c := dialTCP(t, "", at(s)); ask(c, "1") == "a 1" {
			old = c
		}
	}
	s.Endpoints[0].Serving = false
	h.cluster.set(s)
	awaitPod(t, at(s), "b")
	if got := ask(old, "2"); got != "a 2" {
		t.Errorf("a connection to a pod that drains: %q", got)
	}
	// And the other way round.
	s.Endpoints[0].Serving, s.Endpoints[1].Serving = true, false
	h.cluster.set(s)
	awaitPod(t, at(s), "a")
	// Connections to a pod that has left the service end.
	s.Endpoints = s.Endpoints[1:]
	h.cluster.set(s)
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to a pod that has gone: %v", err)
	}
	// Without a pod that serves, connections are reset.
	if !refused(at(s)) {
		t.Error("a connection without a pod was not reset")
	}
}

func TestAPodThatRefusesIsPassedOver(t *testing.T) {
	h := newHost(t)
	a, b := newPod(t, "a"), newPod(t, "b")
	s := service(t, "web", ip, a.endpoint(true), b.endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	a.end()
	for range 6 {
		if got := who("", at(s)); got != "b" {
			t.Fatalf("connected with %q", got)
		}
	}
	b.end()
	if !refused(at(s)) {
		t.Error("a connection that all pods refuse was not reset")
	}
}

func TestEachEndOfAConnectionIsPassedOn(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s := service(t, "web", ip, a.endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	c := dialTCP(t, "", at(s))
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); string(got) != "bye of a" || err != nil {
		t.Errorf("after the client's end: %q, %v", got, err)
	}
	awaitFlows(t, agent, 0)
	// A client that resets its connection does not look like one that has sent everything.
	c = dialTCP(t, "", at(s))
	ask(c, "1")
	reset(c)
	servetest.Await(t, func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !slices.ContainsFunc(a.ends, func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }) {
			return fmt.Sprintf("the pod saw %v", a.ends)
		}
		return ""
	})
}

func TestAClientsAffinity(t *testing.T) {
	h := newHost(t)
	a, b, c := newPod(t, "a"), newPod(t, "b"), newPod(t, "c")
	s := service(t, "web", ip, a.endpoint(true), b.endpoint(true), c.endpoint(true))
	s.AffinitySeconds = 3600
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	seen := map[string]string{}
	for range 4 {
		for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.2"} { // not as often as there are pods
			got := who(from, at(s))
			if seen[from] != "" && seen[from] != got {
				t.Fatalf("%s was led to %q and %q", from, seen[from], got)
			}
			seen[from] = got
		}
	}
	if len(seen) != 3 || seen["127.0.0.2"] == seen["127.0.0.3"] {
		t.Errorf("clients were led to %v", seen)
	}
	// A pod that refuses loses its client for good.
	pods := map[string]*pod{"a": a, "b": b, "c": c}
	pods[seen["127.0.0.2"]].end()
	next := who("127.0.0.2", at(s))
	if next == "" || next == seen["127.0.0.2"] || who("127.0.0.2", at(s)) != next {
		t.Errorf("the client of %q was led to %q", seen["127.0.0.2"], next)
	}
}

func TestAffinitiesAreBounded(t *testing.T) {
	c := newClients(2)
	one, two, three := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	to := func(pod string) (a plan.Affinity) { a.Pod = pod; return a }
	c.set(one, to("a"))
	c.set(two, to("b"))
	c.set(one, to("c"))
	c.set(three, to("d"))
	if c.get(one) != to("c") || c.get(two) != to("") || c.get(three) != to("d") || len(c.by) != 2 || c.recent.Len() != 2 {
		t.Errorf("%+v", c.by)
	}
	c.forget(one)
	if c.get(one) != to("") || c.recent.Len() != 1 {
		t.Errorf("%+v", c.by)
	}
}

func talkTo(t *testing.T, to string) *net.UDPConn {
	t.Helper()
	c, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UDPConn)
}

// askAgain sends a datagram until there is the answer that is wanted: datagrams may be lost, or follow a change.
func askAgain(t *testing.T, c net.Conn, text, want string) {
	t.Helper()
	servetest.Await(t, func() string {
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if got := ask(c, text); got != want {
			return fmt.Sprintf("answer %q, want %q", got, want)
		}
		return ""
	})
}

func TestDatagramsAreLedToThePodsThatServe(t *testing.T) {
	h := newHost(t)
	a, b := newPod(t, "a"), newPod(t, "b")
	s := service(t, "dns", ip, a.endpoint(true), b.endpoint(false))
	h.cluster.set(s)
	agent := h.start(t.TempDir(), func(p *Proxy) { p.flows.idle = 2 * time.Second })
	agent.awaitStatus(t, at(s), "UDP", "")
	long := strings.Repeat("x", 60_000)
	c, d := talkTo(t, at(s)), talkTo(t, at(s))
	for range 3 { // each client gets its own answers
		askAgain(t, c, "c", "a c")
		askAgain(t, d, long, "a "+long)
	}
	if n := agent.flows.all.Load(); n != 2 {
		t.Errorf("%d conversations of two clients", n)
	}
	s.Endpoints[0].Serving, s.Endpoints[1].Serving = false, true
	h.cluster.set(s)
	askAgain(t, c, "c", "b c")
	// A pod that does not listen loses its clients.
	s.Endpoints[0].Serving = true
	h.cluster.set(s)
	b.end()
	askAgain(t, c, "c", "a c")
	// Conversations end when they are idle, and with their pod.
	awaitFlows(t, agent, 0)
	askAgain(t, c, "c", "a c")
}

func TestAPodThatDoesNotListenLosesTheAffinityOfItsClients(t *testing.T) {
	h := newHost(t)
	pods := map[string]*pod{"a": newPod(t, "a"), "b": newPod(t, "b")}
	s := service(t, "dns", ip, pods["a"].endpoint(true), pods["b"].endpoint(true))
	s.AffinitySeconds = 3600
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "UDP", "")
	c := talkTo(t, at(s))
	_ = c.SetDeadline(time.Now().Add(limit))
	first, _, _ := strings.Cut(ask(c, "c"), " ")
	for range 3 { // other conversations of the same client
		again := talkTo(t, at(s))
		_ = again.SetDeadline(time.Now().Add(limit))
		if got := ask(again, "c"); got != first+" c" {
			t.Errorf("answer %q after one of %q", got, first)
		}
	}
	pods[first].end()
	askAgain(t, c, "c", map[string]string{"a": "b c", "b": "a c"}[first])
}

func TestConversationsEndWithTheirPod(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s := service(t, "dns", ip, a.endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "UDP", "")
	askAgain(t, talkTo(t, at(s)), "c", "a c")
	s.Endpoints = nil
	h.cluster.set(s)
	awaitFlows(t, agent, 0)
}

func TestAFloodOfClientsDoesNotStopOthers(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s, other := service(t, "web", ip, a.endpoint(true)), service(t, "other", otherIP, a.endpoint(true))
	h.cluster.set(s)
	h.cluster.set(other)
	agent := h.start(t.TempDir(), func(p *Proxy) { p.flows.max, p.flows.perPort = 20, 4 })
	agent.awaitStatus(t, at(s), "TCP", "")
	agent.awaitStatus(t, at(other), "TCP", "")
	var idle []*net.TCPConn // clients that say nothing, and one that reads nothing
	for range 4 {
		idle = append(idle, dialTCP(t, "", at(s)))
	}
	_ = idle[0].SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = idle[0].Write(bytes.Repeat([]byte("x"), 16<<20))
	for range 3 {
		if !refused(at(s)) {
			t.Error("a connection beyond the limit was not reset")
		}
	}
	if got := who("", at(other)); got != "a" {
		t.Errorf("the other service's client was led to %q", got)
	}
	if h.log.count("as many connections") != 1 {
		t.Error("the limit was not logged once")
	}
	reset(idle[1])
	awaitPod(t, at(s), "a")

	// Of clients with datagrams the one that was idle longest makes room.
	var talks []*net.UDPConn
	for i := range 8 {
		talks = append(talks, talkTo(t, at(s)))
		askAgain(t, talks[i], "c", "a c")
	}
	if n := agent.flows.all.Load(); n > 10 {
		t.Errorf("%d flows", n)
	}
}

func TestTheConnectionsOfAllServicesAreBounded(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s, other := service(t, "web", ip, a.endpoint(true)), service(t, "other", otherIP, a.endpoint(true))
	h.cluster.set(s)
	h.cluster.set(other)
	agent := h.start(t.TempDir(), func(p *Proxy) { p.flows.max, p.flows.perPort = 2, 2 })
	agent.awaitStatus(t, at(s), "TCP", "")
	agent.awaitStatus(t, at(other), "TCP", "")
	ask(dialTCP(t, "", at(s)), "1")
	last := dialTCP(t, "", at(s))
	ask(last, "1")
	if !refused(at(other)) {
		t.Error("a connection beyond the limit was not reset")
	}
	_ = last.Close()
	awaitFlows(t, agent, 1)
	if got := who("", at(other)); got != "a" {
		t.Errorf("led to %q", got)
	}
}

// A pod that was chosen may leave the service before the connection to it is made.
func TestNothingIsLedToAPodThatHasJustLeft(t *testing.T) {
	o := newPort("default/web", portName{}, newLimits(), 0, slog.New(slog.DiscardHandler))
	o.aim(target{endpoints: []plan.Endpoint{{Pod: "a"}}})
	f := &counter{}
	if o.add(f, netip.Addr{}, "b") || !o.add(f, netip.Addr{}, "a") || len(o.open) != 1 {
		t.Errorf("%v", o.open)
	}
	if o.endFlows(); f.ends != 1 || o.add(f, netip.Addr{}, "a") {
		t.Errorf("a port that has ended leads connections; ended %d times", f.ends)
	}
}

// counter is a flow that counts its ends.
type counter struct{ ends int }

func (c *counter) abort() { c.ends++ }

func TestAPodThatDoesNotAnswerIsPassedOver(t *testing.T) {
	h := newHost(t)
	b := newPod(t, "b")
	hole := b.endpoint(true) // its queue of connections is full
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	name, err2 := unix.Getsockname(fd)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	where := addressOf(name)
	for err == nil {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", where.String(), 300*time.Millisecond); err == nil {
			defer c.Close()
		}
	}
	hole.Uid, hole.Ports = "uid-hole", []int32{int32(where.Port()), 0}
	s := service(t, "web", ip, hole, b.endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	for range 2 {
		if got := who("", at(s)); got != "b" {
			t.Errorf("led to %q", got)
		}
	}
}

func TestConnectionsAreTakenAgainOnceThereAreFiles(t *testing.T) {
	h := newHost(t)
	s := service(t, "web", ip, newPod(t, "a").endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	who("", at(s)) // what is opened once is open now
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := was
	none.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(at(s))
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	time.Sleep(20 * firstAccept)
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)); err != nil {
		t.Fatal(err)
	}
	if got := who("", at(s)); got != "a" {
		t.Errorf("led to %q", got)
	}
}

func TestConnectionsLeaveFilesToTheAgent(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if l := newLimits(); was.Cur >= 2*filesPerFlow*maxFlows && (l.max != maxFlows || l.perPort != maxFlows/portShare) {
		t.Errorf("with %d files: %d, %d of one port", was.Cur, l.max, l.perPort)
	}
	few := was
	few.Cur = 1200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	l := newLimits()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if l.max != 100 || l.perPort != 25 {
		t.Errorf("with 1200 files: %d, %d of one port", l.max, l.perPort)
	}
}

// Neither side of an idle connection sends anything: only the kernel can notice that one is gone.
func TestBothSidesOfAConnectionAreProbed(t *testing.T) {
	h := newHost(t)
	s := service(t, "web", ip, newPod(t, "a").endpoint(true))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", "")
	ask(dialTCP(t, "", at(s)), "1")
	var sides []*net.TCPConn
	agent.mu.Lock()
	for _, o := range agent.ports["default/web"] {
		o.mu.Lock()
		for f := range o.open {
			sides = append(sides, f.(*pair).client, f.(*pair).pod)
		}
		o.mu.Unlock()
	}
	agent.mu.Unlock()
	if len(sides) != 2 {
		t.Fatalf("a connection has %d sides", len(sides))
	}
	for i, c := range sides {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		if err := raw.Control(func(fd uintptr) {
			for name, o := range map[string][2]int{
				"on": {unix.SOL_SOCKET, unix.SO_KEEPALIVE}, "idle": {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
				"interval": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, "count": {unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
			} {
				got[name], _ = unix.GetsockoptInt(int(fd), o[0], o[1])
			}
		}); err != nil {
			t.Fatal(err)
		}
		if want := map[string]int{"on": 1, "idle": 30, "interval": 10, "count": 3}; !maps.Equal(got, want) {
			t.Errorf("side %d is probed by %v, want %v", i, got, want)
		}
	}
}

func TestAServiceThatIsRemovedLeavesNothing(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	agent := h.start(t.TempDir())
	s := service(t, "web", ip, a.endpoint(true))
	other := service(t, "other", otherIP, a.endpoint(true))
	h.cluster.set(other)
	agent.awaitStatus(t, at(other), "TCP", "")
	before := runtime.NumGoroutine()
	h.cluster.set(s)
	agent.awaitStatus(t, at(s), "TCP", "")
	agent.awaitStatus(t, at(s), "UDP", "")
	c := dialTCP(t, "", at(s))
	ask(c, "1")
	askAgain(t, talkTo(t, at(s)), "c", "a c")
	h.cluster.remove("default/web")
	away(t, at(s))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("its connection: %v", err)
	}
	servetest.Await(t, func() string {
		if n := runtime.NumGoroutine(); n > before || agent.flows.all.Load() > 0 {
			return fmt.Sprintf("%d goroutines, %d before; %d flows", n, before, agent.flows.all.Load())
		}
		return ""
	})
	if got := who("", at(other)); got != "a" {
		t.Errorf("the other service's client was led to %q", got)
	}
	// A service that changes its ports keeps only the new ones.
	was := at(other)
	other.Ports[0].Port = service(t, "x", otherIP).GetPorts()[0].GetPort()
	h.cluster.set(other)
	agent.awaitStatus(t, at(other), "TCP", "")
	away(t, was)
}

func TestAnotherAgentTakesOver(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s := service(t, "web", ip, a.endpoint(true))
	h.cluster.set(s)
	var elected, times atomic.Int32 // agents that are, and how often one was
	beside := func(p *Proxy) {
		p.cfg.Elected = func(ctx context.Context) error {
			times.Add(1)
			if elected.Add(1) > 1 {
				t.Error("two agents are elected")
			}
			<-ctx.Done()
			elected.Add(-1)
			return nil
		}
	}
	first := h.start(t.TempDir(), beside)
	first.awaitStatus(t, at(s), "TCP", "")
	second := h.start(t.TempDir(), beside)
	second.awaitStatus(t, at(s), "TCP", "another agent of this host listens")
	time.Sleep(2 * lockEvery)
	if got := second.Status()[0].Why; got != "another agent of this host listens" {
		t.Errorf("the second agent: %q", got)
	}
	first.stop()
	first.awaitStatus(t, at(s), "TCP", "another agent of this host listens")
	second.awaitStatus(t, at(s), "TCP", "")
	if got := who("", at(s)); got != "a" {
		t.Errorf("after the first agent's end: %q", got)
	}
	if n := h.log.count("leads the connections"); n != 2 {
		t.Errorf("%d elections", n)
	}
	second.stop()
	f, err := lock(h.shared)
	if err != nil {
		t.Fatalf("after the end of both: %v", err)
	}
	_ = f.Close()
	if times.Load() != 2 {
		t.Errorf("an agent was elected %d times", times.Load())
	}
}

func TestAnAgentAloneNeedsNoLock(t *testing.T) {
	h := newHost(t)
	h.shared = ""
	s := service(t, "web", ip, newPod(t, "a").endpoint(true))
	h.cluster.set(s)
	h.start(t.TempDir()).awaitStatus(t, at(s), "TCP", "")
}

func TestAPortThatIsInUseIsTriedAgain(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s := service(t, "web", ip, a.endpoint(true))
	l, err := net.Listen("tcp", at(s))
	if err != nil {
		t.Fatal(err)
	}
	s.Ports = append(s.Ports, &schedulingv1.ServiceEndpointsPort{Protocol: "SCTP", Port: 7})
	h.cluster.set(s)
	everything, nowhere := service(t, "all", ip, a.endpoint(true)), service(t, "nowhere", ip, a.endpoint(true))
	everything.ClusterIp, nowhere.ClusterIp = "0.0.0.0", "192.0.2.1"
	h.cluster.set(everything)
	h.cluster.set(nowhere)
	none := service(t, "none", ip)
	none.ClusterIp = "None"
	h.cluster.set(none)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "UDP", "")
	agent.awaitStatus(t, at(s), "TCP", "address already in use")
	agent.awaitStatus(t, ip+":7", "SCTP", "protocol SCTP is not led")
	agent.awaitStatus(t, at(everything), "TCP", errUnbindable.Error())
	agent.awaitStatus(t, at(nowhere), "TCP", "cannot assign requested address")
	if n := len(agent.Status()); n != 7 {
		t.Errorf("%d ports: %+v", n, agent.Status())
	}
	time.Sleep(5 * firstBind) // it is tried several times
	if n := h.log.count("already in use"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	_ = l.Close()
	agent.awaitStatus(t, at(s), "TCP", "")
	if n := h.log.count("port listens"); n != 1 {
		t.Errorf("success is logged %d times", n)
	}
}

// A pod that listens on all addresses needs its port on that of the service, too.
func TestAPodComesBeforeItsService(t *testing.T) {
	h := newHost(t)
	s := service(t, "web", ip, newPod(t, "a").endpoint(false))
	h.cluster.set(s)
	agent := h.start(t.TempDir())
	agent.awaitStatus(t, at(s), "TCP", noPod)
	l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", s.GetPorts()[0].GetPort()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.Endpoints[0].Serving = true
	h.cluster.set(s)
	agent.awaitStatus(t, at(s), "TCP", "address already in use")
	agent.awaitStatus(t, at(s), "UDP", "")
	c := dialTCP(t, "", at(s))
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("the pod was reached by %v, not %v", got.RemoteAddr(), c.LocalAddr())
	}
	// While it restarts, the port is free.
	s.Endpoints[0].Serving = false
	h.cluster.set(s)
	agent.awaitStatus(t, at(s), "TCP", noPod)
	_ = l.Close()
	time.Sleep(5 * firstBind)
	agent.awaitStatus(t, at(s), "TCP", noPod)
}

func names(p *Proxy) string {
	var out []string
	for _, s := range p.Services() {
		out = append(out, s.GetName())
	}
	return strings.Join(out, " ")
}

func awaitNames(t *testing.T, a agent, want string) {
	t.Helper()
	servetest.Await(t, func() string {
		if got := names(a.Proxy); got != want {
			return fmt.Sprintf("services %q, want %q", got, want)
		}
		return ""
	})
}

func TestServicesThatWereNotSentAreRemoved(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"b", "a", "c"} {
		h.cluster.set(service(t, name, ip))
	}
	agent := h.start(t.TempDir())
	awaitNames(t, agent, "a b c")
	h.cluster.server.Stop()
	h.cluster.mu.Lock()
	delete(h.cluster.services, "default/b")
	h.cluster.withheld = true
	h.cluster.mu.Unlock()
	h.cluster.set(service(t, "d", ip))
	h.cluster.begin(h.cluster.address)
	awaitNames(t, agent, "a b c d") // until the list is complete
	h.cluster.mu.Lock()
	h.cluster.send(&schedulingv1.WatchServiceEndpointsResponse{Complete: true})
	h.cluster.mu.Unlock()
	awaitNames(t, agent, "a c d")
}

func TestAnAgentKnowsTheServicesWithoutTheCluster(t *testing.T) {
	h := newHost(t)
	a := newPod(t, "a")
	s := service(t, "web", ip, a.endpoint(true))
	h.cluster.set(s)
	dir := t.TempDir()
	agent := h.start(dir)
	if !agent.Await(t.Context()) {
		t.Error("services are not known")
	}
	agent.awaitStatus(t, at(s), "TCP", "")
	written := func() string {
		info, err := os.Stat(filepath.Join(dir, fileName))
		if err != nil {
			return err.Error()
		}
		return info.ModTime().String()
	}
	servetest.Await(t, func() string {
		if _, err := os.Stat(filepath.Join(dir, fileName)); err != nil {
			return err.Error()
		}
		return ""
	})
	was := written()
	h.cluster.set(s) // nothing has changed
	time.Sleep(saveEvery + saveEvery/2)
	if written() != was {
		t.Error("the file is written although nothing has changed")
	}
	h.cluster.set(service(t, "last", otherIP))
	awaitNames(t, agent, "last web")
	agent.stop()
	h.cluster.server.Stop()

	again := h.start(dir)
	if got := names(again.Proxy); got != "last web" {
		t.Errorf("services %q", got)
	}
	if !again.Await(t.Context()) {
		t.Error("services are not known")
	}
	again.awaitStatus(t, at(s), "TCP", "")
	if got := who("", at(s)); got != "a" {
		t.Errorf("led to %q", got)
	}
	again.stop()

	// A file that is broken, or empty, is no knowledge.
	for _, text := range []string{"\xff", ""} {
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		other := h.start(dir)
		start := time.Now()
		if other.Await(t.Context()) || time.Since(start) > patience/2 {
			t.Errorf("a file %q: known, or waited for %v", text, time.Since(start))
		}
		other.stop()
	}
}

func TestAwaitWaitsForTheWholeList(t *testing.T) {
	h := newHost(t)
	h.cluster.set(service(t, "web", ip))
	h.cluster.withheld = true
	dir := t.TempDir()
	agent := h.start(dir)
	awaitNames(t, agent, "web")
	known := make(chan bool)
	go func() { known <- agent.Await(t.Context()) }()
	select {
	case got := <-known:
		t.Errorf("known before the list is complete: %v", got)
		return
	case <-time.After(saveEvery + saveEvery/2):
	}
	if _, err := os.Stat(filepath.Join(dir, fileName)); err == nil {
		t.Error("a list that is not complete is saved")
	}
	h.cluster.mu.Lock()
	h.cluster.send(&schedulingv1.WatchServiceEndpointsResponse{Complete: true})
	h.cluster.mu.Unlock()
	if !<-known {
		t.Error("not known")
	}
}

// A stream that broke off before a container starts does not say that the cluster is away now.
func TestAwaitWaitsForAnotherStream(t *testing.T) {
	h := newHost(t)
	known := make(chan bool, 1)
	h.start(t.TempDir(), func(p *Proxy) {
		p.begun, p.broken = 3, 3
		go func() { known <- p.Await(t.Context()) }()
		time.Sleep(100 * time.Millisecond) // for it to begin
	})
	if !<-known {
		t.Error("not known")
	}
}
