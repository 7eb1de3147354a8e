package proxy

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/servetest"
)

// often has ports be reported without the pauses; an obstacle that lasts is not reported again.
func often(p *Proxy) {
	p.pace = pace{after: time.Millisecond, every: time.Millisecond, again: time.Hour}
}

// awaitReports waits until the cluster has got these reports and no others.
func awaitReports(t *testing.T, c *cluster, want ...string) {
	t.Helper()
	servetest.Await(t, func() string {
		if got := c.reported(); !slices.Equal(got, want) {
			return fmt.Sprintf("reported %q, want %q", got, want)
		}
		return ""
	})
}

// takePort listens at a port of all addresses. Other programs of the host may use it for a connection for a moment.
func takePort(t *testing.T, port int32) (l net.Listener) {
	t.Helper()
	servetest.Await(t, func() string {
		var err error
		if l, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() { l.Close() })
	return l
}

func TestAPortThatCannotBeOpenedIsReported(t *testing.T) {
	h := newHost(t)
	s := service(t, "web", ip, newPod(t, "a").endpoint(true))
	port := s.GetPorts()[0].GetPort()
	l := takePort(t, port)
	h.cluster.refusals = 2
	h.cluster.set(s)
	agent := h.start(t.TempDir(), often)
	agent.awaitStatus(t, at(s), "UDP", "")
	blocked := fmt.Sprintf("default/web uid-web TCP %d address already in use", port)
	open := fmt.Sprintf("default/web uid-web TCP %d ", port)
	awaitReports(t, h.cluster, blocked)
	if n := h.log.count("ports of services are not reported"); n != 1 {
		t.Errorf("two refusals of one kind are logged %d times", n)
	}
	time.Sleep(5 * firstBind) // it is tried several times, and reported once
	awaitReports(t, h.cluster, blocked)
	_ = l.Close()
	awaitReports(t, h.cluster, blocked, open)
	// A service that is created again under its name has no reports yet.
	h.cluster.remove("default/web")
	away(t, at(s))
	takePort(t, port)
	s.Uid = "uid-2"
	h.cluster.set(s)
	awaitReports(t, h.cluster, blocked, open, strings.Replace(blocked, "uid-web", "uid-2", 1))
}

func TestAnObstacleThatLastsIsReportedAgain(t *testing.T) {
	h := newHost(t)
	s := service(t, "web", ip, newPod(t, "a").endpoint(true))
	l, err := net.Listen("tcp", at(s))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.cluster.set(s)
	h.start(t.TempDir(), often, func(p *Proxy) { p.pace.again = 50 * time.Millisecond })
	servetest.Await(t, func() string {
		if got := h.cluster.reported(); len(got) < 3 || got[0] != got[2] {
			return fmt.Sprintf("reported %q", got)
		}
		return ""
	})
}

func TestManyPortsAreReportedInTurn(t *testing.T) {
	p := New(Config{})
	const all = 3*reportMost + 1
	for i := range all {
		key := fmt.Sprintf("default/s-%02d", i)
		p.services[key] = &schedulingv1.ServiceEndpoints{
			Namespace: "default", Name: key, Uid: key, ClusterIp: ip, Ports: []*schedulingv1.ServiceEndpointsPort{{Port: 1}},
		}
		for name := range targetsOf(p.services[key]) {
			p.ports[key] = map[portName]*port{name: {why: "busy", said: "busy"}}
		}
	}
	p.pace.again = 2 * reportEvery // the first are due again before the last have had their turn
	said, now := map[reportedPort]lastReport{}, time.Now()
	seen := map[string]int{}
	for range 8 {
		due, _ := p.unreported(said, now)
		for _, d := range due[:min(len(due), reportMost)] {
			said[d.port] = lastReport{d.why, now}
			seen[d.service]++
		}
		now = now.Add(reportEvery)
	}
	for key := range p.ports {
		if n := seen[key]; n < 2 || n > 3 {
			t.Errorf("%s is reported %d times", key, n)
		}
	}
	p.pace.again = time.Hour
	if due, wake := p.unreported(said, now); len(due) > 0 || wake.Sub(now) > time.Hour-reportEvery {
		t.Errorf("%d are due, then more in %v", len(due), wake.Sub(now))
	}
	clear(p.ports)
	if p.unreported(said, now); len(said) != 0 {
		t.Errorf("ports that do not exist are remembered: %v", said)
	}
}

func TestAReportHasOnlyPrintableText(t *testing.T) {
	if got := printable("a\n\x1bé" + strings.Repeat("x", 300)); got != "a???"+strings.Repeat("x", maxError-4) {
		t.Errorf("%q", got)
	}
}
