// Package event reads the events of objects, in the order in which they are shown.
package event

import (
	"cmp"
	"context"
	"slices"
	"time"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// In returns the events of a list that have one of the types; all if there are no types.
func In(list []object.Object, types ...string) []*eventv1.Event {
	var out []*eventv1.Event
	for _, o := range list {
		ev := o.(*eventv1.Event)
		if len(types) == 0 || slices.Contains(types, ev.GetType()) {
			out = append(out, ev)
		}
	}
	return out
}

// Sort sorts events by time, the newest last. Events of the same second are sorted by revision; events of one
// revision, which were written together, by their event times.
func Sort(list []*eventv1.Event) {
	slices.SortStableFunc(list, func(a, b *eventv1.Event) int {
		return cmp.Or(lastTime(a).Compare(lastTime(b)),
			cmp.Compare(target.RevisionNumber(a.GetMetadata().GetResourceVersion()),
				target.RevisionNumber(b.GetMetadata().GetResourceVersion())),
			cmp.Compare(a.GetEventTime(), b.GetEventTime()))
	})
}

func lastTime(ev *eventv1.Event) time.Time {
	if t := ev.GetLastTimestamp(); t != nil {
		return t.AsTime()
	}
	return ev.GetMetadata().GetCreationTimestamp().AsTime()
}

// Of returns the events of one object, the newest last.
func Of(ctx context.Context, c *client.Client, o object.Object) ([]*eventv1.Event, error) {
	k, err := client.FindKind("events")
	if err != nil {
		return nil, err
	}
	ns := cmp.Or(o.GetMetadata().GetNamespace(), "default")
	list, _,
		err := c.List(ctx, k, client.Selection{Namespace: ns, Fields: "involvedObject.uid=" + o.GetMetadata().GetUid()})
	if err != nil {
		return nil, err
	}
	out := In(list)
	Sort(out)
	return out, nil
}
