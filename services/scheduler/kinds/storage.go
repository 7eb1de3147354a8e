package kinds

import (
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

func defaultVolume(v *schedulingv1.PersistentVolume) {
	if v.Spec == nil {
		v.Spec = &schedulingv1.PersistentVolumeSpec{}
	}
	orElse(&v.Spec.PersistentVolumeReclaimPolicy, "Retain")
	if v.Spec.VolumeMode == nil {
		v.Spec.VolumeMode = proto.String("Filesystem")
	}
	if v.Status == nil {
		v.Status = &schedulingv1.PersistentVolumeStatus{Phase: proto.String("Available")}
	}
}

func validateVolume(v *schedulingv1.PersistentVolume) []object.Fault {
	var bad []object.Fault
	if v.GetSpec().GetCapacity()["storage"] == nil {
		bad = append(bad, object.Fault{Path: "spec.capacity['storage']", Description: "must be given"})
	}
	if len(v.GetSpec().GetAccessModes()) == 0 {
		bad = append(bad, object.Fault{Path: "spec.accessModes", Description: "must have at least one"})
	}
	return bad
}

func defaultClaim(c *schedulingv1.PersistentVolumeClaim) {
	if c.Spec == nil {
		c.Spec = &schedulingv1.PersistentVolumeClaimSpec{}
	}
	if c.Spec.VolumeMode == nil {
		c.Spec.VolumeMode = proto.String("Filesystem")
	}
	if c.Status == nil {
		c.Status = &schedulingv1.PersistentVolumeClaimStatus{Phase: proto.String("Pending")}
	}
}

func validateClaim(c *schedulingv1.PersistentVolumeClaim) []object.Fault {
	_, bad := placement.ParsePodSelector(c.GetSpec().GetSelector(), "spec.selector")
	if len(c.GetSpec().GetAccessModes()) == 0 {
		bad = append(bad, object.Fault{Path: "spec.accessModes", Description: "must have at least one"})
	}
	if c.GetSpec().GetResources().GetFields()["requests"].GetStructValue().GetFields()["storage"] == nil {
		bad = append(bad, object.Fault{Path: "spec.resources.requests['storage']", Description: "must be given"})
	}
	return bad
}

func validateClaimUpdate(old, c *schedulingv1.PersistentVolumeClaim) []object.Fault {
	was, is := proto.CloneOf(old.GetSpec()), c.GetSpec()
	was.Resources = is.GetResources()
	if was.GetVolumeName() == "" {
		was.VolumeName = is.GetVolumeName()
	}
	return unchanged("spec", was, is)
}
