package plan

import (
	"slices"
	"strings"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// UninitializedTaint keeps pods from a node that its agent registered until machine-api has linked it to its machine.
const UninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// mark identifies a taint of a node.
type mark struct{ key, effect string }

func markOf(t *nodev1.Taint) mark { return mark{placement.TaintKey(t.GetKey()), t.GetEffect()} }

// marksOf returns the taints that follow from the conditions of a node and from spec.unschedulable, in the order in
// which they are added. leave is whether pods have to leave a node whose agent is lost.
func marksOf(conditions []*nodev1.NodeCondition, leave, unschedulable bool) []mark {
	var out []mark
	key := ""
	switch find(conditions, Ready).GetStatus() {
	case "False":
		key = placement.NotReadyTaint
	case "Unknown":
		key = placement.UnreachableTaint
	}
	if key != "" {
		out = append(out, mark{key, placement.NoSchedule})
		if leave {
			out = append(out, mark{key, placement.NoExecute})
		}
	}
	for _, c := range conditions {
		if key := taintOf(c.GetType()); key != "" && c.GetStatus() == "True" {
			out = append(out, mark{key, placement.NoSchedule})
		}
	}
	if unschedulable {
		out = append(out, mark{placement.UnschedulableTaint, placement.NoSchedule})
	}
	return out
}

// accused reports whether a node already has a NoExecute taint for its Ready condition. If the condition changes, the
// other such taint replaces it without a new turn.
func accused(node *nodev1.Node) bool {
	return slices.ContainsFunc(node.GetSpec().GetTaints(), func(t *nodev1.Taint) bool { return markOf(t).silence() })
}

// taintOf returns the key of the taint that a node has while a condition is True; empty if there is none.
func taintOf(condition string) string {
	switch condition {
	case "MemoryPressure":
		return placement.MemoryPressureTaint
	case "DiskPressure":
		return placement.DiskPressureTaint
	case "PIDPressure":
		return placement.PIDPressureTaint
	case "NetworkUnavailable":
		return placement.NetworkUnavailableTaint
	}
	return ""
}

// own reports whether only this service adds and removes a taint.
func (m mark) own() bool {
	switch m.key {
	case placement.NotReadyTaint, placement.UnreachableTaint:
		return m.effect == placement.NoSchedule || m.effect == placement.NoExecute
	case placement.MemoryPressureTaint, placement.DiskPressureTaint, placement.PIDPressureTaint,
		placement.NetworkUnavailableTaint,
		placement.UnschedulableTaint:
		return m.effect == placement.NoSchedule
	}
	return false
}

// silence reports whether a taint evicts pods because a node's agent reports that it is not ready, or sends no
// heartbeats.
func (m mark) silence() bool {
	return m.effect == placement.NoExecute && (m.key == placement.NotReadyTaint || m.key == placement.UnreachableTaint)
}

// taints returns the desired taints of a node: the taints of others unchanged, and of this service's own those in want.
// A taint that stays keeps its place and its time, so that tolerationSeconds still counts from there.
func taints(have []*nodev1.Taint, want []mark, now time.Time) []*nodev1.Taint {
	var out []*nodev1.Taint
	seen := map[mark]bool{}
	add := func(t *nodev1.Taint) {
		if m := markOf(t); !seen[m] && (!m.own() || slices.Contains(want, m)) {
			seen[m] = true
			out = append(out, timed(t, now))
		}
	}
	for _, t := range have {
		add(t)
	}
	for _, m := range want {
		add(&nodev1.Taint{Key: m.key, Effect: m.effect})
	}
	return out
}

// timed returns a taint with the current spelling of its key and, for a NoExecute taint, the time when it was set. That
// is now if the taint has no time, or one in the future.
func timed(t *nodev1.Taint, now time.Time) *nodev1.Taint {
	missing := t.GetEffect() == placement.NoExecute && (t.GetTimeAdded() == nil || t.GetTimeAdded().AsTime().After(now))
	if key := placement.TaintKey(t.GetKey()); missing || key != t.GetKey() {
		t = proto.Clone(t).(*nodev1.Taint)
		t.Key = key
		if missing {
			t.TimeAdded = timestamppb.New(now.Truncate(time.Millisecond))
		}
	}
	return t
}

// Taint corrects a node's taints when another caller writes them: next is modified. This service's own taints stay as
// in old, and a NoExecute taint in next without a time, or with one in the future, gets that of old, or now if it is
// new or has another value. old is nil for a new node.
func Taint(old, next *nodev1.Node, now time.Time) {
	var ours []mark
	before := map[mark]*nodev1.Taint{}
	for _, t := range old.GetSpec().GetTaints() {
		m := markOf(t)
		before[m] = t
		if m.own() {
			ours = append(ours, m)
		}
	}
	have := slices.Clone(next.GetSpec().GetTaints())
	for i, t := range have {
		switch was := before[markOf(t)]; {
		case was == nil:
		case markOf(t).own():
			have[i] = was
		case t.GetEffect() != placement.NoExecute:
		case t.GetTimeAdded() == nil || t.GetTimeAdded().AsTime().After(now) ||
			proto.Equal(t.GetTimeAdded(), was.GetTimeAdded()):
			have[i] = proto.Clone(t).(*nodev1.Taint)
			have[i].TimeAdded = was.GetTimeAdded()
			if t.GetValue() != was.GetValue() {
				have[i].TimeAdded = nil // a pod that tolerates the new value for a while gets that while from now
			}
		}
	}
	for _, m := range ours {
		if !slices.ContainsFunc(have, func(t *nodev1.Taint) bool { return markOf(t) == m }) {
			have = append(have, before[m])
		}
	}
	if len(have) > 0 {
		next.Spec = ensured(next.GetSpec())
		next.Spec.Taints = taints(have, ours, now)
	}
}

func ensured(s *nodev1.NodeSpec) *nodev1.NodeSpec {
	if s == nil {
		return &nodev1.NodeSpec{}
	}
	return s
}

// Healthy reports whether an agent sends heartbeats and reports its node as ready.
func (a Agent) Healthy(grace time.Duration) bool {
	return a.Reported && a.NotReady == "" && a.Silence < grace
}

// Settled reports whether the state of an agent is known: it sent a heartbeat, or its grace period is over.
func (a Agent) Settled(grace time.Duration) bool { return a.Reported || a.Silence >= grace }

// What is done with a taint; see TaintChange.
const (
	AddTaint    = "Add"
	RemoveTaint = "Remove"
	KeepTaint   = "Keep"
	HoldTaint   = "Hold" // it would be added, but something delays that
)

// TaintChange is what a decision about a node does with one taint.
type TaintChange struct {
	Change string
	Taint  *nodev1.Taint
	Reason string // for people
}

// TaintChanges returns what a plan for a node does with its taints: those that stay or are added, in their order, then
// the one that is held back and those that are removed. p is the plan for v.
func TaintChanges(v NodeView, p Plan) []TaintChange {
	before, after := v.Node.GetSpec().GetTaints(), p.NodeAfter(v.Node)
	has := func(list []*nodev1.Taint, m mark) bool {
		return slices.ContainsFunc(list, func(t *nodev1.Taint) bool { return markOf(t) == m })
	}
	var out []TaintChange
	for _, t := range after.GetSpec().GetTaints() {
		c := TaintChange{Change: KeepTaint, Taint: t, Reason: markOf(t).because(after, HeldBy(v.Node, v.Drains))}
		if !has(before, markOf(t)) {
			c.Change = AddTaint
		}
		out = append(out, c)
	}
	why := p.HeldReason(TaintNode)
	if m, ok := silenceOf(after); ok && why != "" && !has(after.GetSpec().GetTaints(), m) {
		out = append(out, TaintChange{
			Change: HoldTaint, Taint: &nodev1.Taint{Key: m.key, Effect: m.effect}, Reason: why,
		})
	}
	for _, t := range before {
		if m := markOf(t); !has(after.GetSpec().GetTaints(), m) {
			out = append(out, TaintChange{Change: RemoveTaint, Taint: t, Reason: m.noLonger(after, why)})
		}
	}
	return out
}

// silenceOf returns the NoExecute taint that belongs to the Ready condition of a node; ok is false if none does.
func silenceOf(node *nodev1.Node) (m mark, ok bool) {
	for _, m := range marksOf(node.GetStatus().GetConditions(), true, false) {
		if m.silence() {
			return m, true
		}
	}
	return mark{}, false
}

// because returns why a node has a taint. held is what holds it unschedulable.
func (m mark) because(node *nodev1.Node, held []string) string {
	if !m.own() {
		return "users and other services set and remove it"
	}
	switch m.key {
	case placement.NotReadyTaint, placement.UnreachableTaint:
		why := readyText(node)
		if m.effect == placement.NoExecute {
			why += ", so its pods have to leave"
		}
		return why
	case placement.UnschedulableTaint:
		return "the node is unschedulable because of " + strings.Join(held, " and ")
	}
	return "the node has the condition " + m.condition()
}

// noLonger returns why a taint is removed. held is why the node's NoExecute taint is held back; empty if it is not.
func (m mark) noLonger(node *nodev1.Node, held string) string {
	switch m.key {
	case placement.NotReadyTaint, placement.UnreachableTaint:
		if m.effect == placement.NoExecute && held != "" {
			return held
		}
		return readyText(node)
	case placement.UnschedulableTaint:
		return "no cordon and no drain holds the node"
	}
	return "the node no longer has the condition " + m.condition()
}

// condition returns the type of the condition that a taint belongs to; empty if it belongs to none.
func (m mark) condition() string {
	for _, t := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"} {
		if taintOf(t) == m.key {
			return t
		}
	}
	return ""
}

// readyText describes the Ready condition of a node for people.
func readyText(node *nodev1.Node) string {
	ready := find(node.GetStatus().GetConditions(), Ready)
	if ready == nil {
		return "it is not known whether the node is ready"
	}
	text := "its Ready condition is " + ready.GetStatus()
	if ready.GetMessage() != "" {
		text += " (" + ready.GetMessage() + ")"
	}
	return text
}
