package identity

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func service(name string) Caller {
	return Caller{User: ServiceUser(name), Groups: []string{GroupServices, GroupAuthenticated}}
}

func person(name string, groups ...string) Caller {
	return Caller{User: name, Groups: append(groups, GroupAuthenticated)}
}

func TestDefaultPolicy(t *testing.T) {
	policy, err := LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	const machine, windlass = "machine.openshift.io", "windlass.dev"
	node := Caller{User: NodeUser("worker-1"), Groups: []string{GroupNodes, GroupAuthenticated}}
	tests := []struct {
		name   string
		caller Caller
		verb   string
		group  string
		kind   string
		object string
		want   bool
	}{
		{"machine-api drains", service("machine-api"), "create", windlass, "drains", "", true},
		{"machine-api labels nodes", service("machine-api"), "patch", "", "nodes", "worker-1", true},
		{"machine-api has instances made", service("machine-api"), "create", windlass, "instances", "", true},
		{"machine-api takes no permit", service("machine-api"), "acquire", windlass, "quorum/permit", "", false},
		{"machine-api writes no node status", service("machine-api"), "update", "", "nodes/status", "worker-1", false},
		{"etcd-guardian patches machines", service("etcd-guardian"), "patch", machine, "machines", "m", true},
		{"etcd-guardian deletes no machine", service("etcd-guardian"), "delete", machine, "machines", "m", false},
		{
			"etcd-guardian answers for its hook", service("etcd-guardian"), "complete", windlass, "hooks",
			"clusteroperator/etcd", true,
		},
		{
			"etcd-guardian answers for no other hook", service("etcd-guardian"), "complete", windlass, "hooks",
			"my-backup-controller", false,
		},
		{
			"eviction-controller takes the permit", service("eviction-controller"), "acquire", windlass, "quorum/permit", "",
			true,
		},
		{"eviction-controller reads machines", service("eviction-controller"), "watch", machine, "machines", "", true},
		{"eviction-controller changes no machine", service("eviction-controller"), "patch", machine, "machines", "m", false},
		{"hook-broker removes hooks", service("hook-broker"), "patch", machine, "machines", "m", true},
		{"hook-broker deletes nothing", service("hook-broker"), "delete", machine, "machines", "m", false},
		{"the gateway itself may nothing", service("gateway"), "get", machine, "machines", "m", false},
		{"an unknown service may nothing", service("intruder"), "get", machine, "machines", "m", false},
		{"a node reads the infrastructure", node, "get", "config.openshift.io", "infrastructures", "cluster", true},
		{"a node changes no node, not even its own", node, "patch", "", "nodes", "worker-1", false},
		{"a node reads no machines", node, "list", machine, "machines", "", false},
		{"a master may everything", person("root", GroupMasters), "delete", "any.group", "things/part", "x", true},
		{"update-orchestrator reads images", service("update-orchestrator"), "get", windlass, "releaseimages", "", true},
		{"a viewer reads no image", person("v", "windlass:viewers"), "get", windlass, "releaseimages", "", false},
		{"an editor reads no image", person("e", "windlass:editors"), "get", windlass, "releaseimages", "", false},
		{"a viewer lists", person("v", "windlass:viewers"), "list", machine, "machinesets", "", true},
		{"a viewer plans", person("v", "windlass:viewers"), "plan", windlass, "quorum", "", true},
		{"a viewer deletes nothing", person("v", "windlass:viewers"), "delete", machine, "machines", "m", false},
		{"a viewer sees no instance", person("v", "windlass:viewers"), "get", windlass, "instances", "i", false},
		{"an editor scales", person("e", "windlass:editors"), "patch", machine, "machinesets", "w", true},
		{"an editor writes no status", person("e", "windlass:editors"), "update", machine, "machines/status", "m", false},
		{"an editor cordons", person("e", "windlass:editors"), "update", "", "nodes", "n", true},
		{
			"an editor writes no status of a workload", person("e", "windlass:editors"), "update", "apps", "deployments/status",
			"d", false,
		},
		{"an editor creates no pod", person("e", "windlass:editors"), "create", "", "pods", "", false},
		{"an editor creates no job", person("e", "windlass:editors"), "create", "batch", "jobs", "", false},
		{"an editor changes no deployment", person("e", "windlass:editors"), "patch", "apps", "deployments", "d", false},
		{"an editor runs no command", person("e", "windlass:editors"), "create", "", "pods/exec", "p", false},
		{
			"an editor writes no file on nodes", person("e", "windlass:editors"), "create", "machineconfiguration.openshift.io",
			"machineconfigs", "", false,
		},
		{"Prometheus reads metrics", person("prometheus", "windlass:metrics-readers"), "get", windlass, "metrics", "", true},
		{
			"Prometheus reads nothing else", person("prometheus", "windlass:metrics-readers"), "list", machine, "machines", "",
			false,
		},
		{"an editor reads no metrics", person("e", "windlass:editors"), "get", windlass, "metrics", "", false},
		{"a viewer reads no metrics", person("v", "windlass:viewers"), "get", windlass, "metrics", "", false},
		{"a service reads no metrics", service("machine-api"), "get", windlass, "metrics", "", false},
		{"an editor takes no permit", person("e", "windlass:editors"), "acquire", windlass, "quorum/permit", "", false},
		{
			"an owner completes its hooks", person("my-backup-controller"), "complete", windlass, "hooks",
			"my-backup-controller", true,
		},
		{
			"an owner completes no other's", person("my-backup-controller"), "complete", windlass, "hooks",
			"clusteroperator/etcd", false,
		},
		{
			"an owner does not complete all hooks at once", person("my-backup-controller"), "complete", windlass, "hooks", "",
			false,
		},
		{"a caller without bindings may do nothing", person("bob"), "get", machine, "machines", "m", false},
		{
			"an anonymous caller may do nothing, even in the masters group",
			Caller{Groups: []string{GroupMasters}},
			"get", machine, "machines", "m",
			false,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, reason := policy.Allowed(tt.caller, Attributes{
				Verb: tt.verb, Group: tt.group, Resource: tt.kind,
				Name: tt.object,
			})
			if got != tt.want || reason == "" {
				t.Errorf("Allowed = %v (%s), want %v", got, reason, tt.want)
			}
		})
	}
	if rules := policy.Rules(person("bob")); len(rules) != 0 {
		t.Errorf("bob has rules: %v", rules)
	}
	if rules := policy.Rules(person("my-backup-controller")); len(rules) != 3 {
		t.Errorf("the owner has %d rules, want 3", len(rules))
	}
	if rules := policy.Rules(person("root", GroupMasters)); len(rules) != 1 || rules[0].Verbs[0] != "*" {
		t.Errorf("a master has rules %v", rules)
	}
}

func TestDeployedPolicyIsTheDefault(t *testing.T) {
	deployed, err := os.ReadFile("../../deploy/policy/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(deployed, IsolatedPolicy()) {
		t.Error("deploy/policy/default.yaml is not kit/identity/policy.yaml followed by policy-isolated.yaml")
	}
}

// TestWhoCreatesPods holds the default policies to B10: commands on nodes are administrators' rights unless pods are
// isolated.
func TestWhoCreatesPods(t *testing.T) {
	binding := strings.NewReplacer("readers", "developers", "name: reader", "name: pod-creator").Replace(
		bindingOfTests("dev"))
	tests := []struct {
		name   string
		text   string
		caller Caller
		verb   string
		group  string
		kind   string
		want   bool
	}{
		{
			"without isolation an editor creates no pod", string(DefaultPolicy()), person("e", "windlass:editors"), "create", "",
			"pods", false,
		},
		{
			"with isolation an editor creates pods", string(IsolatedPolicy()), person("e", "windlass:editors"), "create", "",
			"pods", true,
		},
		{
			"with isolation an editor runs commands", string(IsolatedPolicy()), person("e", "windlass:editors"), "create", "",
			"pods/exec", true,
		},
		{
			"with isolation a viewer creates no pod", string(IsolatedPolicy()), person("v", "windlass:viewers"), "create", "",
			"pods", false,
		},
		{"a developer creates pods", string(DefaultPolicy()) + binding, person("dev"), "create", "", "pods", true},
		{
			"a developer creates deployments", string(DefaultPolicy()) + binding, person("dev"), "create", "apps", "deployments",
			true,
		},
		{"a developer places no pod", string(DefaultPolicy()) + binding, person("dev"), "create", "", "pods/binding", false},
		{
			"a developer writes no status", string(DefaultPolicy()) + binding, person("dev"), "update", "", "pods/status",
			false,
		},
		{
			"a developer writes no machine", string(DefaultPolicy()) + binding, person("dev"), "patch", "machine.openshift.io",
			"machines", false,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			policy := policyOf(t, tt.text)
			if got,
				reason := policy.Allowed(tt.caller, Attributes{Verb: tt.verb, Group: tt.group, Resource: tt.kind}); got != tt.want {
				t.Errorf("Allowed = %v (%s), want %v", got, reason, tt.want)
			}
		})
	}
}

// policyOf returns a policy that follows no file.
func policyOf(t *testing.T, text string) *Policy {
	t.Helper()
	file, err := parsePolicy([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &Policy{file: file}
	p.compile()
	return p
}

const roleOfTests = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: ["*"], resources: ["machines/*", "*/scale", "nodes"], verbs: [get]}]
`

func bindingOfTests(user string) string {
	return `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ` + user + `}]
`
}

func TestPolicyFileIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(checkEvery)
		}
		write(roleOfTests + bindingOfTests("alice"))
		policy, err := LoadPolicy(path)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		policy.Log = slog.New(slog.NewTextHandler(&log, nil))
		reads := func(user string) bool {
			ok, _ := policy.Allowed(person(user), Attributes{Verb: "get", Resource: "nodes", Name: "n"})
			return ok
		}
		if !reads("alice") || reads("bobby") {
			t.Error("the file's policy is not in force")
		}
		write(roleOfTests + bindingOfTests("bobby"))
		if reads("alice") || !reads("bobby") {
			t.Error("the changed file is not in force")
		}
		write(roleOfTests + bindingOfTests("alice") + "\n---\nkind: [")
		if reads("alice") || !reads("bobby") {
			t.Error("a broken file is in force")
		}
		time.Sleep(5 * checkEvery)
		reads("alice")
		if n := strings.Count(log.String(), "the policy file cannot be used"); n != 1 {
			t.Errorf("the broken file is logged %d times:\n%s", n, log.String())
		}
		if ok, _ := policy.Allowed(person("bobby"), Attributes{Verb: "get", Resource: "machinesets/scale", Name: "n"}); !ok {
			t.Error(`"*/scale" does not match`)
		}
	})
}

func TestWrongPoliciesAreRefused(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"an unknown field", strings.Replace(roleOfTests, "rules:", "rule:", 1), "unknown field"},
		{"an unknown kind", strings.Replace(roleOfTests, "ClusterRole", "Rule", 1), `kind "Rule"`},
		{"nothing", "", "no ClusterRoleBinding"},
		{"comments alone", "# nothing\n---\n# here\n", "no ClusterRoleBinding"},
		{"a file that was cut off", roleOfTests, "no ClusterRoleBinding"},
		{
			"a role without a namespace", strings.Replace(roleOfTests, "ClusterRole", "Role", 1),
			"metadata.namespace must be given",
		},
		{
			"a cluster role with one", strings.Replace(roleOfTests, "name: reader", "name: reader, namespace: dev", 1),
			"metadata.namespace must be given",
		},
		{"a role of another namespace", roleIn("dev") + roleBinding("prod", "Role", "alice"), "there is no Role"},
		{"a cluster role binding of a role", roleIn("dev") + strings.Replace(bindingOfTests("alice"), "kind: ClusterRole,",
			"kind: Role,", 1), "there is no Role"},
		{
			"a rule without resources", strings.Replace(roleOfTests, `resources: ["machines/*", "*/scale", "nodes"], `, "", 1),
			"rules[0]",
		},
		{"a subject without a name", roleOfTests + bindingOfTests(`""`), "want the name"},
		{"another version", strings.Replace(roleOfTests, "/v1", "/v1beta1", 1), "apiVersion"},
		{"a role twice", roleOfTests + "---" + roleOfTests, "once only"},
		{"a binding of a missing role", bindingOfTests("alice"), "there is no ClusterRole"},
		{
			"a service account", roleOfTests + strings.Replace(bindingOfTests("a"), "kind: User", "kind: ServiceAccount", 1),
			"ServiceAccount",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parsePolicy([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func roleIn(namespace string) string {
	return strings.NewReplacer("ClusterRole", "Role", "name: reader", "name: reader, namespace: "+namespace).Replace(
		roleOfTests)
}

func roleBinding(namespace, kind, user string) string {
	return strings.NewReplacer("ClusterRoleBinding", "RoleBinding", "name: readers", "name: readers, namespace: "+
		namespace, "kind: ClusterRole,", "kind: "+kind+",").Replace(bindingOfTests(user))
}

func TestARoleBindingCountsInItsNamespaceAlone(t *testing.T) {
	for _, kind := range []string{"Role", "ClusterRole"} {
		text := roleIn("dev") + roleBinding("dev", "Role", "alice")
		if kind == "ClusterRole" {
			text = roleOfTests + roleBinding("dev", "ClusterRole", "alice")
		}
		policy := policyOf(t, text)
		for _, tt := range []struct {
			namespace, user string
			want            bool
		}{{"dev", "alice", true}, {"prod", "alice", false}, {"", "alice", false}, {"dev", "bob", false}} {
			got, reason := policy.Allowed(person(tt.user), Attributes{Verb: "get", Resource: "nodes", Namespace: tt.namespace})
			if got != tt.want {
				t.Errorf("%s: %s in %q: Allowed = %v (%s), want %v", kind, tt.user, tt.namespace, got, reason, tt.want)
			}
		}
		if rules := policy.Rules(person("alice")); len(rules) != 1 || rules[0].Namespace != "dev" {
			t.Errorf("%s: rules %v", kind, rules)
		}
	}
}

// TestABrokenPolicyFileIsReported holds a file that disappears or is emptied to: the former policy, and an error that
// lasts.
func TestABrokenPolicyFileIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(roleOfTests+bindingOfTests("alice")), 0o600); err != nil {
			t.Fatal(err)
		}
		policy, err := LoadPolicy(path)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		policy.Log = slog.New(slog.NewTextHandler(&log, nil))
		changes := 0
		policy.Changed = func(string) { changes++ }
		for name, damage := range map[string]func() error{
			"removed": func() error { return os.Remove(path) },
			"emptied": func() error { return os.WriteFile(path, nil, 0o600) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * checkEvery)
			if policy.Err() == nil {
				t.Errorf("%s: no error", name)
			}
			if ok, _ := policy.Allowed(person("alice"), Attributes{Verb: "get", Resource: "nodes"}); !ok {
				t.Errorf("%s: the former policy is not in force", name)
			}
			time.Sleep(2 * checkEvery)
			if policy.Err() == nil {
				t.Errorf("%s: no error any more, although the file is as it was", name)
			}
		}
		if err := os.WriteFile(path, []byte(roleOfTests+bindingOfTests("bobby")), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * checkEvery)
		if err := policy.Err(); err != nil || changes != 1 {
			t.Errorf("Err = %v and %d changes, want none and 1", err, changes)
		}
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * checkEvery)
		if policy.Err() == nil {
			t.Error("moved away: no error")
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * checkEvery)
		if err := policy.Err(); err != nil {
			t.Errorf("the same file is back: %v", err)
		}
	})
}

// TestNoWildcardOfTheDefaultRolesCoversAPart checks every linked method: the right to change an object by view or edit
// does not include its status, binding a pod, or taking a permit.
func TestNoWildcardOfTheDefaultRolesCoversAPart(t *testing.T) {
	policy, err := LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	may := map[string]bool{"pods/log": true, "pods/eviction": true}
	checked := 0
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				method := file.Services().Get(i).Methods().Get(j)
				access, err := accessOf(nil, "/"+string(file.Services().Get(i).FullName())+"/"+string(method.Name()))
				if err != nil || !strings.Contains(access.GetResource(), "/") || may[access.GetResource()] {
					continue
				}
				checked++
				for _, group := range []string{"windlass:viewers", "windlass:editors"} {
					if ok, why := policy.Allowed(person("p", group), Attributes{
						Verb: access.GetVerb(), Group: access.GetGroup(),
						Resource: access.GetResource(),
					}); ok {
						t.Errorf("%s may %s %s: %s", group, access.GetVerb(), access.GetResource(), why)
					}
				}
			}
		}
		return true
	})
	if checked < 20 {
		t.Errorf("%d parts of resources were checked, too few", checked)
	}
}
