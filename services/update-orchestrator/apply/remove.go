package apply

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/topology"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Removal is what came of the removal of an object. The zero Removal means that the object is gone.
type Removal struct {
	Leaving string // what it still waits for
	Stays   string // why it is not removed; see plan.Stays
}

// Remove removes an object that the release lacks, unless it stays. Deletions take time: it is called again until the
// object has gone.
func (a *Applier) Remove(ctx context.Context, o *metav1.ObjectReference, overrides []*updatev1.ComponentOverride) (
	Removal, error,
) {
	f, err := a.find(ctx, o)
	if err != nil {
		return Removal{}, ignoreGone(err)
	}
	if why := plan.Stays(o, f.object, f.by, overrides, operators()); why != "" {
		return Removal{Stays: why}, nil
	}
	leaving, err := a.remove(ctx, o, f)
	return Removal{Leaving: leaving}, err
}

// remove removes an object that was found, and returns what it still waits for; empty once it is gone.
func (a *Applier) remove(ctx context.Context, o *metav1.ObjectReference, f found) (string, error) {
	if !object.Deleting(f.object) {
		if err := f.remove(ctx); err != nil {
			return "", ignoreGone(err)
		}
		// Most objects are gone then.
		var err error
		if f, err = a.find(ctx, o); err != nil {
			return "", ignoreGone(err)
		}
		if !object.Deleting(f.object) {
			return "its deletion has begun", nil
		}
	}
	m := f.object.GetMetadata()
	why := "it is being deleted since " + m.GetDeletionTimestamp().AsTime().Format(time.RFC3339)
	if len(m.GetFinalizers()) > 0 {
		why += ", and has the finalizers " + strings.Join(m.GetFinalizers(), ", ")
	}
	return why, nil
}

// found is an object where it is kept.
type found struct {
	object object.Object
	by     string                      // the annotation that says that a release applied it; empty where there is none
	remove func(context.Context) error // removes the very object
}

func (a *Applier) find(ctx context.Context, o *metav1.ObjectReference) (found, error) {
	k, owned := a.lookup(o.GetApiVersion(), o.GetKind())
	switch {
	case owned:
		out, err := k.call(ctx, resource.Get, k.named(o))
		if status.Code(err) == codes.NotFound && k.own() {
			return a.findKept(ctx, o)
		}
		if err != nil {
			return found{}, err
		}
		live, _ := out.(object.Object)
		return found{live, appliedBy, func(ctx context.Context) error {
			_, err := k.call(ctx, resource.Delete, live)
			return err
		}}, nil
	case operatorKind(o.GetApiVersion(), o.GetKind()):
		live, err := a.tables.Operators.Get(ctx, "", o.GetName())
		return found{live, "", func(ctx context.Context) error {
			_, err := a.tables.Operators.Delete(ctx, "", o.GetName(), &metav1.Preconditions{Uid: live.GetMetadata().GetUid()})
			return err
		}}, err
	}
	return a.findKept(ctx, o)
}

// findKept finds an object among the manifests that are kept.
func (a *Applier) findKept(ctx context.Context, o *metav1.ObjectReference) (found, error) {
	record := name(release.Manifest{
		APIVersion: o.GetApiVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(),
	})
	kept, err := a.tables.Manifests.Get(ctx, "", record)
	return found{kept, "", func(ctx context.Context) error {
		_, err := a.tables.Manifests.Delete(ctx, "", record, &metav1.Preconditions{Uid: kept.GetMetadata().GetUid()})
		return err
	}}, err
}

// named returns an object of the kind that has only its name.
func (k *kind) named(ref *metav1.ObjectReference) object.Object {
	o, ok := resource.NewMessage(k.message).(object.Object)
	if !ok {
		panic(fmt.Sprintf("%s is no kind of object", k.message.FullName())) // kinds are found by their metadata
	}
	meta := &metav1.ObjectMeta{Namespace: ref.GetNamespace(), Name: ref.GetName()}
	o.ProtoReflect().Set(k.message.Fields().ByName("metadata"), protoreflect.ValueOfMessage(meta.ProtoReflect()))
	return o
}

// operators returns the names of the cluster operators that services of Windlass report.
func operators() []string {
	var out []string
	for _, s := range topology.Services() {
		out = append(out, cmp.Or(s.Operator, s.Name))
	}
	return out
}
