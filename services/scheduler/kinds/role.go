package kinds

import (
	"cmp"
	"fmt"

	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

const rbacGroup = "rbac.authorization.k8s.io"

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
		ref.ApiGroup = cmp.Or(ref.GetApiGroup(), rbacGroup)
	}
	for _, s := range b.GetSubjects() {
		s.ApiGroup = cmp.Or(s.GetApiGroup(), rbacGroup)
	}
}

func validateClusterRoleBinding(b *rbacv1.ClusterRoleBinding) []object.Fault {
	if b.GetRoleRef().GetKind() == "Role" {
		return []object.Fault{{Path: "roleRef.kind", Description: `must be "ClusterRole": a Role is in a namespace`}}
	}
	return nil
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
