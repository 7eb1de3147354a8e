package kinds

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func newTables(t *testing.T) *Tables {
	t.Helper()
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	tables := New(etcdtest.Store(t), protovalidate.GlobalValidator, policy, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	for _, k := range tables.All() {
		group.Go(func() { _ = k.Run(ctx) })
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return tables
}

// paths returns the fields that an error names.
func paths(err error) []string {
	var out []string
	list, _ := rpcerr.Fields(err)
	for _, f := range list {
		out = append(out, f.Path)
	}
	slices.Sort(out)
	return out
}

// read decodes the one document in text, of the kind of m, strictly.
func read(t *testing.T, text string, m object.Object) {
	t.Helper()
	doc, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := manifest.Decode(doc, m); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, tables *Tables, kind, text, name string) error {
	t.Helper()
	switch kind {
	case "Machine":
		m := &machinev1.Machine{}
		read(t, text, m)
		m.Metadata = named(m.Metadata, name)
		_, err := tables.Machines.Create(t.Context(), m, resource.WriteOptions{DryRun: true})
		return err
	case "MachineSet":
		s := &machinev1.MachineSet{}
		read(t, text, s)
		s.Metadata = named(s.Metadata, name)
		_, err := tables.Sets.Create(t.Context(), s, resource.WriteOptions{DryRun: true})
		return err
	}
	s := &machinev1.ControlPlaneMachineSet{}
	read(t, text, s)
	s.Metadata = named(s.Metadata, name)
	_, err := tables.ControlPlanes.Create(t.Context(), s, resource.WriteOptions{DryRun: true})
	return err
}

func named(m *metav1.ObjectMeta, name string) *metav1.ObjectMeta {
	if m == nil {
		m = &metav1.ObjectMeta{}
	}
	if name != "" {
		m.Name = name
	}
	return m
}

func TestTheDocumentsAreAccepted(t *testing.T) {
	tables := newTables(t)
	for file, tt := range map[string]struct {
		kind    string
		refused []string // fields with names that are missing or placeholders
		named   []string // what is still refused once the object has a name
	}{
		"000-01-Machine.yaml": {"Machine", []string{"metadata.name"}, nil},
		"002-01-Machine.yaml": {
			"Machine",
			[]string{"metadata.name"},
			[]string{"spec.lifecycleHooks.preDrain[0].name"},
		},
		"002-02-Machine.yaml": {
			"Machine",
			[]string{"metadata.name"},
			[]string{"spec.lifecycleHooks.preTerminate[0].name"},
		},
		"002-03-Machine.yaml":        {"Machine", []string{"metadata.name"}, nil},
		"002-04-Machine.yaml":        {"Machine", []string{"metadata.name"}, nil},
		"003-13-MachineSetSpec.yaml": {"MachineSet", []string{"metadata.name"}, nil},
		"003-14-MachineSet.yaml":     {"MachineSet", []string{"metadata.name"}, nil},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.refused, paths(create(t, tables, tt.kind, string(text), ""))); diff != "" {
				t.Errorf("as it is (-want +got):\n%s", diff)
			}
			err = create(t, tables, tt.kind, string(text), "x")
			if diff := cmp.Diff(tt.named, paths(err)); diff != "" || (err != nil) != (tt.named != nil) {
				t.Errorf("with a name: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

const controlPlane = `
metadata: {name: cluster}
spec:
  state: Active
  replicas: 3
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master}}
  template:
    machines_v1beta1_machine_openshift_io:
      failureDomains: {platform: Local, local: [{zone: a}, {zone: b}]}
      metadata:
        labels:
          machine.openshift.io/cluster-api-machine-role: master
          machine.openshift.io/cluster-api-machine-type: master
      spec: {providerSpec: {value: {kind: LocalMachineProviderSpec}}}
`

func TestRefusedObjects(t *testing.T) {
	tables := newTables(t)
	labels := "spec.template.machines_v1beta1_machine_openshift_io.metadata.labels"
	for name, tt := range map[string]struct {
		kind, text string
		want       []string
	}{
		"a hook without an owner": {
			"Machine", "spec: {lifecycleHooks: {preDrain: [{name: HookA}]}}",
			[]string{"spec.lifecycleHooks.preDrain[0].owner"},
		},
		"the same hook twice": {
			"Machine", "spec: {lifecycleHooks: {preDrain: [{name: HookA, owner: own}, {name: HookA, owner: two}]}}",
			[]string{"spec.lifecycleHooks.preDrain[1].name"},
		},
		"a selector that misses the template": {
			"MachineSet", "spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: c}}}}",
			[]string{"spec.template.metadata.labels"},
		},
		"fewer than no replicas": {"MachineSet", "spec: {replicas: -1}", []string{"spec.replicas"}},
		"an unknown policy":      {"MachineSet", "spec: {deletePolicy: Eldest}", []string{"spec.deletePolicy"}},
		"a control plane of two": {"ControlPlaneMachineSet", strings.Replace(controlPlane, "replicas: 3", "replicas: 2",
			1), []string{"spec.replicas"}},
		"a control plane of four": {"ControlPlaneMachineSet", strings.Replace(controlPlane, "replicas: 3", "replicas: 4",
			1), []string{"spec.replicas"}},
		"a second control plane": {"ControlPlaneMachineSet", strings.Replace(controlPlane, "name: cluster", "name: other",
			1), []string{"metadata.name"}},
		"a control plane without a template": {
			"ControlPlaneMachineSet", "metadata: {name: cluster}",
			[]string{"spec.template.machines_v1beta1_machine_openshift_io"},
		},
		"a control plane without provider settings": {
			"ControlPlaneMachineSet", strings.Replace(controlPlane, "{providerSpec: {value: {kind: LocalMachineProviderSpec}}}",
				"{}", 1), []string{"spec.template.machines_v1beta1_machine_openshift_io.spec.providerSpec.value"},
		},
		"a failure domain twice": {
			"ControlPlaneMachineSet", strings.Replace(controlPlane, "{zone: b}]", "{zone: b}, {zone: a}]", 1),
			[]string{"spec.template.machines_v1beta1_machine_openshift_io.failureDomains.local[2]"},
		},
		"failure domains of vSphere": {
			"ControlPlaneMachineSet", strings.Replace(controlPlane, "{platform: Local, local: [{zone: a}, {zone: b}]}",
				"{platform: VSphere, vsphere: [{name: a}]}", 1),
			[]string{"spec.template.machines_v1beta1_machine_openshift_io.failureDomains"},
		},
		"more than 10,000 replicas": {"MachineSet", "spec: {replicas: 10001}", []string{"spec.replicas"}},
		"an unknown platform": {"ControlPlaneMachineSet", strings.Replace(controlPlane, "platform: Local",
			"platform: Moon", 1), []string{"spec.template.machines_v1beta1_machine_openshift_io.failureDomains.platform"}},
		"control plane of workers": {
			"ControlPlaneMachineSet", strings.ReplaceAll(controlPlane, "master", "worker"),
			[]string{
				labels + "['machine.openshift.io/cluster-api-machine-role']",
				labels + "['machine.openshift.io/cluster-api-machine-type']",
			},
		},
		"a control plane as it is":   {"ControlPlaneMachineSet", controlPlane, nil},
		"a name that is no name":     {"Machine", "metadata: {name: My_Machine}", []string{"metadata.name"}},
		"a machine that is too bare": {"Machine", "{}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			given := ""
			if !strings.Contains(tt.text, "name: cluster") && !strings.Contains(tt.text, "metadata: {name") {
				given = "x"
			}
			err := create(t, tables, tt.kind, tt.text, given)
			if diff := cmp.Diff(tt.want, paths(err)); diff != "" || (err != nil) != (tt.want != nil) {
				t.Errorf("error %v, fields (-want +got):\n%s", err, diff)
			}
		})
	}
	err := create(t, tables, "Machine", "metadata: {name: m, namespace: elsewhere}", "")
	if got := status.Code(err); got != codes.NotFound || !strings.Contains(err.Error(), "metadata.namespace") {
		t.Errorf("an unknown namespace gives %v, want NOT_FOUND naming metadata.namespace", err)
	}
}

func TestRefusedChangesOfTheControlPlane(t *testing.T) {
	tables := newTables(t)
	s := &machinev1.ControlPlaneMachineSet{}
	read(t, controlPlane, s)
	if _, err := tables.ControlPlanes.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*machinev1.ControlPlaneMachineSet)
		want   []string
	}{
		"another size":     {func(s *machinev1.ControlPlaneMachineSet) { *s.Spec.Replicas = 5 }, []string{"spec.replicas"}},
		"back to inactive": {func(s *machinev1.ControlPlaneMachineSet) { s.Spec.State = "Inactive" }, []string{"spec.state"}},
		"no state":         {func(s *machinev1.ControlPlaneMachineSet) { s.Spec.State = "" }, []string{"spec.state"}},
		"another selector": {func(s *machinev1.ControlPlaneMachineSet) {
			s.Spec.Selector.MatchLabels = map[string]string{"machine.openshift.io/cluster-api-machine-type": "master"}
		}, []string{"spec.selector"}},
		"another strategy": {func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Strategy.Type = "OnDelete" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tables.ControlPlanes.Modify(t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "cluster"},
				func(s *machinev1.ControlPlaneMachineSet) error {
					tt.change(s)
					return nil
				})
			if diff := cmp.Diff(tt.want, paths(err)); diff != "" || (err != nil) != (tt.want != nil) {
				t.Errorf("error %v, fields (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestWhoMayRemoveAHook(t *testing.T) {
	tables := newTables(t)
	key := object.Key{Namespace: "openshift-machine-api", Name: "m"}
	hook := &machinev1.LifecycleHook{Name: "BackupFileSystem", Owner: "my-backup-controller"}
	if _, err := tables.Machines.Create(t.Context(), &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
			PreTerminate: []*machinev1.LifecycleHook{hook},
		}},
	}); err != nil {
		t.Fatal(err)
	}
	set := func(caller identity.Caller, hooks ...*machinev1.LifecycleHook) error {
		_, err := tables.Machines.Modify(identity.WithCaller(t.Context(), caller), key, func(m *machinev1.Machine) error {
			m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{PreTerminate: hooks}
			return nil
		})
		return err
	}
	editor := identity.Caller{User: "eve", Groups: []string{"windlass:editors", identity.GroupAuthenticated}}
	owner := identity.Caller{User: "my-backup-controller", Groups: []string{identity.GroupAuthenticated}}
	admin := identity.Caller{User: "ada", Groups: []string{identity.GroupMasters, identity.GroupAuthenticated}}
	if err := set(editor); err != nil {
		t.Errorf("before deletion an editor may remove it: %v", err)
	}
	if err := set(editor, hook); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Machines.Delete(t.Context(), key.Namespace, key.Name, nil); err != nil {
		t.Fatal(err)
	}
	if err := set(editor); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an editor removes another's hook: %v, want PERMISSION_DENIED", err)
	}
	if err := set(admin, hook, &machinev1.LifecycleHook{Name: "New", Owner: "me!"}); !slices.Equal(paths(err),
		[]string{"spec.lifecycleHooks.preTerminate"}) {
		t.Errorf("even an administrator may not add one: %v", err)
	}
	if err := set(owner); err != nil {
		t.Errorf("the owner removes its hook: %v", err)
	}
}

func TestWithoutAWishADeletedSetGoesAtOnce(t *testing.T) {
	tables := newTables(t)
	s, err := tables.Sets.Create(t.Context(), &machinev1.MachineSet{Metadata: &metav1.ObjectMeta{Name: "s"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Sets.Delete(t.Context(), s.Metadata.Namespace, "s", nil); err != nil {
		t.Fatal(err)
	}
	if _, there := tables.Sets.Lookup(s.Metadata.Namespace, "s"); there {
		t.Error("the set is still there")
	}
}

// manyHooks returns so many hooks before the drain.
func manyHooks(n int) *machinev1.LifecycleHooks {
	h := &machinev1.LifecycleHooks{}
	for i := range n {
		h.PreDrain = append(h.PreDrain, &machinev1.LifecycleHook{Name: fmt.Sprint("hook", i), Owner: "owner"})
	}
	return h
}

// TestTemplatesThatNoMachineCouldHaveAreRefused has users write what would only fail later, machine by machine, or
// reach past what they may write into a machine.
func TestTemplatesThatNoMachineCouldHaveAreRefused(t *testing.T) {
	tables := newTables(t)
	mallory := identity.WithCaller(t.Context(), identity.Caller{User: "mallory"})
	set := func(name string, change func(*machinev1.MachineTemplateSpec)) *machinev1.MachineSet {
		labels := map[string]string{"q": "x"}
		template := &machinev1.MachineTemplateSpec{
			Metadata: &metav1.ObjectMeta{Labels: labels},
			Spec:     &machinev1.MachineSpec{},
		}
		change(template)
		return &machinev1.MachineSet{Metadata: &metav1.ObjectMeta{Name: name}, Spec: &machinev1.MachineSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"q": "x"}}, Template: template,
		}}
	}
	quorumHook := &machinev1.LifecycleHook{Name: "EtcdQuorumOperator", Owner: "clusteroperator/etcd"}
	bad := map[string]func(*machinev1.MachineTemplateSpec){
		"spec.template.metadata.labels['w']": func(s *machinev1.MachineTemplateSpec) { s.Metadata.Labels["w"] = "../.." },
		"spec.template.metadata.annotations['a b']": func(s *machinev1.MachineTemplateSpec) {
			s.Metadata.Annotations = map[string]string{"a b": ""}
		},
		"spec.template.metadata.annotations['windlass.dev/provider']": func(s *machinev1.MachineTemplateSpec) {
			s.Metadata.Annotations = map[string]string{"windlass.dev/provider": "provider-other"}
		},
		"spec.template.spec.providerID": func(s *machinev1.MachineTemplateSpec) { s.Spec.ProviderId = "local://x/y" },
		"spec.template.spec.metadata.labels['x y']": func(s *machinev1.MachineTemplateSpec) {
			s.Spec.Metadata = &metav1.ObjectMeta{Labels: map[string]string{"x y": "z"}}
		},
		"spec.template.spec.lifecycleHooks.preDrain": func(s *machinev1.MachineTemplateSpec) {
			s.Spec.LifecycleHooks = manyHooks(65)
		},
		"spec.template.spec.lifecycleHooks.preTerminate[0].owner": func(s *machinev1.MachineTemplateSpec) {
			s.Spec.LifecycleHooks = &machinev1.LifecycleHooks{PreTerminate: []*machinev1.LifecycleHook{quorumHook}}
		},
		"spec.template.spec.lifecycleHooks.preDrain[0].owner": func(s *machinev1.MachineTemplateSpec) {
			s.Metadata.Labels["machine.openshift.io/cluster-api-machine-role"] = "worker"
			s.Spec.LifecycleHooks = &machinev1.LifecycleHooks{PreDrain: []*machinev1.LifecycleHook{quorumHook}}
		},
		"spec.template.spec.taints[0].key": func(s *machinev1.MachineTemplateSpec) {
			s.Spec.Taints = []*nodev1.Taint{{Key: "a b", Effect: "NoSchedule"}}
		},
	}
	for path, change := range bad {
		_, err := tables.Sets.Create(mallory, set("s", change), resource.WriteOptions{DryRun: true})
		if diff := cmp.Diff([]string{path}, paths(err)); diff != "" {
			t.Errorf("%s: %v", path, err)
		}
	}
	fine := func(*machinev1.MachineTemplateSpec) {}
	long := strings.Repeat("n", 58)
	if _, err := tables.Sets.Create(mallory, set(long, fine), resource.WriteOptions{DryRun: true}); len(paths(err)) != 1 {
		t.Errorf("a set whose machines have no valid names: %v", err)
	}
	if _, err := tables.Sets.Create(mallory, set(long[1:], fine), resource.WriteOptions{DryRun: true}); err != nil {
		t.Errorf("the longest name of a set: %v", err)
	}
	// what was stored before is still scaled
	stored, err := tables.Sets.Create(t.Context(), set("old", bad["spec.template.spec.providerID"]))
	if err != nil {
		t.Fatal(err)
	}
	stored = object.Clone(stored)
	stored.Spec.Replicas = proto.Int32(2)
	if _, err := tables.Sets.Update(mallory, stored); err != nil {
		t.Errorf("a set that was stored before cannot be scaled: %v", err)
	}
	for _, m := range []*machinev1.Machine{
		{Metadata: &metav1.ObjectMeta{Name: strings.Repeat("n", 64)}, Spec: &machinev1.MachineSpec{}},
		{Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{Metadata: &metav1.ObjectMeta{
			Labels: map[string]string{"x": "/"},
		}}},
		{Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{
			Taints: []*nodev1.Taint{{Key: "x", Value: proto.String("?"), Effect: "NoSchedule"}},
		}},
		{Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{LifecycleHooks: manyHooks(65)}},
		{Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{
			LifecycleHooks: &machinev1.LifecycleHooks{PreDrain: []*machinev1.LifecycleHook{{
				Name: "Other", Owner: "clusteroperator/etcd",
			}}},
		}},
	} {
		if _, err := tables.Machines.Create(mallory, m, resource.WriteOptions{DryRun: true}); len(paths(err)) != 1 {
			t.Errorf("machine %v: %v, want one fault", m, err)
		}
	}
}

// Without the Infrastructure the cluster has no name, and no control-plane machine could be created.
func TestTheInfrastructureIsNotDeleted(t *testing.T) {
	tables := newTables(t)
	_, err := tables.Infrastructure.Create(t.Context(), &machinev1.Infrastructure{
		Metadata: &metav1.ObjectMeta{Name: ClusterName},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tables.Infrastructure.Delete(t.Context(), "", ClusterName, nil)
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("delete: %v, want it refused", err)
	}
}

// TestOwnersAreSetByUsersWhoMayDelete has a user who may only change machines and sets name an owner that does not
// exist, so that the collector would delete them.
func TestOwnersAreSetByUsersWhoMayDelete(t *testing.T) {
	tables := newTables(t)
	mallory := identity.WithCaller(t.Context(), identity.Caller{User: "mallory"})
	editor := identity.WithCaller(t.Context(), identity.Caller{User: "ed", Groups: []string{"windlass:editors"}})
	gone := []*metav1.OwnerReference{{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet", Name: "gone", Uid: "gone",
	}}
	m, err := tables.Machines.Create(t.Context(), &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Name: "owned"}, Spec: &machinev1.MachineSpec{},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := tables.Sets.Create(t.Context(), &machinev1.MachineSet{Metadata: &metav1.ObjectMeta{Name: "owned"}})
	if err != nil {
		t.Fatal(err)
	}
	m, s = object.Clone(m), object.Clone(s)
	m.Metadata.OwnerReferences, s.Metadata.OwnerReferences = gone, gone
	for who, ctx := range map[string]context.Context{"mallory": mallory, "ed": editor} {
		_, machine := tables.Machines.Update(ctx, m, resource.WriteOptions{DryRun: true})
		_, set := tables.Sets.Update(ctx, s, resource.WriteOptions{DryRun: true})
		for kind, err := range map[string]error{"machine": machine, "set": set} {
			if refused := status.Code(err) == codes.PermissionDenied; refused != (who == "mallory") || !refused && err != nil {
				t.Errorf("%s sets the owner of a %s: %v", who, kind, err)
			}
		}
	}
}
