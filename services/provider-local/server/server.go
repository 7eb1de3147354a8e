// Package server answers the calls of machine-api.
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
	"github.com/windlass-dev/windlass/services/provider-local/instance"
)

// Server implements provider.v1.ProviderService.
type Server struct {
	providerv1.UnimplementedProviderServiceServer
	manager *instance.Manager
}

// New returns the server of a manager's instances.
func New(m *instance.Manager) *Server { return &Server{manager: m} }

// GetProviderInfo says what the local provider is.
func (s *Server) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	return &providerv1.GetProviderInfoResponse{
		Name: "local", Platform: "Local", ProviderSpecKinds: []string{instance.SpecKind},
		FailureDomainFields: map[string]string{"zone": "zone"},
		TokenRetention:      durationpb.New(ledger.Retention),
	}, nil
}

// ValidateProviderSpec says what is wrong with a provider spec.
func (s *Server) ValidateProviderSpec(_ context.Context, req *providerv1.ValidateProviderSpecRequest) (
	*providerv1.ValidateProviderSpecResponse, error,
) {
	if _, err := instance.ParseSpec(req.GetProviderSpec(), s.manager.Runtimes()); err != nil {
		return nil, specError("", err)
	}
	return &providerv1.ValidateProviderSpecResponse{}, nil
}

// specError names the fields of a provider spec that are wrong.
func specError(prefix string, err error) error {
	var fields []object.Fault
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return rpcerr.Invalid(object.Fault{Path: prefix, Description: err.Error()})
	}
	for _, e := range joined.Unwrap() {
		var f instance.FieldError
		if errors.As(e, &f) {
			fields = append(fields, object.Fault{Path: prefix + f.Path, Description: f.Description})
		}
	}
	return rpcerr.Invalid(fields...)
}

// CreateInstance makes an instance, or returns the one that was made for the same request token.
func (s *Server) CreateInstance(_ context.Context, req *providerv1.CreateInstanceRequest) (*providerv1.Instance,
	error,
) {
	spec, err := instance.ParseSpec(req.GetProviderSpec(), s.manager.Runtimes())
	if err != nil {
		return nil, specError("providerSpec.", err)
	}
	if spec.Failure.Create == "Invalid" {
		return nil,
			rpcerr.Invalid(object.Fault{
				Path:        "providerSpec.failure.create",
				Description: "the provider spec asks for its own refusal",
			})
	}
	b := req.GetBootstrap()
	i, err := s.manager.Create(instance.Request{
		Token: req.GetRequestToken(), Machine: req.GetMachine().GetName(), UID: req.GetMachine().GetUid(),
		Fence: req.GetFence(), Spec: spec,
		Bootstrap: instance.Bootstrap{Endpoints: b.GetEndpoints(), Token: b.GetToken(), Role: b.GetRole()},
	})
	switch {
	case errors.Is(err, instance.ErrTaken):
		return nil, rpcerr.Exists("instance", req.GetMachine().GetName())
	case errors.Is(err, instance.ErrQuota), errors.Is(err, instance.ErrFull):
		return nil, rpcerr.TooMany(err.Error(), 0)
	case errors.Is(err, instance.ErrBusy):
		return nil, rpcerr.Unavailable(err.Error())
	case err != nil:
		return nil, refused(req.GetMachine().GetName(), err)
	}
	return message(i)
}

// refused returns the status of a call that the provider does not carry out.
func refused(subject string, err error) error {
	switch {
	case errors.Is(err, instance.ErrUsed), errors.Is(err, instance.ErrOther), errors.Is(err, ledger.ErrFenced):
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, subject, err.Error())
	case errors.Is(err, instance.ErrUnsure):
		return rpcerr.Unavailable(err.Error())
	}
	return err
}

// GetInstance returns an instance as it is now.
func (s *Server) GetInstance(_ context.Context, req *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	i, err := s.manager.Get(req.GetProviderId(), req.GetRequestToken())
	if errors.Is(err, instance.ErrNotFound) {
		return nil, rpcerr.NotFound("instance", req.GetProviderId()+req.GetRequestToken())
	}
	if err != nil {
		return nil, refused(req.GetProviderId(), err)
	}
	return message(i)
}

// ListInstances returns all instances of the cluster.
func (s *Server) ListInstances(context.Context, *providerv1.ListInstancesRequest) (*providerv1.ListInstancesResponse,
	error,
) {
	list, _ := s.manager.List()
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
func (s *Server) DeleteInstance(_ context.Context, req *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	err := s.manager.Delete(req.GetProviderId(), req.GetRequestToken(), req.GetFence())
	if err != nil {
		return nil, refused(req.GetProviderId(), err)
	}
	return &providerv1.DeleteInstanceResponse{RequestToken: req.GetRequestToken(), Fence: s.manager.Fence()}, nil
}

// WatchInstances sends the instances and then each one that changed.
func (s *Server) WatchInstances(_ *providerv1.WatchInstancesRequest,
	stream grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	sent := map[string]*instance.Instance{}
	for first := true; ; first = false {
		list, changed := s.manager.List()
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

// sendDifference sends what differs between what was sent and what there is, and notes it as sent.
func sendDifference(stream grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
	sent map[string]*instance.Instance, list []*instance.Instance,
) error {
	have := map[string]bool{}
	for _, i := range list {
		have[i.ProviderID] = true
		if sent[i.ProviderID] == i {
			continue
		}
		m, err := message(i)
		if err != nil {
			return err
		}
		if err := stream.Send(&providerv1.WatchInstancesResponse{Instance: m}); err != nil {
			return err
		}
		sent[i.ProviderID] = i
	}
	for id, i := range sent {
		if have[id] {
			continue
		}
		m, err := message(i)
		if err != nil {
			return err
		}
		if err := stream.Send(&providerv1.WatchInstancesResponse{Instance: m, Deleted: true}); err != nil {
			return err
		}
		delete(sent, id)
	}
	return nil
}

func message(i *instance.Instance) (*providerv1.Instance, error) {
	status, err := structpb.NewStruct(map[string]any{
		"apiVersion": instance.SpecAPIVersion, "kind": "LocalMachineProviderStatus",
		"instanceId": i.ProviderID, "instanceState": i.State,
	})
	if err != nil {
		return nil, err
	}
	if i.Problem != "" {
		return &providerv1.Instance{
			ProviderId: i.ProviderID, MachineName: i.MachineName, State: i.State, Message: i.Problem, ProviderStatus: status,
		}, nil
	}
	return &providerv1.Instance{
		ProviderId: i.ProviderID, MachineName: i.MachineName, MachineUid: i.MachineUID, State: i.State,
		RequestToken: i.RequestToken, Fence: i.Fence,
		Addresses: []*nodev1.NodeAddress{
			{Type: "InternalIP", Address: i.Address},
			{Type: "Hostname", Address: i.MachineName},
			{Type: "InternalDNS", Address: i.MachineName},
		},
		InstanceType: i.Spec.InstanceType, Region: i.Spec.Region, Zone: i.Spec.Zone,
		CreateTime: timestamppb.New(i.Created), ProviderStatus: status,
		VolumesKnown: true, // an instance is a process: no device is ever attached to it
	}, nil
}
