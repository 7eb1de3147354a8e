package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/schedule"
)

// Storages of snapshots.
const (
	Directory = "Directory"
	S3        = "S3"
)

// Phases of a snapshot.
const (
	Pending   = "Pending"
	Running   = "Running"
	Completed = "Completed"
	Failed    = "Failed"
)

// SnapshotFinalizer keeps a snapshot's object until its file is removed.
const SnapshotFinalizer = "windlass.dev/snapshot-file"

// The kinds of actions on snapshots.
const (
	RequestSnapshot  = "RequestSnapshot"  // create the Snapshot of a schedule, and write down for which time
	TakeSnapshot     = "TakeSnapshot"     // take it from Member
	CompleteSnapshot = "CompleteSnapshot" // write down what its storage says of it
	FailSnapshot     = "FailSnapshot"     // write down why it failed
	CorrectSchedule  = "CorrectSchedule"  // write down that its last time was now, since it is in the future
	HoldSnapshot     = "HoldSnapshot"     // write down what it waits for
	DeleteSnapshot   = "DeleteSnapshot"   // delete its object
	RemoveSnapshot   = "RemoveSnapshot"   // remove its file, and then let its object go
	NoteSchedule     = "NoteSchedule"     // write down when its newest snapshot was complete
)

// Defaults and limits of snapshots.
const (
	defaultKept   = 15                // Source: OpenShift's etcd operator
	defaultSize   = 10 << 30          // bytes; the same source
	failedKept    = 3                 // snapshots of a schedule that failed: enough to see whether they fail alike
	snapshotAgain = 5 * time.Second   // until a snapshot that is held back is decided on again
	nameTime      = "20060102-150405" // in UTC, ends the name of a scheduled snapshot
)

// SnapshotView is everything that a decision about snapshots depends on.
type SnapshotView struct {
	Now        time.Time // UTC; schedules are times of day, so this is the host's clock
	Quorum     View
	Membership Plan // of Quorum
	Snapshots  []*etcdv1.Snapshot
	Schedules  []*etcdv1.SnapshotSchedule
	Storages   []string          // that are set up
	Taking     string            // name of the snapshot that this process is taking; empty if none
	Stored     map[string]Stored // what their storages have of snapshots that are Running, by name
}

// Stored is what the storage of a snapshot has of it. The zero Stored means nothing that is complete.
type Stored struct {
	Complete bool   // it was written and checked
	Failure  string // why this process could not write it
	Unknown  string // why the storage does not say what it has
}

// SnapshotAction is one change. Which fields are set depends on its kind.
type SnapshotAction struct {
	Kind     string
	Snapshot *etcdv1.Snapshot         // as it is, or to be created
	Schedule *etcdv1.SnapshotSchedule // of RequestSnapshot, NoteSchedule and CorrectSchedule
	Time     time.Time                // of the schedule; of completion, for NoteSchedule
	Member   Member
	Reason   string
}

// SnapshotPlan is what to do about snapshots now, in this order. At most one snapshot is taken at a time.
type SnapshotPlan struct {
	Do   []SnapshotAction
	Held []*metav1.HeldBack
	Wake time.Time // when to decide again even if nothing changes; zero means never
}

// Snapshots returns what to do about snapshots now. It does not modify v.
func Snapshots(v SnapshotView) SnapshotPlan {
	d := &snapshots{SnapshotView: v, of: map[string][]*etcdv1.Snapshot{}}
	list := slices.Clone(v.Snapshots)
	slices.SortFunc(list, func(a, b *etcdv1.Snapshot) int {
		return cmp.Or(created(a).Compare(created(b)), cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()))
	})
	for _, s := range list {
		d.end(s)
		d.of[s.GetSpec().GetSchedule()] = append(d.of[s.GetSpec().GetSchedule()], s)
	}
	for _, s := range v.Schedules {
		mine := d.of[s.GetMetadata().GetName()]
		d.schedule(s, mine)
		d.retain(s, mine)
	}
	d.take(list)
	return d.plan
}

type snapshots struct {
	SnapshotView
	plan SnapshotPlan
	of   map[string][]*etcdv1.Snapshot // by schedule, oldest first
}

func (d *snapshots) do(a SnapshotAction) { d.plan.Do = append(d.plan.Do, a) }

func (d *snapshots) wake(t time.Time) {
	if d.plan.Wake.IsZero() || t.Before(d.plan.Wake) {
		d.plan.Wake = t
	}
}

func (d *snapshots) hold(action string, object *metav1.ObjectReference, reason, unblock string) {
	d.plan.Held = append(d.plan.Held, &metav1.HeldBack{Action: action, Object: object, Reason: reason, Unblock: unblock})
}

func created(s *etcdv1.Snapshot) time.Time { return s.GetMetadata().GetCreationTimestamp().AsTime() }

// end removes the file of a snapshot that is deleted. Of one whose end its guardian did not store, it has that stored:
// a restored etcd has that of the very snapshot that it was restored from.
func (d *snapshots) end(s *etcdv1.Snapshot) {
	name := s.GetMetadata().GetName()
	switch {
	case name == d.Taking:
	case s.GetMetadata().GetDeletionTimestamp() != nil:
		if slices.Contains(s.GetMetadata().GetFinalizers(), SnapshotFinalizer) {
			d.do(SnapshotAction{Kind: RemoveSnapshot, Snapshot: s, Reason: "the snapshot is deleted"})
		}
	case s.GetStatus().GetPhase() != Running:
	case d.Stored[name].Complete:
		d.do(SnapshotAction{
			Kind: CompleteSnapshot, Snapshot: s, Reason: "its file is complete, and that was not stored",
		})
	default:
		d.do(SnapshotAction{Kind: FailSnapshot, Snapshot: s, Reason: d.Stored[name].failure()})
	}
}

// failure says why a snapshot failed that was begun.
func (s Stored) failure() string {
	const ended = "the guardian that took it ended or lost its lead before it was complete"
	switch {
	case s.Failure != "":
		return s.Failure
	case s.Unknown != "":
		return ended + ", or its storage does not say that it is: " + s.Unknown
	}
	return ended
}

// waits reports whether a snapshot was requested and is not complete.
func waits(s *etcdv1.Snapshot) bool {
	return s.GetMetadata().GetDeletionTimestamp() == nil &&
		slices.Contains([]string{"", Pending, Running}, s.GetStatus().GetPhase())
}

// schedule requests the snapshot that is due; list has those of the schedule. Times that were missed count as one.
func (d *snapshots) schedule(s *etcdv1.SnapshotSchedule, list []*etcdv1.Snapshot) {
	if s.GetSpec().GetSuspend() || s.GetMetadata().GetDeletionTimestamp() != nil {
		return
	}
	times, err := schedule.Parse(s.GetSpec().GetSchedule(), s.GetSpec().GetTimeZone())
	if err != nil {
		d.hold(RequestSnapshot, object.Reference(s), "its schedule cannot be read: "+err.Error(), "correct it")
		return
	}
	last := s.GetMetadata().GetCreationTimestamp().AsTime()
	if at := s.GetStatus().GetLastScheduleTime(); at != nil {
		last = at.AsTime()
	}
	if last.After(d.Now) { // the clock was set back: no reason to take none until it was caught up with
		d.do(SnapshotAction{
			Kind: CorrectSchedule, Schedule: s, Time: d.Now, Reason: "its last time is in the future: the clock was set back",
		})
		last = d.Now
	}
	due := times.Next(last)
	if due.IsZero() {
		d.hold(RequestSnapshot, object.Reference(s), "its schedule never comes", "correct it")
		return
	}
	if due.After(d.Now) {
		d.wake(due)
		return
	}
	due = schedule.Latest(times, last, d.Now)
	for _, o := range list {
		if waits(o) {
			d.hold(RequestSnapshot, object.Reference(s), "snapshot "+o.GetMetadata().GetName()+" is not complete yet", "")
			d.wake(d.Now.Add(snapshotAgain))
			return
		}
	}
	d.do(SnapshotAction{
		Kind: RequestSnapshot, Schedule: s, Time: due, Reason: "it is due since " + due.UTC().Format(time.RFC3339),
		Snapshot: &etcdv1.Snapshot{
			Metadata: &metav1.ObjectMeta{Name: s.GetMetadata().GetName() + "-" + due.UTC().Format(nameTime)},
			Spec: &etcdv1.SnapshotSpec{
				Storage: s.GetSpec().GetStorage(), Schedule: s.GetMetadata().GetName(),
				KeyRecipients: s.GetSpec().GetKeyRecipients(),
			},
		},
	})
}

// retain deletes the oldest snapshots of a schedule that it does not keep, and notes when the newest was complete.
func (d *snapshots) retain(s *etcdv1.SnapshotSchedule, list []*etcdv1.Snapshot) {
	var failed, completed []*etcdv1.Snapshot
	for _, o := range list {
		switch {
		case o.GetSpec().GetSchedule() != s.GetMetadata().GetName() || o.GetMetadata().GetDeletionTimestamp() != nil:
		case o.GetStatus().GetPhase() == Failed:
			failed = append(failed, o)
		case o.GetStatus().GetPhase() == Completed:
			completed = append(completed, o)
		}
	}
	for _, o := range failed[:max(len(failed)-failedKept, 0)] {
		d.do(SnapshotAction{Kind: DeleteSnapshot, Snapshot: o, Reason: fmt.Sprintf("%d later ones failed too", failedKept)})
	}
	// By what is in them, not by the clock: it may have been set back since.
	slices.SortStableFunc(completed, func(a, b *etcdv1.Snapshot) int {
		return cmp.Compare(number(a.GetStatus().GetRevision()), number(b.GetStatus().GetRevision()))
	})
	most, size := kept(s.GetSpec().GetRetention())
	count, total := 0, int64(0)
	for _, o := range slices.Backward(completed) {
		count, total = count+1, total+number(o.GetStatus().GetSizeBytes())
		switch {
		case count == 1:
			d.note(s, o.GetStatus().GetCompletionTime())
		case count > most:
			d.do(SnapshotAction{Kind: DeleteSnapshot, Snapshot: o, Reason: fmt.Sprintf("%d later ones are kept", most)})
		case total > size:
			d.do(SnapshotAction{
				Kind: DeleteSnapshot, Snapshot: o, Reason: fmt.Sprintf("with it, %d bytes would be kept, and %d are allowed",
					total, size),
			})
		}
	}
}

// number returns a number of a status; 0 if it is absent.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

func (d *snapshots) note(s *etcdv1.SnapshotSchedule, at *timestamppb.Timestamp) {
	if at != nil && !at.AsTime().Equal(s.GetStatus().GetLastSuccessfulTime().AsTime()) {
		d.do(SnapshotAction{Kind: NoteSchedule, Schedule: s, Time: at.AsTime(), Reason: "a snapshot is complete"})
	}
}

// kept returns how many snapshots of a schedule are kept at most, and how many bytes.
func kept(r *etcdv1.SnapshotRetention) (number int, bytes int64) {
	number, bytes = cmp.Or(int(r.GetMaxNumber()), defaultKept), defaultSize
	if q, err := placement.ParseQuantity(r.GetMaxSize()); err == nil && q.Value() > 0 {
		bytes = q.Value()
	}
	return number, bytes
}

// take begins the oldest snapshot that was requested, unless one is under way or the membership changes.
func (d *snapshots) take(list []*etcdv1.Snapshot) {
	begun := d.Taking
	for _, s := range list {
		if !waits(s) || s.GetStatus().GetPhase() == Running || s.GetMetadata().GetName() == d.Taking {
			continue
		}
		storage := cmp.Or(s.GetSpec().GetStorage(), Directory)
		member, why, unblock := d.source()
		switch {
		case !slices.Contains(d.Storages, storage):
			d.do(SnapshotAction{
				Kind: FailSnapshot, Snapshot: s, Reason: "the guardian is not set up with the storage " + storage,
			})
			continue
		case begun != "":
			why, unblock = "snapshot "+begun+" is taken first", ""
		}
		if why != "" {
			d.hold(TakeSnapshot, object.Reference(s), why, unblock)
			d.wake(d.Now.Add(snapshotAgain))
			if s.GetStatus().GetPhase() != Pending || s.GetStatus().GetMessage() != why {
				d.do(SnapshotAction{Kind: HoldSnapshot, Snapshot: s, Reason: why})
			}
			continue
		}
		begun = s.GetMetadata().GetName()
		d.do(SnapshotAction{Kind: TakeSnapshot, Snapshot: s, Member: member, Reason: "it was requested"})
	}
}

// source returns the member that a snapshot is taken from: a healthy voter that no permit holder may disrupt, rather
// not the leader, which has most to do. Otherwise it returns why none can be taken now.
func (d *snapshots) source() (m Member, why, unblock string) {
	q := newDecision(d.Quorum)
	switch next := d.Membership.Next; {
	case !q.Fresh || q.lost():
		return Member{}, "no majority of etcd answers", "bring the missing voters back"
	case next != nil && next.changesMembers():
		return Member{}, "the membership changes: " + next.String(), ""
	case q.leaver != nil:
		return Member{}, "the membership changes: " + nameOf(*q.leaver) + " leaves", ""
	}
	for _, o := range q.Members {
		switch {
		case o.Learner && !q.caughtUp(o):
			return Member{}, "the membership changes: " + nameOf(o) + " joins", ""
		case o.Stopping, o.Restarting, o.Defragments:
			return Member{}, nameOf(o) + " is stopped, restarted or defragmented", ""
		case o.Learner, !o.Healthy, len(o.ClientURLs) == 0, q.holdsPermit(o):
		case m.ID == 0, m.Leader && !o.Leader:
			m = o
		}
	}
	if m.ID == 0 {
		return m, "no voter is free for it: " + q.holderText(), "wait until that work is finished"
	}
	return m, "", ""
}

func (d *decision) holderText() string {
	if d.Permit == nil {
		return "none is healthy"
	}
	return d.permitText()
}

// changesMembers reports whether an action adds, promotes, moves, stops, restarts or removes a member.
func (a Action) changesMembers() bool {
	return slices.Contains([]Kind{
		AddLearner, Promote, MoveLeader, StopMember, StartMember, RestartMember, RemoveMember,
		Defragment,
	}, a.Kind)
}

// Message returns the action as Plan answers show it.
func (a SnapshotAction) Message() *metav1.PlannedAction {
	out := &metav1.PlannedAction{Action: a.Kind, Reason: a.Reason, Details: map[string]string{}}
	switch {
	case a.Schedule != nil:
		out.Object = object.Reference(a.Schedule)
		if a.Snapshot != nil {
			out.Details["snapshot"] = a.Snapshot.GetMetadata().GetName()
		}
	default:
		out.Object = object.Reference(a.Snapshot)
	}
	if a.Member.ID != 0 {
		out.Details["member"] = a.Member.Name
	}
	return out
}

// Maintenance returns the plan for v's databases and its snapshots as the answer to a Plan request.
func Maintenance(v SnapshotView) *etcdv1.PlanMaintenanceResponse {
	d, p := newDecision(v.Quorum), Snapshots(v)
	out := &etcdv1.PlanMaintenanceResponse{}
	if next := v.Membership.Next; next != nil && slices.Contains([]Kind{Compact, Defragment, Disarm}, next.Kind) {
		out.Actions = append(out.Actions, next.Message())
	}
	for _, m := range d.leaderLast() {
		if d.mostlyFree(m) && (v.Membership.Next == nil || v.Membership.Next.Member.ID != m.ID) {
			out.HeldBack = append(out.HeldBack, &metav1.HeldBack{
				Action: string(Defragment), Object: memberReference(m), Reason: d.before(v.Membership),
			})
		}
	}
	for _, h := range v.Membership.HeldBack {
		if h.GetAction() == string(Defragment) {
			out.HeldBack = append(out.HeldBack, h)
		}
	}
	for _, a := range p.Do {
		out.Actions = append(out.Actions, a.Message())
	}
	out.HeldBack = append(out.HeldBack, p.Held...)
	if !p.Wake.IsZero() {
		out.NextCheckAfter = durationpb.New(max(p.Wake.Sub(v.Now), 0))
	}
	return out
}

// GivenMaintenance returns the view that a Plan request gives. What is absent is as in the live view, or, if the quorum
// is given, does not exist: of the storages, there is the directory then.
func GivenMaintenance(r *etcdv1.PlanMaintenanceRequest, live SnapshotView) SnapshotView {
	v := live
	if now := cmp.Or(r.GetNow(), r.GetQuorum().GetObserveTime()); now != nil {
		v.Now = now.AsTime()
	}
	switch {
	case r.GetQuorum() != nil:
		q := GivenBy(&etcdv1.PlanQuorumRequest{
			Quorum: r.GetQuorum(), Machines: r.GetMachines(), Now: timestamppb.New(v.Now),
		}).View()
		v = SnapshotView{Now: v.Now, Quorum: q, Membership: Next(q), Storages: []string{Directory}}
	case r.GetMachines() != nil:
		v.Quorum.Machines, v.Quorum.MachinesKnown = Machines(r.GetMachines().GetItems()), true
		v.Membership = Next(v.Quorum)
	}
	if r.GetSnapshots() != nil {
		v.Snapshots, v.Taking, v.Stored = r.GetSnapshots().GetItems(), "", nil
	}
	if r.GetSchedules() != nil {
		v.Schedules = r.GetSchedules().GetItems()
	}
	if len(r.GetStorages()) > 0 {
		v.Storages = r.GetStorages()
	}
	return v
}

// before says what comes before a defragmentation.
func (d *decision) before(p Plan) string {
	switch {
	case p.Next != nil:
		return p.Next.String() + " comes first"
	case p.WaitsFor != "":
		return "the guardian waits for " + p.WaitsFor
	case d.Permit != nil:
		return d.permitText()
	}
	return "the last one did not make its database smaller"
}
