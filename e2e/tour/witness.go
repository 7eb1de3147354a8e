package main

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// witness sends everything that it sees of a cluster to out. It decides nothing.
type witness struct {
	cluster *cluster
	out     chan<- observation
}

func (w witness) send(ctx context.Context, o observation) {
	o.at = time.Now()
	select {
	case w.out <- o:
	case <-ctx.Done():
	}
}

// watch sends what happens to all objects from now on, until ctx ends. It has begun when it returns, whatever g has
// started by then.
func (w witness) watch(ctx context.Context, g *errgroup.Group) error {
	machines, err := w.cluster.machines.ListMachines(ctx, &machinev1.ListMachinesRequest{Namespace: namespace}, patient)
	if err != nil {
		return err
	}
	nodes, err := w.cluster.nodes.ListNodes(ctx, &nodev1.ListNodesRequest{}, patient)
	if err != nil {
		return err
	}
	drains, err := w.cluster.drains.ListDrains(ctx, &nodev1.ListDrainsRequest{}, patient)
	if err != nil {
		return err
	}
	tasks, err := w.cluster.tasks.ListHookTasks(ctx, &hookv1.ListHookTasksRequest{}, patient)
	if err != nil {
		return err
	}
	g.Go(func() error { return w.watchMachines(ctx, machines.GetMetadata().GetResourceVersion()) })
	g.Go(func() error { return w.watchNodes(ctx, nodes.GetMetadata().GetResourceVersion()) })
	g.Go(func() error { return w.watchDrains(ctx, drains.GetMetadata().GetResourceVersion()) })
	g.Go(func() error { return w.watchTasks(ctx, tasks.GetMetadata().GetResourceVersion()) })
	g.Go(func() error { return w.watchQuorum(ctx) })
	return nil
}

// follow reads a watch, and resumes it where it broke off, until ctx ends.
func follow[R any](ctx context.Context, what, after string,
	open func(ctx context.Context, after string) (grpc.ServerStreamingClient[R], error), handle func(*R) (upTo string),
) error {
	for {
		err := read(ctx, &after, open, handle)
		switch {
		case ctx.Err() != nil:
			return nil
		case status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded &&
			status.Code(err) != codes.Canceled:
			return fmt.Errorf("watch of %s after revision %s: %w", what, after, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func read[R any](ctx context.Context, after *string, open func(context.Context, string) (grpc.ServerStreamingClient[R],
	error), handle func(*R) string,
) error {
	stream, err := open(ctx, *after)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		*after = handle(m)
	}
}

// gone is the type of the event of a deletion.
const gone = "DELETED"

func (w witness) watchMachines(ctx context.Context, after string) error {
	return follow(ctx, "machines", after,
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[machinev1.WatchMachinesResponse], error) {
			return w.cluster.machines.WatchMachines(ctx, &machinev1.WatchMachinesRequest{
				Namespace:       namespace,
				ResourceVersion: after,
			}, patient)
		}, func(r *machinev1.WatchMachinesResponse) string {
			for _, e := range r.GetEvents() {
				w.send(ctx, observation{machine: e.GetObject(), deleted: e.GetType() == gone})
			}
			return r.GetResourceVersion()
		})
}

func (w witness) watchNodes(ctx context.Context, after string) error {
	return follow(ctx, "nodes", after,
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[nodev1.WatchNodesResponse], error) {
			return w.cluster.nodes.WatchNodes(ctx, &nodev1.WatchNodesRequest{ResourceVersion: after}, patient)
		}, func(r *nodev1.WatchNodesResponse) string {
			for _, e := range r.GetEvents() {
				w.send(ctx, observation{node: e.GetObject(), deleted: e.GetType() == gone})
			}
			return r.GetResourceVersion()
		})
}

func (w witness) watchDrains(ctx context.Context, after string) error {
	return follow(ctx, "drains", after,
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[nodev1.WatchDrainsResponse], error) {
			return w.cluster.drains.WatchDrains(ctx, &nodev1.WatchDrainsRequest{ResourceVersion: after}, patient)
		}, func(r *nodev1.WatchDrainsResponse) string {
			for _, e := range r.GetEvents() {
				w.send(ctx, observation{drain: e.GetObject(), deleted: e.GetType() == gone})
			}
			return r.GetResourceVersion()
		})
}

func (w witness) watchTasks(ctx context.Context, after string) error {
	return follow(ctx, "hook tasks", after,
		func(ctx context.Context, after string) (grpc.ServerStreamingClient[hookv1.WatchHookTasksResponse], error) {
			return w.cluster.tasks.WatchHookTasks(ctx, &hookv1.WatchHookTasksRequest{ResourceVersion: after}, patient)
		}, func(r *hookv1.WatchHookTasksResponse) string {
			for _, e := range r.GetEvents() {
				w.send(ctx, observation{task: e.GetObject(), deleted: e.GetType() == gone})
			}
			return r.GetResourceVersion()
		})
}

func (w witness) watchQuorum(ctx context.Context) error {
	return follow(ctx, "the quorum", "",
		func(ctx context.Context, _ string) (grpc.ServerStreamingClient[etcdv1.WatchQuorumResponse], error) {
			return w.cluster.quorums.WatchQuorum(ctx, &etcdv1.WatchQuorumRequest{}, patient)
		}, func(r *etcdv1.WatchQuorumResponse) string {
			w.send(ctx, observation{quorum: r.GetQuorum()})
			return ""
		})
}

var waitsLine = regexp.MustCompile(`(?mi)^\s*wait(?:s|ing)[ -]?for:?\s+(\S.*?)\s*$`)

// describe asks again and again what a machine waits for, as a user would, until it is gone or ctx ends.
func (w witness) describe(ctx context.Context, s shell, machine string) {
	const every = 200 * time.Millisecond // a command costs some 30 ms of a core
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		asked := time.Now()
		out, err := s.output(ctx, "windlass", "describe", "machine", machine)
		if m := waitsLine.FindStringSubmatch(out); err == nil && m != nil {
			w.send(ctx, observation{waits: m[1], asked: asked})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
