package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Conditions of a pool.
const (
	ConditionUpdated        = "Updated"
	ConditionUpdating       = "Updating"
	ConditionDegraded       = "Degraded"
	ConditionNodeDegraded   = "NodeDegraded"
	ConditionRenderDegraded = "RenderDegraded"
)

// maxHistory is how many configurations a status remembers that all nodes had.
const maxHistory = 10

// maxNamed bounds the nodes or faults that a message names.
const maxNamed = 10

// counts are what the status of a pool counts. Source: MCO.
type counts struct{ total, updated, ready, unavailable, degraded int }

func count(v View, r *Rollout, target string) counts {
	c := counts{total: len(v.Members.Nodes)}
	for _, n := range v.Members.Nodes {
		if done(n) && mark(n, DesiredConfig) == target {
			c.updated++
			if ready(n) {
				c.ready++
			}
		}
		if v.unavailable(n) {
			c.unavailable++
		}
		if r.reports(n) {
			c.degraded++
		}
	}
	return c
}

// status returns the status of a pool.
func status(v View, r *Rollout) *configv1.MachineConfigPoolStatus {
	target := v.Pool.GetSpec().GetConfiguration()
	c := count(v, r, target.GetName())
	old := v.Pool.GetStatus()
	st := &configv1.MachineConfigPoolStatus{
		ObservedGeneration: proto.Int32(v.Pool.GetMetadata().GetGeneration()),
		Configuration:      old.GetConfiguration(), History: history(old),
		MachineCount: proto.Int32(int32(c.total)), UpdatedMachineCount: proto.Int32(int32(c.updated)),
		ReadyMachineCount: proto.Int32(int32(c.ready)), UnavailableMachineCount: proto.Int32(int32(c.unavailable)),
		DegradedMachineCount: proto.Int32(int32(c.degraded)), Waves: v.waves.statuses(),
	}
	name := target.GetName()
	pin := v.Pool.GetSpec().GetPin().GetConfiguration()
	aimed := pin == "" || pin == name
	updated := name != "" && aimed && c.updated == c.total && c.ready == c.total && c.unavailable == 0
	set := func(typ string, is bool, reason, message string) {
		st.Conditions = append(st.Conditions, pooled(old.GetConditions(), typ, is, reason, message, v.Now))
	}
	paused := v.paused()
	switch {
	case updated:
		if st.Configuration = target; c.total > 0 { // a pool without nodes is updated, too, but that proves nothing
			st.History = had(st.History, name, v.Now)
		}
		set(ConditionUpdated, true, "", "All nodes are updated with MachineConfig "+name)
		set(ConditionUpdating, false, "", "")
	case name == "":
		set(ConditionUpdated, false, "", "The pool has no MachineConfig yet")
		set(ConditionUpdating, false, "", "")
	case !aimed:
		set(ConditionUpdated, false, "", "The nodes do not get "+pin+", at which the pool is to be held")
		set(ConditionUpdating, false, "", "")
	case paused == nil && r.held(v) && !r.underWay(v):
		set(ConditionUpdated, false, "", r.summary()+"; "+v.window().Waits)
		set(ConditionUpdating, false, "", "Pool "+v.window().Waits+"; will not update to MachineConfig "+name+" before")
	case paused == nil && r.held(v):
		set(ConditionUpdated, false, "", r.summary()+"; "+v.window().Waits)
		set(ConditionUpdating, true, "", "All nodes are updating to MachineConfig "+name)
	case paused != nil:
		set(ConditionUpdated, false, "", r.summary())
		set(ConditionUpdating, false, "", "Pool is paused; will not update to MachineConfig "+name)
	default:
		text := r.summary()
		if waits := v.waves.current(); waits != "" {
			text += "; " + waits
		}
		set(ConditionUpdated, false, "", text)
		set(ConditionUpdating, true, "", "All nodes are updating to MachineConfig "+name)
	}
	failure := v.Failure
	if c := object.FindCondition(old.GetConditions(), ConditionRenderDegraded); v.Settling() && c.GetStatus() == "True" {
		failure = c.GetMessage() // it is not known yet whether the change has corrected it
	}
	nodes, reason := r.degraded(v), ""
	switch {
	case c.degraded > 0:
		reason = fmt.Sprintf("%d nodes are reporting degraded status on sync", c.degraded)
	case len(v.Members.Disputed) > 0:
		reason = "NodeInSeveralPools"
	}
	set(ConditionNodeDegraded, reason != "", reason, strings.Join(nodes, ", "))
	set(ConditionRenderDegraded, failure != "", word(failure != "", "RenderFailed"), failure)
	set(ConditionDegraded, reason != "" || failure != "", "", strings.Join(append(nodes, list(failure)...), ", "))
	if paused != nil {
		set(ConditionPaused, true, "Paused", v.pauseMessage(paused, r.behind, c.total))
	}
	if pin != "" {
		set(ConditionPinned, true, "Pinned", PinText(v.Pool))
	}
	return st
}

// held reports whether nodes of a pool wait for a maintenance window.
func (r *Rollout) held(v View) bool {
	return v.window().Closed() && v.Failure == "" && (r.behind > 0 || slices.ContainsFunc(v.Members.Nodes,
		func(n *nodev1.Node) bool { return r.undrained(v, n) }))
}

// undrained reports whether a node has a target, and serves until it is drained for it.
func (r *Rollout) undrained(v View, n *nodev1.Node) bool {
	return v.undisturbed(n) && !slices.Contains(r.Next, n.GetMetadata().GetName())
}

// underWay reports whether a node changes to another configuration, and does not wait to be drained for it.
func (r *Rollout) underWay(v View) bool {
	for i, n := range v.Members.Nodes { // r.Nodes has their plans in the same order
		if r.Nodes[i].GetState() == Updating && !r.undrained(v, n) {
			return true
		}
	}
	return false
}

// history returns the configurations that all nodes had. Earlier releases noted the last one alone.
func history(old *configv1.MachineConfigPoolStatus) []*configv1.MachineConfigPoolHistory {
	name := old.GetConfiguration().GetName()
	if len(old.GetHistory()) > 0 || name == "" || old.GetMachineCount() == 0 {
		return old.GetHistory()
	}
	h := &configv1.MachineConfigPoolHistory{Name: name}
	if u := object.FindCondition(old.GetConditions(), ConditionUpdated); u.GetStatus() == "True" {
		h.CompletionTime = u.GetLastTransitionTime()
	}
	return []*configv1.MachineConfigPoolHistory{h}
}

// had returns a history with the configuration that all nodes have now.
func had(list []*configv1.MachineConfigPoolHistory, name string, now time.Time) []*configv1.MachineConfigPoolHistory {
	if len(list) > 0 && list[0].GetName() == name {
		return list
	}
	return append([]*configv1.MachineConfigPoolHistory{
		{Name: name, CompletionTime: &timestamppb.Timestamp{Seconds: now.Unix()}},
	}, list[:min(len(list), maxHistory-1)]...)
}

func word(is bool, s string) string {
	if is {
		return s
	}
	return ""
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// reports reports whether a node is in trouble. One that gets another target now begins again.
func (r *Rollout) reports(n *nodev1.Node) bool {
	return failed(n) && !slices.Contains(r.Next, n.GetMetadata().GetName())
}

// degraded returns one line for each node that is in trouble.
func (r *Rollout) degraded(v View) []string {
	var out []string
	for _, n := range v.Members.Nodes {
		if r.reports(n) {
			out = append(out, fmt.Sprintf("Node %s is reporting: %q", n.GetMetadata().GetName(), mark(n, Reason)))
		}
	}
	return append(out, v.Members.Disputed...)
}

// summary says in one line what the nodes of a pool that is not updated do, and what waits.
func (r *Rollout) summary() string {
	by := map[string][]string{}
	for _, n := range r.Nodes {
		text := n.GetNode()
		if n.GetState() == Updating || n.GetState() == degraded {
			text += " (" + n.GetReason() + ")"
		}
		by[n.GetState()] = append(by[n.GetState()], text)
	}
	parts := []string{fmt.Sprintf("%d of %d nodes are updated", len(by[Updated]), len(r.Nodes))}
	for _, s := range []string{Updating, degraded, Unavailable, Waiting} {
		if len(by[s]) > 0 {
			parts = append(parts, strings.ToLower(s)+": "+some(by[s], ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// some joins the first of many texts, and says how many more there are.
func some(texts []string, separator string) string {
	if len(texts) <= maxNamed {
		return strings.Join(texts, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:maxNamed], separator), len(texts)-maxNamed)
}

// pooled returns a condition whose time is that of the last change of its status.
func pooled(old []*metav1.Condition, typ string, is bool, reason, message string, now time.Time) *metav1.Condition {
	c := &metav1.Condition{Type: typ, Status: "False", LastTransitionTime: &timestamppb.Timestamp{Seconds: now.Unix()}}
	if is {
		c.Status = "True"
	}
	if reason != "" {
		c.Reason = proto.String(reason)
	}
	if message != "" {
		c.Message = proto.String(message)
	}
	for _, o := range old {
		if o.GetType() == typ && o.GetStatus() == c.GetStatus() {
			c.LastTransitionTime = o.GetLastTransitionTime()
		}
	}
	return c
}
