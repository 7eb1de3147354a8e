// Package metrics exposes the phases of machines, and the steps of their life that fail, as metrics.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/resource"
)

var (
	phase = prometheus.NewDesc("windlass_machine_phase",
		"1 for the present phase of each machine; Pending before the first.",
		[]string{"namespace", "machine", "phase"}, nil)
	failing = prometheus.NewDesc("windlass_machine_step_failing_since_timestamp_seconds",
		"Since when a step of a machine's life fails, in seconds since 1970; absent unless it fails.",
		[]string{"namespace", "machine", "step"}, nil)
)

// New returns the metrics of the machines in a cache.
func New(machines *resource.Cache[*machinev1.Machine]) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		for m := range machines.Objects() {
			namespace, name := m.GetMetadata().GetNamespace(), m.GetMetadata().GetName()
			now := m.GetStatus().GetPhase()
			if now == "" {
				now = "Pending"
			}
			send(phase, 1, namespace, name, now)
			for _, f := range m.GetStatus().GetStepFailures() {
				send(failing, gauges.Seconds(f.GetSince()), namespace, name, f.GetStep())
			}
		}
	}, phase, failing)
}
