// Package controlplane holds what machine-api and the guardian of the quorum must see alike in the machines of a
// control plane.
package controlplane

import (
	"strconv"
	"strings"
)

// NoIndex is the index of a machine whose name ends in no number.
const NoIndex = -1

// Index returns a machine's index in its control plane: the number after the last hyphen of its name, 0 or more, or
// NoIndex.
func Index(machine string) int {
	i := strings.LastIndex(machine, "-")
	n, err := strconv.ParseUint(machine[i+1:], 10, 31)
	if i < 0 || err != nil {
		return NoIndex
	}
	return int(n)
}
