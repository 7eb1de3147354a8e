package plans

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestPlansAreNumberedStepsAndWhatIsHeldBack(t *testing.T) {
	machine := func(name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{Kind: "Machine", Name: name}
	}
	for _, tc := range []struct {
		name  string
		print func(*planText)
		want  string
	}{
		{
			"a set that shrinks", func(p *planText) {
				p.machineSet(&machinev1.PlanMachineSetResponse{Deletions: []*machinev1.PlanMachineSetResponse_Deletion{
					{Machine: "a", Priority: 100, Reason: "it is annotated"}, {Machine: "b", Priority: 50.25, Reason: "any may go"},
				}})
			},
			"  1. delete machine/a (priority 100)\n     because it is annotated\n  2. delete machine/b (priority 50.2)\n     because any may go\n",
		},
		{
			"a configuration that spares a restart", func(p *planText) {
				p.config(&configv1.RenderMachineConfigRequest{PoolName: "worker"}, &configv1.RenderMachineConfigResponse{
					MachineConfig: &configv1.MachineConfig{Metadata: &metav1.ObjectMeta{Name: "rendered-worker-1"}},
					Sources:       []string{"a", "b"}, Action: "Restart", ActionReason: "file changed",
					Changes: []*configv1.RenderMachineConfigResponse_Change{{
						Item: "file", How: "changed", Action: "Restart",
						Services: []*configv1.ServiceAction{{Name: "x.service", Reload: true}, {Name: "y.service"}},
					}},
				})
			},
			"Pool:    worker\nConfig:  rendered-worker-1\nSources: a, b\nAction:  Restart (file changed)\n\n" +
				"CHANGE   HOW       ACTION    SERVICES                              REASON\n" +
				"file     changed   Restart   reload x.service, restart y.service   <none>\n",
		},
		{
			"a configuration that is there", func(p *planText) {
				p.config(&configv1.RenderMachineConfigRequest{PoolName: "worker"}, &configv1.RenderMachineConfigResponse{})
			},
			"Pool:    worker\nConfig:  \nSources: <none>\n\nNothing changes: this is what the nodes of the pool have, or get.\n",
		},
		{
			"a configuration of a given pool that nodes have before", func(p *planText) {
				p.config(&configv1.RenderMachineConfigRequest{
					Pool:   &configv1.MachineConfigPool{Metadata: &metav1.ObjectMeta{Name: "storage"}},
					Before: &configv1.MachineConfig{Metadata: &metav1.ObjectMeta{Name: "rendered-storage-1"}},
				}, &configv1.RenderMachineConfigResponse{})
			},
			"Pool:    storage\nConfig:  \nSources: <none>\nBefore:  rendered-storage-1\n\n" +
				"Nothing changes: this is what the nodes have before.\n",
		},
		{
			"a set that grows and adopts", func(p *planText) {
				p.machineSet(&machinev1.PlanMachineSetResponse{Creations: 2, Adoptions: []string{"c"}})
			},
			"  1. adopt machine/c\n     because it matches the selector and has no controller\n  2. create 2 machines at the same time\n",
		},
		{
			"a control plane that waits", func(p *planText) {
				p.controlPlane(&machinev1.PlanControlPlaneMachineSetResponse{
					Indexes: []*machinev1.PlanControlPlaneMachineSetResponse_Index{{Index: 0, Machines: []string{"a", "b"}}},
					Actions: []*metav1.PlannedAction{{
						Action: "CreateMachine", Object: machine("m-0"), Reason: "index 0 has none",
						Details: map[string]string{"failureDomain": "rack-a"},
					}},
					HeldBack: []*metav1.HeldBack{{
						Action: "DeleteMachine", Object: machine("a"), Reason: "its replacement is not ready",
						Unblock:   "machine/b becoming ready",
						SinceTime: timestamppb.New(time.Date(1999, 12, 31, 23, 55, 0, 0, time.UTC)), // a bubble begins in 2000
					}},
				})
			},
			"  INDEX   FAILURE DOMAIN   MACHINES\n  0       <none>           a, b\n\n  1. CreateMachine machine/m-0\n     failureDomain: rack-a\n     because index 0 has none\n" +
				"\nHeld back:\n  - DeleteMachine machine/a\n     because its replacement is not ready\n     for 5m0s so far\n     unblocked by: machine/b becoming ready\n",
		},
		{
			"a deletion that fails", func(p *planText) {
				at := timestamppb.New(time.Date(1999, 12, 31, 23, 55, 0, 0, time.UTC))
				p.machine(&machinev1.PlanMachineResponse{
					Phase: "Deleting", WaitsFor: "the provider",
					Deletion: &machinev1.MachineDeletion{Trigger: "User", RequestedBy: "ada", Reason: "slow", RequestTime: at},
					StepFailures: []*machinev1.StepFailure{
						{Step: "DeleteInstance", Message: "quota", Since: at, Attempts: 9, Resolution: "check the provider"},
					},
				})
			},
			"Phase: Deleting\nDeletion requested by User ada at 1999-12-31T23:55:00Z: slow\n\nNothing to do.\n" +
				"\nWaits for: the provider\nDeleteInstance fails since 1999-12-31T23:55:00Z, attempts: 9, last error: quota\n" +
				"  check the provider\n",
		},
		{"a quorum with nothing to do", func(p *planText) {
			p.quorum(&etcdv1.PlanQuorumResponse{Phase: "Stable", WaitsFor: "member b to answer"})
		}, "Phase: Stable\n\nNothing to do.\n\nWaits for: member b to answer\n"},
		{
			"hooks that wait for an owner", func(p *planText) {
				p.hookTasks(&hookv1.PlanHookTasksResponse{
					HeldBack: []*metav1.HeldBack{{
						Action: "RemoveHook", Object: machine("a"), Reason: "PreDrain hook Backup: waiting for b",
						Unblock: "b completes task t", SinceTime: timestamppb.New(time.Date(1999, 12, 31, 23, 59, 0, 0, time.UTC)),
					}},
					WakeTime: timestamppb.New(time.Date(2000, 1, 1, 0, 9, 0, 0, time.UTC)),
				})
			},
			"Nothing to do.\n\nHeld back:\n  - RemoveHook machine/a\n     because PreDrain hook Backup: waiting for b\n" +
				"     for 1m0s so far\n     unblocked by: b completes task t\n\nEvaluated again in 9m0s.\n",
		},
		{"hooks that are refused", func(p *planText) {
			p.hooks(&machinev1.ValidateHooksResponse{Violations: []*machinev1.ValidateHooksResponse_Violation{
				{Field: "spec.x", Description: "not now"},
			}})
		}, "refused\n* spec.x: not now\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				tc.print(&planText{out: &out})
				if diff := cmp.Diff(tc.want, out.String()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
