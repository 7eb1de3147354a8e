// Package collector deletes the objects of a service whose owners are gone, and has owners that are deleted with the
// propagation Orphan release their dependents first. Package ownership decides; the collector promises that an owner
// is gone only if etcd says so, and that an object is deleted only as it was when that was decided. What else is
// deleted by itself, such as the contents of a namespace, is left to the services.
package collector

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"golang.org/x/sync/errgroup"
)

const (
	workers  = 8  // objects at once: each waits for etcd
	releases = 16 // dependents of one owner that are released at once

	// catchUp is how long caches may take to catch up before it is tried again: that of a kind that left never does.
	catchUp = time.Minute
)

// Kind is one kind of the objects that are collected, and of their owners.
type Kind struct {
	resource.Untyped
	// Keeps is the finalizer of a kind whose dependents always remain when an owner is deleted; the collector removes it
	// once they are released. It is "" for all others.
	Keeps string
	// Waits is a finalizer with which a deleted owner keeps its dependents as they are; "" if there is none.
	Waits string
}

// orphans reports whether an object is being deleted and must release its dependents now.
func (k Kind) orphans(o object.Object) bool {
	return ownership.Orphans(o, k.Keeps) &&
		(k.Waits == "" || !slices.Contains(o.GetMetadata().GetFinalizers(), k.Waits))
}

// Collector reconciles the objects of several kinds with their owners among them. It is safe for concurrent use.
type Collector struct {
	log  *slog.Logger
	loop *controller.Loop

	mu    sync.Mutex
	kinds []Kind // replaced, never modified
}

// Add adds the loop of a collector for all objects of kinds to the loops of a controller.
func Add(loops *controller.Loops, log *slog.Logger, kinds ...Kind) *Collector {
	c := &Collector{kinds: kinds, log: log}
	c.loop = loops.Loop("garbage", workers, c.reconcile)
	for _, k := range kinds {
		controller.Watches[object.Object](c.loop, k, func(ch resource.Change[object.Object]) []string {
			return c.concerned(k, ch)
		})
	}
	c.loop.Begin(c.joined)
	return c
}

// Join adds a kind until ctx ends, which may be while the loop runs.
func (c *Collector) Join(ctx context.Context, k Kind) {
	c.mu.Lock()
	c.kinds = append(slices.Clone(c.kinds), k)
	c.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kinds = slices.DeleteFunc(slices.Clone(c.kinds), func(o Kind) bool { return o.Untyped == k.Untyped })
	})
	k.Subscribe(func(ch resource.Change[object.Object]) { c.loop.Add(c.concerned(k, ch)...) })
	c.loop.Add(c.referring(k)...)
}

// referring returns the keys of the objects with references to a kind that joined now: their owners were assumed to
// exist before.
func (c *Collector) referring(k Kind) (keys []string) {
	for _, child := range c.all() {
		for o := range child.Objects() {
			if ownership.RefersTo(o, k.Type()) {
				keys = append(keys, loopKey(child, object.KeyOf(o)))
			}
		}
	}
	return keys
}

// joined returns the keys of all objects that have owners, for the beginning of the loop: those of kinds that joined
// before are known only here.
func (c *Collector) joined() (keys []string) {
	for _, k := range c.all() {
		for o := range k.Objects() {
			keys = append(keys, c.concerned(k, resource.Change[object.Object]{Key: object.KeyOf(o), Object: o})...)
		}
	}
	return keys
}

// all returns the kinds at present.
func (c *Collector) all() []Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kinds
}

// find returns a kind at present.
func (c *Collector) find(is func(Kind) bool) (Kind, bool) {
	kinds := c.all()
	if i := slices.IndexFunc(kinds, is); i >= 0 {
		return kinds[i], true
	}
	return Kind{}, false
}

// nameOf returns the name of a kind in the keys of the loop.
func nameOf(k Kind) string {
	return strings.TrimSuffix(k.Type().GetPlural()+"."+k.Type().GetGroup(), ".")
}

// loopKey returns the key of an object in the loop, which has objects of all kinds.
func loopKey(k Kind, key object.Key) string { return nameOf(k) + "|" + key.String() }

// concerned returns the keys of the objects that a change concerns: the object, if its owners changed or it has
// dependents to release, and the dependents of an object that is gone.
func (c *Collector) concerned(k Kind, ch resource.Change[object.Object]) []string {
	var keys []string
	if ch.Deleted {
		for child, obj := range c.dependents(ch.Object.GetMetadata().GetUid()) {
			keys = append(keys, loopKey(child, object.KeyOf(obj)))
		}
		return keys
	}
	owners := ownership.Owners(ch.Object)
	if k.orphans(ch.Object) || len(owners) > 0 && (!ch.Existed ||
		!slices.Equal(owners, ownership.Owners(ch.Previous))) {
		keys = append(keys, loopKey(k, ch.Key))
	}
	return keys
}

// dependents yields the objects that have a reference to the owner with a uid, as the caches show them.
func (c *Collector) dependents(uid string) iter.Seq2[Kind, object.Object] {
	return func(yield func(Kind, object.Object) bool) {
		for _, k := range c.all() {
			for _, obj := range k.ByIndex(resource.ByOwner, uid) {
				if !yield(k, obj) {
					return
				}
			}
		}
	}
}

// reconcile decides on one object. What it writes leads to the next decision.
func (c *Collector) reconcile(ctx context.Context, id string) (time.Time, error) {
	kind, name, _ := strings.Cut(id, "|")
	k, ok := c.find(func(k Kind) bool { return nameOf(k) == kind })
	if !ok {
		return time.Time{}, nil // it left
	}
	key := object.ParseKey(name)
	obj, ok := k.Lookup(key.Namespace, key.Name)
	switch {
	case !ok:
		return time.Time{}, nil
	case k.orphans(obj):
		return time.Time{}, c.orphan(ctx, k, obj)
	case object.Deleting(obj):
		return time.Time{}, nil
	}
	return c.collect(ctx, k, obj)
}

// collect deletes an object whose owners are all gone, or removes its references to those that are.
func (c *Collector) collect(ctx context.Context, k Kind, obj object.Object) (time.Time, error) {
	m := obj.GetMetadata()
	var owners []ownership.Owner
	for _, r := range m.GetOwnerReferences() {
		o, err := c.owner(ctx, m.GetNamespace(), r)
		if err != nil {
			return time.Time{}, err
		}
		owners = append(owners, o)
	}
	d := ownership.Collect(owners)
	if len(d.Disown) > 0 {
		return time.Time{}, disown(ctx, k, obj, d.Disown)
	}
	if !d.Remove {
		return time.Time{}, nil
	}
	// An owner that released the object removed its reference before it was gone itself: then the object is not as it was
	// seen, and remains.
	err := k.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{
		Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
	})
	if err == nil {
		c.log.InfoContext(ctx, "object removed", "kind", k.Type().GetKind(), "namespace", m.GetNamespace(),
			"name", m.GetName(), "reason", "its owner is gone")
	}
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_CONFLICT {
		// Its new state is decided on once the cache has it, which may take as long as etcd is slow.
		return time.Time{}, fmt.Errorf("%w: %w", store.ErrConflict, err)
	}
	return time.Time{}, rpcerr.IgnoreChanged(err)
}

// owner finds the owner that an object in a namespace refers to. The caches of two kinds show different moments, so
// only etcd says that there is none.
func (c *Collector) owner(ctx context.Context, namespace string, r *metav1.OwnerReference) (ownership.Owner, error) {
	o := ownership.Owner{UID: r.GetUid()}
	k, ok := c.find(func(k Kind) bool { return ownership.Names(r, namespace, k.Type()) })
	if !ok {
		return o, nil
	}
	if o.Keeps = k.Keeps != ""; !k.Type().GetNamespaced() {
		namespace = ""
	}
	if have, ok := k.Lookup(namespace, r.GetName()); ok && have.GetMetadata().GetUid() == r.GetUid() {
		return o, nil
	}
	have, err := k.Get(ctx, namespace, r.GetName())
	switch {
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		o.Gone = true
	case err != nil:
		return o, fmt.Errorf("owner %q: %w", r.GetName(), err)
	default:
		o.Gone = have.GetMetadata().GetUid() != r.GetUid()
	}
	return o, nil
}

// orphan releases the dependents of an owner that is being deleted, and then the owner itself. The caches of the
// dependents may lag behind that of the owner, so they catch up first: a dependent that was overlooked would be deleted
// with its owner.
func (c *Collector) orphan(ctx context.Context, k Kind, owner object.Object) error {
	catching, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for _, child := range c.all() {
		if err := child.CatchUp(catching); err != nil {
			return fmt.Errorf("dependents: %w", err)
		}
	}
	uid := owner.GetMetadata().GetUid()
	var group errgroup.Group
	group.SetLimit(releases)
	for child, obj := range c.dependents(uid) {
		group.Go(func() error { return disown(ctx, child, obj, []string{uid}) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return modify(ctx, k, owner, func(m *metav1.ObjectMeta) { ownership.Release(m, k.Keeps) })
}

// disown removes the references to owners from an object.
func disown(ctx context.Context, k Kind, obj object.Object, uids []string) error {
	return modify(ctx, k, obj, func(m *metav1.ObjectMeta) { ownership.Disown(m, uids) })
}

// modify changes the metadata of an object, if it is still the one that was seen.
func modify(ctx context.Context, k Kind, seen object.Object, f func(m *metav1.ObjectMeta)) error {
	return rpcerr.IgnoreChanged(k.Modify(ctx, object.KeyOf(seen), func(obj object.Object) error {
		m := obj.GetMetadata()
		if m.GetUid() != seen.GetMetadata().GetUid() {
			return rpcerr.Conflict(k.Type().GetKind(), m.GetName(), "another object has its name")
		}
		f(m)
		return nil
	}))
}
