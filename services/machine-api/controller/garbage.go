package controller

import (
	"context"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"
)

// reconcileOwners deletes a machine whose machine set is gone. A machine of a control plane only loses its reference:
// control planes are never deleted with their set.
func (c *Controller) reconcileOwners(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	m, ok := c.Tables.Machines.Lookup(k.Namespace, k.Name)
	if !ok || object.Deleting(m) {
		return time.Time{}, nil
	}
	var owners []ownership.Owner
	for _, o := range m.GetMetadata().GetOwnerReferences() {
		set, exists, err := c.owner(ctx, k.Namespace, o)
		if err != nil {
			return time.Time{}, err
		}
		owners = append(owners, ownership.Owner{UID: o.GetUid(), Gone: !exists, Keeps: !set})
	}
	switch d := ownership.Collect(owners); {
	case d.Remove:
		return time.Time{}, c.collect(ctx, m)
	case len(d.Disown) > 0:
		return time.Time{}, c.dropOwners(ctx, m, d.Disown)
	}
	return time.Time{}, nil
}

func (c *Controller) collect(ctx context.Context, m *machinev1.Machine) error {
	meta := m.GetMetadata()
	_, err := c.Tables.Machines.Delete(ctx, meta.GetNamespace(), meta.GetName(), &metav1.Preconditions{
		Uid: meta.GetUid(), ResourceVersion: meta.GetResourceVersion(),
	})
	return except(err, codes.NotFound)
}

// owner reports whether an owner of a machine exists, and whether it is a machine set. Owners of foreign kinds are
// taken to exist.
func (c *Controller) owner(ctx context.Context, namespace string, o *metav1.OwnerReference) (set, exists bool,
	err error,
) {
	if !strings.HasPrefix(o.GetApiVersion(), c.Tables.Sets.Type().GetGroup()+"/") {
		return false, true, nil
	}
	switch o.GetKind() {
	case c.Tables.Sets.Type().GetKind():
		exists, err = present(ctx, c.Tables.Sets, namespace, o)
		return true, exists, err
	case c.Tables.ControlPlanes.Type().GetKind():
		exists, err = present(ctx, c.Tables.ControlPlanes, namespace, o)
		return false, exists, err
	}
	return false, true, nil
}

// present looks into the cache first, and believes an absence only if etcd says so.
func present[T object.Object](ctx context.Context, t *resource.Table[T], namespace string, o *metav1.OwnerReference) (
	bool, error,
) {
	if have, ok := t.Lookup(namespace, o.GetName()); ok && have.GetMetadata().GetUid() == o.GetUid() {
		return true, nil
	}
	have, err := t.Get(ctx, namespace, o.GetName())
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return have.GetMetadata().GetUid() == o.GetUid(), nil
}
