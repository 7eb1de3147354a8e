package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// Services serves what ServiceService has beyond the standard methods.
type Services struct {
	schedulingv1.UnimplementedServiceServiceServer
	Config
}

// PlanServiceEndpoints returns where the connections to a service are led.
func (s *Services) PlanServiceEndpoints(ctx context.Context, r *schedulingv1.PlanServiceEndpointsRequest) (
	*schedulingv1.ServiceEndpoints, error,
) {
	of, err := subject(ctx, s.Tables.Services, r.GetService(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods())); err != nil {
		return nil, err
	}
	namespace := of.GetMetadata().GetNamespace()
	if live, ok := s.Tables.Services.Lookup(namespace, of.GetMetadata().GetName()); ok && plan.LacksAddress(of) {
		of.Spec.ClusterIp = live.GetSpec().GetClusterIp() // as an update would keep it
	}
	if r.GetPods() != nil {
		return plan.Endpoints(of, beside(of, r.GetPods().GetItems())), nil
	}
	// A caller who saw a pod ready, or go, does not get an answer about the time before.
	if err := s.Tables.Pods.CatchUp(ctx); err != nil {
		return nil, err
	}
	return plan.Endpoints(of, slices.Collect(s.Tables.Pods.In(namespace))), nil
}

const (
	// endpointsBytes is the size of a message of WatchServiceEndpoints from which on a further one is begun: gRPC clients
	// accept 4 MiB by default.
	endpointsBytes = 1 << 20
	// gatherEndpoints is how long a stream waits after a message for further changes, which then are one message: while
	// many pods start, each agent gets some messages a second and not one for each pod. The first change is sent at once.
	gatherEndpoints = 20 * time.Millisecond
)

// WatchServiceEndpoints sends where the connections to all services are led, and then every change.
func (s *Agents) WatchServiceEndpoints(r *schedulingv1.WatchServiceEndpointsRequest,
	stream grpc.ServerStreamingServer[schedulingv1.WatchServiceEndpointsResponse],
) error {
	ctx := stream.Context()
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return err
	}
	// An agent forgets the services that it is not sent at first.
	if err := current(ctx, s.Tables.Services, s.Tables.Pods); err != nil {
		return err
	}
	if err := s.Traffic.Refresh(ctx); err != nil {
		return err
	}
	follow := s.Traffic.Watch()
	defer follow.Close()
	all, err := follow.All(ctx)
	if err != nil {
		return err
	}
	for _, m := range endpointMessages(all, nil) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if err := stream.Send(&schedulingv1.WatchServiceEndpointsResponse{Complete: true}); err != nil {
		return err
	}
	for {
		changed, removed, err := follow.Next(ctx)
		if err != nil {
			return err
		}
		for _, m := range endpointMessages(changed, removed) {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-time.After(gatherEndpoints):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endpointMessages divides changes among messages.
func endpointMessages(changed []*schedulingv1.ServiceEndpoints, removed []string) (
	out []*schedulingv1.WatchServiceEndpointsResponse,
) {
	if len(removed) > 0 {
		out = append(out, &schedulingv1.WatchServiceEndpointsResponse{Removed: removed})
	}
	for len(changed) > 0 {
		n, size := 0, 0
		for n < len(changed) && (n == 0 || size < endpointsBytes) {
			size += proto.Size(changed[n])
			n++
		}
		out = append(out, &schedulingv1.WatchServiceEndpointsResponse{Changed: changed[:n]})
		changed = changed[n:]
	}
	return out
}
