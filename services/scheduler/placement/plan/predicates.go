package plan

import (
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// filter is a row of the table of predicates. A predicate has up to three checks, by what each reads, since a result
// is kept while that does not change. A check that is nil passes.
type filter struct {
	names    []string // in the documents; the first is the usual one
	argument string   // the field of a policy's argument that defines such a predicate; empty: it takes none
	about    string   // for docs/scheduler.md: what must hold of a node

	byDefault bool // whether it is in the default policy
	always    bool // whether it is checked whatever the policy names

	node   check // reads the node's own state
	usage  check // reads what the node's pods use
	others check // reads pods on other nodes

	// volumes is set for a predicate that is documented and not built, and says which volumes it would judge. A pod with
	// such a volume stays pending.
	volumes func(*schedulingv1.Volume) bool

	order int // in which predicates run, whatever the policy's order is; set by filters
}

// check reports whether a node passes. It notes in r why not, unless r is nil.
type check func(k *class, p *predicate, n *node, r *report) bool

// part of a predicate, by what it reads.
type part int

const (
	fixed part = 1 << iota
	usage
	others
)

func (f *filter) check(what part) check {
	switch what {
	case fixed:
		return f.node
	case usage:
		return f.usage
	}
	return f.others
}

func (f *filter) built() bool { return f.volumes == nil }

// filters returns the predicates in the order in which they run.
func filters() []*filter {
	rows := []*filter{
		{
			names: []string{"CheckNodeCondition"}, always: true, node: (*class).ready,
			about: "is Ready, has disk space and network, and is schedulable; checked whatever the policy names",
		},
		{
			names: []string{"CheckNodeUnschedulable"}, node: (*class).schedulable,
			about: "is schedulable, or the pod tolerates that it is not",
		},
		{
			names: []string{"GeneralPredicates"}, byDefault: true, node: (*class).chosen, usage: (*class).roomy,
			about: "passes HostName, MatchNodeSelector, PodFitsResources and PodFitsHostPorts",
		},
		{
			names: []string{"HostName"}, node: (*class).named,
			about: "is the one that the pod's `nodeName` asks for",
		},
		{
			names: []string{"PodFitsHostPorts", "PodFitsPorts"}, usage: (*class).portsFree,
			about: "has the pod's host ports free",
		},
		{
			names: []string{"MatchNodeSelector"}, node: (*class).selected,
			about: "matches the pod's node selector and required node affinity",
		},
		{
			names: []string{"PodFitsResources"}, usage: (*class).fits,
			about: "has enough of every resource left, and room for one more pod",
		},
		{
			names: []string{"NoDiskConflict"}, byDefault: true, about: "has none of the pod's disks mounted",
			volumes: func(v *schedulingv1.Volume) bool {
				return hasEBS(v) || hasGCEPD(v) || v.GetIscsi() != nil || v.GetRbd() != nil
			},
		},
		{
			names: []string{"PodToleratesNodeTaints"}, byDefault: true,
			node:  tolerating(placement.NoSchedule, placement.NoExecute),
			about: "has no NoSchedule or NoExecute taint that the pod does not tolerate",
		},
		{
			names: []string{"PodToleratesNodeNoExecuteTaints"}, node: tolerating(placement.NoExecute),
			about: "has no NoExecute taint that the pod does not tolerate",
		},
		{
			names: []string{"CheckNodeLabelPresence"}, argument: "labelsPresence", node: (*class).labelled,
			about: "has, or has not, the labels of the argument",
		},
		{
			names: []string{"CheckServiceAffinity", "checkServiceAffinity"}, argument: "serviceAffinity",
			others: (*class).withService,
			about:  "has the same values of the argument's labels as the nodes of the pod's service",
		},
		{
			names: []string{"MaxEBSVolumeCount"}, byDefault: true, about: "can attach the pod's EBS volumes",
			volumes: func(v *schedulingv1.Volume) bool { return hasEBS(v) || hasClaim(v) },
		},
		{
			names: []string{"MaxGCEPDVolumeCount"}, byDefault: true, about: "can attach the pod's GCE disks",
			volumes: func(v *schedulingv1.Volume) bool { return hasGCEPD(v) || hasClaim(v) },
		},
		{
			names: []string{"MaxAzureDiskVolumeCount"}, byDefault: true, about: "can attach the pod's Azure disks",
			volumes: func(v *schedulingv1.Volume) bool { return v.GetAzureDisk() != nil || hasClaim(v) },
		},
		{
			names: []string{"CheckVolumeBinding"}, volumes: hasClaim,
			about: "can reach volumes that the pod's claims are or can be bound to",
		},
		{
			names: []string{"NoVolumeZoneConflict"}, byDefault: true, volumes: hasClaim,
			about: "is in the zone of the pod's volumes",
		},
		{
			names: []string{"CheckNodeMemoryPressure"}, byDefault: true,
			node:  bestEffort(without("MemoryPressure", "memory", placement.MemoryPressureTaint)),
			about: "is not under memory pressure, if the pod is BestEffort",
		},
		{
			names: []string{"CheckNodePIDPressure"}, byDefault: true,
			node:  without("PIDPressure", "pid", placement.PIDPressureTaint),
			about: "is not short of process ids",
		},
		{
			names: []string{"CheckNodeDiskPressure"}, byDefault: true,
			node:  without("DiskPressure", "disk", placement.DiskPressureTaint),
			about: "is not under disk pressure",
		},
		{
			names: []string{"MatchInterPodAffinity"}, byDefault: true, others: (*class).withPods,
			about: "meets required affinity and anti-affinity, of the pod and of pods that run",
		},
	}
	for i, f := range rows {
		f.order = i
	}
	return rows
}

func hasClaim(v *schedulingv1.Volume) bool { return v.GetPersistentVolumeClaim() != nil }
func hasEBS(v *schedulingv1.Volume) bool   { return v.GetAwsElasticBlockStore() != nil }
func hasGCEPD(v *schedulingv1.Volume) bool { return v.GetGcePersistentDisk() != nil }
