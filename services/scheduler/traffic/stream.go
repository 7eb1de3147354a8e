package traffic

import (
	"cmp"
	"context"
	"maps"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Stream is one reader of a tracker. It keeps which services have changed and not their states: several changes of a
// service are one, and a slow reader costs no more memory than a fast one.
type Stream struct {
	tracker *Tracker
	wake    chan struct{}
	pending map[object.Key]struct{} // guarded by the tracker's lock
}

// Watch returns a stream of all services and then of every change. It must be closed.
func (t *Tracker) Watch() *Stream {
	s := &Stream{tracker: t, wake: make(chan struct{}, 1), pending: map[object.Key]struct{}{}}
	t.mu.Lock()
	defer t.mu.Unlock()
	for namespace, ns := range t.namespaces {
		for name := range ns.services {
			s.pending[object.Key{Namespace: namespace, Name: name}] = struct{}{}
		}
	}
	t.streams[s] = struct{}{}
	return s
}

// Close ends a stream.
func (s *Stream) Close() {
	s.tracker.mu.Lock()
	defer s.tracker.mu.Unlock()
	delete(s.tracker.streams, s)
}

// note notes services that have changed. The lock of the tracker is held.
func (s *Stream) note(changed map[object.Key]struct{}) {
	maps.Copy(s.pending, changed)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// All returns all services, which are complete, once the tracker has them. It is called once, before Next.
func (s *Stream) All(ctx context.Context) ([]*schedulingv1.ServiceEndpoints, error) {
	select {
	case <-s.tracker.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	changed, _ := s.take() // none of those that were removed was sent
	return changed, nil
}

// Next waits for changes. It returns the present state of the services that have changed since the last call, and the
// keys of those that do not exist any more, both in order. The messages are shared and must not be modified.
func (s *Stream) Next(ctx context.Context) (changed []*schedulingv1.ServiceEndpoints, removed []string, err error) {
	for {
		if changed, removed = s.take(); len(changed)+len(removed) > 0 {
			return changed, removed, nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// take returns what is pending.
func (s *Stream) take() (changed []*schedulingv1.ServiceEndpoints, removed []string) {
	t := s.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range slices.SortedFunc(maps.Keys(s.pending), byName) {
		ns := t.namespaces[k.Namespace]
		if ns == nil || ns.services[k.Name] == nil {
			removed = append(removed, k.String())
			continue
		}
		changed = append(changed, ns.services[k.Name].built())
	}
	clear(s.pending)
	return changed, removed
}

func byName(a, b object.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
