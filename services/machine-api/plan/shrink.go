package plan

import (
	"fmt"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// SetOf returns the name of the MachineSet that a machine belongs to; without one, or if the machine is already being
// deleted, it returns why the machine cannot be deleted together with a replica.
func SetOf(m *machinev1.Machine) (name, fault string) {
	owner := object.ControllerOf(m)
	switch {
	case object.Deleting(m):
		return "", "it is already being deleted, and no longer counts for its set"
	case owner == nil:
		return "", "it belongs to no machine set"
	case owner.GetKind() != "MachineSet":
		return "", fmt.Sprintf("it belongs to %s %s, which is no machine set", owner.GetKind(), owner.GetName())
	}
	return owner.GetName(), ""
}

// Shrink lowers the replicas of a machine's set by one, and returns why that is not possible, or "".
func Shrink(m *machinev1.Machine, s *machinev1.MachineSet) (fault string) {
	n := wantedReplicas(s)
	switch {
	case object.ControllerOf(m).GetUid() != s.GetMetadata().GetUid():
		return "it is not the set that the machine belongs to: that one is gone"
	case object.Deleting(s):
		return "it is being deleted"
	case OtherAPI(s.GetSpec()):
		return "it is paused: spec.authoritativeAPI is " + s.GetSpec().GetAuthoritativeApi()
	case n == 0:
		return "it has no replicas, so it already deletes its machines"
	}
	fewer := int32(n - 1)
	s.Spec.Replicas = &fewer
	return ""
}
