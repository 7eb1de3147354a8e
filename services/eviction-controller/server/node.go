// Package server serves the custom methods of nodes and drains, and receives the heartbeats of node agents.
package server

import (
	"context"
	"errors"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Permits is the part of etcd-guardian that a reboot needs.
type Permits interface {
	Acquire(ctx context.Context, machine *metav1.ObjectReference, reason string) (held bool, err error)
	Release(ctx context.Context, machine *metav1.ObjectReference) error
}

// Views returns the views that the controller decides on.
type Views interface {
	Node(node *nodev1.Node) plan.NodeView
	Evictions(node *nodev1.Node) plan.EvictionView
	Drain(d *nodev1.Drain) plan.DrainView
	Zones() plan.ZonesView
	// Paces returns the silence after which an agent counts as lost, and the time between two nodes of a zone whose pods
	// are evicted for the silence of their agents.
	Paces() (grace, pause time.Duration)
	// Pods returns the pods of a node. known is false until the list of pods was received from the scheduler.
	Pods(node string) (pods []*schedulingv1.Pod, known bool)
}

// Node serves the custom methods of NodeService.
type Node struct {
	nodev1.UnimplementedNodeServiceServer
	tables  *kinds.Tables
	views   Views
	permits Permits
}

// NewNode returns the custom methods of NodeService.
func NewNode(tables *kinds.Tables, views Views, permits Permits) *Node {
	return &Node{tables: tables, views: views, permits: permits}
}

// CordonNode makes a node unschedulable and records the caller's name.
func (s *Node) CordonNode(ctx context.Context, r *nodev1.CordonNodeRequest) (*nodev1.Node, error) {
	return s.cordon(ctx, r.GetName(), true)
}

// UncordonNode removes a user's cordon.
func (s *Node) UncordonNode(ctx context.Context, r *nodev1.UncordonNodeRequest) (*nodev1.Node, error) {
	return s.cordon(ctx, r.GetName(), false)
}

func (s *Node) cordon(ctx context.Context, name string, on bool) (*nodev1.Node, error) {
	caller, _ := identity.CallerFrom(ctx)
	return s.tables.Nodes.Modify(ctx, object.Key{Name: name}, func(node *nodev1.Node) error {
		plan.SetCordon(node, s.tables.DrainsOf(name), caller.User, on)
		return nil
	}, resource.WriteOptions{Own: true})
}

// RebootNode orders the agent of a node to restart it. It returns before the node goes down.
func (s *Node) RebootNode(ctx context.Context, r *nodev1.RebootNodeRequest) (*nodev1.RebootNodeResponse, error) {
	node, err := s.tables.Nodes.Get(ctx, "", r.GetName())
	if err != nil {
		return nil, err
	}
	boot := node.GetStatus().GetNodeInfo().GetBootId()
	switch asked := node.GetMetadata().GetAnnotations()[plan.RebootOf]; {
	case asked == boot && boot != "":
		return &nodev1.RebootNodeResponse{BootId: boot}, nil // already requested
	case asked != "":
		return nil, rebooting(r.GetName())
	case boot == "" || !plan.IsReady(node):
		return nil, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "nodes/"+r.GetName(),
			"the node is not ready, so its agent cannot be ordered to restart it")
	}
	if plan.ControlPlane(node) {
		if _, err := s.permits.Acquire(ctx, plan.MachineOfNode(r.GetName()), "reboot"); err != nil {
			return nil, err
		}
	}
	_, err = s.tables.Nodes.Modify(ctx, object.Key{Name: r.GetName()}, func(node *nodev1.Node) error {
		if node.GetStatus().GetNodeInfo().GetBootId() != boot {
			return rpcerr.Conflict("Node", r.GetName(), "it was restarted in the meantime")
		}
		if asked := node.GetMetadata().GetAnnotations()[plan.RebootOf]; asked != "" && asked != boot {
			return rebooting(r.GetName())
		}
		plan.SetReboot(node, boot)
		return nil
	}, resource.WriteOptions{Own: true})
	if err != nil && plan.ControlPlane(node) {
		err = errors.Join(err, s.giveBack(context.WithoutCancel(ctx), r.GetName()))
	}
	if err != nil {
		return nil, err
	}
	return &nodev1.RebootNodeResponse{BootId: boot}, nil
}

// rebooting refuses a reboot while a previous one has not ended: its end releases the permit, which must not be the
// permit of this one.
func rebooting(node string) error {
	return rpcerr.Conflict("Node", node, "its previous reboot has not ended yet")
}

// giveBack releases the permit that was acquired for a reboot that was not requested, unless a drain of the node uses
// the permit. It also keeps the permit if the request was written: after a failed write that is not known.
func (s *Node) giveBack(ctx context.Context, name string) error {
	node, err := s.tables.Nodes.Get(ctx, "", name)
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	if node.GetMetadata().GetAnnotations()[plan.RebootOf] != "" || slices.ContainsFunc(s.tables.DrainsOf(name),
		plan.UsesPermit) {
		return nil
	}
	return s.permits.Release(ctx, plan.MachineOfNode(name))
}

// PlanNode returns what the controller would make of a node. For a given node, only the request is taken into account.
func (s *Node) PlanNode(ctx context.Context, r *nodev1.PlanNodeRequest) (*nodev1.PlanNodeResponse, error) {
	v, err := s.view(ctx, r.GetName(), r.GetNode())
	if err != nil {
		return nil, err
	}
	if r.GetNode() != nil {
		v.Agent = plan.Agent{Reported: r.GetSilence() != nil, Silence: r.GetSilence().AsDuration()}
	}
	p := plan.Node(v)
	node := p.NodeAfter(v.Node)
	return &nodev1.PlanNodeResponse{
		Conditions: node.GetStatus().GetConditions(), Taints: node.GetSpec().GetTaints(),
		Unschedulable: node.GetSpec().GetUnschedulable(), HeldBy: plan.HeldBy(v.Node, v.Drains),
		WakeTime: object.Timestamp(p.Wake),
	}, nil
}

// PlanTaints returns what the controller would do with the taints of a node.
func (s *Node) PlanTaints(ctx context.Context, r *nodev1.PlanTaintsRequest) (*nodev1.PlanTaintsResponse, error) {
	switch on := r.GetAgent().GetNode(); {
	case r.GetNode() == nil && (r.GetAgent() != nil || r.GetNow() != nil):
		return nil, rpcerr.Invalid(object.Fault{
			Path: "node", Description: "give the node too: a given agent or time is not mixed with live objects",
		})
	case on != "" && on != r.GetNode().GetMetadata().GetName():
		return nil, rpcerr.Invalid(object.Fault{Path: "agent.node", Description: "is not the name of the given node"})
	}
	v, err := s.view(ctx, r.GetName(), r.GetNode())
	if err != nil {
		return nil, err
	}
	if r.GetNow() != nil {
		v.Now = r.GetNow().AsTime()
	}
	if r.GetAgent() != nil {
		v.Agent = agentOf(r.GetAgent())
	}
	p := plan.Node(v)
	out := &nodev1.PlanTaintsResponse{
		Taints: p.NodeAfter(v.Node).GetSpec().GetTaints(), WakeTime: object.Timestamp(p.Wake),
	}
	for _, c := range plan.TaintChanges(v, p) {
		out.Changes = append(out.Changes, &nodev1.PlanTaintsResponse_Change{
			Change: c.Change, Taint: c.Taint, Reason: c.Reason,
		})
	}
	return out, nil
}

// mostWaiting is how many nodes that wait for a taint are listed.
const mostWaiting = 100

// PlanZones returns the states of the live zones, or of those of given nodes.
func (s *Node) PlanZones(_ context.Context, r *nodev1.PlanZonesRequest) (*nodev1.PlanZonesResponse, error) {
	v := s.views.Zones
	if r.GetNodes() != nil {
		given, err := givenCluster(r.GetNodes().GetItems(), r.GetAgents(), r.GetMemory(), r.GetDisrupted())
		if err != nil {
			return nil, err
		}
		given.Now = timeOf(r.GetNow())
		given.Grace, given.Pause = s.views.Paces()
		v = given.Zones
	} else if len(r.GetAgents())+len(r.GetMemory()) > 0 || r.GetNow() != nil || r.GetDisrupted() {
		return nil, rpcerr.Invalid(nodesToo)
	}
	zones, disrupted, reason := plan.Zones(v())
	out := &nodev1.PlanZonesResponse{Disrupted: disrupted, Reason: reason}
	for _, z := range zones {
		out.Zones = append(out.Zones, &nodev1.PlanZonesResponse_Zone{
			Zone: z.Zone, State: z.State, PreviousState: z.Was, Nodes: int32(z.Total), Lost: int32(z.Lost),
			NodesPerSecond: z.Rate, Reason: z.Reason, NextNode: z.Next, NextTime: object.Timestamp(z.At), NextReason: z.Why,
			Waiting: z.Waiting[:min(len(z.Waiting), mostWaiting)], WaitingCount: int32(len(z.Waiting)),
		})
	}
	return out, nil
}

// view returns the controller's view of a live node, or the view of a given one: nothing live is mixed with it.
func (s *Node) view(ctx context.Context, name string, node *nodev1.Node) (plan.NodeView, error) {
	switch {
	case node != nil && misnamed(name, node) != nil:
		return plan.NodeView{}, rpcerr.Invalid(misnamed(name, node)...)
	case node != nil:
		grace, pause := s.views.Paces()
		return plan.NodeView{
			Now: time.Now().UTC(), Node: given(ctx, node), Reachability: plan.Reachability{Grace: grace, Given: true},
			Pause: pause,
		}, nil
	case name == "":
		return plan.NodeView{}, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a node"})
	}
	live, err := s.tables.Nodes.Get(ctx, "", name)
	if err != nil {
		return plan.NodeView{}, err
	}
	return s.views.Node(live), nil
}

// given returns the node of a request as it would be stored: an unschedulable node gets a cordon of the caller.
func given(ctx context.Context, node *nodev1.Node) *nodev1.Node {
	node = object.Clone(node)
	if node.Metadata == nil {
		node.Metadata = &metav1.ObjectMeta{}
	}
	if node.GetSpec().GetUnschedulable() {
		caller, _ := identity.CallerFrom(ctx)
		plan.SetCordon(node, nil, caller.User, true)
	}
	return node
}
