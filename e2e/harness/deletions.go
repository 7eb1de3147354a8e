package harness

import (
	"fmt"
	"slices"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// BrokenDeletions says where the steps break the order of a machine's deletion: no drain before the last preDrain hook
// was removed, the node is removed after the drain and after the last preTerminate hook, and the machine after the
// node. Source: docs/machines.md, Deletion.
func BrokenDeletions(steps []Step) []string {
	machines := map[string]*machinev1.Machine{} // by uid
	nodes := map[string]string{}                // uid of the machine, by name of its node
	var out []string
	breaks := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, step := range steps {
		name := step.Object.GetMetadata().GetName()
		switch o := step.Object.(type) {
		case *nodev1.Drain:
			if m := machines[o.GetSpec().GetMachineRef().GetUid()]; len(m.GetSpec().GetLifecycleHooks().GetPreDrain()) > 0 {
				breaks("machine %s was drained before its preDrain hooks were removed", m.GetMetadata().GetName())
			}
		case *nodev1.Node:
			m := machines[nodes[name]]
			if !step.Deleted || m == nil {
				continue
			}
			delete(nodes, name)
			if why := unfinished(m); why != "" {
				breaks("node %s was removed although its machine %s", name, why)
			}
		case *machinev1.Machine:
			uid := o.GetMetadata().GetUid()
			if node := o.GetStatus().GetNodeRef().GetName(); node != "" && !step.Deleted {
				nodes[node] = uid
			}
			machines[uid] = o
			if !step.Deleted {
				continue
			}
			if why := unfinished(o); why != "" {
				breaks("machine %s was removed although it %s", name, why)
			}
			if nodes[o.GetStatus().GetNodeRef().GetName()] == uid {
				breaks("machine %s was removed before its node", name)
			}
		}
	}
	return out
}

// unfinished says what of a machine's deletion comes before the removal of its node; empty if nothing is left.
func unfinished(m *machinev1.Machine) string {
	hooks := m.GetSpec().GetLifecycleHooks()
	drained := slices.ContainsFunc(m.GetStatus().GetConditions(), func(c *metav1.Condition) bool {
		return c.GetType() == "Drained" && c.GetStatus() == "True"
	})
	switch {
	case m.GetMetadata().GetDeletionTimestamp() == nil:
		return "was not being deleted"
	case len(hooks.GetPreDrain()) > 0:
		return "had preDrain hooks"
	case !drained:
		return "was not drained"
	case len(hooks.GetPreTerminate()) > 0:
		return "had preTerminate hooks"
	}
	return ""
}
