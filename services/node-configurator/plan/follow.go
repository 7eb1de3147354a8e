package plan

import (
	"slices"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// permitAgain is how soon a permit that was refused is asked for again, and one that could not be given back is given
// back again.
const permitAgain = 2 * time.Second

// Order is what the agent of a node is ordered.
type Order struct {
	Config *configv1.MachineConfig // nil while none is known for the node
	Apply  bool                    // apply it now
	Reboot bool                    // and restart the machine afterwards
	// what is done to services that run on, in order
	Services []*configv1.ServiceAction
	Repairs  []*configv1.PathRepair // what the agent puts back if others change it
	From     string                 // name of the configuration that this was decided for; empty for none
}

// equal reports whether two orders say the same. Labels and the like of a configuration do not matter to a node.
func (o Order) equal(other Order) bool {
	same := func(a, b *configv1.ServiceAction) bool { return proto.Equal(a, b) }
	there := o.From == o.Config.GetMetadata().GetName() // nothing is applied, so it does not matter what was there before
	return (there || o.From == other.From) && o.Apply == other.Apply && o.Reboot == other.Reboot &&
		slices.EqualFunc(o.Services, other.Services, same) &&
		slices.EqualFunc(o.Repairs, other.Repairs, func(a, b *configv1.PathRepair) bool { return proto.Equal(a, b) }) &&
		o.Config.GetMetadata().GetName() == other.Config.GetMetadata().GetName() &&
		proto.Equal(o.Config.GetSpec(), other.Config.GetSpec())
}

// FollowView is everything that decides what the agent of a node is ordered while it follows its configuration.
type FollowView struct {
	NodeView
	Now    time.Time // UTC
	Sent   *Order    // what it was ordered last; nil if nothing
	Renews bool      // the agent restarts and reloads services
	Owed   bool      // the permit may be held for the node without a drain that gives it back
	Permit Answer    // to AcquirePermit, just now
}

// Follow decides what the agent of a node is ordered now. The permit of a control-plane node is asked for once more
// right before the order to restart: its drain acquired it a while ago, and another voter may have died since. A
// question that was not answered may have been granted all the same, so the permit is given back then.
func Follow(v FollowView) Plan {
	var p Plan
	o, owed, votes := order(v.NodeView), v.Owed, controlPlane(v.Node)
	if !v.Repair.IsZero() {
		p.wake(v.Repair)
	}
	if o.Apply && !v.Renews && len(o.Services) > 0 {
		o.Apply = false
		p.hold(v.Node, &metav1.HeldBack{
			Action: applyConfig, Reason: "its agent is of a release that does not restart services",
			Unblock: "the agent is updated",
		})
	}
	restarts := o.Apply && o.Reboot && !(v.Sent != nil && v.Sent.Apply && v.Sent.Reboot)
	switch {
	case o.Config != nil && !o.Apply && len(p.Held) == 0:
		p.hold(v.Node, &metav1.HeldBack{
			Action: applyConfig, Reason: notEmpty(v.Drain), SinceTime: v.Drain.GetMetadata().GetCreationTimestamp(),
			Unblock: "the drain of the node succeeds",
		})
	case !votes || !restarts || v.Permit.Code == Granted:
	case v.Permit.Code == NotAsked:
		return Plan{Ask: []Question{{Verb: AcquirePermit, Object: object.Reference(v.Node)}}}
	default:
		o.Apply, owed = false, true
		p.hold(v.Node, &metav1.HeldBack{
			Action: applyConfig, Reason: v.Permit.Why,
			Unblock: "the holder of the permit finishes its work, and every other voter answers",
		})
		p.wake(v.Now.Add(permitAgain))
	}
	if owed && votes {
		p.Do = append(p.Do, Action{Verb: ReleasePermit, Object: object.Reference(v.Node)})
		p.wake(v.Now.Add(permitAgain)) // in case that it fails
	}
	if v.Sent == nil || !o.equal(*v.Sent) {
		p.Do = append(p.Do, Action{Verb: SendOrder, Object: object.Reference(v.Node), Order: o})
	}
	return p
}

// notEmpty returns why a node with a drain, or with none yet, does not count as empty.
func notEmpty(d *nodev1.Drain) string {
	switch {
	case d == nil:
		return "the node has no drain yet"
	case !Emptied(d):
		return "the node is not drained yet"
	}
	return "the node is not unschedulable yet"
}
