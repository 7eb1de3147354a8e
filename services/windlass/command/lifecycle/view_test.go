package lifecycle

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func TestStatusNamesEverythingThatIsNotReady(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }
	node := func(name, zone, ready string) *nodev1.Node {
		return &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"topology.kubernetes.io/zone": zone}},
			Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{
				{
					Type: "Ready", Status: ready, Reason: proto.String("NodeStatusUnknown"),
					LastTransitionTime: ago(12 * time.Second),
				},
			}},
		}
	}
	operator := func(name, available, message string) *updatev1.ClusterOperator {
		return &updatev1.ClusterOperator{Metadata: &metav1.ObjectMeta{Name: name}, Status: &updatev1.ClusterOperatorStatus{
			Conditions: []*metav1.Condition{
				{Type: "Available", Status: available, Message: &message, LastTransitionTime: ago(time.Minute)},
			},
		}}
	}
	machine := func(name, phase string) *machinev1.Machine {
		return &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: name}, Status: &machinev1.MachineStatus{Phase: &phase}}
	}
	well := func() view {
		return view{
			now: noon, services: []service{{name: "etcd-guardian"}, {name: "scheduler"}},
			quorum:   &etcdv1.Quorum{Phase: "Pivoted", Voters: 3, HealthyVoters: 3, Majority: 2, BootstrapRetired: true},
			machines: []*machinev1.Machine{machine("a", "Running"), machine("b", "Running")}, wanted: 2,
			nodes:    []*nodev1.Node{node("a", "z1", "True"), node("b", "z2", "True"), node("c", "z2", "True")},
			operator: []*updatev1.ClusterOperator{operator("etcd", "True", "")},
		}
	}
	away := status.Error(codes.Unavailable, "etcd-guardian cannot be reached")
	tests := []struct {
		name   string
		change func(v *view)
		want   []string
	}{
		{"a cluster that is well has no problem", func(*view) {}, nil},
		{
			"a service that hangs", func(v *view) { v.services[1].problem = "does not answer" },
			[]string{"scheduler does not answer"},
		},
		{
			"a dead service is named once, not with everything that it does not say",
			func(v *view) {
				v.services[0].problem, v.quorumErr, v.quorum = "cannot be connected to", away, nil
			},
			[]string{"etcd-guardian cannot be connected to"},
		},
		{
			"what cannot be read although all services answer is a problem of its own",
			func(v *view) { v.quorumErr, v.quorum = away, nil },
			[]string{"the quorum cannot be read: the cluster cannot be reached: etcd-guardian cannot be reached"},
		},
		{
			"what the caller may not see is none",
			func(v *view) { v.nodes, v.nodesErr = nil, status.Error(codes.PermissionDenied, "no") },
			nil,
		},
		{
			"a lost majority",
			func(v *view) { v.quorum.HealthyVoters = 1 },
			[]string{
				"etcd has lost its majority: 1 of 3 voters are healthy, 2 are required; the cluster is read-only (`windlass quorum`)",
			},
		},
		{
			"one voter of three", func(v *view) { v.quorum.HealthyVoters = 2 },
			[]string{"1 of 3 etcd voters is unhealthy (`windlass quorum`)"},
		},
		{
			"services that run and refuse changes",
			func(v *view) { v.services[0].refuses, v.services[1].refuses = "its disk is full", "its disk is full" },
			[]string{"changes are rejected by etcd-guardian, scheduler: its disk is full"},
		},
		{
			"an etcd without space",
			func(v *view) {
				v.quorum.Members = []*etcdv1.Member{{Name: "a"}, {Name: "b", Alarms: []string{"NOSPACE"}}}
			},
			[]string{"etcd rejects changes: the database of member b has reached its quota (`windlass quorum`)"},
		},
		{
			"machines that wait for hosts, and a host that lost its machine",
			func(v *view) {
				v.onHosts = true
				v.machines[1].Status.Phase = proto.String("Provisioning")
				v.machines[1].Status.LastOperation = &machinev1.LastOperation{Description: "0 of 1 hosts match: 1 in use"}
				v.hosts = []*hostv1.Host{
					{Metadata: &metav1.ObjectMeta{Name: "h1"}, Status: &hostv1.HostStatus{
						Phase: proto.String("InUse"), MachineRef: &metav1.ObjectReference{Name: "a"},
						Message: proto.String("machine a has it, but does not run there"), Unblock: proto.String("delete machine a"),
						LastTransitionTime: ago(time.Minute),
					}},
					{Metadata: &metav1.ObjectMeta{Name: "h2"}, Status: &hostv1.HostStatus{
						Phase: proto.String("Lost"), Message: proto.String("its agent has not attended yet"),
						Unblock: proto.String("start the agent of the host"),
					}},
				}
			},
			[]string{
				"host h1 is InUse since 1m0s: machine a has it, but does not run there; delete machine a",
				"machine b is Provisioning: 0 of 1 hosts match: 1 in use",
			},
		},
		{
			"before the pivot",
			func(v *view) { v.quorum.BootstrapRetired, v.quorum.WaitsFor = false, "two machines" },
			[]string{"the quorum does not run on machines yet: it waits for two machines"},
		},
		{
			"a node", func(v *view) { v.nodes[1] = node("b", "z2", "Unknown") },
			[]string{"node b is NotReady since 12s: NodeStatusUnknown"},
		},
		{
			"a zone",
			func(v *view) { v.nodes[1], v.nodes[2] = node("b", "z2", "Unknown"), node("c", "z2", "False") },
			[]string{
				"zone z2 is down: none of its 2 nodes is Ready", "node b is NotReady since 12s: NodeStatusUnknown",
				"node c is NotReady since 12s: NodeStatusUnknown",
			},
		},
		{
			"a node that never reported", func(v *view) { v.nodes[0].Status = nil },
			[]string{"node a is NotReady: it has not reported"},
		},
		{
			"machines",
			func(v *view) { v.machines[0], v.wanted = machine("a", "Deleting"), 3 },
			[]string{"machine a is Deleting", "there are 2 machines, but 3 are desired"},
		},
		{
			"operators", func(v *view) {
				v.operator = append(v.operator, operator("scheduler", "Unknown", "scheduler has not answered since noon"),
					&updatev1.ClusterOperator{Metadata: &metav1.ObjectMeta{Name: "new"}})
			},
			[]string{
				"cluster operator scheduler is Available=Unknown since 1m0s: scheduler has not answered since noon",
				"cluster operator new is Available=Unknown: it has not reported",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := well()
			tt.change(&v)
			if diff := cmp.Diff(tt.want, v.problems()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStatusSaysWhatItDoesNotKnow(t *testing.T) {
	v := view{
		quorumErr: status.Error(codes.Unavailable, "etcd-guardian cannot be reached"),
		nodesErr:  status.Error(codes.PermissionDenied, "no"),
	}
	text := strings.Join(v.lines(), "\n")
	for _, want := range []string{
		"Quorum:      unknown: the cluster cannot be reached: etcd-guardian cannot be reached",
		"Nodes:       not visible: permission denied", "Machines:    0 of 0 run",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestStatusIsNotReadyForWhatWasNotSeen(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	seen := func(ago time.Duration) *etcdv1.Quorum {
		return &etcdv1.Quorum{
			Phase: "Pivoted", Voters: 3, HealthyVoters: 3, Majority: 2, BootstrapRetired: true,
			ObserveTime: timestamppb.New(noon.Add(-ago)),
		}
	}
	no := status.Error(codes.PermissionDenied, "no")
	for _, tt := range []struct {
		name string
		v    view
		want []string
	}{
		{"everything was seen just now", view{quorum: seen(time.Second)}, nil},
		{
			"an observation of before",
			view{quorum: seen(42 * time.Second)},
			[]string{"the quorum was last observed 42s ago"},
		},
		{
			"parts that the caller may not read",
			view{quorumErr: no, nodesErr: no, machinesErr: no, operatorErr: no},
			[]string{
				"etcd voters are not visible: permission denied", "machines are not visible: permission denied",
				"nodes are not visible: permission denied", "cluster operators are not visible: permission denied",
			},
		},
		{
			"what could not be read is a problem already",
			view{quorum: seen(0), nodesErr: status.Error(codes.Unavailable, "away")},
			nil,
		},
	} {
		tt.v.now = noon
		if diff := cmp.Diff(tt.want, tt.v.unseen()); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestTheStepOfTheQuorumEndsWhereNothingIsWaitedFor(t *testing.T) {
	q := &etcdv1.Quorum{Voters: 4, DesiredVoters: 3}
	if got := votersText(q); got != "4 voters, 3 desired" {
		t.Errorf("the step says %q", got)
	}
	q.WaitsFor = "member a"
	if got := votersText(q); got != "4 voters, 3 desired; member a" {
		t.Errorf("the step says %q", got)
	}
}

func TestStatusSaysOfWhatNodesAreShort(t *testing.T) {
	message := "less than 512Mi of ephemeral-storage is available"
	v := view{nodes: []*nodev1.Node{
		{
			Metadata: &metav1.ObjectMeta{Name: "a"},
			Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{
				{Type: "DiskPressure", Status: "True", Message: &message}, {Type: "MemoryPressure", Status: "False"},
			}},
		},
		{Metadata: &metav1.ObjectMeta{Name: "b"}},
	}}
	want := "             a has DiskPressure: " + message
	var got []string
	for _, line := range v.lines() {
		if strings.Contains(line, "Pressure") {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff([]string{want}, got); diff != "" {
		t.Error(diff)
	}
}
