package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

const patience = 5 * time.Second // for one removal; machine-api answers in milliseconds

// Machines removes hooks from machines by machine-api.
type Machines struct {
	client machinev1.MachineServiceClient
}

// NewMachines returns the machines behind a client.
func NewMachines(client machinev1.MachineServiceClient) Machines { return Machines{client: client} }

// RemoveHook removes a hook from a machine if the machine is still as it was read, by uid and revision.
func (m Machines) RemoveHook(ctx context.Context, machine *machinev1.Machine, h plan.Hook) error {
	patch, err := without(machine, h)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = m.client.PatchMachine(ctx, &machinev1.PatchMachineRequest{
		Namespace: machine.GetMetadata().GetNamespace(), Name: machine.GetMetadata().GetName(),
		Patch: &httpbody.HttpBody{ContentType: "application/merge-patch+json", Data: patch},
	})
	return err
}

type hookJSON struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
}

// without returns a merge patch that removes a hook from a machine as it was read. A hook of the same name that belongs
// to another owner is another hook.
func without(machine *machinev1.Machine, h plan.Hook) ([]byte, error) {
	hooks := machine.GetSpec().GetLifecycleHooks()
	field, list := "preDrain", hooks.GetPreDrain()
	if h.Point == plan.PreTerminate {
		field, list = "preTerminate", hooks.GetPreTerminate()
	}
	rest := make([]hookJSON, 0, len(list))
	for _, have := range list {
		if have.GetName() != h.Name || have.GetOwner() != h.Owner {
			rest = append(rest, hookJSON{have.GetName(), have.GetOwner()})
		}
	}
	meta := machine.GetMetadata()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"uid": meta.GetUid(), "resourceVersion": meta.GetResourceVersion()},
		"spec":     map[string]any{"lifecycleHooks": map[string]any{field: rest}},
	})
	if err != nil {
		return nil, fmt.Errorf("patch of machine %q: %w", meta.GetName(), err)
	}
	return patch, nil
}
