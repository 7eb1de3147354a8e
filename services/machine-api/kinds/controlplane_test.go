package kinds

import (
	"slices"
	"strings"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const domainsPath = "spec.template.machines_v1beta1_machine_openshift_io.failureDomains"

// masters creates control-plane machines m-0, m-1 … in zones.
func masters(t *testing.T, tables *Tables, zones ...string) {
	t.Helper()
	for i, zone := range zones {
		m := &machinev1.Machine{}
		read(t, "spec: {providerSpec: {value: {kind: LocalMachineProviderSpec, zone: "+zone+"}}}", m)
		m.Metadata = &metav1.ObjectMeta{
			Name:   "m-" + string(rune('0'+i)),
			Labels: map[string]string{"machine.openshift.io/cluster-api-machine-role": "master"},
		}
		if _, err := tables.Machines.Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

func controlPlaneOf(t *testing.T, state string, zones ...string) *machinev1.ControlPlaneMachineSet {
	t.Helper()
	s := &machinev1.ControlPlaneMachineSet{}
	read(t, strings.Replace(controlPlane, "state: Active", "state: "+state, 1), s)
	s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.FailureDomains = zonesOf(t, zones...)
	return s
}

func zonesOf(t *testing.T, zones ...string) *structpb.Struct {
	t.Helper()
	out := &structpb.Struct{}
	if err := out.UnmarshalJSON([]byte(`{"platform":"Local","local":[{"zone":"` +
		strings.Join(zones, `"},{"zone":"`) + `"}]}`)); err != nil {
		t.Fatal(err)
	}
	return out
}

func change(t *testing.T, tables *Tables, warn func(string), f func(*machinev1.ControlPlaneMachineSet)) error {
	t.Helper()
	_, err := tables.ControlPlanes.Modify(t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "cluster"},
		func(s *machinev1.ControlPlaneMachineSet) error { f(s); return nil }, resource.WriteOptions{Warn: warn})
	return err
}

func TestTheFailureDomainsInUseMustBeListed(t *testing.T) {
	tables := newTables(t)
	masters(t, tables, "a", "b", "c")
	for _, state := range []string{"Active", "Inactive"} {
		for _, zones := range [][]string{{"a", "b"}, {"a", "b", "d"}} {
			_, err := tables.ControlPlanes.Create(t.Context(), controlPlaneOf(t, state, zones...))
			if !slices.Equal(paths(err), []string{domainsPath}) || !strings.Contains(err.Error(), "m-2") {
				t.Errorf("%s in %v: %v, want an error that names m-2", state, zones, err)
			}
		}
	}
	if _, err := tables.ControlPlanes.Create(t.Context(), controlPlaneOf(t, "Inactive", "a", "b", "c")); err != nil {
		t.Fatal(err)
	}
	fewer := func(s *machinev1.ControlPlaneMachineSet) {
		s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.FailureDomains = zonesOf(t, "a", "b")
	}
	activate := func(s *machinev1.ControlPlaneMachineSet) { s.Spec.State = active }
	none := func(text string) { t.Errorf("warning %q", text) }
	if err := change(t, tables, none, fewer); err != nil {
		t.Errorf("an inactive set may have any: %v", err)
	}
	if err := change(t, tables, none, activate); !slices.Equal(paths(err), []string{domainsPath}) {
		t.Errorf("it is activated: %v", err)
	}
	tables.DomainFields = func(*structpb.Struct) (map[string]string, bool) { return nil, false }
	if err := change(t, tables, none, activate); status.Code(err) != codes.Unavailable {
		t.Errorf("while the provider is silent: %v, want UNAVAILABLE", err)
	}
	tables.DomainFields = nil
	if err := change(t, tables, none, func(s *machinev1.ControlPlaneMachineSet) {
		s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.FailureDomains = zonesOf(t, "a", "b", "c")
		s.Spec.State = active
	}); err != nil {
		t.Errorf("with those in use: %v", err)
	}
	var warned []string
	if err := change(t, tables, func(text string) { warned = append(warned, text) }, fewer); err != nil {
		t.Fatal(err)
	}
	if want := domainsPath + `: 1 machine(s) move to another failure domain, one index at a time: m-2 from {"zone":"c"} ` +
		`to {"zone":"a"}`; !slices.Equal(warned, []string{want}) {
		t.Errorf("warnings = %q, want %q", warned, want)
	}
}

func TestChangesForNewMachinesOnlyAreWarnedOf(t *testing.T) {
	tables := newTables(t)
	if _, err := tables.ControlPlanes.Create(t.Context(), controlPlaneOf(t, "Active", "a")); err != nil {
		t.Fatal(err)
	}
	var warned []string
	if err := change(t, tables, func(text string) { warned = append(warned, text) },
		func(s *machinev1.ControlPlaneMachineSet) {
			s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec.Taints = []*nodev1.Taint{{Key: "k", Effect: "NoSchedule"}}
		}); err != nil {
		t.Fatal(err)
	}
	if len(warned) != 1 ||
		!strings.Contains(warned[0], "spec.taints apply to new machines only; windlass rollout restart") {
		t.Errorf("warnings = %q", warned)
	}
}

func TestADeletedControlPlaneIsNotActivated(t *testing.T) {
	tables := newTables(t)
	if _, err := tables.ControlPlanes.Create(t.Context(), controlPlaneOf(t, "Inactive", "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.ControlPlanes.Delete(t.Context(), "openshift-machine-api", "cluster", nil); err != nil {
		t.Fatal(err)
	}
	err := change(t, tables, nil, func(s *machinev1.ControlPlaneMachineSet) { s.Spec.State = active })
	if !slices.Equal(paths(err), []string{"spec.state"}) {
		t.Errorf("error %v, want one at spec.state", err)
	}
}

func TestFailureDomainsAreOfTheClustersPlatform(t *testing.T) {
	tables := newTables(t)
	i, err := tables.Infrastructure.Create(t.Context(), &machinev1.Infrastructure{
		Metadata: &metav1.ObjectMeta{Name: ClusterName},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Infrastructure.Modify(t.Context(), object.KeyOf(i), func(i *machinev1.Infrastructure) error {
		i.Status = &machinev1.InfrastructureStatus{Platform: "Local"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := tables.Infrastructure.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := controlPlaneOf(t, "Active", "a")
	s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.FailureDomains = &structpb.Struct{}
	if err := s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.FailureDomains.UnmarshalJSON(
		[]byte(`{"platform":"AWS","aws":[{"placement":{"availabilityZone":"z"}}]}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.ControlPlanes.Create(t.Context(), s); !slices.Equal(paths(err),
		[]string{domainsPath + ".platform"}) {
		t.Errorf("error %v, want one at the platform", err)
	}
}
