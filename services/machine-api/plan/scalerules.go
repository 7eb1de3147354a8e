package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/labels"
)

// Annotations of a machine set that say what its nodes have, for a set without machines. Source: OpenShift's machine
// API, and the cluster autoscaler's provider for it.
const (
	annotationVCPU   = "machine.openshift.io/vCPU"
	annotationMemory = "machine.openshift.io/memoryMb"
	annotationGPU    = "machine.openshift.io/GPU"
	annotationPods   = "capacity.cluster-autoscaler.kubernetes.io/maxPods"
	annotationLabels = "capacity.cluster-autoscaler.kubernetes.io/labels"
)

// Annotations about scaling down, of nodes and of pods. Source: the cluster autoscaler.
const (
	annotationNoScaleDown = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	annotationSafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

const (
	labelHostname   = "kubernetes.io/hostname"
	resourceGPU     = "nvidia.com/gpu"
	defaultPriority = -10
	capacityUnknown = "it is not known what a node of the set has: annotate the set with " + annotationVCPU + " and " +
		annotationMemory + ", or give it a machine"
)

// scaleRules are the settings of a ClusterAutoscaler with their defaults.
type scaleRules struct {
	maxNodes                               int // 0 means no limit
	cores, memory                          *machinev1.ClusterAutoscalerRange
	down                                   bool
	afterAdd, afterDelete, afterFailure    time.Duration
	unneeded, provision                    time.Duration
	threshold                              float64
	priority                               int32
	balance, ignoreDaemons, skipLocal, any bool
	ignoredLabels                          []string
}

func scaleRulesOf(c *machinev1.ClusterAutoscaler) scaleRules {
	s := c.GetSpec()
	d := s.GetScaleDown()
	r := scaleRules{
		maxNodes: int(s.GetResourceLimits().GetMaxNodesTotal()), cores: s.GetResourceLimits().GetCores(),
		memory: s.GetResourceLimits().GetMemory(), down: d.GetEnabled(),
		afterAdd:     lengthOr(d.GetDelayAfterAdd(), 10*time.Minute),
		afterDelete:  lengthOr(d.GetDelayAfterDelete(), 10*time.Second),
		afterFailure: lengthOr(d.GetDelayAfterFailure(), 3*time.Minute),
		unneeded:     lengthOr(d.GetUnneededTime(), 10*time.Minute),
		provision:    lengthOr(s.GetMaxNodeProvisionTime(), 15*time.Minute),
		threshold:    0.5, priority: defaultPriority, balance: s.GetBalanceSimilarNodeGroups(),
		ignoreDaemons: s.GetIgnoreDaemonsetsUtilization(),
		skipLocal:     s.GetSkipNodesWithLocalStorage() || s == nil || s.SkipNodesWithLocalStorage == nil,
		any:           slices.Equal(s.GetExpanders(), []string{"Random"}),
		ignoredLabels: s.GetBalancingIgnoredLabels(),
	}
	if f, err := strconv.ParseFloat(d.GetUtilizationThreshold(), 64); err == nil {
		r.threshold = f
	}
	if s != nil && s.PodPriorityThreshold != nil {
		r.priority = s.GetPodPriorityThreshold()
	}
	return r
}

func lengthOr(text string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return otherwise // it is empty; others are refused
	}
	return d
}

// ClusterAutoscalerFaults returns what is invalid about a cluster autoscaler beyond the rules of its proto.
func ClusterAutoscalerFaults(c *machinev1.ClusterAutoscaler) []object.Fault {
	s := c.GetSpec()
	var bad []object.Fault
	if len(s.GetResourceLimits().GetGpus()) > 0 {
		bad = append(bad, object.Faultf("spec.resourceLimits.gpus", "is not supported: GPUs have no limits"))
	}
	for path, r := range map[string]*machinev1.ClusterAutoscalerRange{
		"spec.resourceLimits.cores":  s.GetResourceLimits().GetCores(),
		"spec.resourceLimits.memory": s.GetResourceLimits().GetMemory(),
	} {
		if r.GetMax() > 0 && r.GetMin() > r.GetMax() {
			bad = append(bad, object.Faultf(path+".min", "is %d, must be at most max, %d", r.GetMin(), r.GetMax()))
		}
	}
	for i, e := range s.GetExpanders() {
		if e == "Priority" {
			bad = append(bad, object.Faultf(fmt.Sprintf("spec.expanders[%d]", i),
				"Priority is not supported: use LeastWaste or Random"))
		}
	}
	if s != nil && s.MaxPodGracePeriod != nil {
		bad = append(bad, object.Faultf("spec.maxPodGracePeriod",
			"is not supported: drains use the grace periods of the pods"))
	}
	slices.SortFunc(bad, func(a, b object.Fault) int { return strings.Compare(a.Path, b.Path) })
	return bad
}

// ClusterAutoscalerWarnings returns which fields are stored and not in force.
func ClusterAutoscalerWarnings(c *machinev1.ClusterAutoscaler) []string {
	s := c.GetSpec()
	var out []string
	if s != nil && s.LogVerbosity != nil {
		out = append(out, "spec.logVerbosity: is stored and not in force")
	}
	if slices.Contains(s.GetExpanders(), "Random") {
		out = append(out, "spec.expanders: Random chooses the first set by name that helps")
	}
	if s.GetScaleDown().GetCordonNodeBeforeTerminating() == "Disabled" {
		out = append(out, "spec.scaleDown.cordonNodeBeforeTerminating: nodes are always cordoned before they are drained")
	}
	return out
}

// MachineAutoscalerFaults returns what is invalid about a machine autoscaler beyond the rules of its proto.
func MachineAutoscalerFaults(m *machinev1.MachineAutoscaler) []object.Fault {
	if s := m.GetSpec(); s.GetMinReplicas() > s.GetMaxReplicas() {
		return []object.Fault{object.Faultf("spec.minReplicas", "is %d, must be at most maxReplicas, %d", s.GetMinReplicas(),
			s.GetMaxReplicas())}
	}
	return nil
}

func matches(sel labels.Selector, m *machinev1.Machine) bool {
	return sel.Matches(labels.Set(m.GetMetadata().GetLabels()))
}

// nextNode returns the node that the next machine of a set would have: as sample, a ready node of the set, without its
// pods other than those of daemon sets, or as the set's annotations or its provider spec say; nil if none of them does.
func nextNode(s *machinev1.MachineSet, sample *nodev1.Node, pods []*schedulingv1.Pod) *nodev1.Node {
	template := FromTemplate(s)
	n := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{}, Spec: &nodev1.NodeSpec{},
		Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: conditionTrue}}},
	}
	if sample != nil {
		n.Metadata.Labels = maps.Clone(sample.GetMetadata().GetLabels())
		delete(n.Metadata.Labels, labelHostname)
		for _, t := range sample.GetSpec().GetTaints() {
			if !strings.HasPrefix(t.GetKey(), "node.kubernetes.io/") && t.GetKey() != taintUninitialized {
				n.Spec.Taints = append(n.Spec.Taints, t)
			}
		}
		n.Status.Capacity = sample.GetStatus().GetCapacity()
		n.Status.Allocatable = besideDaemons(sample, pods)
		return n
	}
	n.Metadata.Labels = nodeLabels(template)
	value := s.GetSpec().GetTemplate().GetSpec().GetProviderSpec().GetValue().GetFields()
	for field, keys := range map[string][]string{
		"region": {LabelNodeRegion, LabelNodeRegionOld}, "zone": {LabelNodeZone, LabelNodeZoneOld},
	} {
		for _, key := range keys {
			if text := value[field].GetStringValue(); text != "" && n.Metadata.Labels[key] == "" {
				n.Metadata.Labels[key] = text
			}
		}
	}
	annotations := s.GetMetadata().GetAnnotations()
	for _, pair := range strings.Split(annotations[annotationLabels], ",") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			n.Metadata.Labels[k] = v
		}
	}
	n.Spec.Taints = template.GetSpec().GetTaints()
	if n.Status.Capacity = statedCapacity(annotations, value["capacity"].GetStructValue()); n.Status.Capacity == nil {
		return nil
	}
	return n
}

// besideDaemons returns what a node has for pods if those of daemon sets are all that it runs.
func besideDaemons(n *nodev1.Node, pods []*schedulingv1.Pod) map[string]*structpb.Value {
	out := map[string]*structpb.Value{}
	maps.Copy(out, n.GetStatus().GetCapacity())
	maps.Copy(out, n.GetStatus().GetAllocatable())
	has, most := placement.Allocatable(n)
	for _, p := range pods {
		if placement.IsDaemon(p) {
			has.Sub(placement.RequestsOf(p.GetSpec()))
			most--
		}
	}
	out[placement.CPU] = structpb.NewStringValue(fmt.Sprintf("%dm", max(0, has.MilliCPU)))
	out[placement.Memory] = structpb.NewStringValue(strconv.FormatInt(max(0, has.Memory), 10))
	out[placement.Pods] = structpb.NewStringValue(strconv.FormatInt(max(0, most), 10))
	return out
}

// statedCapacity returns what a set's annotations say of the capacity of its nodes, or else its provider spec; nil if
// neither says both CPU and memory.
func statedCapacity(annotations map[string]string, spec *structpb.Struct) map[string]*structpb.Value {
	out := map[string]*structpb.Value{}
	if cpu, memory := annotations[annotationVCPU], annotations[annotationMemory]; cpu != "" && memory != "" {
		out[placement.CPU], out[placement.Memory] = structpb.NewStringValue(cpu), structpb.NewStringValue(memory+"Mi")
		if gpu := annotations[annotationGPU]; gpu != "" {
			out[resourceGPU] = structpb.NewStringValue(gpu)
		}
		if pods := annotations[annotationPods]; pods != "" {
			out[placement.Pods] = structpb.NewStringValue(pods)
		}
	} else {
		maps.Copy(out, spec.GetFields())
	}
	for _, name := range []string{placement.CPU, placement.Memory} {
		if _, err := placement.Quantity(out[name]); out[name] == nil || err != nil {
			return nil
		}
	}
	return out
}

// alike reports whether the next nodes of two sets differ in nothing but their names and places.
func (r scaleRules) alike(a, b *nodev1.Node) bool {
	x, xPods := placement.Allocatable(a)
	y, yPods := placement.Allocatable(b)
	plain := func(n *nodev1.Node) map[string]string {
		out := maps.Clone(n.GetMetadata().GetLabels())
		for _, key := range append([]string{
			labelHostname, LabelNodeRegion, LabelNodeRegionOld, LabelNodeZone, LabelNodeZoneOld,
		}, r.ignoredLabels...) {
			delete(out, key)
		}
		return out
	}
	return x.MilliCPU == y.MilliCPU && x.Memory == y.Memory && xPods == yPods && maps.Equal(plain(a), plain(b)) &&
		slices.Equal(taintTexts(a.GetSpec().GetTaints()), taintTexts(b.GetSpec().GetTaints()))
}
