package attacks

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// TestAgentsLeaveAGatewayThatHangs stops each of two gateways, and then a majority of etcd, without which neither
// serves. Nodes whose agents know both are Ready all the same; the others, which joined before there was a second one,
// are lost with the first.
func TestAgentsLeaveAGatewayThatHangs(t *testing.T) {
	c := harness.Second(t) // the shared cluster has other tests' nodes
	c.Settle(time.Minute)
	second := secondGateway(t, c)
	c.MustCLI("up", "--name", c.Name(), "--set", "machine-api.gateway="+second.address)
	c.Settle(time.Minute)
	before, err := readiness(nodev1.NewNodeServiceClient(c.Conn()))
	if err != nil {
		t.Fatal(err)
	}
	c.MustCLI("scale", "machineset/workers", "--replicas=4")
	c.Settle(2 * time.Minute)
	conn, err := c.Admin().Dial(second.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	first, other := nodev1.NewNodeServiceClient(c.Conn()), nodev1.NewNodeServiceClient(conn)
	until(t, "the second gateway serves", func() bool {
		_, err := readiness(other)
		return err == nil
	})
	now, err := readiness(first)
	if err != nil {
		t.Fatal(err)
	}
	var fresh []string
	for name := range now {
		if _, old := before[name]; !old {
			fresh = append(fresh, name)
		}
	}
	if len(fresh) != 2 {
		t.Fatalf("new nodes %q, want 2", fresh)
	}
	for _, name := range fresh {
		text, err := os.ReadFile(c.Dir("services", "provider-local", "machines", name, "pki", "node.json"))
		var n struct {
			Gateways []string `json:"gateways"`
		}
		if err != nil || json.Unmarshal(text, &n) != nil || !slices.Equal(n.Gateways, []string{c.Gateway(), second.address}) {
			t.Errorf("the agent of %s keeps the gateways %q: %s %v", name, n.Gateways, text, err)
		}
	}
	// lost returns the nodes that are not Ready; nil if the gateway does not say, or if one of those with two gateways is
	// among them.
	lost := func(nodes nodev1.NodeServiceClient) []string {
		now, err := readiness(nodes)
		if err != nil {
			return nil
		}
		out := []string{}
		for name, ready := range now {
			if ready == "True" {
				continue
			}
			if slices.Contains(fresh, name) {
				return nil
			}
			out = append(out, name)
		}
		return out
	}
	allReady := func() bool {
		for _, nodes := range []nodev1.NodeServiceClient{first, other} {
			if list := lost(nodes); list == nil || len(list) > 0 {
				return false
			}
		}
		return true
	}
	if err := c.Pause("gateway"); err != nil {
		t.Fatal(err)
	}
	until(t, "the nodes with one gateway are lost, and no others", func() bool { return len(lost(other)) == len(before) })
	if err := c.Continue("gateway"); err != nil {
		t.Fatal(err)
	}
	until(t, "every node is Ready again", allReady)

	// A node whose agent is stopped is lost when others would be through the gateway.
	stopped := fresh[0]
	fresh = fresh[1:]
	if err := errors.Join(syscall.Kill(second.pid, syscall.SIGSTOP), c.Pause(harness.Agent(stopped))); err != nil {
		t.Fatal(err)
	}
	until(t, "the node whose agent is stopped is lost, and no other",
		func() bool { return slices.Equal(lost(first), []string{stopped}) })
	if err := errors.Join(syscall.Kill(second.pid, syscall.SIGCONT), c.Continue(harness.Agent(stopped))); err != nil {
		t.Fatal(err)
	}
	until(t, "every node is Ready, by both gateways", allReady)

	masters := c.MustMachines("master")[:2]
	for _, m := range masters {
		if err := c.Pause(harness.Member(m.GetMetadata().GetName())); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "neither gateway serves", func() bool {
		_, err1 := readiness(first)
		_, err2 := readiness(other)
		return status.Code(err1) == codes.Unavailable && status.Code(err2) == codes.Unavailable
	})
	for _, m := range masters {
		if err := c.Continue(harness.Member(m.GetMetadata().GetName())); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "every node is Ready when the majority is back", allReady)
}

// readiness returns the status of each node's condition Ready.
func readiness(nodes nodev1.NodeServiceClient) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := nodes.ListNodes(ctx, &nodev1.ListNodesRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, n := range list.GetItems() {
		out[n.GetMetadata().GetName()] = ""
		for _, cond := range n.GetStatus().GetConditions() {
			if cond.GetType() == "Ready" {
				out[n.GetMetadata().GetName()] = cond.GetStatus()
			}
		}
	}
	return out, nil
}
