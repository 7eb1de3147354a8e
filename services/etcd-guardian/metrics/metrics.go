// Package metrics exposes what the guardian observes of etcd, and its snapshots, as metrics.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/schedule"
)

var (
	voters = prometheus.NewDesc("windlass_etcd_voters",
		"Number of voting members of etcd, by state: desired, present, healthy (they answered the last check), majority (so "+
			"many must be healthy).", []string{"state"}, nil)
	observed = prometheus.NewDesc("windlass_etcd_observe_timestamp_seconds",
		"When the guardian observed etcd last, in seconds since 1970.", nil, nil)
	healthy = prometheus.NewDesc("windlass_etcd_member_healthy", "1 if a member answered the last check, 0 if not.",
		[]string{"member", "role"}, nil)
	latency = prometheus.NewDesc("windlass_etcd_member_latency_seconds",
		"Latency of a member's last answer; absent if it did not answer.", []string{"member"}, nil)
	size = prometheus.NewDesc("windlass_etcd_member_db_size_bytes", "Size of a member's database, as a file.",
		[]string{"member"}, nil)
	inUse = prometheus.NewDesc("windlass_etcd_member_db_in_use_bytes", "Part of a member's database that is in use.",
		[]string{"member"}, nil)
	quota = prometheus.NewDesc("windlass_etcd_member_db_quota_bytes",
		"Size of its database at which a member refuses writes; absent if not known.", []string{"member"}, nil)
	alarm = prometheus.NewDesc("windlass_etcd_member_alarm", "1 while a member has an alarm: NOSPACE or CORRUPT.",
		[]string{"member", "alarm"}, nil)
	snapshot = prometheus.NewDesc("windlass_snapshot_phase", "1 for the present phase of each snapshot.",
		[]string{"snapshot", "schedule", "phase"}, nil)
	taken = prometheus.NewDesc("windlass_snapshot_schedule_last_success_timestamp_seconds",
		"When the newest complete snapshot of a schedule was complete, in seconds since 1970; 0 if there is none.",
		[]string{"schedule"}, nil)
	due = prometheus.NewDesc("windlass_snapshot_schedule_due_timestamp_seconds",
		"First time of a schedule after its newest complete snapshot, in seconds since 1970: the past means that a snapshot is "+
			"missing. Absent while the schedule is suspended.", []string{"schedule"}, nil)
)

// New returns the metrics of the quorum that last returns, nil before the first observation, and of the snapshots and
// schedules in two caches.
func New(last func() *etcdv1.Quorum, snapshots *resource.Cache[*etcdv1.Snapshot],
	schedules *resource.Cache[*etcdv1.SnapshotSchedule],
) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		if q := last(); q != nil {
			sendQuorum(send, q)
		}
		for s := range snapshots.Objects() {
			now := s.GetStatus().GetPhase()
			if now == "" {
				now = "Pending"
			}
			send(snapshot, 1, s.GetMetadata().GetName(), s.GetSpec().GetSchedule(), now)
		}
		for s := range schedules.Objects() {
			sendSchedule(send, s)
		}
	}, voters, observed, healthy, latency, size, inUse, quota, alarm, snapshot, taken, due)
}

func sendQuorum(send gauges.Send, q *etcdv1.Quorum) {
	send(voters, float64(q.GetDesiredVoters()), "desired")
	send(voters, float64(q.GetVoters()), "present")
	send(voters, float64(q.GetHealthyVoters()), "healthy")
	send(voters, float64(q.GetMajority()), "majority")
	send(observed, gauges.Seconds(q.GetObserveTime()))
	for _, m := range q.GetMembers() {
		name, role := m.GetName(), "voter"
		switch {
		case m.GetLeader():
			role = "leader"
		case m.GetLearner():
			role = "learner"
		}
		if name == "" { // it has never started
			name = m.GetId()
		}
		send(healthy, gauges.Bool(m.GetHealthy()), name, role)
		if m.GetLatencyUs() > 0 {
			send(latency, float64(m.GetLatencyUs())/1e6, name)
		}
		if m.GetDbSizeBytes() > 0 {
			send(size, float64(m.GetDbSizeBytes()), name)
			send(inUse, float64(m.GetDbSizeInUseBytes()), name)
		}
		if m.GetDbQuotaBytes() > 0 {
			send(quota, float64(m.GetDbQuotaBytes()), name)
		}
		for _, a := range m.GetAlarms() {
			send(alarm, 1, name, a)
		}
	}
}

func sendSchedule(send gauges.Send, s *etcdv1.SnapshotSchedule) {
	name, last := s.GetMetadata().GetName(), s.GetStatus().GetLastSuccessfulTime()
	send(taken, gauges.Seconds(last), name)
	times, err := schedule.Parse(s.GetSpec().GetSchedule(), s.GetSpec().GetTimeZone())
	if err != nil || s.GetSpec().GetSuspend() {
		return
	}
	if last == nil {
		last = s.GetMetadata().GetCreationTimestamp()
	}
	if next := times.Next(last.AsTime()); !next.IsZero() {
		send(due, float64(next.Unix()), name)
	}
}
