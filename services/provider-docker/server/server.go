// Package server answers the calls of machine-api with the containers of a Docker engine.
package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/provider-docker/engine"
	"github.com/windlass-dev/windlass/services/provider-docker/fleet"
)

// Server implements provider.v1.ProviderService.
type Server struct {
	providerv1.UnimplementedProviderServiceServer
	fleet *fleet.Fleet
}

// New returns the server of a fleet.
func New(f *fleet.Fleet) *Server { return &Server{fleet: f} }

// GetProviderInfo says what the provider is, or why the engine is not available: machine-api reports that as the state
// of the provider.
func (s *Server) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	if _, _, err := s.fleet.Snapshot(); err != nil {
		return nil, refused("provider", "docker", err)
	}
	return &providerv1.GetProviderInfoResponse{
		Name: "docker", Platform: "Docker", ProviderSpecKinds: []string{fleet.SpecKind},
		FailureDomainFields: map[string]string{"zone": "zone"},
		TokenRetention:      durationpb.New(ledger.Retention),
	}, nil
}

// ValidateProviderSpec says what is wrong with a provider spec. It needs no engine: an image or a network that does not
// exist yet is not wrong.
func (s *Server) ValidateProviderSpec(_ context.Context, r *providerv1.ValidateProviderSpecRequest) (
	*providerv1.ValidateProviderSpecResponse, error,
) {
	if _, faults := fleet.ParseSpec(r.GetProviderSpec()); len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	return &providerv1.ValidateProviderSpecResponse{}, nil
}

// CreateInstance makes an instance, or returns the one that was made for the same request token.
func (s *Server) CreateInstance(ctx context.Context, r *providerv1.CreateInstanceRequest) (*providerv1.Instance,
	error,
) {
	spec, faults := fleet.ParseSpec(r.GetProviderSpec())
	for i := range faults {
		faults[i].Path = "providerSpec." + faults[i].Path
	}
	b := r.GetBootstrap()
	if b.GetRole() == "master" {
		faults = append(faults, object.Faultf("bootstrap.role", "must be worker: the etcd member of a control-plane machine "+
			"needs a disk that outlives its instance's host, and a container has none"))
	}
	if len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	i, err := s.fleet.Create(ctx, fleet.Request{
		Token: r.GetRequestToken(), Machine: r.GetMachine().GetName(), UID: r.GetMachine().GetUid(),
		Fence: r.GetFence(), Spec: spec,
		Bootstrap: fleet.Bootstrap{Endpoints: b.GetEndpoints(), Token: b.GetToken(), Role: b.GetRole()},
	})
	if err != nil {
		return nil, refused("instance", r.GetMachine().GetName(), err)
	}
	return message(i)
}

// refused returns the status of a call that is not carried out.
func refused(kind, subject string, err error) error {
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return rpcerr.NotFound(kind, subject)
	case errors.Is(err, fleet.ErrTaken):
		return rpcerr.Exists(kind, subject)
	case errors.Is(err, fleet.ErrUsed), errors.Is(err, fleet.ErrOther), errors.Is(err, ledger.ErrFenced):
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, subject, err.Error())
	case errors.Is(err, fleet.ErrFull):
		return rpcerr.TooMany(err.Error(), 0)
	case errors.Is(err, engine.ErrRefused):
		return rpcerr.Invalid(object.Fault{Path: "providerSpec", Description: err.Error()})
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, fleet.ErrBusy):
		return rpcerr.Unavailable(err.Error())
	}
	return err
}

// GetInstance returns an instance as it is now.
func (s *Server) GetInstance(ctx context.Context, r *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	i, err := s.fleet.Get(ctx, r.GetProviderId(), r.GetRequestToken())
	if err != nil {
		return nil, refused("instance", r.GetProviderId()+r.GetRequestToken(), err)
	}
	return message(i)
}

// ListInstances returns all instances of the cluster.
func (s *Server) ListInstances(ctx context.Context, _ *providerv1.ListInstancesRequest) (
	*providerv1.ListInstancesResponse, error,
) {
	list, err := s.fleet.List(ctx)
	if err != nil {
		return nil, refused("instances", "", err)
	}
	out := &providerv1.ListInstancesResponse{}
	for _, i := range list {
		m, err := message(i)
		if err != nil {
			return nil, err
		}
		out.Instances = append(out.Instances, m)
	}
	return out, nil
}

// DeleteInstance begins to delete an instance.
func (s *Server) DeleteInstance(ctx context.Context, r *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	if err := s.fleet.Delete(ctx, r.GetProviderId(), r.GetRequestToken(), r.GetFence()); err != nil {
		return nil, refused("instance", r.GetProviderId()+r.GetRequestToken(), err)
	}
	return &providerv1.DeleteInstanceResponse{RequestToken: r.GetRequestToken(), Fence: s.fleet.Fence()}, nil
}

// WatchInstances sends the instances and then each one that changed. It ends with UNAVAILABLE when the engine does not
// answer: what is not known is not sent as deleted.
func (s *Server) WatchInstances(_ *providerv1.WatchInstancesRequest,
	stream grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	sent := map[string]fleet.Instance{}
	for first := true; ; first = false {
		list, changed, err := s.fleet.Snapshot()
		if err != nil {
			return refused("instances", "", err)
		}
		if err := sendDifference(stream, sent, list); err != nil {
			return err
		}
		if first {
			if err := stream.Send(&providerv1.WatchInstancesResponse{Synced: true}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// sendDifference sends what differs between what was sent and what exists, and notes it as sent.
func sendDifference(stream grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
	sent map[string]fleet.Instance, list []fleet.Instance,
) error {
	send := func(i fleet.Instance, deleted bool) error {
		m, err := message(i)
		if err != nil {
			return err
		}
		return stream.Send(&providerv1.WatchInstancesResponse{Instance: m, Deleted: deleted})
	}
	exists := map[string]bool{}
	for _, i := range list {
		exists[i.ProviderID] = true
		if before, ok := sent[i.ProviderID]; ok && before == i {
			continue
		}
		if err := send(i, false); err != nil {
			return err
		}
		sent[i.ProviderID] = i
	}
	for id, i := range sent {
		if exists[id] {
			continue
		}
		if err := send(i, true); err != nil {
			return err
		}
		delete(sent, id)
	}
	return nil
}

func message(i fleet.Instance) (*providerv1.Instance, error) {
	status, err := structpb.NewStruct(map[string]any{
		"apiVersion": fleet.SpecAPIVersion, "kind": "DockerMachineProviderStatus",
		"containerId": i.ID, "containerState": string(i.Container.State),
	})
	if err != nil {
		return nil, err
	}
	out := &providerv1.Instance{
		ProviderId: i.ProviderID, MachineName: i.Machine, MachineUid: i.UID, RequestToken: i.Token, Fence: i.Fence,
		State: i.State, Message: i.Problem, InstanceType: i.Type, Region: i.Region, Zone: i.Zone,
		CreateTime: timestamppb.New(i.Created), ProviderStatus: status,
		VolumesKnown: true, // no device is ever attached to a container
	}
	if i.Address != "" {
		out.Addresses = []*nodev1.NodeAddress{
			{Type: "InternalIP", Address: i.Address},
			{Type: "Hostname", Address: i.Machine},
			{Type: "InternalDNS", Address: i.Machine},
		}
	}
	return out, nil
}
