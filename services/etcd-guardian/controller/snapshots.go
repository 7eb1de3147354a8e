package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/controller"
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

// SnapshotsConfig is what Snapshots are made of. All fields but Bucket must be set.
type SnapshotsConfig struct {
	Tables    *kinds.Tables
	Quorum    *Controller
	Members   *members.Client
	Directory snapshot.Directory
	Work      snapshot.Directory // where a snapshot is written and checked before it goes to Bucket
	Bucket    *snapshot.S3       // nil: none is set up
	Events    Eventer
	Now       func() time.Time
	Log       *slog.Logger
}

// Snapshots carries out what the plan says of snapshots, one after the other, while this process leads.
type Snapshots struct {
	SnapshotsConfig
	loops  *controller.Loops
	taking atomic.Pointer[string] // name of the snapshot under way; nil: none
}

// NewSnapshots returns Snapshots that have done nothing yet.
func NewSnapshots(cfg SnapshotsConfig) *Snapshots {
	s := &Snapshots{SnapshotsConfig: cfg, loops: controller.New(cfg.Log)}
	loop := s.loops.Loop("snapshots", 1, s.reconcile)
	controller.Watches(loop, cfg.Tables.Snapshots, func(resource.Change[*etcdv1.Snapshot]) []string {
		return []string{all}
	})
	controller.Watches(loop, cfg.Tables.Schedules, func(resource.Change[*etcdv1.SnapshotSchedule]) []string {
		return []string{all}
	})
	return s
}

// Lead carries plans out until ctx ends.
func (s *Snapshots) Lead(ctx context.Context) error { return s.loops.Lead(ctx) }

// View returns what a decision about snapshots depends on now.
func (s *Snapshots) View() plan.SnapshotView {
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
	return v
}

// reconcile does what is planned, in order. A snapshot is taken within it, so that there is one at a time.
func (s *Snapshots) reconcile(ctx context.Context, _ string) (time.Time, error) {
	p := plan.Snapshots(s.View())
	for _, a := range p.Do {
		if err := rpcerr.IgnoreChanged(s.act(ctx, a)); err != nil {
			return p.Wake, fmt.Errorf("%s %s: %w", a.Kind, a.Message().GetObject().GetName(), err)
		}
		if a.Kind == plan.TakeSnapshot {
			return s.Now(), nil // that took long: decide again
		}
	}
	return p.Wake, nil
}

func (s *Snapshots) act(ctx context.Context, a plan.SnapshotAction) error {
	switch a.Kind {
	case plan.RequestSnapshot:
		return s.request(ctx, a)
	case plan.TakeSnapshot:
		return s.take(ctx, a)
	case plan.FailSnapshot:
		return s.fail(ctx, a.Snapshot, errors.New(a.Reason))
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

func (s *Snapshots) fail(ctx context.Context, o *etcdv1.Snapshot, why error) error {
	s.Events.Event(o, "Warning", "SnapshotFailed", why.Error())
	s.Log.WarnContext(ctx, "snapshot failed", "snapshot", o.GetMetadata().GetName(), "error", why)
	return s.note(ctx, o, func(st *etcdv1.SnapshotStatus) {
		st.Phase, st.Message = proto.String(plan.Failed), proto.String(why.Error())
		st.CompletionTime = timestamppb.New(s.Now())
	})
}

// take writes down that a snapshot is begun, takes it, and writes down what came of it.
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
	s.taking.Store(&name)
	defer s.taking.Store(nil)
	limited, cancel := context.WithTimeout(ctx, snapshotLimit)
	defer cancel()
	info, location, err := s.write(limited, a, begin)
	if ctx.Err() != nil {
		return nil // another guardian leads, or this one ends: the snapshot is failed by the next decision
	}
	if err != nil {
		return s.fail(ctx, a.Snapshot, err)
	}
	err = s.note(ctx, a.Snapshot, func(st *etcdv1.SnapshotStatus) {
		st.Phase, st.SizeBytes = proto.String(plan.Completed), proto.String(strconv.FormatInt(info.SizeBytes, 10))
		st.Revision, st.Keys = proto.String(strconv.FormatInt(info.Revision, 10)), proto.Int32(int32(info.Keys))
		st.Hash, st.Sha256 = proto.String(info.Hash), proto.String(info.SHA256)
		st.Location, st.EtcdVersion = proto.String(location), proto.String(info.EtcdVersion)
		st.CompletionTime, st.VerifyTime = timestamppb.New(s.Now()), timestamppb.New(info.VerifyTime)
	})
	if err != nil {
		return err // it is not complete: the next decision fails it
	}
	s.Log.InfoContext(ctx, "snapshot completed", "snapshot", name, "member", a.Member.Name, "revision", info.Revision,
		"elapsed_ms", s.Now().Sub(begin).Milliseconds())
	s.Events.Event(a.Snapshot, "Normal", "SnapshotCompleted", "written and checked: "+location)
	return nil
}

// write takes a snapshot and stores it where it was asked for.
func (s *Snapshots) write(ctx context.Context, a plan.SnapshotAction, begin time.Time) (snapshot.Info, string, error) {
	info := snapshot.Info{
		Name: a.Snapshot.GetMetadata().GetName(), Time: begin.UTC().Truncate(time.Second), Member: a.Member.Name,
	}
	if o, _ := s.Quorum.Last(); o.Quorum != nil {
		info.ClusterID = o.Quorum.GetClusterId()
	}
	fetch := func(ctx context.Context, w io.Writer) error {
		return s.Members.Snapshot(ctx, a.Member.ClientURLs[0], w)
	}
	if cmp.Or(a.Snapshot.GetSpec().GetStorage(), plan.Directory) == plan.Directory {
		info, err := s.Directory.Write(ctx, info, fetch)
		return info, s.Directory.File(info.Name), err
	}
	info, err := s.Work.Write(ctx, info, fetch)
	if err != nil {
		return info, "", err
	}
	stored, err := s.Bucket.Upload(ctx, s.Work.File(info.Name), info)
	return stored, s.Bucket.Location(info.Name), errors.Join(err, s.Work.Remove(info.Name))
}

// remove deletes the files of a snapshot, and then lets its object go.
func (s *Snapshots) remove(ctx context.Context, o *etcdv1.Snapshot) error {
	var err error
	name := o.GetMetadata().GetName()
	switch cmp.Or(o.GetSpec().GetStorage(), plan.Directory) {
	case plan.Directory:
		err = s.Directory.Remove(name)
	case plan.S3:
		if s.Bucket == nil {
			return errors.New("the guardian is not set up with the bucket that it is in")
		}
		err = s.Bucket.Remove(ctx, name)
	}
	if err != nil {
		return err
	}
	_, err = s.Tables.Snapshots.Modify(ctx, object.KeyOf(o), func(o *etcdv1.Snapshot) error {
		o.Metadata.Finalizers = slices.DeleteFunc(o.GetMetadata().GetFinalizers(), func(f string) bool {
			return f == plan.SnapshotFinalizer
		})
		return nil
	})
	return err
}
