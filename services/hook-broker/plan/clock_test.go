package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/object"
)

// The clock of a new leader is an hour ahead of those by which the task was claimed and its owner was seen.
func TestAClockThatIsAheadEndsNothingEarly(t *testing.T) {
	end := machine(afterDrain)
	proceeds := &hookv1.HookOwnerSpec{Owner: backup, Hooks: []*hookv1.HookSettings{
		{Name: backupEnd.Name, Timeout: "30m", TimeoutPolicy: proceed},
	}}
	minute := claimed(start.Add(11 * time.Minute))
	minute.RenewTime = floor(start.Add(10 * time.Minute)) // claimed at the start, and renewed since
	late := stored(end, backupEnd, status(Pending))
	late.Status.Conditions = object.SetCondition(late.Status.Conditions, condition(Overdue, "True", "NotCompletedInTime",
		"late"), start)
	name := late.GetMetadata().GetName()
	gone := OwnerFacts{LastSeen: start, Settings: &hookv1.HookOwnerSpec{Owner: backup, OverdueAfter: "24h"}}
	connected := OwnerFacts{Connected: true, Settings: &hookv1.HookOwnerSpec{Owner: backup, OverdueAfter: "24h"}}
	for title, c := range map[string]struct {
		task  *hookv1.HookTaskStatus
		owner OwnerFacts
		seen  Sight
		want  outcome
	}{
		"a claim was not seen before": {minute, connected, Sight{}, outcome{Wake: time.Hour + time.Minute}},
		"a claim was seen for less than it lasts": {
			minute, connected, Sight{Claimed: 59 * time.Second}, outcome{Wake: time.Hour + time.Second},
		},
		"a claim was seen for as long as it lasts": {
			minute, connected,
			Sight{Claimed: time.Minute},
			outcome{
				Update: []string{"BackupFileSystem Pending"}, Events: []string{"HookClaimExpired"}, Wake: 24 * time.Hour,
			},
		},
		"a timeout was seen in part": {
			status(Pending),
			OwnerFacts{Connected: true, Settings: proceeds},
			Sight{Begun: 10 * time.Minute},
			outcome{
				Update: []string{"BackupFileSystem Pending"}, Events: []string{"HookOverdue"}, Wake: time.Hour + 20*time.Minute,
			},
		},
		"a timeout was seen entirely": {
			status(Pending),
			OwnerFacts{Connected: true, Settings: proceeds},
			Sight{Begun: 30 * time.Minute},
			outcome{
				Update: []string{"BackupFileSystem Completed"}, Events: []string{"HookOverdue", "HookTimedOut"},
			},
		},
		"a task is not overdue yet": {
			status(Pending),
			OwnerFacts{Connected: true},
			Sight{Begun: 9 * time.Minute},
			outcome{Wake: time.Hour + time.Minute},
		},
		"a task that was overdue before stays so": {
			late.GetStatus(), OwnerFacts{Connected: true}, Sight{}, outcome{Update: []string{"BackupFileSystem Pending"}},
		},
		"an owner is not away yet": {
			status(Pending), gone,
			Sight{Begun: 10 * time.Second},
			outcome{Update: []string{"BackupFileSystem Pending"}, Wake: time.Hour + 20*time.Second},
		},
		"an owner is away": {
			status(Pending), gone,
			Sight{Begun: 30 * time.Second},
			outcome{
				Update: []string{"BackupFileSystem Pending"}, Events: []string{"HookOwnerNotSeen"}, Wake: 24 * time.Hour,
			},
		},
	} {
		t.Run(title, func(t *testing.T) {
			task := stored(end, backupEnd, proto.Clone(c.task).(*hookv1.HookTaskStatus))
			if c.task == late.GetStatus() {
				task = late
			}
			got := short(Machine(View{
				Now: start.Add(time.Hour), Machine: end, Owners: map[string]OwnerFacts{backup: c.owner},
				Tasks: []*hookv1.HookTask{task}, Seen: map[string]Sight{name: c.seen},
			}))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
