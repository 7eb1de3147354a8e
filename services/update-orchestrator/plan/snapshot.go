package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// SnapshotLabel is on the snapshots of etcd that are taken before updates; its value is the version of the release.
const SnapshotLabel = "update.windlass.dev/before"

// freshSnapshot is how old a snapshot may be when an update begins. An attempt that is refused after it was taken is
// made again for as long as the update is desired.
const freshSnapshot = 10 * time.Minute

// keptSnapshots is how many snapshots of updates are kept.
const keptSnapshots = 3

// SnapshotStep is what is done next about the snapshot of an update.
type SnapshotStep int

// Steps of a snapshot.
const (
	TakeSnapshot   SnapshotStep = iota // there is none
	AwaitSnapshot                      // it is being taken and checked
	RetakeSnapshot                     // it failed before this attempt, or is old: it is removed, and taken again
	HaveSnapshot                       // it was taken and checked
	LackSnapshot                       // it failed
)

// NewSnapshot returns the snapshot to take before an update to a release of a name and a version. request is the
// generation of the ClusterVersion that desires the release: an attempt after a restart finds the snapshot of the one
// before.
func NewSnapshot(name, version string, request int32) *etcdv1.Snapshot {
	return &etcdv1.Snapshot{Metadata: &metav1.ObjectMeta{
		Name:   fmt.Sprintf("before-%s-%d", name, request),
		Labels: map[string]string{SnapshotLabel: strings.ReplaceAll(version, "+", "-")},
	}}
}

// NextOfSnapshot returns what is done next about a snapshot; live is nil while there is none. ours means that this
// attempt requested it: what an earlier one left may have failed, or be old. The clock that made it may be another one,
// so that times decide about what is not ours only.
func NextOfSnapshot(live *etcdv1.Snapshot, now time.Time, ours bool) SnapshotStep {
	phase := live.GetStatus().GetPhase()
	switch {
	case live == nil:
		return TakeSnapshot
	case object.Deleting(live):
		return AwaitSnapshot
	case !ours && phase == "Completed" &&
		live.GetMetadata().GetCreationTimestamp().AsTime().Before(now.Add(-freshSnapshot)),
		!ours && phase == "Failed":
		return RetakeSnapshot
	case phase == "Completed":
		return HaveSnapshot
	case phase == "Failed":
		return LackSnapshot
	}
	return AwaitSnapshot
}

// SnapshotMessage says what a snapshot that is awaited waits for.
func SnapshotMessage(live *etcdv1.Snapshot) string {
	phase := live.GetStatus().GetPhase()
	if phase == "" {
		phase = "Pending"
	}
	text := fmt.Sprintf("The snapshot %q of etcd is %s", live.GetMetadata().GetName(), phase)
	if m := live.GetStatus().GetMessage(); m != "" {
		text += ": " + m
	}
	return text
}

// WithoutSnapshot adds that no snapshot could be taken.
func (v Verdict) WithoutSnapshot(fault error) Verdict {
	v.Blocking = slices.Clone(v.Blocking)
	v.block(preconditionSnapshot, "NoSnapshot", "No snapshot of etcd was taken before the update: %v.", fault)
	return v
}

// SnapshotWaived reports whether an update begins without a snapshot, and how that is recorded.
func (w Waivers) SnapshotWaived() (text string, waived bool) { return w.Of(preconditionSnapshot) }

// OldSnapshots returns the snapshots of updates that are no longer kept: all but the newest few, and those that a
// history entry in progress names.
func OldSnapshots(all []*etcdv1.Snapshot, keep string) []*etcdv1.Snapshot {
	var mine []*etcdv1.Snapshot
	for _, s := range all {
		if _, ok := s.GetMetadata().GetLabels()[SnapshotLabel]; ok && s.GetMetadata().GetName() != keep &&
			!object.Deleting(s) {
			mine = append(mine, s)
		}
	}
	slices.SortFunc(mine, func(a, b *etcdv1.Snapshot) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		if c := y.GetCreationTimestamp().AsTime().Compare(x.GetCreationTimestamp().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(x.GetName(), y.GetName())
	})
	return mine[min(len(mine), keptSnapshots):]
}
