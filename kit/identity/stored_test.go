package identity

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

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

// BenchmarkAllowed asks for a right that none of many stored bindings grants, which reads all of them.
func BenchmarkAllowed(b *testing.B) {
	for _, bindings := range []int{0, 1000} {
		b.Run(fmt.Sprintf("%d stored bindings", bindings), func(b *testing.B) {
			policy, err := LoadPolicy("")
			if err != nil {
				b.Fatal(err)
			}
			s := Stored{Roles: stored().Roles}
			for i := range bindings {
				s.RoleBindings = append(s.RoleBindings, &storedv1.RoleBinding{
					Metadata: storedMeta("dev", fmt.Sprint(i)), RoleRef: storedRef("Role", "pods"),
					Subjects: storedUser(fmt.Sprintf("user-%d", i)),
				})
			}
			policy.SetStored(s)
			c, a := Caller{User: "nora"}, Attributes{Verb: "get", Resource: "pods", Namespace: "dev"}
			for b.Loop() {
				policy.Allowed(c, a)
			}
		})
	}
}
