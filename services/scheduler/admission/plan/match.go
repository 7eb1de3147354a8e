// Package plan says which webhooks are called for a write, in which order, and which configurations of webhooks are
// wrong. It does no I/O.
package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Operations of writes.
const (
	Create = "CREATE"
	Update = "UPDATE"
	Delete = "DELETE"
)

const (
	every = "*"
	// nameLabel of a namespace is its name, as in Kubernetes, whether it is stored or not.
	nameLabel      = "kubernetes.io/metadata.name"
	defaultTimeout = 10 * time.Second
)

// Configuration is a MutatingWebhookConfiguration or a ValidatingWebhookConfiguration.
type Configuration interface {
	object.Object
	GetWebhooks() []*admissionregistrationv1.Webhook
}

// Write is what decides whether a webhook is called for a write.
type Write struct {
	Type      *metav1.ResourceType // of the object
	Operation string               // CREATE, UPDATE or DELETE
	Old, New  object.Object        // before and after the write; nil where there is none
	Namespace *metav1.ObjectMeta   // of the object's namespace, or of the object itself if it is one; nil if it has none
}

// Hook is a webhook that is called.
type Hook struct {
	*admissionregistrationv1.Webhook
	Kind          string // of the configuration
	Configuration string // its name
	Version       string // its resourceVersion
}

// Timeout returns how long a call may take.
func (h Hook) Timeout() time.Duration {
	if h.TimeoutSeconds == nil {
		return defaultTimeout
	}
	return time.Duration(h.GetTimeoutSeconds()) * time.Second
}

// Ignores reports whether the write is allowed if the webhook does not answer.
func (h Hook) Ignores() bool { return h.GetFailurePolicy() == "Ignore" }

// Called returns the webhooks of configurations that are called for a write: ordered by the name of the configuration,
// then as they are listed there.
func Called[C Configuration](configurations []C, w Write) (out []Hook) {
	configurations = slices.Clone(configurations)
	slices.SortFunc(configurations, func(a, b C) int {
		return cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	for _, c := range configurations {
		for _, hook := range c.GetWebhooks() {
			if matches(hook, w) {
				out = append(out, Hook{
					Webhook: hook, Kind: object.TypeOf(c.ProtoReflect().Descriptor()).GetKind(),
					Configuration: c.GetMetadata().GetName(), Version: c.GetMetadata().GetResourceVersion(),
				})
			}
		}
	}
	return out
}

func matches(hook *admissionregistrationv1.Webhook, w Write) bool {
	ruled := slices.ContainsFunc(hook.GetRules(), func(r *admissionregistrationv1.RuleWithOperations) bool {
		return contains(r.GetOperations(), w.Operation) && contains(r.GetApiGroups(), w.Type.GetGroup()) &&
			contains(r.GetApiVersions(), w.Type.GetVersion()) && inScope(r.GetScope(), w.Type.GetNamespaced()) &&
			(contains(r.GetResources(), w.Type.GetPlural()) || slices.Contains(r.GetResources(), everySubresource))
	})
	return ruled && selectsNamespace(hook.GetNamespaceSelector(), w.Namespace) && selectsObject(hook.GetObjectSelector(),
		w)
}

func contains(list []string, s string) bool {
	return slices.Contains(list, s) || slices.Contains(list, every)
}

func inScope(scope string, namespaced bool) bool {
	return scope == "" || scope == every || namespaced == (scope == "Namespaced")
}

// selectsNamespace reports whether a selector selects a namespace; objects without one are always selected.
func selectsNamespace(s *metav1.LabelSelector, namespace *metav1.ObjectMeta) bool {
	if namespace == nil {
		return true
	}
	set := labels.Set{nameLabel: namespace.GetName()}
	maps.Copy(set, namespace.GetLabels())
	return selects(s, set)
}

func selectsObject(s *metav1.LabelSelector, w Write) bool {
	return w.New != nil && selects(s, w.New.GetMetadata().GetLabels()) ||
		w.Old != nil && selects(s, w.Old.GetMetadata().GetLabels())
}

// selects reports whether a selector, which was checked, selects labels. An empty one selects all.
func selects(s *metav1.LabelSelector, set labels.Set) bool {
	if empty(s) {
		return true
	}
	selector, _ := object.LabelSelector(s, "")
	return selector.Matches(set)
}

func empty(s *metav1.LabelSelector) bool {
	return len(s.GetMatchLabels()) == 0 && len(s.GetMatchExpressions()) == 0
}
