package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// TestOfferedPodsGoWhereStoredOnesWould has two queues of the same cluster place the same pods.
func TestOfferedPodsGoWhereStoredOnesWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		stored, offered := NewQueue(s.cluster(), only(s.policy)), NewQueue(s.cluster(), only(s.policy))
		var pods []*schedulingv1.Pod
		for i, p := range s.pods {
			pod := proto.CloneOf(p)
			pod.Metadata.Name, pod.Metadata.Uid = fmt.Sprint("new-", i), fmt.Sprint("uid-", i)
			pod.Spec.SchedulerName = DefaultScheduler
			stored.AddPod(pod)
			pods = append(pods, pod)
		}
		for i, ok := range offered.Offer(pods) {
			if ok != offered.NeedsNode(pods[i]) {
				t.Fatalf("%v is taken: %t", pods[i], ok)
			}
		}
		nodes := func(q *Queue, verb string) map[string]string {
			out := map[string]string{}
			p := q.Next(start)
			for _, a := range p.Do {
				if a.Verb == verb {
					out[a.Pod.GetMetadata().GetName()] = a.Node
				}
			}
			if verb == CreateBound && len(out) != len(p.Do)+len(p.Held) {
				t.Fatalf("the plan for offered pods is %+v", p)
			}
			return out
		}
		if diff := cmp.Diff(nodes(stored, BindPod), nodes(offered, CreateBound)); diff != "" {
			t.Error(diff)
		}
	})
}

func wanting(name string) *schedulingv1.Pod {
	return waiting("uid-"+name, asking("cpu", "4"), func(p *schedulingv1.Pod) { p.Metadata.Name = name })
}

// placedOne returns a queue that has placed a new pod on a node, which has room for one.
func placedOne(t *testing.T) (*Queue, Action) {
	t.Helper()
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	q.Offer([]*schedulingv1.Pod{wanting("new")})
	p := q.Next(start)
	if len(p.Do) != 1 || p.Do[0].Verb != CreateBound || p.Do[0].Node != "a" {
		t.Fatalf("Next = %+v", p)
	}
	return q, p.Do[0]
}

// fits reports whether another pod gets the node now.
func fits(q *Queue) bool {
	q.AddPod(wanting("other"))
	p := q.Next(start.Add(longestPause))
	return len(p.Do) > 0 && p.Do[0].Verb == BindPod
}

func TestTheRoomOfAnOfferedPodIsKeptUntilItsCreationIsSettled(t *testing.T) {
	key := object.Key{Namespace: "default", Name: "new"}
	stranger := wanting("new")
	stranger.Metadata.Uid = "another"
	stored := wanting("new")
	stored.Spec.NodeName = "a"
	for what, tc := range map[string]struct {
		now  *schedulingv1.Pod
		free bool
	}{
		"it is stored":                {stored, false},
		"it is not stored":            {nil, true},
		"another pod has its name":    {stranger, true},
		"it has ended before the end": {ended(stored), true},
	} {
		t.Run(what, func(t *testing.T) {
			q, a := placedOne(t)
			q.AddPod(stranger) // the news of both come before the result
			q.RemovePod(key)
			if fits(q) {
				t.Fatal("its room is given away before its creation is settled")
			}
			q.Done(start, []Outcome{{Action: a, Result: Changed, Now: tc.now}})
			q.RemovePod(object.Key{Namespace: "default", Name: "other"})
			if tc.now == stranger {
				q.RemovePod(key) // it waits for the room, too
			}
			if got := fits(q); got != tc.free {
				t.Errorf("another pod fits: %t, want %t", got, tc.free)
			}
		})
	}
}

func ended(pod *schedulingv1.Pod) *schedulingv1.Pod {
	out := proto.CloneOf(pod)
	out.Status.Phase = proto.String(placement.Failed)
	return out
}

func TestAPodIsStoredFirst(t *testing.T) {
	for what, before := range map[string]func(q *Queue, pod *schedulingv1.Pod){
		"whose name is waiting": func(q *Queue, pod *schedulingv1.Pod) { q.AddPod(pod) },
		"whose name is bound": func(q *Queue, pod *schedulingv1.Pod) {
			there := proto.CloneOf(pod)
			there.Spec.NodeName = "a"
			q.AddPod(there)
		},
		"that is offered twice": func(q *Queue, pod *schedulingv1.Pod) { q.Offer([]*schedulingv1.Pod{pod}) },
		"whose name is placed and not settled": func(q *Queue, pod *schedulingv1.Pod) {
			q.Offer([]*schedulingv1.Pod{pod})
			q.Next(start)
		},
		"that has scheduling gates": func(_ *Queue, pod *schedulingv1.Pod) {
			pod.Spec.SchedulingGates = []*structpb.Struct{{}}
		},
		"that names another scheduler": func(_ *Queue, pod *schedulingv1.Pod) { pod.Spec.SchedulerName = "other" },
	} {
		t.Run(what, func(t *testing.T) {
			q := NewQueue(clusterOf(newNode("a")), only(nil))
			pod := wanting("new")
			before(q, pod)
			if q.Offer([]*schedulingv1.Pod{pod})[0] {
				t.Error("it is offered")
			}
		})
	}
}

// TestOfferedPodsDoNotPassStoredOnes offers a pod while more pods wait than one decision places.
func TestOfferedPodsDoNotPassStoredOnes(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	for i := range mostAtOnce + 1 {
		q.AddPod(waiting(fmt.Sprint("uid-", i), func(p *schedulingv1.Pod) { p.Metadata.Name = fmt.Sprintf("p-%04d", i) }))
	}
	q.Offer([]*schedulingv1.Pod{wanting("new")})
	for _, a := range q.Next(start).Do {
		if a.Verb == CreateBound {
			t.Errorf("the decision is %+v", a.Decision)
		}
	}
}

func TestABindingOfACallerWhoKnowsTheNodeIsRefusedWhileANewPodIsPlacedThere(t *testing.T) {
	for what, known := range map[string]int64{"a caller who says what it knows": 1 << 40, "any other": 0} {
		q := NewQueue(clusterOf(newNode("a")), only(nil))
		q.Offer([]*schedulingv1.Pod{waiting("new", func(p *schedulingv1.Pod) { p.Metadata.Name = "new" })})
		made := q.Next(start).Do[0]
		other := waiting("u", func(p *schedulingv1.Pod) { p.Metadata.Name = "bound" })
		if r := q.Grant([]Request{{Pod: other, Node: "a", Known: known}})[0]; (r.Stale != "") != (known > 0) {
			t.Errorf("%s: %+v", what, r)
		}
		stored := proto.CloneOf(made.Pod)
		stored.Metadata.ResourceVersion, stored.Spec.NodeName = "7", "a"
		q.Done(start, []Outcome{{Action: made, Result: Written, Now: stored}})
		if r := q.Grant([]Request{{Pod: waiting("v"), Node: "a", Known: 6}})[0]; r.Stale == "" {
			t.Errorf("%s: what was known before the pod was created is not old", what)
		}
	}
}

// The eviction of a victim that is not stored yet finds nothing, and the pod is stored after it.
func TestAVictimThatIsStoredAfterItsEvictionIsChosenAgain(t *testing.T) {
	q, placed := placedOne(t)
	high := wanting("high")
	ranking(10)(high)
	q.AddPod(high)
	evictions := func(p Plan) (out []Action) {
		for _, a := range p.Do {
			if a.Verb == EvictVictims {
				out = append(out, a)
			}
		}
		return out
	}
	first := evictions(q.Next(start))
	if len(first) != 1 || outline(first[0].Preempts) != "a: new" {
		t.Fatalf("evictions: %+v", first)
	}
	q.Done(start, []Outcome{{Action: first[0], Result: Written}})
	stored := proto.CloneOf(placed.Pod)
	stored.Spec.NodeName = "a"
	q.Done(start, []Outcome{{Action: placed, Result: Written, Now: stored}})
	if again := evictions(q.Next(start.Add(longestPause))); len(again) != 1 {
		t.Errorf("evictions after it was stored: %+v", again)
	}
}
