package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"
)

func epoch() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// node makes a ready worker with marks: current, desired, state, reason.
func node(name string, marks ...string) *nodev1.Node {
	n := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"node-role.kubernetes.io/worker": ""}, Annotations: map[string]string{},
			CreationTimestamp: timestamppb.New(epoch()),
		},
		Spec:   &nodev1.NodeSpec{},
		Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}}},
	}
	for i, key := range []string{CurrentConfig, DesiredConfig, State, Reason} {
		if i < len(marks) && marks[i] != "" {
			n.Metadata.Annotations[key] = marks[i]
		}
	}
	return n
}

func lost(n *nodev1.Node) *nodev1.Node {
	n.Status.Conditions[0].Status = "Unknown"
	return n
}

// silent makes a node that never reported whether it is ready.
func silent(n *nodev1.Node) *nodev1.Node {
	n.Status.Conditions = nil
	return n
}

func with(n *nodev1.Node, typ, status string) *nodev1.Node {
	n.Status.Conditions = append(n.Status.Conditions, &nodev1.NodeCondition{Type: typ, Status: status})
	return n
}

func cordoned(n *nodev1.Node) *nodev1.Node {
	n.Spec.Unschedulable = proto.Bool(true)
	return n
}

func placed(n *nodev1.Node, zone string, age time.Duration) *nodev1.Node {
	if zone != "" {
		n.Metadata.Labels["topology.kubernetes.io/zone"] = zone
	}
	n.Metadata.CreationTimestamp = timestamppb.New(epoch().Add(-age))
	return n
}

func target(pool *configv1.MachineConfigPool, name string, most any) *configv1.MachineConfigPool {
	pool.Spec.Configuration = &configv1.MachineConfigPoolConfiguration{Name: name}
	if most != nil {
		pool.Spec.MaxUnavailable = must(structpb.NewValue(most))
	}
	return pool
}

func TestMaxUnavailable(t *testing.T) {
	for _, tc := range []struct {
		pool  string
		most  any
		nodes int
		want  int
	}{
		{"worker", nil, 5, 1},
		{"worker", 3, 5, 3},
		{"worker", "50%", 5, 2},
		{"worker", "10%", 5, 1},
		{"worker", "100%", 5, 5},
		{"worker", "99%", 100, 99},
		{"worker", "150%", 4, 4},
		{"worker", "0%", 5, 1},
		{"worker", "50%", 0, 1},
		{"worker", 0, 5, 1},
		{"worker", -2, 5, 1},
		{"worker", "-20%", 50, 1},
		{"worker", "0", 5, 1},
		{"worker", "60", 5, 1}, // no percentage
		{"worker", "40 %", 5, 1},
		{"worker", "99999999999999999999%", 5, 1},
		{"worker", true, 5, 1},
		{"master", 3, 3, 1},
		{"arbiter", "100%", 3, 1},
	} {
		if got := MaxUnavailable(target(poolOf(tc.pool, tc.pool), "b", tc.most), tc.nodes); got != tc.want {
			t.Errorf("%s with %v of %d nodes: %d, want %d", tc.pool, tc.most, tc.nodes, got, tc.want)
		}
	}
}

func TestWhichNodesBeginNext(t *testing.T) {
	for _, tc := range []struct {
		name  string
		most  any
		pause bool
		fail  string
		nodes []*nodev1.Node
		want  []string
	}{
		{
			"the first of equals", nil, false, "",
			[]*nodev1.Node{node("n1", "a", "a", stateDone), node("n2", "a", "a", stateDone)},
			[]string{"n1"},
		},
		{"zones first, then age, those without a zone last", 9, false, "", []*nodev1.Node{
			placed(node("n1", "a", "a", stateDone), "", time.Hour), placed(node("n2", "a", "a", stateDone), "z2", time.Minute),
			placed(node("n3", "a", "a", stateDone), "z1", time.Minute), placed(node("n4", "a", "a", stateDone), "z1", time.Hour),
		}, []string{"n4", "n3", "n2", "n1"}},
		{"none while one is under way", nil, false, "", []*nodev1.Node{
			cordoned(node("n1", "a", "b", working)),
			node("n2", "a", "a", stateDone),
		}, nil},
		{"a node that failed on this one is in the way", nil, false, "", []*nodev1.Node{
			node("n1", "a", "b", degraded),
			node("n2", "a", "a", stateDone),
		}, nil},
		{"a node that failed on this one takes one place", 2, false, "", []*nodev1.Node{
			node("n1", "a", "b", degraded),
			node("n2", "a", "a", stateDone), node("n3", "a", "a", stateDone),
		}, []string{"n2"}},
		{
			"a failed target that was taken back is replaced", nil, false, "",
			[]*nodev1.Node{cordoned(node("n1", "a", "bad", degraded, "no")), node("n2", "a", "a", stateDone)},
			[]string{"n1"},
		},
		{"so is one that is still being worked at", nil, false, "", []*nodev1.Node{
			cordoned(node("n1", "a", "bad", working)),
			node("n2", "a", "a", stateDone),
		}, []string{"n1"}},
		{"a node that is down comes first", nil, false, "", []*nodev1.Node{
			node("n1", "a", "a", stateDone),
			lost(node("n2", "a", "a", stateDone)),
		}, []string{"n2"}},
		{
			"one that is down on a bad configuration gets the good one", nil, false, "",
			[]*nodev1.Node{lost(node("n1", "bad", "bad", stateDone)), node("n2", "a", "a", stateDone)},
			[]string{"n1"},
		},
		{"a node that a user holds waits for the user", 2, false, "", []*nodev1.Node{
			cordoned(node("n1", "a", "a", stateDone)),
			node("n2", "a", "a", stateDone),
		}, []string{"n2"}},
		{"not all that are down at once", nil, false, "", []*nodev1.Node{
			lost(node("n1", "a", "a", stateDone)),
			lost(node("n2", "a", "a", stateDone)),
		}, []string{"n1"}},
		{"a new node gets it whatever else there is", nil, false, "", []*nodev1.Node{
			cordoned(node("n1", "a", "b", working)),
			node("n2"), node("n3"),
		}, []string{"n2", "n3"}},
		{
			"a new node gets it in a paused pool, too", nil, true, "",
			[]*nodev1.Node{node("n1", "a", "a", stateDone), node("n2")},
			[]string{"n2"},
		},
		{"none begins in a paused pool", 5, true, "", []*nodev1.Node{
			node("n1", "a", "a", stateDone),
			cordoned(node("n2", "a", "bad", degraded)),
		}, nil},
		{
			"none begins while it cannot be rendered", 5, false, "broken",
			[]*nodev1.Node{node("n1", "a", "a", stateDone)},
			nil,
		},
		{
			"what differs from its configuration may get another", nil, false, "",
			[]*nodev1.Node{node("n1", "a", "a", degraded, "content mismatch"), node("n2", "a", "a", stateDone)},
			[]string{"n1"},
		},
		{"but not while another is down", nil, false, "", []*nodev1.Node{
			node("n1", "a", "a", degraded, "content mismatch"),
			lost(node("n2", "b", "b", stateDone)),
		}, nil},
		{"one that failed on a former target and serves uses capacity", nil, false, "", []*nodev1.Node{
			node("n1", "a", "bad", degraded, "no"),
			lost(node("n2", "b", "b", stateDone)),
		}, nil},
		{"and comes before those that did not", 2, false, "", []*nodev1.Node{
			node("n1", "a", "a", stateDone), node("n2", "a", "a", stateDone), node("n3", "a", "bad", degraded, "no"),
		}, []string{"n3", "n1"}},
		{"all of them, one after the other", nil, false, "", []*nodev1.Node{
			node("n1", "a", "bad", degraded, "no"), node("n2", "a", "bad", unreconcilable, "no"),
			node("n3", "a", "bad", degraded, "no"),
		}, []string{"n1"}},
		{"one that is down on a bad configuration does not wait for them", nil, false, "", []*nodev1.Node{
			node("n1", "a", "bad", degraded, "no"),
			lost(node("n2", "bad", "bad", stateDone)),
		}, []string{"n2"}},
		{"one that serves and is worked at stays while too many are down", nil, false, "", []*nodev1.Node{
			node("n1", "a", "bad", working),
			lost(node("n2", "b", "b", stateDone)),
		}, nil},
		{"and changes at once while not", nil, false, "", []*nodev1.Node{
			node("n1", "a", "bad", working),
			node("n2", "a", "a", stateDone),
		}, []string{"n1"}},
		{"what goes back to the configuration that it has disturbs no pod", nil, false, "", []*nodev1.Node{
			node("n1", "b", "bad", degraded, "no"), node("n2", "b", "bad", degraded, "no"),
			lost(node("n3", "b", "b", stateDone)),
		}, []string{"n1", "n2"}},
		{"a node without a Ready condition is down", nil, false, "", []*nodev1.Node{
			node("n1", "a", "a", stateDone),
			silent(node("n2", "a", "a", stateDone)),
		}, []string{"n2"}},
		{"one whose disk pressure is not known is not ready", nil, false, "", []*nodev1.Node{
			with(node("n1", "a", "a", stateDone), "DiskPressure", "Unknown"),
			with(node("n2", "b", "b", stateDone), "DiskPressure", "False"),
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := target(poolOf("worker", "worker"), "b", tc.most)
			pool.Spec.Paused = proto.Bool(tc.pause)
			p, r := Pool(View{Now: epoch(), Pool: pool, Members: Members{Nodes: tc.nodes}, Failure: tc.fail})
			if diff := cmp.Diff(tc.want, r.Next); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(r.Nodes) != len(tc.nodes) || len(p.Steps()) != len(tc.want) {
				t.Errorf("plan %+v, %+v", p, r)
			}
		})
	}
}

func condMessage(st *configv1.MachineConfigPoolStatus, typ string) string {
	for _, c := range st.GetConditions() {
		if c.GetType() == typ {
			return c.GetStatus() + ": " + c.GetReason() + ": " + c.GetMessage()
		}
	}
	return "(none)"
}

func TestTheStatusCountsAndSays(t *testing.T) {
	for _, tc := range []struct {
		name   string
		paused bool
		fail   string
		nodes  []*nodev1.Node
		counts [5]int32 // machines, updated, ready, unavailable, degraded
		want   map[string]string
	}{
		{"an empty pool is updated", false, "", nil, [5]int32{}, map[string]string{
			"Updated": "True: : All nodes are updated with MachineConfig b", "Updating": "False: : ", "Degraded": "False: : ",
		}},
		{
			"all have it", false, "",
			[]*nodev1.Node{node("n1", "b", "b", stateDone)},
			[5]int32{1, 1, 1, 0, 0},
			map[string]string{
				"Updated": "True: : All nodes are updated with MachineConfig b",
			},
		},
		{"all have it, but one is not ready", false, "", []*nodev1.Node{
			node("n1", "b", "b", stateDone),
			lost(node("n2", "b", "b", stateDone)),
		}, [5]int32{2, 2, 1, 1, 0}, map[string]string{
			"Updated":  "False: : 1 of 2 nodes are updated; unavailable: n2",
			"Updating": "True: : All nodes are updating to MachineConfig b",
		}},
		{"one is drained, one waits", false, "", []*nodev1.Node{
			cordoned(node("n1", "a", "b", working)),
			node("n2", "a", "a", stateDone),
		}, [5]int32{2, 0, 0, 1, 0}, map[string]string{
			"Updated": `False: : 0 of 2 nodes are updated; updating: n1 (is drained: 1 pod is left; default/web: budget "web" allows 0 disruptions); waiting: n2`,
		}},
		{"paused", true, "", []*nodev1.Node{node("n1", "a", "a", stateDone)}, [5]int32{1, 0, 0, 0, 0}, map[string]string{
			"Updated":  "False: : 0 of 1 nodes are updated; waiting: n1",
			"Updating": "False: : Pool is paused; will not update to MachineConfig b",
		}},
		{
			"degraded", false, "",
			[]*nodev1.Node{node("n1", "a", "b", degraded, "no space")},
			[5]int32{1, 0, 0, 0, 1},
			map[string]string{
				"NodeDegraded": `True: 1 nodes are reporting degraded status on sync: Node n1 is reporting: "no space"`,
				"Degraded":     `True: : Node n1 is reporting: "no space"`,
				"Updating":     "True: : All nodes are updating to MachineConfig b",
			},
		},
		{
			"not rendered", false, "two of them clash",
			[]*nodev1.Node{node("n1", "b", "b", stateDone)},
			[5]int32{1, 1, 1, 0, 0},
			map[string]string{
				"RenderDegraded": "True: RenderFailed: two of them clash", "Degraded": "True: : two of them clash",
				"NodeDegraded": "False: : ",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := target(poolOf("worker", "worker"), "b", nil)
			pool.Spec.Paused = proto.Bool(tc.paused)
			st := statusOf(View{
				Now: epoch(), Pool: pool, Members: Members{Nodes: tc.nodes}, Failure: tc.fail,
				Drains: map[string]*nodev1.Drain{
					"n1": {Status: &nodev1.DrainStatus{
						Phase: proto.String("Draining"), Message: proto.String("1 pod is left"),
						Blocked: []string{`default/web: budget "web" allows 0 disruptions`},
					}},
				},
			})
			got := [5]int32{
				st.GetMachineCount(), st.GetUpdatedMachineCount(), st.GetReadyMachineCount(),
				st.GetUnavailableMachineCount(), st.GetDegradedMachineCount(),
			}
			if got != tc.counts {
				t.Errorf("counts %v, want %v", got, tc.counts)
			}
			for typ, want := range tc.want {
				if got := condMessage(st, typ); got != want {
					t.Errorf("%s = %q, want %q", typ, got, want)
				}
			}
		})
	}
}

func TestConditionsKeepTheirTimeWhileNothingHappens(t *testing.T) {
	pool := target(poolOf("worker", "worker"), "b", nil)
	first := statusOf(View{
		Now: epoch(), Pool: pool, Members: Members{Nodes: []*nodev1.Node{node("n1", "a", "a", stateDone)}},
	})
	pool.Status = first
	again := statusOf(View{
		Now: epoch().Add(time.Hour), Pool: pool,
		Members: Members{Nodes: []*nodev1.Node{node("n1", "a", "a", stateDone)}},
	})
	if !proto.Equal(first, again) {
		t.Errorf("nothing happened, but the status changed: %v, %v", first, again)
	}
	finished := statusOf(View{
		Now: epoch().Add(time.Hour), Pool: pool,
		Members: Members{Nodes: []*nodev1.Node{node("n1", "b", "b", stateDone)}},
	})
	if finished.GetConfiguration().GetName() != "b" || first.GetConfiguration() != nil {
		t.Errorf("the status has %v first, and %v at the end", first.GetConfiguration(), finished.GetConfiguration())
	}
}

func TestWhatHoldsANodeBackIsSaid(t *testing.T) {
	for _, tc := range []struct {
		name  string
		other *nodev1.Node
		want  string
	}{
		{"another one is down", lost(node("n1", "b", "b", stateDone)), "1 of 1 nodes that may be unavailable are"},
		{"another one is drained", cordoned(node("n1", "a", "b", working)), "1 of 1 nodes that may be unavailable are"},
		{
			"another one failed, and serves all the same", node("n1", "a", "b", degraded, "no space"),
			"1 of 1 nodes that may change at once have not finished",
		},
		{"another one begins", node("n1", "a", "a", stateDone), "1 of 1 nodes that may be unavailable are"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := Pool(View{
				Now: epoch(), Pool: target(poolOf("worker", "worker"), "b", nil),
				Members: Members{Nodes: []*nodev1.Node{tc.other, node("n2", "a", "a", stateDone)}},
			})
			held := p.Held
			if len(held) != 1 || held[0].GetObject().GetName() != "n2" || held[0].GetReason() != tc.want {
				t.Errorf("held back are %v", held)
			}
		})
	}
}

func TestAFailureToRenderStandsUntilAChangeHasSettled(t *testing.T) {
	pool := target(poolOf("worker", "worker"), "b", nil)
	v := View{Now: epoch(), Pool: pool, Failure: "two of them clash"}
	pool.Status = statusOf(v)
	v.Now, v.Failure, v.Settled = epoch().Add(time.Minute), "", epoch().Add(time.Minute+time.Second)
	p, _ := Pool(v)
	if settling := p.StatusAfter(pool); !proto.Equal(settling, pool.Status) || !p.Wake.Equal(v.Settled) {
		t.Errorf("something was changed, nothing is corrected yet: %v, was %v; again at %v", settling, pool.Status, p.Wake)
	}
	v.Now = v.Settled
	st := statusOf(v)
	for typ, want := range map[string]string{ConditionRenderDegraded: "False: : ", ConditionDegraded: "False: : "} {
		if got := condMessage(st, typ); got != want {
			t.Errorf("%s = %q, want %q", typ, got, want)
		}
	}
}

func TestToWhichPoolANodeBelongs(t *testing.T) {
	pools := []*configv1.MachineConfigPool{
		poolOf("worker", "worker"), poolOf("master", "master"),
		poolOf("infra", "infra"), poolOf("gpu", "gpu"), poolOf("arbiter", "arbiter"),
	}
	empty := poolOf("empty", "empty")
	empty.Spec.NodeSelector = &metav1.LabelSelector{}
	pools = append(pools, empty)
	for _, tc := range []struct {
		name     string
		roles    []string
		os       string
		want     string
		disputed []string
	}{
		{"a worker", []string{"worker"}, "linux", "worker", nil},
		{"a custom pool wins over worker", []string{"worker", "infra"}, "linux", "infra", nil},
		{"master wins over all", []string{"worker", "infra", "master"}, "linux", "master", nil},
		{"master wins over arbiter", []string{"arbiter", "master"}, "linux", "master", nil},
		{"arbiter wins over custom pools", []string{"worker", "infra", "arbiter"}, "linux", "arbiter", nil},
		{"two custom pools are an error", []string{"worker", "infra", "gpu"}, "linux", "", []string{"gpu", "infra"}},
		{"even for a master", []string{"master", "infra", "gpu"}, "linux", "", []string{"gpu", "infra"}},
		{"windows", []string{"worker"}, "windows", "", nil},
		{"no role", nil, "linux", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "n", Labels: map[string]string{osLabel: tc.os}}}
			for _, r := range tc.roles {
				n.Metadata.Labels["node-role.kubernetes.io/"+r] = ""
			}
			pool, disputed := newChooser(pools).poolOf(n)
			if pool != tc.want || !slices.Equal(disputed, tc.disputed) {
				t.Errorf("%q, disputed by %v", pool, disputed)
			}
			m := MembersOf("infra", pools, []*nodev1.Node{n}, epoch())
			if len(tc.disputed) > 0 &&
				(len(m.Disputed) != 1 || !strings.Contains(m.Disputed[0], "the pools gpu and infra select it")) {
				t.Errorf("members %+v", m)
			}
		})
	}
}

// statusOf returns the status that a pool gets.
func statusOf(v View) *configv1.MachineConfigPoolStatus {
	p, _ := Pool(v)
	return p.StatusAfter(v.Pool)
}

// nodeStep is what is decided about a node, in short.
type nodeStep struct {
	CreateDrain string // its reason
	DeleteDrain bool
	Order       Order
}

func stepOf(v NodeView) nodeStep {
	s := nodeStep{Order: order(v)}
	s.Order.From = "" // see TestAnOrderSaysForWhichConfigurationItIs
	for _, a := range Node(v).Do {
		switch a.Verb {
		case CreateDrain:
			s.CreateDrain = a.Drain.GetSpec().GetReason()
		case DeleteDrain:
			s.DeleteDrain = true
		}
	}
	return s
}

var osImage = "example.com/os@sha256:" + strings.Repeat("0", 64)

func TestOneStepOfANode(t *testing.T) {
	a, b := mc("a", "", ign(fileDoc("/etc/x", "1"))), mc("b", "", ign(fileDoc("/etc/x", "2")))
	harmless := mc("b", "", ign(fileDoc("/etc/x", "1")))
	impossible := mc("b", "", nil, func(s *configv1.MachineConfigSpec) { s.Fips = proto.Bool(true) })
	drain := func(phase string) *nodev1.Drain {
		return &nodev1.Drain{
			Metadata: &metav1.ObjectMeta{}, Spec: &nodev1.DrainSpec{NodeName: "n"},
			Status: &nodev1.DrainStatus{Phase: proto.String(phase)},
		}
	}
	another := drain("Succeeded")
	another.Spec.NodeName = "m"
	system := mc("b", "", nil, func(s *configv1.MachineConfigSpec) { s.OsImageUrl = osImage })
	staged := node("n", "a", "b", working)
	staged.Metadata.Annotations[StagedConfig] = "b"
	for _, tc := range []struct {
		name string
		view NodeView
		want nodeStep
	}{
		{
			"a first configuration",
			NodeView{Node: node("n", "", "b", working), Desired: b, Policy: defaults()},
			nodeStep{Order: Order{Config: b, Apply: true, Reboot: false}},
		},
		{
			"it has to be empty",
			NodeView{Node: node("n", "a", "b", working), Current: a, Desired: b, Policy: defaults()},
			nodeStep{CreateDrain: `configuration b: file "/etc/x" changed`, Order: Order{Config: b, Apply: false, Reboot: true}},
		},
		{
			"it is being drained",
			NodeView{Node: node("n", "a", "b", working), Drain: drain("Draining"), Current: a, Desired: b, Policy: defaults()},
			nodeStep{Order: Order{Config: b, Apply: false, Reboot: true}},
		},
		{
			"it is drained",
			NodeView{
				Node: cordoned(node("n", "a", "b", working)), Drain: drain("Succeeded"), Current: a, Desired: b,
				Policy: defaults(),
			},
			nodeStep{Order: Order{Config: b, Apply: true, Reboot: true}},
		},
		{
			"its drain was lifted, which is not known yet",
			NodeView{Node: node("n", "a", "b", working), Drain: drain("Succeeded"), Current: a, Desired: b, Policy: defaults()},
			nodeStep{Order: Order{Config: b, Apply: false, Reboot: true}},
		},
		{
			"another node is drained under its name",
			NodeView{Node: cordoned(node("n", "a", "b", working)), Drain: another, Current: a, Desired: b, Policy: defaults()},
			nodeStep{Order: Order{Config: b, Apply: false, Reboot: true}},
		},
		{
			"it failed and is still drained",
			NodeView{
				Node: cordoned(node("n", "a", "b", degraded)), Drain: drain("Succeeded"), Current: a, Desired: b,
				Policy: defaults(),
			},
			nodeStep{Order: Order{Config: b, Apply: true, Reboot: true}},
		},
		{
			"nothing of weight differs",
			NodeView{Node: node("n", "a", "b", working), Current: a, Desired: harmless, Policy: defaults()},
			nodeStep{Order: Order{Config: harmless, Apply: true, Reboot: false}},
		},
		{
			"it restarts",
			NodeView{
				Node: cordoned(lost(node("n", "a", "b", rebooting))), Drain: drain("Succeeded"), Current: a, Desired: b,
				Policy: defaults(),
			},
			nodeStep{Order: Order{Config: b, Apply: true, Reboot: true}},
		},
		{
			"it is done but not back",
			NodeView{
				Node: lost(node("n", "b", "b", stateDone)), Drain: drain("Succeeded"), Current: b, Desired: b,
				Policy: defaults(),
			},
			nodeStep{Order: Order{Config: b, Apply: true, Reboot: false}},
		},
		{
			"it is back",
			NodeView{
				Node: node("n", "b", "b", stateDone), Drain: drain("Succeeded"), Current: b, Desired: b,
				Policy: defaults(),
			},
			nodeStep{DeleteDrain: true, Order: Order{Config: b, Apply: true, Reboot: false}},
		},
		{
			"it goes back to what it has",
			NodeView{Node: node("n", "a", "a", working), Drain: drain("Succeeded"), Current: a, Desired: a, Policy: defaults()},
			nodeStep{Order: Order{Config: a, Apply: true, Reboot: false}},
		},
		{
			"what it has is not known",
			NodeView{Node: node("n", "lost", "b", working), Desired: b, Policy: defaults()},
			nodeStep{
				CreateDrain: "configuration b: what lost held is not known any more",
				Order:       Order{Config: b, Apply: false, Reboot: true},
			},
		},
		{
			"it came from another pool and can never have its target",
			NodeView{Node: node("n", "a", "b", working), Current: a, Desired: impossible, Policy: defaults()},
			nodeStep{Order: Order{Config: impossible, Apply: false, Reboot: true}},
		},
		{
			"its operating system is not there yet",
			NodeView{Node: node("n", "a", "b", working), Current: a, Desired: system, Policy: defaults()},
			nodeStep{Order: Order{Config: system, Apply: false, Reboot: true}},
		},
		{
			"its operating system is ready to boot",
			NodeView{Node: staged, Current: a, Desired: system, Policy: defaults()},
			nodeStep{
				CreateDrain: "configuration b: osImageURL changed", Order: Order{Config: system, Apply: false, Reboot: true},
			},
		},
		{
			"a first configuration with an operating system",
			NodeView{Node: node("n", "", "b", working), Desired: system, Policy: defaults()},
			nodeStep{Order: Order{Config: system, Apply: false, Reboot: true}},
		},
		{
			"what it has is not known, and its agent may have the operating system",
			NodeView{Node: node("n", "lost", "b", working), Desired: system, Policy: defaults()},
			nodeStep{
				CreateDrain: "configuration b: what lost held is not known any more",
				Order:       Order{Config: system, Apply: false, Reboot: true},
			},
		},
		{"its target is not known", NodeView{Node: node("n", "a", "b", working), Current: a, Policy: defaults()}, nodeStep{}},
		{"it is gone", NodeView{Drain: drain("Draining"), Policy: defaults()}, nodeStep{DeleteDrain: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := stepOf(tc.view); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("Node = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestANodeThatCannotHaveItsTargetSaysWhy(t *testing.T) {
	target := mc("b", "", nil, func(s *configv1.MachineConfigSpec) { s.Fips = proto.Bool(true) })
	p := Node(NodeView{Node: node("n", "a", "b", working), Current: mc("a", "", nil), Desired: target, Policy: defaults()})
	want := "b cannot be put in force: spec.fips: cannot be changed once a machine has its configuration"
	if p.WaitsFor != want || len(p.Do) > 0 {
		t.Errorf("Node = %+v, want %q", p, want)
	}
}

// A first configuration disturbs no pod, unless it restarts the machine.
func TestAFirstConfigurationThatRestartsTakesItsTurn(t *testing.T) {
	system := mc("b", "", nil, func(s *configv1.MachineConfigSpec) { s.OsImageUrl = osImage })
	next := func(config *configv1.MachineConfig, paused bool, first ...string) []string {
		pool := target(poolOf("worker", "worker"), "b", nil)
		pool.Spec.Paused = &paused
		v := View{Now: epoch(), Pool: pool, Target: config}
		for i := range 5 {
			marks := []string{""}
			if i == 0 && len(first) > 0 {
				marks = first
			}
			v.Members.Nodes = append(v.Members.Nodes, node(fmt.Sprint("n", i), marks...))
		}
		_, r := Pool(v)
		return r.Next
	}
	for _, tc := range []struct {
		name   string
		target *configv1.MachineConfig
		paused bool
		first  []string
		want   int
	}{
		{"without an operating system", mc("b", "", nil), false, nil, 5},
		{"without one, and paused", mc("b", "", nil), true, nil, 5},
		{"with one", system, false, nil, 1},
		{"with one, and paused", system, true, nil, 0},
		{"with one, and a node is under way", system, false, []string{"", "b", working}, 0},
		{"with one, and a node has it", system, false, []string{"b", "b", stateDone}, 1},
		{"with one, and a node has an older target", system, false, []string{"", "a", working}, 1},
	} {
		if got := next(tc.target, tc.paused, tc.first...); len(got) != tc.want {
			t.Errorf("%s: %v begin, want %d", tc.name, got, tc.want)
		}
	}
}

// The target of a node that is drained was replaced by one whose system is not there: it serves again.
func TestANodeIsNotHeldForASystemThatIsNotThere(t *testing.T) {
	target := mc("c", "", nil, func(s *configv1.MachineConfigSpec) { s.OsImageUrl = osImage })
	drain := &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{}, Spec: &nodev1.DrainSpec{NodeName: "n"},
		Status: &nodev1.DrainStatus{Phase: proto.String("Succeeded")},
	}
	n := cordoned(node("n", "a", "c", degraded))
	v := NodeView{Node: n, Drain: drain, Current: mc("a", "", nil), Desired: target, Policy: defaults()}
	if s := stepOf(v); !s.DeleteDrain || s.Order.Apply {
		t.Errorf("step %+v", s)
	}
	n.Metadata.Annotations[StagedConfig] = "c"
	if s := stepOf(v); s.DeleteDrain || !s.Order.Apply {
		t.Errorf("with the system: step %+v", s)
	}
	for name, marks := range map[string]map[string]string{
		"its agent may apply the former target":       {State: working},
		"it restarts":                                 {State: rebooting, EndingBoot: "boot-1"},
		"it restarts for a target that was replaced":  {State: working, EndingBoot: "boot-1"},
		"it failed, and restarts for a former target": {State: degraded, EndingBoot: "boot-1"},
	} {
		n.Metadata.Annotations[StagedConfig], n.Metadata.Annotations[EndingBoot] = "", ""
		maps.Copy(n.Metadata.Annotations, marks)
		if s := stepOf(v); s.DeleteDrain || s.Order.Apply {
			t.Errorf("%s: step %+v", name, s)
		}
	}
}

func TestANodeSaysThatItsOperatingSystemIsNotThereYet(t *testing.T) {
	target := mc("b", "", nil, func(s *configv1.MachineConfigSpec) { s.OsImageUrl = osImage })
	n := node("n", "a", "b", degraded)
	n.Metadata.Annotations[Reason] = "no registry has it"
	p := Node(NodeView{Node: n, Current: mc("a", "", nil), Desired: target, Policy: defaults()})
	want := "its agent to have " + osImage + " of b ready to boot, which says: no registry has it"
	if p.WaitsFor != want || len(p.Do) > 0 {
		t.Errorf("Node = %+v, want %q", p, want)
	}
}

// A host is emptied only for what its files admit: its agent compares them first.
func TestAHostIsNotEmptiedForWhatItsFilesDoNotAdmit(t *testing.T) {
	n := node("n", "a", "b", unreconcilable)
	n.Metadata.Labels = map[string]string{nodeid.FilesLabel: nodeid.HostFiles}
	n.Metadata.Annotations[Reason] = "the host has another file"
	v := NodeView{
		Node: n, Current: mc("a", "", ign(fileDoc("/etc/x", "1"))), Desired: mc("b", "", ign(fileDoc("/etc/x", "2"))),
		Policy: defaults(),
	}
	p := Node(v)
	want := "its agent to compare b with the files of its host, which says: the host has another file"
	if p.WaitsFor != want || len(p.Do) > 0 {
		t.Errorf("Node = %+v, want %q", p, want)
	}
	n.Metadata.Annotations[State], n.Metadata.Annotations[StagedConfig] = working, "b"
	if s := stepOf(v); s.CreateDrain == "" {
		t.Errorf("once it is admitted: step %+v", s)
	}
	delete(n.Metadata.Labels, nodeid.FilesLabel)
	n.Metadata.Annotations[StagedConfig] = ""
	if s := stepOf(v); s.CreateDrain == "" {
		t.Errorf("a machine with a directory of its own: step %+v", s)
	}
}

// A first configuration may cut a host off: hosts get it one after the other.
func TestHostsGetAFirstConfigurationOneAfterTheOther(t *testing.T) {
	target := mc("rendered-worker-1", "", ign(fileDoc("/etc/x", "1")))
	var nodes []*nodev1.Node
	for _, name := range []string{"n1", "n2", "n3"} {
		n := node(name, "", "", "")
		n.Metadata.Labels = map[string]string{nodeid.FilesLabel: nodeid.HostFiles}
		nodes = append(nodes, n)
	}
	v := View{
		Pool: &configv1.MachineConfigPool{
			Metadata: &metav1.ObjectMeta{Name: "worker"},
			Spec: &configv1.MachineConfigPoolSpec{
				Configuration: &configv1.MachineConfigPoolConfiguration{Name: "rendered-worker-1"},
			},
		},
		Target: target, Members: Members{Nodes: nodes}, Now: time.Unix(0, 0),
	}
	if _, r := rollOut(v); len(r.Next) != 1 {
		t.Errorf("next are %v", r.Next)
	}
	for _, n := range nodes {
		n.Metadata.Labels = nil
	}
	if _, r := rollOut(v); len(r.Next) != 3 {
		t.Errorf("of machines with directories of their own next are %v", r.Next)
	}
}

func TestTheConfigurationsThatAPoolIsComparedWith(t *testing.T) {
	for _, tc := range []struct {
		name       string
		have, want []string
	}{
		{"no node has one", []string{"", ""}, nil},
		{
			"of its own",
			[]string{"rendered-infra-2", "", "rendered-infra-1", "rendered-infra-2"},
			[]string{"rendered-infra-1", "rendered-infra-2"},
		},
		{
			"a node came from another pool",
			[]string{"rendered-infra-1", "rendered-worker-1", "rendered-infra-x-1"},
			[]string{"rendered-infra-1"},
		},
		{"all nodes came from another pool", []string{"rendered-worker-1", ""}, []string{"rendered-worker-1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var nodes []*nodev1.Node
			for i, name := range tc.have {
				nodes = append(nodes, node(fmt.Sprint(i), name))
			}
			if diff := cmp.Diff(tc.want, Present("infra", nodes)); diff != "" {
				t.Errorf("Present (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatAReportChanges(t *testing.T) {
	ending := node("n", "a", "b", rebooting)
	ending.Metadata.Annotations[EndingBoot] = "boot-1"
	for _, tc := range []struct {
		name   string
		node   *nodev1.Node
		report *configv1.ReportConfigRequest
		want   Marks
	}{
		{"nothing new", node("n", "b", "b", stateDone), &configv1.ReportConfigRequest{
			CurrentConfig: "b", DesiredConfig: "b",
			State: stateDone, BootId: "boot-1",
		}, Marks{}},
		{"its operating system is ready", node("n", "a", "b", working), &configv1.ReportConfigRequest{
			CurrentConfig: "a", DesiredConfig: "b", State: working, StagedConfig: "b",
		}, Marks{StagedConfig: "b"}},
		{"it is done", node("n", "a", "b", working), &configv1.ReportConfigRequest{
			CurrentConfig: "b", DesiredConfig: "b",
			State: stateDone,
		}, Marks{CurrentConfig: "b", State: stateDone}},
		{"it restarts", node("n", "a", "b", working), &configv1.ReportConfigRequest{
			CurrentConfig: "a", DesiredConfig: "b",
			State: rebooting, BootId: "boot-1",
		}, Marks{State: rebooting, EndingBoot: "boot-1"}},
		{"it says done without a restart", ending, &configv1.ReportConfigRequest{
			CurrentConfig: "b", DesiredConfig: "b",
			State: stateDone, BootId: "boot-1",
		}, Marks{Reason: "the machine has not been restarted yet"}},
		{"it is back", ending, &configv1.ReportConfigRequest{
			CurrentConfig: "b", DesiredConfig: "b", State: stateDone,
			BootId: "boot-2",
		}, Marks{CurrentConfig: "b", State: stateDone, EndingBoot: ""}},
		{"it failed", node("n", "a", "b", working), &configv1.ReportConfigRequest{
			CurrentConfig: "a", DesiredConfig: "b",
			State: degraded, Reason: "no",
		}, Marks{State: degraded, Reason: "no"}},
		{"it cannot read what it has", node("n", "a", "a", stateDone), &configv1.ReportConfigRequest{
			State: degraded, Reason: "current.json: unexpected end",
		}, Marks{State: degraded, Reason: "current.json: unexpected end"}},
		{"it failed on a target that it has no longer", node("n", "a", "c", working), &configv1.ReportConfigRequest{
			CurrentConfig: "a", DesiredConfig: "b", State: degraded, Reason: "no",
		}, Marks{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Reported(tc.node, tc.report)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// fleet rolls a pool by the plan alone: nodes are drained, restarted and lost as a test says.
type fleet struct {
	pool  *configv1.MachineConfigPool
	nodes []*nodev1.Node
}

func (f *fleet) view() View {
	return View{Now: epoch(), Pool: f.pool, Members: Members{Nodes: f.nodes}}
}

// begin does what the plan says and returns the nodes that begin.
func (f *fleet) begin(now ...time.Time) []string {
	v := f.view()
	for _, at := range now {
		v.Now = at
	}
	_, r := Pool(v)
	next := r.Next
	for _, n := range f.nodes {
		if slices.Contains(next, n.GetMetadata().GetName()) {
			for k, v := range Target(f.pool.GetSpec().GetConfiguration().GetName()) {
				n.Metadata.Annotations[k] = v
			}
			if mark(n, CurrentConfig) != mark(n, DesiredConfig) {
				cordoned(n)
			}
		}
	}
	return next
}

func (f *fleet) finish(name string) {
	for _, n := range f.nodes {
		if n.GetMetadata().GetName() == name {
			n.Metadata.Annotations[CurrentConfig] = n.Metadata.Annotations[DesiredConfig]
			n.Metadata.Annotations[State] = stateDone
			n.Spec.Unschedulable = nil
		}
	}
}

// The example of the documents: five nodes, three of which may be unavailable.
func TestTheDocumentsExampleOfFiveNodes(t *testing.T) {
	f := &fleet{pool: target(poolOf("worker", "worker"), "b", 3)}
	for i := range 5 {
		f.nodes = append(f.nodes, placed(node(fmt.Sprintf("node-%d", i+1), "a", "a", stateDone), "",
			time.Duration(10-i)*time.Hour))
	}
	var log []string
	step := func(finished string) {
		if finished != "" {
			f.finish(finished)
		}
		log = append(log, fmt.Sprintf("%s: %s", finished, strings.Join(f.begin(), " ")))
	}
	for _, done := range []string{"", "node-2", "node-1", "node-3", "node-5", "node-4"} {
		step(done)
	}
	want := []string{": node-1 node-2 node-3", "node-2: node-4", "node-1: node-5", "node-3: ", "node-5: ", "node-4: "}
	if diff := cmp.Diff(want, log); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if st := statusOf(f.view()); condMessage(st,
		ConditionUpdated) != "True: : All nodes are updated with MachineConfig b" {
		t.Errorf("status %v", st)
	}
}

// Whatever happens to nodes, targets and the limit, no node that serves is taken while as many as may be are away, and
// no more begin than may change at once.
func TestNeverMoreThanMaxUnavailableByOurDoing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := 0
		limit := func() any {
			most = rapid.IntRange(1, 4).Draw(t, "maxUnavailable")
			return most
		}
		f := &fleet{pool: target(poolOf("worker", "worker"), "t0", limit())}
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			f.nodes = append(f.nodes, node(fmt.Sprintf("n%d", i), "t0", "t0", stateDone))
		}
		events := []string{"finish", "finish", "fail", "fail", "serve", "lose", "return", "target", "drift", "limit"}
		for range 40 {
			n := f.nodes[rapid.IntRange(0, len(f.nodes)-1).Draw(t, "node")]
			switch rapid.SampledFrom(events).Draw(t, "event") {
			case "finish":
				f.finish(n.GetMetadata().GetName())
			case "fail":
				if rolling(n) {
					n.Metadata.Annotations[State] = degraded
				}
			case "serve": // it failed, or has not been drained yet, and its pods run
				n.Spec.Unschedulable = nil
			case "lose":
				lost(n)
			case "return":
				n.Status.Conditions[0].Status = "True"
			case "target":
				target(f.pool, fmt.Sprintf("t%d", rapid.IntRange(0, 2).Draw(t, "target")), nil)
			case "drift":
				if done(n) {
					n.Metadata.Annotations[State] = degraded
				}
			case "limit":
				target(f.pool, f.pool.GetSpec().GetConfiguration().GetName(), limit())
			}
			count := func(is func(*nodev1.Node) bool) (n int) {
				for _, o := range f.nodes {
					if is(o) {
						n++
					}
				}
				return n
			}
			away := func(o *nodev1.Node) bool { return !ready(o) }
			// A node that failed and serves is at rest; one that goes back to what it has is not disturbed.
			underWay := func(o *nodev1.Node) bool {
				return rolling(o) && mark(o, CurrentConfig) != mark(o, DesiredConfig) && !(failed(o) && ready(o))
			}
			wasAway, wasUnder := count(away), count(underWay)
			f.begin()
			if is := count(away); is > wasAway && is > most {
				t.Fatalf("%d nodes were away, now %d: more than %d", wasAway, is, most)
			}
			if is := count(underWay); is > wasUnder && is > most {
				t.Fatalf("%d nodes were under way, now %d: more than %d", wasUnder, is, most)
			}
		}
		// And it comes to an end.
		for _, n := range f.nodes {
			n.Status.Conditions[0].Status = "True"
		}
		for range 3 * len(f.nodes) {
			f.begin()
			for _, n := range f.nodes {
				f.finish(n.GetMetadata().GetName())
			}
		}
		for _, n := range f.nodes {
			if !done(n) || mark(n, DesiredConfig) != f.pool.GetSpec().GetConfiguration().GetName() {
				t.Fatalf("node %v is never updated", n)
			}
		}
	})
}
