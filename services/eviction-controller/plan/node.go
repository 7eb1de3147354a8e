// Package plan decides what becomes of nodes and drains: whether a node is ready, which taints it
// carries, who holds it unschedulable, which pods must leave it and when, and what a drain does next. It does no I/O and reads no clock: the same view always gives the same plan. Views are never modified.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Annotations of a node that only this service writes.
const (
	// CordonedBy holds the user whose cordon keeps a node unschedulable.
	CordonedBy = "windlass.dev/cordoned"
	// RebootOf holds the identity of the boot that shall end; it goes when the node is back with another.
	RebootOf = "windlass.dev/reboot"
)

// Ready is the type of the condition that says whether a node takes part.
const Ready = "Ready"

// Reasons of the Ready condition. Those for silence are Kubernetes' own, which tools look for.
const (
	ReasonReady        = "AgentReady"
	ReasonNotReady     = "AgentNotReady"
	ReasonUnknown      = "NodeStatusUnknown"
	ReasonNeverUpdated = "NodeStatusNeverUpdated"
)

// Agent is what is known of a node's agent.
type Agent struct {
	// Heard is false if nothing has been heard of it since the count of its silence began.
	Heard bool
	// Silence is for how long nothing has been heard of it, counting only time in which somebody listened.
	Silence time.Duration
	// BootID, NotReady and Conditions are what it said last.
	BootID     string
	NotReady   string // why it is not ready; empty if it is
	Conditions []*nodev1.NodeCondition
}

// NodeView is everything that decides about a node.
type NodeView struct {
	Now    time.Time // UTC
	Node   *nodev1.Node
	Agent  Agent
	Grace  time.Duration   // silence up to here means nothing
	Drains []*nodev1.Drain // those that name the node, in any order
	// Disrupted is true during a full disruption (see Disrupted): then nothing is said against pods that run. It does not matter for a
	// node whose agent is healthy.
	Disrupted bool
	// Doubt is true while it is not known how the agent is (see Agent.Settled): what is said against pods that run stays as it is.
	Doubt bool
	// Held is until when nothing new is said against pods that run, since other nodes of the zone come first; zero means that none does.
	Held time.Time
}

// NodePlan is what a node shall be.
type NodePlan struct {
	Conditions    []*nodev1.NodeCondition
	Taints        []*nodev1.Taint
	Accuses       bool // Taints have pods leave for the silence of the agent, and those that the node has do not
	Unschedulable bool
	HeldBy        []string  // who holds it unschedulable, for people
	RebootDone    bool      // the reboot that was asked for is over
	Release       bool      // RebootDone, and nobody else needs the disruption permit that was taken for it
	Wake          time.Time // when to decide again even if nothing changes; zero means never
}

// Node decides what a node shall be now.
func Node(v NodeView) NodePlan {
	p := NodePlan{Conditions: conditions(v)}
	p.HeldBy = HeldBy(v.Node, v.Drains)
	p.Unschedulable = len(p.HeldBy) > 0
	p.Taints = taints(v.Node.GetSpec().GetTaints(), marksOf(v, p.Conditions, p.Unschedulable), v.Now)
	p.Accuses = !accused(v.Node) && accused(&nodev1.Node{Spec: &nodev1.NodeSpec{Taints: p.Taints}})
	switch {
	case v.Held.After(v.Now):
		p.Wake = v.Held
	case v.Agent.Silence < v.Grace:
		p.Wake = v.Now.Add(v.Grace - v.Agent.Silence)
	case v.Disrupted:
		p.Wake = v.Now.Add(v.Grace / 2) // another node's agent that speaks again is no change of this one
	}
	boot := v.Node.GetMetadata().GetAnnotations()[RebootOf]
	p.RebootDone = boot != "" && boot != v.Node.GetStatus().GetNodeInfo().GetBootId()
	p.Release = p.RebootDone && ControlPlane(v.Node) && !slices.ContainsFunc(v.Drains, UsesPermit)
	return p
}

// HeldBy returns who holds a node unschedulable, for people: a user by a cordon, and drains. Empty means that nobody does.
func HeldBy(node *nodev1.Node, drains []*nodev1.Drain) []string {
	var held []string
	if user, ok := node.GetMetadata().GetAnnotations()[CordonedBy]; ok {
		held = append(held, fmt.Sprintf("user %q", user))
	}
	var names []string
	for _, d := range drains {
		if Holds(d) {
			names = append(names, fmt.Sprintf("drain %q", d.GetMetadata().GetName()))
		}
	}
	slices.Sort(names)
	return append(held, names...)
}

// ControlPlane reports whether a node is of a control-plane machine or has the role of one, so that an etcd member may live on it.
func ControlPlane(node *nodev1.Node) bool {
	if node.GetMetadata().GetAnnotations()[nodeid.MachineRole] == master {
		return true // whatever its labels
	}
	labels := node.GetMetadata().GetLabels()
	_, old := labels["node-role.kubernetes.io/master"]
	_, control := labels["node-role.kubernetes.io/control-plane"]
	return old || control
}

// ready returns what the Ready condition shall say; nil to leave it as it is.
func ready(v NodeView) *nodev1.NodeCondition {
	switch {
	case v.Agent.Silence >= v.Grace:
		return silent(v)
	case !v.Agent.Heard:
		return nil
	case v.Agent.NotReady != "":
		return condition(Ready, "False", ReasonNotReady, v.Agent.NotReady)
	}
	return condition(Ready, "True", ReasonReady, "the node's agent says that it is ready")
}

func silent(v NodeView) *nodev1.NodeCondition {
	old := find(v.Node.GetStatus().GetConditions(), Ready)
	if old == nil || old.GetReason() == ReasonNeverUpdated {
		return condition(Ready, "Unknown", ReasonNeverUpdated, "the node's agent was never heard of")
	}
	return condition(Ready, "Unknown", ReasonUnknown, fmt.Sprintf("nothing was heard of the node's agent for more than %s", v.Grace))
}

// conditions returns all conditions that the node shall have, Ready first and the others by type.
func conditions(v NodeView) []*nodev1.NodeCondition {
	have := v.Node.GetStatus().GetConditions()
	want := map[string]*nodev1.NodeCondition{}
	for _, c := range have {
		want[c.GetType()] = c
	}
	gone := v.Agent.Silence >= v.Grace
	for _, c := range v.Agent.Conditions {
		if c.GetType() != Ready {
			want[c.GetType()] = c
		}
	}
	for t, c := range want {
		if gone && t != Ready && c.GetStatus() != "Unknown" {
			// What an agent said of memory or disks is as old as its last word.
			want[t] = condition(t, "Unknown", ReasonUnknown, "the node's agent is silent")
		}
	}
	if r := ready(v); r != nil {
		want[Ready] = r
	}
	out := make([]*nodev1.NodeCondition, 0, len(want))
	for _, c := range want {
		out = append(out, settled(find(have, c.GetType()), c, v.Now))
	}
	slices.SortFunc(out, func(a, b *nodev1.NodeCondition) int {
		if (a.GetType() == Ready) != (b.GetType() == Ready) {
			if a.GetType() == Ready {
				return -1
			}
			return 1
		}
		return strings.Compare(a.GetType(), b.GetType())
	})
	return out
}

// settled returns c with its times: those of old if nothing in it changed, so that a heartbeat alone never leads to a write.
func settled(old, c *nodev1.NodeCondition, now time.Time) *nodev1.NodeCondition {
	if old != nil && old.GetStatus() == c.GetStatus() && old.GetReason() == c.GetReason() && old.GetMessage() == c.GetMessage() {
		return old
	}
	out := proto.Clone(c).(*nodev1.NodeCondition)
	at := &timestamppb.Timestamp{Seconds: now.Unix()}
	out.LastTransitionTime = at
	if old.GetStatus() == c.GetStatus() && old.GetLastTransitionTime() != nil {
		out.LastTransitionTime = old.GetLastTransitionTime()
	}
	out.LastHeartbeatTime = at
	if c.GetStatus() == "Unknown" {
		out.LastHeartbeatTime = old.GetLastHeartbeatTime() // nothing was heard now
	}
	return out
}

func condition(typ, status, reason, message string) *nodev1.NodeCondition {
	return &nodev1.NodeCondition{Type: typ, Status: status, Reason: proto.String(reason), Message: proto.String(message)}
}

func find(list []*nodev1.NodeCondition, typ string) *nodev1.NodeCondition {
	for _, c := range list {
		if c.GetType() == typ {
			return c
		}
	}
	return nil
}

// IsReady reports whether the Ready condition of a node is True.
func IsReady(node *nodev1.Node) bool {
	return find(node.GetStatus().GetConditions(), Ready).GetStatus() == "True"
}

// Applied returns the node as the plan wants it.
func (p NodePlan) Applied(node *nodev1.Node) *nodev1.Node {
	out := proto.Clone(node).(*nodev1.Node)
	if out.Status == nil {
		out.Status = &nodev1.NodeStatus{}
	}
	out.Status.Conditions = p.Conditions
	if len(p.Taints) > 0 || len(out.GetSpec().GetTaints()) > 0 {
		out.Spec = ensured(out.GetSpec())
		out.Spec.Taints = p.Taints
	}
	SetUnschedulable(out, p.Unschedulable)
	if p.RebootDone {
		delete(out.GetMetadata().GetAnnotations(), RebootOf)
	}
	return out
}

// SetUnschedulable changes a node's spec.unschedulable; a node that is free has no such field, as in Kubernetes.
func SetUnschedulable(node *nodev1.Node, on bool) {
	node.Spec = ensured(node.Spec)
	if on {
		node.Spec.Unschedulable = proto.Bool(true)
	} else if node.Spec.GetUnschedulable() {
		node.Spec.Unschedulable = nil
	}
}
