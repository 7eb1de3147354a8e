package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/manifest"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const mergePatch = "application/merge-patch+json"

func machine(name, spec string) string {
	return "apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata:\n  name: " + name + "\nspec:\n" +
		indent(spec)
}

func machineSet(name, spec string) string {
	return "apiVersion: machine.openshift.io/v1beta1\nkind: MachineSet\nmetadata:\n  name: " + name + "\nspec:\n" +
		indent(spec)
}

func controlPlane(replicas int) string {
	return fmt.Sprintf(`apiVersion: machine.openshift.io/v1
kind: ControlPlaneMachineSet
metadata:
  name: cluster
spec:
  replicas: %d
  selector:
    matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata:
        labels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}
      spec:
        providerSpec: {value: {apiVersion: windlass.dev/v1, kind: LocalMachineProviderSpec}}
`, replicas)
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
}

// badDocuments are wrong by what they say; each way of creating them refuses them for the same fields.
var badDocuments = []struct {
	name, doc string
	wants
}{
	{
		"a hook without an owner", machine("bad-1", "lifecycleHooks: {preDrain: [{name: SomeHook}]}"),
		wants{codes.InvalidArgument, []string{"spec.lifecycleHooks.preDrain[0].owner"}, ""},
	},
	{
		"a hook without a name", machine("bad-2", "lifecycleHooks: {preTerminate: [{owner: some-owner}]}"),
		wants{codes.InvalidArgument, []string{"spec.lifecycleHooks.preTerminate[0].name"}, ""},
	},
	{
		"two hooks of one name at one point",
		machine("bad-3", "lifecycleHooks: {preDrain: [{name: Same, owner: one-owner}, {name: Same, owner: other-owner}]}"),
		wants{codes.InvalidArgument, []string{"spec.lifecycleHooks.preDrain[1].name"}, ""},
	},
	{
		"several wrong fields at once",
		machine("bad-4",
			"lifecycleHooks: {preDrain: [{name: SomeHook}], preTerminate: [{name: '<hook>', owner: some-owner}]}\ntaints: [{key: k, effect: Sometimes}]"),
		wants{codes.InvalidArgument, []string{
			"spec.lifecycleHooks.preDrain[0].owner", "spec.lifecycleHooks.preTerminate[0].name", "spec.taints[0].effect",
		}, ""},
	},
	{"a control plane of two", controlPlane(2), wants{codes.InvalidArgument, []string{"spec.replicas"}, ""}},
	{"a control plane of four", controlPlane(4), wants{codes.InvalidArgument, []string{"spec.replicas"}, ""}},
	{"fewer than no machines", machineSet("bad-5", "replicas: -1"), wants{
		codes.InvalidArgument,
		[]string{"spec.replicas"},
		"",
	}},
	{
		"a selector that the template does not match",
		machineSet("bad-6", "replicas: 0\nselector: {matchLabels: {a: b}}\ntemplate: {metadata: {labels: {a: c}}}"),
		wants{codes.InvalidArgument, []string{"spec.template.metadata.labels"}, ""},
	},
	{
		"a name that is none", machineSet("Not_A_Name", "replicas: 0"),
		wants{codes.InvalidArgument, []string{"metadata.name"}, ""},
	},
	{
		"a namespace that is not there", strings.Replace(machineSet("bad-7", "replicas: 0"), "metadata:\n",
			"metadata:\n  namespace: nowhere\n", 1),
		wants{codes.NotFound, []string{"metadata.namespace"}, ""},
	},
	{"a name that is taken", machineSet("workers", "replicas: 0"), wants{codes.AlreadyExists, nil, "workers"}},
}

func TestBadDocumentsAreRefusedAlikeByEveryWay(t *testing.T) {
	c := shared.Cluster(t)
	before := stored(t, c)
	for _, tt := range badDocuments {
		t.Run(tt.name, func(t *testing.T) {
			for way, got := range createAll(t, c, tt.doc) {
				tt.check(t, way, got)
			}
			cli, err := c.Admin().CLI(tt.doc, "create", "-f", "-")
			if err != nil {
				t.Fatal(err)
			}
			tt.checkCLI(t, cli)
		})
	}
	nothingChanged(t, before, stored(t, c))
}

// createAll creates a document, for good, over REST as JSON and YAML and over gRPC.
func createAll(t *testing.T, c *harness.Cluster, doc string) map[string]refusal {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	k := kinds[headOf(t, asJSON).Kind]
	out := map[string]refusal{"gRPC": ofError(createByGRPC(t, c, asJSON))}
	for contentType, body := range map[string][]byte{"application/json": asJSON, "application/yaml": []byte(doc)} {
		out["REST with "+contentType] = post(t, c, k.path, contentType, body)
	}
	return out
}

func post(t *testing.T, c *harness.Cluster, path, contentType string, body []byte) refusal {
	t.Helper()
	return request(t, c, http.MethodPost, path, contentType, body)
}

func request(t *testing.T, c *harness.Cluster, method, path, contentType string, body []byte) refusal {
	t.Helper()
	resp, err := c.Admin().REST(context.Background(), method, path, contentType, body)
	if err != nil {
		t.Fatal(err)
	}
	r := ofResponse(t, resp)
	if r.Code != codes.OK && resp.Code != httpStatus(r.Code) {
		t.Errorf("HTTP status %d with code %s", resp.Code, r.Code)
	}
	return r
}

type head struct{ Kind string }

func headOf(t *testing.T, doc []byte) head {
	t.Helper()
	var h head
	if err := json.Unmarshal(doc, &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func createByGRPC(t *testing.T, c *harness.Cluster, doc []byte) error {
	t.Helper()
	ctx := t.Context()
	decode := func(m proto.Message) {
		t.Helper()
		if err := manifest.Decode(doc, m); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	switch headOf(t, doc).Kind {
	case "Machine":
		m := &machinev1.Machine{}
		decode(m)
		_, err = machinev1.NewMachineServiceClient(c.Conn()).CreateMachine(ctx, &machinev1.CreateMachineRequest{Machine: m})
	case "MachineSet":
		m := &machinev1.MachineSet{}
		decode(m)
		_, err = machinev1.NewMachineSetServiceClient(c.Conn()).CreateMachineSet(ctx, &machinev1.CreateMachineSetRequest{
			MachineSet: m,
		})
	case "ControlPlaneMachineSet":
		m := &machinev1.ControlPlaneMachineSet{}
		decode(m)
		_, err = machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).CreateControlPlaneMachineSet(ctx,
			&machinev1.CreateControlPlaneMachineSetRequest{ControlPlaneMachineSet: m})
	case "Node":
		m := &nodev1.Node{}
		decode(m)
		_, err = nodev1.NewNodeServiceClient(c.Conn()).CreateNode(ctx, &nodev1.CreateNodeRequest{Node: m})
	default:
		t.Fatalf("kind of %s", doc)
	}
	return err
}

// A message of gRPC cannot be wrong in these ways: so there are REST and the command line, and patches over gRPC, whose
// text the server reads.
func TestTextsThatAreNoDocumentsAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	before := stored(t, c)
	for _, tt := range []struct {
		name, doc string
		wants
	}{
		{
			"all unknown fields",
			machineSet("bad-a",
				"replica: 0\ntemplate: {spec: {lifecycleHook: {}, taints: [{key: k, effect: NoSchedule, until: never}]}}"),
			wants{codes.InvalidArgument, []string{
				"spec.replica", "spec.template.spec.lifecycleHook",
				"spec.template.spec.taints[0].until",
			}, ""},
		},
		{
			"a word where a number belongs", machineSet("bad-b", "replicas: three"),
			wants{codes.InvalidArgument, []string{"spec.replicas"}, ""},
		},
		{
			"a list where an object belongs", machine("bad-c", "lifecycleHooks: [1]"),
			wants{codes.InvalidArgument, []string{"spec.lifecycleHooks"}, ""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asJSON, err := yaml.YAMLToJSON([]byte(tt.doc))
			if err != nil {
				t.Fatal(err)
			}
			path := kinds[headOf(t, asJSON).Kind].path
			tt.check(t, "REST with JSON", post(t, c, path, "application/json", asJSON))
			tt.check(t, "REST with YAML", post(t, c, path, "application/yaml", []byte(tt.doc)))
			cli, err := c.Admin().CLI(tt.doc, "create", "-f", "-")
			if err != nil {
				t.Fatal(err)
			}
			tt.checkCLI(t, cli)
			if headOf(t, asJSON).Kind == "MachineSet" {
				tt.check(t, "patch by gRPC", ofError(patchWorkers(t, c, "application/merge-patch+json", withoutName(t, asJSON))))
			}
		})
	}
	t.Run("text that is no YAML", func(t *testing.T) {
		const doc = "apiVersion: machine.openshift.io/v1beta1\nkind: MachineSet\nmetadata:\n  name: bad-d\n spec: [\n"
		if r := post(t, c, "/v1/machinesets", "application/yaml", []byte(doc)); r.Code != codes.InvalidArgument {
			t.Errorf("REST: %s", r)
		}
		cli, err := c.Admin().CLI(doc, "create", "-f", "-")
		if err != nil {
			t.Fatal(err)
		}
		wants{text: "stdin:"}.checkCLI(t, cli)
	})
	t.Run("text that is no JSON", func(t *testing.T) {
		if r := post(t, c, "/v1/machinesets", "application/json", []byte(`{"spec":`)); r.Code != codes.InvalidArgument {
			t.Errorf("REST: %s", r)
		}
		if r := ofError(patchWorkers(t, c, mergePatch, []byte(`{"spec":`))); r.Code != codes.InvalidArgument {
			t.Errorf("patch by gRPC: %s", r)
		}
	})
	nothingChanged(t, before, stored(t, c))
}

func withoutName(t *testing.T, doc []byte) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(doc, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "metadata")
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func patchWorkers(t *testing.T, c *harness.Cluster, contentType string, patch []byte) error {
	t.Helper()
	_, err := machinev1.NewMachineSetServiceClient(c.Conn()).PatchMachineSet(t.Context(),
		&machinev1.PatchMachineSetRequest{
			Namespace: harness.Namespace, Name: "workers", Patch: &httpbody.HttpBody{ContentType: contentType, Data: patch},
		})
	return err
}

func TestWrongKindsAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	before := stored(t, c)
	doc := strings.Replace(machineSet("bad-e", "replicas: 0"), "kind: MachineSet", "kind: Machine", 1)
	asJSON, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	kindField := wants{code: codes.InvalidArgument, fields: []string{"kind"}}
	kindField.check(t, "REST", post(t, c, "/v1/machinesets", "application/json", asJSON))
	_, err = machinev1.NewMachineSetServiceClient(c.Conn()).CreateMachineSet(t.Context(),
		&machinev1.CreateMachineSetRequest{
			MachineSet: &machinev1.MachineSet{Kind: "Machine", Metadata: &metav1.ObjectMeta{Name: "bad-e"}},
		})
	kindField.check(t, "gRPC", ofError(err))
	versionField := wants{code: codes.InvalidArgument, fields: []string{"apiVersion"}}
	versionField.check(t, "REST", post(t, c, "/v1/machinesets", "application/json",
		[]byte(`{"apiVersion":"apps/v1","kind":"MachineSet","metadata":{"name":"bad-f"}}`)))
	for _, unknown := range []string{
		"kind: Machinery\napiVersion: machine.openshift.io/v1beta1\nmetadata: {name: x}\n",
		"kind: MachineSet\napiVersion: apps/v1\nmetadata: {name: x}\n",
	} {
		cli, err := c.Admin().CLI(unknown, "create", "-f", "-")
		if err != nil {
			t.Fatal(err)
		}
		wants{text: "Machine"}.checkCLI(t, cli)
	}
	nothingChanged(t, before, stored(t, c))
}

func TestStaleWritesAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	sets := machinev1.NewMachineSetServiceClient(c.Conn())
	set, err := sets.GetMachineSet(t.Context(), &machinev1.GetMachineSetRequest{
		Namespace: harness.Namespace,
		Name:      "workers",
	})
	if err != nil {
		t.Fatal(err)
	}
	before := stored(t, c)
	stale := wants{code: codes.Aborted, text: "workers"}
	old := proto.Clone(set).(*machinev1.MachineSet)
	old.Metadata.ResourceVersion = "1"
	old.Spec.Replicas = proto.Int32(7)
	_, err = sets.UpdateMachineSet(t.Context(), &machinev1.UpdateMachineSetRequest{
		Namespace: harness.Namespace,
		Name:      "workers", MachineSet: old,
	})
	stale.check(t, "update by gRPC", ofError(err))
	body, err := manifest.Encode(old)
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/namespaces/" + harness.Namespace + "/machinesets/workers"
	stale.check(t, "update by REST", request(t, c, http.MethodPut, path, "application/json", body))
	patch := `{"metadata":{"resourceVersion":"1"},"spec":{"replicas":7}}`
	stale.check(t, "patch by REST", request(t, c, http.MethodPatch, path, mergePatch, []byte(patch)))
	cli := c.CLI("patch", "machineset", "workers", "--type=merge", "-p", patch)
	stale.checkCLI(t, cli)
	text, err := manifest.YAML(old)
	if err != nil {
		t.Fatal(err)
	}
	cli, err = c.Admin().CLI(string(text), "replace", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	stale.checkCLI(t, cli)
	nothingChanged(t, before, stored(t, c))
}

func TestALivingControlPlaneKeepsItsSize(t *testing.T) {
	c := shared.Cluster(t)
	before := stored(t, c)
	for _, replicas := range []int{2, 4, 5} {
		want := wants{code: codes.InvalidArgument, fields: []string{"spec.replicas"}}
		patch := []byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		_, err := machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).PatchControlPlaneMachineSet(t.Context(),
			&machinev1.PatchControlPlaneMachineSetRequest{
				Namespace: harness.Namespace, Name: "cluster", Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: patch},
			})
		got := ofError(err)
		got.Fields = slices.Compact(got.Fields) // both rules may say so
		want.check(t, "gRPC", got)
		got = request(t, c, http.MethodPatch, "/v1/namespaces/"+harness.Namespace+"/controlplanemachinesets/cluster",
			mergePatch, patch)
		got.Fields = slices.Compact(got.Fields)
		want.check(t, "REST", got)
		want.checkCLI(t, c.CLI("patch", "controlplanemachineset", "cluster", "--type=merge", "-p", string(patch)))
	}
	nothingChanged(t, before, stored(t, c))
}

func TestHooksAddedWhileDeletingAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	held := heldMachine(t, c, "held-by-hook", &machinev1.LifecycleHook{Name: "HoldsIt", Owner: "some-owner"})
	want := wants{code: codes.InvalidArgument, fields: []string{"spec.lifecycleHooks.preDrain"}}
	patch := `{"spec":{"lifecycleHooks":{"preDrain":[{"name":"HoldsIt","owner":"some-owner"},{"name":"TooLate","owner":"some-owner"}]}}}`
	_, err := machinev1.NewMachineServiceClient(c.Conn()).PatchMachine(t.Context(), &machinev1.PatchMachineRequest{
		Namespace: harness.Namespace, Name: held, Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: []byte(patch)},
	})
	want.check(t, "gRPC", ofError(err))
	want.check(t, "REST", request(t, c, http.MethodPatch, "/v1/namespaces/"+harness.Namespace+"/machines/"+held,
		mergePatch, []byte(patch)))
	want.checkCLI(t, c.CLI("patch", "machine", held, "--type=merge", "-p", patch))
	m, err := c.Machine(t.Context(), held)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.GetSpec().GetLifecycleHooks().GetPreDrain()); n != 1 {
		t.Errorf("%d hooks are stored", n)
	}
}

// heldMachine makes a machine whose instance never boots, has it deleted and held by a hook, and lets it go when the
// test ends.
func heldMachine(t *testing.T, c *harness.Cluster, name string, hook *machinev1.LifecycleHook) string {
	t.Helper()
	machines := machinev1.NewMachineServiceClient(c.Conn())
	spec, err := structpb.NewStruct(map[string]any{
		"apiVersion": "windlass.dev/v1", "kind": "LocalMachineProviderSpec", "failure": map[string]any{"boot": "Never"},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = machines.CreateMachine(t.Context(), &machinev1.CreateMachineRequest{Machine: &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: harness.Namespace},
		Spec: &machinev1.MachineSpec{
			LifecycleHooks: &machinev1.LifecycleHooks{PreDrain: []*machinev1.LifecycleHook{hook}},
			ProviderSpec:   &machinev1.ProviderSpec{Value: spec},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.DeleteMachine(name)
	t.Cleanup(func() {
		_, err := machines.PatchMachine(context.Background(), &machinev1.PatchMachineRequest{
			Namespace: harness.Namespace, Name: name,
			Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)},
		})
		if err != nil {
			t.Errorf("let %s go: %v", name, err)
		}
		c.Wait(60*time.Second, name+" to go", func(ctx context.Context) (bool, string, error) {
			_, err := c.Machine(ctx, name)
			return ofError(err).Code == codes.NotFound, "", err
		})
	})
	return name
}

// stored returns the generation of everything that is there: it grows with each change of a spec.
func stored(t *testing.T, c *harness.Cluster) map[string]int32 {
	t.Helper()
	out := map[string]int32{}
	note := func(kind string, m *metav1.ObjectMeta) { out[kind+" "+m.GetUid()+" "+m.GetName()] = m.GetGeneration() }
	for _, m := range c.MustMachines("") {
		note("machine", m.GetMetadata())
	}
	sets, err := machinev1.NewMachineSetServiceClient(c.Conn()).ListMachineSets(t.Context(),
		&machinev1.ListMachineSetsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets.GetItems() {
		note("machineset", s.GetMetadata())
	}
	planes, err := machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).ListControlPlaneMachineSets(t.Context(),
		&machinev1.ListControlPlaneMachineSetsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range planes.GetItems() {
		note("controlplanemachineset", s.GetMetadata())
	}
	return out
}

func nothingChanged(t *testing.T, before, after map[string]int32) {
	t.Helper()
	for k, g := range after {
		if was, ok := before[k]; !ok || was != g {
			t.Errorf("%s: generation %d is stored, before it was %d", k, g, was)
		}
	}
	for k := range before {
		if _, ok := after[k]; !ok {
			t.Errorf("%s is gone", k)
		}
	}
}
