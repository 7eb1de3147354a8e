package plan

import (
	"fmt"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// BenchmarkCourse plays an hour of 10,000 nodes with 20,000 pods, of which some nodes fall silent. With all of them the
// course ends at its limit of work, which is the longest that one takes.
func BenchmarkCourse(b *testing.B) {
	g := Given{Now: now(), Grace: grace, Pause: 10 * time.Second}
	for i := range 10_000 {
		n := inZone(fmt.Sprintf("n%05d", i), 0)
		n.Metadata.Labels["topology.kubernetes.io/zone"] = fmt.Sprint("z", i%5)
		g.Nodes = append(g.Nodes, n)
	}
	for i := range 20_000 {
		g.Pods = append(g.Pods, newPod(fmt.Sprint("p", i), on(fmt.Sprintf("n%05d", i%10_000)), tolerating("k", int32(i%300))))
	}
	for _, silent := range []int{10, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("silent=%d", silent), func(b *testing.B) {
			var events []*schedulingv1.EvictionEvent
			for i := range silent {
				events = append(events, silentAt(time.Duration(i)*time.Millisecond, fmt.Sprintf("n%05d", i)))
			}
			for i := range 10 {
				events = append(events, taintedAt(time.Minute, fmt.Sprintf("n%05d", 9_000+i), "k"))
			}
			for b.Loop() {
				g.Memory = NewMemory()
				c := NewCourse(g, events, time.Hour)
				for more := true; more; {
					more, _ = c.Next()
				}
				b.ReportMetric(c.elapsed.Seconds(), "played-s")
				b.ReportMetric(float64(len(c.Steps)), "steps")
				b.ReportMetric(float64(c.work), "work")
			}
		})
	}
}
