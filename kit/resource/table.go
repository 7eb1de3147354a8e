package resource

import (
	"cmp"
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
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Config is what is specific to a kind. All functions may be nil. None may modify an object, except Default, Admit
// the new object, and Mark the marked one.
type Config[T object.Object] struct {
	// Default sets the fields that an object leaves out, on every write.
	Default func(obj T)
	// Validate returns what is invalid about an object beyond the rules of its proto.
	Validate func(obj T) []object.Fault
	// ValidateUpdate returns what is invalid about a change.
	ValidateUpdate func(old, obj T) []object.Fault
	// Admit runs last and may refuse a write, or amend its New where a field depends on the caller. Its errors are made by
	// rpcerr.
	Admit func(w *Write[T]) error
	// Remote are rules that other programs decide; nil if the kind has none.
	Remote *Remote[T]
	// Indexes are the values by which objects are found, by the name of the index: see Cache.Index.
	Indexes map[string]func(obj T) []string
	// Creating runs before new objects are stored that passed all rules. It may complete them with what no rule objects
	// to; it then returns how to store them, else nil. Dry runs omit it.
	Creating func(objs []T) *Creation[T]
	// Guard returns a check that must hold in the transaction that stores a new object, or the reason to refuse the
	// object, an error made by rpcerr. It is called again if the check does not hold, and by dry runs. Objects of a kind
	// with a Guard are created one by one.
	Guard func(ctx context.Context) (store.Op, error)
	// HasNamespace reports whether a namespace exists.
	HasNamespace func(namespace string) bool
	// Sealed is whether the records are encrypted in etcd. The store then needs a sealer, and Reseal must run.
	Sealed bool
	// Finalizers are added to every new object.
	Finalizers []string
	// Owns is whether objects of the kind may own others: a deletion with propagation Orphan then keeps the object with
	// object.OrphanFinalizer until the collector has orphaned what it owns.
	Owns bool
	// Claims returns the values that no other object of the kind may have.
	Claims func(obj T) []Claim
	// Choose chooses values to claim that an object leaves open, and reports whether there were any. It runs after all
	// rules, on every write but a deletion, and again if another object holds what it chose. Its errors are made by
	// rpcerr. ModifyAll does not need it: kinds with claims are written one by one.
	Choose func(obj T) (chose bool, err error)
	// Grace returns the grace period of a deletion; asked is the caller's, nil if it gives none. False means that the
	// object is removed immediately. An object with a grace period remains, with the end of the period in its metadata,
	// until a deletion with 0 seconds.
	Grace func(obj T, asked *int32) (seconds int32, stays bool)
	// Mark records the cause of a deletion in an object that remains, in the write that sets its deletion timestamp.
	Mark func(w *Write[T], marked T)
	// Whole is whether an application replaces the spec as a whole, since a part of it means nothing by itself.
	Whole bool
	// Type is the names of the kind; nil means those of the message. A kind that is defined at run time needs it.
	Type *metav1.ResourceType
	// Prefix begins the keys of the kind's records and ends with a slash; empty means the plural name.
	Prefix string
	// APIVersions returns the apiVersions that objects may have in writes; nil means that of Type. Rules that depend on
	// the apiVersion see the caller's; Admit may replace it.
	APIVersions func() []string
	// NoStatus reports whether the status is written with the rest of an object; nil means that it is a part of its own.
	NoStatus func() bool
	// KeepStatus allows a creation to set the status; kinds without a split between spec and status need it.
	KeepStatus bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Log receives failures of the watch; nil means slog.Default().
	Log *slog.Logger
}

// Remote are the rules of a kind that other programs decide, which takes time.
type Remote[T object.Object] struct {
	// Active reports whether there are such rules at present. If not, the other functions are not called.
	Active func() bool
	// Mutate runs before all rules on a creation or a change, with the defaults set. It may change the New of a write,
	// but not replace it. It is called again if the write is tried again.
	Mutate func(ctx context.Context, w *Write[T]) error
	// Review runs last and may refuse a write, a deletion included. It must not modify it.
	Review func(ctx context.Context, w *Write[T]) error
}

// asksOthers reports whether other programs decide on writes at present.
func (t *Table[T]) asksOthers() bool { return t.cfg.Remote != nil && t.cfg.Remote.Active() }

// Table is all objects of one kind: their records, their cache and the rules by which they change. All methods are safe
// for concurrent use once Run has been called.
type Table[T object.Object] struct {
	*Cache[T]
	st        *store.Store
	cfg       Config[T]
	typ       *metav1.ResourceType
	validator protovalidate.Validator
	reads     reads
	own       own[T]
	watcher   atomic.Pointer[store.Watcher] // fills the cache; nil while there is none
	content   protoreflect.Name             // the field whose changes the generation counts
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
	t := &Table[T]{Cache: NewCache[T](), st: st, cfg: cfg, validator: validator, typ: cfg.Type, content: "spec"}
	if t.typ == nil {
		t.typ = object.TypeOf(zero.ProtoReflect().Descriptor())
	}
	if inline := manifest.InlineField(zero.ProtoReflect().Descriptor()); inline != nil {
		t.content = inline.Name()
	}
	t.Index(ByOwner, func(obj T) []string { return ownership.Owners(obj) })
	for name, of := range cfg.Indexes {
		t.Index(name, of)
	}
	return t
}

// Type returns the names of the kind in the API.
func (t *Table[T]) Type() *metav1.ResourceType { return t.typ }

// maxRetries is how often a write without a resourceVersion is tried again after a conflict.
const maxRetries = 16

func (t *Table[T]) prefix() string { return cmp.Or(t.cfg.Prefix, t.typ.GetPlural()+"/") }

// noStatus reports whether the status is written with the rest of an object.
func (t *Table[T]) noStatus() bool { return t.cfg.NoStatus != nil && t.cfg.NoStatus() }

// keepStatus gives an object that a caller wrote the status of the stored one, unless it is the caller's to write.
func (t *Table[T]) keepStatus(next, old T) {
	if !t.noStatus() {
		copyField(next, old, "status")
	}
}

// sameSpec reports whether two objects are equal in what the generation counts.
func (t *Table[T]) sameSpec(a, b T) bool {
	return sameField(a, b, t.content) && (!t.noStatus() || sameField(a, b, "status"))
}

func (t *Table[T]) key(k object.Key) string {
	ns := k.Namespace
	if ns == "" {
		ns = "-"
	}
	return t.prefix() + ns + "/" + k.Name
}

// Unchanged is an operation for a Commit to the table's store: the object must exist at the resourceVersion that it was
// read at (else store.ErrConflict, or store.ErrNotFound).
func (t *Table[T]) Unchanged(obj T) store.Op {
	return store.Check(t.key(object.KeyOf(obj)), revisionOf(obj))
}

// Run keeps the cache in sync with etcd until ctx ends.
func (t *Table[T]) Run(ctx context.Context) error {
	const logEvery = time.Minute // of repeated failures
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
		t.cfg.Log.Log(ctx, level, "watch of a kind ended", "kind", t.typ.GetKind(), "error", err)
		again.Wait(ctx)
	}
	return nil
}

// follow fills the cache and applies every change until the watch ends. Only follow reports unreadable records: any
// other read may see an outdated record.
func (t *Table[T]) follow(ctx context.Context) error {
	all, revision, err := t.readAll(ctx)
	if err != nil {
		return err
	}
	t.Replace(all, revision)
	w := t.st.Watch(ctx, t.prefix(), revision)
	t.watcher.Store(w)
	for b := range w.Batches() {
		t.Step(b.Revision, t.news(b))
	}
	return w.Err()
}

// readPage is how many records are read from etcd at a time.
const readPage = 1000

// readAll returns the readable objects of the kind, and the revision at which they were read. It reads page by page:
// records, and objects with parts of their own, take several times the memory of the cache.
func (t *Table[T]) readAll(ctx context.Context) (all []T, revision int64, err error) {
	unreadable := map[string]bool{}
	note := func(r store.Record, err error) {
		if t.note(r, err); err != nil {
			unreadable[r.Key] = true
		}
	}
	for o := (store.ListOptions{Limit: readPage}); ; {
		page, err := t.st.List(ctx, t.prefix(), o)
		if err != nil {
			return nil, 0, err
		}
		objects := t.objects(page, note)
		t.Share(objects...)
		all = append(all, objects...)
		if !page.More {
			t.st.NoteListed(t.prefix(), page.Revision, unreadable)
			return all, page.Revision, nil
		}
		o.Revision, o.After = page.Revision, page.Records[len(page.Records)-1].Key
	}
}

// objects returns the readable objects of a list. note is called for each record.
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

// object returns the object of a record. Lists and watches skip a record that cannot be read, so that the other objects
// of the kind are still served.
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

// news returns the changes of the batch that follows the cache's state, which is the state before them.
func (t *Table[T]) news(b store.Batch) []Change[T] {
	out := make([]Change[T], 0, len(b.Events))
	version := FormatRevision(b.Revision)
	for _, e := range b.Events {
		ch := Change[T]{Key: t.keyOf(e.Record.Key), Deleted: e.Deleted}
		ch.Previous, ch.Existed = t.Lookup(ch.Key.Namespace, ch.Key.Name)
		if e.Deleted {
			if t.note(e.Record, nil); !ch.Existed { // it could not be read
				continue
			}
			ch.Object = object.Clone(ch.Previous)
			ch.Object.GetMetadata().ResourceVersion = version
			out = append(out, ch)
			continue
		}
		var mine bool
		var err error
		if ch.Object, mine = t.own.take(e.Record); !mine {
			ch.Object, err = t.object(e.Record)
		}
		if t.note(e.Record, err); err != nil {
			continue // it keeps its last state: the object was not deleted
		}
		ch.Object.GetMetadata().ResourceVersion = version
		out = append(out, ch)
	}
	return out
}

// changes returns the changes of a batch of history. A record that can no longer be read keeps its last state: the
// object was not deleted. note is called for each record.
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
			if !ch.Existed { // its last state was compacted, or cannot be read; the cache still has it
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

// encode returns the bytes to store, without the revision, which etcd assigns.
// Nothing else may use o during the call.
func (t *Table[T]) encode(o T) ([]byte, error) {
	m := o.GetMetadata()
	version := m.GetResourceVersion()
	m.ResourceVersion = ""
	defer func() { m.ResourceVersion = version }()
	return proto.MarshalOptions{Deterministic: true}.Marshal(o)
}

// Get reads an object from etcd; rpcerr.NotFound if it does not exist. The caller may modify it.
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

// Create stores a new object and returns it as stored. Name, namespace, labels, annotations, finalizers, owners and
// spec are from obj; everything else is set here.
func (t *Table[T]) Create(ctx context.Context, obj T, opts ...WriteOptions) (T, error) {
	next, err := t.prepareCreate(ctx, writing[T](ctx, opts), obj)
	if err != nil {
		return next, err
	}
	if dryRun(opts) {
		if err := t.absent(ctx, next); err != nil {
			return next, err
		}
		var none T
		if _, err := t.guard(ctx); err != nil {
			return none, err
		}
		if next, err = t.chosen(next); err != nil {
			return none, err
		}
		return next, t.freeClaims(ctx, none, next)
	}
	c := t.creating([]T{next})
	if c == nil {
		return t.insert(ctx, next)
	}
	out, err := t.insert(store.WithFence(ctx, c.Fence), next)
	c.Done([]Written[T]{{out, err}})
	if !errors.Is(err, store.ErrFenced) {
		return out, err
	}
	if next, err = t.prepareCreate(ctx, writing[T](ctx, opts), obj); err != nil {
		return next, err
	}
	return t.insert(ctx, next)
}

// insert stores a new object that passed all rules.
func (t *Table[T]) insert(ctx context.Context, obj T) (T, error) {
	out, err := t.choosing(ctx, obj, func(obj T) (T, error) {
		var none T
		value, err := t.encode(obj)
		if err != nil {
			return obj, err
		}
		for range maxRetries {
			guard, err := t.guard(ctx)
			if err != nil {
				return none, err
			}
			revision, err := t.commit(ctx, t.put(t.key(object.KeyOf(obj)), value, 0), none, obj, guard...)
			if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
				return t.written(ctx, obj, revision, err)
			}
		}
		return none, rpcerr.Conflict(t.typ.GetKind(), obj.GetMetadata().GetName(), "")
	})
	if errors.Is(err, store.ErrExists) {
		return obj, rpcerr.Exists(t.typ.GetKind(), obj.GetMetadata().GetName())
	}
	return out, err
}

// guard returns the check of Config.Guard, if there is one.
func (t *Table[T]) guard(ctx context.Context) ([]store.Op, error) {
	if t.cfg.Guard == nil {
		return nil, nil
	}
	op, err := t.cfg.Guard(ctx)
	return []store.Op{op}, err
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

func (t *Table[T]) prepareCreate(ctx context.Context, w *Write[T], obj T) (T, error) {
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
	if !t.cfg.KeepStatus && !t.noStatus() {
		clearField(obj, "status")
	}
	w.Old, w.New = zero, obj
	if err := t.check(ctx, w); err != nil {
		return zero, err
	}
	return obj, nil
}

// Update replaces labels, annotations, finalizers, owners and spec of an object. A caller's object need not list the
// finalizers of the service that owns the kind, which are kept. Its resourceVersion must be the one that was read;
// without one the newest object is replaced. The status is kept. An object that is being deleted is removed with its
// last finalizer.
func (t *Table[T]) Update(ctx context.Context, obj T, opts ...WriteOptions) (T, error) {
	w := writing[T](ctx, opts)
	return t.change(ctx, object.KeyOf(obj), preconditions(obj), w, func(old T) (T, error) {
		next := object.Clone(obj)
		t.keepStatus(next, old)
		if !w.Own {
			for _, f := range t.ownFinalizers(old) {
				m := ensureMetadata(next)
				m.Finalizers = appendMissing(m.Finalizers, f)
			}
		}
		return next, nil
	})
}

// UpdateStatus replaces the status of an object; everything else is kept. Its resourceVersion must be the one that was
// read; without one the newest object is changed.
func (t *Table[T]) UpdateStatus(ctx context.Context, obj T, opts ...WriteOptions) (T, error) {
	return t.change(ctx, object.KeyOf(obj), preconditions(obj), writing[T](ctx, opts), func(old T) (T, error) {
		next := object.Clone(old)
		copyField(next, obj, "status")
		return next, nil
	})
}

// Modify reads an object, has f change a copy of it (spec, metadata and status alike), and stores it unless the object
// changed since it was read; in that case it starts again. f may run several times; Modify returns an error of f.
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

// change is the only way to write an existing object.
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

// hold returns an error if an object does not meet preconditions.
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

// replace stores the new object in place of the old one, unless they are equal.
func (t *Table[T]) replace(ctx context.Context, w *Write[T]) (T, error) {
	if err := t.checkChange(ctx, w); err != nil {
		var zero T
		return zero, err
	}
	return t.choosing(ctx, w.New, func(next T) (T, error) { return t.exchange(ctx, w, next) })
}

// exchange stores an object that passed all rules in place of the old one of a write, unless they are equal.
func (t *Table[T]) exchange(ctx context.Context, w *Write[T], next T) (T, error) {
	var zero T
	old := w.Old
	if proto.Equal(old, next) {
		return old, nil
	}
	if m := next.GetMetadata(); m.GetGeneration() == old.GetMetadata().GetGeneration() && !t.sameSpec(old, next) {
		m.Generation++ // what was chosen is the only difference
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
	revision, err := t.commit(ctx, t.put(t.key(object.KeyOf(old)), value, was), old, next)
	return t.written(ctx, next, revision, err)
}

// checkChange applies all rules to a write of an existing object, and increments its generation if the spec changes.
func (t *Table[T]) checkChange(ctx context.Context, w *Write[T]) error {
	old, next := w.Old, w.New
	if next.GetMetadata() == nil {
		return rpcerr.Invalid(object.Fault{Path: "metadata", Description: "must be given"})
	}
	if err := t.keepIdentity(old, next); err != nil {
		return err
	}
	if err := t.check(ctx, w); err != nil {
		return err
	}
	if !t.sameSpec(old, next) {
		next.GetMetadata().Generation++
	}
	return nil
}

// released reports whether a write of an object that is being deleted removes the last reason to keep it.
func released(old, next object.Object) bool {
	m := next.GetMetadata()
	return object.Deleting(next) && len(m.GetFinalizers()) == 0 && m.GetDeletionGracePeriodSeconds() == 0 &&
		(m.DeletionGracePeriodSeconds == nil || len(old.GetMetadata().GetFinalizers()) > 0)
}

// keepIdentity copies the fields that only the server writes into next, and refuses another apiVersion, kind, name or
// namespace, and new finalizers during a deletion.
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
	t.setTypeFields(next)
	n.Name, n.Namespace, n.GenerateName, n.Uid = o.Name, o.Namespace, o.GenerateName, o.Uid
	n.ResourceVersion, n.Generation = o.ResourceVersion, o.Generation
	n.CreationTimestamp, n.DeletionTimestamp, n.DeletionGracePeriodSeconds = o.CreationTimestamp, o.DeletionTimestamp,
		o.DeletionGracePeriodSeconds
	return nil
}

// Delete deletes an object and returns its last state. An object with finalizers or a grace period remains, with a
// deletion timestamp. Deleting it again changes nothing, or shortens the grace period.
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
	next, ops, err := t.removal(ctx, w)
	if err != nil || len(ops) == 0 {
		return next, err
	}
	revision, err := t.st.Commit(ctx, ops...)
	return t.written(ctx, next, revision, err)
}

// removal applies all rules to a deletion. It returns the object after it and the operations that store that; there are
// none if nothing changes or nothing is to be stored, and the object is then the old one.
func (t *Table[T]) removal(ctx context.Context, w *Write[T]) (next T, ops []store.Op, err error) {
	var zero T
	old := w.Old
	if t.cfg.Admit != nil {
		if err := t.cfg.Admit(w); err != nil {
			return zero, nil, err
		}
	}
	if t.asksOthers() {
		if err := t.cfg.Remote.Review(ctx, w); err != nil {
			return zero, nil, err
		}
	}
	next, stays := t.ended(w)
	if any(next) == any(old) || w.DryRun {
		return old, nil, nil
	}
	if !object.Deleting(old) {
		trace.Mark(ctx, next.GetMetadata())
		if t.cfg.Mark != nil && stays {
			t.cfg.Mark(w, next)
		}
	}
	key := t.key(object.KeyOf(old))
	if !stays {
		claims, err := t.claimOps(ctx, old, zero)
		return next, append([]store.Op{store.Delete(key, revisionOf(old))}, claims...), err
	}
	value, err := t.encode(next)
	return next, []store.Op{t.put(key, value, revisionOf(old))}, err
}

// ended returns an object after the request to delete it, and whether it remains. It returns the old object itself if
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
	// grace is 0 once the object has no grace period: then only its finalizers keep it.
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

// written returns an object at its new revision once the cache has it, so that a writer sees its own write there.
func (t *Table[T]) written(ctx context.Context, obj T, revision int64, err error) (T, error) {
	if err != nil {
		var zero T
		return zero, err
	}
	obj.GetMetadata().ResourceVersion = FormatRevision(revision)
	// The write succeeded, so it is no error if the cache lags behind until the caller's deadline.
	_ = t.reach(ctx, revision)
	return obj, nil
}

func (t *Table[T]) now() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: t.cfg.Now().Unix()}
}
