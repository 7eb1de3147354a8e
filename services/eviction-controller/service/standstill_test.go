package service

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// childEnv holds the settings with which this test binary runs the service instead of tests: a process that can be
// stopped.
const childEnv = "EVICTION_CONTROLLER_CHILD"

type childSettings struct {
	Endpoint string
	Config   serve.Config
	Grace    time.Duration
}

// child runs the service until SIGTERM, and returns the exit code.
func child(raw string) int {
	var s childSettings
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := json.Unmarshal([]byte(raw), &s)
	if err == nil {
		err = runChild(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runChild(ctx context.Context, s childSettings) error {
	client, err := store.Dial(store.ClientConfig{Endpoints: []string{s.Endpoint}})
	if err != nil {
		return err
	}
	defer client.Close()
	p, err := serve.New(s.Config, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	parts, err := build(p, client, config{Config: s.Config, grace: s.Grace, retry: time.Second, rate: 1000})
	if err != nil {
		return err
	}
	return p.Run(ctx, parts...)
}

// runApart runs the service in a process of its own.
func (c *cluster) runApart() *os.Process {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = l.Addr().String()
	s := childSettings{Endpoint: etcdtest.Endpoint(c.t), Config: c.cfg.Config, Grace: c.cfg.grace}
	s.Config.Listen = c.address
	raw, err := json.Marshal(s)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(raw))
	cmd.Stderr = os.Stderr
	if err := l.Close(); err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			c.t.Errorf("the process ended with %v", err)
		}
	})
	return cmd.Process
}

// TestAStandstillEvictsNoPod stops the process for several times the grace and for longer than its lease, like a host
// that is suspended or swaps. The agents continue to send heartbeats.
func TestAStandstillEvictsNoPod(t *testing.T) {
	const grace = 2 * time.Second
	c := start(t, grace)
	c.stop()
	process := c.runApart()
	nodes := nodev1.NewNodeServiceClient(c.admin())
	agents := []*agent{c.agent("a"), c.agent("b"), c.agent("c"), c.agent("gone")}
	before := map[string]string{}
	for _, a := range agents {
		a.beat()
		c.pods.add(a.name, "on-"+a.name)
		awaitNode(t, nodes, a.name, "ready", plan.IsReady)
	}
	gone := agents[3]
	agents = agents[:3]
	for end := time.Now().Add(grace + time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for _, a := range agents {
			a.beat()
		}
	}
	c.pods.awaitDeleted("on-gone") // one that is really lost
	for _, a := range agents {
		before[a.name] = awaitNode(t, nodes, a.name, "ready", plan.IsReady).GetMetadata().GetResourceVersion()
	}
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * grace)
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(grace / 4) // a service that counted the standstill as silence would act now
	for end := time.Now().Add(2 * grace); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for _, a := range agents {
			a.beat()
		}
	}
	for _, a := range agents {
		n := awaitNode(t, nodes, a.name, "there", func(*nodev1.Node) bool { return true })
		if n.GetMetadata().GetResourceVersion() != before[a.name] {
			t.Errorf("node %s changed: %v", a.name, n)
		}
		if got := c.pods.deletedAt("on-" + a.name); !got.IsZero() {
			t.Errorf("the pod on %s was evicted", a.name)
		}
	}
	awaitNode(t, nodes, gone.name, "lost still", func(n *nodev1.Node) bool { return plan.NoExecutes(n) })
}
