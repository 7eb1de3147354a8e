package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// Evicted is why a pod failed that its node could not keep.
const Evicted = "Evicted"

// Names of resources, as they are in requests and limits.
const (
	Memory           = placement.Memory
	EphemeralStorage = placement.EphemeralStorage
)

// criticalPriority is that of the class system-cluster-critical: pods of this or a higher priority are not evicted by
// their node. Source: Kubernetes' node agent.
const criticalPriority = 2_000_000_000

// PodUse is what a pod of the node uses.
type PodUse struct {
	UID       string
	Pod       *schedulingv1.Pod
	Memory    int64 // bytes
	Disk      DiskUse
	Processes int           // that run
	CPU       time.Duration // processor time, of all that it ran
	Ends      bool          // it is to end already
}

// DiskUse is what a pod holds of the disk, in bytes. The zero DiskUse is that of a pod that was not measured yet.
type DiskUse struct {
	Total      int64            // what the pod writes, and its logs
	Images     int64            // copies of its images' files, which are not the pod's
	Containers map[string]int64 // by container: what it writes, and its log
	Volumes    map[string]int64 // by emptyDir volume
}

// Eviction is a pod that the node ends, and why.
type Eviction struct {
	UID     string
	Verdict Verdict
}

// Evictions returns the pods that the node must not keep: all that use more of the disk than they may, and one for each
// resource of which there is too little, unless one that was evicted still ends. The pod that uses more than it
// requested goes first, then that of the lowest priority, then the one that exceeds its request most. Source:
// Kubernetes' documentation of node-pressure eviction.
func Evictions(p Pressures, pods []PodUse) []Eviction {
	var out []Eviction
	ending, going := false, map[string]bool{}
	for _, u := range pods {
		if u.Ends {
			ending = true
			continue
		}
		if why := overLimit(u); why != "" {
			out = append(out, Eviction{u.UID, Verdict{Phase: failed, Reason: Evicted, Message: why}})
			going[u.UID] = true
		}
	}
	if ending || len(out) > 0 {
		return out // what they give back may be enough
	}
	for _, r := range []struct {
		p     Pressure
		used  func(PodUse) int64
		asked func(placement.Resources) int64
	}{
		{p.Memory, func(u PodUse) int64 { return u.Memory }, func(r placement.Resources) int64 { return r.Memory }},
		{p.Disk, func(u PodUse) int64 { return u.Disk.Total }, func(r placement.Resources) int64 {
			return r.EphemeralStorage
		}},
		{
			p.PIDs, func(u PodUse) int64 { return int64(u.Processes) },
			func(placement.Resources) int64 { return 0 },
		},
	} {
		if !r.p.Low {
			continue
		}
		if u, ok := worst(pods, going, r.used, r.asked); ok {
			going[u.UID] = true
			out = append(out, Eviction{u.UID, Verdict{
				Phase: failed, Reason: Evicted,
				Message: shortage(r.p, r.used(u), r.asked(placement.RequestsOf(u.Pod.GetSpec()))),
			}})
		}
	}
	return out
}

// worst returns the pod that is to go first; false if there is none that uses anything.
func worst(pods []PodUse, going map[string]bool, used func(PodUse) int64,
	asked func(placement.Resources) int64,
) (PodUse, bool) {
	excess := func(u PodUse) int64 { return used(u) - asked(placement.RequestsOf(u.Pod.GetSpec())) }
	list := slices.DeleteFunc(slices.Clone(pods), func(u PodUse) bool {
		return u.Ends || going[u.UID] || used(u) == 0 || u.Pod.GetSpec().GetPriority() >= criticalPriority
	})
	if len(list) == 0 {
		return PodUse{}, false
	}
	return slices.MinFunc(list, func(a, b PodUse) int {
		return cmp.Or(
			-cmp.Compare(sign(excess(a)), sign(excess(b))),
			cmp.Compare(a.Pod.GetSpec().GetPriority(), b.Pod.GetSpec().GetPriority()),
			-cmp.Compare(excess(a), excess(b)),
			strings.Compare(a.UID, b.UID))
	}), true
}

// sign returns 1 for more than was asked for, else 0.
func sign(excess int64) int {
	if excess > 0 {
		return 1
	}
	return 0
}

func shortage(p Pressure, used, asked int64) string {
	return fmt.Sprintf("The node was low on resource: %s. Threshold quantity: %s, available: %s. The pod was using %s, "+
		"its request is %s.", p.Of, quantity(p.Of, p.Threshold), quantity(p.Of, p.Available), quantity(p.Of, used),
		quantity(p.Of, asked))
}

// overLimit returns why a pod uses more of the disk than it may; empty if it does not.
func overLimit(u PodUse) string {
	spec := u.Pod.GetSpec()
	for _, v := range spec.GetVolumes() {
		limit, ok := SizeLimit(v.GetEmptyDir())
		if ok && u.Disk.Volumes[v.GetName()] > limit {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q.", v.GetName(),
				quantity(EphemeralStorage, limit))
		}
	}
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		limit, ok := diskAmount(c.GetResources().GetLimits()[EphemeralStorage])
		if ok && u.Disk.Containers[c.GetName()] > limit {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q.", c.GetName(),
				quantity(EphemeralStorage, limit))
		}
	}
	var total int64
	for _, c := range spec.GetContainers() {
		limit, ok := diskAmount(c.GetResources().GetLimits()[EphemeralStorage])
		if !ok {
			return "" // a container without a limit may use what it wants
		}
		total += limit
	}
	if u.Disk.Total > total {
		return "Pod ephemeral local storage usage exceeds the total limit of containers " +
			quantity(EphemeralStorage, total) + "."
	}
	return ""
}

// SizeLimit returns how large an emptyDir may become, in bytes; false if there is no limit.
func SizeLimit(v *schedulingv1.EmptyDirVolumeSource) (int64, bool) {
	return diskAmount(v.GetSizeLimit())
}

// diskAmount returns an amount of disk in bytes; false if there is none.
func diskAmount(v *structpb.Value) (int64, bool) {
	return placement.AmountsOf(map[string]*structpb.Value{EphemeralStorage: v}).EphemeralStorage, v != nil
}
