package plan

import (
	"slices"

	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// FirstFit decides where pods go if each takes the first node by name that passes the predicates, whatever the
// priorities are: few nodes are used. The pods are placed in the order of placeAll, as if none of them had a node, and
// stay in c as if they were bound.
func FirstFit(c *Cluster, p Profiles, pods []*schedulingv1.Pod) []Decision {
	unranked := Profiles{}
	for name, profile := range p {
		u := *profile
		u.priorities, u.reads, u.places, u.images = nil, 0, nil, false
		unranked[name] = &u
	}
	queue := make([]*schedulingv1.Pod, 0, len(pods))
	for _, pod := range pods {
		c.RemovePod(pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName())
		if pod.GetSpec().GetNodeName() != "" {
			pod = proto.Clone(pod).(*schedulingv1.Pod)
			pod.Spec.NodeName = ""
		}
		queue = append(queue, pod)
	}
	slices.SortStableFunc(queue, earlier)
	out := make([]Decision, 0, len(queue))
	for _, pod := range queue {
		var turn uint64 // of nodes that are equally good, the first
		b := c.boardFor(unranked.Of(pod))
		out = append(out, b.place(pod, &turn))
	}
	return out
}
