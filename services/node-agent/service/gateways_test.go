package service

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/services/node-agent/pki"
)

// gateways returns the list that is on the machine's disk.
func (b *box) gateways() []string {
	b.t.Helper()
	var n pki.Node
	if err := json.Unmarshal([]byte(b.read("pki/node.json")), &n); err != nil {
		b.t.Fatal(err)
	}
	return n.Gateways
}

func (b *box) awaitGateways(want ...string) {
	b.t.Helper()
	servetest.Await(b.t, func() string {
		if got := b.gateways(); !slices.Equal(got, want) {
			return fmt.Sprintf("gateways %q, want %q", got, want)
		}
		return ""
	})
}

func (c *cluster) awaitRenewals(more int) {
	c.t.Helper()
	start := -1
	servetest.Await(c.t, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if start < 0 {
			start = c.renewals
		}
		if c.renewals < start+more {
			return fmt.Sprintf("%d of %d renewals", c.renewals-start, more)
		}
		return ""
	})
}

func TestTheGatewaysAreRenewedWithTheCertificates(t *testing.T) {
	c := newCluster(t, "gateway")
	c.lifetime = 6 * time.Second // one that expires before a busy host renews it is never renewed
	first := c.address
	b := newBox(t, c, "worker")
	stop, _ := b.run()
	c.awaitBeats("m-0", 1)
	if got := b.gateways(); len(got) > 0 {
		t.Errorf("gateways %q of a cluster that names none", got)
	}
	second, _ := c.another(servetest.Service("gateway"))
	c.locked(func() { c.gateways = []string{second} })
	b.awaitGateways(second)
	// The gateway that the provider wrote down goes.
	c.server.Stop()
	c.awaitBeats("m-0", 2)
	stop()
	stop, _ = b.run()
	c.awaitBeats("m-0", 2)
	c.awaitRenewals(1)

	// A list that is empty, or wrong, changes nothing.
	seventeen := []string{}
	for i := range 17 {
		seventeen = append(seventeen, fmt.Sprintf("127.0.0.1:%d", 1+i))
	}
	for _, list := range [][]string{nil, {second, "127.0.0.1"}, {":6443"}, seventeen} {
		c.locked(func() { c.gateways = list })
		c.awaitRenewals(2)
		if got := b.gateways(); !slices.Equal(got, []string{second}) {
			t.Fatalf("gateways %q after a list %q", got, list)
		}
	}
	// Where nothing of the list answers, the gateway of the bootstrap file does, and by it comes a better one.
	nothing := "127.0.0.1:1"
	c.locked(func() { c.gateways = []string{nothing} })
	b.awaitGateways(nothing)
	stop()
	c.listen(first)
	b.run()
	c.awaitBeats("m-0", 2)
	c.locked(func() { c.gateways = []string{second, first} })
	b.awaitGateways(second, first)
	c.awaitBeats("m-0", 2)
}

// An address in the list is believed no more than the certificate that is shown there.
func TestAStrangerAmongTheGatewaysGetsNothing(t *testing.T) {
	c := newCluster(t, "gateway")
	elsewhere, sibling, misplaced := newCluster(t, "gateway"), newCluster(t, "hook-broker"), newCluster(t, "gateway")
	// A service of the cluster, and its gateway's certificate at an address that is not in it.
	sibling.ground, misplaced.ground = c.ground, c.ground
	other, _ := sibling.another(servetest.Service("hook-broker"))
	request := servetest.Service("gateway")
	request.IPs = []net.IP{net.IPv4(127, 0, 0, 9)}
	wrong, _ := misplaced.another(request)
	strangers := map[string]*cluster{elsewhere.address: elsewhere, other: sibling, wrong: misplaced}
	for _, s := range strangers {
		s.token = c.token
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	list := []string{elsewhere.address, other, wrong, silent.Addr().String()}
	c.gateways = append(slices.Clone(list), c.address)

	b := newBox(t, c, "worker")
	b.write("bootstrap.json", map[string]any{
		"endpoints": append(slices.Clone(list), c.address), "token": c.token, "role": "worker", "address": "127.0.0.1",
		"nodeName":   "m-0",
		"providerID": "local://test/m-0", "capacity": map[string]any{"cpu": "2"},
	})
	b.run()
	c.awaitBeats("m-0", 3)
	b.awaitGateways(c.gateways...)
	c.locked(func() {
		if len(c.keys) != 1 {
			t.Errorf("%d keys joined", len(c.keys))
		}
	})
	for address, s := range strangers {
		s.locked(func() {
			if len(s.keys)+len(s.nodes) > 0 {
				t.Errorf("the stranger at %s received %d keys and %d nodes", address, len(s.keys), len(s.nodes))
			}
		})
	}
	if log := b.log.String(); !strings.Contains(log, "other gateway") && !strings.Contains(log, "not joined yet") {
		t.Logf("no stranger was first in the agent's order:\n%s", log)
	}
}
