package identity

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// CheckPolicy returns what is wrong with the text of a policy file; nil if programs can use it.
func CheckPolicy(text []byte) error {
	_, err := parsePolicy(text)
	return err
}

// LostRights returns the rights that the policy file before gives and the policy file after does not: those wanted, to
// the caller, and everything to the programs of the cluster. Stored roles do not count. An error is about after; a
// before that cannot be read gives nothing.
func LostRights(before, after []byte, caller Caller, wanted ...Attributes) ([]string, error) {
	is, err := parsed(after)
	if err != nil {
		return nil, err
	}
	was, err := parsed(before)
	if err != nil {
		return nil, nil //nolint:nilerr // nothing can be lost
	}
	var lost []string
	note := func(c Caller, a Attributes) {
		had, _ := was.Allowed(c, a)
		if has, why := is.Allowed(c, a); had && !has && !slices.Contains(lost, why) {
			lost = append(lost, why)
		}
	}
	for _, a := range wanted {
		note(caller, a)
	}
	for _, b := range was.file.bindings {
		for _, s := range b.subjects {
			if c, ok := program(s); ok {
				for _, r := range was.file.roles[b.role()] {
					each(r, b.key.namespace, func(a Attributes) { note(c, a) })
				}
			}
		}
	}
	return lost, nil
}

// parsed returns a policy that has the text of a file, and follows none.
func parsed(text []byte) (*Policy, error) {
	file, err := parsePolicy(text)
	p := &Policy{file: file}
	p.compile()
	return p, err
}

// program returns a caller for a subject that is a program of the cluster or a group of them.
func program(s rbacv1.Subject) (Caller, bool) {
	c := Caller{User: s.Name, Groups: []string{GroupAuthenticated}}
	programs := []string{GroupServices, GroupNodes, GroupHosts}
	switch {
	case s.Kind == rbacv1.GroupKind && slices.Contains(programs, s.Name):
		c.Groups = append(c.Groups, s.Name)
	case s.Kind == rbacv1.UserKind && strings.HasPrefix(s.Name, servicePrefix):
		c.Groups = append(c.Groups, GroupServices)
	default:
		return Caller{}, false
	}
	return c, true
}

// each calls f with every right of a rule. A wildcard is a right to "*".
func each(r rbacv1.PolicyRule, namespace string, f func(Attributes)) {
	names := r.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range r.Verbs {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, name := range names {
					f(Attributes{Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name})
				}
			}
		}
	}
}

// ListLost writes rights that LostRights returned for people, the first few of many.
func ListLost(lost []string) string {
	const most = 3
	text := strings.Join(lost[:min(len(lost), most)], "; ")
	if more := len(lost) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
