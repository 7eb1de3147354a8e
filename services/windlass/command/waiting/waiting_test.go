package waiting

import (
	"testing"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/protobuf/proto"
)

func TestWhatHooksReportIsAddedOnce(t *testing.T) {
	const waits = "hook Backup of my-backup, before its node is drained"
	task := func(hook, phase, message string, attempts, calls int32) []*hookv1.HookTask {
		return []*hookv1.HookTask{{
			Spec: &hookv1.HookTaskSpec{HookName: hook, Owner: "my-backup"},
			Status: &hookv1.HookTaskStatus{
				Phase: proto.String(phase), Message: proto.String(message), Attempts: proto.Int32(attempts),
				Webhook: &hookv1.WebhookCalls{Attempts: proto.Int32(calls)},
			},
		}}
	}
	for what, c := range map[string]struct {
		tasks []*hookv1.HookTask
		want  string
	}{
		"a task that was not begun repeats its owner": {task("Backup", "Pending", "waiting for my-backup", 0, 0), waits},
		"a claim that ran out": {
			task("Backup", "Pending", "the claim ran out", 1, 0), waits + " (Backup: the claim ran out)",
		},
		"a webhook that fails": {
			task("Backup", "Pending", "the webhook fails", 0, 3), waits + " (Backup: the webhook fails)",
		},
		"progress":             {task("Backup", "Claimed", "half done", 1, 0), waits + " (Backup: half done)"},
		"of another hook":      {task("Migrate", "Claimed", "half done", 1, 0), waits},
		"nothing was reported": {task("Backup", "Claimed", "", 1, 0), waits},
	} {
		if got := withProgress(waits, c.tasks); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
