package custom

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// config is what all kinds are made with.
type config struct {
	st        *store.Store
	validator protovalidate.Validator
	log       *slog.Logger
}

// Kinds serves a kind for each definition whose names are accepted. It is safe for concurrent use.
type Kinds struct {
	config
	definitions *resource.Table[*Definition]

	mu       sync.Mutex
	kinds    map[string]*Kind  // by the name of the definition
	problems map[string]string // why a definition cannot be served
	pending  map[string]bool
	wake     chan struct{} // has an element while something is pending
	watchers []func(name string)
	begun    []func(ended context.Context, objects resource.Untyped)
}

// New returns the kinds of definitions. Nothing is served before Run.
func New(st *store.Store, validator protovalidate.Validator, definitions *resource.Table[*Definition], log *slog.Logger,
) *Kinds {
	return &Kinds{
		config: config{st, validator, log}, definitions: definitions, kinds: map[string]*Kind{},
		problems: map[string]string{}, pending: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// Subscribe calls f with the name of a definition whenever it changes whether its objects are served, and while it is
// being deleted, whenever its objects change. f must return immediately. It is called before Run.
func (k *Kinds) Subscribe(f func(name string)) { k.watchers = append(k.watchers, f) }

// Begins calls f for each kind that begins to be served, with a context that ends when it no longer is. It is called
// before Run.
func (k *Kinds) Begins(f func(ended context.Context, objects resource.Untyped)) {
	k.begun = append(k.begun, f)
}

func (k *Kinds) changed(name string) {
	for _, f := range k.watchers {
		f(name)
	}
}

// Run serves the kinds until ctx ends.
func (k *Kinds) Run(ctx context.Context) error {
	var tables sync.WaitGroup
	defer tables.Wait()
	k.definitions.Subscribe(func(ch resource.Change[*Definition]) {
		k.mu.Lock()
		k.pending[ch.Key.Name] = true
		k.mu.Unlock()
		select {
		case k.wake <- struct{}{}:
		default:
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		}
		k.mu.Lock()
		names := slices.Sorted(maps.Keys(k.pending))
		k.mu.Unlock()
		for _, name := range names {
			k.follow(ctx, &tables, name)
		}
	}
}

// follow brings what is served of a definition up to date.
func (k *Kinds) follow(ctx context.Context, tables *sync.WaitGroup, name string) {
	k.mu.Lock()
	delete(k.pending, name)
	kind := k.kinds[name]
	k.mu.Unlock()
	d, exists := k.definitions.Lookup("", name)
	if kind != nil && (!exists || d.GetMetadata().GetUid() != kind.uid) {
		kind.stop()
		k.set(name, nil, "")
		kind = nil
	}
	if !exists || kind == nil && !accepted(d) {
		return
	}
	if kind != nil && kind.state.Load().generation == d.GetMetadata().GetGeneration() {
		kind.state.Store(kind.state.Load().of(d)) // only the status changed, which needs no compilation
		k.changed(name)                           // of its deletion, changes of objects were not reported until now
		return
	}
	st, err := compile(d)
	if err != nil {
		k.log.ErrorContext(ctx, "definition cannot be served", "definition", name, "error", err)
		k.set(name, kind, err.Error())
		return
	}
	if kind != nil {
		kind.state.Store(st)
		k.set(name, kind, "")
		return
	}
	kind = &Kind{definitions: k.definitions, uid: d.GetMetadata().GetUid()}
	kind.state.Store(st)
	kind.ended, kind.stop = context.WithCancel(ctx)
	kind.Table = resource.NewTable(k.st, k.validator, kind.config(k.config, d))
	kind.Table.Subscribe(func(resource.Change[*Object]) {
		if object.Deleting(kind.state.Load().definition) {
			k.changed(name) // the deletion waits for its objects
		}
	})
	for _, f := range k.begun {
		f(kind.ended, kind.Table.Untyped())
	}
	tables.Go(func() { _ = kind.Table.Run(kind.ended) }) // it fails only at the end
	tables.Go(func() {
		if kind.Table.WaitSynced(kind.ended) == nil {
			k.changed(name)
		}
	})
	k.set(name, kind, "")
}

// accepted reports whether a definition may be served.
func accepted(d *Definition) bool {
	return object.IsTrue(d.GetStatus().GetConditions(), plan.NamesAccepted)
}

// set records what is served of a definition; nil if nothing is.
func (k *Kinds) set(name string, kind *Kind, problem string) {
	k.mu.Lock()
	if delete(k.kinds, name); kind != nil {
		k.kinds[name] = kind
	}
	if delete(k.problems, name); problem != "" {
		k.problems[name] = problem
	}
	k.mu.Unlock()
	k.changed(name)
}

// Serves reports whether the objects of a definition are served by its present schema, and if they cannot be, why. kind
// is nil if none of them are.
func (k *Kinds) Serves(d *Definition) (kind *Kind, current bool, problem string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind = k.kinds[d.GetMetadata().GetName()]
	if kind == nil || kind.uid != d.GetMetadata().GetUid() || !kind.Table.IsSynced() {
		return nil, false, k.problems[d.GetMetadata().GetName()]
	}
	problem = k.problems[d.GetMetadata().GetName()]
	return kind, problem == "" && kind.state.Load().generation == d.GetMetadata().GetGeneration(), problem
}

// Dependents returns how many objects of defined kinds, and definitions, refer to objects of a definition as their
// owners and are not being deleted: the collector deletes them, or removes the references, if the owners are gone.
// unread is a definition whose objects are not read yet, so that the number is not known; empty if there is none.
// Objects of kinds that cannot be served are not counted, since the collector does not see them either.
func (k *Kinds) Dependents(ctx context.Context, d *Definition) (n int, unread string, err error) {
	owner := typeOf(d, storageVersion(d))
	count := func(o object.Object) {
		if !object.Deleting(o) && ownership.RefersTo(o, owner) {
			n++
		}
	}
	for other := range k.definitions.Objects() {
		count(other)
		kind, _, problem := k.Serves(other)
		switch {
		case kind == nil && (problem != "" || !accepted(other)):
			continue
		case kind == nil:
			return 0, other.GetMetadata().GetName(), nil
		}
		objects, err := kind.All(ctx)
		if err != nil && kind.ended.Err() == nil {
			return 0, "", err
		}
		for _, o := range objects {
			count(o)
		}
	}
	return n, "", nil
}

// Types returns all kinds that are served, in each version.
func (k *Kinds) Types() []*metav1.ResourceType {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*metav1.ResourceType
	for _, name := range slices.Sorted(maps.Keys(k.kinds)) {
		out = append(out, k.kinds[name].state.Load().types...)
	}
	return out
}

// View is a kind in a version that is served.
type View struct {
	Kind    *Kind
	state   *state
	version string
}

// Find returns a kind by group, version and plural name. It fails with NotFound if no definition has it, and with
// Unavailable if one has it that is not served yet.
func (k *Kinds) Find(ctx context.Context, group, version, plural string) (View, error) {
	if err := k.definitions.WaitSynced(ctx); err != nil {
		return View{}, err
	}
	name := plural + "." + group
	k.mu.Lock()
	kind := k.kinds[name]
	k.mu.Unlock()
	if kind == nil {
		if d, ok := k.definitions.Lookup("", name); ok && defines(d, group, plural) && !object.Deleting(d) {
			return View{}, rpcerr.Unavailable(group + "/" + version + " " + plural +
				" are not served at present; see the conditions of CustomResourceDefinition " + name)
		}
		return View{}, rpcerr.NotFound("resource type", plural+"."+version+"."+group)
	}
	st := kind.state.Load()
	if !defines(st.definition, group, plural) || !st.serves(version) {
		return View{}, rpcerr.NotFound("resource type", plural+"."+version+"."+group)
	}
	if err := kind.Table.WaitSynced(ctx); err != nil {
		return View{}, err
	}
	return View{kind, st, version}, nil
}

// defines reports whether a definition is that of a group and a plural name. Its name does not say so: the rights to
// "b" of "c.d" and to "b.c" of "d" are different ones.
func defines(d *Definition, group, plural string) bool {
	return d.GetSpec().GetGroup() == group && d.GetSpec().GetNames().GetPlural() == plural
}

// Namespaced reports whether the objects have namespaces.
func (v View) Namespaced() bool { return v.Kind.Table.Type().GetNamespaced() }

// Standard returns the standard methods in the version.
func (v View) Standard() resource.Standard[*Object] {
	return resource.NewStandard(v.Kind.Table, func(o *Object) *Object { return v.Kind.state.Load().as(o, v.version) })
}

// APIVersion returns the apiVersion of the version.
func (v View) APIVersion() string { return v.state.apiVersion(v.version) }

// ListKind returns the kind of lists.
func (v View) ListKind() string { return v.state.definition.GetSpec().GetNames().GetListKind() }

// HasStatus reports whether the status is a part of its own.
func (v View) HasStatus() bool { return v.state.hasStatus() }

// Deprecation returns the warning for callers of the version; empty if there is none.
func (v View) Deprecation() string {
	for _, d := range v.state.definition.GetSpec().GetVersions() {
		if d.GetName() != v.version || !d.GetDeprecated() {
			continue
		}
		if text := d.GetDeprecationWarning(); text != "" {
			return text
		}
		return v.APIVersion() + " " + v.state.definition.GetSpec().GetNames().GetKind() + " is deprecated"
	}
	return ""
}

// Ended returns a context that ends when the kind is no longer served.
func (v View) Ended() context.Context { return v.Kind.ended }
