package apply

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

// place is a kind in a namespace, which is watched as a whole.
type place struct {
	kind      *kind
	namespace string
}

// Watch calls see with the object of every task that another service owns, as it is and whenever it changes, until ctx
// ends: the revision at which it was so, and nil if there is none. Jobs are left out: they run once, and what happens
// to them later is not the release's. After a broken stream all objects are shown again. broken is called with why a
// stream ended. see and broken are called by several goroutines.
func (a *Applier) Watch(ctx context.Context, tasks []Task, see func(t Task, o object.Object, revision int64),
	broken func(kind string, err error),
) {
	places := map[place]map[string]Task{} // by the name of the object
	for _, t := range tasks {
		if t.kind == nil || t.Delete() || t.Job() {
			continue
		}
		key := t.kind.key(t.object)
		at := place{t.kind, key.Namespace}
		if places[at] == nil {
			places[at] = map[string]Task{}
		}
		places[at][key.Name] = t
	}
	var streams sync.WaitGroup
	for at, wanted := range places {
		streams.Go(func() {
			for again := backoff.New(100*time.Millisecond, 10*time.Second); ctx.Err() == nil; again.Wait(ctx) {
				err := at.watch(ctx, wanted, see, again.Reset)
				if ctx.Err() == nil {
					broken(at.kind.typ.GetPlural(), err)
				}
			}
		})
	}
	streams.Wait()
}

// watch calls see with the objects that are wanted, by name, until the stream ends, and shown when it has shown all.
func (p place) watch(ctx context.Context, wanted map[string]Task, see func(Task, object.Object, int64), shown func(),
) error {
	key := object.Key{Namespace: p.namespace}
	if names := slices.Collect(maps.Keys(wanted)); len(names) == 1 {
		key.Name = names[0]
	}
	there := map[string]bool{} // what the stream shows until it has shown all; nil then
	return p.kind.watch(ctx, key, func(events []resource.Event[object.Object], at int64, listed bool) error {
		for _, e := range events {
			name := object.KeyOf(e.Object).Name
			t, ok := wanted[name]
			if !ok {
				continue
			}
			revision, err := resource.ParseRevision(e.Object.GetMetadata().GetResourceVersion())
			if err != nil {
				return err
			}
			if there != nil {
				there[name] = true
			}
			if e.Type == resource.Deleted {
				see(t, nil, max(revision, at))
			} else {
				see(t, e.Object, revision)
			}
		}
		if !listed || there == nil {
			return nil
		}
		for name, t := range wanted {
			if !there[name] {
				see(t, nil, at)
			}
		}
		there = nil
		shown()
		return nil
	})
}
