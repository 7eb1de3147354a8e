package resource

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// Register serves a kind's gRPC service: the standard methods from the table, the others from impl, which has the generated
// server interface (embedding the Unimplemented server) or is nil if there are no others. desc is the generated description.
func Register[T Object](s grpc.ServiceRegistrar, desc *grpc.ServiceDesc, impl any, t *Table[T]) error {
	var zero T
	methods, err := Methods(zero.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	srv := server[T]{t}
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

// unaryMethod wraps a call as grpc-go's generated code would: decode, intercept, call.
func unaryMethod(m protoreflect.MethodDescriptor, f call) grpc.MethodDesc {
	full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	handle := func(ctx context.Context, req any) (any, error) {
		return f(ctx, m, request{req.(proto.Message).ProtoReflect()})
	}
	return grpc.MethodDesc{
		MethodName: string(m.Name()),
		Handler: func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
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
	if f := r.field(name); f != nil && f.Kind() == protoreflect.StringKind { // the object of a Namespace's request is called namespace too
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

func (r request) options() WriteOptions { return WriteOptions{DryRun: r.text("dry_run") == "All"} }

// object returns the message of the kind that a request carries.
func object[T Object](r request) (T, protoreflect.Name, error) {
	var zero T
	want := zero.ProtoReflect().Descriptor().FullName()
	for i := range r.m.Descriptor().Fields().Len() {
		f := r.m.Descriptor().Fields().Get(i)
		if f.Message() != nil && f.Message().FullName() == want && r.m.Has(f) {
			return r.m.Get(f).Message().Interface().(T), f.Name(), nil
		}
	}
	return zero, "", rpcerr.Invalid(rpcerr.Field{Description: "the request carries no " + string(want.Name())})
}

type server[T Object] struct{ t *Table[T] }

func (s server[T]) calls() map[Method]call {
	return map[Method]call{
		Get: s.get, List: s.list, Create: s.create, Update: s.update, Patch: s.patch, Apply: s.apply,
		UpdateStatus: s.updateStatus, Delete: s.delete,
	}
}

func (s server[T]) get(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	return s.t.Get(ctx, s.namespace(r), s.name(r))
}

// name is that of the request, or the only one that an object of the kind may have.
func (s server[T]) name(r request) string {
	if name := r.text("name"); name != "" {
		return name
	}
	return s.t.typ.GetSingleton()
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
		return nil, rpcerr.Forbidden(s.t.typ.GetKind() + " objects are made by Windlass alone")
	}
	return s.t.Create(ctx, obj, r.options())
}

// place returns a copy of the request's object with the namespace and the name of the request.
func (s server[T]) place(r request) (T, error) {
	obj, _, err := object[T](r)
	if err != nil {
		return obj, err
	}
	obj = Clone(obj)
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
			return obj, rpcerr.Invalid(rpcerr.Field{Path: p.path, Description: fmt.Sprintf("is %q, but the request is for %q", *p.have, p.want)})
		}
		*p.have = p.want
	}
	if m.Namespace == "" && s.t.typ.GetNamespaced() {
		m.Namespace = s.t.typ.GetDefaultNamespace()
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

func (s server[T]) updateStatus(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
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

// merge changes an object by a patch of its JSON. What a patch of the object says about the status does not count, and neither does what a
// patch of the status says about the rest.
func (s server[T]) merge(ctx context.Context, r request, contentType string, patch []byte, status bool) (T, error) {
	var zero T
	key := Key{Namespace: s.namespace(r), Name: s.name(r)}
	return s.t.change(ctx, key, nil, []WriteOptions{r.options()}, func(old T) (T, error) {
		doc, err := manifest.Encode(old)
		if err != nil {
			return zero, err
		}
		if doc, err = manifest.Patch(doc, contentType, patch, old.ProtoReflect().Descriptor()); err != nil {
			return zero, patchError(err)
		}
		next := old.ProtoReflect().New().Interface().(T)
		if err := manifest.Decode(doc, next); err != nil {
			return zero, DecodeError(err)
		}
		if err := s.t.hold(old, preconditions(next)); err != nil {
			return zero, err
		}
		if status {
			whole := Clone(old)
			copyField(whole, next, "status")
			return whole, nil
		}
		copyField(next, old, "status")
		return next, nil
	})
}

func patchError(err error) error {
	switch {
	case errors.Is(err, manifest.ErrPatchType), errors.Is(err, manifest.ErrPatchSyntax):
		return rpcerr.Invalid(rpcerr.Field{Path: "patch", Description: err.Error()})
	case errors.Is(err, manifest.ErrPatchTest):
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "patch", err.Error())
	}
	return DecodeError(err)
}

// DecodeError returns the error of a document that does not decode, with the paths of all its faults.
func DecodeError(err error) error {
	var bad *manifest.Errors
	if !errors.As(err, &bad) {
		return rpcerr.Invalid(rpcerr.Field{Description: err.Error()})
	}
	fields := make([]rpcerr.Field, 0, len(bad.Problems))
	for _, p := range bad.Problems {
		fields = append(fields, rpcerr.Field{Path: p.Path, Description: p.Message})
	}
	return rpcerr.Invalid(fields...)
}

func (s server[T]) apply(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	obj, err := s.place(r)
	if err != nil {
		return nil, err
	}
	key := KeyOf(obj)
	if _, err := s.t.Get(ctx, key.Namespace, key.Name); rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		created, err := s.t.Create(ctx, obj, r.options())
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			return created, err
		}
	}
	if fields := s.t.typeFields(obj); len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	patch, err := manifest.Encode(obj)
	if err != nil {
		return nil, err
	}
	return s.merge(ctx, r, manifest.StrategicPatch, patch, false)
}

func (s server[T]) delete(ctx context.Context, _ protoreflect.MethodDescriptor, r request) (proto.Message, error) {
	pre, _ := r.m.Get(r.field("preconditions")).Message().Interface().(*metav1.Preconditions)
	ctx = context.WithValue(ctx, propagationKey{}, r.text("propagation_policy"))
	if f := r.field("grace_period_seconds"); f != nil && r.m.Has(f) {
		ctx = WithGracePeriod(ctx, int32(r.m.Get(f).Int()))
	}
	return s.t.Delete(ctx, s.namespace(r), s.name(r), pre, r.options())
}

type graceKey struct{}

// WithGracePeriod says how many seconds the objects that are deleted under a context may take to end; see Config.Grace.
func WithGracePeriod(ctx context.Context, seconds int32) context.Context {
	return context.WithValue(ctx, graceKey{}, seconds)
}

func gracePeriod(ctx context.Context) *int32 {
	if s, ok := ctx.Value(graceKey{}).(int32); ok {
		return &s
	}
	return nil
}

type propagationKey struct{}

// Propagation returns what the caller of a deletion wants to become of the objects that belong to it: "", "Background" or "Orphan".
// For Config.Admit.
func Propagation(ctx context.Context) string {
	s, _ := ctx.Value(propagationKey{}).(string)
	return s
}

// pageToken is where a list goes on. It is opaque to callers.
type pageToken struct {
	Revision int64  `json:"r"`
	After    string `json:"a"`
}

func (t pageToken) String() string {
	raw, _ := json.Marshal(t) // two plain fields always marshal
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parsePageToken(s string) (pageToken, error) {
	var t pageToken
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Revision <= 0 {
		return t, rpcerr.Invalid(rpcerr.Field{Path: "continue", Description: "is no token of an earlier page"})
	}
	return t, nil
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
	page, err := s.page(ctx, r, sel)
	if err != nil {
		return nil, err
	}
	out := NewMessage(m.Output()).ProtoReflect()
	fields := out.Descriptor().Fields()
	out.Set(fields.ByName("api_version"), protoreflect.ValueOfString(APIVersion(s.t.typ)))
	out.Set(fields.ByName("kind"), protoreflect.ValueOfString(s.t.typ.GetKind()+"List"))
	out.Set(fields.ByName("metadata"), protoreflect.ValueOfMessage(page.meta.ProtoReflect()))
	items := out.Mutable(fields.ByName("items")).List()
	for _, o := range page.items {
		mask.apply(o)
		items.Append(protoreflect.ValueOfMessage(o.ProtoReflect()))
	}
	return out.Interface(), nil
}

type page[T Object] struct {
	items []T
	meta  *metav1.ListMeta
}

// page reads until it has limit matching objects or there are no more; all at one revision.
func (s server[T]) page(ctx context.Context, r request, sel Selection) (page[T], error) {
	limit := int(r.number("limit"))
	at, err := ParseRevision(r.text("resource_version"))
	if err != nil {
		return page[T]{}, err
	}
	prefix := s.t.prefix()
	if ns := r.text("namespace"); ns != "" {
		prefix += ns + "/"
	}
	o := store.ListOptions{Revision: at, Limit: limit}
	if c := r.text("continue"); c != "" {
		token, err := parsePageToken(c)
		if err != nil {
			return page[T]{}, err
		}
		if !strings.HasPrefix(token.After, prefix) {
			return page[T]{}, rpcerr.Invalid(rpcerr.Field{Path: "continue", Description: "belongs to another list"})
		}
		o.Revision, o.After = token.Revision, token.After
	}
	out := page[T]{meta: &metav1.ListMeta{}}
	for {
		got, err := s.t.st.List(ctx, prefix, o)
		if errors.Is(err, store.ErrCompacted) {
			return out, rpcerr.Expired("the revision of this list is no longer there: list again from the beginning")
		}
		if err != nil {
			return out, err
		}
		o.Revision = got.Revision
		out.meta.ResourceVersion = FormatRevision(got.Revision)
		for i, rec := range got.Records {
			o.After = rec.Key
			obj, err := s.t.object(rec)
			if err != nil || !sel.Matches(obj) {
				continue
			}
			out.items = append(out.items, obj)
			rest := got.Remaining + int64(len(got.Records)-1-i)
			if limit > 0 && len(out.items) == limit && rest > 0 {
				out.meta.Continue = pageToken{o.Revision, rec.Key}.String()
				if sel.Everything() {
					out.meta.RemainingItemCount = proto.Int32(int32(rest))
				}
				return out, nil
			}
		}
		if !got.More {
			return out, nil
		}
	}
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
			return readMask{}, rpcerr.Invalid(rpcerr.Field{Path: "readMask", Description: fmt.Sprintf("%q is no field of %s", p, s.t.typ.GetKind())})
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

// apply clears what the mask does not name. apiVersion, kind and metadata always stay: without them nobody knows what it is.
func (r readMask) apply(o Object) {
	if len(r.paths) == 0 {
		return
	}
	keep := append([]string{"apiVersion", "kind", "metadata"}, r.paths...)
	prune(o.ProtoReflect(), keep)
}

func prune(m protoreflect.Message, keep []string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		var below []string
		whole := false
		for _, p := range keep {
			head, rest, deeper := strings.Cut(p, ".")
			if head != f.JSONName() && head != string(f.Name()) {
				continue
			}
			if !deeper {
				whole = true
			}
			below = append(below, rest)
		}
		switch {
		case whole:
		case len(below) > 0:
			prune(m.Mutable(f).Message(), below)
		default:
			m.Clear(f)
		}
		return true
	})
}
