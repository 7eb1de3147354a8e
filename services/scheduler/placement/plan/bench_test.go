package plan

import (
	"fmt"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// deployment returns pods of a number of applications, each with a service that selects them.
func deployment(c *Cluster, pods, applications int) []*schedulingv1.Pod {
	out := make([]*schedulingv1.Pod, 0, pods)
	for i := range pods {
		app := fmt.Sprint("app-", i%applications)
		out = append(out, newPod(fmt.Sprint("pod-", i), carrying("app", app), asking("cpu", "100m"),
			asking("memory", "50Mi")))
	}
	for i := range applications {
		s := &schedulingv1.Service{Metadata: newPod(fmt.Sprint("svc-", i)).GetMetadata(), Spec: &schedulingv1.ServiceSpec{
			Selector: map[string]string{"app": fmt.Sprint("app-", i)},
		}}
		c.AddService(s)
	}
	return out
}

func BenchmarkPlace(b *testing.B) {
	for _, size := range []struct{ nodes, pods, applications int }{
		{100, 2000, 20},
		{500, 1000, 1},
		{5000, 10000, 1},
		{5000, 10000, 20},
		{5000, 10000, 1000},
	} {
		b.Run(fmt.Sprintf("nodes=%d/pods=%d/classes=%d", size.nodes, size.pods, size.applications), func(b *testing.B) {
			profile := Policy(nil)
			for b.Loop() {
				b.StopTimer()
				c := NewCluster()
				for i := range size.nodes {
					c.AddNode(newNode(fmt.Sprint("node-", i), labelled("zone", fmt.Sprint(i%3)),
						labelled("topology.kubernetes.io/zone", fmt.Sprint(i%3))))
				}
				pods := deployment(c, size.pods, size.applications)
				var turn uint64
				b.StartTimer()
				for _, d := range placeAll(c, profile, pods, &turn) {
					if d.Node == "" {
						b.Fatal(d.Message)
					}
				}
			}
			b.ReportMetric(float64(size.pods)*float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

// BenchmarkPlaceOne is the flow of single pods into a cluster that is full of others.
func BenchmarkPlaceOne(b *testing.B) {
	c, profile := NewCluster(), Policy(nil)
	for i := range 5000 {
		c.AddNode(newNode(fmt.Sprint("node-", i)))
	}
	var turn uint64
	placeAll(c, profile, deployment(c, 10000, 100), &turn)
	pod := newPod("one", carrying("app", "app-7"), asking("cpu", "100m"))
	for b.Loop() {
		placeAll(c, profile, []*schedulingv1.Pod{pod}, &turn)
		c.RemovePod("default", "one")
	}
}

// BenchmarkPlaceApart is pods that keep away from each other.
func BenchmarkPlaceApart(b *testing.B) {
	profile := Policy(nil)
	template := pod(b, "004-74")
	for b.Loop() {
		b.StopTimer()
		c := NewCluster()
		for i := range 5000 {
			c.AddNode(newNode(fmt.Sprint("node-", i)))
		}
		var pods []*schedulingv1.Pod
		for i := range 2000 {
			p := newPod(fmt.Sprint("pod-", i), carrying("security", "s1"))
			p.Spec.Affinity = template.Spec.Affinity
			pods = append(pods, p)
		}
		var turn uint64
		b.StartTimer()
		for _, d := range placeAll(c, profile, pods, &turn) {
			if d.Node == "" {
				b.Fatal(d.Message)
			}
		}
	}
	b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}

// BenchmarkPlaceNowhere is a pod that fits nowhere: every node is asked why.
func BenchmarkPlaceNowhere(b *testing.B) {
	c, profile := NewCluster(), Policy(nil)
	for i := range 5000 {
		c.AddNode(newNode(fmt.Sprint("node-", i)))
	}
	var turn uint64
	pod := newPod("large", asking("cpu", "5"))
	for b.Loop() {
		if d := placeAll(c, profile, []*schedulingv1.Pod{pod}, &turn)[0]; d.Node != "" {
			b.Fatal(d.Node)
		}
	}
}
