// Package snapshots has the guardian of etcd take a snapshot before an update. The guardian's word counts: a snapshot
// is Completed once its file was read again.
package snapshots

import (
	"context"
	"errors"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const (
	lookEvery = 200 * time.Millisecond
	callLimit = 10 * time.Second
)

// Taker takes snapshots.
type Taker struct{ client etcdv1.SnapshotServiceClient }

// New returns a taker that asks the guardian.
func New(guardian grpc.ClientConnInterface) *Taker {
	return &Taker{etcdv1.NewSnapshotServiceClient(guardian)}
}

// Take returns once a snapshot was taken and checked. say is called with what it waits for, once for each text. An
// error means that it failed, that the guardian refused it, or that ctx ended before.
func (t *Taker) Take(ctx context.Context, want *etcdv1.Snapshot, say func(waitsFor string)) error {
	said, ours := "", false
	for {
		waits, done, err := t.step(ctx, want, &ours)
		if done || err != nil {
			return err
		}
		if waits != said {
			said = waits
			say(waits)
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return errors.New("it was not taken in time: " + waits)
		}
	}
}

// step does what is next, and returns what is waited for. ours is set once the snapshot was requested by it.
func (t *Taker) step(ctx context.Context, want *etcdv1.Snapshot, ours *bool) (waits string, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	live, err := t.client.GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: want.GetMetadata().GetName()})
	if status.Code(err) == codes.NotFound {
		live, err = nil, nil
	}
	if err == nil {
		switch plan.NextOfSnapshot(live, time.Now(), *ours) {
		case plan.HaveSnapshot:
			return "", true, nil
		case plan.LackSnapshot:
			return "", false, errors.New(plan.SnapshotMessage(live))
		case plan.RetakeSnapshot:
			err = t.remove(ctx, live)
		case plan.TakeSnapshot:
			live = want
			_, err = t.client.CreateSnapshot(ctx, &etcdv1.CreateSnapshotRequest{Snapshot: want})
			*ours = *ours || err == nil
		case plan.AwaitSnapshot:
		}
	}
	switch status.Code(err) {
	case codes.OK, codes.AlreadyExists:
		return plan.SnapshotMessage(live), false, nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted, codes.Canceled:
		return "etcd-guardian takes no snapshot of etcd: " + status.Convert(err).Message(), false, nil
	}
	return "", false, errors.New(status.Convert(err).Message())
}

func (t *Taker) remove(ctx context.Context, s *etcdv1.Snapshot) error {
	_, err := t.client.DeleteSnapshot(ctx, &etcdv1.DeleteSnapshotRequest{
		Name: s.GetMetadata().GetName(), Preconditions: &metav1.Preconditions{Uid: s.GetMetadata().GetUid()},
	})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// Sweep removes the snapshots of updates that are no longer kept. keep is that of the present one.
func (t *Taker) Sweep(ctx context.Context, keep string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	list, err := t.client.ListSnapshots(ctx, &etcdv1.ListSnapshotsRequest{LabelSelector: plan.SnapshotLabel})
	if err != nil {
		return err
	}
	for _, s := range plan.OldSnapshots(list.GetItems(), keep) {
		if err := t.remove(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
