// Package server answers the calls of machine-api with the instances of a simulated fleet.
package server

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/provider-simulated/fleet"
)

// What a machine's provider spec of this provider says it is.
const (
	specAPIVersion = "windlass.dev/v1"
	specKind       = "SimulatedMachineProviderSpec"
)

// tokenRetention is what the provider can promise: used tokens are kept as long as the process lives.
const tokenRetention = 365 * 24 * time.Hour

// maxVolumes is how many virtual volumes an instance may have. Source: limits of cloud providers, of 16 to 128.
const maxVolumes = 64

// Server implements provider.v1.ProviderService.
type Server struct {
	providerv1.UnimplementedProviderServiceServer
	fleet *fleet.Fleet
}

// New returns the server of a fleet.
func New(f *fleet.Fleet) *Server { return &Server{fleet: f} }

// GetProviderInfo says what the simulated provider is.
func (s *Server) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	return &providerv1.GetProviderInfoResponse{
		Name: "simulated", Platform: "Simulated", ProviderSpecKinds: []string{specKind},
		FailureDomainFields: map[string]string{"zone": "zone"},
		TokenRetention:      durationpb.New(tokenRetention),
	}, nil
}

// ValidateProviderSpec says what is wrong with a provider spec.
func (s *Server) ValidateProviderSpec(_ context.Context, r *providerv1.ValidateProviderSpecRequest) (
	*providerv1.ValidateProviderSpecResponse, error,
) {
	if faults := check(r.GetProviderSpec()); len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	return &providerv1.ValidateProviderSpecResponse{}, nil
}

// check returns the wrong fields of a provider spec.
func check(spec *structpb.Struct) []object.Fault {
	var out []object.Fault
	for field, want := range map[string]string{"apiVersion": specAPIVersion, "kind": specKind} {
		if got := spec.GetFields()[field].GetStringValue(); got != want {
			out = append(out, object.Fault{Path: field, Description: "must be " + want})
		}
	}
	for field, v := range spec.GetFields() {
		switch field {
		case "apiVersion", "kind", "metadata":
		case "instanceType", "region", "zone":
			if _, ok := v.GetKind().(*structpb.Value_StringValue); !ok {
				out = append(out, object.Fault{Path: field, Description: "must be a string"})
			}
		case "capacity":
			out = append(out, checkCapacity(field, v)...)
		case "volumes":
			if n := v.GetNumberValue(); n < 0 || n > maxVolumes || n != math.Trunc(n) || !isNumber(v) {
				out = append(out, object.Faultf(field, "must be a whole number from 0 to %d", maxVolumes))
			}
		default:
			out = append(out, object.Fault{Path: field, Description: "unknown field"})
		}
	}
	slices.SortFunc(out, func(a, b object.Fault) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// checkCapacity returns what is wrong with the capacity of a node.
func checkCapacity(path string, v *structpb.Value) (out []object.Fault) {
	if v.GetStructValue() == nil {
		return []object.Fault{{Path: path, Description: "must be an object of quantities"}}
	}
	for name, q := range v.GetStructValue().GetFields() {
		if n, err := placement.Quantity(q); err != nil || n.Sign() < 0 {
			out = append(out, object.Fault{
				Path:        path + "." + name,
				Description: "must be a quantity of zero or more: a number or a string such as 500m or 2Gi",
			})
		}
	}
	return out
}

// capacityOf returns the capacity of a node: what a provider spec says, and for the rest that of a common instance.
func capacityOf(spec *structpb.Struct) map[string]*structpb.Value {
	out := map[string]*structpb.Value{
		placement.CPU: structpb.NewStringValue("4"), placement.Memory: structpb.NewStringValue("16Gi"),
		placement.Pods: structpb.NewStringValue("110"),
	}
	maps.Copy(out, spec.GetFields()["capacity"].GetStructValue().GetFields())
	return out
}

func isNumber(v *structpb.Value) bool {
	_, ok := v.GetKind().(*structpb.Value_NumberValue)
	return ok
}

// meet has a call's fate come about: work is what it does.
func (s *Server) meet(ctx context.Context, method, token string, work func(fleet.Fate) error) error {
	fate := s.fleet.Fate(method, token)
	if !backoff.Sleep(ctx, fate.Delay) {
		return ctx.Err()
	}
	if fate.Fail {
		return rpcerr.Unavailable("the simulated provider failed, as its flags ask for")
	}
	err := work(fate)
	switch {
	case fate.Hang:
		<-ctx.Done()
		return ctx.Err()
	case fate.Lose:
		return rpcerr.Unavailable("the simulated provider lost its answer, as its flags ask for")
	}
	return err
}

// CreateInstance makes an instance, or returns the one that was made for the same request token.
func (s *Server) CreateInstance(ctx context.Context, r *providerv1.CreateInstanceRequest) (*providerv1.Instance,
	error,
) {
	faults := check(r.GetProviderSpec())
	for i := range faults {
		faults[i].Path = "providerSpec." + faults[i].Path
	}
	if r.GetBootstrap().GetRole() == "master" {
		faults = append(faults, object.Fault{
			Path: "bootstrap.role", Description: "must be worker: simulated machines run no etcd member",
		})
	}
	if len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	text := func(field string) string { return r.GetProviderSpec().GetFields()[field].GetStringValue() }
	var made *providerv1.Instance
	err := s.meet(ctx, "CreateInstance", r.GetRequestToken(), func(f fleet.Fate) error {
		var err error
		made, err = s.fleet.Create(fleet.Order{
			Token: r.GetRequestToken(), Machine: r.GetMachine().GetName(), UID: r.GetMachine().GetUid(),
			Fence: r.GetFence(), Type: text("instanceType"), Region: text("region"), Zone: text("zone"),
			Volumes:   int(r.GetProviderSpec().GetFields()["volumes"].GetNumberValue()),
			Capacity:  capacityOf(r.GetProviderSpec()),
			Bootstrap: r.GetBootstrap(),
		}, f.Span)
		return err
	})
	if errors.Is(err, fleet.ErrFull) {
		return nil, rpcerr.TooMany(err.Error(), 0)
	}
	return made, refused(r.GetRequestToken(), err)
}

// refused returns the status of a call that the provider does not carry out.
func refused(subject string, err error) error {
	if errors.Is(err, fleet.ErrUsed) || errors.Is(err, fleet.ErrOther) || errors.Is(err, fleet.ErrFenced) {
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, subject, err.Error())
	}
	return err
}

// GetInstance returns an instance as it is now.
func (s *Server) GetInstance(ctx context.Context, r *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	var found *providerv1.Instance
	err := s.meet(ctx, "GetInstance", r.GetProviderId()+r.GetRequestToken(), func(fleet.Fate) error {
		var err error
		found, err = s.fleet.Get(r.GetProviderId(), r.GetRequestToken())
		return err
	})
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, rpcerr.NotFound("instance", r.GetProviderId()+r.GetRequestToken())
	}
	return found, err
}

// ListInstances returns all instances.
func (s *Server) ListInstances(ctx context.Context, _ *providerv1.ListInstancesRequest) (
	*providerv1.ListInstancesResponse, error,
) {
	out := &providerv1.ListInstancesResponse{}
	return out, s.meet(ctx, "ListInstances", "", func(fleet.Fate) error {
		out.Instances = s.fleet.List()
		return nil
	})
}

// DeleteInstance begins to delete an instance.
func (s *Server) DeleteInstance(ctx context.Context, r *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	out := &providerv1.DeleteInstanceResponse{RequestToken: r.GetRequestToken()}
	subject := r.GetProviderId() + r.GetRequestToken()
	err := s.meet(ctx, "DeleteInstance", subject, func(f fleet.Fate) error {
		var err error
		out.Fence, err = s.fleet.Delete(r.GetProviderId(), r.GetRequestToken(), r.GetFence(), f.Span)
		return err
	})
	return out, refused(subject, err)
}

// WatchInstances sends the instances and then each one that changed.
func (s *Server) WatchInstances(_ *providerv1.WatchInstancesRequest,
	stream grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	w := s.fleet.Watch()
	defer w.Close()
	for first := true; ; first = false {
		changes := w.Next()
		if first {
			changes = append(changes, &providerv1.WatchInstancesResponse{Synced: true})
		}
		for _, c := range changes {
			if err := stream.Send(c); err != nil {
				return err
			}
		}
		if !w.Wait(stream.Context()) {
			return stream.Context().Err()
		}
	}
}
