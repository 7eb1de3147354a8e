package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/hook-broker/metrics"
)

func task(hook, phase, overdue string) *hookv1.HookTask {
	return &hookv1.HookTask{
		Metadata: &metav1.ObjectMeta{Name: hook},
		Spec: &hookv1.HookTaskSpec{
			MachineRef: &metav1.ObjectReference{Namespace: "w", Name: "m"}, Point: "PreDrain", HookName: hook, Owner: "o",
		},
		Status: &hookv1.HookTaskStatus{
			Phase: proto.String(phase), Conditions: []*metav1.Condition{{Type: "Overdue", Status: overdue}},
		},
	}
}

func TestTasks(t *testing.T) {
	c := resource.NewCache[*hookv1.HookTask]()
	c.Replace([]*hookv1.HookTask{
		task("done", "Completed", "True"), task("late", "Claimed", "True"), task("new", "", "False"),
	}, 1)
	want := `
# HELP windlass_hook_task_overdue 1 if the owner of a hook has not completed its task in time, 0 if it has time left.
# TYPE windlass_hook_task_overdue gauge
windlass_hook_task_overdue{hook="done",machine="m",namespace="w",owner="o",point="PreDrain"} 0
windlass_hook_task_overdue{hook="late",machine="m",namespace="w",owner="o",point="PreDrain"} 1
windlass_hook_task_overdue{hook="new",machine="m",namespace="w",owner="o",point="PreDrain"} 0
# HELP windlass_hook_task_phase 1 for the present phase of each task of a hook.
# TYPE windlass_hook_task_phase gauge
windlass_hook_task_phase{hook="done",machine="m",namespace="w",owner="o",phase="Completed",point="PreDrain"} 1
windlass_hook_task_phase{hook="late",machine="m",namespace="w",owner="o",phase="Claimed",point="PreDrain"} 1
windlass_hook_task_phase{hook="new",machine="m",namespace="w",owner="o",phase="Pending",point="PreDrain"} 1
`
	if err := testutil.CollectAndCompare(metrics.New(c), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
