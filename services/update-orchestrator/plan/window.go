package plan

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/maintenance"
)

// MaintenanceWindow is the reason of conditions while an update waits for a maintenance window, and the name of the
// check that is waived for one that does not.
const MaintenanceWindow = "MaintenanceWindow"

// openWindow is the condition of a window that is True while it is open.
const openWindow = "Open"

// Windows returns whether an update of a cluster to an image may begin at now. The way back from an update that is not
// completed waits for no window, since it ends what has begun, and neither does the first release of a cluster.
func Windows(cv *updatev1.ClusterVersion, image string, windows []*updatev1.MaintenanceWindow, now time.Time,
) maintenance.State {
	_, waived := WaiversOf(cv.GetSpec().GetDesiredUpdate()).Of(MaintenanceWindow)
	if waived || Aborts(cv, image) || !slices.ContainsFunc(cv.GetStatus().GetHistory(), completed) {
		return maintenance.State{}
	}
	return maintenance.ForUpdates(windows, now)
}

// WindowWaived returns what the history records of an update that begins at now although no window is open; empty if
// one is, or none applies.
func WindowWaived(cv *updatev1.ClusterVersion, image string, windows []*updatev1.MaintenanceWindow, now time.Time,
) string {
	text, waived := WaiversOf(cv.GetSpec().GetDesiredUpdate()).Of(MaintenanceWindow)
	if !waived || Aborts(cv, image) || !maintenance.ForUpdates(windows, now).Closed() {
		return ""
	}
	return text
}

// WindowText says what an update waits for, and how it begins all the same.
func WindowText(target string, s maintenance.State) string {
	return fmt.Sprintf("The update to %s %s. %s", target, s.Waits, hint([]string{MaintenanceWindow}))
}

// WindowCheck is what a preflight says of maintenance windows; nil if they hold nothing back.
func WindowCheck(cv *updatev1.ClusterVersion, image string, windows []*updatev1.MaintenanceWindow, now time.Time,
) *updatev1.ReleaseCheck {
	if text := WindowWaived(cv, image, windows, now); text != "" {
		return &updatev1.ReleaseCheck{Name: MaintenanceWindow, Result: CheckWaived, Message: text}
	}
	s := Windows(cv, image, windows, now)
	if !s.Closed() {
		return nil
	}
	return &updatev1.ReleaseCheck{
		Name: MaintenanceWindow, Result: CheckWarned, Reason: MaintenanceWindow,
		Message: WindowText("the release", s),
	}
}

// WindowStatus returns the status of a maintenance window at now, and when it is another one; zero means never.
func WindowStatus(w *updatev1.MaintenanceWindow, now time.Time) (*updatev1.MaintenanceWindowStatus, time.Time) {
	st := &updatev1.MaintenanceWindowStatus{ObservedGeneration: proto.Int32(w.GetMetadata().GetGeneration())}
	t, err := maintenance.At(w, now)
	status, reason, text, wake := False, "Closed", "", t.Opens
	switch {
	case err != nil:
		reason, text = "Invalid", err.Error()
	case w.GetSpec().GetSuspend():
		reason, text, wake = "Suspended", "is suspended, so it holds nothing back", time.Time{}
	case !t.Closes.IsZero():
		status, reason, text, wake = True, "Open", "closes at "+t.Closes.Format(time.RFC3339), t.Closes
		if t.Opens.Before(t.Closes) {
			wake = t.Opens // it is open for longer then
		}
		st.CloseTime = timestamppb.New(t.Closes)
	default:
		text = "opens at " + t.Opens.Format(time.RFC3339)
	}
	if err == nil && !w.GetSpec().GetSuspend() && !t.Opens.IsZero() {
		st.NextOpenTime = timestamppb.New(t.Opens)
	}
	c := condition(openWindow, status, reason, text)
	st.Conditions = []*metav1.Condition{Stamp(c, Find(w.GetStatus().GetConditions(), openWindow),
		now.UTC().Truncate(time.Second))}
	return st, wake
}
