// Package metrics exposes the states of machine config pools as metrics.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

var (
	machines = prometheus.NewDesc("windlass_pool_machines",
		"Number of nodes of a pool, by state: total, updated (they have its configuration), ready (and are ready), "+
			"unavailable, degraded (their configuration failed).", []string{"pool", "state"}, nil)
	paused = prometheus.NewDesc("windlass_pool_paused", "1 if a pool is paused, so that it starts no further node.",
		[]string{"pool"}, nil)
	conditions = prometheus.NewDesc("windlass_pool_condition", "Conditions of pools: 1 for True, 0 for anything else.",
		[]string{"pool", "condition"}, nil)
)

// New returns the metrics of the pools in a cache.
func New(pools *resource.Cache[*configv1.MachineConfigPool]) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		for p := range pools.Objects() {
			name, st := p.GetMetadata().GetName(), p.GetStatus()
			send(machines, float64(st.GetMachineCount()), name, "total")
			send(machines, float64(st.GetUpdatedMachineCount()), name, "updated")
			send(machines, float64(st.GetReadyMachineCount()), name, "ready")
			send(machines, float64(st.GetUnavailableMachineCount()), name, "unavailable")
			send(machines, float64(st.GetDegradedMachineCount()), name, "degraded")
			send(paused, gauges.Bool(p.GetSpec().GetPaused() || object.IsTrue(st.GetConditions(), plan.ConditionPaused)), name)
			for _, c := range st.GetConditions() {
				send(conditions, gauges.Bool(c.GetStatus() == "True"), name, c.GetType())
			}
		}
	}, machines, paused, conditions)
}
