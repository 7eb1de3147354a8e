package service

import (
	"context"
	"fmt"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// free creates a machine without an owner, for the time of the test: etcd is that of all tests.
func (c *cluster) free(conn grpc.ClientConnInterface, namespace, name string, labels map[string]string) {
	c.t.Helper()
	machines := machinev1.NewMachineServiceClient(conn)
	_, err := machines.CreateMachine(c.t.Context(), &machinev1.CreateMachineRequest{
		Machine: &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
			Spec:     set("x", 0).GetSpec().GetTemplate().GetSpec(),
		},
	})
	c.must(err)
	c.t.Cleanup(func() {
		ctx := context.Background()
		_, err := machines.DeleteMachine(ctx, &machinev1.DeleteMachineRequest{Namespace: namespace, Name: name})
		c.must(err)
		c.eventually(func() error {
			_, err := machines.GetMachine(ctx, &machinev1.GetMachineRequest{Namespace: namespace, Name: name})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return fmt.Errorf("machine %s is still there: %w", name, err)
		})
	})
}

// A plan of a given set counts the live machines of its own namespace, which is that of the request if it says none,
// and machines of the request that say no namespace are in it.
func TestPlansOfSetsKeepToTheirNamespace(t *testing.T) {
	c := newCluster(t)
	conn := c.admin()
	ctx, sets := t.Context(), machinev1.NewMachineSetServiceClient(conn)
	c.free(conn, "default", "here", map[string]string{"set": "s"})
	c.free(conn, "openshift-machine-api", "there", map[string]string{"set": "s"})
	for name, tt := range map[string]struct {
		request, object string
		want            string
	}{
		"that of the request":    {"default", "", "here"},
		"that of the set":        {"openshift-machine-api", "default", "here"},
		"the default one if not": {"", "", "there"},
	} {
		t.Run(name, func(t *testing.T) {
			given := set("s", 3)
			given.Metadata.Namespace = tt.object
			given.Spec.Selector.MatchLabels = map[string]string{"set": "s"}
			given.Spec.Template.Metadata.Labels = map[string]string{"set": "s"}
			var p *machinev1.PlanMachineSetResponse
			c.eventually(func() (err error) {
				p, err = sets.PlanMachineSet(ctx, &machinev1.PlanMachineSetRequest{Namespace: tt.request, MachineSet: given})
				return err
			})
			if refs := p.GetAdoptionReferences(); len(refs) != 1 || refs[0].GetName() != tt.want || refs[0].GetUid() == "" ||
				p.GetCreations() != 2 || p.GetCreationsNow() != 2 {
				t.Errorf("plan = %v, want to adopt %s and to create two", p, tt.want)
			}
		})
	}
}

// The same of a control plane: a machine of another namespace has no index in it.
func TestPlansOfTheControlPlaneKeepToTheirNamespace(t *testing.T) {
	c := newCluster(t)
	conn := c.admin()
	role := map[string]string{
		"machine.openshift.io/cluster-api-machine-role": "master", "machine.openshift.io/cluster-api-machine-type": "master",
	}
	c.free(conn, "default", "here-0", role)
	c.free(conn, "openshift-machine-api", "there-0", role)
	given := &machinev1.ControlPlaneMachineSet{Spec: &machinev1.ControlPlaneMachineSetSpec{
		State: "Active", Replicas: proto.Int32(3), Selector: &metav1.LabelSelector{MatchLabels: role},
		Template: &machinev1.ControlPlaneMachineSetTemplate{
			MachinesV1Beta1MachineOpenshiftIo: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
				Metadata: &metav1.ObjectMeta{Labels: role}, Spec: set("x", 0).GetSpec().GetTemplate().GetSpec(),
			},
		},
	}}
	for namespace, want := range map[string]string{"default": "here-0", "": "there-0"} {
		var p *machinev1.PlanControlPlaneMachineSetResponse
		c.eventually(func() (err error) {
			p, err = machinev1.NewControlPlaneMachineSetServiceClient(conn).PlanControlPlaneMachineSet(t.Context(),
				&machinev1.PlanControlPlaneMachineSetRequest{Namespace: namespace, ControlPlaneMachineSet: given})
			return err
		})
		if i := p.GetIndexes(); len(i) != 3 || len(i[0].GetMachines()) != 1 || i[0].GetMachines()[0] != want {
			t.Errorf("plan in namespace %q = %v, want %s at index 0", namespace, p, want)
		}
	}
}

// A plan with given objects uses these alone: whole nodes, the time, and the seconds that a node must be ready.
func TestAPlanOfASetWithGivenNodes(t *testing.T) {
	c := newCluster(t)
	sets := machinev1.NewMachineSetServiceClient(c.admin())
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	machine := func(name string) *machinev1.Machine {
		return &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-" + name, Labels: map[string]string{"set": "workers"}},
			Status:   &machinev1.MachineStatus{NodeRef: &metav1.ObjectReference{Name: name}},
		}
	}
	node := func(name string, since time.Duration) *nodev1.Node {
		return &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{
				{Type: "Ready", Status: "True", LastTransitionTime: timestamppb.New(noon.Add(-since))},
			}},
		}
	}
	s := set("workers", 2)
	s.Spec.Selector.MatchLabels = map[string]string{"set": "workers"}
	s.Spec.Template.Metadata.Labels = map[string]string{"set": "workers"}
	req := &machinev1.PlanMachineSetRequest{
		MachineSet: s, Machines: &machinev1.MachineList{
			Items: []*machinev1.Machine{machine("a"), machine("b"), machine("c")},
		},
		Nodes:      &nodev1.NodeList{Items: []*nodev1.Node{node("a", time.Minute), node("b", time.Hour)}},
		ReadyNodes: []string{"c"}, MinReadySeconds: proto.Int32(90), Now: timestamppb.New(noon),
	}
	p, err := sets.PlanMachineSet(t.Context(), req)
	c.must(err)
	if st := p.GetStatus(); st.GetReadyReplicas() != 3 || st.GetAvailableReplicas() != 2 || len(p.GetDeletions()) != 1 ||
		p.GetDeletionsNow() != 0 || len(p.GetAdoptionReferences()) != 3 {
		t.Errorf("plan = %v", p)
	}
	s.Spec.Template.Spec = nil
	s.Spec.Replicas = proto.Int32(9)
	p, err = sets.PlanMachineSet(t.Context(), req)
	c.must(err)
	if e := p.GetEvents(); len(e) != 1 || e[0].GetReason() != "InvalidConfiguration" ||
		p.GetStatus().GetErrorReason() == "" {
		t.Errorf("events = %v, status = %v", p.GetEvents(), p.GetStatus())
	}
	req.Replicas = proto.Int32(10_001)
	_, err = sets.PlanMachineSet(t.Context(), req)
	if list, _ := rpcerr.Fields(err); len(list) != 1 || list[0].Path != "replicas" {
		t.Errorf("error %v, want one at replicas", err)
	}
}

// A plan of a control plane with given objects says of each machine whether it is to be replaced, and why; the platform
// of the cluster does not matter.
func TestAPlanOfAControlPlaneWithGivenNodes(t *testing.T) {
	c := newCluster(t)
	role := map[string]string{
		"machine.openshift.io/cluster-api-machine-role": "master", "machine.openshift.io/cluster-api-machine-type": "master",
	}
	zone := func(name string) *structpb.Value {
		return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"availabilityZone": structpb.NewStringValue(name),
		}})
	}
	domain := func(name string) *structpb.Value {
		return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"placement": zone(name)}})
	}
	spec := func(name string) *machinev1.MachineSpec {
		return &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: &structpb.Struct{
			Fields: map[string]*structpb.Value{
				"kind": structpb.NewStringValue("AWSMachineProviderConfig"), "placement": zone(name),
			},
		}}}
	}
	req := &machinev1.PlanControlPlaneMachineSetRequest{
		ControlPlaneMachineSet: &machinev1.ControlPlaneMachineSet{Spec: &machinev1.ControlPlaneMachineSetSpec{
			State: "Active", Replicas: proto.Int32(3), Selector: &metav1.LabelSelector{MatchLabels: role},
			Template: &machinev1.ControlPlaneMachineSetTemplate{
				MachinesV1Beta1MachineOpenshiftIo: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
					Metadata: &metav1.ObjectMeta{Labels: role}, Spec: spec(""),
					FailureDomains: &structpb.Struct{Fields: map[string]*structpb.Value{
						"platform": structpb.NewStringValue("AWS"),
						"aws": structpb.NewListValue(&structpb.ListValue{
							Values: []*structpb.Value{domain("a"), domain("b"), domain("c")},
						}),
					}},
				},
			},
		}},
		Machines: &machinev1.MachineList{}, Nodes: &nodev1.NodeList{}, Now: timestamppb.New(time.Unix(1e9, 0)),
	}
	for i, zone := range []string{"a", "b", "z"} {
		name := fmt.Sprintf("m-%d", i)
		req.Machines.Items = append(req.Machines.Items, &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-" + name, Labels: role}, Spec: spec(zone),
			Status: &machinev1.MachineStatus{
				Phase: proto.String("Running"), NodeRef: &metav1.ObjectReference{Name: name},
			},
		})
		req.Nodes.Items = append(req.Nodes.Items, &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status:   &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}}},
		})
	}
	p, err := machinev1.NewControlPlaneMachineSetServiceClient(c.admin()).PlanControlPlaneMachineSet(t.Context(), req)
	c.must(err)
	if len(p.GetMachines()) != 3 || len(p.GetObservedFailureDomains()) != 3 || len(p.GetAdoptionReferences()) != 3 ||
		p.GetErrorReason() != "" {
		t.Fatalf("plan = %v", p)
	}
	if m := p.GetMachines()[0]; m.GetNeedsUpdate() || !m.GetReady() {
		t.Errorf("machine %v, want it ready and up to date", m)
	}
	want := `it is in failure domain {"placement":{"availabilityZone":"z"}}, and index 2 belongs to ` +
		`{"placement":{"availabilityZone":"c"}}`
	if m := p.GetMachines()[2]; !m.GetNeedsUpdate() || m.GetReason() != want || m.GetIndex() != 2 {
		t.Errorf("machine %v, want reason %q", m, want)
	}
	req.Nodes.Items[0].Metadata.Labels = map[string]string{"node-role.kubernetes.io/master": ""}
	req.Nodes.Items[0].Metadata.Name = "stray"
	p, err = machinev1.NewControlPlaneMachineSetServiceClient(c.admin()).PlanControlPlaneMachineSet(t.Context(), req)
	c.must(err)
	if p.GetErrorReason() != "UnmanagedNodes" || len(p.GetEvents()) != 1 || p.GetEvents()[0].GetType() != "Warning" {
		t.Errorf("plan = %v, want it stopped by an unmanaged node", p)
	}
}

// What a plan compares with each other is bounded: one request must not occupy the service for minutes.
func TestPlanRequestsAreBounded(t *testing.T) {
	c := newCluster(t)
	conn, ctx := c.admin(), t.Context()
	scalers, instances := machinev1.NewClusterAutoscalerServiceClient(conn), machinev1.NewInstanceServiceClient(conn)
	sets, checked := make([]*machinev1.MachineSet, 501), make([]*machinev1.MachineAutoscaler, 501)
	for i := range sets {
		sets[i] = set(fmt.Sprint("s", i), 0)
		checked[i] = &machinev1.MachineAutoscaler{Spec: &machinev1.MachineAutoscalerSpec{
			MaxReplicas: 1, ScaleTargetRef: &machinev1.MachineAutoscalerTarget{Kind: "MachineSet", Name: "s0"},
		}}
	}
	for want, r := range map[string]*machinev1.PlanClusterAutoscalerRequest{
		"machineSets.items":        {MachineSets: &machinev1.MachineSetList{Items: sets}},
		"machineAutoscalers.items": {MachineAutoscalers: &machinev1.MachineAutoscalerList{Items: checked}},
	} {
		_, err := scalers.PlanClusterAutoscaler(ctx, r)
		if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, err := instances.PlanInstances(ctx, &machinev1.PlanInstancesRequest{
		Instances: []*machinev1.ProvidedInstance{{}}, Nodes: &nodev1.NodeList{Items: make([]*nodev1.Node, 10_001)},
	})
	if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != "nodes.items" {
		t.Errorf("nodes.items: %v", err)
	}
}
