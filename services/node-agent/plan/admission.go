package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/security"
)

// Admit returns the verdict on a pod that the node cannot run beside those that run there already; the zero Verdict if
// it can.
func Admit(pod *schedulingv1.Pod, node *nodev1.Node, others []*schedulingv1.Pod) Verdict {
	spec := pod.GetSpec()
	if !placement.MatchesNode(spec, node) {
		return refusal("NodeAffinity", "the node is none that the pod's node selector or affinity asks for")
	}
	has, pods := placement.Allocatable(node)
	if int64(len(others)) >= pods {
		return refusal("OutOfpods", fmt.Sprintf("the node runs %d pods and takes no more than %d", len(others), pods))
	}
	var used placement.Resources
	var taken []placement.HostPort
	labels := node.GetMetadata().GetLabels()
	for _, o := range others {
		used.Add(placement.RequestsOf(o.GetSpec()))
		taken = append(taken, placement.PortsOn(labels, o.GetSpec())...)
	}
	wanted := placement.RequestsOf(spec)
	for _, r := range []struct {
		name, unit         string
		wanted, used, have int64
	}{
		{placement.CPU, "m", wanted.MilliCPU, used.MilliCPU, has.MilliCPU},
		{placement.Memory, " bytes", wanted.Memory, used.Memory, has.Memory},
		{placement.EphemeralStorage, " bytes", wanted.EphemeralStorage, used.EphemeralStorage, has.EphemeralStorage},
	} {
		if r.wanted > 0 && r.wanted > r.have-r.used {
			return refusal("OutOf"+r.name, fmt.Sprintf("the node has too little %s: requested %d%s, used %d%s, capacity %d%s",
				r.name, r.wanted, r.unit, r.used, r.unit, r.have, r.unit))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted.Scalar)) {
		// An extended resource that the node does not have at all is one of the cluster, which an extender of the scheduler
		// counts. Source: Kubernetes' node agent, which does not check these either.
		_, allocatable := node.GetStatus().GetAllocatable()[name]
		_, capacity := node.GetStatus().GetCapacity()[name]
		if !allocatable && !capacity && strings.Contains(name, "/") {
			continue
		}
		if n := wanted.Scalar[name]; n > has.Scalar[name]-used.Scalar[name] {
			return refusal("OutOf"+name, fmt.Sprintf("the node has too little %s: requested %d, used %d, capacity %d", name, n,
				used.Scalar[name], has.Scalar[name]))
		}
	}
	if clash, ok := placement.FirstClash(placement.PortsOn(labels, spec), taken); ok {
		return refusal("HostPort", fmt.Sprintf("port %s of the node is taken", clash))
	}
	return Verdict{}
}

// withoutLimits returns the verdict on a pod with limits on a node that cannot enforce any, for a reason.
func withoutLimits(spec *schedulingv1.PodSpec, why string) Verdict {
	var paths []string
	for _, list := range []struct {
		name string
		of   []*schedulingv1.Container
	}{
		{"initContainers", spec.GetInitContainers()},
		{"containers", spec.GetContainers()},
	} {
		for i, c := range list.of {
			for _, name := range slices.Sorted(maps.Keys(c.GetResources().GetLimits())) {
				if name == EphemeralStorage {
					continue // that is measured
				}
				paths = append(paths, fmt.Sprintf("spec.%s[%d].resources.limits['%s']", list.name, i, name))
			}
		}
	}
	return refusal(LimitsNotEnforceable, fmt.Sprintf("the node cannot enforce %s: %s", strings.Join(paths, ", "), why))
}

// Lacks says what containers cannot have on a node, and why: nil if they can.
type Lacks struct {
	Roots       error // root directories of their own
	Users       error // numbers of users and groups that they ask for
	Confinement error // a filter of their system calls
	Limits      error // of processor time and memory
	Host        error // programs of the host, without an image
}

// Refuse returns the verdict on a pod that asks for something of that; the zero Verdict for one that does not.
func (l Lacks) Refuse(spec *schedulingv1.PodSpec) Verdict {
	if v := l.isolation(spec); v.Phase != "" {
		return v
	}
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		if limits := placement.AmountsOf(c.GetResources().GetLimits()); l.Limits != nil &&
			(limits.MilliCPU > 0 || limits.Memory > 0) {
			return withoutLimits(spec, l.Limits.Error())
		}
	}
	return Verdict{}
}

func (l Lacks) isolation(spec *schedulingv1.PodSpec) Verdict {
	for _, list := range []struct {
		name string
		of   []*schedulingv1.Container
	}{
		{"initContainers", spec.GetInitContainers()},
		{"containers", spec.GetContainers()},
	} {
		for i, c := range list.of {
			if l.Host != nil && c.GetImage() == "" {
				return refusal(ImageRequired, fmt.Sprintf("spec.%s[%d] has no image: %v", list.name, i, l.Host))
			}
			asked := security.Of(spec, c)
			for _, f := range []struct {
				name  string
				asked bool
				why   error
			}{
				{"runAsUser", asked.User != nil, l.Users},
				{"runAsGroup", asked.Group != nil, l.Users},
				{"readOnlyRootFilesystem", asked.ReadOnlyRoot, l.Roots},
				{"seccompProfile", asked.Seccomp == security.RuntimeDefault, l.Confinement},
			} {
				if f.asked && f.why != nil {
					return refusal(SecurityContextNotEnforceable,
						fmt.Sprintf("the node cannot enforce %s of spec.%s[%d]: %v", f.name, list.name, i, f.why))
				}
			}
		}
	}
	return Verdict{}
}

// AsksForLabels reports whether it depends on the labels of a node that a pod may run there.
func AsksForLabels(spec *schedulingv1.PodSpec) bool {
	required := spec.GetAffinity().GetNodeAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()
	terms := required.GetNodeSelectorTerms()
	return len(spec.GetNodeSelector()) > 0 ||
		slices.ContainsFunc(terms, func(t *schedulingv1.NodeSelectorTerm) bool { return len(t.GetMatchExpressions()) > 0 })
}

func refusal(reason, message string) Verdict {
	return Verdict{Phase: failed, Reason: reason, Message: "Pod was rejected: " + message}
}
