package dns_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"go.uber.org/goleak"

	"github.com/windlass-dev/windlass/services/node-agent/dns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// free returns an address at which neither UDP nor TCP is served.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		l.Close()
		if err == nil {
			p.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free address")
	return ""
}

// serve runs a server until the test ends.
func serve(t *testing.T, cfg dns.Config) string {
	t.Helper()
	cfg.Address, cfg.Log = free(t), slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- dns.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", cfg.Address)
		if err == nil {
			conn.Close()
			return cfg.Address
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func ask(t *testing.T, network, server, name string, kind uint16) *mdns.Msg {
	t.Helper()
	c := &mdns.Client{Net: network, Timeout: 30 * time.Second}
	m, _, err := c.Exchange(new(mdns.Msg).SetQuestion(name, kind), server)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func fixed(s dns.Services) func() (dns.Services, bool) {
	return func() (dns.Services, bool) { return s, s != nil }
}

func noOthers() ([]string, error) { return nil, errors.New("none") }

// other is a server for other names, which counts the questions.
func other(t *testing.T) (address string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	address = free(t)
	for _, network := range []string{"udp", "tcp"} {
		ready := make(chan struct{})
		s := &mdns.Server{Addr: address, Net: network, NotifyStartedFunc: func() { close(ready) }, Handler: mdns.HandlerFunc(
			func(w mdns.ResponseWriter, r *mdns.Msg) {
				asked.Add(1)
				m := new(mdns.Msg).SetReply(r)
				rr, _ := mdns.NewRR(r.Question[0].Name + " 60 IN A 192.0.2.9")
				m.Answer = []mdns.RR{rr}
				_ = w.WriteMsg(m)
			})}
		go func() { _ = s.ListenAndServe() }()
		<-ready
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return address, asked
}

// A server answers over UDP and TCP, and follows the services.
func TestTheServerFollowsTheServices(t *testing.T) {
	var services atomic.Pointer[dns.Services]
	services.Store(new(known()))
	server := serve(t, dns.Config{
		Services: func() (dns.Services, bool) { return *services.Load(), true },
		Others:   noOthers,
	})
	for _, network := range []string{"udp", "tcp"} {
		if m := ask(t, network, server, "web.dev.svc.cluster.local.", mdns.TypeA); text(m.Answer) !=
			"web.dev.svc.cluster.local. A 127.224.0.20" || !m.Authoritative {
			t.Errorf("%s: %v", network, m)
		}
	}
	next := known()
	delete(next, "dev/web")
	services.Store(&next)
	if m := ask(t, "udp", server, "web.dev.svc.cluster.local.", mdns.TypeA); m.Rcode != mdns.RcodeNameError {
		t.Errorf("a removed service: %v", m)
	}
}

// As long as the services are not known, no name of theirs is said not to exist.
func TestUnknownServicesAreNoAnswer(t *testing.T) {
	server := serve(t, dns.Config{Services: fixed(nil), Others: noOthers})
	if m := ask(t, "udp", server, "web.dev.svc.cluster.local.", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("answered %v", m)
	}
	server = serve(t, dns.Config{Services: func() (dns.Services, bool) { return known(), false }, Others: noOthers})
	if m := ask(t, "udp", server, "new.dev.svc.cluster.local.", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("answered %v", m)
	}
	if m := ask(t, "udp", server, "web.dev.svc.cluster.local.", mdns.TypeA); len(m.Answer) != 1 {
		t.Errorf("answered %v", m)
	}
}

// An address is free if nothing listens there, or an agent does; another server's is not.
func TestFree(t *testing.T) {
	if err := dns.Free(t.Context(), free(t)); err != nil {
		t.Error(err)
	}
	if err := dns.Free(t.Context(), serve(t, dns.Config{Services: fixed(known()), Others: noOthers})); err != nil {
		t.Errorf("of an agent: %v", err)
	}
	if address, _ := other(t); dns.Free(t.Context(), address) == nil {
		t.Error("another server's address is free")
	}
}

// Other names are asked for where the host asks, the next server if one does not answer; names of the cluster never.
func TestOtherNamesAreForwarded(t *testing.T) {
	address, asked := other(t)
	server := serve(t, dns.Config{Services: fixed(known()), Others: func() ([]string, error) {
		return []string{free(t), address}, nil
	}})
	for _, network := range []string{"udp", "tcp"} {
		if m := ask(t, network, server, "example.org.", mdns.TypeA); text(m.Answer) != "example.org. A 192.0.2.9" {
			t.Errorf("%s: %v", network, m)
		}
	}
	before := asked.Load()
	ask(t, "udp", server, "missing.dev.svc.cluster.local.", mdns.TypeA)
	if asked.Load() != before {
		t.Error("another server was asked for a name of the cluster")
	}
	m := ask(t, "udp", server, "ext.dev.svc.cluster.local.", mdns.TypeA)
	if text(m.Answer) != "ext.dev.svc.cluster.local. CNAME www.example.org.\nwww.example.org. A 192.0.2.9" {
		t.Errorf("an external name: %v", m)
	}
	if m := ask(t, "udp", server, "loop.prod.svc.cluster.local.", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("a name that leads to itself: %v", m)
	}
}

// A long answer over UDP says that it is cut off; the one over TCP has all records.
func TestLongAnswersAreCutOff(t *testing.T) {
	svc := &schedulingv1.ServiceEndpoints{Namespace: "dev", Name: "many", ClusterIp: "None"}
	for i := range 500 {
		svc.Endpoints = append(svc.Endpoints, &schedulingv1.ServiceEndpoint{
			Address: fmt.Sprintf("127.240.%d.%d", i/200, i%200+1), Serving: true,
		})
	}
	server := serve(t, dns.Config{Services: fixed(dns.Services{"dev/many": svc}), Others: noOthers})
	if m := ask(t, "udp", server, "many.dev.svc.cluster.local.", mdns.TypeA); !m.Truncated || len(m.Answer) >= 500 {
		t.Errorf("%d records, truncated %t", len(m.Answer), m.Truncated)
	}
	if m := ask(t, "tcp", server, "many.dev.svc.cluster.local.", mdns.TypeA); m.Truncated || len(m.Answer) != 500 {
		t.Errorf("%d records, truncated %t", len(m.Answer), m.Truncated)
	}
}

// What is no question of the Internet's names is refused.
func TestOddQuestionsAreRefused(t *testing.T) {
	server := serve(t, dns.Config{Services: fixed(known()), Others: noOthers})
	for want, change := range map[int]func(m *mdns.Msg){
		mdns.RcodeRefused:        func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS },
		mdns.RcodeNotImplemented: func(m *mdns.Msg) { m.Opcode = mdns.OpcodeStatus },
	} {
		m := new(mdns.Msg).SetQuestion("web.dev.svc.cluster.local.", mdns.TypeA)
		change(m)
		out, _, err := (&mdns.Client{Timeout: 30 * time.Second}).Exchange(m, server)
		if err != nil || out.Rcode != want {
			t.Errorf("%v, %v; want %s", out, err, mdns.RcodeToString[want])
		}
	}
}
