// Package hooktask reads the lifecycle hooks of machines and the tasks of their owners.
package hooktask

import (
	"context"
	"fmt"
	"strings"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// Point is the hooks of one point of a machine's deletion.
type Point struct {
	Name  string
	Hooks []*machinev1.LifecycleHook
}

// Points returns the hooks of a machine, in the order of its deletion.
func Points(h *machinev1.LifecycleHooks) []Point {
	return []Point{{"PreDrain", h.GetPreDrain()}, {"PreTerminate", h.GetPreTerminate()}}
}

// All returns the tasks of all machines.
func All(ctx context.Context, c *client.Client) ([]*hookv1.HookTask, error) {
	return list(ctx, c, client.Selection{})
}

func list(ctx context.Context, c *client.Client, s client.Selection) ([]*hookv1.HookTask, error) {
	k, err := client.FindKind("hooktask")
	if err != nil {
		return nil, err
	}
	list, _, err := c.List(ctx, k, s)
	out := make([]*hookv1.HookTask, len(list))
	for i, o := range list {
		out[i] = o.(*hookv1.HookTask)
	}
	return out, err
}

// Of returns the tasks of a machine.
func Of(ctx context.Context, c *client.Client, m *machinev1.Machine) ([]*hookv1.HookTask, error) {
	return list(ctx, c, client.Selection{Fields: "spec.machineRef.uid=" + m.GetMetadata().GetUid()})
}

// Belongs reports whether a task is one of a machine.
func Belongs(t *hookv1.HookTask, m *machinev1.Machine) bool {
	return t.GetSpec().GetMachineRef().GetUid() == m.GetMetadata().GetUid()
}

// State returns a task's phase and its problems: "Pending (overdue, owner never seen)".
func State(t *hookv1.HookTask) string {
	phase := t.GetStatus().GetPhase()
	if phase == "" {
		phase = "Pending"
	}
	if p := t.GetStatus().ProgressPercent; p != nil && phase == "Claimed" {
		phase = fmt.Sprintf("Claimed %d%%", *p)
	}
	var wrong []string
	if object.IsTrue(t.GetStatus().GetConditions(), "Overdue") {
		wrong = append(wrong, "overdue")
	}
	if object.IsTrue(t.GetStatus().GetConditions(), "TimedOut") {
		wrong = append(wrong, "timed out")
	}
	switch c := object.FindCondition(t.GetStatus().GetConditions(), "OwnerSeen"); {
	case c.GetStatus() == "False" && c.GetReason() == "Away":
		wrong = append(wrong, "owner away")
	case c.GetStatus() == "False":
		wrong = append(wrong, "owner never seen")
	}
	if len(wrong) > 0 && phase != "Completed" {
		phase += " (" + strings.Join(wrong, ", ") + ")"
	}
	return phase
}
