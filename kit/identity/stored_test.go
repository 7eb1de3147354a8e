package identity

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	storedv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
)

func storedMeta(namespace, name string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func storedRule(verb, resource string, names ...string) *storedv1.PolicyRule {
	return &storedv1.PolicyRule{
		Verbs: []string{verb}, ApiGroups: []string{""}, Resources: []string{resource}, ResourceNames: names,
	}
}

func storedRef(kind, name string) *storedv1.RoleRef { return &storedv1.RoleRef{Kind: kind, Name: name} }

func storedUser(name string) []*storedv1.Subject {
	return []*storedv1.Subject{{Kind: "User", Name: name}}
}

func stored() Stored {
	return Stored{
		ClusterRoles: []*storedv1.ClusterRole{
			{Metadata: storedMeta("", "nodes"), Rules: []*storedv1.PolicyRule{storedRule("get", "nodes", "a")}},
			{Metadata: storedMeta("", "all"), Rules: []*storedv1.PolicyRule{storedRule("*", "*")}},
			{Metadata: storedMeta("", "metrics-reader"), Rules: []*storedv1.PolicyRule{storedRule("*", "*")}},
		},
		Roles: []*storedv1.Role{
			{Metadata: storedMeta("dev", "pods"), Rules: []*storedv1.PolicyRule{storedRule("*", "pods")}},
		},
		ClusterRoleBindings: []*storedv1.ClusterRoleBinding{
			{Metadata: storedMeta("", "n"), RoleRef: storedRef("ClusterRole", "nodes"), Subjects: storedUser("nora")},
			{Metadata: storedMeta("", "p"), RoleRef: storedRef("Role", "pods"), Subjects: storedUser("nora")},
			{Metadata: storedMeta("", "v"), RoleRef: storedRef("ClusterRole", "view"), Subjects: storedUser("vera")},
			{Metadata: storedMeta("", "m"), RoleRef: storedRef("ClusterRole", "metrics-reader"), Subjects: storedUser("mia")},
			{
				Metadata: storedMeta("", "g"), RoleRef: storedRef("ClusterRole", "nodes"),
				Subjects: []*storedv1.Subject{{Kind: "Group", Name: "team"}},
			},
		},
		RoleBindings: []*storedv1.RoleBinding{
			{Metadata: storedMeta("dev", "d"), RoleRef: storedRef("Role", "pods"), Subjects: storedUser("dora")},
			{Metadata: storedMeta("prod", "d"), RoleRef: storedRef("Role", "pods"), Subjects: storedUser("dora")},
			{Metadata: storedMeta("dev", "a"), RoleRef: storedRef("ClusterRole", "all"), Subjects: storedUser("adam")},
			{Metadata: storedMeta("dev", "l"), RoleRef: storedRef("ClusterRole", "later"), Subjects: storedUser("lou")},
			{Metadata: storedMeta("", "x"), RoleRef: storedRef("ClusterRole", "all"), Subjects: storedUser("xeno")},
		},
	}
}

func TestStoredRolesGrantBesideTheFile(t *testing.T) {
	policy := policyOf(t, string(DefaultPolicy()))
	policy.SetStored(stored())
	for _, tt := range []struct {
		name                            string
		caller                          Caller
		verb, resource, namespace, item string
		want                            bool
	}{
		{"a name of a rule", person("nora"), "get", "nodes", "", "a", true},
		{"a name of a rule, for a group", person("tom", "team"), "get", "nodes", "", "a", true},
		{"another name", person("nora"), "get", "nodes", "", "b", false},
		{"all names", person("nora"), "get", "nodes", "", "", false},
		{"another verb", person("nora"), "delete", "nodes", "", "a", false},
		{"a Role bound by a ClusterRoleBinding", person("nora"), "get", "pods", "dev", "", false},
		{"a Role in its namespace", person("dora"), "delete", "pods", "dev", "x", true},
		{"a Role does not cover a subresource", person("dora"), "create", "pods/exec", "dev", "x", false},
		{"a Role of another namespace", person("dora"), "delete", "pods", "prod", "x", false},
		{"a Role in all namespaces", person("dora"), "list", "pods", "", "", false},
		{"a ClusterRole in the namespace of its binding", person("adam"), "create", "pods/exec", "dev", "x", true},
		{"a ClusterRole in another namespace", person("adam"), "create", "pods", "prod", "x", false},
		{"a ClusterRole on what has no namespace", person("adam"), "get", "nodes", "", "a", false},
		{"a role of the file", person("vera"), "list", "pods", "", "", true},
		{"a role of the file does not change by one of its name", person("mia"), "delete", "nodes", "", "a", false},
		{"a role that does not exist", person("lou"), "get", "pods", "dev", "x", false},
		{"a RoleBinding without a namespace", person("xeno"), "get", "pods", "", "x", false},
		{"the file's own bindings", person("e", "windlass:editors"), "delete", "pods", "dev", "x", true},
	} {
		ok, reason := policy.Allowed(tt.caller, Attributes{
			Verb: tt.verb, Resource: tt.resource, Namespace: tt.namespace, Name: tt.item,
		})
		if ok != tt.want {
			t.Errorf("%s: %v (%s), want %v", tt.name, ok, reason, tt.want)
		}
	}
	policy.SetStored(Stored{})
	if ok, reason := policy.Allowed(person("dora"), Attributes{Verb: "get", Resource: "pods", Namespace: "dev"}); ok {
		t.Errorf("without the binding: %s", reason)
	}
}

func TestBeforeStoredRolesAreReadTheFileAloneGrants(t *testing.T) {
	policy := policyOf(t, string(DefaultPolicy()))
	policy.AwaitStored()
	pods := Attributes{Verb: "delete", Resource: "pods", Namespace: "dev"}
	const unread = "are not read yet"
	if ok, reason := policy.Allowed(person("dora"), pods); ok || !strings.Contains(reason, unread) {
		t.Errorf("by a stored role: %v, %s", ok, reason)
	}
	if ok, reason := policy.Allowed(person("e", "windlass:editors"), pods); !ok {
		t.Errorf("by the file: %s", reason)
	}
	before := policy.current()
	policy.SetStored(stored())
	if ok, reason := policy.Allowed(person("dora"), pods); !ok {
		t.Errorf("once they are read: %s", reason)
	}
	if _, reason := policy.Allowed(person("bob"), pods); strings.Contains(reason, unread) {
		t.Errorf("once they are read: %s", reason)
	}
	if policy.current() == before {
		t.Error("the version of the policy is the same, so open streams are not checked")
	}
}

func TestWhichRightsACallerLacks(t *testing.T) {
	policy := policyOf(t, string(DefaultPolicy()))
	policy.SetStored(stored())
	for _, tt := range []struct {
		name      string
		caller    Caller
		namespace string
		rule      *storedv1.PolicyRule
		want      int
	}{
		{"a right in its namespace", person("dora"), "dev", storedRule("get", "pods"), 0},
		{"one object of a right", person("dora"), "dev", storedRule("get", "pods", "x"), 0},
		{"in another namespace", person("dora"), "prod", storedRule("get", "pods"), 1},
		{"everywhere", person("dora"), "", storedRule("get", "pods"), 1},
		{"all of a right to one object", person("nora"), "", storedRule("get", "nodes"), 1},
		{"a right everywhere, in a namespace", person("nora"), "dev", storedRule("get", "nodes", "a"), 0},
		{"a wildcard", person("dora"), "dev", storedRule("get", "*"), 1},
		{"a wildcard of a wildcard", person("adam"), "dev", storedRule("*", "*"), 0},
		{"anything of a master", person("root", GroupMasters), "", storedRule("*", "*"), 0},
		{"an unknown caller", Caller{}, "dev", storedRule("get", "pods"), 1},
		{"each combination", person("nora"), "dev", &storedv1.PolicyRule{
			Verbs: []string{"get", "list"}, ApiGroups: []string{"", "apps"}, Resources: []string{"x", "y", "z"},
		}, 12},
	} {
		if got := policy.Lacks(tt.caller, tt.namespace, []*storedv1.PolicyRule{tt.rule}); len(got) != tt.want {
			t.Errorf("%s: lacks %v, want %d", tt.name, got, tt.want)
		}
	}
	if _, found := policy.LacksOfRole(person("dora"), "dev", storedRef("ClusterRole", "later")); found {
		t.Error("a role that does not exist is found")
	}
	lacks, found := policy.LacksOfRole(person("dora"), "dev", storedRef("Role", "pods"))
	if !found || len(lacks) > 0 {
		t.Errorf("the role that dora is bound to: %v, %v", lacks, found)
	}
}

// TestStoredRolesChangeWhileTheyAreAsked finds data races with -race: every call asks, and each change replaces all.
func TestStoredRolesChangeWhileTheyAreAsked(t *testing.T) {
	policy := policyOf(t, string(DefaultPolicy()))
	dora, pods := Caller{User: "dora"}, Attributes{Verb: "get", Resource: "pods", Namespace: "dev"}
	var askers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 4 {
		askers.Go(func() {
			for ctx.Err() == nil {
				policy.Allowed(dora, pods)
				policy.Lacks(dora, "dev", []*storedv1.PolicyRule{storedRule("get", "pods")})
			}
		})
	}
	for range 200 {
		policy.SetStored(Stored{})
		if ok, _ := policy.Allowed(dora, pods); ok {
			t.Error("a binding that is gone grants")
		}
		policy.SetStored(stored())
		if ok, why := policy.Allowed(dora, pods); !ok {
			t.Error(why)
		}
	}
	stop()
	askers.Wait()
}

// TestARightIsThatOfKubernetes compares the check of a right with the one of Kubernetes.
func TestARightIsThatOfKubernetes(t *testing.T) {
	words := map[string][]string{
		"verb": {"get", "list", "*"}, "group": {"", "apps", "*"}, "name": {"", "a", "b"},
		"resource": {"pods", "pods/log", "*/log", "*", "pods/*", "*/*", "/log", "a/b/c", "*/b/c"},
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func(kind string) (out []string) {
		for range random.IntN(3) {
			out = append(out, words[kind][random.IntN(len(words[kind]))])
		}
		return out
	}
	one := func(kind string) string { return words[kind][random.IntN(len(words[kind]))] }
	allowed := 0
	for range 100_000 {
		rule := rbacv1.PolicyRule{
			Verbs: some("verb"), APIGroups: some("group"), Resources: some("resource"), ResourceNames: some("name"),
		}
		slices.Sort(rule.ResourceNames)
		a := Attributes{Verb: one("verb"), Group: one("group"), Resource: one("resource"), Name: one("name")}
		wanted := rbacv1.PolicyRule{Verbs: []string{a.Verb}, APIGroups: []string{a.Group}, Resources: []string{a.Resource}}
		if a.Name != "" {
			wanted.ResourceNames = []string{a.Name}
		}
		want, _ := validation.Covers([]rbacv1.PolicyRule{rule}, []rbacv1.PolicyRule{wanted})
		if got := a.allowedBy(rule); got != want {
			t.Fatalf("%v by %v: %t, Kubernetes has %t", a, rule, got, want)
		}
		if want {
			allowed++
		}
	}
	if allowed < 1000 {
		t.Errorf("only %d of the rights are allowed: the comparison is of little worth", allowed)
	}
}

// TestARightEndsWithTheDeletionNotWithTheLastFinalizer deletes a role and a binding which have finalizers: a subject of
// a binding who may change it could else keep it in force.
func TestARightEndsWithTheDeletionNotWithTheLastFinalizer(t *testing.T) {
	policy := policyOf(t, string(DefaultPolicy()))
	right := Attributes{Verb: "get", Resource: "nodes", Name: "a"}
	deleting := func(m *metav1.ObjectMeta) {
		m.DeletionTimestamp, m.Finalizers = timestamppb.Now(), []string{"example.com/mine"}
	}
	for _, tt := range []struct {
		name   string
		delete func(s Stored)
	}{
		{"the binding", func(s Stored) { deleting(s.ClusterRoleBindings[0].GetMetadata()) }},
		{"the role", func(s Stored) { deleting(s.ClusterRoles[0].GetMetadata()) }},
	} {
		s := stored()
		policy.SetStored(s)
		if ok, why := policy.Allowed(person("nora"), right); !ok {
			t.Fatal(why)
		}
		s = stored()
		tt.delete(s)
		policy.SetStored(s)
		if ok, by := policy.Allowed(person("nora"), right); ok {
			t.Errorf("%s is being deleted, and the right is in force by %s", tt.name, by)
		}
	}
	if _, found := policy.LacksOfRole(person("nora"), "", storedRef("ClusterRole", "nodes")); found {
		t.Error("a role that is being deleted may be bound as if it stayed")
	}
}

// manyStored are Roles with a RoleBinding each, in namespaces of their own. All bindings name the user ops too.
func manyStored(n int) Stored {
	var s Stored
	rule := func(resources ...string) *storedv1.PolicyRule {
		return &storedv1.PolicyRule{Verbs: []string{"get", "list", "watch"}, ApiGroups: []string{""}, Resources: resources}
	}
	for i := range n {
		meta := storedMeta(fmt.Sprintf("ns-%d", i), "r")
		s.Roles = append(s.Roles, &storedv1.Role{
			Metadata: meta, Rules: []*storedv1.PolicyRule{rule("pods", "services"), rule("nodes")},
		})
		s.RoleBindings = append(s.RoleBindings, &storedv1.RoleBinding{
			Metadata: meta, RoleRef: storedRef("Role", "r"),
			Subjects: append(storedUser(fmt.Sprintf("user-%d", i)), storedUser("ops")...),
		})
	}
	return s
}

// BenchmarkAllowed asks for a right as a user without any, as one with a single binding, and as one in all bindings.
func BenchmarkAllowed(b *testing.B) {
	for _, bindings := range []int{1, 10_000} {
		policy, err := LoadPolicy("")
		if err != nil {
			b.Fatal(err)
		}
		policy.SetStored(manyStored(bindings))
		for _, user := range []string{"nora", "user-0", "ops"} {
			b.Run(fmt.Sprintf("%s of %d bindings", user, bindings), func(b *testing.B) {
				a := Attributes{Verb: "get", Resource: "pods", Namespace: fmt.Sprintf("ns-%d", bindings-1)}
				for b.Loop() {
					policy.Allowed(person(user), a)
				}
			})
		}
	}
}

// BenchmarkSetStored puts roles in force, as each change of one does.
func BenchmarkSetStored(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d roles and bindings", n), func(b *testing.B) {
			policy, err := LoadPolicy("")
			if err != nil {
				b.Fatal(err)
			}
			s := manyStored(n)
			for b.Loop() {
				policy.SetStored(s)
			}
		})
	}
}

// BenchmarkLacks compares the largest role there may be with rights of the same size, which 100 bindings grant.
func BenchmarkLacks(b *testing.B) {
	names := make([]string, 1024)
	for i := range names {
		names[i] = fmt.Sprintf("the-name-of-an-object-%d", i)
	}
	var rules []*storedv1.PolicyRule
	for range 4 {
		rules = append(rules, storedRule("get", "pods", names...))
	}
	s := Stored{Roles: []*storedv1.Role{{Metadata: storedMeta("dev", "r"), Rules: rules}}}
	for i := range 100 {
		s.RoleBindings = append(s.RoleBindings, &storedv1.RoleBinding{
			Metadata: storedMeta("dev", fmt.Sprint(i)), RoleRef: storedRef("Role", "r"), Subjects: storedUser("dora"),
		})
	}
	policy, err := LoadPolicy("")
	if err != nil {
		b.Fatal(err)
	}
	policy.SetStored(s)
	wanted := []*storedv1.PolicyRule{storedRule("list", "pods", names...)}
	for b.Loop() {
		policy.Lacks(person("dora"), "dev", wanted)
	}
}
