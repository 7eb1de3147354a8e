package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const vaultDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: vaults.bank.example.com}
spec:
  group: bank.example.com
  scope: Namespaced
  names: {kind: Vault, plural: vaults, shortNames: [vlt]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Owner, type: string, jsonPath: .spec.owner}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [owner]
            properties:
              owner: {type: string, minLength: 2}
              limit: {type: integer, default: 100}
          status: {type: object, properties: {phase: {type: string}}}
`

func vault(name, spec string) string {
	return "apiVersion: bank.example.com/v1\nkind: Vault\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// as runs a command as a caller, and returns its output; the test fails unless it ends with a code.
func as(t *testing.T, c *harness.Caller, code int, stdin string, args ...string) string {
	t.Helper()
	got, err := c.CLI(stdin, args...)
	if err != nil || got.Code != code {
		t.Fatalf("windlass %v: %v, exit code %d, want %d\n%s%s", args, err, got.Code, code, got.Stdout, got.Stderr)
	}
	return got.Stdout + got.Stderr
}

func TestAKindOfACustomResourceDefinitionIsServedToItsEnd(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Admin()
	as(t, admin, 0, vaultDefinition, "apply", "-f", "-")
	t.Cleanup(func() { c.CLI("delete", "crd", "vaults.bank.example.com", "--ignore-not-found") })
	as(t, admin, 0, "", "wait", "crd/vaults.bank.example.com", "--for=condition=Established", "--timeout=60s")

	as(t, admin, 0, vault("main", "{owner: ann, unknown: 1}"), "apply", "-f", "-")
	if got := as(t, admin, 0, "", "get", "vlt", "main", "-o", "jsonpath={.spec}"); got != `{"limit":100,"owner":"ann"}` {
		t.Errorf("spec %s", got)
	}
	if got := as(t, admin, 0, "", "explain", "vault.spec"); !strings.Contains(got, "owner\t<string> -required-") {
		t.Errorf("explained as %s", got)
	}
	wrong := wants{codes.InvalidArgument, []string{"spec.owner"}, ""}
	cli, err := admin.CLI(vault("bad", "{owner: x}"), "apply", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	wrong.checkCLI(t, cli)
	const path = "/v1/apis/bank.example.com/v1/namespaces/default/vaults"
	resp, err := admin.REST(t.Context(), http.MethodPost, path, "application/json",
		[]byte(`{"kind":"Vault","metadata":{"name":"bad"},"spec":{"owner":"x"}}`))
	if err != nil {
		t.Fatal(err)
	}
	wrong.check(t, "REST", ofResponse(t, resp))

	seen := watchVaults(t, admin)
	if got := <-seen; got != "ADDED main" {
		t.Errorf("watched %s", got)
	}
	as(t, admin, 0, "", "patch", "vault", "main", "--type=merge", "-p", `{"spec":{"limit":7}}`)
	if got := <-seen; got != "MODIFIED main" {
		t.Errorf("watched %s", got)
	}
	vaultRights(t, c)
	as(t, admin, 0, "", "delete", "vault", "main")
	if got := <-seen; got != "DELETED main" {
		t.Errorf("watched %s", got)
	}

	as(t, admin, 0, vault("last", "{owner: ann}"), "create", "-f", "-")
	as(t, admin, 0, "", "delete", "crd", "vaults.bank.example.com")
	if got := as(t, admin, 1, "", "get", "vaults"); !strings.Contains(got, `doesn't have a resource type "vaults"`) {
		t.Errorf("a kind that is gone: %s", got)
	}
}

// vaultRights checks what users may do who have the roles view and edit.
func vaultRights(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, user := range []*harness.Caller{c.As("vera", "windlass:viewers"), c.As("ed", "windlass:editors")} {
		as(t, user, 0, "", "get", "crd", "vaults.bank.example.com")
		if got := as(t, user, 1, "", "delete", "crd", "vaults.bank.example.com"); !strings.Contains(got, "may not delete") {
			t.Errorf("%s deletes a definition: %s", user, got)
		}
		if got := as(t, user, 1, "", "get", "vaults"); !strings.Contains(got, "may not list vaults.bank.example.com") {
			t.Errorf("%s reads objects: %s", user, got)
		}
		_, err := apiextensionsv1.NewCustomObjectServiceClient(user.Conn()).GetCustomObject(t.Context(),
			&apiextensionsv1.GetCustomObjectRequest{
				Group: "example.com", Version: "v1", Resource: "vaults.bank", Namespace: "default", Name: "main",
			})
		wants{code: codes.PermissionDenied}.check(t, "gRPC", ofError(err))
	}
}

// watchVaults returns the changes of vaults, until the test ends.
func watchVaults(t *testing.T, c *harness.Caller) <-chan string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	client := apiextensionsv1.NewCustomObjectServiceClient(c.Conn())
	stream, err := client.WatchCustomObjects(ctx, &apiextensionsv1.WatchCustomObjectsRequest{
		Group: "bank.example.com", Version: "v1", Resource: "vaults",
	})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 16)
	go func() {
		defer close(out)
		for m, err := stream.Recv(); err == nil; m, err = stream.Recv() {
			for _, e := range m.GetEvents() {
				out <- e.GetType() + " " + e.GetObject().GetMetadata().GetName()
			}
		}
	}()
	return out
}
