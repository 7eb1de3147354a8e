package plan

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

func processor(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSilence is the decisions about nodes whose agents fall silent at once: one about each, as the agents of all
// are, and one census of all of them. A decision is repeated after half the grace period.
func BenchmarkSilence(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 20_000} {
		for _, lost := range []int{60, 100} { // percent
			b.Run(fmt.Sprintf("nodes=%d/lost=%d%%", nodes, lost), func(b *testing.B) {
				list := make([]*nodev1.Node, nodes)
				witnesses := make([]Witness, nodes)
				for i := range list {
					a := Agent{Reported: true, Silence: time.Second}
					if i%100 < lost {
						a.Silence = grace + time.Second
					}
					list[i] = newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour)), func(n *nodev1.Node) {
						n.Metadata.Name = fmt.Sprint("node-", i)
						n.Metadata.Labels["topology.kubernetes.io/zone"] = fmt.Sprint("zone-", i%3)
					})
					witnesses[i] = WitnessOf(list[i], a)
				}
				var used time.Duration
				for b.Loop() {
					before := processor(b)
					census := NewCensus(witnesses, grace)
					for i, n := range list {
						Node(NodeView{
							Now: now(), Node: n, Pause: 10 * time.Second, Known: true,
							Reachability: Reachability{Agent: witnesses[i].Agent, Grace: grace, Census: census},
						})
					}
					used += processor(b) - before
				}
				b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "cpu-ms")
			})
		}
	}
}

// BenchmarkEvictions decides about the evictions of 100,000 pods from 5,000 nodes that all have a NoExecute taint.
func BenchmarkEvictions(b *testing.B) {
	const nodes, each = 5000, 20
	views := make([]EvictionView, nodes)
	for i := range views {
		name := fmt.Sprint("node-", i)
		node := newNode(tainted(since("k", 0)), func(n *nodev1.Node) { n.Metadata.Name = name })
		views[i] = EvictionView{Now: now(), Node: node}
		for p := range each {
			views[i].Pods = append(views[i].Pods, newPod(fmt.Sprint("pod-", i, "-", p), on(name)))
		}
	}
	for b.Loop() {
		asked := 0
		for _, v := range views {
			asked += len(Evictions(v).Ask)
		}
		if asked != nodes*each {
			b.Fatalf("%d pods are evicted", asked)
		}
	}
}
