package identity

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/component-helpers/auth/rbac/validation"
	"sigs.k8s.io/yaml"
)

//go:embed policy.yaml
var defaultPolicy []byte

//go:embed policy-isolated.yaml
var isolatedPolicy []byte

// DefaultPolicy returns the policy that is in force where no file is given: ClusterRole and ClusterRoleBinding documents.
// Only administrators may create pods and run commands in them by it; the role pod-creator is there to be bound.
func DefaultPolicy() []byte { return slices.Clone(defaultPolicy) }

// IsolatedPolicy returns DefaultPolicy with one binding more: editors may create pods and run commands in them. It is
// for clusters whose pods run under users of their own.
func IsolatedPolicy() []byte { return slices.Concat(defaultPolicy, isolatedPolicy) }

// Attributes is what a call wants to do. Resource may have a sub-resource after a slash. An empty Name means all objects
// of the resource.
type Attributes struct{ Verb, Group, Resource, Namespace, Name string }

// String reads like "delete machines.machine.openshift.io \"m-1\"".
func (a Attributes) String() string {
	s := a.Verb + " " + a.Resource
	if a.Group != "" {
		s += "." + a.Group
	}
	if a.Name != "" {
		s += fmt.Sprintf(" %q", a.Name)
	}
	if a.Namespace != "" {
		s += fmt.Sprintf(" in namespace %q", a.Namespace)
	}
	return s
}

// Policy answers who may do what. It follows its file; a change that cannot be read leaves the former policy in force,
// and Log says so. Its methods are safe for concurrent use.
type Policy struct {
	Log *slog.Logger // set before the first use; nil means slog.Default()

	path    string
	mu      sync.Mutex
	checked time.Time
	stamp   stamp
	grants  []grant
}

// grant is a binding with the rules of its role.
type grant struct {
	binding  string
	role     string
	subjects []rbacv1.Subject
	rules    []rbacv1.PolicyRule
}

// LoadPolicy reads a policy file; an empty path means the default policy.
func LoadPolicy(path string) (*Policy, error) {
	p := &Policy{path: path}
	if path == "" {
		grants, err := parsePolicy(defaultPolicy)
		p.grants = grants
		return p, err
	}
	return p, p.reload()
}

// Allowed reports whether c may do what a says, and by which binding or why not.
func (p *Policy) Allowed(c Caller, a Attributes) (bool, string) {
	if c.User == "" {
		return false, "the caller is not known"
	}
	if c.In(GroupMasters) {
		return true, "group " + GroupMasters
	}
	wanted := rbacv1.PolicyRule{Verbs: []string{a.Verb}, APIGroups: []string{a.Group}, Resources: []string{a.Resource}}
	if a.Name != "" {
		wanted.ResourceNames = []string{a.Name}
	}
	for _, g := range p.now() {
		if !g.binds(c) {
			continue
		}
		if ok, _ := validation.Covers(g.rules, []rbacv1.PolicyRule{wanted}); ok {
			return true, fmt.Sprintf("ClusterRoleBinding %q of ClusterRole %q", g.binding, g.role)
		}
	}
	return false, fmt.Sprintf("user %q may not %s", c.User, a)
}

// Rules returns everything that c may do.
func (p *Policy) Rules(c Caller) []rbacv1.PolicyRule {
	if c.User == "" {
		return nil
	}
	if c.In(GroupMasters) {
		all := []string{"*"}
		return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}}
	}
	var rules []rbacv1.PolicyRule
	for _, g := range p.now() {
		if g.binds(c) {
			rules = append(rules, g.rules...)
		}
	}
	return rules
}

func (g grant) binds(c Caller) bool {
	return slices.ContainsFunc(g.subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.UserKind && s.Name == c.User || s.Kind == rbacv1.GroupKind && c.In(s.Name)
	})
}

// now returns the grants in force, after a look at the file once a second.
func (p *Policy) now() []grant {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path == "" || time.Since(p.checked) < checkEvery {
		return p.grants
	}
	if err := p.reload(); err != nil {
		log := p.Log
		if log == nil {
			log = slog.Default()
		}
		log.Error("policy not read, the former one stays", "error", err)
	}
	return p.grants
}

// reload reads the file if it changed. A file that is wrong is read again only after its next change.
func (p *Policy) reload() error {
	p.checked = time.Now()
	s, err := stampOf(p.path)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if s.same(p.stamp) {
		return nil
	}
	p.stamp = s
	text, err := os.ReadFile(p.path)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	grants, err := parsePolicy(text)
	if err != nil {
		return fmt.Errorf("policy %s: %w", p.path, err)
	}
	p.grants = grants
	return nil
}

// parsePolicy reads the documents strictly: an unknown field or kind, or a binding of a role that is not there, is an
// error and not a right that silently is missing.
func parsePolicy(text []byte) ([]grant, error) {
	roles := map[string][]rbacv1.PolicyRule{}
	var bindings []rbacv1.ClusterRoleBinding
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = parseDocument(document, roles, &bindings)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	return join(roles, bindings)
}

func parseDocument(document []byte, roles map[string][]rbacv1.PolicyRule, bindings *[]rbacv1.ClusterRoleBinding) error {
	var head *struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(document, &head); err != nil || head == nil {
		return err // a document of comments alone says nothing
	}
	if head.APIVersion != rbacv1.SchemeGroupVersion.String() {
		return fmt.Errorf("apiVersion %q, want %q", head.APIVersion, rbacv1.SchemeGroupVersion)
	}
	switch head.Kind {
	case "ClusterRole":
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict(document, &role); err != nil {
			return err
		}
		if _, twice := roles[role.Name]; twice || role.Name == "" {
			return fmt.Errorf("ClusterRole %q: a name is needed, and once only", role.Name)
		}
		if role.AggregationRule != nil {
			return fmt.Errorf("ClusterRole %q: aggregationRule is not supported", role.Name)
		}
		roles[role.Name] = role.Rules
	case "ClusterRoleBinding":
		var binding rbacv1.ClusterRoleBinding
		if err := yaml.UnmarshalStrict(document, &binding); err != nil {
			return err
		}
		*bindings = append(*bindings, binding)
	default:
		return fmt.Errorf("kind %q, want ClusterRole or ClusterRoleBinding", head.Kind)
	}
	return nil
}

func join(roles map[string][]rbacv1.PolicyRule, bindings []rbacv1.ClusterRoleBinding) ([]grant, error) {
	grants := make([]grant, 0, len(bindings))
	for _, b := range bindings {
		rules, ok := roles[b.RoleRef.Name]
		if !ok || b.RoleRef.Kind != "ClusterRole" {
			return nil, fmt.Errorf("ClusterRoleBinding %q: there is no %s %q", b.Name, b.RoleRef.Kind, b.RoleRef.Name)
		}
		for _, s := range b.Subjects {
			if s.Kind != rbacv1.UserKind && s.Kind != rbacv1.GroupKind {
				return nil, fmt.Errorf("ClusterRoleBinding %q: subject of kind %q, want User or Group", b.Name, s.Kind)
			}
		}
		grants = append(grants, grant{binding: b.Name, role: b.RoleRef.Name, subjects: b.Subjects, rules: rules})
	}
	return grants, nil
}
