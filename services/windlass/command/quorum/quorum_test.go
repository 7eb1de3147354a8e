package quorum

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/recovery"
)

func TestQuorumShowsMembersAndThenTheWhole(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	q := &etcdv1.Quorum{
		Phase: "Replacing", Voters: 3, HealthyVoters: 2, DesiredVoters: 3, Majority: 2,
		ScaleMessage: "2 voters are healthy, and HAScalingStrategy needs 3", Strategy: "HAScalingStrategy",
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
Scaling:   2 voters are healthy, and HAScalingStrategy needs 3 (HAScalingStrategy)
Permit:    eviction-controller for machine/a (drain), since 90s
Next:      Promote member/b: it has caught up
Waits for: nothing
`
	var out bytes.Buffer
	if err := show(&out, printer.Format{}, q, now); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestVotersElsewhereAreConfirmedByNameOrID(t *testing.T) {
	host := &cluster.Cluster{Settings: cluster.Settings{Member: &cluster.Member{Name: "h3"}}}
	members := []recovery.Member{
		{ID: 0xa1, Name: "m1"},
		{ID: 0xa2, Name: "m2"},
		{ID: 0xa3, Name: "m3", Copy: &snapshot.Copy{}},
		{ID: 0xa4, Name: "m4", Learner: true},
		{ID: 0xa5, Name: "m5", Trouble: "torn"},
	}
	for _, c := range []struct {
		without []string
		listed  bool
		force   bool
		ok      bool
	}{
		{[]string{"m1", "m2"}, true, false, true},
		{[]string{"m2", "a1"}, true, false, true}, // its name was not known when it was shown
		{[]string{"m1"}, true, false, false},
		{nil, true, false, false},
		{[]string{"m1", "m2", "m3"}, true, false, false},
		{[]string{"m1", "m2", "x"}, true, false, false},
		{[]string{"m1", "m2"}, false, false, false},
		{[]string{"m1", "m2"}, false, true, true},
	} {
		err := confirm(host, recovery.Survey{Members: members, Listed: c.listed},
			recoverFlags{without: c.without, force: c.force})
		if (err == nil) != c.ok {
			t.Errorf("--without %q, listed %t, --force %t: %v", c.without, c.listed, c.force, err)
		}
	}
	if err := confirm(&cluster.Cluster{}, recovery.Survey{}, recoverFlags{without: []string{"m1"}}); err == nil {
		t.Error("--without is taken where all members are on one machine")
	}
}
