package harness

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

const (
	// scanEvery is how often a record looks which processes of pods run.
	scanEvery = 200 * time.Millisecond
	// recorded is the number of kinds that a record follows.
	recorded = 6
)

// Object is what a record holds: pods, nodes, drains, machines, cluster operators and the version of the cluster.
type Object interface {
	GetMetadata() *metav1.ObjectMeta
}

// Step is one change of one object.
type Step struct {
	Revision int64 // of etcd: it orders the changes of all kinds
	Object   Object
	Deleted  bool
}

// Record is every change of pods, nodes, drains, machines, cluster operators and the cluster's version, whichever
// program dies: its watches go on where they broke off. It also looks which processes of pods run.
type Record struct {
	c    *Cluster
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	steps  []Step
	synced map[string]bool // kinds of which everything is known
	faults []string        // that were seen on the way
	scans  int
}

// Record begins a record; it returns when all that there is has been recorded. It ends with Check, or when the test
// ends.
func (c *Cluster) Record() *Record {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &Record{c: c, stop: cancel, synced: map[string]bool{}}
	conn := c.Conn()
	pods, nodes, drains := schedulingv1.NewPodServiceClient(conn), nodev1.NewNodeServiceClient(conn),
		nodev1.NewDrainServiceClient(conn)
	machines := machinev1.NewMachineServiceClient(conn)
	operators, versions := updatev1.NewClusterOperatorServiceClient(conn), updatev1.NewClusterVersionServiceClient(conn)
	record(ctx, r, "pods",
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[schedulingv1.WatchPodsResponse], error) {
			return pods.WatchPods(ctx, &schedulingv1.WatchPodsRequest{ResourceVersion: after, AllowWatchBookmarks: true})
		}, func(m *schedulingv1.WatchPodsResponse) []change {
			return changes[*schedulingv1.Pod](m.GetEvents())
		})
	record(ctx, r, "nodes", func(ctx context.Context, after string) (grpc.ServerStreamingClient[nodev1.WatchNodesResponse],
		error,
	) {
		return nodes.WatchNodes(ctx, &nodev1.WatchNodesRequest{ResourceVersion: after, AllowWatchBookmarks: true})
	}, func(m *nodev1.WatchNodesResponse) []change {
		return changes[*nodev1.Node](m.GetEvents())
	})
	record(ctx, r, "drains",
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[nodev1.WatchDrainsResponse], error) {
			return drains.WatchDrains(ctx, &nodev1.WatchDrainsRequest{ResourceVersion: after, AllowWatchBookmarks: true})
		}, func(m *nodev1.WatchDrainsResponse) []change {
			return changes[*nodev1.Drain](m.GetEvents())
		})
	record(ctx, r, "machines",
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[machinev1.WatchMachinesResponse], error) {
			return machines.WatchMachines(ctx, &machinev1.WatchMachinesRequest{
				ResourceVersion: after, AllowWatchBookmarks: true,
			})
		}, func(m *machinev1.WatchMachinesResponse) []change {
			return changes[*machinev1.Machine](m.GetEvents())
		})
	record(ctx, r, "clusteroperators",
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[updatev1.WatchClusterOperatorsResponse], error) {
			return operators.WatchClusterOperators(ctx, &updatev1.WatchClusterOperatorsRequest{
				ResourceVersion:     after,
				AllowWatchBookmarks: true,
			})
		}, func(m *updatev1.WatchClusterOperatorsResponse) []change {
			return changes[*updatev1.ClusterOperator](m.GetEvents())
		})
	record(ctx, r, "clusterversions",
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[updatev1.WatchClusterVersionsResponse], error) {
			return versions.WatchClusterVersions(ctx, &updatev1.WatchClusterVersionsRequest{
				ResourceVersion:     after,
				AllowWatchBookmarks: true,
			})
		}, func(m *updatev1.WatchClusterVersionsResponse) []change {
			return changes[*updatev1.ClusterVersion](m.GetEvents())
		})
	r.done.Go(func() { r.scan(ctx) })
	c.t.Cleanup(r.end)
	c.Wait(callPatience, "a record of everything that there is", func(context.Context) (bool, string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.synced) == recorded, fmt.Sprint(slices.Sorted(maps.Keys(r.synced))), nil
	})
	return r
}

func (r *Record) end() {
	r.stop()
	r.done.Wait()
}

// change is one event of a watch, of whichever kind.
type change struct {
	object  Object
	deleted bool
}

type event[T Object] interface {
	GetType() string
	GetObject() T
}

func changes[T Object, E event[T]](events []E) []change {
	out := make([]change, len(events))
	for i, e := range events {
		out[i] = change{e.GetObject(), e.GetType() == "DELETED"}
	}
	return out
}

// frame is one message of a watch.
type frame interface {
	GetResourceVersion() string
	GetBookmark() bool
}

// record follows a kind until ctx ends.
func record[M any, F interface {
	*M
	frame
}](ctx context.Context, r *Record, kind string,
	open func(ctx context.Context, after string) (grpc.ServerStreamingClient[M], error), read func(F) []change,
) {
	r.done.Go(func() {
		after := ""
		for ctx.Err() == nil {
			err := session(ctx, r, kind, &after, open, read)
			if status.Code(err) == codes.OutOfRange {
				r.fault("the watch of %s cannot go on where it broke off, at %s: %v", kind, after, err)
				after = ""
			}
			pause := time.NewTimer(lookEvery)
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
	})
}

// session is one stream. after is where to go on, empty for a new list.
func session[M any, F interface {
	*M
	frame
}](ctx context.Context, r *Record, kind string, after *string,
	open func(ctx context.Context, after string) (grpc.ServerStreamingClient[M], error), read func(F) []change,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx, *after)
	if err != nil {
		return err
	}
	var initial []change
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		f := F(m)
		all := read(f)
		if *after == "" && !f.GetBookmark() {
			initial = append(initial, all...)
			continue
		}
		if *after == "" {
			all = append(initial, all...)
		}
		r.add(kind, f.GetResourceVersion(), all)
		*after = f.GetResourceVersion()
	}
}

func (r *Record) add(kind, at string, all []change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced[kind] = true
	for _, c := range all {
		text := c.object.GetMetadata().GetResourceVersion()
		if c.deleted {
			text = at
		}
		revision, _ := strconv.ParseInt(text, 10, 64) // the API promises a number
		r.steps = append(r.steps, Step{revision, c.object, c.deleted})
	}
}

func (r *Record) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.faults, text) {
		r.faults = append(r.faults, text)
	}
}

// Steps returns what was recorded so far, in the order in which it happened.
func (r *Record) Steps() []Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.steps)
	slices.SortStableFunc(out, func(a, b Step) int { return cmp.Compare(a.Revision, b.Revision) })
	return out
}

// scan looks again and again whether a container runs twice.
func (r *Record) scan(ctx context.Context) {
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		list, err := r.c.Processes()
		if err != nil {
			continue
		}
		for _, text := range runTwice(list) {
			r.fault("%s", text)
		}
		r.mu.Lock()
		r.scans++
		r.mu.Unlock()
	}
}

// runTwice says which containers have more than one process.
func runTwice(list []Process) []string {
	first := map[string]Process{}
	var out []string
	for _, p := range list {
		_, rest, _ := strings.Cut(strings.TrimPrefix(p.Name, podPrefix), "/")
		if !strings.HasPrefix(p.Name, podPrefix) {
			continue
		}
		if other, ok := first[rest]; ok {
			out = append(out, fmt.Sprintf("container %s runs twice: %s and %s", rest, other, p))
		}
		first[rest] = p
	}
	return out
}
