package printer

import (
	"fmt"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// Taints returns taints as KEY=VALUE:EFFECT, one in each line.
func Taints(taints []*nodev1.Taint) string {
	lines := make([]string, len(taints))
	for i, t := range taints {
		lines[i] = t.GetKey()
		if t.GetValue() != "" {
			lines[i] += "=" + t.GetValue()
		}
		lines[i] += ":" + t.GetEffect()
	}
	slices.Sort(lines)
	return table.OrNone(strings.Join(lines, "\n"))
}

// Reference returns a reference as "machine/a".
func Reference(r *metav1.ObjectReference) string {
	switch {
	case r.GetKind() == "":
		return r.GetName()
	case r.GetName() == "":
		return strings.ToLower(r.GetKind())
	}
	return strings.ToLower(r.GetKind()) + "/" + r.GetName()
}

// Indexes returns the indexes of a control plane as a table.
func Indexes(list []*machinev1.PlanControlPlaneMachineSetResponse_Index) [][]string {
	rows := [][]string{{"INDEX", "FAILURE DOMAIN", "MACHINES"}}
	for _, i := range list {
		rows = append(rows, []string{
			fmt.Sprint(i.GetIndex()), table.OrNone(i.GetFailureDomain()),
			table.OrNone(strings.Join(i.GetMachines(), ", ")),
		})
	}
	return rows
}
