package table_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

var now = time.Unix(1_800_000_000, 0)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

func TestObjectsAreShownAsKubectlShowsThem(t *testing.T) {
	meta := func(name string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Name: name, Namespace: "ns", CreationTimestamp: before(90 * time.Minute)}
	}
	ready := func(status string) *nodev1.NodeStatus {
		return &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: status}}}
	}
	for _, tc := range []struct {
		name    string
		options table.Options
		object  object.Object
		want    string
	}{
		{
			"a machine without a status",
			table.Options{},
			&machinev1.Machine{Metadata: meta("a")},
			"NAME,PHASE,TYPE,REGION,ZONE,AGE|a,,,,,90m",
		},
		{
			"a machine that is being deleted, wide",
			table.Options{Wide: true},
			&machinev1.Machine{Metadata: meta("a"), Status: &machinev1.MachineStatus{Deletion: &machinev1.MachineDeletion{
				Trigger: "User", RequestedBy: "alice", Reason: "its disk fails",
			}}},
			"NAME,PHASE,TYPE,REGION,ZONE,AGE,NODE,PROVIDERID,STATE,DELETED-BY|a,,,,,90m,,,,User alice: its disk fails",
		},
		{
			"a machine that was deleted without a reason, wide",
			table.Options{Wide: true},
			&machinev1.Machine{Metadata: meta("a"), Status: &machinev1.MachineStatus{Deletion: &machinev1.MachineDeletion{
				Trigger: "User", RequestedBy: "alice",
			}}},
			"NAME,PHASE,TYPE,REGION,ZONE,AGE,NODE,PROVIDERID,STATE,DELETED-BY|a,,,,,90m,,,,User alice",
		},
		{"a set with a zero", table.Options{}, &machinev1.MachineSet{Metadata: meta("a"), Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(0),
		}}, "NAME,DESIRED,CURRENT,READY,AVAILABLE,AGE|a,0,,,,90m"},
		{
			"namespace and kind",
			table.Options{Namespace: true, Qualified: true},
			&machinev1.MachineSet{Metadata: meta("a")},
			"NAMESPACE,NAME,DESIRED,CURRENT,READY,AVAILABLE,AGE|ns,machineset.machine.openshift.io/a,,,,,90m",
		},
		{
			"labels",
			table.Options{Labels: true, LabelKeys: []string{"example.com/rack"}},
			&machinev1.Infrastructure{
				Metadata: &metav1.ObjectMeta{Name: "a", Labels: map[string]string{"example.com/rack": "7", "b": ""}},
			},
			"NAME,NAME-IN-PROVIDER,PLATFORM,AGE,RACK,LABELS|a,,,<unknown>,7,b= example.com/rack=7",
		},
		{
			"a node that is ready",
			table.Options{},
			&nodev1.Node{Metadata: meta("a"), Status: ready("True")},
			"NAME,STATUS,ROLES,AGE,VERSION|a,Ready,<none>,90m,",
		},
		{
			"a cordoned node without heartbeats",
			table.Options{},
			&nodev1.Node{Metadata: meta("a"), Status: ready("Unknown"), Spec: &nodev1.NodeSpec{Unschedulable: proto.Bool(true)}},
			"NAME,STATUS,ROLES,AGE,VERSION|a,NotReady SchedulingDisabled,<none>,90m,",
		},
		{
			"an event has no name",
			table.Options{},
			&eventv1.Event{
				Metadata: meta("a"), LastTimestamp: before(5 * time.Second), Type: "Normal", Reason: "R",
				InvolvedObject: &metav1.ObjectReference{Kind: "Machine", Name: "m"}, Message: "x",
			},
			"LAST SEEN,TYPE,REASON,OBJECT,MESSAGE|5s,Normal,R,machine/m,x",
		},
		{
			"a time to come",
			table.Options{},
			&machinev1.Revocation{Metadata: meta("a"), Spec: &machinev1.RevocationSpec{
				User: "u", IssuedBefore: before(time.Minute), ExpirationTime: before(-30 * 24 * time.Hour),
			}},
			"NAME,USER,SERIAL,MACHINE,ISSUED-BEFORE,EXPIRES,REASON,AGE|a,u,,,60s,in 30d,,90m",
		},
		{
			"a binding",
			table.Options{},
			&rbacv1.RoleBinding{
				Metadata: meta("a"), RoleRef: &rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
				Subjects: []*rbacv1.Subject{{Kind: "User", Name: "dora"}, {Kind: "Group", Name: "dev"}},
			},
			"NAME,ROLE,SUBJECTS,AGE|a,clusterrole/view,user/dora group/dev,90m",
		},
		{"a binding of no one", table.Options{}, &rbacv1.ClusterRoleBinding{
			Metadata: meta("a"), RoleRef: &rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
		}, "NAME,ROLE,SUBJECTS,AGE|a,clusterrole/view,,90m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.options.Now = func() time.Time { return now }
			typ := object.TypeOf(tc.object.ProtoReflect().Descriptor())
			row := tc.options.Row(typ, tc.object)
			for i := range row {
				row[i] = strings.ReplaceAll(row[i], ",", " ")
			}
			got := strings.Join(tc.options.Header(typ), ",") + "|" + strings.Join(row, ",")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestColumnsStayAsWideAsTheWidestRowSoFar(t *testing.T) {
	var out strings.Builder
	w := table.New(&out)
	for _, rows := range [][][]string{{{"A", "B"}, {"longer", "x"}}, {{"s", "y"}}, {{"two\nlines", "esc\x1b[31m"}}} {
		if err := w.Print(rows...); err != nil {
			t.Fatal(err)
		}
	}
	const want = "A        B\nlonger   x\ns        y\ntwo...   esc^[[31m\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestALongLastCellIsFolded(t *testing.T) {
	var b strings.Builder
	w := table.NewWithin(&b, 50)
	if err := w.Print(
		[]string{"NODE", "REASON"},
		[]string{"a", "Insufficient cpu: asked 3, free 1950m of 2; it has one core too few"},
		[]string{"b", strings.Repeat("x", 60)},
	); err != nil {
		t.Fatal(err)
	}
	want := "NODE   REASON\n" +
		"a      Insufficient cpu: asked 3, free 1950m of 2;\n" +
		"       it has one core too few\n" +
		"b      " + strings.Repeat("x", 60) + "\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}
