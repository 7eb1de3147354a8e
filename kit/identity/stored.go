package identity

import (
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	storedv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
)

// RolesGroup is the API group of roles and bindings.
const RolesGroup = rbacv1.GroupName

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
// nothing. p keeps no part of s.
func (p *Policy) SetStored(s Stored) {
	d := documents{roles: map[roleKey][]rbacv1.PolicyRule{}}
	for _, r := range s.ClusterRoles {
		d.roles[roleKey{"ClusterRole", "", r.GetMetadata().GetName()}] = rulesOf(r.GetRules())
	}
	for _, r := range s.Roles {
		d.roles[roleKey{"Role", r.GetMetadata().GetNamespace(), r.GetMetadata().GetName()}] = rulesOf(r.GetRules())
	}
	for _, b := range s.ClusterRoleBindings {
		key := roleKey{"ClusterRoleBinding", "", b.GetMetadata().GetName()}
		d.bindings = append(d.bindings, binding{key, refOf(b.GetRoleRef()), subjectsOf(b.GetSubjects())})
	}
	for _, b := range s.RoleBindings {
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
	role := binding{key: roleKey{namespace: namespace}, ref: refOf(ref)}.role()
	rules, ok := p.roles()[role]
	p.mu.Unlock()
	if !ok {
		return nil, false
	}
	return p.lacks(c, namespace, rules), true
}

func (p *Policy) lacks(c Caller, namespace string, rules []rbacv1.PolicyRule) []Attributes {
	var has []rbacv1.PolicyRule
	for _, r := range p.Rules(c) {
		if r.Namespace == "" || r.Namespace == namespace {
			has = append(has, r.PolicyRule)
		}
	}
	_, missing := validation.Covers(has, rules)
	var out []Attributes
	for _, r := range missing { // each is one right
		a := Attributes{Verb: r.Verbs[0], Group: r.APIGroups[0], Resource: r.Resources[0], Namespace: namespace}
		if len(r.ResourceNames) > 0 {
			a.Name = r.ResourceNames[0]
		}
		out = append(out, a)
	}
	return out
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
	roles := p.roles()
	p.grants, p.version = nil, p.version+1
	for _, b := range slices.Concat(p.file.bindings, p.stored.bindings) {
		if g, ok := b.grant(roles); ok {
			p.grants = append(p.grants, g)
		}
	}
}

// roles returns the roles of the file and those that are stored. The lock is held.
func (p *Policy) roles() map[roleKey][]rbacv1.PolicyRule {
	roles := map[roleKey][]rbacv1.PolicyRule{}
	maps.Copy(roles, p.stored.roles)
	maps.Copy(roles, p.file.roles)
	return roles
}

func rulesOf(rules []*storedv1.PolicyRule) []rbacv1.PolicyRule {
	out := make([]rbacv1.PolicyRule, len(rules))
	for i, r := range rules {
		out[i] = rbacv1.PolicyRule{
			Verbs: slices.Clone(r.GetVerbs()), APIGroups: slices.Clone(r.GetApiGroups()),
			Resources: slices.Clone(r.GetResources()), ResourceNames: slices.Clone(r.GetResourceNames()),
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
		out[i] = rbacv1.Subject{Kind: s.GetKind(), APIGroup: s.GetApiGroup(), Name: s.GetName()}
	}
	return out
}
