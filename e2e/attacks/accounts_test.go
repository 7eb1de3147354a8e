package attacks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const operatorPod = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: of-olga}
---
apiVersion: v1
kind: Pod
metadata: {name: operator, namespace: of-olga}
spec:
  serviceAccountName: operator
  containers:
  - name: main
    command: [/bin/sh, -c, 'while :; do WINDLASS get pods -o name 2>&1; WINDLASS get pods -n default 2>&1; sleep 1; done']
`

const operatorRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reads-pods, namespace: of-olga}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operator, namespace: of-olga}
roleRef: {kind: Role, name: reads-pods}
subjects: [{kind: ServiceAccount, name: operator, namespace: of-olga}]
`

// TestAPodReachesTheClusterAsItsServiceAccount runs the windlass command in a pod, with nothing but what the pod gets.
func TestAPodReachesTheClusterAsItsServiceAccount(t *testing.T) {
	c := shared.Cluster(t)
	if err := createNamespace(t, c, c.Admin(), "of-olga"); err != nil {
		t.Fatal(err)
	}
	must := func(stdin string, args ...string) string {
		t.Helper()
		out, err := c.Admin().CLI(stdin, args...)
		if err != nil || out.Code != 0 {
			t.Fatalf("%q: %d, %v\n%s%s", args, out.Code, err, out.Stdout, out.Stderr)
		}
		return out.Stdout
	}
	must(strings.ReplaceAll(operatorPod, "WINDLASS", reachableBinary(t)), "create", "-f", "-")
	prints := func(what, want string) {
		t.Helper()
		c.Wait(time.Minute, what, func(context.Context) (bool, string, error) {
			r, err := c.Admin().CLI("", "logs", "operator", "-n", "of-olga", "--tail=4")
			return strings.Contains(r.Stdout, want), r.Stdout + r.Stderr, err
		})
	}
	user := `"system:serviceaccount:of-olga:operator"`
	prints("without a role the pod is refused", fmt.Sprintf("user %s may not list pods in namespace \"of-olga\"", user))
	must(operatorRole, "create", "-f", "-")
	prints("with a role it lists the pods of its namespace", "pod/operator")
	prints("and of no other", fmt.Sprintf("user %s may not list pods in namespace \"default\"", user))

	// A token that is bound to the pod ends with it.
	token := strings.TrimSpace(must("", "create", "token", "operator", "-n", "of-olga", "--pod=operator"))
	call := func(token string) (int, string) {
		t.Helper()
		r, err := c.Anonymous().REST(t.Context(), "GET", "/v1/namespaces/of-olga/pods", "", nil, "Authorization",
			"Bearer "+token)
		if err != nil {
			t.Fatal(err)
		}
		return r.Code, string(r.Body)
	}
	if code, body := call(token); code != 200 {
		t.Errorf("a token of the pod: %d %s", code, body)
	}
	for what, wrong := range map[string]string{
		"for another audience": strings.TrimSpace(must("", "create", "token", "operator", "-n", "of-olga",
			"--audience=vault")),
		"with other claims": strings.Replace(token, ".ey", ".fy", 1),
	} {
		if code, body := call(wrong); code != 401 {
			t.Errorf("a token %s: %d %s", what, code, body)
		}
	}
	must("", "delete", "pod", "operator", "-n", "of-olga", "--now")
	c.Wait(time.Minute, "the token of the deleted pod is refused", func(context.Context) (bool, string, error) {
		code, body := call(token)
		return code == 401, body, nil
	})
}

// reachableBinary returns a copy of the executable that every user can run.
func reachableBinary(t *testing.T) string {
	t.Helper()
	from, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "windlass-accounts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "windlass")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
