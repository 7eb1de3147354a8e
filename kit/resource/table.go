package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Config is what the owner of a kind says about it. All functions may be nil; none may modify an object but Default,
// and Admit the new one.
type Config[T object.Object] struct {
	// Default fills in what an object leaves out, on every write.
	Default func(obj T)
	// Validate returns what is wrong with an object beyond the rules of its proto.
	Validate func(obj T) []object.Fault
	// ValidateUpdate returns what is wrong with a change.
	ValidateUpdate func(old, obj T) []object.Fault
	// Admit runs last and may refuse a write, or amend its New where one field follows from who wrote another. Its errors
	// are made by rpcerr.
	Admit func(w *Write[T]) error
	// Indexes are the values by which objects are found, by the name of the index: see Cache.Index.
	Indexes map[string]func(obj T) []string
	// HasNamespace reports whether a namespace exists.
	HasNamespace func(namespace string) bool
	// Finalizers are put on every new object.
	Finalizers []string
	// Owns says that other objects may belong to those of the kind: a deletion with propagation Orphan leaves the object
	// with object.OrphanFinalizer, until the collector of kit/ownership has released them.
	Owns bool
	// Claims returns the values that no other object of the kind may have.
	Claims func(obj T) []Claim
	// Grace says how long an object may take to end once its deletion is asked for, where the asker wants so many seconds
	// (nil: does not say). False means that it goes at once. An object with a grace stays, with the time of its end, until
	// somebody asks with 0 seconds.
	Grace func(obj T, asked *int32) (seconds int32, stays bool)
	// KeepStatus lets a creation bring a status; kinds without a split between spec and status need it.
	KeepStatus bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Log hears of trouble; nil means slog.Default().
	Log *slog.Logger
}

// Table is all objects of one kind: their records, their cache and the rules by which they change.
// All methods may be called concurrently once Run runs.
type Table[T object.Object] struct {
	*Cache[T]
	st        *store.Store
	cfg       Config[T]
	typ       *metav1.ResourceType
	validator protovalidate.Validator
	reads     reads
	watcher   atomic.Pointer[store.Watcher] // that fills the cache; nil while there is none
}

// NewTable returns the table of a kind in a service's store. Nothing is read before Run.
func NewTable[T object.Object](st *store.Store, validator protovalidate.Validator, cfg Config[T]) *Table[T] {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	var zero T
	t := &Table[T]{
		Cache: NewCache[T](), st: st, cfg: cfg, validator: validator,
		typ: object.TypeOf(zero.ProtoReflect().Descriptor()),
	}
	t.Index(ByOwner, func(obj T) []string { return ownership.Owners(obj) })
	for name, of := range cfg.Indexes {
		t.Index(name, of)
	}
	return t
}

// Type returns how the kind is addressed.
func (t *Table[T]) Type() *metav1.ResourceType { return t.typ }

// maxRetries bounds how often a write without a revision is tried again after it met another one.
const maxRetries = 16

func (t *Table[T]) prefix() string { return t.typ.GetPlural() + "/" }

func (t *Table[T]) key(k object.Key) string {
	ns := k.Namespace
	if ns == "" {
		ns = "-"
	}
	return t.prefix() + ns + "/" + k.Name
}

// Run keeps the cache in step with etcd until ctx ends.
func (t *Table[T]) Run(ctx context.Context) error {
	const logEvery = time.Minute // of what etcd goes on refusing
	again := backoff.New(50*time.Millisecond, time.Second)
	var logged time.Time
	for ctx.Err() == nil {
		err := t.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		level := slog.LevelDebug
		if time.Since(logged) >= logEvery {
			level, logged = slog.LevelWarn, time.Now()
		}
		t.cfg.Log.Log(ctx, level, "watch of a kind broke off", "kind", t.typ.GetKind(), "error", err)
		again.Wait(ctx)
	}
	return nil
}

// follow fills the cache and takes in every change until the watch ends. It alone notes which records cannot be read:
// a read at another moment may return an outdated record.
func (t *Table[T]) follow(ctx context.Context) error {
	page, err := t.st.List(ctx, t.prefix(), store.ListOptions{})
	if err != nil {
		return err
	}
	t.st.NoteListed(t.prefix(), page)
	t.Replace(t.objects(page, t.note), page.Revision)
	w := t.st.Watch(ctx, t.prefix(), page.Revision)
	t.watcher.Store(w)
	for b := range w.Batches() {
		t.Step(b.Revision, t.changes(b, t.note))
	}
	return w.Err()
}

// objects returns those of a list that can be read. note is called for each record.
func (t *Table[T]) objects(page store.Page, note func(store.Record, error)) []T {
	objects := make([]T, 0, len(page.Records))
	for _, r := range page.Records {
		o, err := t.object(r)
		if note(r, err); err == nil {
			objects = append(objects, o)
		}
	}
	return objects
}

// object returns the object of a record. Lists and watches skip one that cannot be read: it must not keep the
// others of its kind from being served.
func (t *Table[T]) object(r store.Record) (T, error) {
	if r.Damage != nil {
		var zero T
		return zero, r.Damage
	}
	return t.decode(r.Value, r.Revision)
}

// note has the store report a record that cannot be read, until it is replaced or deleted.
func (t *Table[T]) note(r store.Record, err error) {
	if err == nil {
		t.st.NoteReadable(r.Key, r.Revision)
		return
	}
	k := t.keyOf(r.Key)
	t.st.NoteUnreadable(store.Unreadable{
		Key: r.Key, Revision: r.Revision, APIVersion: object.APIVersion(t.typ), Kind: t.typ.GetKind(), Namespace: k.Namespace,
		Name: k.Name, Err: err.Error(),
	})
}

// ignore drops reports of unreadable records. Reads for a caller use it: only the watch reports them.
func ignore(store.Record, error) {}

// keyOf is the inverse of key.
func (t *Table[T]) keyOf(record string) object.Key {
	ns, name, _ := strings.Cut(strings.TrimPrefix(record, t.prefix()), "/")
	if ns == "-" {
		ns = ""
	}
	return object.Key{Namespace: ns, Name: name}
}

// changes returns what a batch changed. A record that can no longer be read keeps its last state: the object was
// not deleted. note is called for each record.
func (t *Table[T]) changes(b store.Batch, note func(store.Record, error)) []Change[T] {
	out := make([]Change[T], 0, len(b.Events))
	for _, e := range b.Events {
		ch := Change[T]{Key: t.keyOf(e.Record.Key), Deleted: e.Deleted}
		if e.Previous != nil {
			var err error
			ch.Previous, err = t.decode(e.Previous, 0)
			ch.Existed = err == nil
		}
		if e.Deleted {
			note(e.Record, nil)
			if !ch.Existed { // its last state was compacted away, or cannot be read; the cache still has one
				if ch.Previous, ch.Existed = t.Lookup(ch.Key.Namespace, ch.Key.Name); !ch.Existed {
					continue
				}
			}
			ch.Object = object.Clone(ch.Previous)
			ch.Object.GetMetadata().ResourceVersion = FormatRevision(b.Revision)
		} else {
			var err error
			ch.Object, err = t.object(e.Record)
			if note(e.Record, err); err != nil {
				continue
			}
			if !ch.Existed && e.Record.CreateRevision < e.Record.Revision {
				ch.Previous, ch.Existed = t.Lookup(ch.Key.Namespace, ch.Key.Name)
			}
		}
		out = append(out, ch)
	}
	return out
}

func (t *Table[T]) decode(value []byte, revision int64) (T, error) {
	var zero T
	o := zero.ProtoReflect().New().Interface().(T)
	if err := proto.Unmarshal(value, o); err != nil {
		return zero, err
	}
	if o.GetMetadata() == nil {
		return zero, errors.New("record has no metadata")
	}
	if revision > 0 {
		o.GetMetadata().ResourceVersion = FormatRevision(revision)
	}
	return o, nil
}

// encode returns the bytes to store. The revision is etcd's to say, so it is not part of them.
func (t *Table[T]) encode(o T) ([]byte, error) {
	o = object.Clone(o)
	o.GetMetadata().ResourceVersion = ""
	return proto.MarshalOptions{Deterministic: true}.Marshal(o)
}

// Get returns an object as it is in etcd now; rpcerr.NotFound if there is none. The caller may modify it.
func (t *Table[T]) Get(ctx context.Context, namespace, name string) (T, error) {
	var zero T
	r, err := t.st.Get(ctx, t.key(object.Key{Namespace: namespace, Name: name}))
	if errors.Is(err, store.ErrNotFound) {
		return zero, rpcerr.NotFound(t.typ.GetKind(), name)
	}
	if errors.Is(err, store.ErrUnreadable) {
		return zero, rpcerr.Unreadable(t.typ.GetKind(), name)
	}
	if err != nil {
		return zero, err
	}
	o, err := t.object(r)
	if err != nil {
		return zero, rpcerr.Unreadable(t.typ.GetKind(), name)
	}
	return o, nil
}

// Create stores a new object and returns it as stored. It takes name, namespace, labels, annotations, finalizers,
// owners and spec from obj and makes everything else itself.
func (t *Table[T]) Create(ctx context.Context, obj T, opts ...WriteOptions) (T, error) {
	w := writing[T](ctx, opts)
	obj, err := t.prepareCreate(w, obj)
	if err != nil {
		return obj, err
	}
	var none T
	if w.DryRun {
		if err := t.absent(ctx, obj); err != nil {
			return obj, err
		}
		return obj, t.freeClaims(ctx, none, obj)
	}
	value, err := t.encode(obj)
	if err != nil {
		return obj, err
	}
	revision, err := t.commit(ctx, store.Put(t.key(object.KeyOf(obj)), value, 0), none, obj)
	if errors.Is(err, store.ErrExists) {
		return obj, rpcerr.Exists(t.typ.GetKind(), obj.GetMetadata().GetName())
	}
	return t.written(ctx, obj, revision, err)
}

func (t *Table[T]) absent(ctx context.Context, obj T) error {
	_, err := t.st.Get(ctx, t.key(object.KeyOf(obj)))
	if err == nil {
		return rpcerr.Exists(t.typ.GetKind(), obj.GetMetadata().GetName())
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

func (t *Table[T]) prepareCreate(w *Write[T], obj T) (T, error) {
	var zero T
	obj = object.Clone(obj)
	if err := t.checkIdentity(obj); err != nil {
		return zero, err
	}
	m := obj.GetMetadata()
	m.Uid, m.ResourceVersion, m.Generation = uuid.NewString(), "", 1
	m.CreationTimestamp, m.DeletionTimestamp, m.DeletionGracePeriodSeconds = t.now(), nil, nil
	for _, f := range t.cfg.Finalizers {
		m.Finalizers = appendMissing(m.Finalizers, f)
	}
	if !t.cfg.KeepStatus {
		clearField(obj, "status")
	}
	w.Old, w.New = zero, obj
	if err := t.check(w); err != nil {
		return zero, err
	}
	return obj, nil
}

// Update replaces labels, annotations, finalizers, owners and spec of an object; a caller's object need not name the
// finalizers of the service that owns the kind, which stay. Its resourceVersion must be the one that was read; without
// one the newest object is replaced. The status stays. An object that is being deleted goes with its last finalizer.
func (t *Table[T]) Update(ctx context.Context, obj T, opts ...WriteOptions) (T, error) {
	w := writing[T](ctx, opts)
	return t.change(ctx, object.KeyOf(obj), preconditions(obj), w, func(old T) (T, error) {
		next := object.Clone(obj)
		copyField(next, old, "status")
		if !w.Own {
			for _, f := range t.ownFinalizers(old) {
				m := ensureMetadata(next)
				m.Finalizers = appendMissing(m.Finalizers, f)
			}
		}
		return next, nil
	})
}

// UpdateStatus replaces the status of an object; everything else stays. Its resourceVersion must be the one that was
// read; without one the newest object is changed.
func (t *Table[T]) UpdateStatus(ctx context.Context, obj T, opts ...WriteOptions) (T, error) {
	return t.change(ctx, object.KeyOf(obj), preconditions(obj), writing[T](ctx, opts), func(old T) (T, error) {
		next := object.Clone(old)
		copyField(next, obj, "status")
		return next, nil
	})
}

// Modify reads an object, has f change a copy of it (spec, metadata and status alike), and stores it if it is still as
// it was read; if not, all over again. f may run several times; an error of f ends it.
func (t *Table[T]) Modify(ctx context.Context, key object.Key, f func(obj T) error, opts ...WriteOptions) (T, error) {
	return t.change(ctx, key, nil, writing[T](ctx, opts), func(old T) (T, error) {
		next := object.Clone(old)
		return next, f(next)
	})
}

func preconditions(obj object.Object) *metav1.Preconditions {
	m := obj.GetMetadata()
	return &metav1.Preconditions{Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion()}
}

// change is the one way in which an object that exists is written.
func (t *Table[T]) change(ctx context.Context, key object.Key, pre *metav1.Preconditions, w *Write[T],
	f func(old T) (T, error),
) (T, error) {
	var zero T
	for try := 0; ; try++ {
		old, err := t.Get(ctx, key.Namespace, key.Name)
		if err != nil {
			return zero, err
		}
		if err := t.hold(old, pre); err != nil {
			return zero, err
		}
		w.Old = old
		if w.New, err = f(old); err != nil {
			return zero, err
		}
		out, err := t.replace(ctx, w)
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			if pre.GetResourceVersion() == "" && try < maxRetries {
				continue
			}
			return zero, rpcerr.Conflict(t.typ.GetKind(), key.Name, "")
		}
		return out, err
	}
}

// hold returns an error if preconditions do not hold for an object.
func (t *Table[T]) hold(old T, pre *metav1.Preconditions) error {
	m := old.GetMetadata()
	if u := pre.GetUid(); u != "" && u != m.GetUid() {
		return rpcerr.Conflict(t.typ.GetKind(), m.GetName(), fmt.Sprintf("uid is %s, not %s", m.GetUid(), u))
	}
	if r := pre.GetResourceVersion(); r != "" && r != m.GetResourceVersion() {
		return rpcerr.Conflict(t.typ.GetKind(), m.GetName(), fmt.Sprintf("resourceVersion is %s, not %s",
			m.GetResourceVersion(), r))
	}
	return nil
}

// replace stores the new object where the old one is, unless nothing differs.
func (t *Table[T]) replace(ctx context.Context, w *Write[T]) (T, error) {
	var zero T
	old, next := w.Old, w.New
	if err := t.checkChange(w); err != nil {
		return zero, err
	}
	if proto.Equal(old, next) {
		return old, nil
	}
	if w.DryRun {
		return next, t.freeClaims(ctx, old, next)
	}
	was := revisionOf(old)
	if released(old, next) {
		revision, err := t.commit(ctx, store.Delete(t.key(object.KeyOf(old)), was), old, zero)
		return t.written(ctx, next, revision, err)
	}
	value, err := t.encode(next)
	if err != nil {
		return zero, err
	}
	revision, err := t.commit(ctx, store.Put(t.key(object.KeyOf(old)), value, was), old, next)
	return t.written(ctx, next, revision, err)
}

// checkChange applies all rules to a write of an object that exists, and counts its generation.
func (t *Table[T]) checkChange(w *Write[T]) error {
	old, next := w.Old, w.New
	if next.GetMetadata() == nil {
		return rpcerr.Invalid(object.Fault{Path: "metadata", Description: "must be there"})
	}
	if err := t.keepIdentity(old, next); err != nil {
		return err
	}
	if err := t.check(w); err != nil {
		return err
	}
	if !sameField(old, next, "spec") {
		next.GetMetadata().Generation++
	}
	return nil
}

// released reports whether a write of an object that is being deleted takes the last thing away that kept it.
func released(old, next object.Object) bool {
	m := next.GetMetadata()
	return object.Deleting(next) && len(m.GetFinalizers()) == 0 && m.GetDeletionGracePeriodSeconds() == 0 &&
		(m.DeletionGracePeriodSeconds == nil || len(old.GetMetadata().GetFinalizers()) > 0)
}

// keepIdentity puts what only the server writes into next, and refuses another apiVersion, kind, name, uid or time of
// deletion.
func (t *Table[T]) keepIdentity(old, next T) error {
	if fields := t.typeFields(next); len(fields) > 0 {
		return rpcerr.Invalid(fields...)
	}
	o, n := old.GetMetadata(), next.GetMetadata()
	var bad []object.Fault
	if n.Name != "" && n.Name != o.Name {
		bad = append(bad, object.Fault{Path: "metadata.name", Description: fmt.Sprintf("cannot be changed from %q to %q",
			o.Name, n.Name)})
	}
	if n.Namespace != "" && n.Namespace != o.Namespace {
		bad = append(bad, object.Fault{Path: "metadata.namespace", Description: fmt.Sprintf("cannot be changed from %q to %q",
			o.Namespace, n.Namespace)})
	}
	if o.DeletionTimestamp != nil {
		for _, f := range n.Finalizers {
			if !slices.Contains(o.Finalizers, f) {
				bad = append(bad, object.Fault{
					Path:        "metadata.finalizers",
					Description: fmt.Sprintf("%q cannot be added while the object is being deleted", f),
				})
			}
		}
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	setTypeFields(next, t.typ)
	n.Name, n.Namespace, n.GenerateName, n.Uid = o.Name, o.Namespace, o.GenerateName, o.Uid
	n.ResourceVersion, n.Generation = o.ResourceVersion, o.Generation
	n.CreationTimestamp, n.DeletionTimestamp, n.DeletionGracePeriodSeconds = o.CreationTimestamp, o.DeletionTimestamp,
		o.DeletionGracePeriodSeconds
	return nil
}

// Delete asks for the deletion of an object and returns it as it is then: with finalizers it stays and carries a time
// of deletion, without it is gone. Asked again it changes nothing.
func (t *Table[T]) Delete(ctx context.Context, namespace, name string, pre *metav1.Preconditions,
	opts ...WriteOptions,
) (T, error) {
	var zero T
	w, key := writing[T](ctx, opts), object.Key{Namespace: namespace, Name: name}
	for try := 0; ; try++ {
		old, err := t.Get(ctx, namespace, name)
		if err != nil {
			return zero, err
		}
		if err := t.hold(old, pre); err != nil {
			return zero, err
		}
		w.Old = old
		out, err := t.remove(ctx, w)
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			if pre.GetResourceVersion() == "" && try < maxRetries {
				continue
			}
			return zero, rpcerr.Conflict(t.typ.GetKind(), key.Name, "")
		}
		return out, err
	}
}

func (t *Table[T]) remove(ctx context.Context, w *Write[T]) (T, error) {
	var zero T
	if t.cfg.Admit != nil {
		if err := t.cfg.Admit(w); err != nil {
			return zero, err
		}
	}
	old := w.Old
	next, stays := t.ended(w)
	if any(next) == any(old) || w.DryRun {
		return old, nil
	}
	if !object.Deleting(old) {
		trace.Mark(ctx, next.GetMetadata())
	}
	was, key := revisionOf(old), t.key(object.KeyOf(old))
	if !stays {
		revision, err := t.commit(ctx, store.Delete(key, was), old, zero)
		return t.written(ctx, next, revision, err)
	}
	value, err := t.encode(next)
	if err != nil {
		return zero, err
	}
	revision, err := t.st.Commit(ctx, store.Put(key, value, was))
	return t.written(ctx, next, revision, err)
}

// ended returns an object as it is once its deletion is asked for, and whether it stays. It is the old one itself if
// nothing changes.
func (t *Table[T]) ended(w *Write[T]) (next T, stays bool) {
	old, next := w.Old, object.Clone(w.Old)
	m := next.GetMetadata()
	if t.cfg.Owns && !object.Deleting(old) {
		m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == object.OrphanFinalizer })
		if w.Propagation == Orphan {
			m.Finalizers = append(m.Finalizers, object.OrphanFinalizer)
		}
	}
	var grace int32
	if t.cfg.Grace != nil {
		grace, stays = t.cfg.Grace(old, w.Grace)
	}
	graceful := stays
	stays = stays || len(m.Finalizers) > 0
	// grace is 0 where the object has no time of its own any more: then only its finalizers keep it.
	if object.Deleting(old) && stays && grace >= m.GetDeletionGracePeriodSeconds() {
		return old, true
	}
	m.DeletionTimestamp = t.now()
	if graceful || m.DeletionGracePeriodSeconds != nil {
		m.DeletionTimestamp.Seconds += int64(grace)
		m.DeletionGracePeriodSeconds = &grace
	}
	return next, stays
}

// written returns an object at its new revision once the cache shows it, so that the caller finds its own write
// there.
func (t *Table[T]) written(ctx context.Context, obj T, revision int64, err error) (T, error) {
	if err != nil {
		var zero T
		return zero, err
	}
	obj.GetMetadata().ResourceVersion = FormatRevision(revision)
	// The write is done, so a cache that lags behind until the caller's time is over is no error of it.
	_ = t.WaitRevision(ctx, revision)
	return obj, nil
}

func (t *Table[T]) now() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: t.cfg.Now().Unix()}
}
