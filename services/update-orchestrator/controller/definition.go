package controller

import (
	"context"
	"slices"
	"time"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership/collector"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// followDefinitions makes the loop of CustomResourceDefinitions, and the one that deletes objects of their kinds with
// their owners.
func (c *Controller) followDefinitions() {
	garbage := collector.Add(c.loops, c.Log, collector.Kind{Untyped: c.Tables.Definitions.Untyped()})
	c.Custom.Begins(func(ended context.Context, objects resource.Untyped) {
		garbage.Join(ended, collector.Kind{Untyped: objects})
	})
	loop := c.loops.Loop("definition", 1, c.define) // one at a time, so that no two get the same names
	controller.Watches(loop, c.Tables.Definitions, func(ch resource.Change[*apiextensionsv1.CustomResourceDefinition],
	) []string {
		names := []string{ch.Key.Name}
		for o := range c.Tables.Definitions.Objects() { // its names may be free now for others of its group
			if o.GetSpec().GetGroup() == ch.Object.GetSpec().GetGroup() &&
				object.FindCondition(o.GetStatus().GetConditions(), plan.NamesAccepted).GetStatus() == plan.False {
				names = append(names, o.GetMetadata().GetName())
			}
		}
		return names
	})
	c.Custom.Subscribe(func(name string) { loop.Add(name) })
}

// define brings the status of a CustomResourceDefinition up to date, and its deletion forward.
func (c *Controller) define(ctx context.Context, name string) (time.Time, error) {
	// The names that were accepted last must be known, or another definition gets the same ones.
	if err := c.Tables.Definitions.CatchUp(ctx); err != nil {
		return time.Time{}, err
	}
	d, ok := c.Tables.Definitions.Lookup("", name)
	if !ok {
		return time.Time{}, nil
	}
	v := plan.DefinitionView{Now: now(), Definition: d}
	v.Others = slices.DeleteFunc(c.Tables.Definitions.All(), func(o *apiextensionsv1.CustomResourceDefinition) bool {
		return o.GetMetadata().GetName() == name
	})
	kind, current, problem := c.Custom.Serves(d)
	v.Serves, v.Current, v.Problem = kind != nil, current, problem
	if kind != nil && object.Deleting(d) {
		var err error
		if v.Objects, err = kind.All(ctx); err != nil {
			return time.Time{}, err
		}
		if len(v.Objects) == 0 {
			if v.Dependents, v.Unread, err = c.Custom.Dependents(ctx, d); err != nil {
				return time.Time{}, err
			}
		}
	}
	p := plan.Definition(v)
	for _, key := range p.Delete {
		_, err := kind.Table.Delete(ctx, key.Namespace, key.Name, nil)
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return time.Time{}, err
		}
	}
	return p.Wake, c.writeDefinition(ctx, d, p)
}

// writeDefinition stores what a plan says of a definition, unless that changed since it was read: the change leads to
// another plan.
func (c *Controller) writeDefinition(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition,
	p plan.DefinitionPlan,
) error {
	next := proto.CloneOf(d)
	next.Status = p.Status
	if !proto.Equal(next, d) {
		written, err := c.Tables.Definitions.UpdateStatus(ctx, next)
		switch {
		case err == nil:
			next = written
		case p.Release && rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_INVALID_FIELD:
			next = d // it was stored by a version that allowed more, and goes without a last word
		default:
			return rpcerr.IgnoreChanged(err)
		}
	}
	if !p.Release {
		return nil
	}
	next = proto.CloneOf(next)
	next.Metadata.Finalizers = slices.DeleteFunc(next.Metadata.Finalizers, func(f string) bool {
		return f == custom.Finalizer
	})
	_, err := c.Tables.Definitions.Update(ctx, next)
	return rpcerr.IgnoreChanged(err)
}

// place returns references of an inventory as the tasks of the release name their objects.
func (l *loaded) place(inventory []*metav1.ObjectReference) []*metav1.ObjectReference {
	out := make([]*metav1.ObjectReference, len(inventory))
	for i, o := range inventory {
		for _, tasks := range l.tasks {
			for _, t := range tasks {
				o = t.Place(o)
			}
		}
		out[i] = o
	}
	return out
}
