package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	boot   = "boot"
	uptime = 10 * time.Hour
)

// observedAt records that the taints of a node were observed some time before the uptime.
func observedAt(id string, ago time.Duration) func(*nodev1.Node) {
	return func(n *nodev1.Node) {
		n.Status.Evictions = &nodev1.NodeEvictions{}
		for _, t := range n.GetSpec().GetTaints() {
			n.Status.Evictions.Observed = append(n.Status.Evictions.Observed, &nodev1.ObservedTaint{
				Key: t.GetKey(), TimeAdded: t.GetTimeAdded(), BootId: id, Uptime: durationpb.New(uptime - ago),
			})
		}
	}
}

// TestNoPodIsEvictedBeforeItsSecondsPassedOnTheMonotonicClock decides about a pod that bears a taint for 300 s, with
// the wall clock where each case has set it.
func TestNoPodIsEvictedBeforeItsSecondsPassedOnTheMonotonicClock(t *testing.T) {
	for _, tc := range []struct {
		name  string
		taint time.Duration // when the taint was set by the wall clock, relative to now
		node  func(*nodev1.Node)
		pod   []func(*schedulingv1.Pod)
		seen  time.Duration // how long ago the pod was observed to be bound; 0 means before this process led
		clock Clock
		want  time.Duration // when it is evicted, relative to now
	}{
		{
			name: "both clocks agree", taint: -100 * time.Second, node: observedAt(boot, 100*time.Second),
			clock: Clock{boot, uptime}, want: 200 * time.Second,
		},
		{
			name: "the wall clock was set forward by an hour", taint: -time.Hour - 100*time.Second,
			node: observedAt(boot, 100*time.Second), clock: Clock{boot, uptime}, want: 200 * time.Second,
		},
		{
			name: "the time has come on both", taint: -time.Hour, node: observedAt(boot, 300*time.Second),
			clock: Clock{boot, uptime}, want: 300*time.Second - time.Hour,
		},
		{
			name: "the wall clock was set back", taint: -10 * time.Second, node: observedAt(boot, time.Hour),
			clock: Clock{boot, uptime}, want: 290 * time.Second,
		},
		{
			name: "the leader is on another host, whose clock is ahead", taint: -time.Hour,
			node: observedAt("other", time.Hour), clock: Clock{boot, uptime}, want: 300 * time.Second,
		},
		{
			name: "nothing was observed yet", taint: -time.Hour, node: func(*nodev1.Node) {},
			clock: Clock{boot, uptime}, want: 300 * time.Second,
		},
		{
			name: "the pod was bound later", taint: -time.Hour, node: observedAt(boot, time.Hour), seen: 100 * time.Second,
			clock: Clock{boot, uptime}, want: 200 * time.Second,
		},
		{
			name: "it was bound later, before this process led", taint: -time.Hour, node: observedAt(boot, time.Hour),
			pod:   []func(*schedulingv1.Pod){boundAt(-100 * time.Second)},
			clock: Clock{boot, uptime}, want: 201 * time.Second,
		},
		{
			name: "there is no clock", taint: -time.Hour, node: observedAt(boot, time.Second),
			want: 300*time.Second - time.Hour,
		},
		{
			name: "the taint was set by a clock that was ahead", taint: time.Hour, node: observedAt(boot, 100*time.Second),
			clock: Clock{boot, uptime}, want: 200 * time.Second,
		},
		{
			name: "the same on another host", taint: time.Hour, node: observedAt("other", 100*time.Second),
			clock: Clock{boot, uptime}, want: 300 * time.Second,
		},
		{name: "the same without a clock", taint: time.Hour, node: func(*nodev1.Node) {}, want: 300 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := newPod("p", append(tc.pod, tolerating("k", 300))...)
			v := EvictionView{
				Now: now(), Node: newNode(tainted(since("k", tc.taint)), tc.node), Pods: []*schedulingv1.Pod{pod}, Clock: tc.clock,
			}
			if tc.seen > 0 {
				v.Seen = map[string]time.Duration{"uid-p": uptime - tc.seen}
			}
			e := Deadlines(v)[0]
			if got := e.At.Sub(now()); got != tc.want || (e.Verdict == Evict) != (tc.want <= 0) {
				t.Errorf("%s at %v, want %v", e.Verdict, got, tc.want)
			}
		})
	}
}

// TestATimeInTheFutureIsCorrected decides about a node with taints that were set by a clock that was ahead, and again
// when the clock shows that time: the correction stays.
func TestATimeInTheFutureIsCorrected(t *testing.T) {
	ours := placement.NotReadyTaint
	for _, tc := range []struct {
		name  string
		taint *nodev1.Taint
		node  func(*nodev1.Node)
		clock Clock
		want  time.Duration // when the taint was set, relative to now
	}{
		{"the past stays", since("k", -time.Hour), observedAt(boot, time.Minute), Clock{boot, uptime}, -time.Hour},
		{"the present stays", since("k", 0), observedAt(boot, time.Minute), Clock{boot, uptime}, 0},
		{"set when it was observed", since("k", time.Hour), observedAt(boot, time.Minute), Clock{boot, uptime}, -time.Minute},
		{"also one of ours", since(ours, time.Hour), observedAt(boot, time.Minute), Clock{boot, uptime}, -time.Minute},
		{"observed on another boot", since("k", time.Hour), observedAt("other", time.Minute), Clock{boot, uptime}, 0},
		{"not observed", since("k", time.Hour), func(*nodev1.Node) {}, Clock{boot, uptime}, 0},
		{"without a clock", since("k", time.Hour), func(*nodev1.Node) {}, Clock{}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := NodeView{
				Now: now(), Node: newNode(tainted(tc.taint), tc.node), Clock: tc.clock, Known: true,
				Reachability: Reachability{Grace: grace, Agent: Agent{Reported: true, NotReady: "disk is full"}},
			}
			view, before := v.Node, proto.CloneOf(v.Node)
			check := func(when string) {
				t.Helper()
				node := Node(v).NodeAfter(v.Node)
				i := slices.IndexFunc(node.Spec.Taints, func(t *nodev1.Taint) bool {
					return t.GetKey() == tc.taint.GetKey() && t.GetEffect() == placement.NoExecute
				})
				added := node.Spec.Taints[i].GetTimeAdded()
				if got := added.AsTime().Sub(now()); got != tc.want {
					t.Errorf("%s: set at %v, want %v", when, got, tc.want)
				}
				if o := observation(node, node.Spec.Taints[i], v.Clock); (o == nil) != (v.Clock.Boot == "") {
					t.Errorf("%s: observed %v", when, o)
				} else if o != nil && tc.want == -time.Minute && o.GetUptime().AsDuration() != uptime-time.Minute {
					t.Errorf("%s: observed at %v", when, o.GetUptime())
				}
				v.Node = node
			}
			check("first")
			if diff := cmp.Diff(before, view, protocmp.Transform()); diff != "" {
				t.Errorf("the view was modified:\n%s", diff)
			}
			v.Now = v.Now.Add(2 * time.Hour)
			if v.Clock.Boot != "" {
				v.Clock.Uptime += 2 * time.Hour
			}
			check("then")
		})
	}
}

func TestObserve(t *testing.T) {
	node := newNode(tainted(since("k", -time.Minute), since("l", 0), taint("m", "NoSchedule")),
		observedAt(boot, time.Minute))
	node.Status.Evictions.Observed = node.Status.Evictions.Observed[:1]
	first := node.Status
	Observe(node, Clock{boot, uptime})
	want := []*nodev1.ObservedTaint{
		{Key: "k", TimeAdded: at(-time.Minute), BootId: boot, Uptime: durationpb.New(uptime - time.Minute)},
		{Key: "l", TimeAdded: at(0), BootId: boot, Uptime: durationpb.New(uptime)},
	}
	if diff := cmp.Diff(want, node.Status.Evictions.Observed, protocmp.Transform()); diff != "" {
		t.Errorf("a taint is new (-want +got):\n%s", diff)
	}
	if len(first.Evictions.Observed) != 1 {
		t.Error("the status of before was modified")
	}
	Observe(node, Clock{"next", time.Minute})
	for _, o := range node.Status.Evictions.Observed {
		if o.GetBootId() != "next" || o.GetUptime().AsDuration() != time.Minute {
			t.Errorf("after a reboot: %v", o)
		}
	}
	node.Spec.Taints = nil
	if Observe(node, Clock{"next", time.Hour}); node.Status.Evictions != nil {
		t.Errorf("without a taint: %v", node.Status.Evictions)
	}
}
