package plan

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// ContentsOf returns what a plan says of the manifests of a release, in load order, and of the kinds without a service.
func ContentsOf(manifests []*updatev1.ReleaseManifest, unserved []*updatev1.ReleaseKind) *updatev1.PlanReleaseResponse {
	excluded := 0
	for _, m := range manifests {
		if m.GetExcluded() != "" {
			excluded++
		}
	}
	return &updatev1.PlanReleaseResponse{
		Manifests: manifests, ManifestCount: proto.Int32(int32(len(manifests) - excluded)),
		ExcludedCount: proto.Int32(int32(excluded)), Unserved: unserved,
	}
}

// JobFiles returns the files with a Job that is for the cluster: each is a step by itself.
func JobFiles(manifests []*updatev1.ReleaseManifest) map[string]bool {
	out := map[string]bool{}
	for _, m := range manifests {
		if m.GetJob() && m.GetExcluded() == "" {
			out[m.GetFile()] = true
		}
	}
	return out
}

// AddRemovals adds to a plan what an update removes at its end: the objects of an inventory that a release does not
// want. Those that stay whatever they are have the reason; services are the names of cluster operators that Windlass
// itself reports.
func AddRemovals(out *updatev1.PlanReleaseResponse, inventory, wants []*metav1.ObjectReference,
	overrides []*updatev1.ComponentOverride, services []string,
) {
	removed := 0
	for _, o := range Leftovers(inventory, wants) {
		l := &updatev1.ReleaseLeftover{Object: o, Reason: Stays(o, &updatev1.Manifest{}, "", overrides, services)}
		if l.GetReason() == "" {
			removed++
		}
		out.Removals = append(out.Removals, l)
	}
	out.RemovalCount = proto.Int32(int32(removed))
}

// MissingCapabilities says which capabilities a manifest needs and the cluster has not enabled; empty if none is
// missing.
func MissingCapabilities(needs, enabled []string) string {
	missing := slices.DeleteFunc(slices.Clone(needs), func(name string) bool { return slices.Contains(enabled, name) })
	switch len(missing) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("capability %s is not enabled", missing[0])
	}
	return fmt.Sprintf("capabilities %s are not enabled", strings.Join(missing, ", "))
}
