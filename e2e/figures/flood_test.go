package figures

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

func TestMain(m *testing.M) {
	harness.Flooding()
	os.Exit(m.Run())
}

const (
	floodAttempts  = 20_000
	floodProcesses = 4
	afterFlood     = 5 * time.Second // the connections that are left stay idle, and calls go on
)

// TestFlood measures a caller with a certificate while 20,000 connections without credentials are attempted.
func TestFlood(t *testing.T) {
	n := rounds(t)
	kept := figure{what: "20,000 anonymous connections: call on an open connection, p99", unit: "ms"}
	fresh := figure{what: "the same: new connection and call, p99", unit: "ms"}
	memory := figure{what: "the same: most memory of the gateway", unit: "MB"}
	open := figure{what: "the same: most connections open at a time", unit: ""}
	for range min(n, 3) {
		t.Run("", func(t *testing.T) {
			c := harness.Up(t)
			c.Settle(time.Minute)
			flood := harness.StartFlood(t, c.Gateway(), floodProcesses, floodAttempts)
			var calls, connections figure
			most, end := 0, time.Time{}
			for i := 0; end.IsZero() || time.Now().Before(end); i++ {
				begun := time.Now()
				if _, err := nodev1.NewNodeServiceClient(c.Conn()).ListNodes(context.Background(),
					&nodev1.ListNodesRequest{}); err != nil {
					t.Fatal(err)
				}
				calls.add(float64(time.Since(begun).Microseconds()) / 1000)
				if i%10 == 0 {
					connections.add(connectMS(t, c))
				}
				have, tried := flood.Counts()
				most = max(most, have)
				if tried == floodAttempts && end.IsZero() {
					end = time.Now().Add(afterFlood)
				}
				time.Sleep(2 * time.Millisecond) // a caller, not a load
			}
			kept.add(calls.quantile(0.99))
			fresh.add(connections.quantile(0.99))
			memory.add(gatewayMB(t, c))
			open.add(float64(most))
			fmt.Printf("%d calls p50 %.3g ms, %d new connections p50 %.3g ms\n", len(calls.values), calls.quantile(0.5),
				len(connections.values), connections.quantile(0.5))
			flood.End()
		})
	}
	kept.print()
	fresh.print()
	memory.print()
	open.print()
}

func connectMS(t *testing.T, c *harness.Cluster) float64 {
	t.Helper()
	begun := time.Now()
	conn, err := c.Admin().Dial(c.Gateway())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := metav1.NewAccessServiceClient(conn).WhoAmI(context.Background(), &metav1.WhoAmIRequest{}); err != nil {
		t.Error(err)
	}
	return float64(time.Since(begun).Microseconds()) / 1000
}

// gatewayMB returns the most resident memory that the gateway has had.
func gatewayMB(t *testing.T, c *harness.Cluster) float64 {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name != "gateway" {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		var kb float64
		_, rest, _ := strings.Cut(string(data), "VmHWM:")
		if _, err := fmt.Sscan(rest, &kb); err != nil {
			t.Fatal(err)
		}
		return kb * 1024 / 1e6
	}
	t.Fatal("there is no gateway")
	return 0
}
