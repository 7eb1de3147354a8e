package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/etcd-guardian/metrics"
)

func at(seconds int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: seconds} }

func schedule(name, when string, suspend bool, success *timestamppb.Timestamp) *etcdv1.SnapshotSchedule {
	return &etcdv1.SnapshotSchedule{
		Metadata: &metav1.ObjectMeta{Name: name, CreationTimestamp: at(60)},
		Spec:     &etcdv1.SnapshotScheduleSpec{Schedule: when, Suspend: suspend},
		Status:   &etcdv1.SnapshotScheduleStatus{LastSuccessfulTime: success},
	}
}

func TestEtcdAndItsSnapshots(t *testing.T) {
	quorum := &etcdv1.Quorum{
		Voters: 3, HealthyVoters: 2, Majority: 2, DesiredVoters: 3, ObserveTime: at(50),
		Members: []*etcdv1.Member{
			{
				Name: "a", Leader: true, Healthy: true, LatencyUs: 1500, DbSizeBytes: 100, DbSizeInUseBytes: 60,
				DbQuotaBytes: 200, Alarms: []string{"NOSPACE"},
			},
			{Name: "b"},
			{Id: "c0ffee", Learner: true, Healthy: true},
		},
	}
	snapshots := resource.NewCache[*etcdv1.Snapshot]()
	snapshots.Replace([]*etcdv1.Snapshot{
		{Metadata: &metav1.ObjectMeta{Name: "new"}},
		{
			Metadata: &metav1.ObjectMeta{Name: "bad"}, Spec: &etcdv1.SnapshotSpec{Schedule: "hourly"},
			Status: &etcdv1.SnapshotStatus{Phase: proto.String("Failed")},
		},
	}, 1)
	schedules := resource.NewCache[*etcdv1.SnapshotSchedule]()
	schedules.Replace([]*etcdv1.SnapshotSchedule{
		schedule("hourly", "@hourly", false, at(3700)), schedule("never", "@hourly", false, nil),
		schedule("off", "@hourly", true, at(1)),
	}, 1)
	want := `
# HELP windlass_etcd_member_alarm 1 while a member has an alarm: NOSPACE or CORRUPT.
# TYPE windlass_etcd_member_alarm gauge
windlass_etcd_member_alarm{alarm="NOSPACE",member="a"} 1
# HELP windlass_etcd_member_db_in_use_bytes Part of a member's database that is in use.
# TYPE windlass_etcd_member_db_in_use_bytes gauge
windlass_etcd_member_db_in_use_bytes{member="a"} 60
# HELP windlass_etcd_member_db_quota_bytes Size of its database at which a member refuses writes; absent if not known.
# TYPE windlass_etcd_member_db_quota_bytes gauge
windlass_etcd_member_db_quota_bytes{member="a"} 200
# HELP windlass_etcd_member_db_size_bytes Size of a member's database, as a file.
# TYPE windlass_etcd_member_db_size_bytes gauge
windlass_etcd_member_db_size_bytes{member="a"} 100
# HELP windlass_etcd_member_healthy 1 if a member answered the last check, 0 if not.
# TYPE windlass_etcd_member_healthy gauge
windlass_etcd_member_healthy{member="a",role="leader"} 1
windlass_etcd_member_healthy{member="b",role="voter"} 0
windlass_etcd_member_healthy{member="c0ffee",role="learner"} 1
# HELP windlass_etcd_member_latency_seconds Latency of a member's last answer; absent if it did not answer.
# TYPE windlass_etcd_member_latency_seconds gauge
windlass_etcd_member_latency_seconds{member="a"} 0.0015
# HELP windlass_etcd_observe_timestamp_seconds When the guardian observed etcd last, in seconds since 1970.
# TYPE windlass_etcd_observe_timestamp_seconds gauge
windlass_etcd_observe_timestamp_seconds 50
# HELP windlass_etcd_voters Number of voting members of etcd, by state: desired, present, healthy (they answered the last check), majority (so many must be healthy).
# TYPE windlass_etcd_voters gauge
windlass_etcd_voters{state="desired"} 3
windlass_etcd_voters{state="healthy"} 2
windlass_etcd_voters{state="majority"} 2
windlass_etcd_voters{state="present"} 3
# HELP windlass_snapshot_phase 1 for the present phase of each snapshot.
# TYPE windlass_snapshot_phase gauge
windlass_snapshot_phase{phase="Failed",schedule="hourly",snapshot="bad"} 1
windlass_snapshot_phase{phase="Pending",schedule="",snapshot="new"} 1
# HELP windlass_snapshot_schedule_due_timestamp_seconds First time of a schedule after its newest complete snapshot, in seconds since 1970: the past means that a snapshot is missing. Absent while the schedule is suspended.
# TYPE windlass_snapshot_schedule_due_timestamp_seconds gauge
windlass_snapshot_schedule_due_timestamp_seconds{schedule="hourly"} 7200
windlass_snapshot_schedule_due_timestamp_seconds{schedule="never"} 3600
# HELP windlass_snapshot_schedule_last_success_timestamp_seconds When the newest complete snapshot of a schedule was complete, in seconds since 1970; 0 if there is none.
# TYPE windlass_snapshot_schedule_last_success_timestamp_seconds gauge
windlass_snapshot_schedule_last_success_timestamp_seconds{schedule="hourly"} 3700
windlass_snapshot_schedule_last_success_timestamp_seconds{schedule="never"} 0
windlass_snapshot_schedule_last_success_timestamp_seconds{schedule="off"} 1
`
	last := func() *etcdv1.Quorum { return quorum }
	if err := testutil.CollectAndCompare(metrics.New(last, snapshots, schedules), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	none := metrics.New(func() *etcdv1.Quorum { return nil }, resource.NewCache[*etcdv1.Snapshot](),
		resource.NewCache[*etcdv1.SnapshotSchedule]())
	if n := testutil.CollectAndCount(none); n != 0 {
		t.Errorf("%d metrics before the first observation", n)
	}
}
