package server

import (
	"context"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// ForgetMachine deletes a machine without its provider. The deletion comes first: a crash in between leaves an ordinary
// deletion, never a machine that lives and would once be deleted without its provider.
func (s machines) ForgetMachine(ctx context.Context, req *machinev1.ForgetMachineRequest) (*machinev1.Machine, error) {
	namespace := req.GetNamespace()
	if namespace == "" {
		namespace = s.tables.Machines.Type().GetDefaultNamespace()
	}
	m, err := s.tables.Machines.Delete(ctx, namespace, req.GetName(), &metav1.Preconditions{Uid: req.GetUid()},
		resource.WriteOptions{Reason: req.GetReason()})
	if err != nil {
		return nil, err
	}
	caller, _ := identity.CallerFrom(ctx)
	return s.tables.Machines.Modify(ctx, object.KeyOf(m), func(now *machinev1.Machine) error {
		if now.GetMetadata().GetUid() != m.GetMetadata().GetUid() {
			return rpcerr.Conflict("Machine", req.GetName(), "it is another one by now")
		}
		plan.Forget(now, caller.User, req.GetReason(), s.now())
		return nil
	})
}
