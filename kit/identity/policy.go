package identity

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/rpcerr"
)

//go:embed policy.yaml
var defaultPolicy []byte

//go:embed policy-isolated.yaml
var isolatedPolicy []byte

// DefaultPolicy returns the policy that is in force where no file is given: ClusterRole and ClusterRoleBinding
// documents. Only administrators may create pods and run commands in them by it; the role pod-creator is there to be
// bound.
func DefaultPolicy() []byte { return slices.Clone(defaultPolicy) }

// IsolatedPolicy returns DefaultPolicy with one binding more: editors may create pods and run commands in them. It is
// for clusters whose pods run under users of their own.
func IsolatedPolicy() []byte { return slices.Concat(defaultPolicy, isolatedPolicy) }

// Attributes is what a call wants to do. Resource may have a sub-resource after a slash. An empty Name means all
// objects of the resource.
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

// Policy answers who may do what, by its file and by the roles and bindings that are stored in etcd. It follows its
// file; a change that cannot be read leaves the former policy in force, and the log, Err and the metric
// windlass_policy_failed say so. Its methods are safe for concurrent use.
type Policy struct {
	Log *slog.Logger // set before the first use; nil means slog.Default()
	// Changed is called when another policy is in force, with the SHA-256 of its file in hex. Set it before the first use.
	Changed func(hash string)

	path    string
	mu      sync.Mutex
	checked time.Time
	stamp   stamp
	file    documents
	stored  documents
	awaited bool   // whether there are stored roles that are not known yet
	grants  grants // never modified
	version uint64 // of grants
	hash    string
	failed  error     // why the file is not in force
	said    time.Time // when that was logged last
}

// sayEvery is how often the log repeats that the file is not in force.
const sayEvery = time.Minute

// grant is a binding with the rules of its role.
type grant struct {
	place   int // those of the file are first
	binding binding
	rules   []rbacv1.PolicyRule // their resource names are sorted
}

// grants are all grants by their subjects: the cost of a check does not depend on what other subjects have.
type grants struct{ users, groups map[string][]*grant }

func (g grants) add(one *grant) {
	for _, s := range one.binding.subjects {
		of, name := g.users, s.Name
		switch s.Kind {
		case rbacv1.GroupKind:
			of = g.groups
		case rbacv1.ServiceAccountKind:
			name = ServiceAccountUser(s.Namespace, s.Name)
		}
		if have := of[name]; len(have) == 0 || have[len(have)-1] != one { // a binding may name a subject twice
			of[name] = append(have, one)
		}
	}
}

// of returns the grants to a caller, first those to its user; one that names several of its subjects is repeated.
func (g grants) of(c Caller) iter.Seq[*grant] {
	return func(yield func(*grant) bool) {
		for _, one := range g.users[c.User] {
			if !yield(one) {
				return
			}
		}
		for _, group := range c.Groups {
			for _, one := range g.groups[group] {
				if !yield(one) {
					return
				}
			}
		}
	}
}

// LoadPolicy reads a policy file, which must have a binding; an empty path means the default policy.
func LoadPolicy(path string) (*Policy, error) {
	p := &Policy{path: path}
	if path == "" {
		sum := sha256.Sum256(defaultPolicy)
		file, err := parsePolicy(defaultPolicy)
		p.file, p.hash = file, hex.EncodeToString(sum[:])
		p.compile()
		return p, err
	}
	return p, p.reload()
}

// Allowed reports whether c may do what a says, and by which binding or why not. A RoleBinding counts in its namespace
// alone, so not for what is in no namespace or in all.
func (p *Policy) Allowed(c Caller, a Attributes) (bool, string) {
	by, err := p.Require(c, a)
	if err != nil {
		return false, status.Convert(err).Message()
	}
	return true, by
}

// Require returns by which binding c may do what a says, or the status to refuse the call with: PERMISSION_DENIED, or
// UNAVAILABLE while stored roles, which may grant the right, are not read yet.
func (p *Policy) Require(c Caller, a Attributes) (by string, refusal error) {
	if c.User == "" {
		return "", rpcerr.Forbidden("the caller is not known")
	}
	if c.In(GroupMasters) {
		return "group " + GroupMasters, nil
	}
	awaits := p.awaits() // before the grants are read, which may be newer
	for g := range p.now().of(c) {
		if g.holdsIn(a.Namespace) && slices.ContainsFunc(g.rules, a.allowedBy) {
			return fmt.Sprintf("%s of %s", g.binding.key, g.binding.role()), nil
		}
	}
	reason := fmt.Sprintf("user %q may not %s", c.User, a)
	if awaits {
		return "", rpcerr.Unavailable(reason + " by the policy file; " + unread)
	}
	return "", rpcerr.Forbidden(reason)
}

// Rule is a rule that holds for a caller, in one namespace or, if that is empty, everywhere.
type Rule struct {
	Namespace string
	rbacv1.PolicyRule
}

// Rules returns everything that c may do.
func (p *Policy) Rules(c Caller) []Rule {
	if c.In(GroupMasters) && c.User != "" {
		all := []string{"*"}
		return []Rule{{PolicyRule: rbacv1.PolicyRule{Verbs: all, APIGroups: all, Resources: all}}}
	}
	var rules []Rule
	for _, g := range p.grantsTo(c) {
		for _, r := range g.rules {
			rules = append(rules, Rule{Namespace: g.binding.key.namespace, PolicyRule: r})
		}
	}
	return rules
}

// grantsTo returns each grant to c once, in the order of their places.
func (p *Policy) grantsTo(c Caller) []*grant {
	if c.User == "" {
		return nil
	}
	all := slices.SortedFunc(p.now().of(c), func(a, b *grant) int { return a.place - b.place })
	return slices.Compact(all)
}

// Hash returns the SHA-256 of the policy in force, in hex.
func (p *Policy) Hash() string {
	p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hash
}

// Err returns why the policy file as it is now is not in force; nil if it is.
func (p *Policy) Err() error {
	p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

var descPolicyFailed = prometheus.NewDesc("windlass_policy_failed",
	"1 if the policy file cannot be used, so that the former policy is in force.", nil, nil)

// Describe is part of prometheus.Collector.
func (p *Policy) Describe(to chan<- *prometheus.Desc) { to <- descPolicyFailed }

// Collect is part of prometheus.Collector.
func (p *Policy) Collect(to chan<- prometheus.Metric) {
	failed := 0.0
	if p.Err() != nil {
		failed = 1
	}
	to <- prometheus.MustNewConstMetric(descPolicyFailed, prometheus.GaugeValue, failed)
}

// holdsIn reports whether g holds in a namespace; everywhere, if that is empty.
func (g *grant) holdsIn(namespace string) bool {
	return g.binding.key.namespace == "" || g.binding.key.namespace == namespace
}

// allowedBy reports whether a rule, whose resource names are sorted, has the right. It is validation.Covers of
// Kubernetes for a single right, without the sets that the latter makes of each rule.
func (a Attributes) allowedBy(r rbacv1.PolicyRule) bool {
	if !has(r.Verbs, rbacv1.VerbAll, a.Verb) || !has(r.APIGroups, rbacv1.APIGroupAll, a.Group) {
		return false
	}
	if len(r.ResourceNames) > 0 {
		if _, named := slices.BinarySearch(r.ResourceNames, a.Name); !named || a.Name == "" {
			return false
		}
	}
	if has(r.Resources, rbacv1.ResourceAll, a.Resource) {
		return true
	}
	_, part, isPart := strings.Cut(a.Resource, "/")
	return isPart && slices.Contains(r.Resources, "*/"+part)
}

func has(list []string, all, one string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return s == one || s == all })
}

// now returns the grants in force. It checks the file once a second.
func (p *Policy) now() grants {
	p.mu.Lock()
	if p.path == "" || time.Since(p.checked) < checkEvery {
		defer p.mu.Unlock()
		return p.grants
	}
	before := p.hash
	p.failed = p.reload()
	log := p.Log
	if log == nil {
		log = slog.Default()
	}
	if p.failed == nil {
		p.said = time.Time{}
	} else if time.Since(p.said) >= sayEvery {
		p.said = time.Now()
		log.Error("the policy file cannot be used, the former policy stays in force", "error", p.failed)
	}
	inForce, hash := p.grants, p.hash
	p.mu.Unlock()
	if hash != before {
		log.Info("another policy is in force", "file", p.path, "sha256", hash)
		if p.Changed != nil {
			p.Changed(hash)
		}
	}
	return inForce
}

// reload reads the file if it changed, or if it could not be used the last time.
func (p *Policy) reload() error {
	p.checked = time.Now()
	s, err := stampOf(p.path)
	if err != nil {
		p.stamp = stamp{} // read it when it is back, even if it is the same
		return fmt.Errorf("policy: %w", err)
	}
	if s.same(p.stamp) {
		return p.failed
	}
	text, err := os.ReadFile(p.path)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	p.stamp = s
	file, err := parsePolicy(text)
	if err != nil {
		return fmt.Errorf("policy %s: %w", p.path, err)
	}
	sum := sha256.Sum256(text)
	p.file, p.hash = file, hex.EncodeToString(sum[:])
	p.compile()
	return nil
}

// documents are the roles and bindings of a policy file, or those that are stored.
type documents struct {
	roles    map[roleKey][]rbacv1.PolicyRule
	bindings []binding
}

// has reports whether there is a role or a binding of that kind and name.
func (d documents) has(key roleKey) bool {
	_, role := d.roles[key]
	return role || slices.ContainsFunc(d.bindings, func(b binding) bool { return b.key == key })
}

// roleKey names a role; the namespace of a ClusterRole is empty.
type roleKey struct{ kind, namespace, name string }

// String reads like Role "reader" of namespace "dev".
func (k roleKey) String() string {
	if k.namespace == "" {
		return fmt.Sprintf("%s %q", k.kind, k.name)
	}
	return fmt.Sprintf("%s %q of namespace %q", k.kind, k.name, k.namespace)
}

type binding struct {
	key      roleKey // its own
	ref      rbacv1.RoleRef
	subjects []rbacv1.Subject
}

// role returns the key of the binding's role. A ClusterRoleBinding, which has no namespace, finds no Role.
func (b binding) role() roleKey {
	role := roleKey{kind: b.ref.Kind, name: b.ref.Name}
	if role.kind == "Role" {
		role.namespace = b.key.namespace
	}
	return role
}

// parsePolicy reads the documents strictly: an unknown field or kind, or a binding of a role that does not exist, is an
// error and not a right that silently is missing. So is a text without any binding, such as a file that was cut off.
func parsePolicy(text []byte) (documents, error) {
	found := documents{roles: map[roleKey][]rbacv1.PolicyRule{}}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = found.add(document)
		}
		if err != nil {
			return documents{}, fmt.Errorf("document %d: %w", n, err)
		}
	}
	if len(found.bindings) == 0 {
		return documents{}, errors.New("there is no ClusterRoleBinding and no RoleBinding in it")
	}
	return found, found.complete()
}

func (d *documents) add(document []byte) error {
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
		if role.AggregationRule != nil {
			return fmt.Errorf("ClusterRole %q: aggregationRule is not supported", role.Name)
		}
		return d.addRole(roleKey{head.Kind, role.Namespace, role.Name}, role.Rules)
	case "Role":
		var role rbacv1.Role
		if err := yaml.UnmarshalStrict(document, &role); err != nil {
			return err
		}
		return d.addRole(roleKey{head.Kind, role.Namespace, role.Name}, role.Rules)
	case "ClusterRoleBinding":
		var b rbacv1.ClusterRoleBinding
		if err := yaml.UnmarshalStrict(document, &b); err != nil {
			return err
		}
		return d.addBinding(binding{roleKey{head.Kind, b.Namespace, b.Name}, b.RoleRef, b.Subjects})
	case "RoleBinding":
		var b rbacv1.RoleBinding
		if err := yaml.UnmarshalStrict(document, &b); err != nil {
			return err
		}
		return d.addBinding(binding{roleKey{head.Kind, b.Namespace, b.Name}, b.RoleRef, b.Subjects})
	}
	return fmt.Errorf("kind %q, want ClusterRole, ClusterRoleBinding, Role or RoleBinding", head.Kind)
}

func (d *documents) addRole(key roleKey, rules []rbacv1.PolicyRule) error {
	if _, twice := d.roles[key]; twice || key.name == "" {
		return fmt.Errorf("%s: a name is needed, and once only", key)
	}
	if err := key.placed(); err != nil {
		return err
	}
	for i, r := range rules {
		if len(r.Verbs) == 0 || len(r.Resources) == 0 || len(r.APIGroups) == 0 || len(r.NonResourceURLs) > 0 {
			return fmt.Errorf("%s: rules[%d]: verbs, apiGroups and resources are needed, and nonResourceURLs are not supported",
				key, i)
		}
	}
	for _, r := range rules {
		slices.Sort(r.ResourceNames)
	}
	d.roles[key] = rules
	return nil
}

// placed checks that what is of a namespace names it, and nothing else does.
func (k roleKey) placed() error {
	if (k.namespace == "") != strings.HasPrefix(k.kind, "Cluster") {
		return fmt.Errorf("%s: metadata.namespace must be given for a Role and a RoleBinding, and for nothing else", k)
	}
	return nil
}

func (d *documents) addBinding(b binding) error {
	if err := b.key.placed(); err != nil {
		return err
	}
	for _, s := range b.subjects {
		account := s.Kind == rbacv1.ServiceAccountKind
		if s.Kind != rbacv1.UserKind && s.Kind != rbacv1.GroupKind && !account || s.Name == "" {
			return fmt.Errorf("%s: subject %q of kind %q, want the name of a User, a Group or a ServiceAccount", b.key, s.Name,
				s.Kind)
		}
		if account != (s.Namespace != "") || account && s.APIGroup != "" {
			return fmt.Errorf("%s: subject %q of kind %q: a ServiceAccount has a namespace and no apiGroup, others have none",
				b.key, s.Name, s.Kind)
		}
	}
	d.bindings = append(d.bindings, b)
	return nil
}

// complete returns an error if a binding's role does not exist.
func (d *documents) complete() error {
	for _, b := range d.bindings {
		if _, ok := d.roles[b.role()]; !ok {
			return fmt.Errorf("%s: there is no %s", b.key, b.role())
		}
	}
	return nil
}
