package identity

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	storedv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// RolesGroup is the API group of roles and bindings.
const RolesGroup = rbacv1.GroupName

const unread = "the roles that are stored in etcd are not read yet"

// Stored is the roles and bindings that are kept in etcd beside the policy file.
type Stored struct {
	ClusterRoles        []*storedv1.ClusterRole
	Roles               []*storedv1.Role
	ClusterRoleBindings []*storedv1.ClusterRoleBinding
	RoleBindings        []*storedv1.RoleBinding
}

// AwaitStored says that there are stored roles which are not known yet. Until SetStored the policy file alone is in
// force, and refusals say so.
func (p *Policy) AwaitStored() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited = true
}

// SetStored puts roles and bindings in force beside the policy file, in place of those of the last call. They only add
// rights: a role of the file wins over a stored one of the same name. A binding whose role does not exist grants
// nothing, and neither does one that is being deleted or whose role is: a finalizer prolongs no right. The objects of s
// must not be modified later.
func (p *Policy) SetStored(s Stored) {
	d := documents{roles: make(map[roleKey][]rbacv1.PolicyRule, len(s.ClusterRoles)+len(s.Roles))}
	for _, r := range remaining(s.ClusterRoles) {
		d.roles[roleKey{"ClusterRole", "", r.GetMetadata().GetName()}] = rulesOf(r.GetRules())
	}
	for _, r := range remaining(s.Roles) {
		d.roles[roleKey{"Role", r.GetMetadata().GetNamespace(), r.GetMetadata().GetName()}] = rulesOf(r.GetRules())
	}
	for _, b := range remaining(s.ClusterRoleBindings) {
		key := roleKey{"ClusterRoleBinding", "", b.GetMetadata().GetName()}
		d.bindings = append(d.bindings, binding{key, refOf(b.GetRoleRef()), subjectsOf(b.GetSubjects())})
	}
	for _, b := range remaining(s.RoleBindings) {
		key := roleKey{"RoleBinding", b.GetMetadata().GetNamespace(), b.GetMetadata().GetName()}
		if key.namespace == "" {
			continue // it would grant its role everywhere
		}
		d.bindings = append(d.bindings, binding{key, refOf(b.GetRoleRef()), subjectsOf(b.GetSubjects())})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stored, p.awaited = d, false
	p.compile()
}

// InFile reports whether the policy file has a role or a binding of that kind and name.
func (p *Policy) InFile(kind, namespace, name string) bool {
	p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file.has(roleKey{kind, namespace, name})
}

// Lacks returns the rights of rules that c does not have in a namespace; everywhere, if that is empty.
func (p *Policy) Lacks(c Caller, namespace string, rules []*storedv1.PolicyRule) []Attributes {
	return p.lacks(c, namespace, rulesOf(rules))
}

// LacksOfRole returns the rights of a role that c does not have in a namespace; everywhere, if that is empty. It is
// false if there is no such role.
func (p *Policy) LacksOfRole(c Caller, namespace string, ref *storedv1.RoleRef) ([]Attributes, bool) {
	p.now()
	p.mu.Lock()
	rules, ok := p.rulesOf(binding{key: roleKey{namespace: namespace}, ref: refOf(ref)}.role())
	p.mu.Unlock()
	if !ok {
		return nil, false
	}
	return p.lacks(c, namespace, rules), true
}

func (p *Policy) lacks(c Caller, namespace string, rules []rbacv1.PolicyRule) []Attributes {
	if c.In(GroupMasters) {
		return nil
	}
	var own []rbacv1.PolicyRule
	counted := map[roleKey]bool{} // many bindings may have the same role
	for _, g := range p.grantsTo(c) {
		if role := g.binding.role(); g.holdsIn(namespace) && !counted[role] {
			counted[role] = true
			own = append(own, g.rules...)
		}
	}
	var out []Attributes
	for _, r := range rules {
		for _, single := range validation.BreakdownRule(r) {
			a := Attributes{
				Verb: single.Verbs[0], Group: single.APIGroups[0], Resource: single.Resources[0], Namespace: namespace,
				Name: strings.Join(single.ResourceNames, ""), // there is at most one
			}
			if !slices.ContainsFunc(own, a.allowedBy) {
				out = append(out, a)
			}
		}
	}
	return out
}

// Complete returns nil, or while there are stored roles that are not known yet, a status with the code UNAVAILABLE.
func (p *Policy) Complete() error {
	if p.awaits() {
		return rpcerr.Unavailable(unread)
	}
	return nil
}

// awaits reports whether there are stored roles that are not known yet.
func (p *Policy) awaits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.awaited
}

// current returns the version of the grants in force, which is never 0.
func (p *Policy) current() uint64 {
	p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// compile puts the file and what is stored in force. The lock is held, or p is not shared yet.
func (p *Policy) compile() {
	p.grants = grants{users: map[string][]*grant{}, groups: map[string][]*grant{}}
	p.version++
	place := 0
	for _, list := range [][]binding{p.file.bindings, p.stored.bindings} {
		for _, b := range list {
			place++
			if rules, ok := p.rulesOf(b.role()); ok {
				p.grants.add(&grant{place: place, binding: b, rules: rules})
			}
		}
	}
}

// rulesOf returns the rules of a role of the file or a stored one. The lock is held.
func (p *Policy) rulesOf(role roleKey) ([]rbacv1.PolicyRule, bool) {
	if rules, ok := p.file.roles[role]; ok {
		return rules, true
	}
	rules, ok := p.stored.roles[role]
	return rules, ok
}

// remaining returns the objects that are not being deleted.
func remaining[T object.Object](all []T) []T {
	deleting := func(o T) bool { return object.Deleting(o) }
	if !slices.ContainsFunc(all, deleting) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), deleting)
}

func rulesOf(rules []*storedv1.PolicyRule) []rbacv1.PolicyRule {
	out := make([]rbacv1.PolicyRule, len(rules))
	for i, r := range rules {
		out[i] = rbacv1.PolicyRule{
			Verbs: r.GetVerbs(), APIGroups: r.GetApiGroups(), Resources: r.GetResources(), ResourceNames: r.GetResourceNames(),
		}
		if !slices.IsSorted(out[i].ResourceNames) {
			out[i].ResourceNames = slices.Sorted(slices.Values(out[i].ResourceNames))
		}
	}
	return out
}

func refOf(r *storedv1.RoleRef) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: r.GetApiGroup(), Kind: r.GetKind(), Name: r.GetName()}
}

func subjectsOf(subjects []*storedv1.Subject) []rbacv1.Subject {
	out := make([]rbacv1.Subject, len(subjects))
	for i, s := range subjects {
		out[i] = rbacv1.Subject{
			Kind: s.GetKind(), APIGroup: s.GetApiGroup(), Name: s.GetName(), Namespace: s.GetNamespace(),
		}
	}
	return out
}
