package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// after returns an event; what is one of the messages of its oneof.
func after(d time.Duration, e *schedulingv1.EvictionEvent) *schedulingv1.EvictionEvent {
	e.After = durationpb.New(d)
	return e
}

func silentAt(d time.Duration, node string) *schedulingv1.EvictionEvent {
	return after(d, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_NodeSilent{NodeSilent: node}})
}

func heardAt(d time.Duration, node string) *schedulingv1.EvictionEvent {
	return after(d, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_NodeHeard{NodeHeard: node}})
}

func taintedAt(d time.Duration, node, key string) *schedulingv1.EvictionEvent {
	return after(d, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_TaintAdded{
		TaintAdded: &schedulingv1.EvictionEvent_NodeTaint{Node: node, Taint: taint(key, "NoExecute")},
	}})
}

func untaintedAt(d time.Duration, node, key string) *schedulingv1.EvictionEvent {
	return after(d, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_TaintRemoved{
		TaintRemoved: &schedulingv1.EvictionEvent_NodeTaint{Node: node, Taint: taint(key, "NoExecute")},
	}})
}

func clockSetAt(d, by time.Duration) *schedulingv1.EvictionEvent {
	return after(d, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_ClockSet{ClockSet: durationpb.New(by)}})
}

func boundIn(d time.Duration, pod *schedulingv1.Pod) *schedulingv1.EvictionEvent {
	return after(d, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_PodBound{PodBound: pod}})
}

func on(node string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Spec.NodeName = node }
}

// courseOf plays a course to its end and returns its steps, each as "seconds action object".
func courseOf(t *testing.T, g Given, span time.Duration, events ...*schedulingv1.EvictionEvent) (*Course, []string) {
	t.Helper()
	g.Now, g.Grace, g.Pause = now(), grace, 10*time.Second
	if g.Memory == nil {
		g.Memory = NewMemory()
	}
	c := NewCourse(g, events, span)
	for more := true; more; {
		var fault *Fault
		if more, fault = c.Next(); fault != nil {
			t.Fatalf("%+v", fault)
		}
	}
	if len(c.Steps) >= mostSteps || c.work >= mostWork {
		t.Errorf("%d steps, work %d", len(c.Steps), c.work)
	}
	var got []string
	for _, s := range c.Steps {
		text := fmt.Sprintf("%v %s %s", s.After.Round(100*time.Millisecond), s.Action, s.Node)
		if s.Pod != nil {
			text = fmt.Sprintf("%v %s %s", s.After.Round(100*time.Millisecond), s.Action, s.Pod.GetMetadata().GetName())
		} else if s.Value != "" {
			text += " " + s.Value
		}
		got = append(got, text)
	}
	return c, got
}

func TestCourse(t *testing.T) {
	zone := []*nodev1.Node{inZone("a", 0), inZone("b", 0), inZone("c", 0), inZone("d", 0)}
	clock := Clock{Boot: "boot", Uptime: time.Hour}
	for _, tc := range []struct {
		name   string
		given  Given
		events []*schedulingv1.EvictionEvent
		span   time.Duration
		want   string
	}{
		{"nothing happens", Given{Nodes: zone}, nil, time.Hour, ``},
		{
			"pods leave at a taint, or when the seconds of their toleration have passed",
			Given{Nodes: zone, Pods: []*schedulingv1.Pod{
				newPod("p"), newPod("tolerates", tolerating("k", 30)), newPod("for-ever", tolerating("k", -1)),
				newPod("on-b", on("b")),
			}},
			[]*schedulingv1.EvictionEvent{taintedAt(5*time.Second, "a", "k")},
			time.Minute,
			`5s DeletePod p
			35s DeletePod tolerates`,
		},
		{
			"a taint that is removed in time evicts no pod",
			Given{Nodes: zone, Pods: []*schedulingv1.Pod{newPod("tolerates", tolerating("k", 30))}},
			[]*schedulingv1.EvictionEvent{untaintedAt(34*time.Second, "a", "k"), taintedAt(5*time.Second, "a", "k")},
			time.Minute,
			``,
		},
		{
			"the seconds of a pod that is bound later count from its binding",
			Given{Nodes: zone, Clock: clock},
			[]*schedulingv1.EvictionEvent{
				taintedAt(0, "a", "k"), boundIn(20*time.Second, newPod("late", tolerating("k", 30))),
			},
			time.Minute,
			`51s DeletePod late`, // the times in pods are rounded to seconds
		},
		{
			"a wall clock that is set forward evicts no pod early",
			Given{Nodes: zone, Pods: []*schedulingv1.Pod{newPod("p", tolerating("k", 30))}, Clock: clock},
			[]*schedulingv1.EvictionEvent{taintedAt(0, "a", "k"), clockSetAt(10*time.Second, time.Hour)},
			time.Minute,
			`30s DeletePod p`,
		},
		{
			"without a monotonic clock the wall clock counts",
			Given{Nodes: zone, Pods: []*schedulingv1.Pod{newPod("p", tolerating("k", 30))}},
			[]*schedulingv1.EvictionEvent{
				taintedAt(0, "a", "k"), clockSetAt(10*time.Second, time.Hour), heardAt(11*time.Second, "a"),
			},
			time.Minute,
			`11s DeletePod p`,
		},
		{
			"two silent nodes are tainted one after the other",
			Given{Nodes: zone, Pods: []*schedulingv1.Pod{newPod("on-a"), newPod("on-b", on("b"))}},
			[]*schedulingv1.EvictionEvent{silentAt(0, "a"), silentAt(time.Second, "b")},
			time.Minute,
			`40s ChangeReady a Unknown
			40s AddTaint a node.kubernetes.io/unreachable:NoSchedule
			40s AddTaint a node.kubernetes.io/unreachable:NoExecute
			40s DeletePod on-a
			41s ChangeReady b Unknown
			41s AddTaint b node.kubernetes.io/unreachable:NoSchedule
			50s AddTaint b node.kubernetes.io/unreachable:NoExecute
			50s DeletePod on-b`,
		},
		{
			"most nodes of a zone are silent: no pod leaves until one sends heartbeats again",
			Given{Nodes: zone, Pods: []*schedulingv1.Pod{newPod("on-a"), newPod("on-b", on("b")), newPod("on-c", on("c"))}},
			[]*schedulingv1.EvictionEvent{
				silentAt(0, "a"), silentAt(0, "b"), silentAt(0, "c"), heardAt(95*time.Second, "c"),
			},
			104 * time.Second,
			`40s ChangeZone a PartialDisruption
			40s ChangeReady a Unknown
			40s AddTaint a node.kubernetes.io/unreachable:NoSchedule
			40s ChangeReady b Unknown
			40s AddTaint b node.kubernetes.io/unreachable:NoSchedule
			40s ChangeReady c Unknown
			40s AddTaint c node.kubernetes.io/unreachable:NoSchedule
			1m35s ChangeZone c Normal
			1m35s ChangeReady c True
			1m35s RemoveTaint c node.kubernetes.io/unreachable:NoSchedule
			1m35s AddTaint a node.kubernetes.io/unreachable:NoExecute
			1m35s DeletePod on-a`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, got := courseOf(t, tc.given, tc.span, tc.events...)
			want := strings.ReplaceAll(tc.want, "\t", "")
			if strings.Join(got, "\n") != want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
			}
		})
	}
}

// A course of all nodes that fall silent ends the disruption when one sends heartbeats again, and the others get their
// grace again.
func TestACourseOfADisruption(t *testing.T) {
	g := Given{Nodes: []*nodev1.Node{inZone("a", 0), inZone("b", 0)}, Pods: []*schedulingv1.Pod{newPod("on-a")}}
	_, got := courseOf(t, g, 5*time.Minute, silentAt(0, "a"), silentAt(0, "b"), heardAt(2*time.Minute, "b"))
	text := strings.Join(got, "\n")
	if !strings.Contains(text, "BeginDisruption") || !strings.Contains(text, "2m0s EndDisruption") ||
		!strings.Contains(text, "2m40s DeletePod on-a") {
		t.Errorf("steps:\n%s", text)
	}
}

// Nodes that are created and deleted count for the states of their zones while they exist.
func TestACourseOfNodesThatComeAndGo(t *testing.T) {
	g := Given{Nodes: []*nodev1.Node{inZone("a", 0), inZone("b", 0), inZone("c", 0), inZone("d", 0)}}
	created := after(time.Second, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_NodeCreated{
		NodeCreated: inZone("e", 0),
	}})
	deleted := func(node string) *schedulingv1.EvictionEvent {
		return after(2*time.Second, &schedulingv1.EvictionEvent{
			What: &schedulingv1.EvictionEvent_NodeDeleted{NodeDeleted: node},
		})
	}
	c, got := courseOf(t, g, time.Minute, silentAt(0, "a"), silentAt(0, "b"), created, silentAt(time.Second, "e"),
		deleted("c"))
	text := strings.Join(got, "\n")
	if !strings.Contains(text, "41s ChangeZone e PartialDisruption") || len(c.witnesses) != 4 { // three of a, b, d, e
		t.Errorf("%d nodes, steps:\n%s", len(c.witnesses), text)
	}
	c, got = courseOf(t, g, time.Minute, silentAt(0, "a"), silentAt(0, "b"), created, deleted("a"), deleted("d"))
	text = strings.Join(got, "\n")
	if strings.Contains(text, "ChangeZone") || strings.Contains(text, " a ") || len(c.witnesses) != 3 {
		t.Errorf("%d nodes, steps:\n%s", len(c.witnesses), text)
	}
}

func TestEventsThatCannotHappen(t *testing.T) {
	for want, e := range map[string]*schedulingv1.EvictionEvent{
		"nodeSilent":             silentAt(0, "x"),
		"taintAdded.node":        taintedAt(0, "x", "k"),
		"podBound.spec.nodeName": boundIn(0, newPod("p", on("x"))),
		"podGone": after(0, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_PodGone{
			PodGone: &schedulingv1.EvictionEvent_PodName{Name: "p"},
		}}),
		"nodeCreated.metadata.name": after(0, &schedulingv1.EvictionEvent{What: &schedulingv1.EvictionEvent_NodeCreated{
			NodeCreated: &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "a"}},
		}}),
	} {
		c := NewCourse(Given{
			Now: now(), Grace: grace, Pause: time.Second, Nodes: []*nodev1.Node{inZone("a", 0)}, Memory: NewMemory(),
		}, []*schedulingv1.EvictionEvent{heardAt(0, "a"), e}, 0)
		var fault *Fault
		for more := true; more; {
			more, fault = c.Next()
		}
		if fault == nil || fault.Place != 1 || fault.Field != want || fault.Text == "" {
			t.Errorf("%s: %+v", want, fault)
		}
	}
}

func TestTaintChanges(t *testing.T) {
	view := func(n *nodev1.Node) NodeView {
		return NodeView{Now: now(), Node: n, Reachability: Reachability{Grace: grace, Given: true}}
	}
	pressure := &nodev1.NodeCondition{Type: "DiskPressure", Status: "True"}
	for _, tc := range []struct {
		name string
		node *nodev1.Node
		want string
	}{
		{"none", newNode(), ""},
		{
			"taints of others stay", newNode(tainted(since("k", 0))),
			"Keep k:NoExecute: users and other services set and remove it",
		},
		{
			"one follows each condition", newNode(observed(readyUnknown(), pressure)),
			`Add node.kubernetes.io/unreachable:NoSchedule: its Ready condition is Unknown
			Add node.kubernetes.io/unreachable:NoExecute: its Ready condition is Unknown, so its pods have to leave
			Add node.kubernetes.io/disk-pressure:NoSchedule: the node has the condition DiskPressure`,
		},
		{
			"a cordon", newNode(annotated(CordonedBy, "ann")),
			`Add node.kubernetes.io/unschedulable:NoSchedule: the node is unschedulable because of user "ann"`,
		},
		{
			"those that nothing is left of go",
			newNode(observed(readyTrue()), tainted(taint("node.kubernetes.io/unreachable", "NoSchedule"),
				taint("node.kubernetes.io/unschedulable", "NoSchedule"), taint("node.kubernetes.io/memory-pressure",
					"NoSchedule"))),
			`Remove node.kubernetes.io/unreachable:NoSchedule: its Ready condition is True
			Remove node.kubernetes.io/unschedulable:NoSchedule: no cordon and no drain holds the node
			Remove node.kubernetes.io/memory-pressure:NoSchedule: the node no longer has the condition MemoryPressure`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			v := view(tc.node)
			for _, c := range TaintChanges(v, Node(v)) {
				reason, _, _ := strings.Cut(c.Reason, " (")
				if _, rest, ok := strings.Cut(c.Reason, ")"); ok {
					reason += rest
				}
				got = append(got, fmt.Sprintf("%s %s: %s", c.Change, TaintText(c.Taint), reason))
			}
			if want := strings.ReplaceAll(tc.want, "\t", ""); strings.Join(got, "\n") != want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
			}
		})
	}
}

// A course ends within its limit of work whatever the times and numbers of what is given.
func TestACourseEnds(t *testing.T) {
	fleet := []*nodev1.Node{inZone("a", 0), inZone("b", 0), inZone("c", 0), inZone("d", 0)}
	for _, tc := range []struct {
		name   string
		given  func() Given
		events []*schedulingv1.EvictionEvent
		span   time.Duration
		want   string // a step; empty means that there is none
		most   int    // calls of Next
	}{
		{"a node waits for a turn of the year 9999", func() Given {
			g := Given{Nodes: fleet, Memory: NewMemory()}
			g.Memory.turns[Zone(fleet[0])] = Turn{Node: "d", At: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
			return g
		}, []*schedulingv1.EvictionEvent{silentAt(time.Second, "a")}, time.Hour, "41s ChangeReady a Unknown", 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := tc.given()
			g.Now, g.Grace, g.Pause = now(), grace, 10*time.Second
			c := NewCourse(g, tc.events, tc.span)
			for more, calls := true, 0; more; calls++ {
				if more, _ = c.Next(); calls > tc.most {
					t.Fatalf("it goes on after %d calls, at %v, with work %d of %d", calls, c.elapsed, c.work, mostWork)
				}
			}
			has := slices.ContainsFunc(c.Steps, func(s Step) bool {
				return fmt.Sprintf("%v %s %s %s", s.After, s.Action, s.Node, s.Value) == tc.want
			})
			if !has {
				t.Errorf("no step %q in %v", tc.want, c.Steps)
			}
		})
	}
}

// Each decision reads all pods of its node, which takes most of the time if there are many.
func TestThePodsOfANodeCountAsWork(t *testing.T) {
	const pods = 2000
	g := Given{Now: now(), Grace: grace, Nodes: []*nodev1.Node{inZone("a", 0)}, Memory: NewMemory()}
	for i := range pods {
		g.Pods = append(g.Pods, newPod(fmt.Sprint("p", i), tolerating("k", int32(i+1))))
	}
	c := NewCourse(g, []*schedulingv1.EvictionEvent{taintedAt(0, "a", "k")}, time.Hour)
	for len(c.Steps) < 20 {
		if more, _ := c.Next(); !more {
			t.Fatalf("it ended after %v", c.Steps)
		}
	}
	if least := 2 * 19 * (pods - 20) * decided; c.work < least {
		t.Errorf("the work of %d steps is %d, want %d or more", len(c.Steps), c.work, least)
	}
}

func TestTheClockIsNotSetWithoutLimit(t *testing.T) {
	for _, by := range [][]time.Duration{{math.MaxInt64}, {math.MinInt64}, {mostSet, mostSet}, {-mostSet, -time.Second}} {
		var events []*schedulingv1.EvictionEvent
		for _, d := range by {
			events = append(events, clockSetAt(0, d))
		}
		c := NewCourse(Given{Now: now(), Grace: grace, Memory: NewMemory()}, events, 0)
		if _, fault := c.Next(); fault == nil || fault.Field != "clockSet" || fault.Place != len(by)-1 {
			t.Errorf("set by %v: fault %+v", by, fault)
		}
	}
}
