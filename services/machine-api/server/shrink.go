package server

import (
	"context"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

// DeleteAndShrink deletes a machine and lowers the replicas of its set by one.
func (s machines) DeleteAndShrink(ctx context.Context, req *machinev1.DeleteAndShrinkRequest) (
	*machinev1.DeleteAndShrinkResponse, error,
) {
	key := object.Key{
		Namespace: namespaceOr(req.GetNamespace(), s.tables.Machines.Type().GetDefaultNamespace()), Name: req.GetName(),
	}
	m, set, err := s.tables.DeleteAndShrink(ctx, key, req.GetPreconditions(), "", resource.WriteOptions{
		Reason: req.GetReason(), DryRun: req.GetDryRun() != "",
	})
	if err != nil {
		return nil, err
	}
	return &machinev1.DeleteAndShrinkResponse{Machine: m, MachineSet: set}, nil
}
