package plan

import (
	"github.com/windlass-dev/windlass/kit/placement"
)

// filter is a row of the table of predicates. A predicate has up to four checks, by what each reads, since a result
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
	coarse check // reads pods on other nodes, with the same result for all nodes of a place

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
	coarse
)

func (f *filter) check(what part) check {
	switch what {
	case fixed:
		return f.node
	case usage:
		return f.usage
	case others:
		return f.others
	}
	return f.coarse
}

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
			about: "has the pod's host ports free, and its container ports where pods have the node's address",
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
			names: []string{"NoDiskConflict"}, byDefault: true, usage: (*class).disksFree,
			about: "has none of the pod's EBS, GCE, iSCSI or RBD disks mounted by a pod, unless both only read it " +
				"(an EBS volume: in no case)",
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
			about:  "has the same values of the argument's labels as the nodes of the pod's service, also where its pods terminate",
		},
		{
			names: []string{"MaxEBSVolumeCount"}, byDefault: true,
			usage: attaching(ebs, maxEBS, "attachable-volumes-aws-ebs"),
			about: "has at most 39 EBS volumes attached with those of the pod, or as many as its allocatable " +
				"`attachable-volumes-aws-ebs`",
		},
		{
			names: []string{"MaxGCEPDVolumeCount"}, byDefault: true,
			usage: attaching(gcePD, maxGCEPD, "attachable-volumes-gce-pd"),
			about: "has at most 16 GCE disks attached with those of the pod, or as many as its allocatable " +
				"`attachable-volumes-gce-pd`",
		},
		{
			names: []string{"MaxAzureDiskVolumeCount"}, byDefault: true,
			usage: attaching(azureDisk, maxAzure, "attachable-volumes-azure-disk"),
			about: "has at most 16 Azure disks attached with those of the pod, or as many as its allocatable " +
				"`attachable-volumes-azure-disk`",
		},
		{
			names: []string{checkVolumeBinding}, byDefault: true, node: (*class).reachable,
			about: "can reach the volumes that the pod's claims are bound to, and has volumes, or a provisioner, for the others",
		},
		{
			names: []string{noVolumeZoneConflict}, byDefault: true, node: (*class).zoned,
			about: "is in the zone and the region of the pod's volumes, as far as these have the labels",
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
		{
			names: []string{"EvenPodsSpread"}, always: true, others: evenly(false), coarse: evenly(true),
			about: "keeps to the `maxSkew` of each of the pod's `topologySpreadConstraints` with `DoNotSchedule`; " +
				"checked whatever the policy names",
		},
	}
	for i, f := range rows {
		f.order = i
	}
	return rows
}
