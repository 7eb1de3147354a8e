package plan

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"google.golang.org/protobuf/types/known/structpb"
)

func withAddress(name, address string) *machinev1.Machine {
	return &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: "ns", Name: name, Uid: "uid-" + name},
		Spec:     &machinev1.MachineSpec{ProviderId: "test://" + name},
		Status:   &machinev1.MachineStatus{Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: address}}},
	}
}

func TestAProviderCannotGiveAMachineAnothersPlace(t *testing.T) {
	gone := withAddress("gone", "127.1.2.12")
	gone.Status.Conditions = []*metav1.Condition{
		condition(InstanceExists, conditionFalse, severityWarning, "InstanceMissing", ""),
	}
	other := withAddress("other", "127.1.2.11")
	other.Status.Addresses = append(other.Status.Addresses, &nodev1.NodeAddress{Type: "InternalIP", Address: "fd00::11"})
	for _, tt := range []struct {
		name       string
		machineUID string
		providerID string
		address    string
		want       string
	}{
		{"its own instance", "uid-m", "test://m", "127.1.2.10", ""},
		{"an address that is free again, since its machine's instance is gone", "uid-m", "test://m", "127.1.2.12", ""},
		{
			"another machine's instance", "uid-other", "test://m", "127.1.2.10",
			"the provider's instance test://m is of machine uid uid-other",
		},
		{
			"another instance than before", "uid-m", "test://new", "127.1.2.10",
			`the provider has instance "test://new" for the machine, not "test://m"`,
		},
		{
			"localhost", "uid-m", "test://m", "127.0.0.1",
			`the provider's address "127.0.0.1" is localhost, which is every host's own`,
		},
		{
			"localhost in IPv6", "uid-m", "test://m", "::1",
			`the provider's address "::1" is localhost, which is every host's own`,
		},
		{
			"localhost as IPv4 in IPv6", "uid-m", "test://m", "::ffff:127.0.0.1",
			`the provider's address "::ffff:127.0.0.1" is localhost, which is every host's own`,
		},
		{"every address", "uid-m", "test://m", "0.0.0.0", `the provider's address "0.0.0.0" is not that of one host`},
		{"many hosts", "uid-m", "test://m", "224.0.0.1", `the provider's address "224.0.0.1" is not that of one host`},
		{
			"a link-local address", "uid-m", "test://m", "169.254.169.254",
			`the provider's address "169.254.169.254" is a link-local one`,
		},
		{
			"the gateway's address", "uid-m", "test://m", "127.1.2.1",
			`the provider's address "127.1.2.1" is that of a program of the cluster`,
		},
		{
			"the address of a program's container", "uid-m", "test://m", "172.31.250.17",
			`the provider's address "172.31.250.17" is that of a program of the cluster`,
		},
		{"an address beside those of the containers", "uid-m", "test://m", "172.31.250.32", ""},
		{
			"another machine's address", "uid-m", "test://m", "127.1.2.11",
			`the provider's address "127.1.2.11" is that of machine ns/other`,
		},
		{
			"another machine's address in other words", "uid-m", "test://m", "::ffff:127.1.2.11",
			`the provider's address "::ffff:127.1.2.11" is that of machine ns/other`,
		},
		{
			"another machine's second address", "uid-m", "test://m", "fd00::11",
			`the provider's address "fd00::11" is that of machine ns/other`,
		},
		{"a name", "uid-m", "test://m", "gateway", `the provider's address "gateway" is no IP address`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := InstanceFault(InstanceView{
				Machine: withAddress("m", "127.1.2.10"),
				Instance: &providerv1.Instance{
					MachineUid: tt.machineUID, ProviderId: tt.providerID,
					Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: tt.address}},
				},
				Machines: []*machinev1.Machine{withAddress("m", "127.1.2.10"), other, gone},
				Reserved: []netip.Prefix{netip.MustParsePrefix("127.1.2.1/32"), netip.MustParsePrefix("172.31.250.0/27")},
			})
			if got != tt.want {
				t.Errorf("InstanceFault = %q, want %q", got, tt.want)
			}
		})
	}
	fresh := withAddress("m", "")
	fresh.Spec.ProviderId, fresh.Status = "", nil
	if got := InstanceFault(InstanceView{
		Machine: fresh, Instance: &providerv1.Instance{ProviderId: "test://other"},
		Machines: []*machinev1.Machine{withAddress("other", "127.1.2.11")},
	}); got != "the provider's instance test://other belongs to machine ns/other" {
		t.Errorf("another machine's instance for a new one: %q", got)
	}
}

func TestANameAloneLinksNoNode(t *testing.T) {
	m := withAddress("m", "127.1.2.10")
	m.Status.NodeRef = &metav1.ObjectReference{Name: "m", Uid: "node-1"}
	for _, tt := range []struct {
		name string
		node *nodev1.Node
		want bool
	}{
		{"the name alone", &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "m"}}, false},
		{
			"the name, and another machine's uid",
			&nodev1.Node{
				Metadata: &metav1.ObjectMeta{Name: "m", Annotations: map[string]string{nodeid.MachineUID: "uid-twin"}},
				Spec:     &nodev1.NodeSpec{ProviderId: "test://m"},
			}, false,
		},
		{
			"the uid that it registered with",
			&nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "m", Annotations: map[string]string{nodeid.MachineUID: "uid-m"}}},
			true,
		},
		{"the reference's uid", &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "m", Uid: "node-1"}}, true},
		{
			"the reference's name with another uid", &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "m", Uid: "node-2"}},
			false,
		},
		{"the instance", &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "x"}, Spec: &nodev1.NodeSpec{
			ProviderId: "test://m",
		}}, true},
		{"the address", &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "x"}, Status: &nodev1.NodeStatus{
			Addresses: m.Status.Addresses,
		}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := IsNodeOf(tt.node, m, m.Spec.ProviderId); got != tt.want {
				t.Errorf("IsNodeOf = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWhatIsFixedAtCreation(t *testing.T) {
	made := func(role, kind string) *machinev1.Machine {
		m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{}}
		if role != "" {
			m.Metadata.Labels = map[string]string{LabelRole: role}
		}
		if kind != "" {
			m.Spec.ProviderSpec = &machinev1.ProviderSpec{
				Value: &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue(kind)}},
			}
		}
		return m
	}
	label := "metadata.labels['" + LabelRole + "']"
	for _, tt := range []struct {
		name     string
		old, new *machinev1.Machine
		want     []string
	}{
		{"nothing changes", made("worker", "A"), made("worker", "A"), nil},
		{"a worker becomes a control-plane machine", made("worker", "A"), made("master", "A"), []string{label}},
		{"a machine without a role becomes a control-plane machine", made("", "A"), made("master", "A"), []string{label}},
		{"a control-plane machine loses its role", made("master", "A"), made("", "A"), []string{label}},
		{"another provider", made("worker", "A"), made("worker", "B"), []string{"spec.providerSpec.value.kind"}},
		{"a provider spec that was missing", made("worker", ""), made("worker", "B"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, v := range FixedFaults(tt.old, tt.new) {
				got = append(got, v.Path)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
	for name, bad := range map[string]bool{
		"localhost": true, "a.localhost": true, "127.0.0.1": true, "10.1.2.3": true,
		"worker-1": false, "my-localhost": false, "1.2.3.4.5": false,
	} {
		if got := len(NameFaults(name)) > 0; got != bad {
			t.Errorf("NameFaults(%q) = %v", name, got)
		}
	}
}
