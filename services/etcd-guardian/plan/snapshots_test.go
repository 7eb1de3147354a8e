package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/schedule"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// taken is a snapshot that was requested so long ago; its size is in bytes.
func taken(name, phase string, ago time.Duration, changes ...func(*etcdv1.Snapshot)) *etcdv1.Snapshot {
	at := timestamppb.New(now.Add(-ago))
	s := &etcdv1.Snapshot{
		Metadata: &metav1.ObjectMeta{Name: name, CreationTimestamp: at, Finalizers: []string{plan.SnapshotFinalizer}},
		Spec:     &etcdv1.SnapshotSpec{}, Status: &etcdv1.SnapshotStatus{},
	}
	if phase != "" {
		s.Status.Phase = proto.String(phase)
	}
	if phase == plan.Completed {
		s.Status.CompletionTime = at
	}
	for _, c := range changes {
		c(s)
	}
	return s
}

func of(schedule string) func(*etcdv1.Snapshot) {
	return func(s *etcdv1.Snapshot) { s.Spec.Schedule = schedule }
}

func withSize(bytes int64) func(*etcdv1.Snapshot) {
	return func(s *etcdv1.Snapshot) { s.Status.SizeBytes = proto.String(fmt.Sprint(bytes)) }
}

func withRevision(revision int64) func(*etcdv1.Snapshot) {
	return func(s *etcdv1.Snapshot) { s.Status.Revision = proto.String(fmt.Sprint(revision)) }
}

func gone(s *etcdv1.Snapshot) { s.Metadata.DeletionTimestamp = timestamppb.New(now) }

// every is a schedule that was made so long ago, and whose last time was so long ago; 0 for none.
func every(schedule, zone string, made, last time.Duration, changes ...func(*etcdv1.SnapshotSchedule)) *etcdv1.
	SnapshotSchedule {
	s := &etcdv1.SnapshotSchedule{
		Metadata: &metav1.ObjectMeta{Name: "nightly", CreationTimestamp: timestamppb.New(now.Add(-made))},
		Spec:     &etcdv1.SnapshotScheduleSpec{Schedule: schedule, TimeZone: zone},
		Status:   &etcdv1.SnapshotScheduleStatus{},
	}
	if last != 0 {
		s.Status.LastScheduleTime = timestamppb.New(now.Add(-last))
	}
	for _, c := range changes {
		c(s)
	}
	return s
}

func snapshotView(v plan.View, schedules []*etcdv1.SnapshotSchedule, list ...*etcdv1.Snapshot) plan.SnapshotView {
	return plan.SnapshotView{
		Now: now, Quorum: v, Membership: plan.Next(v), Snapshots: list, Schedules: schedules,
		Storages: []string{plan.Directory},
	}
}

func TestWhatIsDoneAboutSnapshots(t *testing.T) {
	steady := stableView()
	// now is noon in UTC
	schedules := func(s ...*etcdv1.SnapshotSchedule) []*etcdv1.SnapshotSchedule { return s }
	few := func(number int32, size string) func(*etcdv1.SnapshotSchedule) {
		return func(s *etcdv1.SnapshotSchedule) {
			s.Spec.Retention = &etcdv1.SnapshotRetention{MaxNumber: number, MaxSize: size}
			s.Status.LastSuccessfulTime = timestamppb.New(now.Add(-time.Hour))
		}
	}
	recent := every("@daily", "", 48*time.Hour, 12*time.Hour)
	kept := func(changes ...func(*etcdv1.SnapshotSchedule)) []*etcdv1.SnapshotSchedule {
		return schedules(every("@daily", "", 48*time.Hour, 12*time.Hour, changes...))
	}
	cases := []struct {
		name string
		view plan.SnapshotView
		do   []string
		held string // the first reason
		wake time.Duration
	}{
		{"nothing", snapshotView(steady, nil), nil, "", 0},
		{
			"one that was requested is taken from a follower", snapshotView(steady, nil, taken("a", "", time.Minute)),
			[]string{"TakeSnapshot a m1"},
			"", 0,
		},
		{
			"the oldest comes first, the others wait",
			snapshotView(steady, nil, taken("b", "", time.Minute), taken("a", plan.Pending, time.Hour)),
			[]string{"TakeSnapshot a m1", "HoldSnapshot b"},
			"snapshot a is taken first", 5 * time.Second,
		},
		{
			"not from a voter that may go down at any moment, rather from the leader",
			snapshotView(stableView(permitFor("m1", false), silentFor("m2", time.Second)), nil, taken("a", "", 0)),
			[]string{"TakeSnapshot a m0"},
			"", 0,
		},
		{
			"not without a majority",
			snapshotView(stableView(func(v *plan.View) { v.Fresh = false }), nil, taken("a", "", 0)),
			[]string{"HoldSnapshot a"},
			"no majority of etcd answers", 5 * time.Second,
		},
		{
			"not while a learner joins",
			snapshotView(stableView(deleted("m1"), withLearner("m3", func(m *plan.Member) { m.Applied = 1 })), nil,
				taken("a", "", 0)),
			[]string{"HoldSnapshot a"},
			"the membership changes: learner m3 joins", 5 * time.Second,
		},
		{
			"not while a voter leaves, and that is written down once",
			snapshotView(stableView(deleted("m1"), withVoter("m3")), nil,
				taken("a", plan.Pending, 0, func(s *etcdv1.Snapshot) {
					s.Status.Message = proto.String("the membership changes: member m1 leaves")
				})),
			nil, "the membership changes: member m1 leaves", 5 * time.Second,
		},
		{
			"one that its guardian did not end has failed",
			snapshotView(steady, nil, taken("a", plan.Running, time.Hour), taken("b", "", 0)),
			[]string{"FailSnapshot a", "TakeSnapshot b m1"},
			"", 0,
		},
		{
			"one whose end was not stored is complete if its file is, and otherwise failed for the reason that is known",
			func() plan.SnapshotView {
				v := snapshotView(steady, nil, taken("a", plan.Running, time.Hour), taken("b", plan.Running, time.Hour))
				v.Stored = map[string]plan.Stored{"a": {Complete: true}, "b": {Failure: "no space left on device"}}
				return v
			}(),
			[]string{"CompleteSnapshot a", "FailSnapshot b"},
			"", 0,
		},
		{
			"one that is being taken goes on",
			func() plan.SnapshotView {
				v := snapshotView(steady, nil, taken("a", plan.Running, time.Hour))
				v.Taking = "a"
				return v
			}(), nil, "", 0,
		},
		{
			"a storage that is not set up",
			snapshotView(steady, nil, taken("a", "", 0, func(s *etcdv1.Snapshot) { s.Spec.Storage = plan.S3 })),
			[]string{"FailSnapshot a"},
			"", 0,
		},
		{
			"the file of one that is deleted goes",
			snapshotView(steady, nil, taken("a", plan.Completed, 0, gone), taken("b", plan.Completed, 0)),
			[]string{"RemoveSnapshot a"},
			"", 0,
		},
		{
			"a schedule whose time has come requests one",
			snapshotView(steady, schedules(every("0 12 * * *", "", 48*time.Hour, 24*time.Hour))),
			[]string{"RequestSnapshot nightly nightly-20261121-120000"},
			"", 0,
		},
		{
			"in its time zone",
			snapshotView(steady, schedules(every("30 20 * * *", "Asia/Tokyo", 48*time.Hour, 24*time.Hour))),
			[]string{"RequestSnapshot nightly nightly-20261121-113000"},
			"", 0,
		},
		{
			"times that were missed count as one",
			snapshotView(steady, schedules(every("*/5 * * * *", "", 400*24*time.Hour, 24*time.Hour))),
			[]string{"RequestSnapshot nightly nightly-20261121-120000"},
			"", 0,
		},
		{
			"one whose time has not come waits for it", snapshotView(steady, schedules(recent)), nil, "", 12 * time.Hour,
		},
		{
			"a new one does not begin in the past",
			snapshotView(steady, schedules(every("0 11 * * *", "", time.Minute, 0))), nil, "", 23 * time.Hour,
		},
		{
			"a clock that was an hour fast costs nothing",
			snapshotView(steady, schedules(every("@every 5m", "", 48*time.Hour, -time.Hour))),
			[]string{"CorrectSchedule nightly"},
			"", 5 * time.Minute,
		},
		{
			"no second one of a schedule is requested while the first waits",
			snapshotView(steady, schedules(every("*/5 * * * *", "", time.Hour, 10*time.Minute)),
				taken("a", plan.Running, time.Minute, of("nightly"))),
			[]string{"FailSnapshot a"},
			"snapshot a is not complete yet", 5 * time.Second,
		},
		{
			"a suspended schedule requests none",
			snapshotView(steady, schedules(every("* * * * *", "", 48*time.Hour, time.Hour,
				func(s *etcdv1.SnapshotSchedule) { s.Spec.Suspend = true }))), nil, "", 0,
		},
		{
			"the oldest beyond the number go, those of others stay",
			snapshotView(steady, kept(few(2, "")), taken("d", plan.Completed, time.Hour, of("nightly")),
				taken("c", plan.Completed, 2*time.Hour, of("nightly")), taken("b", plan.Completed, 3*time.Hour, of("nightly")),
				taken("a", plan.Completed, 4*time.Hour), taken("z", plan.Completed, 5*time.Hour, of("other"))),
			[]string{"DeleteSnapshot b"},
			"", 12 * time.Hour,
		},
		{
			"the newest is the one with the latest revision: it was requested after the clock was set back",
			snapshotView(steady, kept(few(1, "")),
				taken("a", plan.Completed, time.Hour, of("nightly"), withRevision(10)),
				taken("b", plan.Completed, 2*time.Hour, of("nightly"), withRevision(11), func(s *etcdv1.Snapshot) {
					s.Status.CompletionTime = timestamppb.New(now.Add(-time.Hour))
				})),
			[]string{"DeleteSnapshot a"},
			"", 12 * time.Hour,
		},
		{
			"the oldest beyond the size go",
			snapshotView(steady, kept(few(0, "1Gi")), taken("c", plan.Completed, time.Hour, of("nightly"), withSize(600<<20)),
				taken("b", plan.Completed, 2*time.Hour, of("nightly"), withSize(400<<20)),
				taken("a", plan.Completed, 3*time.Hour, of("nightly"), withSize(400<<20))),
			[]string{"DeleteSnapshot a"},
			"", 12 * time.Hour,
		},
		{
			"the newest stays, however large",
			snapshotView(steady, kept(few(0, "1Gi")), taken("a", plan.Completed, time.Hour, of("nightly"), withSize(4<<30))),
			nil, "", 12 * time.Hour,
		},
		{
			"three that failed are kept to be read",
			snapshotView(steady, kept(few(1, "")), taken("e", plan.Failed, time.Hour, of("nightly")),
				taken("d", plan.Failed, 2*time.Hour, of("nightly")), taken("c", plan.Failed, 3*time.Hour, of("nightly")),
				taken("b", plan.Failed, 4*time.Hour, of("nightly")), taken("a", plan.Completed, time.Hour, of("nightly"))),
			[]string{"DeleteSnapshot b"},
			"", 12 * time.Hour,
		},
		{
			"the newest that is complete is noted",
			snapshotView(steady, schedules(recent), taken("a", plan.Completed, time.Hour, of("nightly"))),
			[]string{"NoteSchedule nightly"},
			"", 12 * time.Hour,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := plan.Snapshots(c.view)
			var do []string
			for _, a := range p.Do {
				m := a.Message()
				do = append(do, strings.TrimSpace(strings.Join([]string{
					m.GetAction(), m.GetObject().GetName(), m.GetDetails()["snapshot"] + m.GetDetails()["member"],
				}, " ")))
			}
			if diff := cmp.Diff(c.do, do); diff != "" {
				t.Errorf("Do (-want +got):\n%s", diff)
			}
			held := ""
			if len(p.Held) > 0 {
				held = p.Held[0].GetReason()
			}
			if held != c.held {
				t.Errorf("held: %q, want %q", held, c.held)
			}
			wake := time.Duration(0)
			if !p.Wake.IsZero() {
				wake = p.Wake.Sub(now)
			}
			if wake != c.wake {
				t.Errorf("wakes after %v, want %v", wake, c.wake)
			}
		})
	}
}

// At most one snapshot is taken, never during a change of the membership, and the newest complete one always stays.
func TestSnapshotsKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*etcdv1.Snapshot
		newest := -1
		for i := range rapid.IntRange(0, 30).Draw(t, "snapshots") {
			phase := rapid.SampledFrom([]string{"", plan.Pending, plan.Running, plan.Completed, plan.Failed}).Draw(t, "phase")
			s := taken(fmt.Sprintf("s%02d", i), phase, time.Duration(100-i)*time.Minute, of("nightly"),
				withSize(rapid.Int64Range(0, 20<<30).Draw(t, "size")))
			if phase == plan.Completed {
				newest = i
			}
			list = append(list, s)
		}
		schedule := every("@daily", "", 48*time.Hour, 12*time.Hour, func(s *etcdv1.SnapshotSchedule) {
			s.Spec.Retention = &etcdv1.SnapshotRetention{MaxNumber: rapid.Int32Range(0, 20).Draw(t, "number")}
		})
		changing := rapid.Bool().Draw(t, "changing")
		v := stableView()
		if changing {
			v = stableView(deleted("m1"), withVoter("m3"))
		}
		p := plan.Snapshots(snapshotView(v, []*etcdv1.SnapshotSchedule{schedule}, list...))
		begun := 0
		for _, a := range p.Do {
			switch {
			case a.Kind == plan.TakeSnapshot:
				begun++
			case a.Kind == plan.DeleteSnapshot && newest >= 0 && a.Snapshot == list[newest]:
				t.Fatalf("the newest complete snapshot %s is deleted: %s", list[newest].GetMetadata().GetName(), a.Reason)
			case a.Kind == plan.DeleteSnapshot && a.Snapshot.GetStatus().GetPhase() == plan.Running:
				t.Fatal("a snapshot that is being taken is deleted")
			}
		}
		if begun > 1 || changing && begun > 0 {
			t.Fatalf("%d snapshots are taken; the membership changes: %v", begun, changing)
		}
	})
}

func TestMaintenanceShowsWhatIsHeldBack(t *testing.T) {
	large := func(m *plan.Member) { m.DBSize, m.DBInUse, m.Quota = 200<<20, 20<<20, 2<<30 }
	cases := []struct {
		name       string
		view       plan.View
		next, held string
	}{
		{"a member is defragmented", stableView(member("m1", large)), "Defragment m1", ""},
		{
			"one after the other", stableView(member("m1", large), member("m2", large)), "Defragment m1",
			"m2: Defragment member m1 comes first",
		},
		{
			"another's work comes first", stableView(member("m1", large), permitFor("m2", false)), "",
			"m1: eviction-controller holds the disruption permit for m2 (drain)",
		},
		{
			"a silent voter is waited for", stableView(member("m1", large), silentFor("m2", time.Second)), "",
			"m1: the guardian waits for member m2 to answer (connection refused)",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := plan.Maintenance(snapshotView(c.view, nil))
			next, held := "", ""
			for _, a := range m.GetActions() {
				next += a.GetAction() + " " + a.GetObject().GetName()
			}
			for _, h := range m.GetHeldBack() {
				held += h.GetObject().GetName() + ": " + h.GetReason()
			}
			if next != c.next || held != c.held {
				t.Errorf("next %q, held %q; want %q and %q", next, held, c.next, c.held)
			}
		})
	}
}

func TestAMaintenancePlanUsesWhatIsGivenAndOtherwiseWhatIsLive(t *testing.T) {
	due := every("@daily", "", 48*time.Hour, 25*time.Hour)
	live := snapshotView(stableView(), nil, taken("live", "", time.Minute))
	live.Storages = append(live.Storages, plan.S3)
	quorum := &etcdv1.Quorum{DesiredVoters: 3, Members: []*etcdv1.Member{{
		Id: "1", Name: "m0", Healthy: true, Leader: true, ClientUrls: []string{"https://127.0.0.1:2379"},
	}}}
	requested := &etcdv1.SnapshotList{Items: []*etcdv1.Snapshot{taken("given", "", time.Minute)}}
	schedules := &etcdv1.SnapshotScheduleList{Items: []*etcdv1.SnapshotSchedule{due}}
	cases := []struct {
		name     string
		request  *etcdv1.PlanMaintenanceRequest
		want     string
		storages int
		now      time.Time
	}{
		{"nothing is given", &etcdv1.PlanMaintenanceRequest{}, "TakeSnapshot live", 2, now},
		{"snapshots", &etcdv1.PlanMaintenanceRequest{Snapshots: requested}, "TakeSnapshot given", 2, now},
		{
			"schedules", &etcdv1.PlanMaintenanceRequest{Schedules: schedules}, "RequestSnapshot nightly TakeSnapshot live", 2,
			now,
		},
		{
			"another time", &etcdv1.PlanMaintenanceRequest{Now: timestamppb.New(now.Add(time.Hour))}, "TakeSnapshot live", 2,
			now.Add(time.Hour),
		},
		{"a quorum has nothing of the live one", &etcdv1.PlanMaintenanceRequest{Quorum: quorum}, "", 1, now},
		{
			"a quorum and snapshots", &etcdv1.PlanMaintenanceRequest{Quorum: quorum, Snapshots: requested},
			"TakeSnapshot given", 1, now,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := plan.GivenMaintenance(c.request, live)
			var got []string
			for _, a := range plan.Maintenance(v).GetActions() {
				got = append(got, a.GetAction()+" "+a.GetObject().GetName())
			}
			if text := strings.Join(got, " "); text != c.want || len(v.Storages) != c.storages || !v.Now.Equal(c.now) {
				t.Errorf("%q with %d storages at %s, want %q, %d, %s", text, len(v.Storages), v.Now, c.want, c.storages, c.now)
			}
		})
	}
}

// TestManySchedulesArePlannedQuickly has as many schedules and snapshots as a request may give, and none was ever due
// before: each minute since 1970 was missed.
func TestManySchedulesArePlannedQuickly(t *testing.T) {
	v := snapshotView(stableView(), nil)
	for i := range 10_000 {
		v.Schedules = append(v.Schedules, &etcdv1.SnapshotSchedule{
			Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("s", i)},
			Spec:     &etcdv1.SnapshotScheduleSpec{Schedule: "* * * * *"},
		})
		v.Snapshots = append(v.Snapshots, taken(fmt.Sprint("a", i), plan.Failed, 0, of(fmt.Sprint("s", i))))
	}
	begin := time.Now()
	p := plan.Snapshots(v)
	if n := len(p.Do); n != 10_000 {
		t.Errorf("%d actions, want a request for each schedule", n)
	}
	if took := time.Since(begin); took > 20*time.Second { // 20 times what it takes on a slow machine
		t.Errorf("took %v", took)
	}
	for _, text := range []string{"* * * * *", "@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@every 7h"} {
		times, err := schedule.Parse(text, "")
		if err != nil {
			t.Fatal(err)
		}
		made := 400 * 24 * time.Hour
		v := snapshotView(stableView(), []*etcdv1.SnapshotSchedule{every(text, "", made, 0)})
		got := plan.Snapshots(v).Do[0].Time
		if got.After(now) || !times.Next(got).After(now) {
			t.Errorf("%s: requested for %s, which is not the last time before %s", text, got, now)
		}
	}
}
