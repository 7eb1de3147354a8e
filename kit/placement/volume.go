package placement

import (
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	// LocalDriver is the provisioner and the driver of volumes that are directories of a node's agent.
	LocalDriver = "windlass.dev/local"
	// LocalDirectory is the finalizer that keeps such a volume until the agent of its node has removed the directory.
	LocalDirectory = "windlass.dev/local-directory"
	// LocalStore is the annotation of such a volume with the ID of the directory that an agent has its volumes in: another
	// machine, or another disk, has another one, and not the data.
	LocalStore = "windlass.dev/local-store"
	// VolumeProtection is the finalizer that keeps a volume while it is bound.
	VolumeProtection = "kubernetes.io/pv-protection"
	// ReclaimDelete is the policy of volumes whose data goes with their claim.
	ReclaimDelete = "Delete"
)

// VolumeNode returns the node that a volume is a directory of; empty if it is another volume.
func VolumeNode(v *schedulingv1.PersistentVolume) string {
	csi := v.GetSpec().GetCsi().GetFields()
	if csi["driver"].GetStringValue() != LocalDriver {
		return ""
	}
	return csi["volumeAttributes"].GetStructValue().GetFields()["node"].GetStringValue()
}

// DirectoryGoes reports whether the directory of a volume is to be removed.
func DirectoryGoes(v *schedulingv1.PersistentVolume) bool {
	finalizers := v.GetMetadata().GetFinalizers()
	return v.GetMetadata().GetDeletionTimestamp() != nil && VolumeNode(v) != "" &&
		v.GetSpec().GetPersistentVolumeReclaimPolicy() == ReclaimDelete &&
		slices.Contains(finalizers, LocalDirectory) && !slices.Contains(finalizers, VolumeProtection)
}
