package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// nights are windows of which one is open from 22:00 to 02:00 UTC.
func nights() Windows {
	return Windows{List: []*updatev1.MaintenanceWindow{{
		Metadata: &metav1.ObjectMeta{Name: "nights"},
		Spec:     &updatev1.MaintenanceWindowSpec{Schedule: "0 22 * * *", Duration: "4h"},
	}}}
}

const untilNight = "waits for maintenance window nights, which opens at 2026-01-01T22:00:00Z"

func TestNodesBeginWhileAWindowIsOpen(t *testing.T) {
	noon, night := epoch().Add(12*time.Hour), epoch().Add(22*time.Hour)
	waived := func(config string) func(*configv1.MachineConfigPool) {
		return func(p *configv1.MachineConfigPool) {
			p.Spec.WindowWaiver = &configv1.MachineConfigPoolWindowWaiver{Configuration: config}
		}
	}
	for _, tt := range []struct {
		name     string
		node     *nodev1.Node
		change   func(*configv1.MachineConfigPool)
		windows  Windows
		now      time.Time
		begins   bool
		updating string // condition Updating of the pool
	}{
		{"at night", node("n", "a", "a", stateDone), nil, nights(), night, true, "True"},
		{"during the day", node("n", "a", "a", stateDone), nil, nights(), noon, false, "False"},
		{"one that is down", lost(node("n", "a", "a", stateDone)), nil, nights(), noon, false, "False"},
		{"one that failed on a former target", node("n", "a", "c", degraded), nil, nights(), noon, false, "False"},
		{
			"one that waits to be drained for a former target", node("n", "a", "c", working), nil, nights(), noon, false,
			"False",
		},
		{
			"one that is cordoned and waits to be drained for a former target", cordoned(node("n", "a", "c", working)), nil,
			nights(), noon, false, "False",
		},
		{
			"one that restarts for a former target", lost(node("n", "a", "c", rebooting)), nil, nights(), noon, true, "True",
		},
		{"one that goes back to what it has", node("n", "b", "c", working), nil, nights(), noon, true, "True"},
		{"a new one", node("n", ""), nil, nights(), noon, true, "True"},
		{"waived", node("n", "a", "a", stateDone), waived("b"), nights(), noon, true, "True"},
		{"waived for another configuration", node("n", "a", "a", stateDone), waived("a"), nights(), noon, false, "False"},
		{"windows are not known", node("n", "a", "a", stateDone), nil, Windows{Unknown: "silence"}, noon, false, "False"},
		{
			"windows are not known, and waived", node("n", "a", "a", stateDone), waived("b"),
			Windows{Unknown: "silence"},
			noon,
			true, "True",
		},
	} {
		pool := target(poolOf("worker", "worker"), "b", nil)
		if tt.change != nil {
			tt.change(pool)
		}
		p, r := Pool(View{
			Now: tt.now, Pool: pool, Members: Members{Nodes: []*nodev1.Node{tt.node}}, Windows: tt.windows,
			Drains: map[string]*nodev1.Drain{},
		})
		if begins := len(r.Next) > 0; begins != tt.begins || !begins && r.Capacity > 0 {
			t.Errorf("%s: begins: %v, and %d may", tt.name, begins, r.Capacity)
		}
		for _, c := range p.StatusAfter(pool).GetConditions() {
			if c.GetType() == ConditionUpdating && c.GetStatus() != tt.updating {
				t.Errorf("%s: %v", tt.name, c)
			}
		}
		switch {
		case tt.begins:
		case tt.windows.Unknown != "":
			if !p.Wake.Equal(noon.Add(windowsAgain)) {
				t.Errorf("%s: decided again at %v", tt.name, p.Wake)
			}
		case len(p.Held) != 1 || p.Held[0].GetReason() != untilNight || p.Held[0].GetSinceTime() == nil ||
			!p.Wake.Equal(night):
			t.Errorf("%s: held back %v, decided again at %v", tt.name, p.Held, p.Wake)
		}
	}
}

// A node has its target, such as one whose operating system is ready to boot, and is drained when a window opens.
func TestANodeIsDrainedWhileAWindowIsOpen(t *testing.T) {
	noon := epoch().Add(12 * time.Hour)
	a, b := mc("a", "", ign(fileDoc("/etc/a", "1"))), mc("b", "", ign(fileDoc("/etc/a", "2")))
	pool := target(poolOf("worker", "worker"), "b", nil)
	for _, tt := range []struct {
		name  string
		node  *nodev1.Node
		now   time.Time
		drain bool
	}{
		{"during the day", node("n", "a", "b", working), noon, false},
		{"at night", node("n", "a", "b", working), noon.Add(10 * time.Hour), true},
		{"it is cordoned, and runs its pods", cordoned(node("n", "a", "b", working)), noon, false},
	} {
		v := NodeView{Node: tt.node, Current: a, Desired: b, Policy: defaults(), Window: nights().For(pool, "b", tt.now)}
		p := Node(v)
		if drain := len(p.Do) == 1 && p.Do[0].Verb == CreateDrain; drain != tt.drain {
			t.Errorf("%s: %v", tt.name, p)
		}
		if !tt.drain && (p.WaitsFor != untilNight || !p.Wake.Equal(epoch().Add(22*time.Hour))) {
			t.Errorf("%s: waits for %q until %v", tt.name, p.WaitsFor, p.Wake)
		}
		_, r := Pool(View{
			Now: tt.now, Pool: pool, Members: Members{Nodes: []*nodev1.Node{tt.node}}, Windows: nights(),
			Drains: map[string]*nodev1.Drain{},
		})
		if says := r.Nodes[0].GetReason() == untilNight; says == tt.drain {
			t.Errorf("%s: the plan says %q", tt.name, r.Nodes[0].GetReason())
		}
	}
}

// Whatever nodes do, while no window is open none is taken down that was not down for its configuration before.
func TestNothingBeginsOutsideAWindow(t *testing.T) {
	configs := []string{"", "a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		v := View{
			Now:  epoch().Add(time.Duration(rapid.IntRange(2*60, 22*60-1).Draw(t, "minute")) * time.Minute),
			Pool: target(poolOf("worker", "worker"), "b", rapid.IntRange(1, 4).Draw(t, "max")), Windows: nights(),
			Drains: map[string]*nodev1.Drain{},
		}
		stored := map[string]*configv1.MachineConfig{}
		for _, c := range configs[1:] {
			stored[c] = mc(c, "", ign(fileDoc("/etc/a", c)))
		}
		if rapid.Bool().Draw(t, "boots") {
			v.Target = mc("b", "", nil, func(s *configv1.MachineConfigSpec) { s.OsImageUrl = osImage })
		}
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			n := node(fmt.Sprint("n", i), rapid.SampledFrom(configs).Draw(t, "current"), rapid.SampledFrom(configs).Draw(t,
				"desired"), rapid.SampledFrom([]string{stateDone, working, degraded, rebooting}).Draw(t, "state"))
			if rapid.Bool().Draw(t, "cordoned") {
				n.Spec.Unschedulable = proto.Bool(true)
			}
			if rapid.Bool().Draw(t, "lost") {
				lost(n)
			}
			v.Members.Nodes = append(v.Members.Nodes, n)
		}
		p, r := Pool(v)
		for _, a := range p.Do {
			if n := a.Node; a.Verb == SetDesired && !(mark(n, CurrentConfig) == "" && !v.boots()) &&
				mark(n, CurrentConfig) != "b" && !v.downFor(n) {
				t.Fatalf("%v begins: %s", n, a.Reason)
			}
		}
		for _, n := range v.Members.Nodes {
			view := NodeView{
				Node: n, Current: stored[mark(n, CurrentConfig)], Desired: stored[mark(n, DesiredConfig)], Policy: defaults(),
				Window: v.Windows.For(v.Pool, mark(n, DesiredConfig), v.Now),
			}
			if slices.ContainsFunc(Node(view).Do, func(a Action) bool { return a.Verb == CreateDrain }) {
				t.Fatalf("%v is drained", n)
			}
		}
		for _, h := range p.Held {
			if slices.Contains(r.Next, h.GetObject().GetName()) {
				t.Fatalf("%v begins and is held back", h)
			}
		}
	})
}

func TestWhoWaivesWindowsIsNotTheUsersToSay(t *testing.T) {
	type waiver = configv1.MachineConfigPoolWindowWaiver
	first := Waiving(nil, &waiver{Configuration: "b", Reason: "CVE", By: "eve"}, "alice", epoch())
	if first.GetBy() != "alice" || !first.GetSince().AsTime().Equal(epoch()) {
		t.Errorf("the first is %v", first)
	}
	if got := Waiving(first, &waiver{Configuration: "b", Reason: "CVE"}, "carol", epoch().Add(1)); !proto.Equal(got,
		first) {
		t.Errorf("the same is %v", got)
	}
	if got := Waiving(first, &waiver{Configuration: "c", Reason: "CVE", By: "alice"}, "carol",
		epoch()); got.GetBy() != "carol" {
		t.Errorf("another one is %v", got)
	}
	if got := Waiving(first, nil, "carol", epoch()); got != nil {
		t.Errorf("none is %v", got)
	}
}

func TestAWaiverEndsWithItsConfiguration(t *testing.T) {
	for waived, stays := range map[string]bool{"b": false, "c": true} {
		pool := target(poolOf("worker", "worker"), "b", nil)
		pool.Spec.WindowWaiver = &configv1.MachineConfigPoolWindowWaiver{Configuration: waived, Reason: "CVE"}
		p, _ := Pool(View{
			Now: epoch(), Pool: pool, Rendered: Rendered{Config: mc("c", "", nil)},
			Drains: map[string]*nodev1.Drain{},
		})
		i := slices.IndexFunc(p.Do, func(a Action) bool { return a.Verb == AimPool })
		if i < 0 {
			t.Fatalf("the pool is not aimed: %v", p.Do)
		}
		if is := p.Do[i].Pool.GetSpec().GetWindowWaiver() != nil; is != stays {
			t.Errorf("the waiver for %s stays while the pool goes from b to c: %t", waived, is)
		}
	}
}
