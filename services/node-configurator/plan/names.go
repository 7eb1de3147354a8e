// Package plan decides which configuration is the target of a pool of nodes, which node changes to it next, and what
// each node does for that. It does no I/O and reads no clock: the same view always gives the same plan. Views are never
// modified.
package plan

import (
	"strings"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
)

const prefix = "machineconfiguration.openshift.io/"

// RoleLabel says for which pools a machine configuration is.
const RoleLabel = prefix + "role"

// GeneratedBy marks a rendered configuration with the version of the program that made it: a recorded fact, never a
// gate.
const GeneratedBy = prefix + "generated-by-controller-version"

// Annotations of a node that only this service writes.
const (
	CurrentConfig = nodeid.CurrentConfig
	DesiredConfig = nodeid.DesiredConfig
	State         = nodeid.ConfigState
	Reason        = nodeid.ConfigReason
	EndingBoot    = nodeid.ConfigBoot
	StagedConfig  = nodeid.ConfigStaged
)

// States of a node, as its agent reports them.
const (
	stateDone      = "Done"
	working        = "Working"
	rebooting      = "Rebooting"
	degraded       = "Degraded"
	unreconcilable = "Unreconcilable"
)

// Pools with a meaning of their own.
const (
	// MasterPool is the pool of the control plane. It wins every node that it selects; one node at a time.
	MasterPool = "master"
	// arbiterPool is the pool of machines that only vote. Masters and arbiters never change at the same time.
	arbiterPool = "arbiter"
	workerPool  = "worker" // has what no custom pool selects
)

// Settings is the name of the one MachineConfiguration.
const Settings = "cluster"

// RenderedPrefix begins the name of every rendered configuration, and of no other.
const RenderedPrefix = "rendered-"

// DrainPrefix and the name of a node make the name of the drain that empties it for a change of its configuration.
const DrainPrefix = "machine-config-"

// DrainName returns the name of a node's drain.
func DrainName(node string) string { return DrainPrefix + node }

// OfPool reports whether a machine configuration was rendered for a pool.
func OfPool(c *configv1.MachineConfig, pool string) bool {
	return IsRendered(c.GetMetadata().GetName()) && object.ControllerOf(c).GetName() == pool
}

// IsRendered reports whether a machine configuration of that name is a rendered one.
func IsRendered(name string) bool { return strings.HasPrefix(name, RenderedPrefix) }
