package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

const (
	patience = 5 * time.Second // for one removal; machine-api answers in milliseconds
	tries    = 5               // a machine that is being deleted has its status written often
)

// Machines removes hooks from machines by machine-api.
type Machines struct {
	client machinev1.MachineServiceClient
}

// NewMachines returns the machines behind a client.
func NewMachines(client machinev1.MachineServiceClient) Machines { return Machines{client: client} }

// RemoveHook takes a hook off a machine, guarded by the machine's uid and revision. A machine or a hook that is not
// there is done.
func (m Machines) RemoveHook(ctx context.Context, ref *metav1.ObjectReference, h plan.Hook) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	for range tries {
		if err = m.removeOnce(ctx, ref, h); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT {
			return err
		}
	}
	return err
}

func (m Machines) removeOnce(ctx context.Context, ref *metav1.ObjectReference, h plan.Hook) error {
	machine, err := m.client.GetMachine(ctx, &machinev1.GetMachineRequest{
		Namespace: ref.GetNamespace(),
		Name:      ref.GetName(),
	})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil
	}
	if err != nil {
		return err
	}
	if machine.GetMetadata().GetUid() != ref.GetUid() {
		return nil // another machine of the same name
	}
	patch, there, err := without(machine, h)
	if err != nil || !there {
		return err
	}
	_, err = m.client.PatchMachine(ctx, &machinev1.PatchMachineRequest{
		Namespace: ref.GetNamespace(), Name: ref.GetName(),
		Patch: &httpbody.HttpBody{ContentType: "application/merge-patch+json", Data: patch},
	})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil
	}
	return err
}

type hookJSON struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
}

// without returns a merge patch that takes a hook off a machine as it was read, and whether it is there at all. A hook
// of the same name that belongs to another owner is another hook.
func without(machine *machinev1.Machine, h plan.Hook) (patch []byte, there bool, err error) {
	hooks := machine.GetSpec().GetLifecycleHooks()
	field, list := "preDrain", hooks.GetPreDrain()
	if h.Point == plan.PreTerminate {
		field, list = "preTerminate", hooks.GetPreTerminate()
	}
	rest := make([]hookJSON, 0, len(list))
	for _, have := range list {
		if have.GetName() == h.Name && have.GetOwner() == h.Owner {
			there = true
			continue
		}
		rest = append(rest, hookJSON{have.GetName(), have.GetOwner()})
	}
	meta := machine.GetMetadata()
	patch, err = json.Marshal(map[string]any{
		"metadata": map[string]string{"uid": meta.GetUid(), "resourceVersion": meta.GetResourceVersion()},
		"spec":     map[string]any{"lifecycleHooks": map[string]any{field: rest}},
	})
	if err != nil {
		return nil, false, fmt.Errorf("patch of machine %q: %w", meta.GetName(), err)
	}
	return patch, there, nil
}
