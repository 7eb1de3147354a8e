package describe

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type (
	configMap = *schedulingv1.ConfigMap
	secret    = *schedulingv1.Secret
)

func (d *describer) configMap() {
	m := d.Object.(configMap)
	d.line("Immutable", strconv.FormatBool(m.GetImmutable()))
	d.heading("Data")
	for _, k := range slices.Sorted(maps.Keys(m.GetData())) {
		fmt.Fprintf(d.out, "%s:\n----\n%s\n\n", k, m.GetData()[k])
	}
	d.sizes("Binary Data", m.GetBinaryData())
}

// secret prints the sizes of the values, not the values.
func (d *describer) secret() {
	s := d.Object.(secret)
	d.line("Type", table.OrNone(s.GetType()))
	d.line("Immutable", strconv.FormatBool(s.GetImmutable()))
	d.sizes("Data", s.GetData())
}

func (d *describer) sizes(heading string, data map[string][]byte) {
	rows := [][]string{{"KEY", "SIZE"}}
	for _, k := range slices.Sorted(maps.Keys(data)) {
		rows = append(rows, []string{k, fmt.Sprintf("%d bytes", len(data[k]))})
	}
	d.rows(heading, rows)
}
