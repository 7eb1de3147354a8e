package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

const (
	// keepEnded is how many pods that have run to their end are kept for people to look at.
	keepEnded = 1000
	// sweepers is how many objects are looked at at once: what they wait for is etcd.
	sweepers = 4
	// endedKey stands in the queue for all pods that have run to their end.
	endedKey = "ended"
	// lookAgain is when a namespace is looked at that still has something in it, should the word of its going be missed.
	lookAgain = 5 * time.Second
)

// Garbage removes what nobody keeps any more: what belonged to an owner that is gone, pods whose node is gone, what is
// in a namespace that is on its way out, and the oldest of the pods that have run to their end. It also sees to it that
// the built-in namespaces exist.
type Garbage struct {
	tables *kinds.Tables
	byName map[string]kinds.Kind // by plural
	owners map[string]kinds.Kind // by API version and kind
	nodes  Nodes
	log    *slog.Logger
	loop   *controller.Loop

	mu         sync.Mutex
	references map[string]reference           // by key of the loop
	dependents map[string]map[string]struct{} // keys of the loop, by the owner's uid
	onNode     map[string]map[string]struct{} // keys of the loop, by the node's name
	ended      map[string]struct{}            // keys of the loop
}

// reference is what an object depends on, as it was seen last.
type reference struct {
	uid    string
	owners []string // uids
	node   string
}

// NewGarbage returns a collector that does nothing before Lead.
func NewGarbage(tables *kinds.Tables, nodes Nodes, log *slog.Logger) *Garbage {
	g := &Garbage{
		tables: tables, nodes: nodes, log: log, byName: map[string]kinds.Kind{}, owners: map[string]kinds.Kind{},
		references: map[string]reference{}, dependents: map[string]map[string]struct{}{},
		onNode: map[string]map[string]struct{}{},
		ended:  map[string]struct{}{},
	}
	g.loop = controller.NewLoop("garbage", sweepers, g.reconcile, log)
	g.loop.Begin(g.keys)
	for _, k := range tables.All() {
		g.byName[k.Type().GetPlural()] = k
		g.owners[object.APIVersion(k.Type())+"/"+k.Type().GetKind()] = k
		k.OnChange(func(key object.Key, obj object.Object) { g.see(k, key, obj) })
	}
	nodes.Subscribe(func(ch resource.Change[*nodev1.Node]) {
		if ch.Deleted {
			g.addAll(g.onNodeNamed(ch.Key.Name))
		}
	})
	return g
}

// Lead works until ctx ends.
func (g *Garbage) Lead(ctx context.Context) error {
	for _, k := range g.byName {
		if err := k.WaitSynced(ctx); err != nil {
			return nil // ctx ended
		}
	}
	for _, name := range kinds.BuiltIns() {
		if _, ok := g.tables.Namespaces.Lookup("", name); ok {
			continue
		}
		_, err := g.tables.Namespaces.Create(ctx, &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: name}})
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			return fmt.Errorf("namespace %q: %w", name, err)
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { g.firstNodes(ctx) })
	return g.loop.Run(ctx)
}

// keys returns the keys of all objects, and that of the pods that have run to their end.
func (g *Garbage) keys() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]string, 0, len(g.references)+1)
	for key := range g.references {
		out = append(out, key)
	}
	return append(out, endedKey)
}

// firstNodes asks for a look at all bound pods once the nodes are known: from then on those that go are heard of.
func (g *Garbage) firstNodes(ctx context.Context) {
	if g.nodes.WaitSynced(ctx) != nil {
		return // ctx ended
	}
	g.mu.Lock()
	var keys []string
	for node, bound := range g.onNode {
		if !g.nodes.HasNode(node) {
			keys = append(keys, keysOf(bound)...)
		}
	}
	g.mu.Unlock()
	g.addAll(keys)
}

func (g *Garbage) addAll(keys []string) {
	for _, key := range keys {
		g.loop.Add(key)
	}
}

func loopKey(k kinds.Kind, key object.Key) string {
	return k.Type().GetPlural() + "|" + key.String()
}

// see notes what an object depends on, and asks for a look at whatever its change concerns. obj is nil if it is gone.
func (g *Garbage) see(k kinds.Kind, key object.Key, obj object.Object) {
	id, ok := loopKey(k, key), obj != nil
	g.mu.Lock()
	before, known := g.references[id]
	var now reference
	if ok {
		now = referenceOf(obj)
		g.references[id] = now
	} else {
		delete(g.references, id)
	}
	g.reindex(id, before, now)
	crowded := g.noteEnded(id, obj)
	var concerned []string
	if known && before.uid != now.uid {
		concerned = keysOf(g.dependents[before.uid])
	}
	g.mu.Unlock()
	g.addAll(concerned)
	if crowded {
		g.loop.Add(endedKey)
	}
	switch {
	case ok && (object.Deleting(obj) || len(now.owners) > 0 && !slices.Equal(before.owners, now.owners)):
		g.loop.Add(id)
	case ok && now.node != "" && now.node != before.node && !g.nodes.HasNode(now.node):
		g.loop.Add(id)
	}
	if key.Namespace == "" || kinds.BuiltIn(key.Namespace) {
		return
	}
	switch ns, found := g.tables.Namespaces.Lookup("", key.Namespace); {
	case found && object.Deleting(ns):
		g.loop.Add("namespaces|" + key.Namespace)
	case !found && ok:
		g.loop.Add(id)
	}
}

func referenceOf(obj object.Object) reference {
	r := reference{uid: obj.GetMetadata().GetUid()}
	for _, o := range obj.GetMetadata().GetOwnerReferences() {
		r.owners = append(r.owners, o.GetUid())
	}
	if pod, ok := obj.(*schedulingv1.Pod); ok {
		r.node = pod.GetSpec().GetNodeName()
	}
	return r
}

// reindex keeps the indexes in step. The lock is held.
func (g *Garbage) reindex(id string, before, now reference) {
	for _, uid := range before.owners {
		drop(g.dependents, uid, id)
	}
	for _, uid := range now.owners {
		put(g.dependents, uid, id)
	}
	if before.node != now.node {
		drop(g.onNode, before.node, id)
		if now.node != "" {
			put(g.onNode, now.node, id)
		}
	}
}

// noteEnded counts the pods that have run to their end and reports whether there are too many. The lock is held.
func (g *Garbage) noteEnded(id string, obj object.Object) bool {
	if pod, ok := obj.(*schedulingv1.Pod); !ok || !placement.Terminated(pod) {
		delete(g.ended, id)
		return false
	}
	g.ended[id] = struct{}{}
	return len(g.ended) > keepEnded
}

func (g *Garbage) onNodeNamed(node string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return keysOf(g.onNode[node])
}

// reconcile looks at one object.
func (g *Garbage) reconcile(ctx context.Context, id string) (time.Time, error) {
	if id == endedKey {
		return time.Time{}, g.removeEnded(ctx)
	}
	plural, name, _ := strings.Cut(id, "|")
	k, key := g.byName[plural], object.ParseKey(name)
	obj, ok := k.Find(key)
	if !ok {
		return time.Time{}, nil
	}
	if ownership.Orphans(obj) {
		return time.Time{}, g.orphan(ctx, k, obj) // what is left to do comes with the change that this makes
	}
	if ns, ok := obj.(*schedulingv1.Namespace); ok {
		return g.emptyNamespace(ctx, ns)
	}
	if pod, ok := obj.(*schedulingv1.Pod); ok {
		gone, err := g.nodeGone(ctx, pod)
		if err != nil {
			return time.Time{}, err
		}
		if gone {
			return time.Time{}, g.remove(ctx, k, pod, "its node is gone", resource.WriteOptions{Grace: proto.Int32(0)})
		}
	}
	if object.Deleting(obj) {
		return time.Time{}, nil
	}
	if gone, err := g.namespaceGone(ctx, key.Namespace); err != nil {
		return time.Time{}, err
	} else if gone {
		return time.Time{}, g.remove(ctx, k, obj, "its namespace is gone")
	}
	return g.checkOwners(ctx, k, obj)
}

// namespaceGone reports whether something is in a namespace that was let go while it was being created.
func (g *Garbage) namespaceGone(ctx context.Context, name string) (bool, error) {
	if _, ok := g.tables.Namespaces.Lookup("", name); ok || name == "" || kinds.BuiltIn(name) {
		return false, nil
	}
	_, err := g.tables.Namespaces.Get(ctx, "", name)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return true, nil
	}
	return false, err
}

// nodeGone reports whether a pod is bound to a node that is gone. What the copy of the nodes says is asked for once
// more, since that may lag.
func (g *Garbage) nodeGone(ctx context.Context, pod *schedulingv1.Pod) (bool, error) {
	name := pod.GetSpec().GetNodeName()
	if name == "" || g.nodes.HasNode(name) {
		return false, nil
	}
	there, err := g.nodes.Exists(ctx, name)
	if err != nil {
		return false, fmt.Errorf("node %q: %w", name, err)
	}
	return !there, nil
}

// checkOwners removes an object whose owners are all gone, and forgets those of several that are. What others own,
// nobody here can tell.
func (g *Garbage) checkOwners(ctx context.Context, k kinds.Kind, obj object.Object) (time.Time, error) {
	var owners []ownership.Owner
	for _, o := range obj.GetMetadata().GetOwnerReferences() {
		there, err := g.ownerIsThere(ctx, obj.GetMetadata().GetNamespace(), o)
		if err != nil {
			return time.Time{}, err
		}
		owners = append(owners, ownership.Owner{UID: o.GetUid(), Gone: !there})
	}
	d := ownership.Collect(owners)
	switch {
	case len(d.Disown) > 0:
		return time.Time{}, rpcerr.IgnoreChanged(k.Edit(ctx, object.KeyOf(obj), func(o object.Object) error {
			return disown(o, obj, d.Disown)
		}))
	case d.Remove:
		// An owner that left it alone took its reference off before it went: then the object is not as it was seen, and
		// stays.
		m := obj.GetMetadata()
		err := k.Remove(ctx, object.KeyOf(obj), &metav1.Preconditions{
			Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
		})
		switch rpcerr.Reason(err) {
		case metav1.ErrorReason_ERROR_REASON_CONFLICT:
			return time.Now(), nil
		case metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
			return time.Time{}, nil
		}
		if err == nil {
			g.logRemoved(ctx, k, obj, "its owner is gone")
		}
		return time.Time{}, err
	}
	return time.Time{}, nil
}

func (g *Garbage) ownerIsThere(ctx context.Context, namespace string, o *metav1.OwnerReference) (bool, error) {
	k := g.owners[o.GetApiVersion()+"/"+o.GetKind()]
	if k == nil {
		return true, nil
	}
	key := object.Key{Name: o.GetName()}
	if k.Type().GetNamespaced() {
		key.Namespace = namespace
	}
	if owner, ok := k.Find(key); ok && owner.GetMetadata().GetUid() == o.GetUid() {
		return true, nil
	}
	owner, err := k.Read(ctx, key) // the copies of two kinds are not in step with one another
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("owner %q: %w", o.GetName(), err)
	}
	return owner.GetMetadata().GetUid() == o.GetUid(), nil
}

// orphan lets stay what belongs to an object that was deleted with that wish, and then the object itself go.
func (g *Garbage) orphan(ctx context.Context, k kinds.Kind, owner object.Object) error {
	uid := owner.GetMetadata().GetUid()
	g.mu.Lock()
	mine := keysOf(g.dependents[uid])
	g.mu.Unlock()
	var errs []error
	for _, id := range mine {
		plural, name, _ := strings.Cut(id, "|")
		child, key := g.byName[plural], object.ParseKey(name)
		obj, ok := child.Find(key)
		if !ok {
			continue
		}
		errs = append(errs,
			rpcerr.IgnoreChanged(child.Edit(ctx, key, func(o object.Object) error { return disown(o, obj, []string{uid}) })))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return rpcerr.IgnoreChanged(k.Edit(ctx, object.KeyOf(owner), func(o object.Object) error {
		ownership.LetGo(o.GetMetadata())
		return nil
	}))
}

// disown takes references to owners off an object, if it is the one that was seen.
func disown(obj, seen object.Object, uids []string) error {
	m := obj.GetMetadata()
	if m.GetUid() != seen.GetMetadata().GetUid() {
		return rpcerr.Conflict("object", m.GetName(), "another one has its name")
	}
	ownership.Disown(m, uids)
	return nil
}

// emptyNamespace removes what is in a namespace that is on its way out, and then lets the namespace go.
func (g *Garbage) emptyNamespace(ctx context.Context, ns *schedulingv1.Namespace) (time.Time, error) {
	m := ns.GetMetadata()
	if !object.Deleting(ns) || !slices.Contains(m.GetFinalizers(), kinds.NamespaceFinalizer) {
		return time.Time{}, nil
	}
	// Any write fills in the phase.
	if err := rpcerr.IgnoreChanged(g.byName["namespaces"].Edit(ctx, object.KeyOf(ns), func(object.Object) error {
		return nil
	})); err != nil {
		return time.Time{}, err
	}
	left := 0
	var errs []error
	for _, k := range g.tables.Namespaced() {
		for obj := range k.InNamespace(m.GetName()) {
			left++
			if !object.Deleting(obj) {
				errs = append(errs, g.remove(ctx, k, obj, "its namespace is being deleted"))
			}
		}
	}
	if err := errors.Join(errs...); err != nil || left > 0 {
		return time.Now().Add(lookAgain), err
	}
	return time.Time{},
		rpcerr.IgnoreChanged(g.byName["namespaces"].Edit(ctx, object.KeyOf(ns), func(o object.Object) error {
			m := o.GetMetadata()
			m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == kinds.NamespaceFinalizer })
			return nil
		}))
}

// removeEnded removes the oldest of the pods that have run to their end, as many as are too many.
func (g *Garbage) removeEnded(ctx context.Context) error {
	g.mu.Lock()
	ids := keysOf(g.ended)
	g.mu.Unlock()
	pods := g.byName[g.tables.Pods.Type().GetPlural()]
	var ended []object.Object
	for _, id := range ids {
		_, name, _ := strings.Cut(id, "|")
		if obj, ok := pods.Find(object.ParseKey(name)); ok {
			ended = append(ended, obj)
		}
	}
	slices.SortFunc(ended, func(a, b object.Object) int {
		return cmp.Or(a.GetMetadata().GetCreationTimestamp().AsTime().Compare(
			b.GetMetadata().GetCreationTimestamp().AsTime()),
			cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()))
	})
	var errs []error
	for _, obj := range ended[:max(0, len(ended)-keepEnded)] {
		errs = append(errs, g.remove(ctx, pods, obj, "too many pods have run to their end"))
	}
	return errors.Join(errs...)
}

func (g *Garbage) remove(ctx context.Context, k kinds.Kind, obj object.Object, why string,
	opts ...resource.WriteOptions,
) error {
	err := k.Remove(ctx, object.KeyOf(obj), &metav1.Preconditions{Uid: obj.GetMetadata().GetUid()}, opts...)
	if err == nil {
		g.logRemoved(ctx, k, obj, why)
	}
	return rpcerr.IgnoreChanged(err)
}

func (g *Garbage) logRemoved(ctx context.Context, k kinds.Kind, obj object.Object, why string) {
	m := obj.GetMetadata()
	g.log.InfoContext(ctx, "object removed", "kind", k.Type().GetKind(), "namespace", m.GetNamespace(), "name",
		m.GetName(), "reason", why)
}

func put(index map[string]map[string]struct{}, at, id string) {
	if index[at] == nil {
		index[at] = map[string]struct{}{}
	}
	index[at][id] = struct{}{}
}

func drop(index map[string]map[string]struct{}, at, id string) {
	delete(index[at], id)
	if len(index[at]) == 0 {
		delete(index, at)
	}
}

func keysOf(set map[string]struct{}) []string {
	out := make([]string, 0, len(set))
	for id := range set {
		out = append(out, id)
	}
	return out
}
