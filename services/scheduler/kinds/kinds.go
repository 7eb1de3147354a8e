// Package kinds holds the tables of scheduler's kinds and their rules beyond those of the messages: defaults,
// validation, admission, and how long a pod that is being deleted remains.
package kinds

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/scheduler/admission/files"
	placementplan "github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	volume "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
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
	Revisions              *resource.Table[*schedulingv1.ControllerRevision]
	Jobs                   *resource.Table[*schedulingv1.Job]
	CronJobs               *resource.Table[*schedulingv1.CronJob]
	Services               *resource.Table[*schedulingv1.Service]
	Budgets                *resource.Table[*schedulingv1.PodDisruptionBudget]
	PriorityClasses        *resource.Table[*schedulingv1.PriorityClass]
	Volumes                *resource.Table[*schedulingv1.PersistentVolume]
	Claims                 *resource.Table[*schedulingv1.PersistentVolumeClaim]
	StorageClasses         *resource.Table[*schedulingv1.StorageClass]
	ConfigMaps             *resource.Table[*schedulingv1.ConfigMap]
	Secrets                *resource.Table[*schedulingv1.Secret]
	ServiceAccounts        *resource.Table[*schedulingv1.ServiceAccount]
	Policies               *resource.Table[*schedulingv1.Policy]
	AdmissionConfigs       *resource.Table[*schedulingv1.AdmissionConfig]
	MasterConfigs          *resource.Table[*schedulingv1.KubernetesMasterConfig]
	MutatingWebhooks       *resource.Table[*admissionregistrationv1.MutatingWebhookConfiguration]
	ValidatingWebhooks     *resource.Table[*admissionregistrationv1.ValidatingWebhookConfiguration]
	ClusterRoles           *resource.Table[*rbacv1.ClusterRole]
	Roles                  *resource.Table[*rbacv1.Role]
	ClusterRoleBindings    *resource.Table[*rbacv1.ClusterRoleBinding]
	RoleBindings           *resource.Table[*rbacv1.RoleBinding]

	cfg      Config
	all      []resource.Untyped
	reviewed []*metav1.ResourceType // the kinds whose writes webhooks may be called for
}

// NodeLookup is what the rules of pods need to know of nodes.
type NodeLookup interface {
	// HasNode reports whether a node exists; true as long as that is not known.
	HasNode(name string) bool
}

// Config is what the tables are made from; nothing in it may be nil but MayUseClass, Creating, Webhooks, and Now,
// which then is time.Now.
type Config struct {
	Store     *store.Store
	Validator protovalidate.Validator
	Nodes     NodeLookup
	// MayBind reports whether a caller may say on which node a pod of a namespace runs.
	MayBind func(by identity.Caller, namespace, pod string) bool
	// MayUseClass reports whether a caller may create pods of a priority class of the system in a namespace; nil means
	// that only this service may.
	MayUseClass func(by identity.Caller, namespace, class string) bool
	// Policy says which rights the writer of a role or a binding has.
	Policy *identity.Policy
	// Creating completes pods that are about to be stored; see resource.Config. It may be nil.
	Creating func(pods []*schedulingv1.Pod) *resource.Creation[*schedulingv1.Pod]
	// ServiceRange is where services get their addresses; the zero prefix means that of the first cluster of a host.
	ServiceRange netip.Prefix
	// MaxDisks is how many disks of a kind a node can have attached; 0 if the operator does not say.
	MaxDisks int
	// Webhooks calls custom admission controllers; if it is nil, none can be configured.
	Webhooks Webhooks
	// AdmissionFiles has the files that admission plugins are configured by.
	AdmissionFiles files.Directory
	// WebhooksAllowed are the addresses that they and extenders may have, as webhook.Allowed describes them.
	WebhooksAllowed []string
	Now             func() time.Time
	Log             *slog.Logger
}

// New returns the tables over a store. Nothing is read before they run. Owners come before their dependents, which is
// the order in which a namespace is emptied.
func New(cfg Config) *Tables {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if !cfg.ServiceRange.IsValid() {
		cfg.ServiceRange = loopback.ServiceRange(1)
	}
	t := &Tables{cfg: cfg}
	t.Namespaces = reviewed(t, resource.Config[*schedulingv1.Namespace]{
		Default: defaultNamespace, Admit: admitNamespace, Finalizers: []string{plan.NamespaceFinalizer},
	})
	t.Deployments = reviewed(t, resource.Config[*schedulingv1.Deployment]{
		Default: defaultDeployment, Validate: validateDeployment, ValidateUpdate: validateDeploymentUpdate,
		Admit: templates(t, func(o *schedulingv1.Deployment) *schedulingv1.PodTemplateSpec {
			return o.GetSpec().GetTemplate()
		}),
	})
	t.DaemonSets = reviewed(t, resource.Config[*schedulingv1.DaemonSet]{
		Default: defaultDaemonSet, Validate: validateDaemonSet, ValidateUpdate: validateDaemonSetUpdate,
		Admit: t.admitDaemonSet,
	})
	t.StatefulSets = reviewed(t, resource.Config[*schedulingv1.StatefulSet]{
		Default: defaultStatefulSet, Validate: validateStatefulSet, ValidateUpdate: validateStatefulSetUpdate,
		Admit: templates(t, func(o *schedulingv1.StatefulSet) *schedulingv1.PodTemplateSpec {
			return o.GetSpec().GetTemplate()
		}),
	})
	t.Revisions = table(t, resource.Config[*schedulingv1.ControllerRevision]{
		Indexes: map[string]func(*schedulingv1.ControllerRevision) []string{
			unmanaged: unmanagedIn[*schedulingv1.ControllerRevision],
		},
	})
	t.CronJobs = reviewed(t, resource.Config[*schedulingv1.CronJob]{
		Default: defaultCronJob, Validate: validateCronJob, Admit: admitCronJob(t),
	})
	t.Jobs = reviewed(t, resource.Config[*schedulingv1.Job]{
		Default: defaultJob, Validate: validateJob, ValidateUpdate: validateJobUpdate,
		Admit: templates(t, func(o *schedulingv1.Job) *schedulingv1.PodTemplateSpec { return o.GetSpec().GetTemplate() }),
	})
	t.ReplicationControllers = reviewed(t, resource.Config[*schedulingv1.ReplicationController]{
		Default: defaultReplicationController, Validate: validateReplicationController,
		Admit: templates(t, func(o *schedulingv1.ReplicationController) *schedulingv1.PodTemplateSpec {
			return o.GetSpec().GetTemplate()
		}),
	})
	t.ReplicaSets = reviewed(t, resource.Config[*schedulingv1.ReplicaSet]{
		Default: defaultReplicaSet, Validate: validateReplicaSet, ValidateUpdate: validateReplicaSetUpdate,
		Indexes: map[string]func(*schedulingv1.ReplicaSet) []string{unmanaged: unmanagedIn[*schedulingv1.ReplicaSet]},
		Admit: templates(t, func(o *schedulingv1.ReplicaSet) *schedulingv1.PodTemplateSpec {
			return o.GetSpec().GetTemplate()
		}),
	})
	t.Pods = reviewed(t, resource.Config[*schedulingv1.Pod]{
		Default: defaultPod, ValidateUpdate: placementplan.CheckPodUpdate, Admit: t.admitPod, Grace: t.podGrace,
		Creating: cfg.Creating,
		Indexes: map[string]func(*schedulingv1.Pod) []string{
			ByNode:    func(p *schedulingv1.Pod) []string { return []string{p.GetSpec().GetNodeName()} },
			Ended:     ended,
			ClaimsOf:  claimsOf,
			unmanaged: unmanagedIn[*schedulingv1.Pod],
		},
	})
	t.Services = reviewed(t, t.services())
	t.Budgets = reviewed(t, resource.Config[*schedulingv1.PodDisruptionBudget]{Validate: validateBudget})
	t.PriorityClasses = reviewed(t, resource.Config[*schedulingv1.PriorityClass]{
		Default: defaultPriorityClass, ValidateUpdate: validatePriorityClassUpdate, Admit: t.admitPriorityClass,
	})
	t.Volumes = reviewed(t, resource.Config[*schedulingv1.PersistentVolume]{
		Default: defaultVolume, Validate: validateVolume, ValidateUpdate: validateVolumeUpdate,
		Finalizers: []string{volume.VolumeProtection}, Indexes: volumeIndexes(),
	})
	t.Claims = reviewed(t, resource.Config[*schedulingv1.PersistentVolumeClaim]{
		Default: defaultClaim, Validate: validateClaim, ValidateUpdate: validateClaimUpdate, Admit: t.admitClaim,
		Finalizers: []string{volume.ClaimProtection}, Indexes: claimIndexes(),
	})
	t.StorageClasses = table(t, resource.Config[*schedulingv1.StorageClass]{
		Default: defaultStorageClass, Validate: validateStorageClass, ValidateUpdate: validateStorageClassUpdate,
	})
	t.ConfigMaps = reviewed(t, resource.Config[*schedulingv1.ConfigMap]{
		Validate: validateConfigMap, ValidateUpdate: validateConfigMapUpdate,
	})
	// No webhook is called for secrets: their values go to no other program.
	t.Secrets = table(t, resource.Config[*schedulingv1.Secret]{
		Default: defaultSecret, Validate: validateSecret, ValidateUpdate: validateSecretUpdate, Admit: t.admitSecret,
		Sealed: true,
	})
	t.ServiceAccounts = reviewed(t, resource.Config[*schedulingv1.ServiceAccount]{Validate: validateServiceAccount})
	t.Policies = table(t, resource.Config[*schedulingv1.Policy]{
		Default: t.defaultPolicy, Validate: validatePolicy,
		Admit: t.admitPolicy,
	})
	t.AdmissionConfigs = table(t, resource.Config[*schedulingv1.AdmissionConfig]{
		Default:  t.defaultAdmissionConfig,
		Validate: t.validateAdmissionConfig,
	})
	t.MasterConfigs = table(t, resource.Config[*schedulingv1.KubernetesMasterConfig]{
		Default:  t.defaultMasterConfig,
		Validate: t.validateMasterConfig,
	})
	t.MutatingWebhooks = table(t, webhookRules[*admissionregistrationv1.MutatingWebhookConfiguration](t))
	t.ValidatingWebhooks = table(t, webhookRules[*admissionregistrationv1.ValidatingWebhookConfiguration](t))
	t.ClusterRoles = table(t, resource.Config[*rbacv1.ClusterRole]{
		Validate: validateRole[*rbacv1.ClusterRole], Admit: admitRole[*rbacv1.ClusterRole](cfg.Policy),
	})
	t.Roles = table(t, resource.Config[*rbacv1.Role]{
		Validate: validateRole[*rbacv1.Role], Admit: admitRole[*rbacv1.Role](cfg.Policy),
	})
	t.ClusterRoleBindings = table(t, resource.Config[*rbacv1.ClusterRoleBinding]{
		Default: defaultBinding[*rbacv1.ClusterRoleBinding], Validate: validateClusterRoleBinding,
		ValidateUpdate: validateBindingUpdate[*rbacv1.ClusterRoleBinding],
		Admit:          admitBinding[*rbacv1.ClusterRoleBinding](cfg.Policy),
	})
	t.RoleBindings = table(t, resource.Config[*rbacv1.RoleBinding]{
		Default: defaultBinding[*rbacv1.RoleBinding], Validate: validateBinding[*rbacv1.RoleBinding],
		ValidateUpdate: validateBindingUpdate[*rbacv1.RoleBinding],
		Admit:          admitBinding[*rbacv1.RoleBinding](cfg.Policy),
	})
	return t
}

// Indexes of the tables.
const (
	ByNode    = "spec.nodeName" // of pods
	Ended     = "ended"         // of the pods that have ended alone, by "true"
	unmanaged = "unmanaged"     // of pods, replica sets and revisions without a controller, by namespace
)

func ended(p *schedulingv1.Pod) []string {
	if !placement.Terminated(p) {
		return nil
	}
	return []string{"true"}
}

func unmanagedIn[T object.Object](o T) []string {
	if object.ControllerOf(o) != nil {
		return nil
	}
	return []string{o.GetMetadata().GetNamespace()}
}

// ManagedBy returns the pods, replica sets or revisions of a namespace that the controller with a uid manages, ordered
// by name.
func ManagedBy[T object.Object](t *resource.Table[T], namespace, uid string) []T {
	return slices.DeleteFunc(t.ByIndex(resource.ByOwner, uid), func(o T) bool {
		return object.ControllerOf(o).GetUid() != uid || o.GetMetadata().GetNamespace() != namespace
	})
}

// Unmanaged returns the pods, replica sets or revisions of a namespace that have no controller, ordered by name.
func Unmanaged[T object.Object](t *resource.Table[T], namespace string) []T {
	return t.ByIndex(unmanaged, namespace)
}

// table returns the table of a kind with the rules that all kinds share, and makes it one of All.
func table[T object.Object](t *Tables, cfg resource.Config[T]) *resource.Table[T] {
	cfg.Now, cfg.Log = t.cfg.Now, t.cfg.Log
	cfg.HasNamespace, cfg.Owns = t.hasNamespace, true
	admit := cfg.Admit
	cfg.Admit = func(w *resource.Write[T]) error {
		if w.Creates() {
			if err := t.admitInto(w.New.GetMetadata().GetNamespace()); err != nil {
				return err
			}
		}
		if admit == nil {
			return nil
		}
		return admit(w)
	}
	out := resource.NewTable(t.cfg.Store, t.cfg.Validator, cfg)
	t.all = append(t.all, out.Untyped())
	return out
}

// MaxDisks returns how many disks of a kind the operator lets a node have attached; 0 means as many as are usual.
func (t *Tables) MaxDisks() int { return t.cfg.MaxDisks }

// reviewed returns the table of a kind like table, for whose writes custom admission controllers are called. Kinds that
// configure admission and rights have none: a webhook that refuses everything must not prevent its repair.
func reviewed[T object.Object](t *Tables, cfg resource.Config[T]) *resource.Table[T] {
	cfg.Remote = webhooksOf[T](t)
	out := table(t, cfg)
	t.reviewed = append(t.reviewed, out.Type())
	return out
}

// hasNamespace reports whether something can be in a namespace.
func (t *Tables) hasNamespace(name string) bool {
	_, ok := t.Namespaces.Lookup("", name)
	return ok || BuiltIn(name)
}

// admitInto refuses new objects in a namespace that is being deleted.
func (t *Tables) admitInto(namespace string) error {
	if namespace == "" {
		return nil
	}
	if ns, ok := t.Namespaces.Lookup("", namespace); ok && object.Deleting(ns) {
		return rpcerr.Forbidden(fmt.Sprintf("nothing new can be created in namespace %q: it is being terminated", namespace))
	}
	return nil
}

// All returns all tables, in the order of New.
func (t *Tables) All() []resource.Untyped { return slices.Clone(t.all) }

// Namespaced returns the tables of the kinds that have namespaces, in the order of New.
func (t *Tables) Namespaced() []resource.Untyped {
	return slices.DeleteFunc(t.All(), func(k resource.Untyped) bool { return !k.Type().GetNamespaced() })
}
