package resource

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxObjectBytes     = 3 << 19   // 1.5 MiB, as etcd limits a request by default
	maxAnnotationBytes = 256 << 10 // keys and values of all, as in Kubernetes
)

// checkIdentity completes and checks apiVersion, kind, namespace and name of a new object. Names are checked before all
// other rules: a user who applies an example with placeholders gets errors about these, not about their consequences.
func (t *Table[T]) checkIdentity(obj T) error {
	bad := t.typeFields(obj)
	t.setTypeFields(obj)
	m := ensureMetadata(obj)
	bad = append(bad, t.namespaceFields(m)...)
	if m.Name == "" {
		m.Name = object.DefaultName(t.typ)
	}
	if m.Name == "" && m.GenerateName != "" {
		m.Name = m.GenerateName + suffix()
	}
	bad = append(bad, t.nameFields(m)...)
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	if m.Namespace != "" && t.cfg.HasNamespace != nil && !t.cfg.HasNamespace(m.Namespace) {
		return rpcerr.NotFoundField("Namespace", m.Namespace, "metadata.namespace")
	}
	return nil
}

func (t *Table[T]) typeFields(obj T) []object.Fault {
	var bad []object.Fault
	if v, want := obj.GetApiVersion(), t.apiVersions(); v != "" && !slices.Contains(want, v) {
		bad = append(bad, object.Fault{
			Path: "apiVersion", Description: fmt.Sprintf("is %q, must be %q", v, strings.Join(want, `" or "`)),
		})
	}
	if v, want := obj.GetKind(), t.typ.GetKind(); v != "" && v != want {
		bad = append(bad, object.Fault{Path: "kind", Description: fmt.Sprintf("is %q, must be %q", v, want)})
	}
	return bad
}

func (t *Table[T]) namespaceFields(m *metav1.ObjectMeta) []object.Fault {
	if !t.typ.GetNamespaced() {
		if m.Namespace != "" {
			return []object.Fault{{Path: "metadata.namespace", Description: "must be empty: the kind has no namespaces"}}
		}
		return nil
	}
	if m.Namespace == "" {
		m.Namespace = t.typ.GetDefaultNamespace()
	}
	if m.Namespace == "" {
		return []object.Fault{{Path: "metadata.namespace", Description: "must be given"}}
	}
	if msgs := validation.IsDNS1123Label(m.Namespace); len(msgs) > 0 {
		return []object.Fault{
			{Path: "metadata.namespace", Description: fmt.Sprintf("invalid value %q: %s", m.Namespace, msgs[0])},
		}
	}
	return nil
}

func (t *Table[T]) nameFields(m *metav1.ObjectMeta) []object.Fault {
	if m.Name == "" {
		return []object.Fault{{Path: "metadata.name", Description: "must be given (or metadata.generateName)"}}
	}
	if msgs := validation.IsDNS1123Subdomain(m.Name); len(msgs) > 0 {
		return []object.Fault{{Path: "metadata.name", Description: fmt.Sprintf("invalid value %q: %s", m.Name, msgs[0])}}
	}
	if only := t.typ.GetSingleton(); only != "" && m.Name != only {
		return []object.Fault{
			{Path: "metadata.name", Description: fmt.Sprintf("is %q, must be %q: there is one object of this kind", m.Name,
				only)},
		}
	}
	return nil
}

// Complete applies the defaults to obj, as every write does, and returns what is invalid about it without regard to
// other objects. The error is a failure of the check itself.
func (t *Table[T]) Complete(obj T) ([]object.Fault, error) {
	if t.cfg.Default != nil {
		t.cfg.Default(obj)
	}
	bad := metadataFields(obj.GetMetadata())
	if n := proto.Size(obj); n > maxObjectBytes {
		bad = append(bad, object.Fault{Description: fmt.Sprintf("the object has %d bytes: may not be more than %d", n,
			maxObjectBytes)})
	}
	if err := rpcerr.Validate(t.validator, obj); err != nil {
		fields, ok := rpcerr.Fields(err)
		if !ok {
			return nil, err
		}
		bad = append(bad, fields...)
	}
	if t.cfg.Validate != nil {
		bad = append(bad, t.cfg.Validate(obj)...)
	}
	return bad, nil
}

// check applies defaults and all rules to a creation or a change.
func (t *Table[T]) check(ctx context.Context, w *Write[T]) error {
	old, obj, exists, asks := w.Old, w.New, !w.Creates(), t.asksOthers()
	if asks {
		if t.cfg.Default != nil {
			t.cfg.Default(obj)
		}
		if err := t.cfg.Remote.Mutate(ctx, w); err != nil {
			return err
		}
	}
	bad, err := t.Complete(obj)
	if err != nil {
		return err
	}
	if exists && t.cfg.ValidateUpdate != nil {
		bad = append(bad, t.cfg.ValidateUpdate(old, obj)...)
	}
	if len(bad) > 0 && !(exists && onlyRemovesFinalizers(old, obj)) {
		return rpcerr.Invalid(bad...)
	}
	if err := t.keepsFinalizers(w); err != nil {
		return err
	}
	if t.cfg.Admit != nil {
		if err := t.cfg.Admit(w); err != nil {
			return err
		}
	}
	if asks {
		return t.cfg.Remote.Review(ctx, w)
	}
	return nil
}

// keepsFinalizers refuses callers, administrators included, to remove a finalizer of the service that owns the kind:
// its cleanup would be skipped. Other finalizers may be removed.
func (t *Table[T]) keepsFinalizers(w *Write[T]) error {
	if w.Own {
		return nil
	}
	for _, f := range t.ownFinalizers(w.Old) {
		if !slices.Contains(w.New.GetMetadata().GetFinalizers(), f) {
			return rpcerr.Forbidden(
				fmt.Sprintf("metadata.finalizers: %q is removed only by the service that owns %s objects, when its work is done",
					f, t.typ.GetKind()))
		}
	}
	return nil
}

// ownFinalizers returns the finalizers of an object that belong to the service that owns the kind.
func (t *Table[T]) ownFinalizers(obj T) []string {
	var out []string
	for _, f := range obj.GetMetadata().GetFinalizers() {
		if slices.Contains(t.cfg.Finalizers, f) {
			out = append(out, f)
		}
	}
	return out
}

// onlyRemovesFinalizers reports whether a write of an object that is being deleted only removes finalizers. No rule may
// refuse that, or an object that became invalid could never be deleted.
func onlyRemovesFinalizers(old, obj object.Object) bool {
	if !object.Deleting(old) || len(obj.GetMetadata().GetFinalizers()) >= len(old.GetMetadata().GetFinalizers()) {
		return false
	}
	a := proto.Clone(old).(object.Object)
	a.GetMetadata().Finalizers = obj.GetMetadata().GetFinalizers()
	return proto.Equal(a, obj)
}

func metadataFields(m *metav1.ObjectMeta) []object.Fault {
	var bad []object.Fault
	for k, v := range m.GetLabels() {
		path := fmt.Sprintf("metadata.labels['%s']", k)
		for _, msg := range validation.IsQualifiedName(k) {
			bad = append(bad, object.Fault{Path: path, Description: "invalid key: " + msg})
		}
		for _, msg := range validation.IsValidLabelValue(v) {
			bad = append(bad, object.Fault{Path: path, Description: fmt.Sprintf("invalid value %q: %s", v, msg)})
		}
	}
	annotations := 0
	for k, v := range m.GetAnnotations() {
		annotations += len(k) + len(v)
	}
	if annotations > maxAnnotationBytes {
		bad = append(bad, object.Fault{
			Path:        "metadata.annotations",
			Description: fmt.Sprintf("too long: may not be more than %d bytes", maxAnnotationBytes),
		})
	}
	for k := range m.GetAnnotations() {
		for _, msg := range validation.IsQualifiedName(strings.ToLower(k)) {
			bad = append(bad, object.Fault{Path: fmt.Sprintf("metadata.annotations['%s']", k), Description: "invalid key: " +
				msg})
		}
	}
	for i, f := range m.GetFinalizers() {
		for _, msg := range validation.IsQualifiedName(f) {
			bad = append(bad, object.Fault{Path: fmt.Sprintf("metadata.finalizers[%d]", i), Description: msg})
		}
	}
	controllers := 0
	for _, o := range m.GetOwnerReferences() {
		if o.GetController() {
			controllers++
		}
	}
	if controllers > 1 {
		bad = append(bad, object.Fault{Path: "metadata.ownerReferences", Description: "only one owner may be the controller"})
	}
	slices.SortFunc(bad, func(a, b object.Fault) int { return strings.Compare(a.Path, b.Path) })
	return bad
}

// suffix returns five random characters for a generated name, without vowels so that they form no words.
func suffix() string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	var raw [5]byte
	if _, err := rand.Read(raw[:]); err != nil {
		panic(err) // never happens: see crypto/rand
	}
	for i, b := range raw {
		raw[i] = letters[int(b)%len(letters)]
	}
	return string(raw[:])
}

// GenerateName returns base with five random characters added.
func GenerateName(base string) string { return base + suffix() }

// FormatRevision returns a revision as a resourceVersion.
func FormatRevision(r int64) string { return strconv.FormatInt(r, 10) }

// ParseRevision returns the revision of a resourceVersion; 0 if it is empty.
func ParseRevision(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	r, err := strconv.ParseInt(s, 10, 64)
	if err != nil || r < 0 {
		return 0,
			rpcerr.Invalid(object.Fault{
				Path:        "resourceVersion",
				Description: fmt.Sprintf("%q is no revision: it must be a decimal number", s),
			})
	}
	return r, nil
}

func revisionOf(o object.Object) int64 {
	r, err := strconv.ParseInt(o.GetMetadata().GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return r
}

// apiVersions returns the apiVersions that objects may have in writes.
func (t *Table[T]) apiVersions() []string {
	if t.cfg.APIVersions != nil {
		return t.cfg.APIVersions()
	}
	return []string{object.APIVersion(t.typ)}
}

// setTypeFields sets the kind of an object, and the apiVersion unless it has one that objects may have.
func (t *Table[T]) setTypeFields(o object.Object) {
	m := o.ProtoReflect()
	f := m.Descriptor().Fields()
	if !slices.Contains(t.apiVersions(), o.GetApiVersion()) {
		m.Set(f.ByName("api_version"), protoreflect.ValueOfString(object.APIVersion(t.typ)))
	}
	m.Set(f.ByName("kind"), protoreflect.ValueOfString(t.typ.GetKind()))
}

func ensureMetadata(o object.Object) *metav1.ObjectMeta {
	if o.GetMetadata() == nil {
		m := o.ProtoReflect()
		m.Set(m.Descriptor().Fields().ByName("metadata"), protoreflect.ValueOfMessage((&metav1.ObjectMeta{}).ProtoReflect()))
	}
	return o.GetMetadata()
}

func clearField(o object.Object, name protoreflect.Name) {
	if f := o.ProtoReflect().Descriptor().Fields().ByName(name); f != nil {
		o.ProtoReflect().Clear(f)
	}
}

func copyField(dst, src object.Object, name protoreflect.Name) {
	f := dst.ProtoReflect().Descriptor().Fields().ByName(name)
	if f == nil {
		return
	}
	if !src.ProtoReflect().Has(f) {
		dst.ProtoReflect().Clear(f)
		return
	}
	dst.ProtoReflect().Set(f,
		protoreflect.ValueOfMessage(proto.Clone(src.ProtoReflect().Get(f).Message().Interface()).ProtoReflect()))
}

func sameField(a, b object.Object, name protoreflect.Name) bool {
	f := a.ProtoReflect().Descriptor().Fields().ByName(name)
	if f == nil {
		return true
	}
	x, y := a.ProtoReflect(), b.ProtoReflect()
	if x.Has(f) != y.Has(f) {
		return false
	}
	return !x.Has(f) || proto.Equal(x.Get(f).Message().Interface(), y.Get(f).Message().Interface())
}

func appendMissing(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
