package describe

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

func TestWhatIsHeldBackSaysSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		(&describer{out: &out}).heldBack([]*metav1.HeldBack{
			{
				Action: "DeleteMachine", Object: &metav1.ObjectReference{Kind: "Machine", Name: "a"},
				Reason: "its replacement is not ready", Unblock: "machine/b becoming ready",
				SinceTime: timestamppb.New(time.Now().Add(-5 * time.Minute)),
			},
			{Action: "CreateMachine", Reason: "a name is taken"},
		})
		want := `Held back:
  ACTION          OBJECT      SINCE       REASON                         UNBLOCKED BY
  DeleteMachine   machine/a   5m          its replacement is not ready   machine/b becoming ready
  CreateMachine               <unknown>   a name is taken
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAMissingOwnerIsShownWithTheCommandThatContinues(t *testing.T) {
	task := &hookv1.HookTask{
		Spec: &hookv1.HookTaskSpec{MachineRef: &metav1.ObjectReference{Name: "a"}, HookName: "Backup"},
		Status: &hookv1.HookTaskStatus{
			Phase: proto.String("Pending"), Conditions: []*metav1.Condition{{
				Type: "OwnerSeen", Status: "False", Message: proto.String("no client of backup has ever been seen"),
			}},
		},
	}
	want := "no client of backup has ever been seen. Start the owner; if its work is done or not needed:\n" +
		"windlass hooks override a Backup --reason TEXT"
	if got := remedy(task); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for status, phase := range map[string]string{"True": "Pending", "Unknown": "Pending", "False": "Completed"} {
		task.Status.Phase, task.Status.Conditions[0].Status = proto.String(phase), status
		if got := remedy(task); got != "" {
			t.Errorf("OwnerSeen=%s, phase %s: %q, want nothing", status, phase, got)
		}
	}
}

func TestAFailingStepSaysSinceWhenHowOftenAndWhatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		(&describer{out: &out}).stepFailures([]*machinev1.StepFailure{{
			Step: "DeleteInstance", Message: "quota", Attempts: 9, Resolution: "check the provider",
			Since:           timestamppb.New(time.Now().Add(-5 * time.Minute)),
			LastAttemptTime: timestamppb.New(time.Now().Add(-20 * time.Second)),
		}})
		want := `Failing Steps:
  STEP             FAILING   ATTEMPTS   LAST ATTEMPT   ERROR   RESOLUTION
  DeleteInstance   5m        9          20s ago        quota   check the provider
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}
