package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
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
