package plan

import (
	"slices"
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

// timed returns a taint with the current spelling of its key and, for a NoExecute taint, the time when it was set.
func timed(t *nodev1.Taint, now time.Time) *nodev1.Taint {
	missing := t.GetEffect() == placement.NoExecute && t.GetTimeAdded() == nil
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
// in old, and a NoExecute taint without a time in next gets that of old, or now if it is new or has another value. old
// is nil for a new node.
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
		case t.GetTimeAdded() == nil || proto.Equal(t.GetTimeAdded(), was.GetTimeAdded()):
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
