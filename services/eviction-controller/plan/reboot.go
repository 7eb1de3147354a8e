package plan

import (
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// RebootView is everything that a decision about the reboot of a node depends on, at a heartbeat of its agent.
type RebootView struct {
	Now    time.Time // UTC
	Node   *nodev1.Node
	Boot   string // boot ID that the agent reports
	Permit Answer // the current one, to AcquirePermit
}

// Reboot decides whether the agent of a node is ordered to restart it. The permit of a control-plane node is requested
// once more immediately before: another voter may have failed since the reboot was requested.
func Reboot(v RebootView) Plan {
	var p Plan
	ref, name := object.Reference(v.Node), v.Node.GetMetadata().GetName()
	switch {
	case v.Boot == "" || v.Node.GetMetadata().GetAnnotations()[RebootOf] != v.Boot:
	case ControlPlane(v.Node) && v.Permit.Code == NotAsked:
		p.Ask = append(p.Ask, Question{
			Verb: AcquirePermit, Object: ref, Reason: "the node may run a voter of the etcd cluster",
			Machine: MachineOfNode(name),
		})
	case v.Permit.Code == Refused || v.Permit.Code == Away:
		p.hold(&metav1.HeldBack{
			Action: RebootNode, Object: ref, Reason: v.Permit.Why,
			Unblock: "the holder of the permit finishes its work, and every other voter answers",
		})
	default:
		p.Do = append(p.Do, Action{Verb: RebootNode, Object: ref, Reason: "its reboot was requested"})
	}
	return p
}
