package controller

import (
	"log/slog"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"google.golang.org/grpc"
)

// Pods is a copy of all pods, indexed by node.
type Pods struct {
	*informer.Informer[*schedulingv1.Pod]
}

const byNode = "spec.nodeName"

// NewPods returns a copy of the pods of a scheduler. Nothing is read before Run.
func NewPods(scheduler grpc.ClientConnInterface, log *slog.Logger) (*Pods, error) {
	pods, err := informer.New[*schedulingv1.Pod](scheduler, log)
	if err != nil {
		return nil, err
	}
	pods.Index(byNode, func(p *schedulingv1.Pod) []string { return []string{p.GetSpec().GetNodeName()} })
	return &Pods{pods}, nil
}

// On returns the pods of a node, ordered by namespace and name.
func (p *Pods) On(node string) []*schedulingv1.Pod { return p.ByIndex(byNode, node) }
