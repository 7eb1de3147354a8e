package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func newPod(name string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			Namespace: "default", Name: name, Uid: "uid-" + name, ResourceVersion: "1",
			Annotations: map[string]string{},
		},
		Spec:   &schedulingv1.PodSpec{NodeName: "a"},
		Status: &schedulingv1.PodStatus{Phase: proto.String(placement.Running)},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// tolerating adds a toleration; below 0 seconds it has none, so that it tolerates the taint indefinitely.
func tolerating(key string, seconds int32) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		t := &schedulingv1.Toleration{Key: key, Operator: "Exists", Effect: placement.NoExecute}
		if seconds >= 0 {
			t.TolerationSeconds = proto.Int32(seconds)
		}
		p.Spec.Tolerations = append(p.Spec.Tolerations, t)
	}
}

// boundAt has a pod bound at a time relative to now.
func boundAt(d time.Duration) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, &schedulingv1.PodCondition{
			Type: placement.PodScheduled, Status: "True", LastTransitionTime: at(d),
		})
	}
}

func phase(phase string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Status.Phase = proto.String(phase) }
}

func terminating(p *schedulingv1.Pod) { p.Metadata.DeletionTimestamp = at(-time.Second) }

func mirror(p *schedulingv1.Pod) { p.Metadata.Annotations["kubernetes.io/config.mirror"] = "x" }

func TestEvictions(t *testing.T) {
	const unreachable, minute = placement.UnreachableTaint, time.Minute
	for _, tc := range []struct {
		name  string
		taint []*nodev1.Taint
		pod   *schedulingv1.Pod
		doubt time.Duration
		want  string
	}{
		{"a pod stays on a node without taints", nil, newPod("p"), 0, "Keep: the node has no NoExecute taint"},
		{
			"other effects evict no pod",
			[]*nodev1.Taint{taint("k", "NoSchedule")},
			newPod("p"), 0,
			"Keep: the node has no NoExecute taint",
		},
		{
			"a taint that is not tolerated evicts at once",
			[]*nodev1.Taint{since("k", -minute)},
			newPod("p"), 0,
			"Evict -1m0s: it does not tolerate the taint k:NoExecute",
		},
		{
			"a taint that is tolerated indefinitely evicts no pod",
			[]*nodev1.Taint{since("k", -minute)},
			newPod("p", tolerating("k", -1)), 0, "Keep: it tolerates every NoExecute taint indefinitely",
		},
		{
			"a toleration with Exists alone keeps a pod on a node with any taints",
			[]*nodev1.Taint{since("k", -minute), since(unreachable, -minute)},
			newPod("p", func(p *schedulingv1.Pod) {
				p.Spec.Tolerations = []*schedulingv1.Toleration{{Operator: "Exists"}}
			}), 0, "Keep: it tolerates every NoExecute taint indefinitely",
		},
		{
			"a taint that is tolerated for a while evicts after it, counted from the taint",
			[]*nodev1.Taint{since("k", -minute)},
			newPod("p", tolerating("k", 300)), 0, "Wait 4m0s: it tolerates the taint k:NoExecute for 300 s",
		},
		{
			"the former key of the document counts, for its 6000 seconds",
			[]*nodev1.Taint{since(unreachable, -minute)},
			newPod("p", tolerating("node.alpha.kubernetes.io/unreachable", 6000)), 0,
			"Wait 1h39m0s: it tolerates the taint node.kubernetes.io/unreachable:NoExecute for 6000 s",
		},
		{
			"that of a node that is not ready too",
			[]*nodev1.Taint{since(placement.NotReadyTaint, -minute)},
			newPod("p", tolerating("node.alpha.kubernetes.io/notReady", 6000)), 0,
			"Wait 1h39m0s: it tolerates the taint node.kubernetes.io/not-ready:NoExecute for 6000 s",
		},
		{
			"and at once when the time is over",
			[]*nodev1.Taint{since("k", -minute)},
			newPod("p", tolerating("k", 60)), 0,
			"Evict 0s: it tolerates the taint k:NoExecute for 60 s",
		},
		{
			"a pod that is bound after the taint gets its seconds from the end of the second in which it was bound",
			[]*nodev1.Taint{since("k", -time.Hour)},
			newPod("p", tolerating("k", 300), boundAt(-10*time.Second)), 0,
			"Wait 4m51s: it tolerates the taint k:NoExecute for 300 s from its binding",
		},
		{
			"also one that named its node when it was created",
			[]*nodev1.Taint{since("k", -time.Hour)},
			newPod("p", tolerating("k", 300), func(p *schedulingv1.Pod) { p.Metadata.CreationTimestamp = at(0) }), 0,
			"Wait 5m1s: it tolerates the taint k:NoExecute for 300 s from its binding",
		},
		{
			"one that was bound before has them from the taint",
			[]*nodev1.Taint{since("k", -minute)},
			newPod("p", tolerating("k", 300), boundAt(-time.Hour)), 0,
			"Wait 4m0s: it tolerates the taint k:NoExecute for 300 s",
		},
		{
			"one that does not tolerate the taint leaves at once, whenever it was bound",
			[]*nodev1.Taint{since("k", -minute)},
			newPod("p", boundAt(0)), 0,
			"Evict -1m0s: it does not tolerate the taint k:NoExecute",
		},
		{
			"no seconds are none",
			[]*nodev1.Taint{since("k", 0)},
			newPod("p", tolerating("k", 0)), 0,
			"Evict 0s: it tolerates the taint k:NoExecute for 0 s",
		},
		{
			"the first toleration that matches counts",
			[]*nodev1.Taint{since("k", 0)},
			newPod("p", tolerating("k", 30), tolerating("k", 10)), 0, "Wait 30s: it tolerates the taint k:NoExecute for 30 s",
		},
		{
			"the earliest time of all taints counts",
			[]*nodev1.Taint{since("k", -minute), since("l", 0), since("m", 0)},
			newPod("p", tolerating("k", 300), tolerating("l", 30), tolerating("m", -1)), 0,
			"Wait 30s: it tolerates the taint l:NoExecute for 30 s",
		},
		{
			"one taint that is not tolerated is enough",
			[]*nodev1.Taint{since("k", 0), since("l", 0)},
			newPod("p", tolerating("k", -1)), 0, "Evict 0s: it does not tolerate the taint l:NoExecute",
		},
		{
			"a pod that is terminating is left",
			[]*nodev1.Taint{since("k", 0)},
			newPod("p", terminating), 0,
			"Keep: it is already being deleted",
		},
		{
			"a pod that has ended is left",
			[]*nodev1.Taint{since("k", 0)},
			newPod("p", phase("Failed")), 0,
			"Keep: it has terminated",
		},
		{
			"a pod of the node itself is left",
			[]*nodev1.Taint{since("k", 0)},
			newPod("p", mirror), 0,
			"Keep: it is a static pod",
		},
		{
			"in doubt about the agent its silence evicts no pod",
			[]*nodev1.Taint{since(unreachable, -minute)},
			newPod("p"),
			20 * time.Second,
			"Wait 20s: it does not tolerate the taint node.kubernetes.io/unreachable:NoExecute, and the node's agent may still send a heartbeat",
		},
		{
			"a taint of others does, even so",
			[]*nodev1.Taint{since("k", 0)},
			newPod("p"), 20 * time.Second,
			"Evict 0s: it does not tolerate the taint k:NoExecute",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := EvictionView{Now: now(), Node: newNode(tainted(tc.taint...)), Pods: []*schedulingv1.Pod{tc.pod}}
			if tc.doubt > 0 {
				v.Reachability = Reachability{Agent: Agent{Silence: grace - tc.doubt}, Grace: grace}
			}
			list, p := Deadlines(v), Evictions(v)
			wake := p.Wake
			got := list[0].Verdict
			if !list[0].At.IsZero() {
				got += " " + list[0].At.Sub(now()).String()
			}
			if got += ": " + list[0].Reason; got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if waits := list[0].Verdict == Wait; waits != !wake.IsZero() || (waits && !wake.Equal(list[0].At)) {
				t.Errorf("wake at %v", wake)
			}
			if evicts := list[0].Verdict == Evict; evicts != p.Asks(DeletePod) ||
				(list[0].Verdict == Wait) != (len(p.Held) > 0) {
				t.Errorf("%s, and the plan asks %v, holds back %v", list[0].Verdict, p.Ask, p.Held)
			}
		})
	}
}

// TestPromisesOfEvictions plays a node whose taints come and go, and pods that bear them for a while: a pod goes at its
// time and never before it, and one that tolerates every taint indefinitely is never evicted. A restart of the
// controller in between changes nothing, since the decision depends only on the objects.
func TestPromisesOfEvictions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"k", "l", placement.UnreachableTaint}
		var pods []*schedulingv1.Pod
		for i := range rapid.IntRange(1, 4).Draw(t, "pods") {
			p := newPod(fmt.Sprintf("p%d", i))
			for _, k := range keys {
				if s := rapid.Int32Range(-2, 100).Draw(t, "seconds"); s >= -1 {
					tolerating(k, s)(p)
				}
			}
			pods = append(pods, p)
		}
		node, clock := newNode(), now()
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			clock = clock.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "pause")) * time.Second)
			key := rapid.SampledFrom(keys).Draw(t, "key")
			if rapid.Bool().Draw(t, "taint") {
				next := proto.Clone(node).(*nodev1.Node)
				next.Spec.Taints = append(next.Spec.Taints, taint(key, placement.NoExecute))
				next.Spec.Taints = taints(next.Spec.Taints, []mark{{placement.UnreachableTaint, placement.NoExecute}}, clock)
				node = next
			} else {
				node.Spec.Taints = nil
			}
			v := EvictionView{Now: clock, Node: node, Pods: pods}
			wake := Evictions(v).Wake
			for _, e := range Deadlines(v) {
				at, leaves := time.Time{}, false
				for _, tt := range node.Spec.Taints {
					b := placement.FirstTolerating(e.Pod.Spec.Tolerations, tt)
					if b != nil && b.TolerationSeconds == nil {
						continue
					}
					end := tt.TimeAdded.AsTime().Add(time.Duration(b.GetTolerationSeconds()) * time.Second)
					if !leaves || end.Before(at) {
						at, leaves = end, true
					}
				}
				want := Keep
				if leaves && at.After(clock) {
					want = Wait
				} else if leaves {
					want = Evict
				}
				if e.Verdict != want || !e.At.Equal(at) {
					t.Fatalf("%s: %s at %v, want %s at %v", PodName(e.Pod), e.Verdict, e.At, want, at)
				}
				if e.Verdict == Wait && (wake.IsZero() || wake.After(e.At)) {
					t.Fatalf("wakes at %v, too late for %v", wake, e.At)
				}
			}
		}
	})
}

func managed(kind string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Metadata.OwnerReferences = []*metav1.OwnerReference{{Kind: kind, Name: "o", Uid: "o", Controller: proto.Bool(true)}}
	}
}

func emptyDir(p *schedulingv1.Pod) {
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
}

func labelled(app string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Metadata.Labels = map[string]string{"app": app} }
}

func ignoring(d *nodev1.Drain) { d.Spec.IgnoreDaemonSets = proto.Bool(true) }

func forcing(d *nodev1.Drain) { d.Spec.Force = proto.Bool(true) }

func deletingData(d *nodev1.Drain) { d.Spec.DeleteEmptyDirData = proto.Bool(true) }

func ofMachine(d *nodev1.Drain) { d.Spec.MachineRef = &metav1.ObjectReference{Name: "m"} }

func newBudget(name, app string, allowed int32) *schedulingv1.PodDisruptionBudget {
	return &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "1"},
		Spec: &schedulingv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
		Status: &schedulingv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: proto.Int32(allowed),
			CurrentHealthy:     proto.Int32(2), DesiredHealthy: proto.Int32(2), ExpectedPods: proto.Int32(3),
		},
	}
}

func TestVerdictsOfADrain(t *testing.T) {
	replica := managed("ReplicaSet")
	for _, tc := range []struct {
		name  string
		drain []func(*nodev1.Drain)
		node  *nodev1.Node
		pod   *schedulingv1.Pod
		want  string
	}{
		{"a pod that is recreated leaves", nil, newNode(), newPod("p", replica), "Evict: the node is drained"},
		{
			"a pod of a daemon set stops the drain", nil, newNode(), newPod("p", managed("DaemonSet")),
			"Blocked: cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
		},
		{
			"unless they are to be ignored",
			[]func(*nodev1.Drain){ignoring},
			newNode(), newPod("p", managed("DaemonSet")),
			"Skip: a daemon set manages it",
		},
		{
			"a pod without a controller stops the drain", nil, newNode(), newPod("p"),
			"Blocked: cannot delete Pods that declare no controller (use --force to override)",
		},
		{"unless by force", []func(*nodev1.Drain){forcing}, newNode(), newPod("p"), "Evict: the node is drained"},
		{
			"a pod that would lose data stops the drain", nil, newNode(), newPod("p", replica, emptyDir),
			"Blocked: cannot delete Pods with local storage (use --delete-emptydir-data to override)",
		},
		{
			"unless the data may go",
			[]func(*nodev1.Drain){deletingData},
			newNode(), newPod("p", replica, emptyDir),
			"Evict: the node is drained",
		},
		{
			"a pod that has ended is deleted, whatever it is", nil, newNode(), newPod("p", emptyDir, phase("Succeeded")),
			"Evict: it has terminated",
		},
		{"a pod of the node itself stays", nil, newNode(), newPod("p", mirror), "Skip: it is a static pod"},
		{
			"a pod that is terminating is waited for, whatever it is", nil, newNode(), newPod("p", emptyDir, terminating),
			"Wait: it is terminating",
		},
		{
			"also on a node that does not answer", nil, newNode(observed(readyUnknown())), newPod("p", replica, terminating),
			"Wait: it is terminating",
		},
		{
			"but not if its machine is to go as well",
			[]func(*nodev1.Drain){ofMachine},
			newNode(observed(readyUnknown())),
			newPod("p", replica, terminating),
			"Skip: it is being deleted, and the machine of its node, which is unreachable, is to be deleted as well",
		},
		{
			"which counts for a node that answers as for any other",
			[]func(*nodev1.Drain){ofMachine},
			newNode(observed(readyTrue())), newPod("p", replica, terminating), "Wait: it is terminating",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := verdicts(DrainView{
				Now: now(), Drain: newDrain("x", Draining, tc.drain...), Node: tc.node,
				Pods: []*schedulingv1.Pod{tc.pod},
			})[0]
			if got := v.Verdict + ": " + v.Reason; got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if v.Leaves != (v.Verdict != Skip) || v.Delete != (v.Reason == "it has terminated") {
				t.Errorf("leaves %v, delete %v", v.Leaves, v.Delete)
			}
		})
	}
}

func TestDrainWithPods(t *testing.T) {
	replica := managed("ReplicaSet")
	refused := Try{
		Verb: EvictPod, Why: "budget web allows no more", Count: 2, Next: now().Add(3 * time.Second), Pod: "1",
		Budgets: "web@1",
	}
	type outcome struct {
		Phase, Message     string
		Evicted, Remaining int32
		Blocked, Actions   []string
		Confirm            bool
		Wake               time.Duration
	}
	draining := func(evicted, remaining int32) *nodev1.Drain {
		d := newDrain("x", Draining)
		d.Status.EvictedPods, d.Status.RemainingPods = proto.Int32(evicted), proto.Int32(remaining)
		return d
	}
	blocked := draining(0, 2)
	blocked.Status.Blocked = []string{"default/p: no; tried once, again at 12:00:01Z"}
	for _, tc := range []struct {
		name string
		view DrainView
		want outcome
	}{
		{
			"it waits for the scheduler's first word",
			DrainView{Drain: draining(0, 0)},
			outcome{Phase: Draining, Message: "waits for the list of pods from the scheduler", Wake: time.Second},
		},
		{
			"it has all pods leave at once",
			DrainView{Drain: draining(0, 0), Known: true, Pods: []*schedulingv1.Pod{newPod("q", replica), newPod("p", replica)}},
			outcome{
				Phase: Draining, Message: "waits for 2 pods to leave", Remaining: 2,
				Actions: []string{"EvictPod p", "EvictPod q"},
			},
		},
		{
			"what left is counted",
			DrainView{Drain: draining(1, 3), Known: true, Pods: []*schedulingv1.Pod{newPod("p", replica, terminating)}},
			outcome{Phase: Draining, Message: "waits for 1 pod to leave", Evicted: 3, Remaining: 1},
		},
		{
			"before it ends it asks the scheduler once more",
			DrainView{Drain: draining(2, 1), Known: true},
			outcome{Phase: Draining, Evicted: 2, Remaining: 1, Confirm: true, Actions: []string{"ListPods a"}},
		},
		{
			"no pod counts as gone before the scheduler has said so",
			DrainView{Drain: draining(2, 1), Known: true, Listed: answered(Away, "connection refused")},
			outcome{
				Phase: Draining, Message: "waits for the scheduler: connection refused", Evicted: 2, Remaining: 1,
				Wake: time.Second,
			},
		},
		{
			"a scheduler that refuses to list is asked again",
			DrainView{
				Drain: draining(3, 0), Known: true,
				Listed: Answer{Code: Refused, Why: "internal error", At: now().Add(-AskScheduler)},
			},
			outcome{Phase: Draining, Evicted: 3, Confirm: true, Actions: []string{"ListPods a"}},
		},
		{
			"without an answer it waits",
			DrainView{Drain: draining(3, 0), Known: true, Listed: answered(Away, "connection refused")},
			outcome{Phase: Draining, Message: "waits for the scheduler: connection refused", Evicted: 3, Wake: time.Second},
		},
		{
			"it ends when nothing is left that must leave",
			DrainView{Drain: draining(2, 1), Known: true, Listed: answered(Granted, ""), Pods: []*schedulingv1.Pod{
				newPod("s", mirror),
			}},
			outcome{Phase: Succeeded, Message: "3 pods left the node", Evicted: 3},
		},
		{
			"a pod that only the scheduler has seen is checked again soon",
			DrainView{Drain: draining(2, 0), Known: true, Listed: answered(Granted, ""), Pods: []*schedulingv1.Pod{
				newPod("p", replica, terminating),
			}},
			outcome{Phase: Draining, Message: "waits for 1 pod to leave", Evicted: 2, Remaining: 1, Wake: time.Second},
		},
		{
			"a refused eviction is reported with its budget, and tried again",
			DrainView{
				Drain: draining(0, 2), Known: true, Pods: []*schedulingv1.Pod{
					newPod("p", replica, labelled("web")),
					newPod("q", replica),
				},
				Tries: map[string]Try{"uid-p": refused}, Budgets: []*schedulingv1.PodDisruptionBudget{newBudget("web", "web", 0)},
			},
			outcome{
				Phase: Draining, Message: "waits for 2 pods to leave, 1 of them blocked: budget web allows no more", Remaining: 2,
				Blocked: []string{"default/p: budget web allows no more; tried 2 times, again at 12:00:03Z"},
				Actions: []string{"EvictPod q"}, Wake: 3 * time.Second,
			},
		},
		{
			"at once if the budget changed and allows it",
			DrainView{
				Drain: draining(0, 1), Known: true, Pods: []*schedulingv1.Pod{newPod("p", replica, labelled("web"))},
				Tries:   map[string]Try{"uid-p": {Why: "no", Count: 2, Next: now().Add(time.Second), Pod: "1", Budgets: "web@0"}},
				Budgets: []*schedulingv1.PodDisruptionBudget{newBudget("web", "web", 1)},
			},
			outcome{
				Phase: Draining, Message: "waits for 1 pod to leave, 1 of them blocked: no", Remaining: 1,
				Blocked: []string{"default/p: no; tried 2 times, again at 12:00:01Z"}, Actions: []string{"EvictPod p"},
			},
		},
		{
			"at once if the pod changed",
			DrainView{
				Drain: draining(0, 1), Known: true, Pods: []*schedulingv1.Pod{newPod("p", replica)},
				Tries: map[string]Try{"uid-p": {Why: "no", Count: 2, Next: now().Add(time.Second), Pod: "0"}},
			},
			outcome{
				Phase: Draining, Message: "waits for 1 pod to leave, 1 of them blocked: no", Remaining: 1,
				Blocked: []string{"default/p: no; tried 2 times, again at 12:00:01Z"}, Actions: []string{"EvictPod p"},
			},
		},
		{
			"an accepted eviction is not asked for twice",
			DrainView{
				Drain: draining(0, 1), Known: true, Pods: []*schedulingv1.Pod{newPod("p", replica)},
				Tries: map[string]Try{"uid-p": {Accepted: true, Next: now().Add(time.Second)}},
			},
			outcome{Phase: Draining, Message: "waits for 1 pod to leave", Remaining: 1, Wake: time.Second},
		},
		{
			"what it may not touch fails it, all of it named, before anything leaves",
			DrainView{Drain: draining(0, 0), Known: true, Pods: []*schedulingv1.Pod{
				newPod("a", replica), newPod("b"), newPod("c"), newPod("d", managed("DaemonSet")), newPod("e", replica, emptyDir),
			}},
			outcome{
				Phase: Failed, Remaining: 5,
				Message: "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): default/d; " +
					"cannot delete Pods with local storage (use --delete-emptydir-data to override): default/e; " +
					"cannot delete Pods that declare no controller (use --force to override): default/b, default/c",
			},
		},
		{
			"once it has failed nothing is blocked any more",
			DrainView{Drain: blocked, Known: true, Pods: []*schedulingv1.Pod{newPod("b")}},
			outcome{
				Phase: Failed, Message: "cannot delete Pods that declare no controller (use --force to override): default/b",
				Evicted: 1, Remaining: 1,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.Now, tc.view.Node = now(), newNode(unschedulable)
			p := Drain(tc.view)
			status := p.StatusAfter(tc.view.Drain)
			got := outcome{
				Phase: status.GetPhase(), Message: status.GetMessage(), Evicted: status.GetEvictedPods(),
				Remaining: status.GetRemainingPods(), Blocked: status.GetBlocked(), Confirm: p.Asks(ListPods),
			}
			for _, a := range p.Steps() {
				got.Actions = append(got.Actions, a.GetAction()+" "+a.GetObject().GetName())
			}
			if !p.Wake.IsZero() {
				got.Wake = p.Wake.Sub(now())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Drain (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDrainStaysWithinBudgets plays a scheduler with budgets that open and close: no more pods leave than it answers,
// each refusal is reported, and the drain ends with an empty node if the budgets let it.
func TestDrainStaysWithinBudgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock, node, drain := now(), newNode(unschedulable), newDrain("x", Draining, ignoring, forcing, deletingData)
		var onNode []*schedulingv1.Pod
		for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
			onNode = append(onNode,
				newPod(fmt.Sprintf("p%d", i), labelled(rapid.SampledFrom([]string{"web", "free"}).Draw(t, "app"))))
		}
		budget := newBudget("web", "web", 0)
		memory := NewMemory()
		step := func(open int32) {
			clock = clock.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "pause")) * time.Second)
			if open != budget.Status.GetDisruptionsAllowed() {
				budget = proto.Clone(budget).(*schedulingv1.PodDisruptionBudget)
				budget.Status.DisruptionsAllowed = proto.Int32(open)
				budget.Metadata.ResourceVersion += "1"
			}
			v := DrainView{
				Now: clock, Drain: drain, Node: node, Pods: onNode, Known: true,
				Budgets: []*schedulingv1.PodDisruptionBudget{budget}, Tries: memory.Tries(onNode),
			}
			p := Drain(v)
			if p.Asks(ListPods) {
				list := Answered{Question: p.Ask[0], Answer: Answer{Code: Granted, Pods: onNode, At: clock}}
				p = Drain(v.With([]Answered{list}))
			}
			stay, left := slices.Clone(onNode), open
			for _, q := range p.Ask {
				code := Granted
				switch guarded := q.Pod.Metadata.Labels["app"] == "web"; {
				case guarded && left == 0:
					code = Refused
				case guarded:
					left--
				}
				memory.Answered(Answered{Question: q, Answer: Answer{Code: code, Why: "no more", At: clock}}, v.Budgets,
					5*time.Second)
				if code == Granted {
					stay = slices.DeleteFunc(stay, func(p *schedulingv1.Pod) bool { return p == q.Pod })
					memory.Gone(object.KeyOf(q.Pod))
				}
			}
			for _, pod := range verdicts(v) {
				switch guarded := pod.Pod.Metadata.Labels["app"] == "web"; {
				case pod.Verdict == Evict:
				case open > 0 && guarded && pod.Try.Budgets != budgetsOf(pod.Pod, v.Budgets):
					t.Fatalf("%s is not tried although its budget changed and allows it", PodName(pod.Pod))
				case !pod.Try.Next.After(clock):
					t.Fatalf("%s is held back after its time", PodName(pod.Pod))
				}
			}
			status := p.StatusAfter(drain)
			if status.GetPhase() == Succeeded && len(onNode) > 0 {
				t.Fatalf("the drain ended with %d pods on the node", len(onNode))
			}
			if len(status.GetBlocked()) < len(p.Held) {
				t.Fatalf("%d blocked, %d held back", len(status.GetBlocked()), len(p.Held))
			}
			onNode, drain.Status = stay, status
		}
		for _, open := range rapid.SliceOfN(rapid.Int32Range(0, 2), 1, 8).Draw(t, "allowed") {
			step(open)
		}
		for range 14 {
			clock = clock.Add(6 * time.Second)
			step(1)
		}
		if drain.Status.GetPhase() != Succeeded {
			t.Fatalf("%s: %s", drain.Status.GetPhase(), drain.Status.GetMessage())
		}
	})
}

func readyPod(p *schedulingv1.Pod) {
	p.Status.Conditions = []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}}
}

func TestForesee(t *testing.T) {
	pods := []*schedulingv1.Pod{
		newPod("a", labelled("web"), readyPod), newPod("b", labelled("web"), readyPod),
		newPod("c", labelled("both"), readyPod), newPod("d", readyPod),
		newPod("e", labelled("web")), newPod("f", labelled("short")), newPod("g", labelled("lenient")),
		newPod("h", labelled("both"), phase("Pending")),
	}
	short, lenient := newBudget("short", "short", 0), newBudget("lenient", "lenient", 0)
	short.Status.CurrentHealthy, lenient.Status.CurrentHealthy = proto.Int32(1), proto.Int32(1)
	lenient.Spec.UnhealthyPodEvictionPolicy = proto.String("AlwaysAllow")
	budgets := []*schedulingv1.PodDisruptionBudget{
		newBudget("web", "web", 1), newBudget("one", "both", 1), newBudget("other", "both", 1), short, lenient,
	}
	const evict = "Evict: the node is drained"
	verdicts := map[string]string{
		"a": evict,
		"b": "Blocked: Cannot evict pod as it would violate the pod's disruption budget. The disruption budget web needs 2 healthy pods and has 2 currently",
		"c": "Blocked: This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		"d": evict,
		"e": evict, // it is not ready, and enough others are
		"f": "Blocked: Cannot evict pod as it would violate the pod's disruption budget. The disruption budget short needs 2 healthy pods and has 1 currently",
		"g": evict,
		"h": evict, // it does no work yet
	}
	for _, tc := range []struct {
		name         string
		drain        *nodev1.Drain
		node         *nodev1.Node
		pods         []*schedulingv1.Pod
		verdicts     map[string]string
		steps, holds []string
	}{
		{
			"before it evicts pods a drain only predicts the verdicts",
			newDrain("x", "", forcing), newNode(), pods, verdicts,
			[]string{"CordonNode a"},
			nil,
		},
		{
			"what a budget refuses is no step", newDrain("x", Draining, forcing), newNode(unschedulable), pods, verdicts,
			[]string{"EvictPod a", "EvictPod d", "EvictPod e", "EvictPod g", "EvictPod h"},
			[]string{"EvictPod b", "EvictPod c", "EvictPod f"},
		},
		{
			"a drain that fails holds nothing back", newDrain("x", Draining), newNode(unschedulable), pods[2:3],
			map[string]string{"c": "Blocked: cannot delete Pods that declare no controller (use --force to override)"},
			nil, nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, foreseen := Foresee(DrainView{
				Now: now(), Drain: tc.drain, Node: tc.node, Pods: tc.pods, Known: true, Budgets: budgets,
			})
			got := map[string]string{}
			for _, pod := range foreseen {
				got[pod.Pod.Metadata.Name] = pod.Verdict + ": " + pod.Reason
			}
			var steps, holds []string
			for _, a := range p.Steps() {
				steps = append(steps, a.GetAction()+" "+a.GetObject().GetName())
			}
			for _, h := range p.Held {
				holds = append(holds, h.GetAction()+" "+h.GetObject().GetName())
			}
			if diff := cmp.Diff([]any{tc.verdicts, tc.steps, tc.holds}, []any{got, steps, holds}); diff != "" {
				t.Errorf("Foresee (-want +got):\n%s", diff)
			}
		})
	}
}
