// Package server answers the calls of nodes and drains that are not standard ones, and listens to the agents of nodes.
package server

import (
	"context"
	"errors"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Permits is the guardian of the quorum, as far as a reboot needs it.
type Permits interface {
	Acquire(ctx context.Context, machine *metav1.ObjectReference, reason string) (held bool, err error)
	Release(ctx context.Context, machine *metav1.ObjectReference) error
}

// Listener knows what agents said.
type Listener interface {
	Beat(*nodev1.HeartbeatRequest) bool
	Agent(node string) plan.Agent
	Witnesses(nodes []*nodev1.Node) []plan.Witness
	Grace() time.Duration
}

// Node serves what NodeService has beyond the standard methods.
type Node struct {
	nodev1.UnimplementedNodeServiceServer
	tables  *kinds.Tables
	heard   Listener
	permits Permits
}

// NewNode returns the custom methods of NodeService.
func NewNode(tables *kinds.Tables, heard Listener, permits Permits) *Node {
	return &Node{tables: tables, heard: heard, permits: permits}
}

// CordonNode makes a node unschedulable in the caller's name.
func (s *Node) CordonNode(ctx context.Context, r *nodev1.CordonNodeRequest) (*nodev1.Node, error) {
	return s.cordon(ctx, r.GetName(), true)
}

// UncordonNode lifts a user's cordon.
func (s *Node) UncordonNode(ctx context.Context, r *nodev1.UncordonNodeRequest) (*nodev1.Node, error) {
	return s.cordon(ctx, r.GetName(), false)
}

func (s *Node) cordon(ctx context.Context, name string, on bool) (*nodev1.Node, error) {
	caller, _ := identity.CallerFrom(ctx)
	return s.tables.Nodes.Modify(kinds.Own(ctx), resource.Key{Name: name}, func(node *nodev1.Node) error {
		plan.SetCordon(node, s.tables.DrainsOf(name), caller.User, on)
		return nil
	})
}

// RebootNode asks the agent of a node to restart it. The answer comes before the node goes down.
func (s *Node) RebootNode(ctx context.Context, r *nodev1.RebootNodeRequest) (*nodev1.RebootNodeResponse, error) {
	node, err := s.tables.Nodes.Get(ctx, "", r.GetName())
	if err != nil {
		return nil, err
	}
	boot := node.GetStatus().GetNodeInfo().GetBootId()
	switch asked := node.GetMetadata().GetAnnotations()[plan.RebootOf]; {
	case asked == boot && boot != "":
		return &nodev1.RebootNodeResponse{BootId: boot}, nil // asked for before
	case asked != "":
		return nil, rebooting(r.GetName())
	case boot == "" || !plan.IsReady(node):
		return nil, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "nodes/"+r.GetName(),
			"the node is not ready, so its agent cannot be told to restart it")
	}
	if plan.ControlPlane(node) {
		if _, err := s.permits.Acquire(ctx, plan.MachineOfNode(r.GetName()), "reboot"); err != nil {
			return nil, err
		}
	}
	_, err = s.tables.Nodes.Modify(kinds.Own(ctx), resource.Key{Name: r.GetName()}, func(node *nodev1.Node) error {
		if node.GetStatus().GetNodeInfo().GetBootId() != boot {
			return rpcerr.Conflict("Node", r.GetName(), "it was restarted meanwhile")
		}
		if asked := node.GetMetadata().GetAnnotations()[plan.RebootOf]; asked != "" && asked != boot {
			return rebooting(r.GetName())
		}
		plan.SetReboot(node, boot)
		return nil
	})
	if err != nil && plan.ControlPlane(node) {
		err = errors.Join(err, s.giveBack(context.WithoutCancel(ctx), r.GetName()))
	}
	if err != nil {
		return nil, err
	}
	return &nodev1.RebootNodeResponse{BootId: boot}, nil
}

// rebooting refuses a reboot while another one is not over: its end gives the permit back, which must not be that of this one.
func rebooting(node string) error {
	return rpcerr.Conflict("Node", node, "another reboot of it is about to be over")
}

// giveBack gives the permit back that was taken for a reboot which does not come about, unless a drain of the node uses it, or a reboot after
// all: whether the order was written is not always known.
func (s *Node) giveBack(ctx context.Context, name string) error {
	node, err := s.tables.Nodes.Get(ctx, "", name)
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	if node.GetMetadata().GetAnnotations()[plan.RebootOf] != "" || slices.ContainsFunc(s.tables.DrainsOf(name), plan.UsesPermit) {
		return nil
	}
	return s.permits.Release(ctx, plan.MachineOfNode(name))
}

// PlanNode says what would become of a node.
func (s *Node) PlanNode(ctx context.Context, r *nodev1.PlanNodeRequest) (*nodev1.PlanNodeResponse, error) {
	v := plan.NodeView{Now: time.Now().UTC(), Grace: s.heard.Grace()}
	switch {
	case r.GetNode() != nil:
		v.Node = given(ctx, r.GetNode())
		v.Agent = plan.Agent{Heard: r.GetSilence() != nil, Silence: r.GetSilence().AsDuration()}
	case r.GetName() == "":
		return nil, rpcerr.Invalid(rpcerr.Field{Path: "name", Description: "give a name or a node"})
	default:
		var err error
		if v.Node, err = s.tables.Nodes.Get(ctx, "", r.GetName()); err != nil {
			return nil, err
		}
		v.Agent = s.heard.Agent(r.GetName())
		witnesses := s.heard.Witnesses(s.tables.Nodes.All())
		v.Disrupted = plan.Disrupted(witnesses, v.Grace)
		if _, stopped := plan.Pace(witnesses, plan.Zone(v.Node), v.Grace, 0); stopped {
			v.Held = v.Now.Add(v.Grace / 2)
		}
		v.Doubt = !v.Agent.Settled(v.Grace)
	}
	v.Drains = s.tables.DrainsOf(v.Node.GetMetadata().GetName())
	p := plan.Node(v)
	out := &nodev1.PlanNodeResponse{
		Conditions: p.Conditions, Taints: p.Taints,
		Unschedulable: p.Unschedulable, HeldBy: p.HeldBy, WakeTime: wake(p.Wake),
	}
	return out, nil
}

// given returns a node of a request as it would be stored: one that is unschedulable without anybody's cordon is cordoned by the caller.
func given(ctx context.Context, node *nodev1.Node) *nodev1.Node {
	node = resource.Clone(node)
	if node.Metadata == nil {
		node.Metadata = &metav1.ObjectMeta{}
	}
	if node.GetSpec().GetUnschedulable() {
		caller, _ := identity.CallerFrom(ctx)
		plan.SetCordon(node, nil, caller.User, true)
	}
	return node
}

func wake(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
