// Package nodeid says by what a Node shows which machine it is of, and which roles it has. It is pure: plans import it.
package nodeid

import (
	"maps"
	"slices"
	"strings"
)

// Annotations of a Node that eviction-controller writes when the node's agent registers. No other service writes them.
const (
	MachineUID  = "windlass.dev/machine-uid"
	MachineRole = "windlass.dev/machine-role" // master or worker, as fixed when the machine was created
)

// Annotations of a Node that node-configurator writes.
const (
	// configuration of the node; absent if it was never configured
	CurrentConfig = "machineconfiguration.openshift.io/currentConfig"
	DesiredConfig = "machineconfiguration.openshift.io/desiredConfig" // configuration to apply
	ConfigState   = "machineconfiguration.openshift.io/state"
	ConfigReason  = "machineconfiguration.openshift.io/reason"
	// ConfigBoot holds the boot that the agent wants to end: before it is back with another, it is not done.
	ConfigBoot = "windlass.dev/config-boot"
	// ConfigStaged holds the configuration whose operating system the node has ready to boot.
	ConfigStaged = "windlass.dev/config-staged"
)

// FilesLabel is the label of a node by which its agent reports which files configurations change: those of the host
// itself (HostFiles), or none, since the host is only observed (ObservedFiles). Without it the machine has a directory
// for its files alone.
const (
	FilesLabel    = "windlass.dev/files"
	HostFiles     = "host"
	ObservedFiles = "observed"
)

// RolePrefix begins the labels by which nodes have roles.
const RolePrefix = "node-role.kubernetes.io/"

// Configuration returns the annotations that node-configurator writes.
func Configuration() []string {
	return []string{CurrentConfig, DesiredConfig, ConfigState, ConfigReason, ConfigBoot, ConfigStaged}
}

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
