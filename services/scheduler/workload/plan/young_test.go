package plan_test

import (
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// made sets when a pod was created; it is bound at once.
func made(t time.Time) change {
	return func(p *schedulingv1.Pod) { p.Metadata.CreationTimestamp = at(t) }
}

func conditioned(typ string, since time.Time) change {
	return func(p *schedulingv1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, &schedulingv1.PodCondition{
			Type: typ, Status: "True", LastTransitionTime: at(since),
		})
	}
}

func TestDiedYoung(t *testing.T) {
	set := replicaSet(1)
	young := func(changes ...change) *schedulingv1.Pod {
		return pod("a", set, append([]change{made(start.Add(-20 * time.Second))}, changes...)...)
	}
	target := conditioned(placement.DisruptionTarget, start)
	for name, c := range map[string]struct {
		was, is *schedulingv1.Pod
		want    bool
	}{
		"a pod that is deleted soon after it was bound": {young(), young(leaving), true},
		"one whose record goes at once":                 {young(), nil, true},
		"one that was bound long after it was created": {
			pod("a", set, conditioned(placement.PodScheduled, start)),
			nil, true,
		},
		"one that was bound a minute ago": {
			young(made(start.Add(-time.Minute - time.Second))), nil,
			false,
		},
		"one whose deletion was known":                        {young(leaving), nil, false},
		"one that stays":                                      {young(), young(phase("Failed")), false},
		"one that has ended":                                  {young(phase("Succeeded")), nil, false},
		"one that had no node":                                {young(on("")), nil, false},
		"one that was evicted on request":                     {young(target), young(target, leaving), false},
		"one that was evicted on request and is gone at once": {young(target), nil, false},
		"one that is new":                                     {nil, young(), false},
		"one that goes for a taint of its node": {
			young(goesFor(placement.EvictedByTaint)), young(goesFor(placement.EvictedByTaint), leaving), true,
		},
		"one that goes for a pod of higher priority": {young(goesFor("PreemptionByScheduler")), nil, false},
	} {
		if got := plan.DiedYoung(c.was, c.is, start); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// TestAnOwnerWhosePodsDieYoungMakesFewerAndFewer deletes each pod as soon as it is made, as a taint of the only node
// does.
func TestAnOwnerWhosePodsDieYoungMakesFewerAndFewer(t *testing.T) {
	set, now := replicaSet(3), start
	var deaths plan.YoungDeaths
	var pauses []time.Duration
	rounds := 0
	for now.Before(start.Add(10 * time.Minute)) {
		v := view(set)
		v.Now, v.Deaths = now, deaths
		p := plan.Replicas(v)
		if len(p.Create) == 0 {
			if len(p.Held) != 1 || !p.Wake.After(now) {
				t.Fatalf("nothing is made, held back is %v, wake at %v", p.Held, p.Wake)
			}
			pauses = append(pauses, p.Wake.Sub(now))
			now = p.Wake
			continue
		}
		rounds++
		for range p.Create {
			now = now.Add(10 * time.Millisecond)
			deaths = deaths.After(pod("a", set, made(now.Truncate(time.Second))), now)
		}
	}
	if rounds > 12 || pauses[0] != time.Second || pauses[1] != 2*time.Second || pauses[2] != 4*time.Second {
		t.Errorf("%d rounds in ten minutes, with pauses of %v", rounds, pauses)
	}
	v := view(set)
	v.Now, v.Deaths = now.Add(10*time.Minute), deaths
	if p := plan.Replicas(v); len(p.Create) != 3 {
		t.Errorf("after a long time it makes %d pods", len(p.Create))
	}
}

func TestADaemonSetAndAJobWaitAfterPodsThatDiedYoung(t *testing.T) {
	deaths := plan.YoungDeaths{}.After(pod("a", nil, made(start)), start)
	d := plan.DaemonSet(plan.DaemonSetView{
		Now: start, Set: daemonSet(), Nodes: []*nodev1.Node{node("a"), node("b")}, Deaths: map[string]plan.YoungDeaths{
			"a": deaths,
		},
	})
	if len(d.Create) != 1 || plan.TargetNode(d.Create[0]) != "b" || !d.Wake.Equal(start.Add(time.Second)) {
		t.Errorf("a daemon set makes %v, wakes at %v", d.Create, d.Wake)
	}
	j := plan.Job(plan.JobView{Now: start, Job: job(), Deaths: deaths})
	if len(j.Create) != 0 || len(j.Held) != 1 || !j.Wake.Equal(start.Add(time.Second)) {
		t.Errorf("a job makes %v, wakes at %v", j.Create, j.Wake)
	}
}
