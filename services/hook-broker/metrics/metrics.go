// Package metrics exposes the tasks of lifecycle hooks as metrics.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

var (
	phase = prometheus.NewDesc("windlass_hook_task_phase", "1 for the present phase of each task of a hook.",
		[]string{"namespace", "machine", "point", "hook", "owner", "phase"}, nil)
	overdue = prometheus.NewDesc("windlass_hook_task_overdue",
		"1 if the owner of a hook has not completed its task in time, 0 if it has time left.",
		[]string{"namespace", "machine", "point", "hook", "owner"}, nil)
)

// New returns the metrics of the tasks in a cache.
func New(tasks *resource.Cache[*hookv1.HookTask]) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		for t := range tasks.Objects() {
			s, now := t.GetSpec(), t.GetStatus().GetPhase()
			if now == "" {
				now = plan.Pending
			}
			labels := []string{
				s.GetMachineRef().GetNamespace(), s.GetMachineRef().GetName(), s.GetPoint(), s.GetHookName(), s.GetOwner(),
			}
			late := now != plan.Completed && object.IsTrue(t.GetStatus().GetConditions(), plan.Overdue)
			send(overdue, gauges.Bool(late), labels...)
			send(phase, 1, append(labels, now)...)
		}
	}, phase, overdue)
}
