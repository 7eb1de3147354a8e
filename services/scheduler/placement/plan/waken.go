package plan

import (
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// news is a set of things that changed in the cluster, as far as placing reads them.
type news uint

const (
	nodeCame   news = 1 << iota
	nodeLeft        // its pods count no more
	nodeLabels      // also annotations, which only rank
	nodeTaints
	nodeState // its conditions, or whether it is cordoned
	nodeSize  // what of it can be allocated
	podCame   // to a node, or it has other labels there
	podLeft   // a node, and what it had is free
	selection // which pods a service selects
	policy
	storage        // volumes, claims and their classes
	changes = iota // how many there are

	anything = 1<<changes - 1
)

// String names the changes, for people.
func (n news) String() string {
	if n == anything {
		return "any change of nodes, pods, services, volumes, claims or the policy"
	}
	var out []string
	for i, name := range []string{
		"a node comes", "a node goes", "labels of a node change", "taints of a node change",
		"conditions of a node change, or it is uncordoned", "a node can allocate more", "a pod is placed",
		"a pod leaves a node", "a service selects other pods", "the policy changes",
		"a volume, a claim or a storage class changes",
	} {
		if n&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, "; ")
}

// helps is, by the rule that a node failed, which changes may have the node pass. A rule that is not in it may be
// helped by anything. What no rule is helped by alone, a node that came or left and another policy, helps all.
var helps = map[string]news{
	"CheckNodeCondition":      nodeState,
	"CheckNodeUnschedulable":  nodeState,
	"HostName":                0, // neither name changes
	"MatchNodeSelector":       nodeLabels,
	"PodFitsResources":        nodeSize | podLeft,
	"PodFitsHostPorts":        podLeft,
	"NoDiskConflict":          podLeft,
	"MaxEBSVolumeCount":       podLeft | nodeSize | storage,
	"MaxGCEPDVolumeCount":     podLeft | nodeSize | storage,
	"MaxAzureDiskVolumeCount": podLeft | nodeSize | storage,
	"CheckVolumeBinding":      nodeLabels | storage,
	"NoVolumeZoneConflict":    nodeLabels | storage,
	"PodToleratesNodeTaints":  nodeTaints,
	"CheckNodeLabelPresence":  nodeLabels,
	"CheckServiceAffinity":    nodeLabels | podCame | podLeft | selection,
	"CheckNodeMemoryPressure": nodeState,
	"CheckNodePIDPressure":    nodeState,
	"CheckNodeDiskPressure":   nodeState,
	"MatchInterPodAffinity":   nodeLabels | podCame | podLeft,
	"EvenPodsSpread":          nodeLabels | nodeTaints | podCame | podLeft,
}

// wakers returns which changes may help a pod that no node fits.
func wakers(d Decision) news {
	if d.Refused {
		return policy | storage // the pod itself, its claims, or what the policy checks, must change
	}
	out := nodeCame | nodeLeft | policy
	for rule := range d.Predicates {
		helped, known := helps[rule]
		if !known {
			return anything
		}
		out |= helped
	}
	return out
}

// changesOf returns what of a node changed.
func changesOf(before, after *nodev1.Node) (out news) {
	if before == nil || before.GetMetadata().GetUid() != after.GetMetadata().GetUid() {
		return nodeCame
	}
	if !maps.Equal(before.GetMetadata().GetLabels(), after.GetMetadata().GetLabels()) {
		out |= nodeLabels
	}
	was, is := before.GetSpec(), after.GetSpec()
	if !slices.EqualFunc(was.GetTaints(), is.GetTaints(), sameTaint) {
		out |= nodeTaints
	}
	if was.GetUnschedulable() != is.GetUnschedulable() ||
		!slices.EqualFunc(before.GetStatus().GetConditions(), after.GetStatus().GetConditions(), sameCondition) {
		out |= nodeState
	}
	if !sameAmounts(before, after) {
		out |= nodeSize
	}
	return out
}

func sameTaint(a, b *nodev1.Taint) bool {
	return a.GetKey() == b.GetKey() && a.GetValue() == b.GetValue() && a.GetEffect() == b.GetEffect()
}

func sameCondition(a, b *nodev1.NodeCondition) bool {
	return a.GetType() == b.GetType() && a.GetStatus() == b.GetStatus()
}

// sameAmounts reports whether two states of a node have the same to allocate.
func sameAmounts(a, b *nodev1.Node) bool {
	of := func(n *nodev1.Node) *nodev1.NodeStatus {
		return &nodev1.NodeStatus{Allocatable: n.GetStatus().GetAllocatable(), Capacity: n.GetStatus().GetCapacity()}
	}
	return proto.Equal(of(a), of(b))
}

const (
	// shortestPause and longestPause bound the pause between two tries of a pod. The first change that may help it has it
	// tried at once; after that the pause doubles with each try.
	shortestPause = 100 * time.Millisecond
	longestPause  = 10 * time.Second
	// pauseStep is the grid on which pauses end, so that pods alike are tried together.
	pauseStep = 50 * time.Millisecond
)

// pauseAfter returns when a pod may be tried again after its try of that number, from 1, failed now. Pods that failed
// together are spread over the second half of the pause, by their names alone, so that they do not come back at once.
func pauseAfter(now time.Time, id string, tries int) time.Time {
	if tries == 1 {
		return now
	}
	pause := shortestPause
	for range tries - 2 {
		if pause *= 2; pause >= longestPause {
			pause = longestPause
			break
		}
	}
	h := fnv.New32a()
	h.Write([]byte(id + "\x00" + strconv.Itoa(tries)))
	pause = pause/2 + pause/2*time.Duration(h.Sum32()%1000)/1000
	return now.Add(pause).Truncate(pauseStep).Add(pauseStep)
}
