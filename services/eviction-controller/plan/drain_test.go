package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"
)

// outcome is the part of a plan for a drain that tests compare.
type outcome struct {
	Phase, Message, Permit string
	Ask, Release, Gone     bool
	Wake                   time.Duration // from now; 0 means never
	Actions, HeldBack      []string
}

func outcomeOf(d *nodev1.Drain, p Plan) outcome {
	status := p.StatusAfter(d)
	o := outcome{
		Phase: status.GetPhase(), Message: status.GetMessage(),
		Permit: permitCondition(&nodev1.Drain{Status: status}).GetStatus(),
		Ask:    p.Asks(AcquirePermit), Release: p.Does(ReleasePermit), Gone: p.Does(ReleaseDrain),
	}
	if !p.Wake.IsZero() {
		o.Wake = p.Wake.Sub(now())
	}
	for _, a := range p.Steps() {
		o.Actions = append(o.Actions, a.GetAction())
	}
	for _, h := range p.Held {
		o.HeldBack = append(o.HeldBack, h.Action+": "+h.Reason)
	}
	return o
}

func answered(code Code, why string) Answer { return Answer{Code: code, Why: why, At: now()} }

func TestDrain(t *testing.T) {
	const asks, cordons, empty = "requests the disruption permit", "makes the node unschedulable",
		"no pods had to leave the node"
	for _, tc := range []struct {
		name string
		view DrainView
		want outcome
	}{
		{
			"a worker is cordoned at once",
			DrainView{Drain: newDrain("x", ""), Node: newNode()},
			outcome{Phase: Draining, Message: cordons, Actions: []string{"CordonNode"}},
		},
		{
			"a drain waits until the node is unschedulable",
			DrainView{Drain: newDrain("x", Draining), Node: newNode()},
			outcome{Phase: Draining, Message: cordons, Actions: []string{"CordonNode"}},
		},
		{
			"an unschedulable node without pods is drained",
			DrainView{Drain: newDrain("x", Draining), Node: newNode(unschedulable)},
			outcome{Phase: Succeeded, Message: empty},
		},
		{
			"a node that a user cordoned is still held by the drain before it counts as drained",
			DrainView{Drain: newDrain("x", ""), Node: newNode(unschedulable)},
			outcome{Phase: Draining, Message: cordons, Actions: []string{"CordonNode"}},
		},
		{
			"there is nothing to drain without a node",
			DrainView{Drain: newDrain("x", "")},
			outcome{Phase: Succeeded, Message: "the node does not exist, so there is nothing to drain"},
		},
		{
			"a drain that ended stays as it is",
			DrainView{Drain: newDrain("x", Succeeded), Node: newNode()},
			outcome{Phase: Succeeded},
		},
		{
			"a control-plane node is not touched before the permit",
			DrainView{Drain: newDrain("x", ""), Node: newNode(controlPlane)},
			outcome{Phase: Pending, Message: asks, Permit: "Unknown", Ask: true, Actions: []string{"AcquireDisruptionPermit"}},
		},
		{
			"a refused permit is reported and requested again",
			DrainView{
				Drain: newDrain("x", Pending, permit("Unknown")), Node: newNode(controlPlane),
				Permit: answered(Refused, "guardian holds it for b"),
			},
			outcome{
				Phase: Pending, Message: "waits for the disruption permit: guardian holds it for b", Permit: "Unknown",
				Wake:     time.Second,
				HeldBack: []string{"CordonNode: guardian holds it for b"},
			},
		},
		{
			"a granted permit lets the drain begin",
			DrainView{
				Drain: newDrain("x", Pending, permit("Unknown")), Node: newNode(controlPlane),
				Permit: answered(Granted, ""),
			},
			outcome{Phase: Draining, Message: cordons, Permit: "True", Actions: []string{"CordonNode"}},
		},
		{
			"a control-plane node without a voter needs no permit",
			DrainView{
				Drain: newDrain("x", Pending, permit("Unknown")), Node: newNode(controlPlane),
				Permit: answered(NotNeeded, ""),
			},
			outcome{Phase: Draining, Message: cordons, Permit: "False", Actions: []string{"CordonNode"}},
		},
		{
			"a control-plane node that is empty asks again before it is said to be drained",
			DrainView{Drain: newDrain("x", Draining, permit("True")), Node: newNode(controlPlane, unschedulable)},
			outcome{Phase: Draining, Permit: "True", Ask: true, Actions: []string{"AcquireDisruptionPermit"}},
		},
		{
			"with the permit a control-plane node is drained as any other",
			DrainView{
				Drain: newDrain("x", Draining, permit("True")), Node: newNode(controlPlane, unschedulable),
				Permit: answered(Granted, ""),
			},
			outcome{Phase: Succeeded, Message: empty, Permit: "True"},
		},
		{
			"a drain whose permit was withdrawn waits, and its node stays unschedulable",
			DrainView{
				Drain: newDrain("x", Draining, permit("True")), Node: newNode(controlPlane, unschedulable),
				Permit: answered(Refused, "member b does not answer"),
			},
			outcome{
				Phase: Draining, Message: "waits for the disruption permit: member b does not answer", Permit: "Unknown",
				Wake:     time.Second,
				HeldBack: []string{"FinishDrain: member b does not answer"},
			},
		},
		{
			"it asks again",
			DrainView{Drain: newDrain("x", Draining, permit("Unknown")), Node: newNode(controlPlane, unschedulable)},
			outcome{Phase: Draining, Permit: "Unknown", Ask: true, Actions: []string{"AcquireDisruptionPermit"}},
		},
		{
			"and is done when it gets it",
			DrainView{
				Drain: newDrain("x", Draining, permit("Unknown")), Node: newNode(controlPlane, unschedulable),
				Permit: answered(Granted, ""),
			},
			outcome{Phase: Succeeded, Message: empty, Permit: "True"},
		},
		{
			"a drain of a worker ends without a word to the guardian",
			DrainView{Drain: newDrain("x", Succeeded, deleting), Node: newNode(unschedulable)},
			outcome{Phase: Succeeded, Gone: true},
		},
		{
			"a drain that has the permit gives it back at its end, also when the node is gone",
			DrainView{Drain: newDrain("x", Succeeded, permit("True"), deleting)},
			outcome{Phase: Succeeded, Permit: "True", Gone: true, Release: true, Actions: []string{"ReleaseDisruptionPermit"}},
		},
		{
			"a drain that may have the permit gives it back, too",
			DrainView{Drain: newDrain("x", Pending, permit("Unknown"), deleting), Node: newNode(controlPlane)},
			outcome{Phase: Pending, Permit: "Unknown", Gone: true, Release: true, Actions: []string{"ReleaseDisruptionPermit"}},
		},
		{
			"the permit stays while another drain of the node uses it",
			DrainView{
				Drain: newDrain("x", Succeeded, permit("True"), deleting), Node: newNode(controlPlane),
				Others: []*nodev1.Drain{newDrain("y", Draining, permit("True"))},
			},
			outcome{Phase: Succeeded, Permit: "True", Gone: true},
		},
		{
			"the permit stays while a reboot of the node uses it",
			DrainView{
				Drain: newDrain("x", Succeeded, permit("True"), deleting),
				Node:  newNode(controlPlane, annotated(RebootOf, "boot-1")),
			},
			outcome{Phase: Succeeded, Permit: "True", Gone: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.Now, tc.view.Known, tc.view.Listed = now(), true, answered(Granted, "")
			before := proto.Clone(tc.view.Drain)
			got := outcomeOf(tc.view.Drain, Drain(tc.view))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Drain (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.view.Drain, protocmp.Transform()); diff != "" {
				t.Errorf("Drain modified its view:\n%s", diff)
			}
		})
	}
}

// TestDrainOfControlPlane plays the guardian with any answers: the node is never held before the permit was granted or
// found needless, a permit that may be held is given back exactly once, and the drain ends when the guardian lets it.
func TestDrainOfControlPlane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		answers := rapid.SliceOfN(rapid.SampledFrom([]Code{Granted, NotNeeded, Refused, Refused}), 1, 8).Draw(t, "answers")
		node, drain, allowed := newNode(controlPlane), newDrain("x", ""), false
		step := func(answer Code) Plan {
			p := Drain(DrainView{
				Now: now(), Drain: drain, Node: node, Permit: answered(answer, "busy"), Known: true,
				Listed: answered(Granted, ""),
			})
			drain.Status = p.StatusAfter(drain)
			if holds(drain) && !allowed {
				t.Fatalf("the node is held in phase %s, before the permit", drain.Status.GetPhase())
			}
			setUnschedulable(node, len(HeldBy(node, []*nodev1.Drain{drain})) > 0)
			return p
		}
		asked := false
		for _, answer := range answers {
			if p := step(NotAsked); p.Asks(AcquirePermit) {
				asked = true
				allowed = allowed || answer != Refused
				before := drain.Status.GetPhase()
				if step(answer); drain.Status.GetPhase() == Succeeded && before != Succeeded && answer == Refused {
					t.Fatal("the drain succeeded though the permit was refused just now")
				}
			} else if drain.Status.GetPhase() == Succeeded && permitCondition(drain).GetStatus() != "False" && !asked {
				t.Fatal("the drain succeeded without a question")
			}
		}
		if allowed {
			for range 6 {
				if step(NotAsked).Asks(AcquirePermit) {
					step(Granted)
				}
			}
			if drain.Status.GetPhase() != Succeeded {
				t.Fatalf("allowed, and the phase is %s", drain.Status.GetPhase())
			}
		}
		deleting(drain)
		p := Drain(DrainView{Now: now(), Drain: drain, Node: node})
		needless := permitCondition(drain).GetStatus() == "False"
		if !p.Does(ReleaseDrain) || p.Does(ReleasePermit) != (asked && !needless) {
			t.Fatalf("at the end gone %v, release %v; asked %v, needless %v", p.Does(ReleaseDrain), p.Does(ReleasePermit), asked,
				needless)
		}
		if len(HeldBy(node, []*nodev1.Drain{drain})) != 0 {
			t.Fatal("a drain that is being deleted holds the node")
		}
	})
}

func TestADrainListsThePodsThatBlockIt(t *testing.T) {
	budget := newBudget("db", "db", 0)
	pod := newPod("db-0", managed("StatefulSet"), labelled("db"), readyPod)
	pod.Metadata.Uid = "uid-db-0"
	refused := Try{
		Verb: EvictPod, Why: "Cannot evict pod", Count: 3, Since: now().Add(-time.Minute), Next: now().Add(5 * time.Second),
	}
	view := DrainView{
		Now: now(), Drain: newDrain("x", Draining, forcing), Node: newNode(unschedulable), Known: true,
		Pods: []*schedulingv1.Pod{pod}, Budgets: []*schedulingv1.PodDisruptionBudget{budget},
		Tries: map[string]Try{"uid-db-0": refused},
	}
	want := []*nodev1.BlockedPod{{
		Namespace: pod.GetMetadata().GetNamespace(), Name: "db-0", Uid: "uid-db-0", Reason: "Cannot evict pod",
		Budgets: []string{"db"}, SinceTime: at(-time.Minute),
	}}
	status := Drain(view).StatusAfter(view.Drain)
	if diff := cmp.Diff(want, status.GetBlockedPods(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}

	// Another process takes over: it does not know of the tries, and then counts its own ones.
	view.Drain.Status, view.Tries = status, nil
	if diff := cmp.Diff(want, Drain(view).StatusAfter(view.Drain).GetBlockedPods(), protocmp.Transform()); diff != "" {
		t.Errorf("after a change of leader: %s", diff)
	}
	refused.Since = now()
	view.Tries = map[string]Try{"uid-db-0": refused}
	if diff := cmp.Diff(want, Drain(view).StatusAfter(view.Drain).GetBlockedPods(), protocmp.Transform()); diff != "" {
		t.Errorf("after its first refusal: %s", diff)
	}

	view.Tries = map[string]Try{"uid-db-0": {Accepted: true, Next: now().Add(time.Second)}}
	if got := Drain(view).StatusAfter(view.Drain).GetBlockedPods(); len(got) > 0 {
		t.Errorf("once its eviction was accepted it is still listed: %v", got)
	}
}

func TestADrainOfAnUnreachableNode(t *testing.T) {
	for name, tt := range map[string]struct {
		drain     func(*nodev1.Drain)
		requested time.Duration // the pod's deletion, from now
		ready     *nodev1.NodeCondition
		want      string
		wake      time.Duration
	}{
		"its terminating pods are waited for a second": {ofMachine, 0, readyUnknown(), Wait, time.Second},
		"and no longer":                                      {ofMachine, -2 * time.Second, readyUnknown(), Skip, 0},
		"a node that may return keeps its pods":              {forcing, -time.Hour, readyUnknown(), Wait, 0},
		"the pods of a reachable node are always waited for": {ofMachine, -time.Hour, readyTrue(), Wait, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod("a", managed("ReplicaSet"))
			pod.Metadata.DeletionTimestamp = at(tt.requested)
			view := DrainView{
				Now: now(), Drain: newDrain("x", Draining, forcing, tt.drain), Known: true,
				Node: newNode(unschedulable, observed(tt.ready)), Pods: []*schedulingv1.Pod{pod},
			}
			if got := verdict(view, pod).Verdict; got != tt.want {
				t.Errorf("verdict %s, want %s", got, tt.want)
			}
			if p := Drain(view); tt.wake > 0 && (p.Wake.IsZero() || p.Wake.After(now().Add(tt.wake))) {
				t.Errorf("wakes at %v, want within %v", p.Wake, tt.wake)
			}
		})
	}
	pod := newPod("b", managed("ReplicaSet"))
	view := DrainView{
		Now: now(), Drain: newDrain("x", Draining, forcing, ofMachine), Known: true,
		Node: newNode(unschedulable, observed(readyUnknown())), Pods: []*schedulingv1.Pod{pod},
	}
	if p := Drain(view); len(p.Ask) != 1 || p.Ask[0].Grace == nil || *p.Ask[0].Grace != 1 {
		t.Errorf("questions %v, want one eviction with a grace period of a second", p.Ask)
	}
}

func TestADrainWithoutGraceRemovesObjectsAtOnceOnlyByForce(t *testing.T) {
	for _, force := range []bool{false, true} {
		d := newDrain("d", Draining)
		d.Spec.GracePeriodSeconds, d.Spec.Force = proto.Int32(0), proto.Bool(force)
		p := Drain(DrainView{
			Now: now(), Drain: d, Node: newNode(unschedulable), Known: true,
			Pods: []*schedulingv1.Pod{newPod("p", managed("ReplicaSet"))},
		})
		if len(p.Ask) != 1 || p.Ask[0].Force != force || p.Ask[0].Grace == nil || *p.Ask[0].Grace != 0 {
			t.Errorf("force %t: asks %v", force, p.Ask)
		}
	}
}

func TestADrainAsksForPodsOnlyAfterTheSchedulerHasSeenTheCordon(t *testing.T) {
	node := newNode(unschedulable)
	node.Metadata.ResourceVersion = "17"
	p := Drain(DrainView{Now: now(), Drain: newDrain("d", Draining), Node: node, Known: true})
	if len(p.Ask) != 1 || p.Ask[0].Verb != ListPods || p.Ask[0].Revision != "17" {
		t.Errorf("asks %v", p.Ask)
	}
}
