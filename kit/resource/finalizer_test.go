package resource_test

import (
	"context"
	"slices"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestNoCallerRemovesTheFinalizerOfTheOwningService(t *testing.T) {
	const own, users = "windlass.dev/test", "example.com/hold"
	f := serve(t, resource.Config[*machinev1.MachineSet]{Finalizers: []string{own}})
	admin := identity.WithCaller(t.Context(), identity.Caller{User: "admin", Groups: []string{identity.GroupMasters}})
	if _, err := f.table.Create(admin, set("a", 1)); err != nil {
		t.Fatal(err)
	}
	key := object.Key{Namespace: ns, Name: "a"}
	finalizers := func(ctx context.Context, list ...string) error {
		_, err := f.table.Modify(ctx, key, func(s *machinev1.MachineSet) error { s.Metadata.Finalizers = list; return nil })
		return err
	}
	for _, deleting := range []bool{false, true} {
		if deleting {
			if err := finalizers(admin, own, users); err != nil {
				t.Errorf("a user's own finalizer: %v", err)
			}
			if _, err := f.table.Delete(admin, ns, "a", nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := finalizers(admin); status.Code(err) != codes.PermissionDenied {
			t.Errorf("deleting=%v: an administrator removes the service's finalizer: %v", deleting, err)
		}
		if err := finalizers(admin, users); status.Code(err) != codes.PermissionDenied {
			t.Errorf("deleting=%v: an administrator replaces the service's finalizer: %v", deleting, err)
		}
	}
	// An object that is replaced by a document, which has none of it, keeps it.
	document := set("a", 2)
	document.Metadata.Namespace = ns
	out, err := f.table.Update(admin, document)
	if err != nil || !slices.Equal(out.GetMetadata().GetFinalizers(), []string{own}) {
		t.Errorf("replaced: %v, %v", out, err)
	}
	if err := finalizers(t.Context()); err != nil {
		t.Errorf("the service itself: %v", err)
	}
	if _, err := f.table.Get(t.Context(), ns, "a"); status.Code(err) != codes.NotFound {
		t.Errorf("without finalizers it is still there: %v", err)
	}
}
