package plan

import (
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	available = "Available"
	released  = "Released"
	failed    = "Failed"
)

// VolumeView is everything that a volume is decided on.
type VolumeView struct {
	Volume *schedulingv1.PersistentVolume
	Claim  *schedulingv1.PersistentVolumeClaim // of the name that its claimRef has; nil if there is certainly none
	// NodeGone is whether the node that it is a directory of certainly does not exist.
	NodeGone bool
}

// VolumePlan is what is done for a volume.
type VolumePlan struct {
	Next   *schedulingv1.PersistentVolume // to store in place of the volume; nil if nothing changes
	Delete bool
	Held   []*metav1.HeldBack
	Tell   []Event // of the volume
}

// PersistentVolume decides what phase a volume has, and whether it goes.
func PersistentVolume(v VolumeView) VolumePlan {
	var p VolumePlan
	next := proto.CloneOf(v.Volume)
	ref := v.Volume.GetSpec().GetClaimRef()
	mine := v.Claim != nil && v.Claim.GetMetadata().GetUid() == ref.GetUid()
	name := v.Volume.GetMetadata().GetName()
	phase, reason, message := "", "", ""
	switch {
	case ref.GetUid() == "": // it is free, or reserved
		phase = available
	case mine && v.Claim.GetSpec().GetVolumeName() == name:
		phase = bound
	case mine && v.Claim.GetSpec().GetVolumeName() == "" && !object.Deleting(v.Volume):
		return p // they are bound together, and a write in between would only disturb that
	case mine && v.Volume.GetMetadata().GetAnnotations()[provisionedBy] == "": // its claim has another one
		next.Spec.ClaimRef.Uid = ""
		if v.Volume.GetMetadata().GetAnnotations()[boundByController] != "" {
			next.Spec.ClaimRef = nil
			next.Metadata.Annotations = without(next.GetMetadata().GetAnnotations(), boundByController)
		}
		phase = available
	default: // its claim is gone, or has no use for it
		phase = released
		p.Delete, reason, message = reclaim(v.Volume)
		if message != "" {
			phase = failed
			p.Tell = append(p.Tell, Event{"Warning", reason, message})
		}
	}
	if object.Deleting(v.Volume) {
		p.Delete = false
		p.Held = release(v, next, phase)
	}
	next.Status = &schedulingv1.PersistentVolumeStatus{Phase: &phase, Reason: optional(reason), Message: optional(message)}
	if !proto.Equal(next, v.Volume) {
		p.Next = next
	}
	return p
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func without(have map[string]string, key string) map[string]string {
	out := map[string]string{}
	for k, v := range have {
		if k != key {
			out[k] = v
		}
	}
	return out
}

// reclaim reports whether a volume whose claim is gone is deleted here, or why it would have to be and is not.
func reclaim(v *schedulingv1.PersistentVolume) (remove bool, reason, message string) {
	provisioner := v.GetMetadata().GetAnnotations()[provisionedBy]
	switch {
	case v.GetSpec().GetPersistentVolumeReclaimPolicy() != Delete:
		return false, "", ""
	case placement.VolumeNode(v) != "":
		return true, "", ""
	case provisioner != "" && provisioner != LocalProvisioner:
		return false, "", "" // that program deletes it
	}
	return false, "VolumeFailedDelete", "no program deletes volumes of this kind: delete it when its data may go"
}

// release removes the finalizers of a volume that is being deleted and may go, and says what waits.
func release(v VolumeView, next *schedulingv1.PersistentVolume, phase string) []*metav1.HeldBack {
	held := func(action, why, unblock string) []*metav1.HeldBack {
		return []*metav1.HeldBack{{Action: action, Object: object.Reference(v.Volume), Reason: why, Unblock: unblock}}
	}
	if phase == bound {
		return held("ReleaseVolume", "it is bound to claim "+object.KeyOf(v.Claim).String(), "the claim is deleted")
	}
	drop(next, VolumeProtection)
	if !has(next.GetMetadata().GetFinalizers(), placement.LocalDirectory) {
		return nil
	}
	if v.NodeGone || v.Volume.GetSpec().GetPersistentVolumeReclaimPolicy() != Delete {
		drop(next, placement.LocalDirectory) // the directory went with its node, or is to stay
		return nil
	}
	return held("RemoveVolume", fmt.Sprintf("node %s has not removed its directory yet", placement.VolumeNode(v.Volume)),
		"the agent of the node removes it, or the node is deleted")
}

func drop(v *schedulingv1.PersistentVolume, finalizer string) {
	var kept []string
	for _, f := range v.GetMetadata().GetFinalizers() {
		if f != finalizer {
			kept = append(kept, f)
		}
	}
	v.Metadata.Finalizers = kept
}
