package command

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

func TestQuorumShowsMembersAndThenTheWhole(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	q := &etcdv1.Quorum{
		Phase: "Replacing", Voters: 3, HealthyVoters: 2, DesiredVoters: 3, Majority: 2,
		Members: []*etcdv1.Member{
			{
				Name: "a", Healthy: true, Leader: true, Version: "3.7.3", DbSizeBytes: 2_100_000, DbSizeInUseBytes: 1_900_000,
				DbQuotaBytes: 2 << 30, Alarms: []string{"NOSPACE"}, Machine: &metav1.ObjectReference{Name: "a"},
			},
			{Name: "bootstrap", Bootstrap: true, Message: "connection refused"},
			{Id: "8e9e05c52164694d", Learner: true, Healthy: true, DbSizeBytes: 999},
		},
		Permit: &etcdv1.DisruptionPermit{
			Machine: &metav1.ObjectReference{Kind: "Machine", Name: "a"}, Reason: "drain",
			Holder: "eviction-controller", AcquireTime: timestamppb.New(now.Add(-90 * time.Second)),
		},
		Next: &metav1.PlannedAction{
			Action: "Promote", Object: &metav1.ObjectReference{Kind: "Member", Name: "b"},
			Reason: "it has caught up",
		},
	}
	const want = `NAME               ROLE                HEALTH      LEADER   VERSION   DB SIZE   IN USE   QUOTA    ALARMS    MACHINE
a                  voter               healthy     *        3.7.3     2.1 MB    1.9 MB   2.1 GB   NOSPACE   a
bootstrap          voter (bootstrap)   unhealthy                                                            <none>
8e9e05c52164694d   learner             healthy                        999 B                                 <none>

Phase:     Replacing
Voters:    2 of 3 healthy, 3 desired, majority 2
Unhealthy: bootstrap: connection refused
Tolerance: no voter may fail
Permit:    eviction-controller for machine/a (drain), since 90s
Next:      Promote member/b: it has caught up
Waits for: nothing
`
	var out bytes.Buffer
	if err := printQuorum(&out, format{}, q, now); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

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
						Unblock: "machine/b becoming ready",
					}},
				})
			},
			"  INDEX   FAILURE DOMAIN   MACHINES\n  0       <none>           a, b\n\n  1. CreateMachine machine/m-0\n     failureDomain: rack-a\n     because index 0 has none\n" +
				"\nHeld back:\n  - DeleteMachine machine/a\n     because its replacement is not ready\n     unblocked by: machine/b becoming ready\n",
		},
		{"a quorum with nothing to do", func(p *planText) {
			p.quorum(&etcdv1.PlanQuorumResponse{Phase: "Stable", WaitsFor: "member b to answer"})
		}, "Phase: Stable\n\nNothing to do.\n\nWaits for: member b to answer\n"},
		{"hooks that are refused", func(p *planText) {
			p.hooks(&machinev1.ValidateHooksResponse{Violations: []*machinev1.ValidateHooksResponse_Violation{
				{Field: "spec.x", Description: "not now"},
			}})
		}, "refused\n* spec.x: not now\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			tc.print(&planText{out: &out})
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestArgumentsNameGroupsOfObjects(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		want       string // "plural: names" by semicolons, or the error's beginning
	}{
		{"a type alone", "machines", "machines: "},
		{"several types", "machine,no", "machines: ; nodes: "},
		{"a type with its group", "machines.machine.openshift.io a", "machines: a"},
		{"a type with version and group", "machines.v1beta1.machine.openshift.io a b", "machines: a b"},
		{"pairs are put together by type", "machine/a node/x machines/b", "machines: a b; nodes: x"},
		{"a kind's own spelling", "MachineSet a", "machinesets: a"},
		{"a short name", "cpms", "controlplanemachinesets: "},
		{"another group is another type", "machines.example.com", "the server doesn't have"},
		{"a pair without a name", "machine/", "arguments in resource/name form"},
		{"a pair with too much", "machine/a/b", "arguments in resource/name form"},
		{"a pair among names", "machine a node/b", "there is no need"},
		{"a name among pairs", "machine/a b", "there is no need"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			groups, err := parseGroups(strings.Fields(tc.args))
			var parts []string
			for _, g := range groups {
				parts = append(parts, g.kind.GetPlural()+": "+strings.Join(g.names, " "))
			}
			got := strings.Join(parts, "; ")
			if err != nil {
				got = err.Error()
			}
			if err == nil && got != tc.want || err != nil && !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestChangesOfLabelsAreToldFromObjects(t *testing.T) {
	objects, set, remove, err := splitMarks(labelMarks(), []string{"machine", "a", "team=web", "note=a=b", "tier-"})
	if err != nil || !slices.Equal(objects, []string{"machine", "a"}) || set["team"] != "web" || set["note"] != "a=b" ||
		!slices.Equal(remove, []string{"tier"}) {
		t.Errorf("got %v %v %v %v", objects, set, remove, err)
	}
	for _, args := range [][]string{{"machine", "a", "x=1", "b"}, {"machine", "a", "x=1", "x-"}, {"machine", "a", "=1"}} {
		if _, _, _, err := splitMarks(labelMarks(), args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

func TestStatesToWaitForAreRead(t *testing.T) {
	for _, bad := range []string{"condition=", "luck", "jsonpath={.a}3", "jsonpath={.a"} {
		if _, err := parseState(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Generation: 2}, Status: &machinev1.MachineStatus{
		Conditions: []*metav1.Condition{
			{Type: "Drained", Status: "True"}, {Type: "Old", Status: "True", ObservedGeneration: new(int32)},
		},
	}}
	*m.Status.Conditions[1].ObservedGeneration = 1
	for spelled, want := range map[string]bool{
		"condition=Drained": true, "condition=drained=true": true, "condition=Drained=False": false, "condition=Other": false,
		"condition=Old":                     false,
		"jsonpath={.metadata.generation}=2": true, "jsonpath='{.metadata.generation}'=3": false, "jsonpath={.spec}": false,
		"jsonpath=.metadata.generation=2":                                   true,
		"jsonpath={.status.conditions[?(@.type==\"Drained\")].status}=True": true,
	} {
		s, err := parseState(spelled)
		if err != nil {
			t.Errorf("%s: %v", spelled, err)
			continue
		}
		if got, why, err := s.met(m); got != want || err != nil {
			t.Errorf("%s is %t (%s, %v), want %t", spelled, got, why, err, want)
		}
	}
}

func TestErrorsOfManyObjectsStaySeparate(t *testing.T) {
	var all, inner failures
	inner.add(errors.New("one"))
	inner.add(status.Error(codes.NotFound, "two"))
	all.add(inner.err())
	all.add(nil)
	all.add(errors.New("three"))
	if len(all) != 3 || all.err().Error() != "one\nfrom server (NotFound): two\nthree" {
		t.Errorf("got %d: %v", len(all), all.err())
	}
	if (failures{}).err() != nil {
		t.Error("no failure is an error")
	}
}
