package table

import (
	"strconv"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/object"
)

// accessModes returns access modes as kubectl shows them.
func accessModes(modes []string) string {
	short := strings.NewReplacer("ReadWriteOnce", "RWO", "ReadOnlyMany", "ROX", "ReadWriteMany", "RWX")
	return short.Replace(strings.Join(modes, ","))
}

func volumeCell(v *schedulingv1.PersistentVolume, c *metav1.Column, now time.Time) string {
	ref := v.GetSpec().GetClaimRef()
	switch {
	case c.GetName() == "ACCESS MODES":
		return accessModes(v.GetSpec().GetAccessModes())
	case c.GetName() == "CLAIM" && ref != nil:
		return ref.GetNamespace() + "/" + ref.GetName()
	case c.GetName() == "STATUS" && object.Deleting(v):
		return "Terminating"
	}
	return generic(v, c, now)
}

// claimCell shows the size and the access modes of the volume of a claim, once it has one.
func claimCell(o *schedulingv1.PersistentVolumeClaim, c *metav1.Column, now time.Time) string {
	switch {
	case c.GetName() == "ACCESS MODES":
		return accessModes(o.GetStatus().GetAccessModes())
	case c.GetName() == "STATUS" && object.Deleting(o):
		return "Terminating"
	}
	return generic(o, c, now)
}

func storageClassCell(o *schedulingv1.StorageClass, c *metav1.Column, now time.Time) string {
	if c.GetName() == "ALLOWVOLUMEEXPANSION" {
		return strconv.FormatBool(o.GetAllowVolumeExpansion())
	}
	return generic(o, c, now)
}

// dataCell shows how many keys a config map or a secret has, and never their values.
func dataCell(o object.Object, keys int, c *metav1.Column, now time.Time) string {
	if c.GetName() == "DATA" {
		return strconv.Itoa(keys)
	}
	return generic(o, c, now)
}
