package service

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"buf.build/go/protovalidate"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	kitmanifest "github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
)

// redefine changes a definition, and waits until its objects are served by the new schema.
func (c customClients) redefine(old, text string) {
	c.t.Helper()
	d := c.await("accounts.ledger.example.com", "Established", "True")
	next := read(c.t, strings.Replace(accounts, old, text, 1), &apiextensionsv1.CustomResourceDefinition{})
	next.Metadata.ResourceVersion = ""
	changed, err := c.definitions.UpdateCustomResourceDefinition(c.t.Context(),
		&apiextensionsv1.UpdateCustomResourceDefinitionRequest{
			Name: d.GetMetadata().GetName(), CustomResourceDefinition: next,
		})
	if err != nil {
		c.t.Fatal(err)
	}
	servetest.Await(c.t, func() string {
		d := c.await("accounts.ledger.example.com", "Established", "True")
		for _, o := range d.GetStatus().GetConditions() {
			if o.GetType() == "Established" && o.GetObservedGeneration() == changed.GetMetadata().GetGeneration() {
				return ""
			}
		}
		return d.GetStatus().String()
	})
}

func TestARightToAGroupIsNoneToAnotherGroupWhoseNameEndsWithIt(t *testing.T) {
	c := start(t)
	c.write(c.policy, []byte(string(identity.DefaultPolicy())+`
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: everything-of-example}
rules:
- {apiGroups: [example.com], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: everything-of-example}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: everything-of-example}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}
`))
	c.run()
	admin := c.custom(c.admin)
	admin.define(accounts)
	if _, err := admin.create(account("a", "{owner: ann}")); err != nil {
		t.Fatal(err)
	}
	eve := c.custom(c.ground.Dial(c.address, servetest.User("eve")))
	got, err := eve.objects.GetCustomObject(t.Context(), &apiextensionsv1.GetCustomObjectRequest{
		Group: "example.com", Version: "v1", Resource: "accounts.ledger", Namespace: "default", Name: "a",
	})
	if status.Code(err) != codes.NotFound {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTheStatusIsNotWrittenAsAPartOfTheContent(t *testing.T) {
	_, clients := defining(t)
	o := read(t, account("a", "{owner: ann}"), &apiextensionsv1.CustomObject{})
	o.Content.Fields["status"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"phase": structpb.NewStringValue("Forged"),
	}})
	made, err := clients.objects.CreateCustomObject(t.Context(), &apiextensionsv1.CreateCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", Object: o,
	})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v, %v", made, err)
	}
	delete(o.Content.Fields, "status")
	o.Content.Fields["spec"].GetStructValue().Fields["limit"] = structpb.NewNumberValue(math.NaN())
	if _, err := clients.objects.CreateCustomObject(t.Context(), &apiextensionsv1.CreateCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", Object: o,
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a number that JSON does not have: %v", err)
	}
}

func TestADefinitionWithoutAServedVersionServesNothing(t *testing.T) {
	c, clients := defining(t)
	clients.redefine("served: true\n    storage: true", "served: false\n    storage: true")
	if _, err := clients.get("v1", "a"); status.Code(err) != codes.NotFound {
		t.Errorf("a version that is not served: %v", err)
	}
	other := strings.NewReplacer("accounts", "ledgers", "kind: Account,", "kind: Ledger,", "[acct]", "[]",
		"served: true", "served: false").Replace(accounts)
	clients.define(other)
	c.stop()
	c.run()
	clients.await("ledgers.ledger.example.com", "Established", "True")
}

func TestAnObjectThatIsStoredInAVersionThatIsNotServedCanChange(t *testing.T) {
	_, clients := defining(t)
	if _, err := clients.create(account("a", "{owner: ann}")); err != nil {
		t.Fatal(err)
	}
	clients.redefine("served: true\n    storage: true", "served: false\n    storage: true")
	seen, err := clients.objects.PatchCustomObject(t.Context(), &apiextensionsv1.PatchCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1beta1", Resource: "accounts", Name: "a", Subresource: "status",
		Patch: &httpbody.HttpBody{ContentType: kitmanifest.MergePatch, Data: []byte(`{"status":{"phase":"Open"}}`)},
	})
	want := `{"apiVersion":"ledger.example.com/v1beta1","kind":"Account","spec":{"owner":"ann"},"status":{"phase":"Open"}}`
	if err != nil || content(t, seen) != want {
		t.Errorf("%v, %v", seen, err)
	}
}

func TestAnObjectThatANewSchemaRefusesKeepsWhatItHasAndCanBeDeleted(t *testing.T) {
	_, clients := defining(t)
	held := strings.Replace(account("a", "{owner: ann}"), "{name: a}", "{name: a, finalizers: [example.com/f]}", 1)
	if _, err := clients.create(held); err != nil {
		t.Fatal(err)
	}
	clients.redefine("{type: string, minLength: 2}", "{type: string, minLength: 9}")
	if _, err := clients.patch("a", "", `{"metadata":{"labels":{"x":"y"}}}`); err != nil {
		t.Errorf("a label: %v", err)
	}
	if _, err := clients.patch("a", "status", `{"status":{"phase":"Open"}}`); err != nil {
		t.Errorf("a status: %v", err)
	}
	if _, err := clients.patch("a", "", `{"spec":{"limit":7}}`); err != nil {
		t.Errorf("another field: %v", err)
	}
	if _, err := clients.patch("a", "", `{"spec":{"owner":"eve"}}`); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the field that is wrong: %v", err)
	}
	if _, err := clients.create(account("b", "{owner: ann}")); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another object: %v", err)
	}
	if err := clients.delete("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := clients.patch("a", "", `{"metadata":{"finalizers":[]}}`); err != nil {
		t.Error(err)
	}
	if _, err := clients.get("v1", "a"); status.Code(err) != codes.NotFound {
		t.Errorf("it remains: %v", err)
	}
}

func TestObjectsAreReadWithTheDefaultsOfTheSchemaOfToday(t *testing.T) {
	_, clients := defining(t)
	if _, err := clients.create(account("a", "{owner: ann}")); err != nil {
		t.Fatal(err)
	}
	clients.redefine("properties:\n              owner:",
		"properties:\n              tier: {type: string, default: gold}\n"+
			"              owner:")
	got, err := clients.get("v1", "a")
	want := `{"apiVersion":"ledger.example.com/v1","kind":"Account",` +
		`"spec":{"balance":0,"limit":100,"owner":"ann","tier":"gold"}}`
	if err != nil || content(t, got) != want {
		t.Errorf("%v, %v", got, err)
	}
	list, err := clients.objects.ListCustomObjects(t.Context(), &apiextensionsv1.ListCustomObjectsRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts",
	})
	if err != nil || content(t, list.GetItems()[0]) != want {
		t.Errorf("%v, %v", list, err)
	}
	stream, err := clients.objects.WatchCustomObjects(t.Context(), &apiextensionsv1.WatchCustomObjectsRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts",
	})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || content(t, m.GetEvents()[0].GetObject()) != want {
		t.Errorf("%v, %v", m, err)
	}
	same, err := clients.patch("a", "", `{"metadata":{"labels":{"x":"y"}}}`)
	if err != nil || content(t, same) != want {
		t.Errorf("%v, %v", same, err)
	}
}

func TestAnObjectGoesWithItsOwners(t *testing.T) {
	c, clients := defining(t)
	clients.define(strings.NewReplacer("accounts", "ledgers", "kind: Account,", "kind: Ledger,", "[acct]", "[]").
		Replace(accounts))
	ledger, err := clients.objects.CreateCustomObject(t.Context(), &apiextensionsv1.CreateCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "ledgers",
		Object: read(t, strings.Replace(account("l", "{owner: ann}"), "Account", "Ledger", 1),
			&apiextensionsv1.CustomObject{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := clients.create(account("first", "{owner: ann}"))
	if err != nil {
		t.Fatal(err)
	}
	own := func(name string, owners ...*apiextensionsv1.CustomObject) {
		t.Helper()
		var refs []string
		for _, o := range owners {
			refs = append(refs, fmt.Sprintf("{apiVersion: %s, kind: %s, name: %s, uid: %s}", o.GetApiVersion(), o.GetKind(),
				o.GetMetadata().GetName(), o.GetMetadata().GetUid()))
		}
		text := strings.Replace(account(name, "{owner: ann}"), "{name: "+name+"}",
			"{name: "+name+", ownerReferences: ["+strings.Join(refs, ", ")+"]}", 1)
		if _, err := clients.create(text); err != nil {
			t.Fatal(err)
		}
	}
	own("of-ledger", ledger)
	own("of-both", ledger, first)
	own("of-first", first)
	gone := func(name string) {
		t.Helper()
		servetest.Await(t, func() string {
			if _, err := clients.get("v1", name); status.Code(err) != codes.NotFound {
				return fmt.Sprint(name, " remains: ", err)
			}
			return ""
		})
	}
	c.stop() // the owner is deleted with its definition by another leader
	c.run()
	servetest.Await(t, func() string {
		if _, err := clients.definitions.DeleteCustomResourceDefinition(t.Context(),
			&apiextensionsv1.DeleteCustomResourceDefinitionRequest{Name: "ledgers.ledger.example.com"}); err != nil {
			return err.Error()
		}
		return ""
	})
	gone("of-ledger")
	servetest.Await(t, func() string {
		o, err := clients.get("v1", "of-both")
		if err != nil {
			return err.Error()
		}
		if n := len(o.GetMetadata().GetOwnerReferences()); n != 1 {
			return fmt.Sprint(n, " owners")
		}
		return ""
	})
	if _, err := clients.objects.DeleteCustomObject(t.Context(), &apiextensionsv1.DeleteCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts", Name: "first", PropagationPolicy: "Orphan",
	}); err != nil {
		t.Fatal(err)
	}
	gone("first")
	for _, name := range []string{"of-first", "of-both"} {
		if o, err := clients.get("v1", name); err != nil || len(o.GetMetadata().GetOwnerReferences()) > 0 {
			t.Errorf("%v, %v", o, err)
		}
	}
}

// The owners of a kind without a definition are assumed to exist: what is not collected before remains.
func TestADefinitionRemainsUntilWhatItsObjectsOwnIsCollected(t *testing.T) {
	c, clients := defining(t)
	clients.define(strings.NewReplacer("accounts", "ledgers", "kind: Account,", "kind: Ledger,", "[acct]", "[]").
		Replace(accounts))
	ledger, err := clients.objects.CreateCustomObject(t.Context(), &apiextensionsv1.CreateCustomObjectRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "ledgers",
		Object: read(t, strings.Replace(account("l", "{owner: ann}"), "Account", "Ledger", 1),
			&apiextensionsv1.CustomObject{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		name := fmt.Sprint("a", i)
		text := strings.Replace(account(name, "{owner: ann}"), "{name: "+name+"}", fmt.Sprintf(
			"{name: %s, ownerReferences: [{apiVersion: %s, kind: Ledger, name: l, uid: %s}]}", name, ledger.GetApiVersion(),
			ledger.GetMetadata().GetUid()), 1)
		if _, err := clients.create(text); err != nil {
			t.Fatal(err)
		}
	}
	const name = "ledgers.ledger.example.com"
	if _, err := clients.definitions.DeleteCustomResourceDefinition(t.Context(),
		&apiextensionsv1.DeleteCustomResourceDefinitionRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
	c.stop() // another leader goes on
	c.run()
	servetest.Await(t, func() string {
		d, err := clients.definitions.GetCustomResourceDefinition(t.Context(),
			&apiextensionsv1.GetCustomResourceDefinitionRequest{Name: name})
		if status.Code(err) != codes.NotFound {
			return fmt.Sprint("the definition remains: ", d.GetStatus(), err)
		}
		return ""
	})
	list, err := clients.objects.ListCustomObjects(t.Context(), &apiextensionsv1.ListCustomObjectsRequest{
		Group: "ledger.example.com", Version: "v1", Resource: "accounts",
	})
	if err != nil || len(list.GetItems()) > 0 {
		t.Errorf("%d objects of an owner that is gone remain, %v", len(list.GetItems()), err)
	}
}

// Creations race with the deletion of their definition: those that succeed are deleted with it.
func TestNoObjectIsLeftOfADefinitionThatIsGone(t *testing.T) {
	c := start(t)
	c.run()
	clients := c.custom(c.admin)
	for range 3 {
		clients.define(accounts)
		var group sync.WaitGroup
		refused := make(chan error, 8)
		for w := range cap(refused) {
			group.Go(func() {
				for i := 0; ; i++ {
					if _, err := clients.create(account(fmt.Sprint("a", w, "-", i), "{owner: ann}")); err != nil {
						refused <- err
						return
					}
				}
			})
		}
		if _, err := clients.definitions.DeleteCustomResourceDefinition(t.Context(),
			&apiextensionsv1.DeleteCustomResourceDefinitionRequest{Name: "accounts.ledger.example.com"}); err != nil {
			t.Fatal(err)
		}
		group.Wait()
		for range cap(refused) {
			if err := <-refused; status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.NotFound {
				t.Errorf("refused with %v", err)
			}
		}
		servetest.Await(t, func() string {
			if _, err := clients.definitions.GetCustomResourceDefinition(t.Context(),
				&apiextensionsv1.GetCustomResourceDefinitionRequest{Name: "accounts.ledger.example.com"},
			); status.Code(err) != codes.NotFound {
				return fmt.Sprint("the definition remains: ", err)
			}
			return ""
		})
		left, err := etcdtest.Client(t).Get(t.Context(), topology.Prefix("update-orchestrator")+"custom/",
			clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil || left.Count > 0 {
			t.Fatalf("%v, %v", left, err)
		}
	}
}

func TestARightInANamespaceIsNoneToObjectsOfTheCluster(t *testing.T) {
	c := start(t)
	c.run()
	clients := c.custom(c.admin)
	clients.define(strings.Replace(accounts, "scope: Namespaced", "scope: Cluster", 1))
	if _, err := clients.create(account("a", "{owner: ann}")); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"default", "-"} {
		_, err := clients.objects.GetCustomObject(t.Context(), &apiextensionsv1.GetCustomObjectRequest{
			Group: "ledger.example.com", Version: "v1", Resource: "accounts", Namespace: namespace, Name: "a",
		})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
}

// A cluster of an earlier version kept definitions, and the objects of their kinds, as manifests.
func TestAKeptDefinitionIsTakenOver(t *testing.T) {
	c := start(t)
	files := ledger("1.0.0", "{owner: ann}")
	manifests := resource.NewTable(store.New(etcdtest.Client(t), topology.Prefix("update-orchestrator")),
		protovalidate.GlobalValidator, resource.Config[*updatev1.Manifest]{})
	go func() { _ = manifests.Run(t.Context()) }()
	for file, object := range map[string]*metav1.ObjectReference{
		"0000_10_ledger_01_accounts.crd.yaml": {
			ApiVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition", Name: "accounts.ledger.example.com",
		},
		"0000_10_ledger_02_account.yaml": {ApiVersion: "ledger.example.com/v1", Kind: "Account", Name: "main"},
	} {
		group, _, _ := strings.Cut(object.GetApiVersion(), "/")
		sum := sha256.Sum256([]byte(strings.Join([]string{group, object.GetKind(), "", object.GetName()}, "/")))
		words := strings.ReplaceAll(strings.Join([]string{object.GetKind(), group, object.GetName()}, "-"), ".", "-")
		if _, err := manifests.Create(t.Context(), &updatev1.Manifest{
			Metadata: &metav1.ObjectMeta{Name: strings.ToLower(words) + "-" + hex.EncodeToString(sum[:4])},
			Spec:     &updatev1.ManifestSpec{Object: object, File: file, Version: "1.0.0", Content: []byte(files[file])},
		}); err != nil {
			t.Fatal(err)
		}
	}
	c.install("1.0.0", files)
	c.version(completed("1.0.0"))
	if _, err := c.custom(c.admin).get("v1", "main"); err != nil {
		t.Error(err)
	}
	list, err := updatev1.NewManifestServiceClient(c.admin).ListManifests(t.Context(), &updatev1.ListManifestsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.GetItems() {
		if kind := m.GetSpec().GetObject().GetKind(); kind == "Account" || kind == "CustomResourceDefinition" {
			t.Errorf("%s is still kept", m.GetMetadata().GetName())
		}
	}
}

func TestAnObjectWithManyFaultsIsRefusedForTheFirstOnes(t *testing.T) {
	_, clients := defining(t)
	clients.redefine("properties:\n              owner:", "properties:\n"+
		"              tags: {type: array, items: {type: string, maxLength: 3}}\n              owner:")
	for _, many := range []int{5000, 40000} {
		tags := strings.TrimSuffix(strings.Repeat("abcd,", many), ",")
		_, err := clients.create(account("a", "{owner: ann, tags: ["+tags+"]}"))
		if n := len(paths(err)); status.Code(err) != codes.InvalidArgument || n == 0 || n > 100 {
			t.Errorf("%d elements: %d faults, %s", many, n, status.Code(err))
		}
	}
}
