package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/services/etcd-guardian/kinds"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// snapshotLimit is the time for one snapshot: 8 GiB through a slow line to an object store, and back for the check.
const snapshotLimit = time.Hour

const (
	removalLimit = 10 * time.Second // for the files of one snapshot: a store that does not answer holds up the others
	removalAgain = 30 * time.Second // until files that could not be removed are tried again
)

// descriptionLimit is the time for reading one description from an object store.
const descriptionLimit = 5 * time.Second

var errNoBucket = errors.New("the guardian is not set up with the bucket that it is in")

// SnapshotsConfig is what Snapshots are made of. All fields but Bucket and Bundle must be set.
type SnapshotsConfig struct {
	Tables    *kinds.Tables
	Quorum    *Controller
	Members   *members.Client
	Directory snapshot.Directory
	Work      snapshot.Directory // where a snapshot is written and checked before it goes to Bucket
	Bucket    *snapshot.S3       // nil: none is set up
	// Bundle returns the keys of the control plane for snapshots that ask for them; nil where there are none on hosts.
	Bundle func() ([]byte, error)
	Events Eventer
	Now    func() time.Time
	Log    *slog.Logger
}

// Snapshots carries out what the plan says of snapshots, one after the other, while this process leads.
type Snapshots struct {
	SnapshotsConfig
	loops  *controller.Loops
	loop   *controller.Loop
	beside sync.WaitGroup         // the snapshot that is taken while others are decided on
	taking atomic.Pointer[string] // name of the snapshot under way; nil: none
	failed atomic.Pointer[writeError]
	// removals is when files are removed again, by the storage that failed. Only reconcile uses it.
	removals map[string]time.Time
}

// writeError is why the last snapshot failed that this process could not write. It is kept, since it may not be stored
// at once.
type writeError struct{ name, why string }

// NewSnapshots returns Snapshots that have done nothing yet.
func NewSnapshots(cfg SnapshotsConfig) *Snapshots {
	s := &Snapshots{SnapshotsConfig: cfg, loops: controller.New(cfg.Log), removals: map[string]time.Time{}}
	s.loop = s.loops.Loop("snapshots", 1, s.reconcile)
	controller.Watches(s.loop, cfg.Tables.Snapshots, func(resource.Change[*etcdv1.Snapshot]) []string {
		return []string{all}
	})
	controller.Watches(s.loop, cfg.Tables.Schedules, func(resource.Change[*etcdv1.SnapshotSchedule]) []string {
		return []string{all}
	})
	return s
}

// Lead carries plans out until ctx ends.
func (s *Snapshots) Lead(ctx context.Context) error {
	defer s.beside.Wait()
	return s.loops.Lead(ctx)
}

// View returns what a decision about snapshots depends on now.
func (s *Snapshots) View(ctx context.Context) plan.SnapshotView {
	o, _ := s.Quorum.Last()
	v := plan.SnapshotView{
		Now: s.Now().UTC(), Quorum: o.View, Membership: o.Plan, Storages: []string{plan.Directory},
		Snapshots: slices.Collect(s.Tables.Snapshots.Objects()), Schedules: slices.Collect(s.Tables.Schedules.Objects()),
	}
	if s.Bucket != nil {
		v.Storages = append(v.Storages, plan.S3)
	}
	if name := s.taking.Load(); name != nil {
		v.Taking = *name
	}
	v.Stored = map[string]plan.Stored{}
	for _, o := range v.Snapshots {
		if name := o.GetMetadata().GetName(); o.GetStatus().GetPhase() == plan.Running && name != v.Taking {
			v.Stored[name] = s.stored(ctx, o)
		}
	}
	return v
}

// stored returns what the storage of a snapshot has of it.
func (s *Snapshots) stored(ctx context.Context, o *etcdv1.Snapshot) plan.Stored {
	if f := s.failed.Load(); f != nil && f.name == o.GetMetadata().GetName() {
		return plan.Stored{Failure: f.why}
	}
	_, err := s.description(ctx, o)
	if errors.Is(err, snapshot.ErrBroken) {
		return plan.Stored{Failure: err.Error()}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return plan.Stored{Unknown: err.Error()}
	}
	return plan.Stored{Complete: err == nil}
}

// description returns what was found in the file of a snapshot that was begun. An error that wraps fs.ErrNotExist means
// that it has no complete one; one of the same name that was taken at another time is not its own.
func (s *Snapshots) description(ctx context.Context, o *etcdv1.Snapshot) (snapshot.Info, error) {
	info, err := s.named(ctx, o)
	if err == nil && !isOf(info, o) {
		err = fmt.Errorf("snapshot %s, begun %v: %w", info.Name, o.GetStatus().GetStartTime().AsTime(), fs.ErrNotExist)
	}
	return info, err
}

// named returns the description of the complete snapshot that has the name of another one in its storage.
func (s *Snapshots) named(ctx context.Context, o *etcdv1.Snapshot) (snapshot.Info, error) {
	limited, cancel := context.WithTimeout(ctx, descriptionLimit)
	defer cancel()
	switch name := o.GetMetadata().GetName(); {
	case storageOf(o) == plan.Directory:
		return s.Directory.Info(name)
	case s.Bucket == nil:
		return snapshot.Info{}, errNoBucket
	default:
		return s.Bucket.Info(limited, name)
	}
}

// isOf reports whether a complete snapshot is that of an object, and not of an earlier one of the same name.
func isOf(info snapshot.Info, o *etcdv1.Snapshot) bool {
	return info.Member == o.GetStatus().GetMember() && info.Time.Equal(timeOf(o.GetStatus().GetStartTime().AsTime()))
}

// timeOf is a time as the description of a snapshot has it.
func timeOf(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

func storageOf(o *etcdv1.Snapshot) string { return cmp.Or(o.GetSpec().GetStorage(), plan.Directory) }

// reconcile does what is planned, in order. A snapshot is taken beside it, one at a time. What fails holds up nothing
// else.
func (s *Snapshots) reconcile(ctx context.Context, _ string) (time.Time, error) {
	p := plan.Snapshots(s.View(ctx))
	var failed error
	for _, a := range p.Do {
		if err := rpcerr.IgnoreChanged(s.act(ctx, a)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s %s: %w", a.Kind, a.Message().GetObject().GetName(), err))
		}
	}
	for _, at := range s.removals {
		if p.Wake.IsZero() || at.Before(p.Wake) {
			p.Wake = at
		}
	}
	return p.Wake, failed
}

func (s *Snapshots) act(ctx context.Context, a plan.SnapshotAction) error {
	switch a.Kind {
	case plan.RequestSnapshot:
		return s.request(ctx, a)
	case plan.TakeSnapshot:
		return s.take(ctx, a)
	case plan.FailSnapshot:
		return s.fail(ctx, a.Snapshot, errors.New(a.Reason))
	case plan.CompleteSnapshot:
		info, err := s.description(ctx, a.Snapshot)
		if err != nil {
			return err
		}
		return s.complete(ctx, a.Snapshot, info)
	case plan.HoldSnapshot:
		return s.note(ctx, a.Snapshot, func(st *etcdv1.SnapshotStatus) {
			st.Phase, st.Message = proto.String(plan.Pending), proto.String(a.Reason)
		})
	case plan.DeleteSnapshot:
		meta := a.Snapshot.GetMetadata()
		_, err := s.Tables.Snapshots.Delete(ctx, "", meta.GetName(), &metav1.Preconditions{Uid: meta.Uid})
		return err
	case plan.RemoveSnapshot:
		return s.remove(ctx, a.Snapshot)
	case plan.CorrectSchedule:
		return s.noteSchedule(ctx, a.Schedule, func(st *etcdv1.SnapshotScheduleStatus) {
			st.LastScheduleTime = timestamppb.New(a.Time)
		})
	case plan.NoteSchedule:
		return s.noteSchedule(ctx, a.Schedule, func(st *etcdv1.SnapshotScheduleStatus) {
			st.LastSuccessfulTime = timestamppb.New(a.Time)
		})
	}
	return fmt.Errorf("unknown action %q", a.Kind)
}

// request creates the snapshot of a schedule, and then notes its time: after a crash in between, the same snapshot is
// requested again, and exists.
func (s *Snapshots) request(ctx context.Context, a plan.SnapshotAction) error {
	_, err := s.Tables.Snapshots.Create(ctx, proto.CloneOf(a.Snapshot), resource.WriteOptions{Own: true})
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return err
	}
	return s.noteSchedule(ctx, a.Schedule, func(st *etcdv1.SnapshotScheduleStatus) {
		st.LastScheduleTime = timestamppb.New(a.Time)
	})
}

func (s *Snapshots) noteSchedule(ctx context.Context, o *etcdv1.SnapshotSchedule,
	change func(*etcdv1.SnapshotScheduleStatus),
) error {
	_, err := s.Tables.Schedules.Modify(ctx, object.KeyOf(o), func(o *etcdv1.SnapshotSchedule) error {
		if o.Status == nil {
			o.Status = &etcdv1.SnapshotScheduleStatus{}
		}
		change(o.GetStatus())
		return nil
	})
	return err
}

// note changes the status of a snapshot.
func (s *Snapshots) note(ctx context.Context, o *etcdv1.Snapshot, change func(*etcdv1.SnapshotStatus)) error {
	_, err := s.Tables.Snapshots.Modify(ctx, object.KeyOf(o), func(o *etcdv1.Snapshot) error {
		if o.Status == nil {
			o.Status = &etcdv1.SnapshotStatus{}
		}
		change(o.GetStatus())
		return nil
	})
	return err
}

// fail notes that a snapshot failed, and removes what a process that ended left of it.
func (s *Snapshots) fail(ctx context.Context, o *etcdv1.Snapshot, why error) error {
	if o.GetStatus().GetPhase() == plan.Running {
		if err := s.discard(ctx, o); err != nil {
			why = fmt.Errorf("%w; what is left of it could not be removed: %w", why, err)
		}
	}
	s.Events.Event(o, "Warning", "SnapshotFailed", why.Error())
	s.Log.WarnContext(ctx, "snapshot failed", "snapshot", o.GetMetadata().GetName(), "error", why)
	return s.note(ctx, o, func(st *etcdv1.SnapshotStatus) {
		st.Phase, st.Message = proto.String(plan.Failed), proto.String(why.Error())
		st.CompletionTime = timestamppb.New(s.Now())
	})
}

// take writes down that a snapshot is begun, and begins it.
func (s *Snapshots) take(ctx context.Context, a plan.SnapshotAction) error {
	name := a.Snapshot.GetMetadata().GetName()
	begin := s.Now()
	err := s.note(ctx, a.Snapshot, func(st *etcdv1.SnapshotStatus) {
		st.Phase, st.Message, st.StartTime = proto.String(plan.Running), nil, timestamppb.New(begin)
		st.Member = proto.String(a.Member.Name)
	})
	if err != nil {
		return err
	}
	s.failed.Store(nil)
	s.taking.Store(&name)
	s.beside.Go(func() {
		if err := s.finish(ctx, a, begin); err != nil && ctx.Err() == nil {
			s.Log.WarnContext(ctx, "end of the snapshot is not stored yet", "snapshot", name, "error", err)
		}
		s.taking.Store(nil)
		s.loop.Add(all)
	})
	return nil
}

// finish takes a snapshot that was begun, and writes down what came of it. If it cannot, the next decision does.
func (s *Snapshots) finish(ctx context.Context, a plan.SnapshotAction, begin time.Time) error {
	limited, cancel := context.WithTimeout(ctx, snapshotLimit)
	defer cancel()
	info, err := s.write(limited, a, begin)
	if ctx.Err() != nil {
		return nil // another guardian leads, or this one ends: the next decision completes the snapshot or fails it
	}
	if err != nil {
		s.failed.Store(&writeError{a.Snapshot.GetMetadata().GetName(), err.Error()})
		return s.fail(ctx, a.Snapshot, err)
	}
	return s.complete(ctx, a.Snapshot, info)
}

// complete notes that a snapshot is complete. If that fails, the next decision notes it.
func (s *Snapshots) complete(ctx context.Context, o *etcdv1.Snapshot, info snapshot.Info) error {
	location := s.Directory.File(info.Name)
	if storageOf(o) == plan.S3 {
		location = s.Bucket.Location(info.Name)
	}
	now := s.Now()
	var begin time.Time
	var known bool
	err := s.note(ctx, o, func(st *etcdv1.SnapshotStatus) {
		if known = st.GetPhase() == plan.Completed; known {
			return
		}
		begin = st.GetStartTime().AsTime()
		st.Phase, st.SizeBytes = proto.String(plan.Completed), proto.String(strconv.FormatInt(info.SizeBytes, 10))
		st.Revision, st.Keys = proto.String(strconv.FormatInt(info.Revision, 10)), proto.Int32(int32(info.Keys))
		st.Hash, st.Sha256 = proto.String(info.Hash), proto.String(info.SHA256)
		st.Location, st.EtcdVersion = proto.String(location), proto.String(info.EtcdVersion)
		st.CompletionTime, st.VerifyTime = timestamppb.New(now), timestamppb.New(info.VerifyTime)
		if info.SealedKeys != nil {
			st.KeyRecipients = info.SealedKeys.Recipients
		}
	})
	if err != nil || known {
		return err
	}
	s.Log.InfoContext(ctx, "snapshot completed", "snapshot", info.Name, "member", info.Member, "revision", info.Revision,
		"elapsed_ms", now.Sub(begin).Milliseconds())
	s.Events.Event(o, "Normal", "SnapshotCompleted", "written and checked: "+location)
	return nil
}

// discard removes what is left of a snapshot that was begun and is not complete.
func (s *Snapshots) discard(ctx context.Context, o *etcdv1.Snapshot) error {
	name := o.GetMetadata().GetName()
	if storageOf(o) == plan.Directory {
		return s.Directory.Discard(name)
	}
	limited, cancel := context.WithTimeout(ctx, removalLimit)
	defer cancel()
	err := s.Work.Remove(name)
	if s.Bucket != nil {
		err = errors.Join(err, s.Bucket.Discard(limited, name))
	}
	return err
}

// write takes a snapshot and stores it where it was asked for.
func (s *Snapshots) write(ctx context.Context, a plan.SnapshotAction, begin time.Time) (snapshot.Info, error) {
	info := snapshot.Info{
		Name: a.Snapshot.GetMetadata().GetName(), Time: timeOf(begin), Member: a.Member.Name,
	}
	if o, _ := s.Quorum.Last(); o.Quorum != nil {
		info.ClusterID = o.Quorum.GetClusterId()
	}
	fetch := func(ctx context.Context, w io.Writer) error {
		return s.Members.Snapshot(ctx, a.Member.ClientURLs[0], w)
	}
	keys, err := s.seal(a.Snapshot.GetSpec().GetKeyRecipients())
	if err != nil {
		return info, fmt.Errorf("keys of the control plane: %w", err)
	}
	if storageOf(a.Snapshot) == plan.Directory {
		return s.Directory.Write(ctx, info, keys, fetch)
	}
	if err := s.Work.Remove(info.Name); err != nil { // what a process left that ended
		return info, err
	}
	info, err = s.Work.Write(ctx, info, nil, fetch)
	if err != nil {
		return info, err
	}
	stored, err := s.Bucket.Upload(ctx, s.Work.File(info.Name), keys, info)
	return stored, errors.Join(err, s.Work.Remove(info.Name))
}

// seal returns the keys of the control plane, encrypted to recipients; nil if there are no recipients.
func (s *Snapshots) seal(recipients []string) (*snapshot.Keys, error) {
	if len(recipients) == 0 {
		return nil, nil
	}
	if s.Bundle == nil {
		return nil, errors.New("there are none, since the control plane is not on hosts")
	}
	bundle, err := s.Bundle()
	if err != nil {
		return nil, err
	}
	sealed, err := hostbundle.Seal(bundle, recipients)
	return &snapshot.Keys{Sealed: sealed, Recipients: recipients}, err
}

// remove deletes the files of a snapshot, and then lets its object go. If that fails, the object says why, and the
// storage is left alone for a while: its other snapshots would mostly fail alike.
func (s *Snapshots) remove(ctx context.Context, o *etcdv1.Snapshot) error {
	storage := storageOf(o)
	if at, ok := s.removals[storage]; ok && s.Now().Before(at) {
		return nil
	}
	delete(s.removals, storage)
	limited, cancel := context.WithTimeout(ctx, removalLimit)
	defer cancel()
	if err := s.removeFiles(limited, o, storage); err != nil {
		if ctx.Err() != nil {
			return nil // another guardian leads, or this one ends
		}
		s.removals[storage] = s.Now().Add(removalAgain)
		return s.keeps(ctx, o, "its files are not removed: "+err.Error())
	}
	_, err := s.Tables.Snapshots.Modify(ctx, object.KeyOf(o), func(o *etcdv1.Snapshot) error {
		o.Metadata.Finalizers = slices.DeleteFunc(o.GetMetadata().GetFinalizers(), func(f string) bool {
			return f == plan.SnapshotFinalizer
		})
		return nil
	})
	return err
}

// removeFiles removes the files of a snapshot, and not those of a complete one that had its name before: that is why it
// failed.
func (s *Snapshots) removeFiles(ctx context.Context, o *etcdv1.Snapshot, storage string) error {
	name := o.GetMetadata().GetName()
	info, err := s.named(ctx, o)
	switch {
	case err == nil && !isOf(info, o):
		return s.discard(ctx, o)
	case err != nil && !errors.Is(err, errNoBucket) && !errors.Is(err, fs.ErrNotExist) &&
		!errors.Is(err, snapshot.ErrBroken):
		return err
	case storage == plan.Directory:
		return s.Directory.Remove(name)
	case s.Bucket != nil:
		return s.Bucket.Remove(ctx, name)
	case o.GetStatus().GetLocation() == "":
		return nil // there was no bucket that it could be stored in
	}
	return fmt.Errorf("the guardian is not set up with the bucket of %s", o.GetStatus().GetLocation())
}

// keeps notes why a deleted snapshot still exists.
func (s *Snapshots) keeps(ctx context.Context, o *etcdv1.Snapshot, why string) error {
	if o.GetStatus().GetMessage() == why {
		return nil
	}
	s.Events.Event(o, "Warning", "SnapshotNotRemoved", why)
	s.Log.WarnContext(ctx, "snapshot not removed", "snapshot", o.GetMetadata().GetName(), "error", why)
	return s.note(ctx, o, func(st *etcdv1.SnapshotStatus) { st.Message = proto.String(why) })
}
