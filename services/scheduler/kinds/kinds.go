// Package kinds says what pods, their owners, budgets, namespaces and the settings of placement are beyond the shape of their messages: what
// is filled in, which writes are refused, and how long a pod stays that is on its way out.
package kinds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
)

// Tables are the records of this service.
type Tables struct {
	Namespaces             *resource.Table[*schedulingv1.Namespace]
	Pods                   *resource.Table[*schedulingv1.Pod]
	ReplicaSets            *resource.Table[*schedulingv1.ReplicaSet]
	ReplicationControllers *resource.Table[*schedulingv1.ReplicationController]
	Deployments            *resource.Table[*schedulingv1.Deployment]
	DaemonSets             *resource.Table[*schedulingv1.DaemonSet]
	StatefulSets           *resource.Table[*schedulingv1.StatefulSet]
	Jobs                   *resource.Table[*schedulingv1.Job]
	Services               *resource.Table[*schedulingv1.Service]
	Budgets                *resource.Table[*schedulingv1.PodDisruptionBudget]
	Volumes                *resource.Table[*schedulingv1.PersistentVolume]
	Claims                 *resource.Table[*schedulingv1.PersistentVolumeClaim]
	Policies               *resource.Table[*schedulingv1.Policy]
	AdmissionConfigs       *resource.Table[*schedulingv1.AdmissionConfig]
	MasterConfigs          *resource.Table[*schedulingv1.KubernetesMasterConfig]

	cfg Config
}

// NodeLookup is what the rules of pods need to know of nodes.
type NodeLookup interface {
	// HasNode reports whether a node exists; true as long as that is not known.
	HasNode(name string) bool
}

// Config is what the tables are made from; nothing in it may be nil but Now, which then is time.Now.
type Config struct {
	Store     *store.Store
	Validator protovalidate.Validator
	Nodes     NodeLookup
	// MayBind reports whether the caller of ctx may say on which node a pod of a namespace runs.
	MayBind func(ctx context.Context, namespace, pod string) bool
	Now     func() time.Time
	Log     *slog.Logger
}

// New returns the tables over a store. Nothing is read before they run.
func New(cfg Config) *Tables {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	t := &Tables{cfg: cfg}
	t.Namespaces = table(t, resource.Config[*schedulingv1.Namespace]{
		Default: defaultNamespace, Admit: admitNamespace, Finalizers: []string{NamespaceFinalizer},
	})
	t.Pods = table(t, resource.Config[*schedulingv1.Pod]{
		Default: defaultPod, ValidateUpdate: validatePodUpdate, Admit: t.admitPod, Grace: t.podGrace,
		Indexes: map[string]func(*schedulingv1.Pod) []string{
			"spec.nodeName": func(p *schedulingv1.Pod) []string { return []string{p.GetSpec().GetNodeName()} },
		},
	})
	t.ReplicaSets = table(t, resource.Config[*schedulingv1.ReplicaSet]{
		Default: defaultReplicaSet, Validate: validateReplicaSet, ValidateUpdate: validateReplicaSetUpdate,
		Admit: templates(t, func(o *schedulingv1.ReplicaSet) *schedulingv1.PodTemplateSpec { return o.GetSpec().GetTemplate() }),
	})
	t.ReplicationControllers = table(t, resource.Config[*schedulingv1.ReplicationController]{
		Default: defaultReplicationController, Validate: validateReplicationController,
		Admit: templates(t, func(o *schedulingv1.ReplicationController) *schedulingv1.PodTemplateSpec {
			return o.GetSpec().GetTemplate()
		}),
	})
	t.Deployments = table(t, resource.Config[*schedulingv1.Deployment]{
		Default: defaultDeployment, Validate: validateDeployment, ValidateUpdate: validateDeploymentUpdate,
		Admit: templates(t, func(o *schedulingv1.Deployment) *schedulingv1.PodTemplateSpec { return o.GetSpec().GetTemplate() }),
	})
	t.DaemonSets = table(t, resource.Config[*schedulingv1.DaemonSet]{
		Default: defaultDaemonSet, Validate: validateDaemonSet, ValidateUpdate: validateDaemonSetUpdate, Admit: admitDaemonSet,
	})
	t.StatefulSets = table(t, resource.Config[*schedulingv1.StatefulSet]{
		Default: defaultStatefulSet, Validate: validateStatefulSet, ValidateUpdate: validateStatefulSetUpdate,
		Admit: templates(t, func(o *schedulingv1.StatefulSet) *schedulingv1.PodTemplateSpec { return o.GetSpec().GetTemplate() }),
	})
	t.Jobs = table(t, resource.Config[*schedulingv1.Job]{
		Default: defaultJob, Validate: validateJob, ValidateUpdate: validateJobUpdate,
		Admit: templates(t, func(o *schedulingv1.Job) *schedulingv1.PodTemplateSpec { return o.GetSpec().GetTemplate() }),
	})
	t.Services = table(t, resource.Config[*schedulingv1.Service]{Default: defaultService, Validate: validateService})
	t.Budgets = table(t, resource.Config[*schedulingv1.PodDisruptionBudget]{Validate: validateBudget})
	t.Volumes = table(t, resource.Config[*schedulingv1.PersistentVolume]{Default: defaultVolume, Validate: validateVolume})
	t.Claims = table(t, resource.Config[*schedulingv1.PersistentVolumeClaim]{
		Default: defaultClaim, Validate: validateClaim, ValidateUpdate: validateClaimUpdate,
	})
	t.Policies = table(t, resource.Config[*schedulingv1.Policy]{Default: t.defaultPolicy, Validate: validatePolicy, Admit: admitPolicy})
	t.AdmissionConfigs = table(t, resource.Config[*schedulingv1.AdmissionConfig]{Default: t.defaultAdmissionConfig, Validate: validateAdmissionConfig})
	t.MasterConfigs = table(t, resource.Config[*schedulingv1.KubernetesMasterConfig]{Default: t.defaultMasterConfig, Validate: validateMasterConfig})
	return t
}

// table returns the table of a kind with the rules that all kinds share.
func table[T resource.Object](t *Tables, cfg resource.Config[T]) *resource.Table[T] {
	cfg.Now, cfg.Log = t.cfg.Now, t.cfg.Log
	own := cfg.Admit
	var out *resource.Table[T]
	cfg.HasNamespace = t.hasNamespace
	cfg.Admit = func(ctx context.Context, old, obj T) error {
		switch {
		case !old.ProtoReflect().IsValid():
			if err := t.admitInto(obj.GetMetadata().GetNamespace()); err != nil {
				return err
			}
		case !obj.ProtoReflect().IsValid():
			if err := keepDependents(ctx, out, old); err != nil {
				return err
			}
		}
		if own == nil {
			return nil
		}
		return own(ctx, old, obj)
	}
	out = resource.NewTable(t.cfg.Store, t.cfg.Validator, cfg)
	return out
}

// hasNamespace reports whether something can be in a namespace.
func (t *Tables) hasNamespace(name string) bool {
	_, ok := t.Namespaces.Lookup("", name)
	return ok || BuiltIn(name)
}

// admitInto refuses new objects in a namespace that is on its way out.
func (t *Tables) admitInto(namespace string) error {
	if namespace == "" {
		return nil
	}
	if ns, ok := t.Namespaces.Lookup("", namespace); ok && resource.Deleting(ns) {
		return rpcerr.Forbidden(fmt.Sprintf("nothing new can be created in namespace %q: it is being terminated", namespace))
	}
	return nil
}

// OrphanFinalizer holds an object until what belongs to it has been told that it no longer does.
const OrphanFinalizer = "orphan"

// keepDependents notes on an object that is about to be deleted whether what belongs to it shall stay. The deletion goes on with what it wrote: old
// becomes that.
func keepDependents[T resource.Object](ctx context.Context, t *resource.Table[T], old T) error {
	orphan := resource.Propagation(ctx) == "Orphan"
	if resource.Deleting(old) || ctx.Value(dryRunKey{}) != nil || orphan == slices.Contains(old.GetMetadata().GetFinalizers(), OrphanFinalizer) {
		return nil
	}
	next, err := t.Modify(Own(ctx), resource.KeyOf(old), func(obj T) error {
		m := obj.GetMetadata()
		if m.GetResourceVersion() != old.GetMetadata().GetResourceVersion() {
			return store.ErrConflict // the deletion begins anew, if what it asks for still holds
		}
		m.Finalizers = slices.DeleteFunc(m.GetFinalizers(), func(f string) bool { return f == OrphanFinalizer })
		if orphan {
			m.Finalizers = append(m.Finalizers, OrphanFinalizer)
		}
		return nil
	})
	if err != nil {
		return err
	}
	proto.Reset(old)
	proto.Merge(old, next)
	return nil
}

type dryRunKey struct{}

// WithDryRun marks the context of a deletion that shall store nothing.
func WithDryRun(ctx context.Context) context.Context {
	return context.WithValue(ctx, dryRunKey{}, true)
}

type ownKey struct{}

// Own marks the writes under a context as the service's own: only these may bind a pod, or change its status.
func Own(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

func isOwn(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

// Kind is a table as those see it who treat all kinds alike.
type Kind interface {
	Type() *metav1.ResourceType
	Run(ctx context.Context) error
	WaitSynced(ctx context.Context) error
	Subscribe(f func(resource.Key))
	// Find returns an object as the cache shows it; nobody may modify it.
	Find(k resource.Key) (resource.Object, bool)
	// Objects returns all objects as the cache shows them; nobody may modify them.
	Objects() []resource.Object
	// Read returns an object as it is now.
	Read(ctx context.Context, k resource.Key) (resource.Object, error)
	// Remove asks for the deletion of an object, if it is as pre says.
	Remove(ctx context.Context, k resource.Key, pre *metav1.Preconditions) error
	// Edit changes an object.
	Edit(ctx context.Context, k resource.Key, f func(obj resource.Object) error) error
}

// All returns all tables. Owners come before what belongs to them.
func (t *Tables) All() []Kind {
	return append([]Kind{
		kind[*schedulingv1.Namespace]{t.Namespaces},
		kind[*schedulingv1.PersistentVolume]{t.Volumes},
		kind[*schedulingv1.Policy]{t.Policies},
		kind[*schedulingv1.AdmissionConfig]{t.AdmissionConfigs},
		kind[*schedulingv1.KubernetesMasterConfig]{t.MasterConfigs},
	}, t.Namespaced()...)
}

// Namespaced returns the tables of the kinds that have namespaces. Owners come before what belongs to them.
func (t *Tables) Namespaced() []Kind {
	return []Kind{
		kind[*schedulingv1.Deployment]{t.Deployments},
		kind[*schedulingv1.DaemonSet]{t.DaemonSets},
		kind[*schedulingv1.StatefulSet]{t.StatefulSets},
		kind[*schedulingv1.Job]{t.Jobs},
		kind[*schedulingv1.ReplicationController]{t.ReplicationControllers},
		kind[*schedulingv1.ReplicaSet]{t.ReplicaSets},
		kind[*schedulingv1.Pod]{t.Pods},
		kind[*schedulingv1.Service]{t.Services},
		kind[*schedulingv1.PodDisruptionBudget]{t.Budgets},
		kind[*schedulingv1.PersistentVolumeClaim]{t.Claims},
	}
}

type kind[T resource.Object] struct{ *resource.Table[T] }

func (k kind[T]) Find(key resource.Key) (resource.Object, bool) {
	return k.Lookup(key.Namespace, key.Name)
}

func (k kind[T]) Objects() []resource.Object {
	all := k.Table.All()
	out := make([]resource.Object, len(all))
	for i, o := range all {
		out[i] = o
	}
	return out
}

func (k kind[T]) Read(ctx context.Context, key resource.Key) (resource.Object, error) {
	return k.Get(ctx, key.Namespace, key.Name)
}

func (k kind[T]) Remove(ctx context.Context, key resource.Key, pre *metav1.Preconditions) error {
	_, err := k.Delete(ctx, key.Namespace, key.Name, pre)
	return err
}

func (k kind[T]) Edit(ctx context.Context, key resource.Key, f func(resource.Object) error) error {
	_, err := k.Modify(ctx, key, func(obj T) error { return f(obj) })
	return err
}
