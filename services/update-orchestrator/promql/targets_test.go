package promql

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
)

func TestTheMetricsOfServicesAreRead(t *testing.T) {
	ground := servetest.New(t)
	scheduler := ground.Process(serve.Config{Name: "scheduler", MetricsListen: "127.0.0.1:0"})
	servetest.Run(t, scheduler)
	own := ground.Process(serve.Config{Name: "update-orchestrator"})
	host, port, err := net.SplitHostPort(scheduler.MetricsAddress())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(host, strconv.Itoa(n-topology.MetricsStep))
	read := func(name string) string {
		target, err := Service(name, address, own.Files())
		if err != nil {
			t.Fatal(err)
		}
		text, err := target.Read(t.Context())
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	if got := read("scheduler"); !strings.Contains(got, "windlass_policy_failed 0") {
		t.Errorf("metrics of scheduler: %s", got)
	}
	if got := read("gateway"); !strings.Contains(got, "gateway") || strings.Contains(got, "windlass_policy_failed") {
		t.Errorf("another service instead of gateway: %s", got)
	}
	stranger := ground.Process(serve.Config{Name: "hook-broker"}) // it may not read metrics
	target, err := Service("scheduler", address, stranger.Files())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
		t.Errorf("a service without the right: error = %v", err)
	}
	scraped := NewEngine([]Target{{Job: "scheduler", Read: func(ctx context.Context) ([]byte, error) {
		return []byte(read("scheduler")), nil
	}}, Self("update-orchestrator", own.Address(), own.Metrics)}, quiet(t))
	if applies, err := scraped.Evaluate(t.Context(), `count(windlass_policy_failed == 0) == bool 2`); err != nil ||
		!applies {
		t.Errorf("applies = %t, error = %v", applies, err)
	}
}
