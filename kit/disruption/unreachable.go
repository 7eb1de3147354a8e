package disruption

import (
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// unreachableGrace is the grace period of pods on an unreachable node whose machine is being deleted, and how long they
// are waited for. Source: OpenShift's machine API.
const unreachableGrace = time.Second

// Instance is what the provider of a machine confirms about its instance.
type Instance int

const (
	// InstanceUnknown means that the provider was not asked or did not answer.
	InstanceUnknown Instance = iota
	// InstanceExists means that it exists and is not stopped.
	InstanceExists
	// InstanceStopped means that it is stopped or no longer exists: nothing on it runs.
	InstanceStopped
)

// Waits is what the deletion of a machine waits for on its node.
type Waits struct {
	Pods    time.Duration // for how long after a pod's deletion was requested; negative means without limit
	Grace   *int32        // grace period of evictions in seconds; nil means the one that applies otherwise
	Volumes bool          // whether attached volumes are waited for
}

// WaitsOf returns what the deletion of a machine waits for. It is the only rule for nodes that are unreachable: ready
// is the status of the node's condition Ready, which is Unknown once its agent has been silent for longer than the
// grace period, or empty. The pods of an unreachable node cannot report that they have terminated. Its volumes may
// still be written to, so they are waited for until the provider confirms that the instance is stopped. Disruption
// budgets apply in each case.
func WaitsOf(ready string, i Instance) Waits {
	w := Waits{Pods: -1, Volumes: i != InstanceStopped}
	if ready == "Unknown" {
		grace := int32(unreachableGrace / time.Second)
		w.Pods, w.Grace = unreachableGrace, &grace
	}
	return w
}

// Until returns when a pod whose deletion was requested at a time is no longer waited for; ok is false if that is
// never.
func (w Waits) Until(requested *timestamppb.Timestamp) (at time.Time, ok bool) {
	if w.Pods < 0 || requested == nil {
		return time.Time{}, false
	}
	return requested.AsTime().Add(w.Pods), true
}

// Ready returns the status of a node's condition Ready; empty if it has none.
func Ready(n *nodev1.Node) string {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetStatus()
		}
	}
	return ""
}
