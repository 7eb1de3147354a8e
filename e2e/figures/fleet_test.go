package figures

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/topology"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

const (
	fleetPods    = 100_000
	fleetWriters = 64
	watchesEach  = 1000 // what one connection may have
	fleetConns   = 10
	gatewayConns = 4   // of a user each
	gatewayEach  = 900 // the gateway lets a user have 1,000 streams, and all of them 4,000
	fleetPage    = 500 // as the CLI asks for
	// readingsApart is how far apart two readings of memory are that are compared: Go returns memory all the time, and
	// much of it within this.
	readingsApart = 3 * time.Second
)

// TestFleet measures the memory of watches that receive nothing, and a list of 100,000 pods in pages.
func TestFleet(t *testing.T) {
	rounds(t)
	c := harness.Up(t)
	c.Settle(time.Minute)
	before := memories(t, c)
	var conns []*grpc.ClientConn
	for range fleetConns {
		conn, err := c.Admin().Direct(topology.Port(topology.Scheduler))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	end := watchFleet(t, conns, watchesEach)
	grown(t, c, before, fmt.Sprintf("%d idle watches of the pods of one node each, at the owner", fleetConns*watchesEach))
	end()

	before = memories(t, c)
	conns = nil
	for i := range gatewayConns {
		conns = append(conns, c.As(fmt.Sprintf("figure-%d", i), "windlass:viewers").Conn())
	}
	end = watchFleet(t, conns, gatewayEach)
	grown(t, c, before, fmt.Sprintf("%d such watches through the gateway", gatewayConns*gatewayEach))
	end()

	createFleet(t, c)
	awaitReturned(t, c)
	listFleet(t, c)
}

// createFleet creates pods that no scheduler places, at the scheduler itself.
func createFleet(t *testing.T, c *harness.Cluster) {
	t.Helper()
	begun := time.Now()
	var group errgroup.Group
	for w := range fleetWriters {
		conn, err := c.Admin().Direct(topology.Port(topology.Scheduler))
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() error {
			defer conn.Close()
			pods := schedulingv1.NewPodServiceClient(conn)
			for i := w; i < fleetPods; i += fleetWriters {
				_, err := pods.CreatePod(t.Context(), &schedulingv1.CreatePodRequest{Pod: &schedulingv1.Pod{
					Metadata: &metav1.ObjectMeta{
						Name: fmt.Sprintf("fleet-%06d", i), Namespace: "default", Labels: map[string]string{"app": "fleet"},
					},
					Spec: &schedulingv1.PodSpec{
						SchedulerName: "none",
						Containers:    []*schedulingv1.Container{{Name: "hello", Image: "docker.io/ocpqe/hello-pod"}},
					},
				}})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%d pods created in %v\n", fleetPods, time.Since(begun).Round(time.Second))
}

// listFleet lists all pods over REST, a page at a time.
func listFleet(t *testing.T, c *harness.Cluster) {
	t.Helper()
	before := memories(t, c)
	begun, pages, pods, token := time.Now(), 0, 0, ""
	for {
		query := url.Values{"limit": {fmt.Sprint(fleetPage)}, "continue": {token}}
		r, err := c.Admin().REST(t.Context(), http.MethodGet, "/v1/pods?"+query.Encode(), "", nil)
		if err != nil || r.Code != http.StatusOK {
			t.Fatalf("page %d: %d %s %v", pages, r.Code, r.Body[:min(len(r.Body), 300)], err)
		}
		var list struct {
			Items    []json.RawMessage `json:"items"`
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(r.Body, &list); err != nil {
			t.Fatal(err)
		}
		pages, pods = pages+1, pods+len(list.Items)
		if token = list.Metadata.Continue; token == "" {
			break
		}
	}
	if pods < fleetPods {
		t.Fatalf("%d pods listed on %d pages, want %d", pods, pages, fleetPods)
	}
	grown(t, c, before, fmt.Sprintf("%d pods listed over REST on %d pages in %v", pods, pages,
		time.Since(begun).Round(100*time.Millisecond)))
}

// watchFleet opens watches, each of the pods of a node of its own, until all have begun. The returned function ends
// them.
func watchFleet(t *testing.T, conns []*grpc.ClientConn, each int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	var streams sync.WaitGroup
	for i, conn := range conns {
		group.Go(func() error {
			pods := schedulingv1.NewPodServiceClient(conn)
			for n := range each {
				stream, err := pods.WatchPods(ctx, &schedulingv1.WatchPodsRequest{
					FieldSelector: fmt.Sprintf("spec.nodeName=figure-%d-%d", i, n),
				})
				if err != nil {
					return err
				}
				if _, err := stream.Recv(); err != nil { // the bookmark of an empty list
					return err
				}
				streams.Go(func() {
					for {
						if _, err := stream.Recv(); err != nil {
							return
						}
					}
				})
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return func() { cancel(); streams.Wait() }
}

// memories returns the resident memory of each process in MB, by its name and number, and has the kernel note the most
// from now on.
func memories(t *testing.T, c *harness.Cluster) map[string]float64 {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, p := range list {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID), []byte("5"), 0); err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprintf("%s %d", p.Name, p.PID)] = statusMB(t, p.PID, "VmRSS:")
	}
	return out
}

// awaitReturned waits until the processes have returned what they needed before: until the memory of none is lower than
// at the last reading.
func awaitReturned(t *testing.T, c *harness.Cluster) {
	t.Helper()
	before := map[string]float64{}
	c.Wait(5*time.Minute, "memory that is returned", func(ctx context.Context) (bool, string, error) {
		next := memories(t, c)
		select {
		case <-time.After(readingsApart):
		case <-ctx.Done():
			return false, "", ctx.Err()
		}
		returned := 0.0
		for name, mb := range next {
			returned += max(0, before[name]-mb)
		}
		first := len(before) == 0
		before = next
		return !first && returned < 1, fmt.Sprintf("%.0f MB were returned since the last reading", returned), nil
	})
}

// grown prints how much more memory each process had at most since before, where that is more than 5 MB.
func grown(t *testing.T, c *harness.Cluster, before map[string]float64, what string) {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s:\n", what)
	all := 0.0
	for _, p := range list {
		had := before[fmt.Sprintf("%s %d", p.Name, p.PID)]
		more := statusMB(t, p.PID, "VmHWM:") - had
		all += more
		if more > 5 {
			fmt.Printf("| %s | %.0f MB | + %.0f MB |\n", p.Name, had, more)
		}
	}
	fmt.Printf("| all | | + %.0f MB |\n", all)
}

func statusMB(t *testing.T, pid int, field string) float64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kb float64
	_, rest, _ := strings.Cut(string(data), field)
	if _, err := fmt.Fscan(io.LimitReader(strings.NewReader(rest), 64), &kb); err != nil {
		t.Fatal(err)
	}
	return kb * 1024 / 1e6
}
