package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// BenchmarkRender renders 100 machine configurations of so many files and a unit each, of which one has changed since
// the last time.
func BenchmarkRender(b *testing.B) {
	for _, files := range []int{1, 10} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) { render(b, files) })
	}
}

func render(b *testing.B, each int) {
	var configs []*configv1.MachineConfig
	for i := range 100 {
		files := ""
		for f := range each {
			files += fmt.Sprintf(`{"path":"/etc/c%d/f%d","mode":420,"contents":{"source":"data:,%d-%d"}},`, i, f, i, f)
		}
		configs = append(configs, mc(fmt.Sprintf("50-c%03d", i), "worker", ign(fmt.Sprintf(
			`{"ignition":{"version":"3.2.0"},"storage":{"files":[%s]},"systemd":{"units":[{"name":"u%d.service",`+
				`"enabled":true,"contents":"[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]}}`,
			files[:len(files)-1], i))))
	}
	pool := poolOf("worker", "worker")
	for n := 0; b.Loop(); n++ {
		configs[n%100] = mc(configs[n%100].Metadata.Name, "worker", ign(fileDoc("/etc/changed", fmt.Sprint(n))))
		if r, err := Render(pool, configs, nil); err != nil || len(r.Sources) != 100 {
			b.Fatal(err)
		}
	}
}

// many is a pool of so many nodes that have their configuration and are to get another, some at once.
func many(count, most int) (*configv1.MachineConfigPool, []*nodev1.Node) {
	var nodes []*nodev1.Node
	for i := range count {
		nodes = append(nodes, placed(node(fmt.Sprintf("n%04d", i), "a", "a", stateDone), fmt.Sprintf("z%d", i%3),
			time.Duration(i)*time.Minute))
	}
	return target(poolOf("worker", "worker"), "b", most), nodes
}

// BenchmarkPool decides about 1,000 nodes, half of which have the pool's configuration and 50 of which change to it.
func BenchmarkPool(b *testing.B) {
	pool, nodes := many(1000, 50)
	for i, n := range nodes[:550] {
		n.Metadata.Annotations[DesiredConfig] = "b"
		if i < 500 {
			n.Metadata.Annotations[CurrentConfig] = "b"
		} else {
			n.Metadata.Annotations[State] = ""
			n.Status.Conditions[0].Status = "False"
		}
	}
	v := View{Now: epoch(), Pool: pool, Members: Members{Nodes: nodes}}
	for b.Loop() {
		if _, r := Pool(v); len(r.Next) != 0 || r.Unavailable != 50 {
			b.Fatal(r.Next, r.Unavailable)
		}
	}
}

// TestARolloutUsesEverySlot plays a roll-out over 1,000 nodes whose changes take between one and ten minutes: as soon
// as a node is done another one begins, and there are never more than may be.
func TestARolloutUsesEverySlot(t *testing.T) {
	const slots = 50
	pool, nodes := many(1000, slots)
	v := View{Now: epoch(), Pool: pool}
	ends := map[int]time.Time{} // of the nodes that change
	chance := rand.New(rand.NewPCG(1, 2))
	var busy, all time.Duration
	for left := len(nodes); left > 0; {
		v.Members = Members{Nodes: nodes}
		_, r := Pool(v)
		for _, name := range r.Next {
			var i int
			if _, err := fmt.Sscanf(name, "n%d", &i); err != nil {
				t.Fatal(err)
			}
			n := object.Clone(nodes[i])
			n.Metadata.Annotations[DesiredConfig], n.Status.Conditions[0].Status = "b", "False"
			nodes[i], ends[i] = n, v.Now.Add(time.Minute+time.Duration(chance.Int64N(int64(9*time.Minute))))
		}
		if len(ends) > slots {
			t.Fatalf("%d nodes change at once", len(ends))
		}
		first := -1
		for i, end := range ends {
			if first < 0 || end.Before(ends[first]) {
				first = i
			}
		}
		if first < 0 {
			t.Fatalf("%d nodes are left, and none begins", left)
		}
		if took := ends[first].Sub(v.Now); left > slots {
			busy, all = busy+took*time.Duration(len(ends)), all+slots*took
		}
		v.Now = ends[first]
		n := object.Clone(nodes[first])
		n.Metadata.Annotations[CurrentConfig], n.Status.Conditions[0].Status = "b", "True"
		nodes[first], left = n, left-1
		delete(ends, first)
	}
	if busy != all {
		t.Errorf("the slots were busy for %s of %s while nodes waited", busy, all)
	}
}
