package attacks

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/e2e/harness"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const storedRoles = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: budgets, namespace: of-rhea}
rules:
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [get, list, watch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, create, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rhea, namespace: of-rhea}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: budgets}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: rhea}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: machine-counter}
rules: [{apiGroups: [machine.openshift.io], resources: [machines], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: rhea}
roleRef: {kind: ClusterRole, name: machine-counter}
subjects: [{kind: User, name: rhea}]
`

// TestAStoredRoleGivesItsRightsAndNoOthers stores roles in a running cluster, and takes the bindings away again.
func TestAStoredRoleGivesItsRightsAndNoOthers(t *testing.T) {
	c := shared.Cluster(t)
	for _, namespace := range []string{"of-rhea", "of-strangers"} {
		if err := createNamespace(t, c, c.Admin(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	must := func(by *harness.Caller, stdin string, args ...string) string {
		t.Helper()
		out, err := by.CLI(stdin, args...)
		if err != nil || out.Code != 0 {
			t.Fatalf("%q: %d, %v\n%s%s", args, out.Code, err, out.Stdout, out.Stderr)
		}
		return out.Stdout
	}
	rhea := c.As("rhea")
	budgets := func(namespace string) codes.Code {
		_, err := schedulingv1.NewPodDisruptionBudgetServiceClient(rhea.Conn()).ListPodDisruptionBudgets(t.Context(),
			&schedulingv1.ListPodDisruptionBudgetsRequest{Namespace: namespace})
		return status.Code(err)
	}
	machines := func() codes.Code { // another service's kind
		_, err := machinev1.NewMachineServiceClient(rhea.Conn()).ListMachines(t.Context(), &machinev1.ListMachinesRequest{})
		return status.Code(err)
	}
	if budgets("of-rhea") != codes.PermissionDenied || machines() != codes.PermissionDenied {
		t.Fatal("rhea has rights before she is bound to a role")
	}
	must(c.Admin(), storedRoles, "apply", "-f", "-")
	t.Cleanup(func() {
		_, _ = c.Admin().CLI("", "delete", "clusterrole/machine-counter")
	})
	until(t, "the roles are in force", func() bool { return budgets("of-rhea") == codes.OK && machines() == codes.OK })
	shown := must(c.Admin(), "", "get", "rolebindings", "-n", "of-rhea")
	for _, want := range []string{"ROLE", "role/budgets", "SUBJECTS", "user/rhea"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the table of bindings has no %s:\n%s", want, shown)
		}
	}
	if described := must(c.Admin(), "", "describe", "rolebinding", "rhea", "-n", "of-rhea"); !strings.Contains(described,
		"budgets") {
		t.Errorf("the description of the binding does not name its role:\n%s", described)
	}
	for what, code := range map[string]codes.Code{
		"another namespace": budgets("of-strangers"), "all namespaces": budgets(""),
	} {
		if code != codes.PermissionDenied {
			t.Errorf("budgets of %s: %s, want PERMISSION_DENIED", what, code)
		}
	}
	for what, tt := range map[string]struct{ manifest, want string }{
		"a role with more rights": {
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"more"},
			"rules":[{"apiGroups":["policy"],"resources":["poddisruptionbudgets"],"verbs":["get","delete"]}]}`,
			`rules[0]: user "rhea" may not delete poddisruptionbudgets.policy`,
		},
		"a binding of a greater role": {
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"greater"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"},
			"subjects":[{"kind":"User","name":"rhea"}]}`,
			`roleRef: user "rhea" may not `,
		},
	} {
		plural := map[bool]string{true: "roles", false: "rolebindings"}[strings.Contains(tt.manifest, `"kind":"Role",`)]
		resp, err := rhea.REST(t.Context(), "POST",
			"/v1/namespaces/of-rhea/"+plural, "application/json", []byte(tt.manifest))
		if err != nil || resp.Code != 403 || !strings.Contains(strings.ReplaceAll(string(resp.Body), `\"`, `"`), tt.want) {
			t.Errorf("%s: %d, %v\n%s\nwant %s", what, resp.Code, err, resp.Body, tt.want)
		}
	}
	must(c.Admin(), "", "delete", "rolebinding/rhea", "-n", "of-rhea")
	until(t, "the right in the namespace is gone", func() bool { return budgets("of-rhea") == codes.PermissionDenied })
	if got := machines(); got != codes.OK {
		t.Errorf("machines: %s, want OK: that binding is still there", got)
	}
	must(c.Admin(), "", "delete", "clusterrolebinding/rhea")
	until(t, "the right everywhere is gone", func() bool { return machines() == codes.PermissionDenied })
}
