package service

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

func specOf(t *testing.T, fields map[string]any) *machinev1.ProviderSpec {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return &machinev1.ProviderSpec{Value: s}
}

func TestAProviderSpecIsCheckedWhenItIsCreated(t *testing.T) {
	c := newCluster(t)
	conn := c.admin()
	ctx := t.Context()
	machines, sets := machinev1.NewMachineServiceClient(conn), machinev1.NewMachineSetServiceClient(conn)
	planes := machinev1.NewControlPlaneMachineSetServiceClient(conn)
	typo := specOf(t, map[string]any{"kind": "TestSpec", "sise": "large"})
	other := specOf(t, map[string]any{"kind": "TestSpecc", "apiVersion": "example.com/v1"})
	aws := specOf(t, map[string]any{
		"kind": "AWSMachineProviderConfig", "apiVersion": "machine.openshift.io/v1beta1", "deviceIndex": "0",
	})
	role := map[string]string{
		"machine.openshift.io/cluster-api-machine-role": "master", "machine.openshift.io/cluster-api-machine-type": "master",
	}
	const template = "spec.template.machines_v1beta1_machine_openshift_io"
	for name, try := range map[string]struct {
		create func() error
		path   string
	}{
		"a machine": {func() error {
			_, err := machines.CreateMachine(ctx, &machinev1.CreateMachineRequest{DryRun: "All", Machine: &machinev1.Machine{
				Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{ProviderSpec: typo},
			}})
			return err
		}, "spec.providerSpec.value.sise"},
		"a machine of a kind that no provider understands": {func() error {
			_, err := machines.CreateMachine(ctx, &machinev1.CreateMachineRequest{DryRun: "All", Machine: &machinev1.Machine{
				Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{ProviderSpec: other},
			}})
			return err
		}, "spec.providerSpec.value.kind"},
		"a machine of a platform without its image": {func() error {
			_, err := machines.CreateMachine(ctx, &machinev1.CreateMachineRequest{DryRun: "All", Machine: &machinev1.Machine{
				Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{ProviderSpec: aws},
			}})
			return err
		}, "spec.providerSpec.value.ami"},
		"a plan with a value that the platform refuses": {func() error {
			_, err := machines.PlanMachine(ctx, &machinev1.PlanMachineRequest{Machine: &machinev1.Machine{
				Metadata: &metav1.ObjectMeta{Name: "m"}, Spec: &machinev1.MachineSpec{ProviderSpec: aws},
			}})
			return err
		}, "machine.spec.providerSpec.value.deviceIndex"},
		"a set": {func() error {
			s := set("typo", 1)
			s.Spec.Template.Spec.ProviderSpec = typo
			_, err := sets.CreateMachineSet(ctx, &machinev1.CreateMachineSetRequest{DryRun: "All", MachineSet: s})
			return err
		}, "spec.template.spec.providerSpec.value.sise"},
		"a control plane": {func() error {
			_, err := planes.CreateControlPlaneMachineSet(ctx, &machinev1.CreateControlPlaneMachineSetRequest{
				DryRun: "All",
				ControlPlaneMachineSet: &machinev1.ControlPlaneMachineSet{
					Metadata: &metav1.ObjectMeta{Name: "cluster"},
					Spec: &machinev1.ControlPlaneMachineSetSpec{
						Selector: &metav1.LabelSelector{MatchLabels: role},
						Template: &machinev1.ControlPlaneMachineSetTemplate{
							MachinesV1Beta1MachineOpenshiftIo: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
								Metadata: &metav1.ObjectMeta{Labels: role}, Spec: &machinev1.MachineSpec{ProviderSpec: typo},
							},
						},
					},
				},
			})
			return err
		}, template + ".spec.providerSpec.value.sise"},
	} {
		t.Run(name, func(t *testing.T) {
			c.eventually(func() error { // before the provider has introduced itself, a spec is accepted with a warning
				err := try.create()
				if status.Code(err) == codes.InvalidArgument {
					return nil
				}
				return fmt.Errorf("it is not refused: %v", err)
			})
			var paths []string
			fields, _ := rpcerr.Fields(try.create())
			for _, f := range fields {
				paths = append(paths, f.Path)
			}
			if !slices.Contains(paths, try.path) {
				t.Errorf("paths = %q, want %s", paths, try.path)
			}
		})
	}
	for name, spec := range map[string]*machinev1.ProviderSpec{
		"unanswered": specOf(t, map[string]any{"kind": "TestSpec", "away": true}),
		"documented": specOf(t, map[string]any{
			"kind": "AWSMachineProviderConfig", "apiVersion": "machine.openshift.io/v1beta1",
			"ami": map[string]any{"id": "ami-1"},
		}),
	} {
		_, err := machines.CreateMachine(ctx, &machinev1.CreateMachineRequest{Machine: &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{Name: name}, Spec: &machinev1.MachineSpec{ProviderSpec: spec},
		}})
		if err != nil {
			t.Fatalf("machine %s: %v; want it created with a warning", name, err)
		}
		_, err = machines.DeleteMachine(ctx, &machinev1.DeleteMachineRequest{Name: name})
		c.must(err)
		c.eventually(func() error { // the tests share their etcd
			_, err := machines.GetMachine(ctx, &machinev1.GetMachineRequest{Name: name})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return fmt.Errorf("machine %s is still there: %w", name, err)
		})
	}
}

func TestWithoutAProviderTheServiceIsNotAvailable(t *testing.T) {
	none := provider.New(nil, nil, slog.New(slog.DiscardHandler))
	s := operatorState(clusteroperator.State{Available: true}, none, clusteroperator.Condition{}, "")
	if s.Available || !s.Degraded || s.Reason != "ProviderUnavailable" {
		t.Errorf("state = %+v, want it unavailable and degraded", s)
	}
}

func TestMissingRightsOfTheAutoscalerDegradeTheService(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///none", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	one := provider.New(map[string]grpc.ClientConnInterface{"provider-one": conn}, nil, slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		ready   clusteroperator.State
		refused string
		want    clusteroperator.State
	}{
		{clusteroperator.State{Available: true}, "", clusteroperator.State{Available: true}},
		{
			clusteroperator.State{Available: true},
			"x",
			clusteroperator.State{Available: true, Degraded: true, Reason: "RightsMissing", Message: "x"},
		},
		{
			clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "y"},
			"x",
			clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "y"},
		},
	} {
		if s := operatorState(tt.ready, one, clusteroperator.Condition{}, tt.refused); s != tt.want {
			t.Errorf("state = %+v, want %+v", s, tt.want)
		}
	}
}
