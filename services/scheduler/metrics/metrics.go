// Package metrics exposes how many pods there are, and how long pods have waited for a node, as metrics. They have no
// labels of single pods, so that their number does not grow with that of pods.
package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
)

var (
	pods        = prometheus.NewDesc("windlass_pods", "Number of pods, by phase.", []string{"namespace", "phase"}, nil)
	unscheduled = prometheus.NewDesc("windlass_unscheduled_pods",
		"Number of pods that need a node and have none; those with scheduling gates are left out.", []string{"namespace"},
		nil)
	oldest = prometheus.NewDesc("windlass_oldest_unscheduled_pod_timestamp_seconds",
		"When the oldest of the unscheduled pods was created, in seconds since 1970; absent if there are none.",
		[]string{"namespace"}, nil)
)

// New returns the metrics of the pods in a cache.
func New(all *resource.Cache[*schedulingv1.Pod]) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		counts, waiting, since := map[[2]string]int{}, map[string]int{}, map[string]float64{}
		for p := range all.Objects() {
			namespace, phase := p.GetMetadata().GetNamespace(), p.GetStatus().GetPhase()
			if phase == "" {
				phase = "Pending"
			}
			counts[[2]string{namespace, phase}]++
			if !waits(p) {
				continue
			}
			created := gauges.Seconds(p.GetMetadata().GetCreationTimestamp())
			if before, ok := since[namespace]; !ok || created < before {
				since[namespace] = created
			}
			waiting[namespace]++
		}
		for key, n := range counts {
			send(pods, float64(n), key[0], key[1])
		}
		for _, namespace := range slices.Sorted(maps.Keys(waiting)) {
			send(unscheduled, float64(waiting[namespace]), namespace)
			send(oldest, since[namespace], namespace)
		}
	}, pods, unscheduled, oldest)
}

// waits reports whether a pod needs a node and has none.
func waits(p *schedulingv1.Pod) bool {
	return p.GetSpec().GetNodeName() == "" && len(p.GetSpec().GetSchedulingGates()) == 0 && !placement.Terminated(p) &&
		!object.Deleting(p)
}
