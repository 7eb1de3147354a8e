package service

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// BenchmarkHeartbeats has 5,000 agents send ten heartbeats each, one a second, over connections of their own with
// certificates of their own. The service runs in a process of its own: it measures the processor time of that process,
// and when the answers come.
func BenchmarkHeartbeats(b *testing.B) {
	const nodes, each = 5000, 10
	c := start(b, time.Minute)
	c.stop()
	process := c.runApart()
	streams := make([]grpc.BidiStreamingClient[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse], nodes)
	var registering errgroup.Group
	registering.SetLimit(16)
	for i := range streams {
		name := fmt.Sprint("n", i)
		client := nodev1.NewNodeAgentServiceClient(c.node(name))
		registering.Go(func() error {
			_, err := client.RegisterNode(b.Context(), &nodev1.RegisterNodeRequest{
				Name: name, ProviderId: "local://test/" + name,
				Machine: &metav1.ObjectReference{Namespace: "openshift-machine-api", Name: name},
				Status:  &nodev1.NodeStatus{NodeInfo: &nodev1.NodeSystemInfo{BootId: "boot"}},
			})
			if err == nil {
				streams[i], err = client.Heartbeat(b.Context())
			}
			if err != nil {
				return err
			}
			_, err = beat(streams[i], i)
			return err
		})
	}
	if err := registering.Wait(); err != nil {
		b.Fatal(err)
	}
	admin := nodev1.NewNodeServiceClient(c.admin())
	// The controller has decided about the last one once that is ready.
	for name := fmt.Sprint("n", nodes-1); ; time.Sleep(100 * time.Millisecond) {
		n, err := admin.GetNode(b.Context(), &nodev1.GetNodeRequest{Name: name})
		if err != nil {
			b.Fatal(err)
		}
		if plan.IsReady(n) {
			break
		}
	}
	var mu sync.Mutex
	var took []time.Duration
	for b.Loop() {
		before := used(b, process.Pid)
		var agents errgroup.Group
		for i, stream := range streams {
			agents.Go(func() error {
				time.Sleep(time.Duration(i) * time.Second / nodes)
				ticker := time.NewTicker(time.Second)
				defer ticker.Stop()
				for range each {
					d, err := beat(stream, i)
					if err != nil {
						return err
					}
					mu.Lock()
					took = append(took, d)
					mu.Unlock()
					<-ticker.C
				}
				return nil
			})
		}
		if err := agents.Wait(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(used(b, process.Pid)-before)/100, "cpu-s")
	}
	slices.Sort(took)
	b.ReportMetric(float64(len(took)), "heartbeats")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// beat sends one heartbeat and returns after how long its answer came.
func beat(s grpc.BidiStreamingClient[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse], i int) (time.Duration, error) {
	began := time.Now()
	if err := s.Send(&nodev1.HeartbeatRequest{Name: fmt.Sprint("n", i), BootId: "boot"}); err != nil {
		return 0, err
	}
	_, err := s.Recv()
	return time.Since(began), err
}

// used returns the processor time of a process, in hundredths of a second. Source: proc_pid_stat(5).
func used(b *testing.B, pid int) int {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		b.Fatal(err)
	}
	system, err := strconv.Atoi(fields[12])
	if err != nil {
		b.Fatal(err)
	}
	return user + system
}
