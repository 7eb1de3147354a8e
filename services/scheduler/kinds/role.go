package kinds

import (
	"fmt"

	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/object"
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
