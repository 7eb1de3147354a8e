// Package metrics exposes the phases of hosts as metrics.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/resource"
)

var phase = prometheus.NewDesc("windlass_host_phase", "1 for the present phase of each host of the inventory.",
	[]string{"host", "phase"}, nil)

// New returns the metrics of the hosts in a cache. A host that has not attended yet has no phase and no metric.
func New(hosts *resource.Cache[*hostv1.Host]) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		for h := range hosts.Objects() {
			if now := h.GetStatus().GetPhase(); now != "" {
				send(phase, 1, h.GetMetadata().GetName(), now)
			}
		}
	}, phase)
}
