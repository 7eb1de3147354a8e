package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestWaysBack(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	entry := func(version, state string, took time.Duration) *updatev1.UpdateHistory {
		h := &updatev1.UpdateHistory{
			State: state, Version: proto.String(version), Image: proto.String("r@sha256:" + version),
			StartedTime: timestamppb.New(now.Add(-took)),
		}
		if state == StateCompleted {
			h.CompletionTime = timestamppb.New(now)
		}
		return h
	}
	cluster := func(history ...*updatev1.UpdateHistory) *updatev1.ClusterVersion {
		return &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{
			Desired: &updatev1.ReleaseReference{Version: history[0].Version, Image: history[0].Image}, History: history,
		}}
	}
	const only = "the only way back is to the previous release, within the same minor version or while the update from it " +
		"is not completed "
	for name, tt := range map[string]struct {
		of       *updatev1.ClusterVersion
		windows  []*updatev1.MaintenanceWindow
		change   func(*updatev1.ClusterVersion)
		previous string
		want     []string
	}{
		"a cluster that was nowhere": {of: &updatev1.ClusterVersion{}},
		"a patch, which leads back by its version": {
			of:       cluster(entry("1.1.1", StateCompleted, time.Hour), entry("1.1.0", StateCompleted, time.Minute)),
			previous: "1.1.0",
			want: []string{
				"1.1.1 1h0m0s current=true back=false ``: ",
				"1.1.0 1m0s current=false back=true `windlass adm upgrade --to 1.1.0`: ",
			},
		},
		"a patch whose former version is offered with another image, while the cluster fails": {
			of: cluster(entry("1.1.1", StateCompleted, time.Hour), entry("1.1.0", StateCompleted, time.Minute)),
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.AvailableUpdates = []*updatev1.ReleaseReference{
					{Version: proto.String("1.1.0"), Image: proto.String("r@sha256:other")},
				}
				cv.Status.Conditions = []*metav1.Condition{condition(Failing, True, "X", "y")}
			},
			previous: "1.1.0",
			want: []string{
				"1.1.1 1h0m0s current=true back=false ``: ",
				"1.1.0 1m0s current=false back=true `windlass adm upgrade --to-image r@sha256:1.1.0 " +
					"--allow-explicit-upgrade --allow-upgrade-with-warnings`: ",
			},
		},
		"a minor update on its way": {
			of:       cluster(entry("1.1.0", statePartial, time.Hour), entry("1.0.0", StateCompleted, time.Minute)),
			previous: "1.0.0",
			want: []string{
				"1.1.0 1h0m0s current=true back=false ``: ",
				"1.0.0 1m0s current=false back=true `windlass adm upgrade --abort`: The update from 1.0.0 to 1.1.0 was not " +
					"completed. What 1.1.0 has changed in stored data stays, and 1.0.0 may not know it.",
			},
		},
		"a minor update that is completed, and an older release": {
			of: cluster(entry("1.1.0", StateCompleted, time.Hour), entry("1.0.0", StateCompleted, time.Minute)),
			want: []string{
				"1.1.0 1h0m0s current=true back=false ``: ",
				"1.0.0 1m0s current=false back=false `windlass adm upgrade --to 1.0.0 --waive ClusterVersionRollback=REASON`: " +
					"1.0.0 is less than the current target 1.1.0; " + only + "(it is 1.0.0, r@sha256:1.0.0).",
			},
		},
		"an update that was aborted": {
			of: cluster(entry("1.0.0", StateCompleted, time.Minute), entry("1.1.0", statePartial, time.Hour),
				entry("1.0.0", StateCompleted, time.Minute)),
			want: []string{
				"1.0.0 1m0s current=true back=false ``: ",
				"1.1.0 1h0m0s current=false back=false ``: it is newer than the release that the cluster is at: an update leads " +
					"to it, not a way back",
				"1.0.0 1m0s current=false back=false ``: a newer entry is of the same release",
			},
		},
		"the release before is offered with a risk": {
			of: cluster(entry("1.1.1", StateCompleted, time.Hour), entry("1.1.0", StateCompleted, time.Minute)),
			change: func(cv *updatev1.ClusterVersion) {
				cv.Status.ConditionalUpdates = []*updatev1.ConditionalUpdate{{
					Release: &updatev1.ReleaseReference{Version: proto.String("1.1.0"), Image: proto.String("r@sha256:1.1.0")},
				}}
			},
			previous: "1.1.0",
			want: []string{
				"1.1.1 1h0m0s current=true back=false ``: ",
				"1.1.0 1m0s current=false back=true `windlass adm upgrade --to 1.1.0 --allow-not-recommended`: ",
			},
		},
		"no maintenance window is open": {
			of:       cluster(entry("1.1.1", StateCompleted, time.Hour), entry("1.1.0", StateCompleted, time.Minute)),
			windows:  nights,
			previous: "1.1.0",
			want: []string{
				"1.1.1 1h0m0s current=true back=false ``: ",
				"1.1.0 1m0s current=false back=true `windlass adm upgrade --to 1.1.0`: It waits for maintenance window nights, " +
					"which opens at 2026-01-02T22:00:00Z",
			},
		},
		"updates are paused": {
			of: cluster(entry("1.1.1", StateCompleted, time.Hour), entry("1.1.0", StateCompleted, time.Minute)),
			change: func(cv *updatev1.ClusterVersion) {
				cv.Spec = &updatev1.ClusterVersionSpec{Pause: &updatev1.UpdatePause{
					Reason: "fair", By: "alice", Since: timestamppb.New(now),
				}}
			},
			previous: "1.1.0",
			want: []string{
				"1.1.1 1h0m0s current=true back=false ``: ",
				"1.1.0 1m0s current=false back=true `windlass adm upgrade --to 1.1.0`: It waits: updates are paused by alice " +
					"since 2026-01-02T00:00:00Z until resumed: fair",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.change != nil {
				tt.change(tt.of)
			}
			out := WaysBack(tt.of, tt.windows, now)
			var got []string
			for _, e := range out.GetEntries() {
				got = append(got, fmt.Sprintf("%s %s current=%t back=%t `%s`: %s", e.GetEntry().GetVersion(),
					e.GetDuration().AsDuration(), e.GetCurrent(), e.GetCanGoBack(), e.GetCommand(), e.GetReason()))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || out.GetPrevious() != tt.previous {
				t.Errorf("previous %q, want %q: %s", out.GetPrevious(), tt.previous, diff)
			}
		})
	}
}

func TestWhatAnEntryAccepts(t *testing.T) {
	want := []string{"not signed", "Multiple checks failed:\n* one\n* two", "no snapshot"}
	got := acceptedTexts("not signed\nMultiple checks failed:\n* one\n* two\nno snapshot")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := acceptedTexts(""); got != nil {
		t.Errorf("%q", got)
	}
}
