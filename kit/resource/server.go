package resource

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// Register serves a kind's gRPC service: the standard methods from the table, the others from impl, which implements
// the generated server interface (embedding the Unimplemented server) or is nil if there are no others. desc is the
// generated description.
func Register[T object.Object](s grpc.ServiceRegistrar, desc *grpc.ServiceDesc, impl any, t *Table[T]) error {
	return t.register(s, desc, impl)
}

func (t *Table[T]) register(s grpc.ServiceRegistrar, desc *grpc.ServiceDesc, impl any) error {
	var zero T
	methods, err := Methods(zero.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	srv := server[T]{t: t}
	own := grpc.ServiceDesc{ServiceName: desc.ServiceName, HandlerType: (*any)(nil), Metadata: desc.Metadata}
	unary := map[string]grpc.MethodDesc{}
	for verb, call := range srv.calls() {
		if m, ok := methods[verb]; ok {
			unary[string(m.Name())] = unaryMethod(m, call)
		}
	}
	for _, m := range desc.Methods {
		if std, ok := unary[m.MethodName]; ok {
			m = std
		}
		own.Methods = append(own.Methods, m)
	}
	for _, m := range desc.Streams {
		if watch, ok := methods[Watch]; ok && m.StreamName == string(watch.Name()) {
			m = srv.watchMethod(watch)
		}
		own.Streams = append(own.Streams, m)
	}
	if impl == nil {
		impl = struct{}{}
	}
	s.RegisterService(&own, impl)
	return nil
}

type call func(ctx context.Context, m protoreflect.MethodDescriptor, req request) (proto.Message, error)

// unaryMethod wraps a call as grpc-go's generated code does: decode, intercept, call.
func unaryMethod(m protoreflect.MethodDescriptor, f call) grpc.MethodDesc {
	full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	handle := func(ctx context.Context, req any) (any, error) {
		return f(ctx, m, request{req.(proto.Message).ProtoReflect()})
	}
	return grpc.MethodDesc{
		MethodName: string(m.Name()),
		Handler: func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any,
			error,
		) {
			req := NewMessage(m.Input())
			if err := dec(req); err != nil {
				return nil, err
			}
			if interceptor == nil {
				return handle(ctx, req)
			}
			return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, handle)
		},
	}
}

// request reads the fields that standard requests have in common.
type request struct{ m protoreflect.Message }

func (r request) field(name protoreflect.Name) protoreflect.FieldDescriptor {
	return r.m.Descriptor().Fields().ByName(name)
}

func (r request) text(name protoreflect.Name) string {
	// in requests of the kind Namespace, the field namespace is the object
	if f := r.field(name); f != nil && f.Kind() == protoreflect.StringKind {
		return r.m.Get(f).String()
	}
	return ""
}

func (r request) number(name protoreflect.Name) int64 {
	if f := r.field(name); f != nil {
		return r.m.Get(f).Int()
	}
	return 0
}

func (r request) flag(name protoreflect.Name) bool {
	f := r.field(name)
	return f != nil && r.m.Get(f).Bool()
}

// options returns the write options of the request; only deletions have a propagation and a grace period.
func (r request) options() WriteOptions {
	o := WriteOptions{
		DryRun: r.text("dry_run") == "All", Propagation: r.text("propagation_policy"), Reason: r.text("reason"),
	}
	if f := r.field("grace_period_seconds"); f != nil && r.m.Has(f) {
		o.Grace = proto.Int32(int32(r.m.Get(f).Int()))
	}
	return o
}

// carried returns the object that a request contains.
func carried[T object.Object](r request) (T, protoreflect.Name, error) {
	var zero T
	want := zero.ProtoReflect().Descriptor().FullName()
	for i := range r.m.Descriptor().Fields().Len() {
		f := r.m.Descriptor().Fields().Get(i)
		if f.Message() != nil && f.Message().FullName() == want && r.m.Has(f) {
			return r.m.Get(f).Message().Interface().(T), f.Name(), nil
		}
	}
	return zero, "", rpcerr.Invalid(object.Fault{Description: "the request contains no " + string(want.Name())})
}

type server[T object.Object] struct {
	t  *Table[T]
	as func(T) T // see Standard; nil shows objects as they are stored
}

// shown returns an object as callers see it.
func (s server[T]) shown(o T) T {
	if s.as == nil {
		return o
	}
	return s.as(o)
}

func (s server[T]) calls() map[Method]call {
	return map[Method]call{
		Get: s.get, List: s.list, Create: s.create, Update: s.update, Patch: s.patch, Apply: s.apply,
		UpdateStatus: s.updateStatus, Delete: s.delete,
	}
}

func (s server[T]) get(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	return s.t.Get(ctx, s.namespace(r), s.name(r))
}

// name is that of the request, or the default one.
func (s server[T]) name(r request) string {
	if name := r.text("name"); name != "" {
		return name
	}
	return object.DefaultName(s.t.typ)
}

// namespace is that of the request, or the default one.
func (s server[T]) namespace(r request) string {
	if ns := r.text("namespace"); ns != "" || !s.t.typ.GetNamespaced() {
		return ns
	}
	return s.t.typ.GetDefaultNamespace()
}

func (s server[T]) create(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	obj, err := s.place(r)
	if err != nil {
		return nil, err
	}
	if s.t.typ.GetReadOnly() {
		return nil, rpcerr.Forbidden(s.t.typ.GetKind() + " objects are created only by Windlass")
	}
	return s.t.Create(ctx, obj, r.options())
}

// place returns a copy of the request's object with the namespace and the name of the request.
func (s server[T]) place(r request) (T, error) {
	obj, _, err := carried[T](r)
	if err != nil {
		return obj, err
	}
	obj = object.Clone(obj)
	m := ensureMetadata(obj)
	for _, p := range []struct {
		path string
		have *string
		want string
	}{{"metadata.namespace", &m.Namespace, r.text("namespace")}, {"metadata.name", &m.Name, r.text("name")}} {
		if p.want == "" {
			continue
		}
		if *p.have != "" && *p.have != p.want {
			return obj,
				rpcerr.Invalid(object.Fault{Path: p.path, Description: fmt.Sprintf("is %q, but the request is for %q", *p.have,
					p.want)})
		}
		*p.have = p.want
	}
	if m.Namespace == "" && s.t.typ.GetNamespaced() {
		m.Namespace = s.t.typ.GetDefaultNamespace()
	}
	if m.Name == "" {
		m.Name = object.DefaultName(s.t.typ)
	}
	return obj, nil
}

func (s server[T]) update(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	obj, err := s.place(r)
	if err != nil {
		return nil, err
	}
	return s.t.Update(ctx, obj, r.options())
}

func (s server[T]) updateStatus(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message,
	error,
) {
	obj, err := s.place(r)
	if err != nil {
		return nil, err
	}
	return s.t.UpdateStatus(ctx, obj, r.options())
}

func (s server[T]) patch(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	body, _ := r.m.Get(r.field("patch")).Message().Interface().(*httpbody.HttpBody)
	status := r.text("subresource") == "status"
	return s.merge(ctx, r, body.GetContentType(), body.GetData(), status)
}

// merge changes an object by a patch of its JSON. A patch of the object does not change the status, and a patch of the
// status changes nothing else.
func (s server[T]) merge(ctx context.Context, r request, contentType string, patch []byte, status bool) (T, error) {
	var zero T
	key := object.Key{Namespace: s.namespace(r), Name: s.name(r)}
	return s.t.change(ctx, key, nil, writing[T](ctx, []WriteOptions{r.options()}), func(old T) (T, error) {
		next, err := s.changed(old, func(doc []byte) ([]byte, error) {
			return manifest.Patch(doc, contentType, patch, old.ProtoReflect().Descriptor())
		})
		switch {
		case err != nil:
			return zero, err
		case status:
			complete := object.Clone(old)
			copyField(complete, next, "status")
			return complete, nil
		}
		s.t.keepStatus(next, old)
		return next, nil
	})
}

// changed returns an object after a change of its JSON.
func (s server[T]) changed(old T, change func(doc []byte) ([]byte, error)) (T, error) {
	var zero T
	doc, err := manifest.Encode(s.shown(old))
	if err != nil {
		return zero, err
	}
	if doc, err = change(doc); err != nil {
		return zero, patchError(err)
	}
	next := old.ProtoReflect().New().Interface().(T)
	if err := manifest.Decode(doc, next); err != nil {
		return zero, decodeError(err)
	}
	return next, s.t.hold(old, preconditions(next))
}

func patchError(err error) error {
	switch {
	case errors.Is(err, manifest.ErrPatchType), errors.Is(err, manifest.ErrPatchSyntax):
		return rpcerr.Invalid(object.Fault{Path: "patch", Description: err.Error()})
	case errors.Is(err, manifest.ErrPatchTest):
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "patch", err.Error())
	}
	return decodeError(err)
}

// decodeError returns the error of a document that cannot be decoded, with the paths of all its faults.
func decodeError(err error) error {
	var bad *manifest.Errors
	if !errors.As(err, &bad) {
		return rpcerr.Invalid(object.Fault{Description: err.Error()})
	}
	fields := make([]object.Fault, 0, len(bad.Problems))
	for _, p := range bad.Problems {
		fields = append(fields, object.Fault{Path: p.Path, Description: p.Message})
	}
	return rpcerr.Invalid(fields...)
}

func (s server[T]) delete(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	pre, _ := r.m.Get(r.field("preconditions")).Message().Interface().(*metav1.Preconditions)
	return s.t.Delete(ctx, s.namespace(r), s.name(r), pre, r.options())
}

func (s server[T]) list(ctx context.Context, m protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	sel, err := ParseSelection(r.text("label_selector"), r.text("field_selector"))
	if err != nil {
		return nil, err
	}
	mask, err := s.mask(r)
	if err != nil {
		return nil, err
	}
	page, err := s.t.page(ctx, r, sel)
	if err != nil {
		return nil, err
	}
	out := NewMessage(m.Output()).ProtoReflect()
	fields := out.Descriptor().Fields()
	out.Set(fields.ByName("api_version"), protoreflect.ValueOfString(object.APIVersion(s.t.typ)))
	out.Set(fields.ByName("kind"), protoreflect.ValueOfString(s.t.typ.GetKind()+"List"))
	out.Set(fields.ByName("metadata"), protoreflect.ValueOfMessage(page.meta.ProtoReflect()))
	items := out.Mutable(fields.ByName("items")).List()
	for _, o := range page.items {
		items.Append(protoreflect.ValueOfMessage(mask.apply(s.shown(o)).ProtoReflect()))
	}
	return out.Interface(), nil
}

// readMask keeps some fields of an object; the zero readMask keeps all.
type readMask struct{ paths []string }

func (s server[T]) mask(r request) (readMask, error) {
	f := r.field("read_mask")
	if f == nil || !r.m.Has(f) {
		return readMask{}, nil
	}
	m := r.m.Get(f).Message().Interface().(*fieldmaskpb.FieldMask)
	var zero T
	for _, p := range m.GetPaths() {
		if !knownPath(zero.ProtoReflect().Descriptor(), p) {
			return readMask{},
				rpcerr.Invalid(object.Fault{Path: "readMask", Description: fmt.Sprintf("%q is not a field of %s", p,
					s.t.typ.GetKind())})
		}
	}
	return readMask{m.GetPaths()}, nil
}

func fieldNamed(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := d.Fields().ByJSONName(name); f != nil {
		return f
	}
	return d.Fields().ByName(protoreflect.Name(name))
}

func knownPath(d protoreflect.MessageDescriptor, path string) bool {
	for _, part := range strings.Split(path, ".") {
		if d == nil {
			return false
		}
		f := fieldNamed(d, part)
		if f == nil {
			return false
		}
		d = nil
		if f.Message() != nil && !f.IsList() && !f.IsMap() {
			d = f.Message()
		}
	}
	return true
}

// apply returns an object with the fields of the mask, a copy unless the mask keeps all. apiVersion, kind and metadata
// are always kept: they identify the object.
func (r readMask) apply(o object.Object) object.Object {
	if len(r.paths) == 0 {
		return o
	}
	o = object.Clone(o)
	keep := append([]string{"apiVersion", "kind", "metadata"}, r.paths...)
	prune(o.ProtoReflect(), keep)
	return o
}

func prune(m protoreflect.Message, keep []string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		var below []string
		complete := false
		for _, p := range keep {
			head, rest, deeper := strings.Cut(p, ".")
			if head != f.JSONName() && head != string(f.Name()) {
				continue
			}
			if !deeper {
				complete = true
			}
			below = append(below, rest)
		}
		switch {
		case complete:
		case len(below) > 0:
			prune(m.Mutable(f).Message(), below)
		default:
			m.Clear(f)
		}
		return true
	})
}
