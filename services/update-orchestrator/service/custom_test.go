package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	kitmanifest "github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// accounts is the definition of the kind Account.
const accounts = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: accounts.ledger.example.com}
spec:
  group: ledger.example.com
  scope: Namespaced
  names: {kind: Account, plural: accounts, shortNames: [acct]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Owner, type: string, jsonPath: .spec.owner}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [owner]
            x-kubernetes-validations:
            - {rule: "self.limit >= self.balance", message: "the limit must not be below the balance"}
            - {rule: "self.owner == oldSelf.owner", message: "the owner cannot be changed"}
            properties:
              owner: {type: string, minLength: 2}
              balance: {type: integer, default: 0}
              limit: {type: integer, default: 100}
          status:
            type: object
            properties:
              phase: {type: string}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              owner: {type: string}
          status:
            type: object
            x-kubernetes-preserve-unknown-fields: true
`

// account is the document of an Account.
func account(name, spec string) string {
	return fmt.Sprintf("apiVersion: ledger.example.com/v1\nkind: Account\nmetadata: {name: %s}\nspec: %s\n", name, spec)
}

// read reads a document.
func read[T proto.Message](t *testing.T, text string, m T) T {
	t.Helper()
	doc, err := kitmanifest.JSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := kitmanifest.Decode(doc, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// customClients are the clients of a caller.
type customClients struct {
	t           *testing.T
	definitions apiextensionsv1.CustomResourceDefinitionServiceClient
	objects     apiextensionsv1.CustomObjectServiceClient
}

func (c *cluster) custom(conn *grpc.ClientConn) customClients {
	return customClients{
		c.t, apiextensionsv1.NewCustomResourceDefinitionServiceClient(conn),
		apiextensionsv1.NewCustomObjectServiceClient(conn),
	}
}

// define creates a definition, and waits until it is Established.
func (c customClients) define(text string) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	d, err := c.definitions.CreateCustomResourceDefinition(c.t.Context(),
		&apiextensionsv1.CreateCustomResourceDefinitionRequest{
			CustomResourceDefinition: read(c.t, text, &apiextensionsv1.CustomResourceDefinition{}),
		})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.await(d.GetMetadata().GetName(), "Established", "True")
}

// await waits for a condition of a definition.
func (c customClients) await(name, typ, want string) (d *apiextensionsv1.CustomResourceDefinition) {
	c.t.Helper()
	servetest.Await(c.t, func() string {
		var err error
		d, err = c.definitions.GetCustomResourceDefinition(c.t.Context(),
			&apiextensionsv1.GetCustomResourceDefinitionRequest{Name: name})
		if err != nil {
			return err.Error()
		}
		if have := object.FindCondition(d.GetStatus().GetConditions(), typ); have.GetStatus() != want {
			return d.GetStatus().String()
		}
		return ""
	})
	return d
}

func (c customClients) create(text string) (*apiextensionsv1.CustomObject, error) {
	c.t.Helper()
	o := read(c.t, text, &apiextensionsv1.CustomObject{})
	_, version, _ := strings.Cut(o.GetApiVersion(), "/")
	return c.objects.CreateCustomObject(c.t.Context(), &apiextensionsv1.CreateCustomObjectRequest{
		Group: "ledger.example.com", Version: version, Resource: "accounts", Namespace: o.GetMetadata().GetNamespace(),
		Object: o,
	})
}

func (c customClients) get(version, name string) (*apiextensionsv1.CustomObject, error) {
	return c.objects.GetCustomObject(c.t.Context(), &apiextensionsv1.GetCustomObjectRequest{
		Group: "ledger.example.com", Version: version, Resource: "accounts", Namespace: "default", Name: name,
	})
}

func (c customClients) patch(name, part, patch string) (*apiextensionsv1.CustomObject, error) {
	return c.objects.PatchCustomObject(c.t.Context(), &apiextensionsv1.PatchCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", Namespace: "default", Name: name,
		Subresource: part,
		Patch:       &httpbody.HttpBody{ContentType: kitmanifest.MergePatch, Data: []byte(patch)},
	})
}

func (c customClients) delete(name string) error {
	_, err := c.objects.DeleteCustomObject(c.t.Context(), &apiextensionsv1.DeleteCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", Namespace: "default", Name: name,
	})
	return err
}

// paths returns the fields that an error names.
func paths(err error) []string {
	var out []string
	faults, _ := rpcerr.Fields(err)
	for _, f := range faults {
		out = append(out, f.Path)
	}
	return out
}

// content returns an object's fields beside its metadata, as JSON.
func content(t *testing.T, o *apiextensionsv1.CustomObject) string {
	t.Helper()
	o = proto.CloneOf(o)
	o.Metadata = nil
	text, err := kitmanifest.Encode(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// defining returns clients of a cluster that has the kind Account.
func defining(t *testing.T) (*cluster, customClients) {
	t.Helper()
	c := start(t)
	c.run()
	clients := c.custom(c.admin)
	clients.define(accounts)
	return c, clients
}

func TestADefinitionIsRefusedWithTheFieldThatIsWrong(t *testing.T) {
	c := start(t)
	c.run()
	clients := c.custom(c.admin)
	for name, test := range map[string]struct{ old, new, path string }{
		"a name that is not that of its plural and group": {
			"{name: accounts.ledger.example.com}", "{name: others.ledger.example.com}", "metadata.name",
		},
		"a schema that is not structural": {
			"{type: string, minLength: 2}", "{minLength: 2}",
			"spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[owner].type",
		},
		"two storage versions": {"storage: false", "storage: true", "spec.versions"},
		"a rule that does not compile": {
			"self.limit >= self.balance", "self.nothing > 1",
			"spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule",
		},
		"a group of Windlass": {"ledger.example.com", "machine.openshift.io", "spec.group"},
		"a conversion by a webhook": {
			"  scope: Namespaced", "  scope: Namespaced\n  conversion: {strategy: Webhook}",
			"spec.conversion.strategy",
		},
		"the subresource scale": {
			"subresources: {status: {}}",
			"subresources: {status: {}, scale: {specReplicasPath: .spec.x}}",
			"spec.versions[0].subresources.scale",
		},
		"a default that the schema refuses": {
			"default: 100", "default: none",
			"spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[limit].default",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.ReplaceAll(accounts, test.old, test.new)
			_, err := clients.definitions.CreateCustomResourceDefinition(t.Context(),
				&apiextensionsv1.CreateCustomResourceDefinitionRequest{
					CustomResourceDefinition: read(t, text, &apiextensionsv1.CustomResourceDefinition{}),
				})
			if status.Code(err) != codes.InvalidArgument || !slices.Contains(paths(err), test.path) {
				t.Errorf("%v, paths %q; want %s", err, paths(err), test.path)
			}
		})
	}
}

func TestADefinitionKeepsItsScopeAndTheVersionsThatAreStored(t *testing.T) {
	_, clients := defining(t)
	d := clients.await("accounts.ledger.example.com", "NamesAccepted", "True")
	for path, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"spec.scope":      func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Scope = "Cluster" },
		"spec.names.kind": func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Names.Kind = "Other" },
		"status.storedVersions[0]": func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Versions = d.Spec.Versions[1:]
			d.Spec.Versions[0].Storage = proto.Bool(true)
		},
	} {
		next := proto.CloneOf(d)
		change(next)
		next.Metadata.ResourceVersion = ""
		_, err := clients.definitions.UpdateCustomResourceDefinition(t.Context(),
			&apiextensionsv1.UpdateCustomResourceDefinitionRequest{
				Name: d.GetMetadata().GetName(), CustomResourceDefinition: next,
			})
		if !slices.Contains(paths(err), path) {
			t.Errorf("%v, paths %q; want %s", err, paths(err), path)
		}
	}
	if got := d.GetSpec().GetNames(); got.GetSingular() != "account" || got.GetListKind() != "AccountList" {
		t.Errorf("names %v", got)
	}
	if got := d.GetStatus(); !slices.Equal(got.GetStoredVersions(), []string{"v1"}) ||
		!proto.Equal(got.GetAcceptedNames(), d.GetSpec().GetNames()) {
		t.Errorf("status %v", got)
	}
}

func TestAKindWhoseNamesAreTakenIsNotServedUntilTheyAreFree(t *testing.T) {
	_, clients := defining(t)
	other := strings.NewReplacer("accounts", "ledgers", "kind: Account,", "kind: Ledger,").Replace(accounts)
	_, err := clients.definitions.CreateCustomResourceDefinition(t.Context(),
		&apiextensionsv1.CreateCustomResourceDefinitionRequest{
			CustomResourceDefinition: read(t, other, &apiextensionsv1.CustomResourceDefinition{}),
		})
	if err != nil {
		t.Fatal(err)
	}
	d := clients.await("ledgers.ledger.example.com", "NamesAccepted", "False")
	if c := object.FindCondition(d.GetStatus().GetConditions(), "NamesAccepted"); c.GetReason() != "ShortNamesConflict" {
		t.Errorf("%v", c)
	}
	clients.await("ledgers.ledger.example.com", "Established", "False")
	if _, err := clients.definitions.DeleteCustomResourceDefinition(t.Context(),
		&apiextensionsv1.DeleteCustomResourceDefinitionRequest{Name: "accounts.ledger.example.com"}); err != nil {
		t.Fatal(err)
	}
	clients.await("ledgers.ledger.example.com", "Established", "True")
}

func TestObjectsOfADefinedKindAreCheckedAndCompletedByItsSchema(t *testing.T) {
	_, clients := defining(t)
	made, err := clients.create(account("a", "{owner: ann, unknown: 1}\nstatus: {phase: Forged}"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"ledger.example.com/v1","kind":"Account","spec":{"balance":0,"limit":100,"owner":"ann"}}`
	if got := content(t, made); got != want || made.GetMetadata().GetNamespace() != "default" {
		t.Errorf("created %s, want %s", got, want)
	}
	for text, path := range map[string]string{
		account("b", "{owner: x}"):                         "spec.owner",
		account("b", "{owner: 7}"):                         "spec.owner",
		account("b", "{}"):                                 "spec.owner",
		account("b", "{owner: bob, limit: 1, balance: 2}"): "spec",
	} {
		if _, err := clients.create(text); status.Code(err) != codes.InvalidArgument || !slices.Contains(paths(err), path) {
			t.Errorf("%s: %v, paths %q; want %s", text, err, paths(err), path)
		}
	}
	if _, err := clients.patch("a", "", `{"spec":{"owner":"eve"}}`); !strings.Contains(fmt.Sprint(err),
		"the owner cannot") {
		t.Errorf("a change that a transition rule forbids: %v", err)
	}
	if _, err := clients.create(account("a", "{owner: ann}")); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the name is taken: %v", err)
	}
}

func TestTheGenerationOfAnObjectCountsChangesOfAllButItsStatus(t *testing.T) {
	_, clients := defining(t)
	made, err := clients.create(account("a", "{owner: ann}"))
	if err != nil {
		t.Fatal(err)
	}
	changed, err := clients.patch("a", "", `{"spec":{"limit":7},"status":{"phase":"Forged"}}`)
	if err != nil || changed.GetMetadata().GetGeneration() != 2 || changed.GetStatus() != nil {
		t.Errorf("%v, %v", changed, err)
	}
	seen, err := clients.patch("a", "status", `{"spec":{"limit":8},"status":{"phase":"Open"}}`)
	want := `{"apiVersion":"ledger.example.com/v1","kind":"Account","spec":{"balance":0,"limit":7,"owner":"ann"},` +
		`"status":{"phase":"Open"}}`
	if err != nil || content(t, seen) != want || seen.GetMetadata().GetGeneration() != 2 {
		t.Errorf("%s, %v", content(t, seen), err)
	}
	_, err = clients.objects.UpdateCustomObject(t.Context(), &apiextensionsv1.UpdateCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", Namespace: "default", Name: "a", Object: made,
	})
	if status.Code(err) != codes.Aborted {
		t.Errorf("an update of an old resourceVersion: %v", err)
	}
}

func TestObjectsAreServedInAllVersionsOfTheirKind(t *testing.T) {
	_, clients := defining(t)
	old := strings.Replace(account("a", "{owner: ann, limit: 5}"), "/v1", "/v1beta1", 1)
	made, err := clients.create(old)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"ledger.example.com/v1beta1","kind":"Account","spec":{"owner":"ann"}}`
	if got := content(t, made); got != want {
		t.Errorf("created %s, want %s", got, want)
	}
	stored, err := clients.get("v1", "a")
	if err != nil {
		t.Fatal(err)
	}
	if got := stored.GetApiVersion(); got != "ledger.example.com/v1" {
		t.Errorf("stored in %s", got)
	}
	list, err := clients.objects.ListCustomObjects(t.Context(), &apiextensionsv1.ListCustomObjectsRequest{
		Group: "ledger.example.com", Version: "v1beta1", Resource: "accounts",
	})
	if err != nil || list.GetKind() != "AccountList" || list.GetApiVersion() != "ledger.example.com/v1beta1" ||
		content(t, list.GetItems()[0]) != want {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := clients.get("v2", "a"); status.Code(err) != codes.NotFound {
		t.Errorf("a version that is not served: %v", err)
	}
}

func TestAWatchOfADefinedKindShowsEveryChangeUntilTheKindGoes(t *testing.T) {
	_, clients := defining(t)
	stream, err := clients.objects.WatchCustomObjects(t.Context(), &apiextensionsv1.WatchCustomObjectsRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", FieldSelector: "spec.owner=ann",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{account("other", "{owner: bob}"), account("a", "{owner: ann}")} {
		if _, err := clients.create(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := clients.delete("a"); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 2 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEvents() {
			seen = append(seen, e.GetType()+" "+e.GetObject().GetMetadata().GetName())
		}
	}
	if diff := cmp.Diff([]string{"ADDED a", "DELETED a"}, seen); diff != "" {
		t.Error(diff)
	}
	if _, err := clients.definitions.DeleteCustomResourceDefinition(t.Context(),
		&apiextensionsv1.DeleteCustomResourceDefinitionRequest{Name: "accounts.ledger.example.com"}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestADefinitionThatIsDeletedTakesItsObjectsAlongAndSaysWhatItWaitsFor(t *testing.T) {
	c, clients := defining(t)
	held := strings.Replace(account("held", "{owner: ann}"), "{name: held}", "{name: held, finalizers: [example.com/f]}",
		1)
	for _, text := range []string{held, account("free", "{owner: ann}")} {
		if _, err := clients.create(text); err != nil {
			t.Fatal(err)
		}
	}
	const name = "accounts.ledger.example.com"
	if _, err := clients.definitions.DeleteCustomResourceDefinition(t.Context(),
		&apiextensionsv1.DeleteCustomResourceDefinitionRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		d := clients.await(name, "Terminating", "True")
		got := object.FindCondition(d.GetStatus().GetConditions(), "Terminating").GetMessage()
		if want := "1 object remains: default/held (finalizers example.com/f)"; got != want {
			return got
		}
		return ""
	})
	if _, err := clients.create(account("late", "{owner: ann}")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a new object of a kind that goes: %v", err)
	}
	c.stop() // another leader goes on
	c.run()
	servetest.Await(t, func() string {
		if _, err := clients.patch("held", "", `{"metadata":{"finalizers":[]}}`); err != nil {
			return err.Error()
		}
		return ""
	})
	servetest.Await(t, func() string {
		if _, err := clients.definitions.GetCustomResourceDefinition(t.Context(),
			&apiextensionsv1.GetCustomResourceDefinitionRequest{Name: name}); status.Code(err) != codes.NotFound {
			return fmt.Sprint("the definition remains: ", err)
		}
		return ""
	})
	clients.define(accounts)
	if _, err := clients.get("v1", "held"); status.Code(err) != codes.NotFound {
		t.Errorf("an object of the former definition: %v", err)
	}
}

func TestRightsToObjectsAreThoseToTheirGroupAndResource(t *testing.T) {
	c := start(t)
	policy := string(identity.DefaultPolicy()) + `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: accounts-reader}
rules:
- {apiGroups: [ledger.example.com], resources: [accounts], verbs: [get, list, watch]}
- {apiGroups: [windlass.dev], resources: [manifests], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: accounts-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: accounts-reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}
`
	c.write(c.policy, []byte(policy))
	c.run()
	admin := c.custom(c.admin)
	admin.define(accounts)
	admin.define(strings.NewReplacer("accounts", "secrets", "kind: Account,", "kind: Hidden,", "[acct]", "[]").
		Replace(accounts))
	if _, err := admin.create(account("a", "{owner: ann}")); err != nil {
		t.Fatal(err)
	}
	reader := c.custom(c.ground.Dial(c.address, servetest.User("reader")))
	if _, err := reader.get("v1", "a"); err != nil {
		t.Errorf("reading with the right: %v", err)
	}
	if _, err := reader.objects.GetCustomObject(t.Context(), &apiextensionsv1.GetCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "secrets", Namespace: "default", Name: "a",
	}); !strings.Contains(fmt.Sprint(err), "may not get secrets.ledger.example.com") {
		t.Errorf("reading another kind: %v", err)
	}
	_, err := reader.create(account("b", "{owner: ann}"))
	if !strings.Contains(fmt.Sprint(err), "may not create accounts.ledger.example.com") {
		t.Errorf("writing without the right: %v", err)
	}
	_, err = reader.patch("a", "status", `{"status":{"phase":"x"}}`)
	if !strings.Contains(fmt.Sprint(err), "may not patch accounts/status.ledger.example.com") {
		t.Errorf("writing the status without the right: %v", err)
	}
	stream, err := reader.objects.WatchCustomObjects(t.Context(), &apiextensionsv1.WatchCustomObjectsRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "secrets",
	})
	if err == nil {
		_, err = stream.Recv()
	}
	if !strings.Contains(fmt.Sprint(err), "may not watch secrets.ledger.example.com") {
		t.Errorf("watching another kind: %v", err)
	}
	kinds, err := reader.objects.DiscoverCustomObjects(t.Context(), &apiextensionsv1.DiscoverCustomObjectsRequest{})
	if err != nil || len(kinds.GetKinds()) != 4 {
		t.Errorf("%v, %v", kinds, err)
	}
}

// ledger is a release with a definition and an object of its kind.
func ledger(version, spec string) map[string]string {
	definition := strings.Replace(strings.TrimSpace(accounts), "metadata: {name: accounts.ledger.example.com}",
		"metadata:\n  name: accounts.ledger.example.com\n  annotations:\n"+
			"    include.release.openshift.io/self-managed-high-availability: \"true\"", 1)
	files := example(version)
	files["0000_10_ledger_01_accounts.crd.yaml"] = definition + "\n"
	if spec != "" {
		files["0000_10_ledger_02_account.yaml"] = manifest("Account", "ledger.example.com/v1", "main", "spec: "+spec+"\n")
	}
	return files
}

// install installs a release of some files.
func (c *cluster) install(version string, files map[string]string) {
	c.t.Helper()
	c.cfg.initial = c.image(version, files)
	c.sign(c.cfg.initial, c.key)
	c.run()
	c.ready(operators...)
}

func TestAReleaseBringsDefinitionsAndTheirObjectsAndPutsThemBack(t *testing.T) {
	c := start(t)
	c.install("1.0.0", ledger("1.0.0", "{owner: ann, limit: 5}"))
	c.version(completed("1.0.0"))
	clients := c.custom(c.admin)
	clients.await("accounts.ledger.example.com", "Established", "True")
	limit := func(want float64) {
		t.Helper()
		servetest.Await(t, func() string {
			o, err := clients.get("v1", "main")
			if err != nil {
				return err.Error()
			}
			if have := o.GetContent().GetFields()["spec"].GetStructValue().GetFields()["limit"].GetNumberValue(); have != want {
				return fmt.Sprint("limit ", have)
			}
			return ""
		})
	}
	limit(5)
	if _, err := clients.patch("main", "", `{"spec":{"limit":6,"balance":2}}`); err != nil {
		t.Fatal(err)
	}
	limit(5) // by the watch: the next pass over everything is a minute away
	if o, _ := clients.get("v1", "main"); o.GetContent().GetFields()["spec"].GetStructValue().GetFields()["balance"].
		GetNumberValue() != 2 {
		t.Errorf("what the release does not say was put back, too: %v", o)
	}
	if err := clients.delete("main"); err != nil {
		t.Fatal(err)
	}
	limit(5)

	next := c.image("1.0.1", ledger("1.0.1", ""), "1.0.0")
	c.sign(next, c.key)
	c.desire("", next)
	c.version(completed("1.0.1"))
	if _, err := clients.get("v1", "main"); status.Code(err) != codes.NotFound {
		t.Errorf("an object that the release lacks: %v", err)
	}
	if _, err := clients.create(account("mine", "{owner: bob}")); err != nil {
		t.Fatal(err)
	}
	last := c.image("1.0.2", example("1.0.2"), "1.0.1")
	c.sign(last, c.key)
	c.desire("", last)
	c.version(completed("1.0.2"))
	if _, err := clients.get("v1", "mine"); err != nil {
		t.Errorf("a definition that the release lacks keeps its objects: %v", err)
	}
}

func TestAnObjectThatTheSchemaRefusesFailsTheUpdateWithItsField(t *testing.T) {
	c := start(t)
	c.install("1.0.0", ledger("1.0.0", "{owner: ann, limit: many}"))
	c.version(func(cv *updatev1.ClusterVersion) string {
		failing := object.FindCondition(cv.GetStatus().GetConditions(), "Failing")
		if failing.GetStatus() != "True" || !strings.Contains(failing.GetMessage(), "spec.limit") {
			return "not Failing with the field"
		}
		return ""
	})
}

func TestWhatWasKeptWhileItsKindHadNoOwnerIsAppliedAndNoLongerKept(t *testing.T) {
	c := start(t)
	files := ledger("1.0.0", "{owner: ann}")
	delete(files, "0000_10_ledger_01_accounts.crd.yaml")
	c.install("1.0.0", files)
	c.version(completed("1.0.0"))
	manifests := updatev1.NewManifestServiceClient(c.admin)
	kept := func() (kinds []string) {
		t.Helper()
		list, err := manifests.ListManifests(t.Context(), &updatev1.ListManifestsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.GetItems() {
			kinds = append(kinds, m.GetSpec().GetObject().GetKind())
		}
		return kinds
	}
	if kinds := kept(); !slices.Contains(kinds, "Account") {
		t.Fatalf("a kind without a definition: kept are %v", kinds)
	}
	next := c.image("1.0.1", ledger("1.0.1", "{owner: ann}"), "1.0.0")
	c.sign(next, c.key)
	c.desire("", next)
	c.version(completed("1.0.1"))
	if _, err := c.custom(c.admin).get("v1", "main"); err != nil {
		t.Error(err)
	}
	if kinds := kept(); slices.Contains(kinds, "Account") {
		t.Errorf("kept are %v", kinds)
	}
}

func TestADefinitionOfAGroupOfWindlassInAReleaseIsKeptUnchanged(t *testing.T) {
	c := start(t)
	files := ledger("1.0.0", "")
	const file = "0000_10_ledger_01_accounts.crd.yaml"
	files[file] = strings.ReplaceAll(files[file], "ledger.example.com", "config.openshift.io")
	c.install("1.0.0", files)
	c.version(completed("1.0.0"))
	list, err := updatev1.NewManifestServiceClient(c.admin).ListManifests(t.Context(), &updatev1.ListManifestsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.GetItems(), func(m *updatev1.Manifest) bool {
		return m.GetSpec().GetObject().GetName() == "accounts.config.openshift.io"
	}) {
		t.Errorf("kept are %v", list.GetItems())
	}
}
