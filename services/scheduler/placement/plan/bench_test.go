package plan

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

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

// processor returns the processor time of this process, which other programs on the host disturb less than the clock.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// placeRounds places pods as a Queue does, and returns the processor time.
func placeRounds(b *testing.B, c *Cluster, p *Profile, pods []*schedulingv1.Pod) time.Duration {
	var turn uint64
	begin := processor(b)
	for round := range slices.Chunk(pods, mostAtOnce) {
		for _, d := range placeAll(c, p, round, &turn) {
			if d.Node == "" {
				b.Fatal(d.Message)
			}
		}
	}
	return processor(b) - begin
}

// BenchmarkRounds is 2,000 pods that are placed in rounds, by what they ask for.
func BenchmarkRounds(b *testing.B) {
	template := pod(b, "004-74")
	kinds := []struct {
		name string
		make func(c *Cluster, n int) []*schedulingv1.Pod
	}{
		{"basic", func(_ *Cluster, n int) []*schedulingv1.Pod { return deployment(NewCluster(), n, 1) }},
		{"spread", func(c *Cluster, n int) []*schedulingv1.Pod { return deployment(c, n, 1) }},
		{"apart", func(c *Cluster, n int) []*schedulingv1.Pod {
			pods := deployment(NewCluster(), n, 1)
			for _, p := range pods {
				p.Metadata.Labels["security"] = "s1"
				p.Spec.Affinity = template.Spec.Affinity
			}
			return pods
		}},
		{"selector", func(_ *Cluster, n int) []*schedulingv1.Pod {
			pods := deployment(NewCluster(), n, 1)
			for _, p := range pods {
				selecting("zone", "1")(p)
			}
			return pods
		}},
		{"distinct", func(_ *Cluster, n int) []*schedulingv1.Pod { return deployment(NewCluster(), n, n) }},
		{"services", func(c *Cluster, n int) []*schedulingv1.Pod { return deployment(c, n, n) }},
		{"even", func(_ *Cluster, n int) []*schedulingv1.Pod {
			pods := deployment(NewCluster(), n, 1)
			for _, p := range pods {
				spreading(over("zone", doNotSchedule, map[string]any{"labelSelector": map[string]any{}, "matchLabelKeys": []any{
					"app",
				}}))(p)
			}
			return pods
		}},
		{"even by node", func(_ *Cluster, n int) []*schedulingv1.Pod {
			pods := deployment(NewCluster(), n, 1)
			for _, p := range pods {
				spreading(over(hostnameLabel, doNotSchedule, map[string]any{
					"labelSelector": map[string]any{}, "matchLabelKeys": []any{"app"},
				}))(p)
			}
			return pods
		}},
		{"rather even", func(_ *Cluster, n int) []*schedulingv1.Pod {
			pods := deployment(NewCluster(), n, 1)
			for _, p := range pods {
				for _, key := range []string{"zone", hostnameLabel} {
					spreading(over(key, scheduleAnyway, map[string]any{
						"labelSelector": map[string]any{}, "matchLabelKeys": []any{"app"},
					}))(p)
				}
			}
			return pods
		}},
		{"near", func(_ *Cluster, n int) []*schedulingv1.Pod {
			pods := deployment(NewCluster(), n, 1)
			for _, p := range pods {
				stayingNear(p)
				p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = "zone"
			}
			return pods
		}},
	}
	for _, kind := range kinds {
		for _, nodes := range []int{500, 5000, 20000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", kind.name, nodes), func(b *testing.B) {
				var spent time.Duration
				const pods = 2000
				for b.Loop() {
					c := NewCluster()
					for i := range nodes {
						zone := fmt.Sprint(i % 3)
						c.AddNode(newNode(fmt.Sprintf("node-%05d", i), labelled("zone", zone),
							labelled("topology.kubernetes.io/zone", zone)))
					}
					list := kind.make(c, pods)
					if kind.name == "apart" {
						list = list[:min(pods, nodes)]
					}
					spent += placeRounds(b, c, Policy(nil), list) * pods / time.Duration(len(list))
				}
				b.ReportMetric(float64(spent.Microseconds())/float64(pods*b.N), "cpu-µs/pod")
			})
		}
	}
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

// BenchmarkExplain is the explanation of a pod by the state of a queue: of one that fits on every node, and of one that
// fits nowhere. held-ms is the time in which no pod is placed.
func BenchmarkExplain(b *testing.B) {
	for _, pods := range []int{10_000, 100_000} {
		q := NewQueue(NewCluster(), Policies(nil))
		for i := range 5000 {
			zone := fmt.Sprint(i % 3)
			q.AddNode(newNode(fmt.Sprintf("node-%05d", i), labelled("zone", zone),
				labelled("topology.kubernetes.io/zone", zone)))
		}
		for round := range slices.Chunk(deployment(q.Cluster, pods, 100), mostAtOnce) {
			placeAll(q.Cluster, q.Of(nil), round, &q.turn)
		}
		for name, pod := range map[string]*schedulingv1.Pod{
			"fits":    newPod("one", carrying("app", "app-7"), asking("cpu", "100m")),
			"nowhere": newPod("one", carrying("app", "app-7"), asking("cpu", "5"), selecting("disk", "ssd")),
		} {
			b.Run(fmt.Sprintf("%s/nodes=5000/pods=%d", name, pods), func(b *testing.B) {
				var held time.Duration
				for b.Loop() {
					begin := time.Now()
					e := q.Explain(nil, pod, nil)
					held += time.Since(begin)
					if out := e.Response(); len(out.GetNodes()) != 5000 {
						b.Fatal(out.GetMessage())
					}
				}
				b.ReportMetric(float64(held.Microseconds())/1000/float64(b.N), "held-ms")
			})
		}
	}
}
