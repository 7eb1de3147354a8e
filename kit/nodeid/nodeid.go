// Package nodeid says by what a Node shows which machine it is of, and which roles it has. It is pure: plans import it.
package nodeid

import (
	"maps"
	"slices"
	"strings"
)

// Annotations of a Node that eviction-controller writes when the node's agent registers; nobody else may.
const (
	MachineUID  = "windlass.dev/machine-uid"
	MachineRole = "windlass.dev/machine-role" // master or worker, as fixed when the machine was created
)

// RolePrefix begins the labels by which nodes have roles.
const RolePrefix = "node-role.kubernetes.io/"

// Roles returns those of a node's labels that give it a role, as key=value, ordered.
func Roles(labels map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(k, RolePrefix) {
			out = append(out, k+"="+labels[k])
		}
	}
	return out
}
