package plan

import (
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// nights are windows of which one is open from 22:00 UTC on.
var nights = []*updatev1.MaintenanceWindow{{
	Metadata: &metav1.ObjectMeta{Name: "nights", Generation: 3},
	Spec:     &updatev1.MaintenanceWindowSpec{Schedule: "0 22 * * *", Duration: "2h"},
}}

// before returns a cluster that was at releases, the newest first, of which the first is completed or not.
func before(completed bool, versions ...string) *updatev1.ClusterVersion {
	cv := &updatev1.ClusterVersion{Spec: &updatev1.ClusterVersionSpec{}, Status: &updatev1.ClusterVersionStatus{}}
	for i, v := range versions {
		h := &updatev1.UpdateHistory{State: StateCompleted, Version: proto.String(v), Image: proto.String("r@sha256:" + v)}
		if i == 0 && !completed {
			h.State = statePartial
		}
		cv.Status.History = append(cv.Status.History, h)
	}
	if len(versions) > 0 {
		cv.Status.Desired = &updatev1.ReleaseReference{
			Version: proto.String(versions[0]), Image: proto.String("r@sha256:" + versions[0]),
		}
	}
	return cv
}

func TestAnUpdateBeginsWhileAWindowIsOpen(t *testing.T) {
	day := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	noon, night := day.Add(12*time.Hour), day.Add(22*time.Hour)
	const waits = "waits for maintenance window nights, which opens at 2026-12-01T22:00:00Z"
	waived := func(cv *updatev1.ClusterVersion) *updatev1.ClusterVersion {
		cv.Spec.DesiredUpdate = &updatev1.DesiredUpdate{
			Waive: []*updatev1.WaivedCheck{{Name: MaintenanceWindow, Reason: "CVE-2026-1"}},
		}
		return cv
	}
	const recorded = `MaintenanceWindow is waived: "CVE-2026-1"`
	for _, tt := range []struct {
		name    string
		cv      *updatev1.ClusterVersion
		to      string
		windows []*updatev1.MaintenanceWindow
		now     time.Time
		waits   string
		records string
		check   string // result of the check of a preflight
	}{
		{"without windows", before(true, "1.0.0"), "1.1.0", nil, noon, "", "", ""},
		{"during the day", before(true, "1.0.0"), "1.1.0", nights, noon, waits, "", CheckWarned},
		{"just before", before(true, "1.0.0"), "1.1.0", nights, night.Add(-1), waits, "", CheckWarned},
		{"when it opens", before(true, "1.0.0"), "1.1.0", nights, night, "", "", ""},
		{"waived", waived(before(true, "1.0.0")), "1.1.0", nights, noon, "", recorded, CheckWaived},
		{"waived, while one is open", waived(before(true, "1.0.0")), "1.1.0", nights, night, "", "", ""},
		{"the first release", before(false, "1.0.0"), "1.0.1", nights, noon, "", "", ""},
		{"a new cluster", before(true), "1.0.0", nights, noon, "", "", ""},
		{"the way back from half an update", before(false, "1.1.0", "1.0.0"), "1.0.0", nights, noon, "", "", ""},
		{"another one from half an update", before(false, "1.1.0", "1.0.0"), "1.2.0", nights, noon, waits, "", CheckWarned},
		{"the way back from an update", before(true, "1.1.0", "1.0.0"), "1.0.0", nights, noon, waits, "", CheckWarned},
	} {
		image := "r@sha256:" + tt.to
		s := Windows(tt.cv, image, tt.windows, tt.now)
		if s.Waits != tt.waits || s.Closed() && !s.Wake.Equal(night) {
			t.Errorf("%s: %+v", tt.name, s)
		}
		if got := WindowWaived(tt.cv, image, tt.windows, tt.now); got != tt.records {
			t.Errorf("%s: the history records %q", tt.name, got)
		}
		if got := WindowCheck(tt.cv, image, tt.windows, tt.now); got.GetResult() != tt.check {
			t.Errorf("%s: the check is %v", tt.name, got)
		}
	}
}

func TestAWindowSaysWhetherItIsOpen(t *testing.T) {
	day := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	w := proto.CloneOf(nights[0])
	for _, tt := range []struct {
		name   string
		change func(*updatev1.MaintenanceWindowSpec)
		now    time.Duration
		want   string
		since  time.Duration
		closes time.Duration
		next   time.Duration
		wake   time.Duration
	}{
		{"closed", nil, 12 * time.Hour, "False Closed opens at 2026-12-01T22:00:00Z", 12, 0, 22, 22},
		{"still closed", nil, 13 * time.Hour, "False Closed opens at 2026-12-01T22:00:00Z", 12, 0, 22, 22},
		{"open", nil, 22 * time.Hour, "True Open closes at 2026-12-02T00:00:00Z", 22, 24, 46, 24},
		{
			"suspended", func(s *updatev1.MaintenanceWindowSpec) { s.Suspend = proto.Bool(true) }, 23 * time.Hour,
			"False Suspended is suspended, so it holds nothing back", 23, 0, 0, 0,
		},
	} {
		if tt.change != nil {
			tt.change(w.Spec)
		}
		st, wake := WindowStatus(w, day.Add(tt.now))
		c := st.GetConditions()[0]
		hour := func(ts *timestamppb.Timestamp) time.Duration {
			if ts == nil {
				return 0
			}
			return ts.AsTime().Sub(day) / time.Hour
		}
		if wake.IsZero() {
			wake = day
		}
		if got := c.GetStatus() + " " + c.GetReason() + " " + c.GetMessage(); got != tt.want ||
			hour(c.GetLastTransitionTime()) != tt.since || hour(st.GetCloseTime()) != tt.closes ||
			hour(st.GetNextOpenTime()) != tt.next || wake.Sub(day)/time.Hour != tt.wake || st.GetObservedGeneration() != 3 {
			t.Errorf("%s: %v, wake %v", tt.name, st, wake)
		}
		w.Status = st
	}
}
