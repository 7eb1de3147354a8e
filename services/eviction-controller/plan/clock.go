package plan

import (
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Clock is a reading of a host's monotonic clock, which is never set. The zero Clock is none: only the wall clock
// counts.
type Clock struct {
	Boot   string        // ID of the boot that Uptime counts from; readings of different boots cannot be compared
	Uptime time.Duration // since the boot
}

// Observe records in the status of a node when its NoExecute taints were observed first. What was observed on the same
// boot stays. Without a clock, node is left alone.
func Observe(node *nodev1.Node, c Clock) {
	if c.Boot == "" {
		return
	}
	var out []*nodev1.ObservedTaint
	for _, t := range node.GetSpec().GetTaints() {
		if t.GetEffect() != placement.NoExecute {
			continue
		}
		o := observation(node, t, c)
		if o == nil {
			o = &nodev1.ObservedTaint{
				Key: t.GetKey(), TimeAdded: t.GetTimeAdded(), BootId: c.Boot, Uptime: durationpb.New(c.Uptime),
			}
		}
		out = append(out, o)
	}
	if len(out) == 0 && node.GetStatus().GetEvictions() == nil {
		return
	}
	if node.Status == nil {
		node.Status = &nodev1.NodeStatus{}
	}
	// The status may be that of a node that must not be modified.
	next := proto.CloneOf(node.Status)
	if next.Evictions == nil {
		next.Evictions = &nodev1.NodeEvictions{}
	}
	if next.Evictions.Observed = out; proto.Equal(next.Evictions, &nodev1.NodeEvictions{}) {
		next.Evictions = nil
	}
	node.Status = next
}

// added returns when a taint was set, by the present wall clock. A time in the future is that of a clock that was ahead
// and was corrected since: the taint counts as set when it was observed first on the present boot, or else now.
func added(now time.Time, node *nodev1.Node, t *nodev1.Taint, c Clock) time.Time {
	switch at := t.GetTimeAdded(); {
	case at == nil:
		return now
	case !at.AsTime().After(now):
		return at.AsTime()
	}
	if o := observation(node, t, c); c.Boot != "" && o != nil {
		return now.Add(o.GetUptime().AsDuration() - c.Uptime)
	}
	return now
}

// correct replaces the times of NoExecute taints that are in the future, so that pods do not leave late: see added.
// node is modified; its taints and what was observed about them are not.
func correct(node *nodev1.Node, now time.Time, c Clock) {
	list := node.GetSpec().GetTaints()
	for i, t := range list {
		if t.GetEffect() != placement.NoExecute || !t.GetTimeAdded().AsTime().After(now) {
			continue
		}
		at := timestamppb.New(added(now, node, t, c).Truncate(time.Millisecond))
		if o := observation(node, t, c); o != nil {
			observed := node.GetStatus().GetEvictions().GetObserved()
			next := proto.CloneOf(o)
			next.TimeAdded = at
			observed[slices.Index(observed, o)] = next
		}
		list[i] = proto.CloneOf(t)
		list[i].TimeAdded = at
	}
}

// observation returns what is recorded about a taint on the boot of a clock; nil if nothing is.
func observation(node *nodev1.Node, t *nodev1.Taint, c Clock) *nodev1.ObservedTaint {
	list := node.GetStatus().GetEvictions().GetObserved()
	i := slices.IndexFunc(list, func(o *nodev1.ObservedTaint) bool {
		return o.GetKey() == t.GetKey() && proto.Equal(o.GetTimeAdded(), t.GetTimeAdded()) &&
			o.GetBootId() == c.Boot && o.GetUptime().AsDuration() <= c.Uptime
	})
	if i < 0 {
		return nil
	}
	return list[i]
}

// borne returns for how long a pod has certainly been on its node together with a taint, by the clock of the view.
func (v EvictionView) borne(pod *schedulingv1.Pod, t *nodev1.Taint) time.Duration {
	o := observation(v.Node, t, v.Clock)
	if o == nil {
		return 0
	}
	since := o.GetUptime().AsDuration()
	if seen, ok := v.Seen[pod.GetMetadata().GetUid()]; ok {
		since = max(since, seen)
	} else if bound := placement.BoundBy(pod); t.GetTimeAdded() != nil && bound.After(t.GetTimeAdded().AsTime()) {
		since += bound.Sub(t.GetTimeAdded().AsTime())
	}
	return max(v.Clock.Uptime-since, 0)
}
