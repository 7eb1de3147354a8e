package command

import (
	"fmt"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

// indexRows returns the indexes of a control plane as a table.
func indexRows(list []*machinev1.PlanControlPlaneMachineSetResponse_Index) [][]string {
	rows := [][]string{{"INDEX", "FAILURE DOMAIN", "MACHINES"}}
	for _, i := range list {
		rows = append(rows, []string{fmt.Sprint(i.GetIndex()), orNone(i.GetFailureDomain()), orNone(strings.Join(i.GetMachines(), ", "))})
	}
	return rows
}
