package describe

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

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
