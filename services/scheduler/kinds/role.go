package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxRights is how many single rights a role may have, one for each combination of verb, API group, resource and name:
// the check of who may grant a role compares every one.
const maxRights = 4096

// role is a ClusterRole or a Role.
type role interface {
	object.Object
	GetRules() []*rbacv1.PolicyRule
}

func validateRole[T role](r T) []object.Fault {
	rights := 0
	for i, rule := range r.GetRules() {
		n := len(rule.GetVerbs()) * len(rule.GetApiGroups()) * len(rule.GetResources())
		if rights += n * max(1, len(rule.GetResourceNames())); rights > maxRights {
			return []object.Fault{{
				Path:        fmt.Sprintf("rules[%d]", i),
				Description: fmt.Sprintf("too many combinations of verbs, groups, resources and names: up to %d", maxRights),
			}}
		}
	}
	return nil
}

// binding is a ClusterRoleBinding or a RoleBinding.
type binding interface {
	object.Object
	GetRoleRef() *rbacv1.RoleRef
	GetSubjects() []*rbacv1.Subject
}

func defaultBinding[T binding](b T) {
	if ref := b.GetRoleRef(); ref != nil {
		ref.ApiGroup = cmp.Or(ref.GetApiGroup(), identity.RolesGroup)
	}
	for _, s := range b.GetSubjects() {
		if s.GetKind() != serviceAccountKind {
			s.ApiGroup = cmp.Or(s.GetApiGroup(), identity.RolesGroup)
		}
	}
}

const serviceAccountKind = "ServiceAccount"

func validateClusterRoleBinding(b *rbacv1.ClusterRoleBinding) []object.Fault {
	bad := validateBinding(b)
	if b.GetRoleRef().GetKind() == "Role" {
		bad = append(bad, object.Fault{Path: "roleRef.kind", Description: `must be "ClusterRole": a Role is in a namespace`})
	}
	return bad
}

// validateBinding checks the subjects that are service accounts, which alone have a namespace.
func validateBinding[T binding](b T) (bad []object.Fault) {
	for i, s := range b.GetSubjects() {
		at := fmt.Sprintf("subjects[%d]", i)
		if s.GetKind() != serviceAccountKind {
			if s.GetNamespace() != "" {
				bad = append(bad, object.Faultf(at+".namespace", "must be empty for a subject of the kind %s", s.GetKind()))
			}
			continue
		}
		if s.GetApiGroup() != "" {
			bad = append(bad, object.Faultf(at+".apiGroup", "must be empty for a ServiceAccount"))
		}
		for _, why := range validation.IsDNS1123Label(s.GetNamespace()) {
			bad = append(bad, object.Faultf(at+".namespace", "must be the namespace of the service account: %s", why))
		}
		for _, why := range validation.IsDNS1123Subdomain(s.GetName()) {
			bad = append(bad, object.Faultf(at+".name", "must be the name of a service account: %s", why))
		}
	}
	return bad
}

// validateBindingUpdate keeps a binding's role: a binding that is given another one would change what its subjects may
// do under a name that readers know.
func validateBindingUpdate[T binding](old, b T) []object.Fault {
	if proto.Equal(old.GetRoleRef(), b.GetRoleRef()) {
		return nil
	}
	return []object.Fault{{
		Path: "roleRef", Description: "may not be changed: delete the binding and create one of the other role",
	}}
}

// admitRole refuses a role whose rights its writer does not have, as Kubernetes does, and one that the policy file has.
func admitRole[T role](policy *identity.Policy) func(*resource.Write[T]) error {
	return func(w *resource.Write[T]) error {
		if w.Own || w.Deletes() {
			return nil
		}
		if err := notOfFile(policy, w); err != nil {
			return err
		}
		if !w.Creates() && slices.EqualFunc(w.Old.GetRules(), w.New.GetRules(), equal) {
			return nil
		}
		m := w.New.GetMetadata()
		if may(policy, w.By, "escalate", w.New.GetKind(), m.GetNamespace(), m.GetName()) {
			return nil
		}
		if err := policy.Complete(); err != nil {
			return err // the caller may have rights that are not known yet
		}
		for i, rule := range w.New.GetRules() {
			lacks := policy.Lacks(w.By, m.GetNamespace(), []*rbacv1.PolicyRule{rule})
			if len(lacks) > 0 {
				return rpcerr.Forbidden(fmt.Sprintf("rules[%d]: user %q may not %s, so may not put that right into a role "+
					"(without the verb escalate on it)", i, w.By.User, lacks[0]))
			}
		}
		return nil
	}
}

// admitBinding refuses a binding of a role with rights that the binding's writer does not have, as Kubernetes does, and
// one that the policy file has.
func admitBinding[T binding](policy *identity.Policy) func(*resource.Write[T]) error {
	return func(w *resource.Write[T]) error {
		if w.Own || w.Deletes() {
			return nil
		}
		if err := notOfFile(policy, w); err != nil {
			return err
		}
		if !w.Creates() && slices.EqualFunc(w.Old.GetSubjects(), w.New.GetSubjects(), equal) {
			return nil // the role is the same, see validateBindingUpdate
		}
		ref, namespace := w.New.GetRoleRef(), w.New.GetMetadata().GetNamespace()
		if may(policy, w.By, "bind", ref.GetKind(), namespace, ref.GetName()) {
			return nil
		}
		if err := policy.Complete(); err != nil {
			return err // the role may exist, and the caller may have its rights
		}
		lacks, found := policy.LacksOfRole(w.By, namespace, ref)
		switch {
		case !found:
			return rpcerr.Forbidden(
				fmt.Sprintf("roleRef: there is no %s %q, so user %q may not bind it without the verb bind on it",
					ref.GetKind(), ref.GetName(), w.By.User))
		case len(lacks) > 0:
			return rpcerr.Forbidden(fmt.Sprintf("roleRef: user %q may not %s, so may not bind %s %q, which has that right "+
				"(without the verb bind on it)", w.By.User, lacks[0], ref.GetKind(), ref.GetName()))
		}
		return nil
	}
}

// may reports whether a caller has a verb on a role.
func may(policy *identity.Policy, by identity.Caller, verb, kind, namespace, name string) bool {
	ok, _ := policy.Allowed(by, identity.Attributes{
		Verb: verb, Group: identity.RolesGroup, Resource: strings.ToLower(kind) + "s", Namespace: namespace, Name: name,
	})
	return ok
}

// notOfFile refuses to create what the policy file has under the same name: the file would win over a stored role.
func notOfFile[T object.Object](policy *identity.Policy, w *resource.Write[T]) error {
	m := w.New.GetMetadata()
	if !w.Creates() || !policy.InFile(w.New.GetKind(), m.GetNamespace(), m.GetName()) {
		return nil
	}
	return rpcerr.Invalid(object.Fault{
		Path:        "metadata.name",
		Description: fmt.Sprintf("is %q, which the policy file has: choose another name", m.GetName()),
	})
}

func equal[T proto.Message](a, b T) bool { return proto.Equal(a, b) }
