package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership/collector"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	placementplan "github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// endedKey is the one key of the loop for pods that have ended: which are too many depends on all of them.
const endedKey = "ended"

// LiveNodes are the nodes as an informer shows them, and as their owner does.
type LiveNodes interface {
	controller.Source[*nodev1.Node]
	HasNode(name string) bool
	// Exists asks the owner of nodes.
	Exists(ctx context.Context, name string) (bool, error)
}

// Garbage deletes what no user has to delete: objects whose owners are gone, the contents of namespaces that are
// deleted, pods whose node is gone, and the oldest of the pods that have ended. It also creates the built-in
// namespaces, and the service account "default" of each namespace.
type Garbage struct {
	tables *kinds.Tables
	nodes  LiveNodes
	events events.Sink
	log    *slog.Logger
	loops  *controller.Loops
}

// NewGarbage returns a collector that does nothing before Lead.
func NewGarbage(tables *kinds.Tables, nodes LiveNodes, sink events.Sink, log *slog.Logger) *Garbage {
	g := &Garbage{tables: tables, nodes: nodes, events: sink, log: log, loops: controller.New(log)}
	var owned []collector.Kind
	for _, t := range tables.All() {
		owned = append(owned, collector.Kind{Untyped: t})
	}
	collector.Add(g.loops, log, owned...)

	namespaces := g.loops.Loop("namespaces", workers, g.reconcileNamespace)
	controller.For(namespaces, tables.Namespaces)
	for _, t := range tables.Namespaced() {
		controller.Watches(namespaces, t, g.namespaceOf)
	}

	accounts := g.loops.Loop("serviceaccounts", workers, g.reconcileAccount)
	controller.Watches(accounts, tables.Namespaces, func(ch resource.Change[*schedulingv1.Namespace]) []string {
		return []string{ch.Key.Name}
	})
	controller.Watches(accounts, tables.ServiceAccounts, func(ch resource.Change[*schedulingv1.ServiceAccount]) []string {
		if !ch.Deleted || ch.Key.Name != placementplan.DefaultAccount {
			return nil
		}
		return []string{ch.Key.Namespace}
	})

	// One loop for both: between the beginnings of two, a deletion would reach neither.
	stranded := g.loops.Loop("strandedpods", workers, g.reconcileStranded)
	controller.Watches(stranded, tables.Pods, g.strandedBy)
	controller.Watches(stranded, nodes, g.podsLeftBy)

	controller.Watches(g.loops.Loop("endedpods", 1, g.reconcileEnded), tables.Pods, endedBy)
	return g
}

// Lead works until ctx ends.
func (g *Garbage) Lead(ctx context.Context) error {
	if g.tables.Namespaces.WaitSynced(ctx) != nil {
		return nil // ctx ended
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
	return g.loops.Lead(ctx)
}

// namespaceOf returns the namespace of an object that changed, if that is being deleted or, as far as is known, gone.
func (g *Garbage) namespaceOf(ch resource.Change[object.Object]) []string {
	ns, found := g.tables.Namespaces.Lookup("", ch.Key.Namespace)
	if found && object.Deleting(ns) || !found && !ch.Deleted && !kinds.BuiltIn(ch.Key.Namespace) {
		return []string{ch.Key.Namespace}
	}
	return nil
}

// reconcileNamespace empties a namespace that is being deleted or gone.
func (g *Garbage) reconcileNamespace(ctx context.Context, name string) (time.Time, error) {
	v := plan.NamespaceView{Now: time.Now()}
	var found bool
	if v.Namespace, found = g.tables.Namespaces.Lookup("", name); !found {
		var err error // the cache of namespaces may lag behind that of their contents, so etcd decides
		v.Namespace, err = g.tables.Namespaces.Get(ctx, "", name)
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return time.Time{}, err
		}
	}
	p, tables := g.planNamespace(&v, name)
	if p.Release { // what its caches do not show yet would be left over, and belong to the next namespace of the name
		for _, t := range g.tables.Namespaced() {
			if err := t.CatchUp(ctx); err != nil {
				return time.Time{}, fmt.Errorf("contents of namespace %q: %w", name, err)
			}
		}
		p, tables = g.planNamespace(&v, name)
	}
	if p.Terminate { // any write fills in the phase
		if err := g.changeNamespace(ctx, v.Namespace, func(*metav1.ObjectMeta) {}); err != nil {
			return time.Time{}, err
		}
	}
	var errs []error
	for _, obj := range p.Delete {
		errs = append(errs, g.remove(ctx, tables[obj], obj, p.Reason))
	}
	if err := errors.Join(errs...); err != nil || !p.Release {
		return p.Wake, err
	}
	return p.Wake, g.changeNamespace(ctx, v.Namespace, func(m *metav1.ObjectMeta) {
		m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == plan.NamespaceFinalizer })
	})
}

// reconcileAccount creates the service account "default" of a namespace that has none.
func (g *Garbage) reconcileAccount(ctx context.Context, namespace string) (time.Time, error) {
	ns, ok := g.tables.Namespaces.Lookup("", namespace)
	if !ok || object.Deleting(ns) {
		return time.Time{}, nil
	}
	_, err := g.tables.DefaultAccount(ctx, namespace)
	if status.Code(err) == codes.PermissionDenied {
		return time.Time{}, nil // the namespace is being deleted by now
	}
	return time.Time{}, err
}

// planNamespace decides on a namespace and what the caches show of its contents, which it adds to v. It also returns
// the table of each.
func (g *Garbage) planNamespace(v *plan.NamespaceView, name string) (plan.NamespacePlan,
	map[object.Object]resource.Untyped,
) {
	tables := map[object.Object]resource.Untyped{}
	v.Contents = nil
	if v.Namespace == nil || object.Deleting(v.Namespace) {
		for _, t := range g.tables.Namespaced() {
			for obj := range t.In(name) {
				v.Contents, tables[obj] = append(v.Contents, obj), t
			}
		}
	}
	return plan.Namespace(*v), tables
}

// changeNamespace changes the metadata of a namespace that is being deleted.
func (g *Garbage) changeNamespace(ctx context.Context, ns *schedulingv1.Namespace, f func(*metav1.ObjectMeta)) error {
	_, err := g.tables.Namespaces.Modify(ctx, object.KeyOf(ns), func(now *schedulingv1.Namespace) error {
		if object.Deleting(now) {
			f(now.GetMetadata())
		}
		return nil
	})
	return rpcerr.IgnoreChanged(err)
}

// strandedBy returns the key of a pod that changed, if its node is gone as far as is known.
func (g *Garbage) strandedBy(ch resource.Change[*schedulingv1.Pod]) []string {
	if node := ch.Object.GetSpec().GetNodeName(); ch.Deleted || node == "" || g.nodes.HasNode(node) {
		return nil
	}
	return []string{ch.Key.String()}
}

// podsLeftBy returns the keys of the pods of a node that is gone.
func (g *Garbage) podsLeftBy(ch resource.Change[*nodev1.Node]) []string {
	if !ch.Deleted {
		return nil
	}
	var keys []string
	for _, pod := range g.tables.Pods.ByIndex(kinds.ByNode, ch.Key.Name) {
		keys = append(keys, object.KeyOf(pod).String())
	}
	return keys
}

// reconcileStranded removes a pod whose node does not exist. The copy of the nodes may lag behind, so their owner
// decides.
func (g *Garbage) reconcileStranded(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	pod, ok := g.tables.Pods.Lookup(k.Namespace, k.Name)
	node := pod.GetSpec().GetNodeName()
	if !ok || node == "" || g.nodes.HasNode(node) {
		return time.Time{}, nil
	}
	exists, err := g.nodes.Exists(ctx, node)
	if err != nil {
		return time.Time{}, fmt.Errorf("node %q: %w", node, err)
	}
	if exists { // decided again until the copy has it: it may go again without a change that the copy shows
		return time.Time{}, fmt.Errorf("%w: node %q is not in the copy of nodes yet", store.ErrConflict, node)
	}
	p := plan.Stranded(pod, time.Now())
	g.events.Event(pod, p.Tell.Type, p.Tell.Reason, p.Tell.Message)
	if !p.Delete {
		return p.Wake, nil
	}
	return time.Time{}, g.remove(ctx, g.tables.Pods.Untyped(), pod, "its node is gone",
		resource.WriteOptions{Grace: proto.Int32(0)})
}

// endedBy returns endedKey if a change ended a pod.
func endedBy(ch resource.Change[*schedulingv1.Pod]) []string {
	if ch.Deleted || !placement.Terminated(ch.Object) || ch.Existed && placement.Terminated(ch.Previous) {
		return nil
	}
	return []string{endedKey}
}

// reconcileEnded removes the pods that have ended and are too many.
func (g *Garbage) reconcileEnded(ctx context.Context, _ string) (time.Time, error) {
	p := plan.Ended(plan.EndedView{
		Now: time.Now(), Pods: g.tables.Pods.ByIndex(kinds.Ended, "true"), JobOf: g.jobOf,
	})
	var errs []error
	for _, pod := range p.Delete {
		errs = append(errs, g.remove(ctx, g.tables.Pods.Untyped(), pod, "too many pods have ended"))
	}
	return p.Wake, errors.Join(errs...)
}

// jobOf returns the job that manages a pod; nil if none does or it is gone.
func (g *Garbage) jobOf(pod *schedulingv1.Pod) *schedulingv1.Job {
	owner := object.ControllerOf(pod)
	if owner.GetKind() != "Job" {
		return nil
	}
	job, ok := g.tables.Jobs.Lookup(pod.GetMetadata().GetNamespace(), owner.GetName())
	if !ok || job.GetMetadata().GetUid() != owner.GetUid() {
		return nil
	}
	return job
}

// remove deletes an object, if it is still the one that was seen.
func (g *Garbage) remove(ctx context.Context, t resource.Untyped, obj object.Object, why string,
	opts ...resource.WriteOptions,
) error {
	m := obj.GetMetadata()
	err := t.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{Uid: m.GetUid()}, opts...)
	if err == nil {
		g.log.InfoContext(ctx, "object removed", "kind", t.Type().GetKind(), "namespace", m.GetNamespace(),
			"name", m.GetName(), "reason", why)
	}
	return rpcerr.IgnoreChanged(err)
}
