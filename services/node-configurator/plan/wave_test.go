package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// inWave returns a wave of a number or a percentage of nodes, or, for "=x", of those with that tier.
func inWave(name string, nodes any, soak string) *configv1.MachineConfigPoolWave {
	w := &configv1.MachineConfigPoolWave{Name: name, Soak: soak}
	if s, ok := nodes.(string); ok && s[0] == '=' {
		w.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": s[1:]}}
		return w
	}
	w.Nodes = must(structpb.NewValue(nodes))
	return w
}

func TestWavesThatAreRefused(t *testing.T) {
	both := inWave("a", 1, "")
	both.NodeSelector = &metav1.LabelSelector{}
	broken := inWave("a", "=x", "")
	broken.NodeSelector.MatchLabels = map[string]string{"a b": ""}
	for _, tt := range []struct {
		name  string
		waves []*configv1.MachineConfigPoolWave
		path  string // empty: they are accepted
	}{
		{"a number, a share and a selector", []*configv1.MachineConfigPoolWave{
			inWave("a", 1, "30m"), inWave("b", "25%", ""),
			inWave("c", "=x", "0"),
		}, ""},
		{"two of a name", []*configv1.MachineConfigPoolWave{inWave("a", 1, ""), inWave("a", 2, "")}, "spec.waves[1].name"},
		{"a selector and a number", []*configv1.MachineConfigPoolWave{both}, "spec.waves[0]"},
		{"neither", []*configv1.MachineConfigPoolWave{{Name: "a"}}, "spec.waves[0]"},
		{"a bad selector", []*configv1.MachineConfigPoolWave{broken}, "spec.waves[0].nodeSelector"},
		{"more than all", []*configv1.MachineConfigPoolWave{inWave("a", "101%", "")}, "spec.waves[0].nodes"},
		{"none", []*configv1.MachineConfigPoolWave{inWave("a", "0%", "")}, "spec.waves[0].nodes"},
		{"soak without a unit", []*configv1.MachineConfigPoolWave{inWave("a", 1, "30")}, "spec.waves[0].soak"},
		{"a negative soak", []*configv1.MachineConfigPoolWave{inWave("a", 1, "-1m")}, "spec.waves[0].soak"},
	} {
		bad := WaveFaults(tt.waves)
		if (len(bad) > 0) != (tt.path != "") || len(bad) > 0 && !strings.HasPrefix(bad[0].Path, tt.path) {
			t.Errorf("%s: %v, want %q", tt.name, bad, tt.path)
		}
	}
}

func TestWhichNodesAreInAWave(t *testing.T) {
	tier := func(n *nodev1.Node, tier string) *nodev1.Node {
		n.Metadata.Labels["tier"] = tier
		return n
	}
	nodes := []*nodev1.Node{ // the oldest is n1
		tier(placed(node("n1"), "", 5*time.Hour), "web"), placed(node("n2"), "", 4*time.Hour),
		tier(placed(node("n3"), "", 3*time.Hour), "canary"), placed(node("n4"), "", 2*time.Hour),
		tier(placed(node("n5"), "", time.Hour), "web"),
	}
	for _, tt := range []struct {
		name  string
		waves []*configv1.MachineConfigPoolWave
		want  string
	}{
		{"none", nil, "n1: n2: n3: n4: n5:"},
		{"a number", []*configv1.MachineConfigPoolWave{inWave("a", 2, "")}, "n1:a n2:a n3: n4: n5:"},
		{"a share, rounded up", []*configv1.MachineConfigPoolWave{inWave("a", "21%", "")}, "n1:a n2:a n3: n4: n5:"},
		{"a selector", []*configv1.MachineConfigPoolWave{inWave("a", "=canary", "")}, "n1: n2: n3:a n4: n5:"},
		{"each in the first", []*configv1.MachineConfigPoolWave{
			inWave("a", "=web", ""), inWave("b", 2, ""),
			inWave("c", "100%", ""),
		}, "n1:a n2:b n3:b n4:c n5:a"},
		{
			"more than there are",
			[]*configv1.MachineConfigPoolWave{inWave("a", 9, ""), inWave("b", 1, "")},
			"n1:a n2:a n3:a n4:a n5:a",
		},
	} {
		pool := target(poolOf("worker", "worker"), "b", nil)
		pool.Spec.Waves = tt.waves
		_, r := Pool(View{Now: epoch(), Pool: pool, Members: Members{Nodes: nodes}})
		var got []string
		for _, n := range r.Nodes {
			got = append(got, n.GetNode()+":"+n.GetWave())
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

// The soak of a wave is counted from a moment that the status has: another process goes on with it, and what was seen
// on the way to another configuration does not count.
func TestTheSoakOfAWaveOutlastsAProcess(t *testing.T) {
	pool := target(poolOf("worker", "worker"), "b", nil)
	pool.Spec.Waves = []*configv1.MachineConfigPoolWave{inWave("canary", 1, "10m")}
	v := View{Now: epoch(), Pool: pool, Members: Members{Nodes: []*nodev1.Node{
		node("n1", "b", "b", stateDone), node("n2", "a", "a", stateDone),
	}}}
	next := func(after time.Duration) ([]string, time.Time, *configv1.MachineConfigPoolWaveStatus) {
		v.Now = epoch().Add(after)
		p, r := Pool(v)
		st := p.StatusAfter(pool)
		pool.Status = st
		return r.Next, p.Wake, st.GetWaves()[0]
	}
	begun, wake, st := next(0)
	if len(begun) > 0 || !wake.Equal(epoch().Add(10*time.Minute)) || st.GetState() != waveSoaking ||
		!proto.Equal(st.GetReadyTime(), ts(0)) || !proto.Equal(st.GetSince(), ts(0)) {
		t.Errorf("at first %v begin, wake %v, %v", begun, wake, st)
	}
	if begun, _, again := next(10*time.Minute - 1); len(begun) > 0 || !proto.Equal(again, st) {
		t.Errorf("just before its end %v begin, %v", begun, again)
	}
	if begun, _, st := next(10 * time.Minute); !slices.Equal(begun, []string{"n2"}) || st.GetState() != waveDone ||
		!proto.Equal(st.GetSince(), ts(10*time.Minute)) {
		t.Errorf("at its end %v begin, %v", begun, st)
	}
	target(pool, "c", nil)
	v.Members.Nodes[0] = node("n1", "c", "c", stateDone)
	if begun, _, st := next(11 * time.Minute); len(begun) > 0 || !proto.Equal(st.GetReadyTime(), ts(11*time.Minute)) {
		t.Errorf("another configuration: %v begin, %v", begun, st)
	}
	// A pause counts before the wave, and so does a window.
	pool.Spec.Paused = proto.Bool(true)
	if begun, _, _ := next(2 * time.Hour); len(begun) > 0 {
		t.Errorf("while it is paused %v begin", begun)
	}
}

// A node of a later wave that is under way counts as unavailable. When the target changes it gets the new one, so that
// the first wave can begin at all.
func TestANodeUnderWayDoesNotHoldUpTheWavesBeforeIt(t *testing.T) {
	pool := target(poolOf("worker", "worker"), "c", nil)
	pool.Spec.Waves = []*configv1.MachineConfigPoolWave{inWave("canary", 1, "")}
	for name, n2 := range map[string]*nodev1.Node{
		"it waits to be drained": node("n2", "a", "b", working), "it is drained": cordoned(node("n2", "a", "b", working)),
	} {
		_, r := Pool(View{Now: epoch(), Pool: pool, Members: Members{Nodes: []*nodev1.Node{
			node("n1", "a", "a", stateDone), n2, node("n3", "a", "a", stateDone),
		}}})
		if !slices.Equal(r.Next, []string{"n2"}) {
			t.Errorf("%s: %v begin", name, r.Next)
		}
	}
}

// Whatever happens to nodes and targets: a node that is not under way begins when all nodes of the waves before its own
// have had the configuration and were ready for the soak time, and never more are away than may be. It comes to an end.
func TestWavesGoInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 3).Draw(t, "maxUnavailable")
		f := &fleet{pool: target(poolOf("worker", "worker"), "t0", most)}
		for i := range rapid.IntRange(2, 7).Draw(t, "nodes") {
			n := node(fmt.Sprint("n", i), "t0", "t0", stateDone)
			n.Metadata.Labels["tier"] = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "tier")
			f.nodes = append(f.nodes, n)
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "waves") {
			f.pool.Spec.Waves = append(f.pool.Spec.Waves, inWave(fmt.Sprint("w", i), rapid.SampledFrom([]any{
				1, 2, "30%", "=x",
				"=y",
			}).Draw(t, "of"), rapid.SampledFrom([]string{"", "3m", "10m"}).Draw(t, "soak")))
		}
		now := epoch()
		good := map[string]time.Time{} // since when a node has the target and is ready
		observe := func() {
			for _, n := range f.nodes {
				name := n.GetMetadata().GetName()
				if !ready(n) || !done(n) || mark(n, DesiredConfig) != f.pool.GetSpec().GetConfiguration().GetName() {
					delete(good, name)
				} else if _, ok := good[name]; !ok {
					good[name] = now
				}
			}
		}
		decide := func() {
			observe()
			v := f.view()
			v.Now = now
			before := map[string]bool{} // under way, or down for another target
			away := 0
			for _, n := range f.nodes {
				before[n.GetMetadata().GetName()] = v.changing(n) && (!stuck(n) || !ready(n)) ||
					mark(n, CurrentConfig) == f.pool.GetSpec().GetConfiguration().GetName()
				if !ready(n) {
					away++
				}
			}
			p, r := Pool(v)
			for _, name := range r.Next {
				at := slices.IndexFunc(r.Nodes, func(n *configv1.PlanMachineConfigPoolResponse_NodePlan) bool {
					return n.GetNode() == name
				})
				for _, w := range f.pool.GetSpec().GetWaves() {
					if w.GetName() == r.Nodes[at].GetWave() || before[name] {
						break
					}
					soak, _ := soakOf(w)
					for _, n := range r.Nodes {
						since, ok := good[n.GetNode()]
						if n.GetWave() == w.GetName() && (!ok || now.Sub(since) < soak) {
							t.Fatalf("%s of wave %q begins, and %s of wave %q is good since %v, now is %v", name, r.Nodes[at].GetWave(),
								n.GetNode(), w.GetName(), since, now)
						}
					}
				}
			}
			f.pool.Status = p.StatusAfter(f.pool)
			f.begin(now)
			is := 0
			for _, n := range f.nodes {
				if !ready(n) {
					is++
				}
			}
			if is > away && is > most {
				t.Fatalf("%d nodes were away, now %d: more than %d", away, is, most)
			}
		}
		for range 40 {
			n := f.nodes[rapid.IntRange(0, len(f.nodes)-1).Draw(t, "node")]
			switch rapid.SampledFrom([]string{"finish", "finish", "finish", "fail", "lose", "return", "target", "wait"}).Draw(t,
				"event") {
			case "finish":
				f.finish(n.GetMetadata().GetName())
			case "fail":
				if rolling(n) {
					n.Metadata.Annotations[State] = degraded
				}
			case "lose":
				lost(n)
			case "return":
				n.Status.Conditions[0].Status = "True"
			case "target":
				target(f.pool, fmt.Sprint("t", rapid.IntRange(0, 2).Draw(t, "target")), nil)
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second)
			}
			decide()
		}
		for _, n := range f.nodes {
			n.Status.Conditions[0].Status = "True"
		}
		for range 5 * len(f.nodes) {
			now = now.Add(10 * time.Minute)
			for _, n := range f.nodes {
				f.finish(n.GetMetadata().GetName())
			}
			decide()
		}
		if object.FindCondition(f.pool.GetStatus().GetConditions(), ConditionUpdated).GetStatus() != "True" {
			t.Fatalf("it does not come to an end: %v", f.pool.GetStatus())
		}
	})
}
