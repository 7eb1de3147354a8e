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

// mark is what tells the taints of a node apart.
type mark struct{ key, effect string }

func markOf(t *nodev1.Taint) mark { return mark{placement.TaintKey(t.GetKey()), t.GetEffect()} }

// marksOf returns the taints that follow from the conditions of a node and from its being unschedulable, in the order
// in which they are added. leave says whether pods have to leave a node whose agent is lost.
func marksOf(conditions []*nodev1.NodeCondition, leave, unschedulable bool) []mark {
	var out []mark
	ill := ""
	switch find(conditions, Ready).GetStatus() {
	case "False":
		ill = placement.NotReadyTaint
	case "Unknown":
		ill = placement.UnreachableTaint
	}
	if ill != "" {
		out = append(out, mark{ill, placement.NoSchedule})
		if leave {
			out = append(out, mark{ill, placement.NoExecute})
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

// accused reports whether pods have to leave a node for the silence of its agent already: one taint then follows the
// other at once.
func accused(node *nodev1.Node) bool {
	return slices.ContainsFunc(node.GetSpec().GetTaints(), func(t *nodev1.Taint) bool { return markOf(t).silence() })
}

// taintOf returns the key of the taint that a condition brings while it is True; empty if it brings none.
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

// own reports whether a taint is one that only this service sets and takes off.
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

// silence reports whether a taint speaks against pods that run because of what was heard, or not heard, of a node's
// agent.
func (m mark) silence() bool {
	return m.effect == placement.NoExecute && (m.key == placement.NotReadyTaint || m.key == placement.UnreachableTaint)
}

// taints returns what a node's taints shall be: those of others as they are, ours as want says. A taint that stays
// keeps its place and its time, so that what counts from there goes on.
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

// timed returns a taint in the present spelling of its key, a NoExecute one with the time when it was set.
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

// Taint keeps a node's taints in order when somebody else writes them: next is modified. This service's own stay as
// they are in old whatever next says, and a NoExecute taint whose time next leaves out gets that of old, or now if it
// is new or has another value. old is nil for a new node.
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
				have[i].TimeAdded = nil // else a pod that tolerates the new value for a while would leave before that is over
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

// Healthy reports whether an agent speaks and says nothing against its node.
func (a Agent) Healthy(grace time.Duration) bool {
	return a.Heard && a.NotReady == "" && a.Silence < grace
}

// Settled reports whether it is known how an agent is: it was heard, or had all the time it gets to be heard.
func (a Agent) Settled(grace time.Duration) bool { return a.Heard || a.Silence >= grace }
