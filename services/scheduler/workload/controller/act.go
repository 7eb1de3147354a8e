package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

const deletions = 32 // of one owner's pods at once: each waits for etcd, which likes company

// transfer has an owner adopt some objects and release others. Those that changed since bring their owner back by
// themselves.
func transfer[O, T object.Object](ctx context.Context, owners *resource.Table[O], owner O,
	of *resource.Table[T], adopt, release []T,
) error {
	if len(adopt) > 0 {
		now, err := owners.Get(ctx, owner.GetMetadata().GetNamespace(), owner.GetMetadata().GetName())
		if err != nil {
			return rpcerr.IgnoreChanged(err)
		}
		if now.GetMetadata().GetUid() != owner.GetMetadata().GetUid() || object.Deleting(now) {
			return nil // an owner that goes adopts none
		}
	}
	err := modifyAll(ctx, of, adopt, func(obj T) error {
		if object.ControllerOf(obj) == nil && !object.Deleting(obj) {
			m := obj.GetMetadata()
			m.OwnerReferences = append(m.OwnerReferences, object.OwnedBy(owner))
		}
		return nil
	})
	return errors.Join(err, modifyAll(ctx, of, release, func(obj T) error {
		m := obj.GetMetadata()
		var kept []*metav1.OwnerReference
		for _, r := range m.GetOwnerReferences() {
			if r.GetUid() != owner.GetMetadata().GetUid() {
				kept = append(kept, r)
			}
		}
		m.OwnerReferences = kept
		return nil
	}))
}

// modifyAll changes those of some objects that are still there.
func modifyAll[T object.Object](ctx context.Context, t *resource.Table[T], objects []T, f func(T) error) error {
	if len(objects) == 0 {
		return nil
	}
	keys, uids := make([]object.Key, len(objects)), make(map[object.Key]string, len(objects))
	for i, o := range objects {
		keys[i] = object.KeyOf(o)
		uids[keys[i]] = o.GetMetadata().GetUid()
	}
	var failed []error
	for i, w := range t.ModifyAll(ctx, keys, func(obj T) error {
		if key := object.KeyOf(obj); obj.GetMetadata().GetUid() != uids[key] {
			return rpcerr.Conflict(t.Type().GetKind(), key.Name, "") // another one of its name by now
		}
		return f(obj)
	}) {
		if err := rpcerr.IgnoreChanged(w.Err); err != nil {
			failed = append(failed, fmt.Errorf("%s %q: %w", t.Type().GetSingular(), keys[i].Name, err))
		}
	}
	return errors.Join(failed...)
}

// carryOut makes and removes pods for an owner. What failed, if anything, comes back with the event that reports it.
func (c *Controllers) carryOut(ctx context.Context, owner object.Object, create, remove []*schedulingv1.Pod) (
	plan.Event, error,
) {
	if err := c.create(ctx, owner, create); err != nil {
		e := plan.CreateFailed(status.Convert(err).Message())
		c.tell(owner, e)
		return e, fmt.Errorf("create a pod: %w", err)
	}
	if err := c.remove(ctx, owner, remove); err != nil {
		e := plan.DeleteFailed(status.Convert(err).Message())
		c.tell(owner, e)
		return e, fmt.Errorf("delete a pod: %w", err)
	}
	return plan.Event{}, nil
}

// create makes pods and returns the first error. Afterwards the cache has those that were made, so that they are not
// made again.
func (c *Controllers) create(ctx context.Context, owner object.Object, pods []*schedulingv1.Pod) error {
	if len(pods) == 0 {
		return nil
	}
	var first error
	made := 0
	for _, w := range c.Pods.CreateAll(ctx, pods) {
		if w.Err != nil {
			if first == nil {
				first = w.Err
			}
			continue
		}
		made++
		c.tell(owner, plan.Created(w.Object.GetMetadata().GetName()))
	}
	if made > 0 {
		c.log.InfoContext(ctx, "pods created", "kind", owner.GetKind(), "owner", object.KeyOf(owner).String(), "count",
			made)
	}
	return first
}

func (c *Controllers) remove(ctx context.Context, owner object.Object, pods []*schedulingv1.Pod) error {
	if len(pods) == 0 {
		return nil
	}
	var group errgroup.Group
	group.SetLimit(deletions)
	var mu sync.Mutex
	var failed []error
	for _, pod := range pods {
		group.Go(func() error {
			m := pod.GetMetadata()
			c.deaths.except(pod)
			_, err := c.Pods.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{Uid: m.GetUid()})
			switch {
			case err == nil:
				c.tell(owner, plan.Deleted(m.GetName()))
			case rpcerr.IgnoreChanged(err) != nil:
				c.deaths.forget(pod)
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait() // what went wrong is in failed
	if n := len(pods) - len(failed); n > 0 {
		c.log.InfoContext(ctx, "pods deleted", "kind", owner.GetKind(), "owner", object.KeyOf(owner).String(), "count", n)
	}
	if len(failed) > 0 {
		return failed[0]
	}
	return nil
}

func (c *Controllers) tell(obj object.Object, events ...plan.Event) {
	for _, e := range events {
		c.events.Event(obj, e.Type, e.Reason, e.Message)
	}
}

// write is stored for callers that are called again if the object changed.
func write[T object.Object](ctx context.Context, t *resource.Table[T], have, next T) error {
	_, err := stored(ctx, t, have, next)
	return err
}

// stored stores status and annotations of an object as next has them, in one write, if they differ. It reports whether
// they are stored: not if the object has changed since it was read.
func stored[T object.Object](ctx context.Context, t *resource.Table[T], have, next T) (bool, error) {
	if proto.Equal(have, next) {
		return true, nil
	}
	_, err := t.Modify(ctx, object.KeyOf(have), func(now T) error {
		if m := now.GetMetadata(); m.GetResourceVersion() != have.GetMetadata().GetResourceVersion() {
			return rpcerr.Conflict(t.Type().GetKind(), m.GetName(), "")
		}
		proto.Reset(now)
		proto.Merge(now, next)
		return nil
	})
	return err == nil, rpcerr.IgnoreChanged(err)
}

// writeStatus stores an object with another status, if it is still as it was read and the status differs.
func writeStatus[T object.Object](ctx context.Context, t *resource.Table[T], have T, set func(next T)) error {
	next := object.Clone(have)
	set(next)
	if proto.Equal(have, next) {
		return nil
	}
	_, err := t.UpdateStatus(ctx, next)
	return rpcerr.IgnoreChanged(err)
}
