package plan

import (
	"fmt"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// BenchmarkPodsWithClaims places pods that each have a claim of their own, beside many pods, claims and volumes that
// are there.
func BenchmarkPodsWithClaims(b *testing.B) {
	for _, there := range []int{200, 2000, 20000} {
		b.Run(fmt.Sprint(there), func(b *testing.B) {
			const nodes = 1000
			class := classOf("local", volumes.LocalProvisioner, volumes.WaitForFirstConsumer)
			c := NewCluster()
			for i := range nodes {
				c.AddNode(newNode(fmt.Sprint("n", i)))
			}
			c.AddStorageClass(class)
			for i := range there {
				claim, node := claimOf(fmt.Sprint("there", i), "local", "1Gi"), fmt.Sprint("n", i%nodes)
				c.boundTo(claim, volumes.Local(claim, class, node))
				p := newPod(fmt.Sprint("there", i), claiming(claim.GetMetadata().GetName()))
				p.Spec.NodeName = node
				c.AddPod(p)
			}
			var pods []*schedulingv1.Pod
			for i := range b.N {
				claim := claimOf(fmt.Sprint("new", i), "local", "1Gi")
				c.AddClaim(claim)
				pods = append(pods, newPod(fmt.Sprint("new", i), claiming(claim.GetMetadata().GetName())))
			}
			board, turn := c.boardFor(Policy(nil)), uint64(0)
			b.ResetTimer()
			start := time.Now()
			for _, p := range pods {
				if d := board.place(p, &turn); d.Node == "" {
					b.Fatal(d.Message)
				}
			}
			b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N), "µs/pod")
		})
	}
}
