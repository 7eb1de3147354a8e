package controller

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// drift watches the objects of a release.
type drift struct {
	mu     sync.Mutex
	plan   plan.Drift
	unkept map[string]bool    // what this service keeps itself, and was about to be put back
	cancel context.CancelFunc // of the watch; nil before it
}

// watch begins to watch the objects of the present release, unless it did so before, until ctx ends or stop.
func (d *drift) watch(ctx context.Context, c *Controller) {
	if d.cancel != nil {
		return
	}
	ctx, d.cancel = context.WithCancel(ctx)
	tasks := slices.Concat(slices.Collect(maps.Values(c.term.release.tasks))...)
	c.term.background.Go(func() {
		c.Applier.Watch(ctx, tasks, func(t apply.Task, o object.Object, revision int64) {
			d.mu.Lock()
			drifted := d.plan.Saw(id(t), o, revision)
			d.mu.Unlock()
			if drifted {
				c.work.Add(key)
			}
		}, func(kind string, err error) {
			c.Log.DebugContext(ctx, "watch of what a release brought ended", "kind", kind, "error", err)
		})
	})
}

func (d *drift) stop() {
	if d != nil && d.cancel != nil {
		d.cancel()
	}
}

// has reports whether the object of a manifest was changed since it was applied.
func (d *drift) has(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan.Drifted(id)
}

// applying takes in that a manifest is about to be applied.
func (d *drift) applying(id string, t apply.Task, applier *apply.Applier) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan.Applying(id)
	d.unkept[id] = !applier.Kept(t)
}

// applied takes in how the application of a manifest left its object, and returns what of it is put back.
func (d *drift) applied(id string, t apply.Task, o object.Object) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unkept[id] {
		return []string{plan.TheObject}
	}
	if t.CreateOnly() {
		return d.plan.Created(id)
	}
	if o == nil {
		return nil
	}
	revision, err := resource.ParseRevision(o.GetMetadata().GetResourceVersion())
	if err != nil {
		return nil // its owner counts in no way that is known: it is applied again with all others
	}
	return d.plan.Applied(id, o, revision)
}
