package adm

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// underway is an update in which two operators and one node are waited for.
func underway(now time.Time) *upgradeProgress {
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	condition := func(typ, status, message string) *metav1.Condition {
		return &metav1.Condition{Type: typ, Status: status, Message: proto.String(message)}
	}
	operator := func(name, version string, conditions ...*metav1.Condition) *updatev1.ClusterOperator {
		return &updatev1.ClusterOperator{Metadata: &metav1.ObjectMeta{Name: name}, Status: &updatev1.ClusterOperatorStatus{
			Conditions: conditions, Versions: []*updatev1.OperandVersion{{Name: "operator", Version: version}},
		}}
	}
	node := func(name, state, reason string) *configv1.PlanMachineConfigPoolResponse_NodePlan {
		return &configv1.PlanMachineConfigPoolResponse_NodePlan{Node: name, State: state, Reason: reason}
	}
	host := func(name, version, phase string, roles ...string) *hostv1.Host {
		return &hostv1.Host{
			Metadata: &metav1.ObjectMeta{Name: name}, Spec: &hostv1.HostSpec{Roles: roles},
			Status: &hostv1.HostStatus{
				AgentVersion: proto.String(version), Phase: proto.String(phase),
				LastTransitionTime: timestamppb.New(time.Date(2026, 3, 1, 11, 59, 0, 0, time.UTC)),
			},
		}
	}
	return &upgradeProgress{
		version: &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{
			Desired: &updatev1.ReleaseReference{Version: proto.String("1.1.0")},
			History: []*updatev1.UpdateHistory{
				{State: "Partial", Version: proto.String("1.1.0"), StartedTime: ago(2 * time.Minute)},
				{State: "Completed", Version: proto.String("1.0.0")},
			},
			Conditions: []*metav1.Condition{
				condition("Progressing", "True", "Working towards 1.1.0: 20 of 30 done"),
				condition("Failing", "True", "operator ledger is degraded"),
			},
			Progress: &updatev1.UpdateProgress{
				Done: proto.Int32(20), Total: proto.Int32(30), RunLevel: "0000_30", Waits: []*updatev1.UpdateWait{{
					Object: &metav1.ObjectReference{Kind: "ClusterOperator", Name: "ledger"}, Fact: "reports version 1.1.0",
					Observed: "1.0.0", Since: ago(32 * time.Second),
				}},
			},
		}},
		operators: []*updatev1.ClusterOperator{
			operator("archive", "1.1.0", condition("Available", "True", ""), condition("Progressing", "False", ""),
				condition("Degraded", "False", "")),
			operator("ledger", "1.0.0", condition("Available", "True", ""), condition("Progressing", "True", "works on 1.1.0"),
				condition("Degraded", "True", "disk full")),
		},
		host: "1.1.0",
		hosts: []*hostv1.Host{
			host("h1", "1.1.0", "InUse", "control-plane"), host("h2", "1.0.0", "Lost", "control-plane", "worker"),
			host("w1", "1.0.0", "InUse", "worker"), host("w2", "1.1.0", "InUse", "worker"),
		},
		members: []*etcdv1.Member{
			{Name: "m0", Healthy: true, Version: "3.6.6", NextVersion: "3.6.6"},
			{Name: "m1", Healthy: true, Version: "3.6.5", NextVersion: "3.6.6", OtherExecutable: true},
			{Name: "m2", Healthy: true, Version: "3.6.5", NextVersion: "3.6.5", OtherExecutable: true},
			{Name: "m3", Message: "it cannot be reached"},
		},
		pools: []poolProgress{
			{name: "master", plan: &configv1.PlanMachineConfigPoolResponse{
				MaxUnavailable: 1, Unavailable: 1,
				Nodes: []*configv1.PlanMachineConfigPoolResponse_NodePlan{
					node("m0", "Updated", ""), node("m1", "Updating", "it is drained"),
				},
			}},
			{name: "worker", err: errors.New("not allowed")},
		},
	}
}

func TestTheStatusOfAnUpdateSaysWhatEachPartWaitsFor(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	want := `Updating from 1.0.0 to 1.1.0, started 2m ago: 20 of 30 manifests are applied, run level 0000_30
Some 1m0s more until all manifests are applied, if each takes as long as those so far; nodes come after that
Failing: operator ledger is degraded (to go back: windlass adm upgrade --abort)
Waits for:
└─ clusteroperator/ledger: reports version 1.1.0 (seen: 1.0.0), since 32s
Operators:
├─ archive: 1.1.0, Available
└─ ledger: 1.0.0, Degraded=True (disk full), Progressing=True (works on 1.1.0)
Members of etcd:
├─ m0: etcd 3.6.6
├─ m1: etcd 3.6.5, to be restarted with 3.6.6
├─ m2: etcd 3.6.5, not restarted: the executable of its host has the same version of etcd
└─ m3: unhealthy: it cannot be reached
Hosts of another version:
├─ h2: version 1.0.0, and the release has 1.1.0; it is away since 2026-03-01T11:59:00Z
└─ w1: version 1.0.0, and the release has 1.1.0; releases do not update workers: install the package there
Pools:
├─ master: 1 of 2 nodes are updated, 1 unavailable of 1 allowed
│  ├─ m0: Updated
│  └─ m1: Updating: it is drained
└─ worker: not known: not allowed`
	p := underway(now)
	if diff := cmp.Diff(want, strings.Join(p.tree(now), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p.done() {
		t.Error("an update in progress is done")
	}
}

func TestAWatchOfAnUpdateHasALineForEachChange(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before, p := underway(now).parts(), underway(now.Add(time.Hour))
	if lines := changes(before, p.parts()); len(lines) != 0 {
		t.Errorf("nothing but time went by: %q", lines)
	}
	p.version.Status.Progress.Waits = nil
	p.version.Status.Conditions = p.version.Status.Conditions[:1]
	p.operators[1] = p.operators[0]
	p.operators[1].Metadata = &metav1.ObjectMeta{Name: "ledger"}
	p.operators = p.operators[1:]
	p.pools[0].plan.Nodes[1].State = "Updated"
	want := []string{
		"operator ledger: 1.1.0, Available",
		"pool master: 2 of 2 nodes are updated, 1 unavailable of 1 allowed",
		"node m1: Updated",
		"Failing: no longer", "waits for clusteroperator/ledger: no longer", "operator archive: no longer",
	}
	if diff := cmp.Diff(want, changes(before, p.parts())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.version.Metadata = &metav1.ObjectMeta{Generation: 2}
	p.version.Status.ObservedGeneration = proto.Int32(2)
	p.version.Status.Conditions[0].Status = "False"
	if p.done() {
		t.Error("an update is done although a pool is not known")
	}
	p.pools = p.pools[:1]
	if !p.done() {
		t.Error("an update is not done although all is updated")
	}
}

func TestARequestThatWasNotConsideredOrIsRefusedIsNotDone(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := underway(now)
	p.pools, p.operators, p.members, p.hosts = nil, nil, nil, nil
	p.version.Metadata = &metav1.ObjectMeta{Generation: 3}
	p.version.Status.ObservedGeneration = proto.Int32(2)
	p.version.Status.Progress = nil
	p.version.Status.Conditions = []*metav1.Condition{{Type: "Progressing", Status: "False"}, {
		Type: "ReleaseAccepted", Status: "False", Reason: proto.String("VerifyPayload"),
		Message: proto.String("not signed\nOperators:\n├─ x"),
	}}
	want := `Cluster version is 1.1.0; what was requested last has not been considered yet.
Not accepted (VerifyPayload): not signed Operators: ├─ x
Operators:
Pools:`
	if diff := cmp.Diff(want, strings.Join(p.tree(now), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p.done() {
		t.Error("a request that was not considered yet is done")
	}
	p.version.Status.ObservedGeneration = proto.Int32(3)
	p.version.Spec = &updatev1.ClusterVersionSpec{DesiredUpdate: &updatev1.DesiredUpdate{Version: proto.String("1.2.0")}}
	if p.done() || !strings.Contains(p.refused(), "VerifyPayload") {
		t.Errorf("a refused update is done: %q", p.refused())
	}
	p.version.Status.Conditions[1].Status = "Unknown"
	if p.done() || p.refused() != "" {
		t.Errorf("an update that is still examined is done, or refused: %q", p.refused())
	}
	if line := p.headline(now)[0]; line != "Cluster version is 1.1.0; an update to 1.2.0 is requested and has not begun." {
		t.Error(line)
	}
	p.version.Spec.DesiredUpdate.Version = proto.String("1.1.0")
	p.version.Status.Conditions[1].Status = "True"
	if !p.done() {
		t.Error("nothing is in progress, and it is not done")
	}
	p.version.Status.Conditions = p.version.Status.Conditions[1:]
	if p.done() {
		t.Error("a cluster of which nothing is known is done")
	}
}

// A watch goes on until the update that was requested is completed: neither before it begins, nor while nothing
// answers.
func TestAWatchOfAnUpdateEndsWithTheUpdate(t *testing.T) {
	at := func(version, accepted, progressing string) *upgradeProgress {
		return &upgradeProgress{version: &updatev1.ClusterVersion{
			Spec: &updatev1.ClusterVersionSpec{DesiredUpdate: &updatev1.DesiredUpdate{Version: proto.String("1.1.0")}},
			Status: &updatev1.ClusterVersionStatus{
				Desired: &updatev1.ReleaseReference{Version: proto.String(version)},
				Conditions: []*metav1.Condition{
					{Type: "ReleaseAccepted", Status: accepted, Reason: proto.String("R"), Message: proto.String("text")},
					{Type: "Progressing", Status: progressing, Message: proto.String("at " + version)},
				},
			},
		}}
	}
	away := status.Error(codes.Unavailable, "away")
	tests := map[string]struct {
		looks []any
		want  string
		fails string
	}{
		"completed": {
			[]any{
				at("1.0.0", "True", "False"), at("1.0.0", "Unknown", "False"), away, at("1.1.0", "True", "True"),
				at("1.1.0", "True", "False"),
			},
			"00:00:01  Not accepted (R): text\n00:00:02  no answer: away\n00:00:03  cluster version: at 1.1.0\n" +
				"00:00:03  Not accepted (R): no longer\n00:00:03  no answer: no longer\n", "",
		},
		"refused": {
			[]any{
				at("1.0.0", "False", "False"), at("1.0.0", "False", "False"), at("1.0.0", "Unknown", "False"),
				at("1.0.0", "False", "False"), at("1.0.0", "False", "False"), at("1.0.0", "False", "False"),
			}, "", "the update is not accepted (R): text",
		},
		"not answered for good": {[]any{at("1.1.0", "True", "True"), status.Error(codes.PermissionDenied, "no")}, "", "no"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				n := 0
				err := followUpgrade(t.Context(), &out, func(context.Context) (*upgradeProgress, error) {
					defer func() { n++ }()
					if p, ok := tt.looks[n].(*upgradeProgress); ok {
						return p, nil
					}
					return nil, tt.looks[n].(error)
				})
				if n != len(tt.looks) || (err == nil) != (tt.fails == "") || err != nil &&
					!strings.Contains(err.Error(), tt.fails) {
					t.Errorf("after %d of %d looks: %v", n, len(tt.looks), err)
				}
				if _, lines, _ := strings.Cut(out.String(), "Pools:\n"); lines != tt.want {
					t.Errorf("%s\nwant %s", lines, tt.want)
				}
			})
		})
	}
}
