package plans

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
)

func TestPlansOfUpdatesAndConfigurationsAreTables(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	object := func(kind, name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{Kind: kind, Name: name}
	}
	for _, tc := range []struct {
		name  string
		print func(*planText)
		want  string
	}{
		{
			"a run that waits", func(p *planText) {
				p.run(&updatev1.PlanClusterVersionRunResponse{
					Version: "1.1.0", Mode: "Updating", Done: proto.Int32(1), Total: proto.Int32(3), CurrentStep: proto.Int32(1),
					Steps: []*updatev1.PlanClusterVersionRunResponse_Step{{
						RunLevel: "20", State: "Waiting", Chains: []*updatev1.PlanClusterVersionRunResponse_Chain{{
							Component: "dns", Manifests: []*updatev1.PlanClusterVersionRunResponse_Manifest{
								{File: "0000_20_dns_00.yaml", Object: object("Service", "dns"), State: "Done"},
								{
									File: "0000_20_dns_01.yaml", Object: object("ClusterOperator", "dns"), State: "Waiting",
									Reason: "ClusterOperatorDegraded", Message: "Cluster operator dns is degraded",
									Resolution: "The operator itself reports it.",
									Wait: &updatev1.UpdateWait{
										Fact: "ClusterOperator dns must report Degraded=False.", Observed: "Degraded=True",
										Since: timestamppb.New(now.Add(-2 * time.Minute)),
									},
								},
								{File: "0000_20_dns_02.yaml", Object: object("Deployment", "dns"), State: "NotBegun"},
							},
						}},
					}},
					Next: []*metav1.ObjectReference{object("Deployment", "dns")},
				}, now)
			},
			`Version:  1.1.0
Mode:     Updating
Progress: 1 of 3 manifests, step 1 of 1

  STEP   LEVEL   COMPONENT   STATE      OBJECT                MANIFEST
  1      20      dns         Done       service/dns           0000_20_dns_00.yaml
  1      20      dns         Waiting    clusteroperator/dns   0000_20_dns_01.yaml
  1      20      dns         NotBegun   deployment/dns        0000_20_dns_02.yaml

Waits and failures:
  - clusteroperator/dns: Cluster operator dns is degraded
    ClusterOperator dns must report Degraded=False.
    seen: Degraded=True
    for 2m so far
    The operator itself reports it.

Next: deployment/dns
`,
		},
		{
			"a run that has failed and goes on later, and an update that is held back", func(p *planText) {
				p.run(&updatev1.PlanClusterVersionRunResponse{
					Version: "1.1.0", Mode: "Updating", Done: proto.Int32(0), Total: proto.Int32(1), CurrentStep: proto.Int32(1),
					Ended: true, NextPassTime: timestamppb.New(now.Add(8 * time.Second)),
					Steps: []*updatev1.PlanClusterVersionRunResponse_Step{{
						State: "Failed", Chains: []*updatev1.PlanClusterVersionRunResponse_Chain{{
							Manifests: []*updatev1.PlanClusterVersionRunResponse_Manifest{{
								Object: object("Service", "dns"), State: "Failed", Message: "Could not update it",
								Resolution: "It is applied again.",
							}},
						}},
					}},
					HeldBack: []*metav1.HeldBack{
						{Action: "Update", Reason: "updates are paused", Unblock: "windlass adm upgrade resume"},
					},
				}, now)
			},
			`Version:  1.1.0
Mode:     Updating
Progress: 0 of 1 manifests, step 1 of 1, the pass has failed; the next pass begins in 8s

  STEP   LEVEL    COMPONENT   STATE    OBJECT        MANIFEST
  1      <none>   <none>      Failed   service/dns   <none>

Waits and failures:
  - service/dns: Could not update it
    It is applied again.

Held back:
  - Update
     because updates are paused
     unblocked by: windlass adm upgrade resume
`,
		},
		{
			"a release whose contents are known", func(p *planText) {
				p.release(&updatev1.PlanReleaseResponse{
					Mode: "Updating", ManifestCount: proto.Int32(2), ExcludedCount: proto.Int32(1), RemovalCount: proto.Int32(0),
					Steps: []*updatev1.PlanReleaseResponse_Step{
						{RunLevel: "10", Chains: []*updatev1.PlanReleaseResponse_Chain{{Component: "a", Manifests: []string{"a.yaml"}}}},
						{RunLevel: "20", Job: true, Chains: []*updatev1.PlanReleaseResponse_Chain{
							{Component: "b", Manifests: []string{"b.yaml"}},
						}},
					},
					Manifests: []*updatev1.ReleaseManifest{
						{File: "a.yaml", Object: object("Service", "a"), Service: "scheduler", CreateOnly: true},
						{File: "a.yaml", Object: object("Widget", "x"), Excluded: "capability X is not enabled"},
						{File: "b.yaml", Object: object("Job", "b"), Service: "scheduler", Job: true},
					},
				})
			},
			`Mode:      Updating
Manifests: 2, and 1 excluded

  STEP   LEVEL   COMPONENT   MANIFEST   OBJECT      SERVICE     NOTES
  1      10      a           a.yaml     service/a   scheduler   created only
  2      20      b           b.yaml     job/b       scheduler   job, once for the release

Excluded:
  MANIFEST   OBJECT     REASON
  a.yaml     widget/x   capability X is not enabled

Kinds that no service owns: kept, and nothing acts on them: none

Objects that the release lacks: none
`,
		},
		{
			"a release of which only names are known", func(p *planText) {
				p.release(&updatev1.PlanReleaseResponse{
					Mode: "Updating", ContentsUnknown: "its image is not kept", Unparsed: []string{"a.yaml"},
					Steps: []*updatev1.PlanReleaseResponse_Step{{
						Chains: []*updatev1.PlanReleaseResponse_Chain{{Manifests: []string{"a.yaml"}}},
					}},
				})
			},
			`Mode:      Updating
Manifests: only their names are known: its image is not kept

  STEP   LEVEL    COMPONENT   MANIFEST   OBJECT   SERVICE   NOTES
  1      <none>   <none>      a.yaml     <none>   <none>    <none>

Names without a run level and component:
* a.yaml
`,
		},
		{
			"a configuration that nodes cannot be brought to", func(p *planText) {
				p.config(&configv1.RenderMachineConfigRequest{PoolName: "worker"}, &configv1.RenderMachineConfigResponse{
					MachineConfig: &configv1.MachineConfig{Metadata: &metav1.ObjectMeta{Name: "r"}}, Action: "Reboot",
					Reconcilable: proto.Bool(false), UnreconcilableReasons: []string{"no driver changes kernel arguments"},
					Changes: []*configv1.RenderMachineConfigResponse_Change{{
						Item: "kernelArguments", How: "changed", Action: "Reboot", Added: []string{"quiet"}, Removed: []string{"debug"},
					}},
				})
			},
			`Pool:    worker
Config:  r
Sources: <none>
Refused: nodes cannot be brought to it, and the pool does not get it:
  * no driver changes kernel arguments
Action:  Reboot

CHANGE            HOW                     ACTION   SERVICES   REASON
kernelArguments   changed +quiet -debug   Reboot   <none>     <none>
`,
		},
		{
			"a pool with waves that waits for a window", func(p *planText) {
				since := timestamppb.New(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC))
				p.pool(&configv1.PlanMachineConfigPoolResponse{
					MaxUnavailable: 1, Capacity: 1,
					Nodes: []*configv1.PlanMachineConfigPoolResponse_NodePlan{
						{Node: "b", State: "Updated", Current: "w-2", Desired: "w-2", Wave: "canary"},
						{Node: "c", State: "Waiting", Current: "w-1", Desired: "w-1", Reason: "waits for wave canary"},
					},
					Status: &configv1.MachineConfigPoolStatus{Waves: []*configv1.MachineConfigPoolWaveStatus{
						{
							Name: "canary", State: "Soaking", Since: since, MachineCount: proto.Int32(1),
							UpdatedMachineCount: proto.Int32(1),
						},
						{State: "Waiting", Since: since, MachineCount: proto.Int32(1), UpdatedMachineCount: proto.Int32(0)},
					}},
				})
			},
			`Max unavailable: 1; unavailable: 0; can start now: 1

NODE   STATE     CURRENT   DESIRED   ACTION   REASON
b      Updated   w-2       w-2       <none>
c      Waiting   w-1       w-1       <none>   waits for wave canary

Waves:
  WAVE     STATE     SINCE                  UPDATED   NODES
  canary   Soaking   2026-12-01T10:00:00Z   1/1       b
  <none>   Waiting   2026-12-01T10:00:00Z   0/1       c

Nothing to do.
`,
		},
		{
			"a pool among others", func(p *planText) {
				p.pool(&configv1.PlanMachineConfigPoolResponse{
					MaxUnavailable: 1,
					Nodes: []*configv1.PlanMachineConfigPoolResponse_NodePlan{{
						Node: "b", State: "Updating", Current: "w-1", Desired: "w-2", Action: "Drain", Reason: "it is drained",
						ActionReason: "the file /etc/a", Services: []*configv1.ServiceAction{{Name: "a.service"}},
						Drain: "Draining: 2 pods left",
					}, {Node: "c", State: "Updated", Current: "w-2", Desired: "w-2"}},
					OtherNodes: []*configv1.PlanMachineConfigPoolResponse_OtherNode{
						{Node: "a", Pool: "infra", Reason: "the custom pool infra wins over worker"},
					},
				})
			},
			`Max unavailable: 1; unavailable: 0; can start now: 0

NODE   STATE      CURRENT   DESIRED   ACTION   REASON
b      Updating   w-1       w-2       Drain    it is drained
c      Updated    w-2       w-2       <none>

What their actions are for, and how far they are:
  NODE   BECAUSE OF        SERVICES            DRAIN
  b      the file /etc/a   restart a.service   Draining: 2 pods left

Nodes that it selects and that do not belong to it:
  NODE   POOL    REASON
  a      infra   the custom pool infra wins over worker

Nothing to do.
`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			p := &planText{out: &out}
			tc.print(p)
			if diff := cmp.Diff(tc.want, out.String()); diff != "" || p.err != nil {
				t.Errorf("%v, %s", p.err, diff)
			}
		})
	}
}

// What is empty or zero in a plan is shown as such, and what is not known is not shown.
func TestEmptyListsOfAPlanAreShown(t *testing.T) {
	for _, word := range []string{printer.YAML, printer.JSON} {
		var out bytes.Buffer
		err := printer.Whole(&out, printer.Format{Word: word}, &updatev1.PlanReleaseResponse{ManifestCount: proto.Int32(0)})
		want := "manifestCount: 0\nmanifests: []\nremovals: []\nsteps: []\nunparsed: []\nunserved: []\n"
		if word == printer.JSON {
			want = "{\n    \"manifestCount\": 0,\n    \"manifests\": [],\n    \"removals\": [],\n    \"steps\": [],\n" +
				"    \"unparsed\": [],\n    \"unserved\": []\n}\n"
		}
		if diff := cmp.Diff(want, out.String()); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", word, err, diff)
		}
	}
}

func TestThePoolsOfAFile(t *testing.T) {
	pool := func(name string) *configv1.MachineConfigPool {
		return &configv1.MachineConfigPool{Metadata: &metav1.ObjectMeta{Name: name}}
	}
	for name, tt := range map[string]struct {
		of     given
		pool   string
		others int
		fails  bool
	}{
		"one":                 {of: given{pool("a")}},
		"one by its name":     {of: given{pool("a")}, pool: "a"},
		"one of several":      {of: given{pool("b"), pool("a"), pool("c")}, pool: "a", others: 2},
		"several, none named": {of: given{pool("b"), pool("a")}, fails: true},
		"none of that name":   {of: given{pool("b")}, pool: "a", fails: true},
		"two of that name":    {of: given{pool("a"), pool("a")}, pool: "a", fails: true},
	} {
		req := &configv1.PlanMachineConfigPoolRequest{}
		err := tt.of.pools(req, tt.pool)
		if (err != nil) != tt.fails || !tt.fails && len(req.GetOtherPools().GetItems()) != tt.others ||
			!tt.fails && req.GetPool().GetMetadata().GetName() != "a" {
			t.Errorf("%s: %v, %v", name, req, err)
		}
	}
}
