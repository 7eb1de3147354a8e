package resource

import (
	"context"
	"maps"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// appliedBy returns the annotation for what a caller applies: people have one, and each service its own, so that what
// people set stays when a release is applied again, and the other way round.
func appliedBy(caller identity.Caller) string {
	if service, ok := caller.Service(); ok {
		return object.AppliedPrefix + service
	}
	return object.AppliedPrefix + "user"
}

// apply creates an object, or changes it to what a document says; see manifest.Apply.
func (s server[T]) apply(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	obj, err := s.place(r)
	if err != nil {
		return nil, err
	}
	by, _ := identity.CallerFrom(ctx)
	given, err := s.documentOf(obj, appliedBy(by))
	if err != nil {
		return nil, err
	}
	key := object.KeyOf(obj)
	if _, err := s.t.Get(ctx, key.Namespace, key.Name); rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		first := object.Clone(obj)
		given.note(first)
		created, err := s.t.Create(ctx, first, r.options())
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS || rpcerr.TakenField(err) != "" {
			return created, err
		}
	}
	if fields := s.t.typeFields(obj); len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	return s.t.change(ctx, key, preconditions(obj), writing[T](ctx, []WriteOptions{r.options()}), func(old T) (T, error) {
		next, err := s.changed(old, func(doc []byte) ([]byte, error) {
			applied := old.GetMetadata().GetAnnotations()[given.annotation]
			return manifest.Apply(doc, []byte(applied), given.doc, old.ProtoReflect().Descriptor())
		})
		if err != nil {
			return next, err
		}
		s.t.keepStatus(next, old)
		if s.t.cfg.Whole {
			copyField(next, obj, "spec")
		}
		given.note(next)
		return next, nil
	})
}

// applied is a document that is applied.
type applied struct {
	doc        []byte
	annotation string // that holds its fields
	fields     string
}

// note has an object say which fields were applied to it last.
func (a applied) note(o object.Object) {
	m := o.GetMetadata()
	m.Annotations = maps.Clone(m.GetAnnotations())
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[a.annotation] = a.fields
}

// documentOf returns what a caller says in an object, without what is not the caller's to say.
func (s server[T]) documentOf(obj T, annotation string) (applied, error) {
	out := applied{annotation: annotation}
	o := object.Clone(obj)
	if !s.t.noStatus() {
		clearField(o, "status")
	}
	if s.t.cfg.Whole {
		clearField(o, "spec")
	}
	m := ensureMetadata(o)
	m.Uid, m.ResourceVersion, m.Generation = "", "", 0
	m.CreationTimestamp, m.DeletionTimestamp, m.DeletionGracePeriodSeconds = nil, nil, nil
	maps.DeleteFunc(m.Annotations, func(name, _ string) bool { return strings.HasPrefix(name, object.AppliedPrefix) })
	var err error
	if out.doc, err = manifest.Encode(o); err != nil {
		return out, err
	}
	fields, err := manifest.Fields(out.doc, o.ProtoReflect().Descriptor())
	out.fields = string(fields)
	return out, err
}
