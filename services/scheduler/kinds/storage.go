package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// defaultClass is the annotation of the storage class of claims that name none.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

func defaultStorageClass(c *schedulingv1.StorageClass) {
	c.ReclaimPolicy = cmp.Or(c.ReclaimPolicy, plan.Delete)
	mode := plan.Immediate
	if c.GetProvisioner() == plan.LocalProvisioner {
		mode = plan.WaitForFirstConsumer
	}
	c.VolumeBindingMode = cmp.Or(c.VolumeBindingMode, mode)
}

func validateStorageClass(c *schedulingv1.StorageClass) (bad []object.Fault) {
	if c.GetProvisioner() != plan.LocalProvisioner {
		return nil
	}
	if !plan.Waits(c) {
		bad = append(bad, object.Faultf("volumeBindingMode", "must be %s for %s: a directory is on the node of the first pod",
			plan.WaitForFirstConsumer, plan.LocalProvisioner))
	}
	if len(c.GetParameters()) > 0 {
		bad = append(bad, object.Faultf("parameters", "%s has none", plan.LocalProvisioner))
	}
	if len(c.GetMountOptions()) > 0 {
		bad = append(bad, object.Faultf("mountOptions", "%s mounts nothing", plan.LocalProvisioner))
	}
	if c.GetAllowVolumeExpansion() {
		bad = append(bad, object.Faultf("allowVolumeExpansion", "%s does not limit the size of volumes",
			plan.LocalProvisioner))
	}
	return bad
}

func validateStorageClassUpdate(old, c *schedulingv1.StorageClass) (bad []object.Fault) {
	for _, f := range []struct {
		path    string
		changed bool
	}{
		{"provisioner", old.GetProvisioner() != c.GetProvisioner()},
		{"reclaimPolicy", old.GetReclaimPolicy() != c.GetReclaimPolicy()},
		{"volumeBindingMode", old.GetVolumeBindingMode() != c.GetVolumeBindingMode()},
		{"parameters", !proto.Equal(
			&schedulingv1.StorageClass{Parameters: old.GetParameters()}, &schedulingv1.StorageClass{
				Parameters: c.GetParameters(),
			},
		)},
	} {
		if f.changed {
			bad = append(bad, object.Fault{Path: f.path, Description: "cannot be changed"})
		}
	}
	return bad
}

func defaultVolume(v *schedulingv1.PersistentVolume) {
	if v.Spec == nil {
		v.Spec = &schedulingv1.PersistentVolumeSpec{}
	}
	orElse(&v.Spec.PersistentVolumeReclaimPolicy, plan.Retain)
	if v.Spec.VolumeMode == nil {
		v.Spec.VolumeMode = proto.String("Filesystem")
	}
	if v.Status == nil {
		v.Status = &schedulingv1.PersistentVolumeStatus{Phase: proto.String("Pending")}
	}
}

func validateVolume(v *schedulingv1.PersistentVolume) []object.Fault {
	spec := v.GetSpec()
	bad := append(sizeFaults("spec.capacity['storage']", spec.GetCapacity()["storage"]),
		accessFaults(spec.GetAccessModes())...)
	switch p := spec.GetPersistentVolumeReclaimPolicy(); p {
	case plan.Retain, plan.Delete:
	case "Recycle":
		bad = append(bad, object.Faultf("spec.persistentVolumeReclaimPolicy",
			"Recycle is not in force: the next claim would find the data of the last one"))
	default:
		bad = append(bad, object.Faultf("spec.persistentVolumeReclaimPolicy", "must be Retain or Delete, not %q", p))
	}
	bad = append(append(bad, modeFaults(spec.GetVolumeMode())...), plan.CheckNodeAffinity(v)...)
	if ref := spec.GetClaimRef(); ref != nil && (ref.GetName() == "" || ref.GetNamespace() == "") {
		bad = append(bad, object.Faultf("spec.claimRef", "must have a namespace and a name"))
	}
	csi := spec.GetCsi().GetFields()
	if csi["driver"].GetStringValue() == plan.LocalProvisioner && placement.VolumeNode(v) == "" {
		bad = append(bad, object.Faultf("spec.csi.volumeAttributes['node']", "must be the name of a node"))
	}
	return bad
}

// validateVolumeUpdate keeps what a volume is and where it can be used.
func validateVolumeUpdate(old, v *schedulingv1.PersistentVolume) []object.Fault {
	was, is := proto.CloneOf(old.GetSpec()), proto.CloneOf(v.GetSpec())
	for _, s := range []*schedulingv1.PersistentVolumeSpec{was, is} { // what may change
		s.Capacity, s.AccessModes, s.ClaimRef, s.StorageClassName, s.MountOptions = nil, nil, nil, "", nil
		s.PersistentVolumeReclaimPolicy = ""
	}
	if was.GetNodeAffinity() == nil {
		was.NodeAffinity = is.GetNodeAffinity()
	}
	bad := unchanged("spec", was, is)
	if placement.DirectoryGoes(old) &&
		v.GetSpec().GetPersistentVolumeReclaimPolicy() != old.GetSpec().GetPersistentVolumeReclaimPolicy() {
		bad = append(bad, object.Faultf("spec.persistentVolumeReclaimPolicy",
			"cannot be changed: the directory is being removed"))
	}
	if object.Deleting(old) && old.GetStatus().GetPhase() == "Bound" &&
		!proto.Equal(old.GetSpec().GetClaimRef(), v.GetSpec().GetClaimRef()) {
		bad = append(bad, object.Faultf("spec.claimRef",
			"cannot be changed while the volume is bound and waits for its deletion: its data would go under the claim"))
	}
	return bad
}

// sizeFaults returns what is wrong with a size.
func sizeFaults(path string, v *structpb.Value) []object.Fault {
	if v == nil {
		return []object.Fault{{Path: path, Description: "must be given"}}
	}
	q, err := placement.Quantity(v)
	switch {
	case err != nil:
		return []object.Fault{{Path: path, Description: err.Error()}}
	case q.Sign() <= 0:
		return []object.Fault{{Path: path, Description: "must be more than 0"}}
	}
	return nil
}

func accessFaults(modes []string) (bad []object.Fault) {
	if len(modes) == 0 {
		bad = append(bad, object.Fault{Path: "spec.accessModes", Description: "must have at least one"})
	}
	for i, m := range modes {
		switch {
		case m == "ReadWriteOncePod":
			bad = append(bad, object.Faultf(fmt.Sprintf("spec.accessModes[%d]", i),
				"%s is not in force: several pods could use it", m))
		case !slices.Contains([]string{"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"}, m):
			bad = append(bad, object.Faultf(fmt.Sprintf("spec.accessModes[%d]", i),
				"must be ReadWriteOnce, ReadOnlyMany or ReadWriteMany, not %q", m))
		}
	}
	return bad
}

func modeFaults(mode string) []object.Fault {
	if mode == "Filesystem" || mode == "Block" {
		return nil
	}
	return []object.Fault{object.Faultf("spec.volumeMode", "must be Filesystem or Block, not %q", mode)}
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
	bad = append(append(bad, accessFaults(c.GetSpec().GetAccessModes())...), modeFaults(c.GetSpec().GetVolumeMode())...)
	return append(bad, sizeFaults("spec.resources.requests['storage']",
		c.GetSpec().GetResources().GetFields()["requests"].GetStructValue().GetFields()["storage"])...)
}

// validateClaimUpdate lets a claim be bound, and lets it ask for another size and become one of the default class.
func validateClaimUpdate(old, c *schedulingv1.PersistentVolumeClaim) []object.Fault {
	was, is := proto.CloneOf(old.GetSpec()), c.GetSpec()
	was.Resources = is.GetResources()
	if was.GetVolumeName() == "" {
		was.VolumeName = is.GetVolumeName()
	}
	return unchanged("spec", was, is)
}

// admitClaim gives a new claim that names no class the default one: the youngest, if there are several.
func (t *Tables) admitClaim(w *resource.Write[*schedulingv1.PersistentVolumeClaim]) error {
	if !w.Creates() || w.New.GetSpec().StorageClassName != nil {
		return nil
	}
	var class *schedulingv1.StorageClass
	for c := range t.StorageClasses.Objects() {
		if c.GetMetadata().GetAnnotations()[defaultClass] == "true" && (class == nil || younger(c, class)) {
			class = c
		}
	}
	if class != nil && plan.ClassOf(w.New) == "" {
		w.New.Spec.StorageClassName = proto.String(class.GetMetadata().GetName())
	}
	return nil
}

// younger orders objects by their creation, the later first, then by name.
func younger(a, b object.Object) bool {
	x, y := a.GetMetadata(), b.GetMetadata()
	if c := x.GetCreationTimestamp().AsTime().Compare(y.GetCreationTimestamp().AsTime()); c != 0 {
		return c > 0
	}
	return x.GetName() < y.GetName()
}

// Indexes of volumes.
const (
	// OnNode is the node of a volume of the built-in driver.
	OnNode = "spec.csi.volumeAttributes.node"
	// FreeOf is the class of a volume that no claim has, as "class/NAME".
	FreeOf = "free"
	// HeldBy is the claim that a volume names, as "namespace/name".
	HeldBy = "claim"
	// ClaimsOf is the claims that a pod names, as "namespace/name".
	ClaimsOf = "claims"
	// NumberedAs is the name of a claim without its number, as "namespace/name": the claims of the pods of a stateful set
	// have one for each claim template.
	NumberedAs = "numbered"
	// SelectedFor is the node that was selected for a claim that is not bound.
	SelectedFor = "selected"
	// UnboundOf is the class of a claim that is not bound, as "class/NAME".
	UnboundOf = "unbound"
)

func volumeIndexes() map[string]func(*schedulingv1.PersistentVolume) []string {
	return map[string]func(*schedulingv1.PersistentVolume) []string{
		OnNode: func(v *schedulingv1.PersistentVolume) []string {
			if node := placement.VolumeNode(v); node != "" {
				return []string{node}
			}
			return nil
		},
		FreeOf: func(v *schedulingv1.PersistentVolume) []string {
			if v.GetSpec().GetClaimRef() != nil {
				return nil
			}
			return []string{"class/" + plan.ClassOfVolume(v)}
		},
		HeldBy: func(v *schedulingv1.PersistentVolume) []string {
			if ref := v.GetSpec().GetClaimRef(); ref != nil {
				return []string{object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}.String()}
			}
			return nil
		},
	}
}

func claimIndexes() map[string]func(*schedulingv1.PersistentVolumeClaim) []string {
	return map[string]func(*schedulingv1.PersistentVolumeClaim) []string{
		UnboundOf: func(c *schedulingv1.PersistentVolumeClaim) []string {
			if plan.Bound(c) {
				return nil
			}
			return []string{"class/" + plan.ClassOf(c)}
		},
		NumberedAs: func(c *schedulingv1.PersistentVolumeClaim) []string {
			k := object.KeyOf(c)
			if k.Name = k.Name[:max(0, strings.LastIndexByte(k.Name, '-'))]; k.Name == "" {
				return nil
			}
			return []string{k.String()}
		},
		SelectedFor: func(c *schedulingv1.PersistentVolumeClaim) []string {
			if node := c.GetMetadata().GetAnnotations()[plan.SelectedNode]; node != "" && !plan.Bound(c) {
				return []string{node}
			}
			return nil
		},
	}
}

// claimsOf returns the claims that a pod names.
func claimsOf(pod *schedulingv1.Pod) (out []string) {
	for _, v := range pod.GetSpec().GetVolumes() {
		if c := v.GetPersistentVolumeClaim(); c != nil {
			out = append(out, object.Key{Namespace: pod.GetMetadata().GetNamespace(), Name: c.GetClaimName()}.String())
		}
	}
	return out
}
