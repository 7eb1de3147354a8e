package service

import (
	"fmt"
	"strings"
	"testing"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// accepting waits until ReleaseAccepted has a status and a text in its message.
func accepting(status, text string) func(*updatev1.ClusterVersion) string {
	return func(cv *updatev1.ClusterVersion) string {
		a := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted")
		if a.GetStatus() != status || !strings.Contains(a.GetMessage(), text) {
			return fmt.Sprintf("ReleaseAccepted is %v, not %s with %q", a, status, text)
		}
		return ""
	}
}

// An update begins once a snapshot of etcd was taken, which the history names. Without one it does not begin, unless
// that is waived.
func TestASnapshotIsTakenBeforeAnUpdate(t *testing.T) {
	c, _ := installed(t)
	c.ready(operators...)
	if h := c.version(completed("1.0.0")).GetStatus().GetHistory(); h[0].GetSnapshot() != "" {
		t.Errorf("a snapshot of nothing: %v", h[0])
	}
	wait, full := "", "no space left on device"
	c.unsaved.Store(&wait)
	c.desire("1.1.0", "")
	c.version(accepting("Unknown", `is Pending`))
	c.stop() // the attempt after it finds the snapshot of this one
	c.run()
	if h := c.version(accepting("Unknown", `is Pending`)).GetStatus().GetHistory(); len(h) != 1 {
		t.Errorf("the update has begun: %v", h)
	}
	c.unsaved.Store(&full)
	c.version(accepting("False", `is Failed: no space left on device.`))
	c.version(accepting("False", "To update all the same: --waive ClusterVersionSnapshot=REASON"))
	c.unsaved.Store(nil) // the failed one is taken again
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.DesiredUpdate.Force = proto.Bool(true) })
	h := c.version(completed("1.1.0")).GetStatus().GetHistory()
	all := c.snapshots.Keys()
	if name := h[0].GetSnapshot(); !strings.HasPrefix(name, "before-1.1.0-") || len(all) == 0 {
		t.Errorf("the history names %q of %v", name, all)
	}

	c.unsaved.Store(&full)
	third := c.image("1.1.1", example("1.1.1"), "1.1.0")
	c.sign(third, c.key)
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate = &updatev1.DesiredUpdate{Image: &third, Waive: []*updatev1.WaivedCheck{
			{Name: "ClusterVersionSnapshot", Reason: "the disk is full"},
		}}
	})
	h = c.version(completed("1.1.1")).GetStatus().GetHistory()
	if h[0].GetSnapshot() != "" || !strings.Contains(h[0].GetAcceptedRisks(),
		`ClusterVersionSnapshot is waived: "the disk is full"`) {
		t.Errorf("history is %v", h[0])
	}
}

// The snapshots of the last updates are kept, and those of users.
func TestOldSnapshotsOfUpdatesGo(t *testing.T) {
	c, _ := installed(t)
	c.ready(operators...)
	mine := plan.NewSnapshot("mine", "1.0.0", 0)
	mine.Metadata.Name, mine.Metadata.Labels = "mine", nil
	if _, err := c.snapshots.Create(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	previous := "1.0.0"
	for i := 1; i <= 5; i++ {
		version := fmt.Sprintf("1.0.%d", i)
		next := c.image(version, example(version), previous)
		c.sign(next, c.key)
		c.desire("", next)
		c.version(completed(version))
		previous = version
	}
	for version, want := range map[string]string{"1.0.3": "False", "1.0.4": "True", "1.0.5": "True"} {
		if kept := object.FindCondition(c.release(version).GetStatus().GetConditions(), "Kept"); kept.GetStatus() != want {
			t.Errorf("the image of %s: %v, want %s", version, kept, want)
		}
	}
	// The present one counts beside the newest three of before.
	if keys := c.snapshots.Keys(); len(keys) != 5 {
		t.Errorf("snapshots are %v", keys)
	}
}
