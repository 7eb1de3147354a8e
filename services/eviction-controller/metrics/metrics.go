// Package metrics exposes the states of nodes and of their drains as metrics.
package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/gauges"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

var (
	ready = prometheus.NewDesc("windlass_node_ready", "1 if a node is ready, 0 if it is not or its agent is silent.",
		[]string{"node"}, nil)
	unschedulable = prometheus.NewDesc("windlass_node_unschedulable",
		"1 if no new pod is placed on a node, as during a drain.",
		[]string{"node"}, nil)
	pressure = prometheus.NewDesc("windlass_node_pressure",
		"1 while a node runs short, by condition: MemoryPressure, DiskPressure, PIDPressure or NetworkUnavailable.",
		[]string{"node", "condition"}, nil)
	stopped = prometheus.NewDesc("windlass_node_evictions_stopped",
		"1 if no pod is evicted because a node is not ready, since too many nodes of its zone are lost; absent for a ready "+
			"node.", []string{"node", "zone"}, nil)
	drain = prometheus.NewDesc("windlass_drain_phase", "1 for the present phase of each drain.",
		[]string{"drain", "node", "phase"}, nil)
)

var shortages = []string{"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}

// New returns the metrics of the nodes and drains in two caches.
func New(nodes *resource.Cache[*nodev1.Node], drains *resource.Cache[*nodev1.Drain]) gauges.Collector {
	return gauges.New(func(send gauges.Send) {
		for n := range nodes.Objects() {
			sendNode(send, n)
		}
		for d := range drains.Objects() {
			now := d.GetStatus().GetPhase()
			if now == "" {
				now = "Pending"
			}
			send(drain, 1, d.GetMetadata().GetName(), d.GetSpec().GetNodeName(), now)
		}
	}, ready, unschedulable, pressure, stopped, drain)
}

func sendNode(send gauges.Send, n *nodev1.Node) {
	name := n.GetMetadata().GetName()
	send(ready, gauges.Bool(plan.IsReady(n)), name)
	send(unschedulable, gauges.Bool(n.GetSpec().GetUnschedulable()), name)
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetStatus() == "True" && slices.Contains(shortages, c.GetType()) {
			send(pressure, 1, name, c.GetType())
		}
	}
	if e := n.GetStatus().GetEvictions(); e.GetZoneState() != "" {
		send(stopped, gauges.Bool(e.GetNodesPerSecond() == 0), name, e.GetZone())
	}
}
